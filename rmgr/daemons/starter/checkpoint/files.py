"""What a checkpoint holds, and where it lies: from a job's directories into pieces in the data store, and back. The caller decides when.

Small files share a piece, large ones have several; a piece is named by its SHA-256, so that content unchanged since the attempt's last
checkpoint is not written again. All files are used with the rights of the job's user, and no link leads out of the directory. A checkpoint
is sealed by the Starter that took it (`Seals`).
"""

from __future__ import annotations

import hashlib
import heapq
import math
import os
import posixpath
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from rmgr.adapters.host.accounts import Account, acting, open_regular
from rmgr.checkpoint import CONTROL
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.keys import Checkpoint
from rmgr.coord.protocol.ports import Store
from rmgr.coord.protocol.records import UNREADABLE
from rmgr.coord.seal import CheckpointSeal, before_seal, checkpoint_statement
from rmgr.errors import DataLost, PermissionDenied, StateConflict, UsageError, ValueTooLarge
from rmgr.model.identity import Role
from rmgr.model.stream import json_decoder
from rmgr.model.units import format_size
from rmgr.procedures.bounded import row_of
from rmgr.runner.host.files import remove_all

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.adapters.identity.trust import Trust
    from rmgr.model.node import Meta

T = TypeVar("T")
#: Bytes of one piece, and largest size of a file that shares one.
PIECE_BYTES = 4 * 1024 * 1024
SMALL_BYTES = 256 * 1024
#: Most files, directories and links of one job on one node.
MAX_FILES = 100_000
#: Largest piece and list of files. Nothing larger is read, since a user can write anything that the store takes in their place. The list
#: takes some 300 bytes a file, and 80 for each further piece.
MOST_PIECE_BYTES = PIECE_BYTES + SMALL_BYTES
MOST_LIST_BYTES = 64 * 1024 * 1024
#: Most values in a list: each takes about a hundred bytes once decoded, and decoding stops all threads of this process (0.6 s).
MOST_VALUES = 3_000_000
_RIGHTS = 0o777
#: Most left-out names that are shown, and characters of each.
_SHOWN, _SHOWN_CHARS = 3, 20
#: Checkpoints kept for each task: if the last cannot be read, there is one before.
KEPT = 2
PAGE = 1000


class FileEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file of a checkpoint, a directory, or a link (whose target lies inside). rows: (piece, first byte, bytes), in order."""

    path: str
    mode: int = 0o644
    size: int = 0
    sha256: str = ""
    rows: tuple[tuple[str, int, int], ...] = ()
    link: str = ""
    is_dir: bool = False

    @property
    def content(self) -> tuple[object, ...]:
        """What changes if the file is changed."""
        return self.mode, self.size, self.sha256, self.link, self.is_dir


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Manifest of a checkpoint, written after its pieces. nodes: those whose directories it was made from."""

    sub: int
    index: int
    attempt: int
    n: int
    made_us: int
    nodes: tuple[str, ...]
    size_bytes: int
    files: tuple[FileEntry, ...]
    format: int = 1
    seal: CheckpointSeal | None = None  #: always the last field (`coord/seal.py`)


class ManifestHead(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a manifest without its files: which checkpoint it is, and its seal."""

    sub: int
    index: int
    attempt: int
    n: int
    made_us: int
    format: int = 1
    seal: CheckpointSeal | None = None


def encode_files(files: tuple[FileEntry, ...]) -> bytes:
    """Encodes a list of files as JSON. Raises: ValueTooLarge."""
    return _encode(files)


def decode_files(data: bytes) -> tuple[FileEntry, ...]:
    """Decodes a list of files. Raises: DataLost."""
    return _decode(data, tuple[FileEntry, ...])


def encode_manifest(manifest: Manifest) -> bytes:
    """Encodes a manifest as JSON. Raises: ValueTooLarge."""
    return _encode(manifest)


def decode_manifest(data: bytes) -> Manifest:
    """Decodes a manifest. Raises: DataLost, also if only a newer release can read it."""
    decode_head(data)
    return _decode(data, Manifest)


def decode_head(data: bytes) -> ManifestHead:
    """Decodes the head of a manifest, without an object for each of its files. Raises: DataLost, as `decode_manifest`."""
    head: ManifestHead = _decode(data, ManifestHead)
    if head.format != 1:
        raise DataLost(f"it has format {head.format}, which this release does not know")
    return head


def _encode(listed: object) -> bytes:
    data = msgspec.json.encode(listed)
    if len(data) > MOST_LIST_BYTES:
        message = f"the list of its files has {size_text(len(data))}, at most {size_text(MOST_LIST_BYTES)} are stored"
        raise ValueTooLarge(f"{message}: put small files into one, or give them shorter names")
    if (values := _values(data)) > MOST_VALUES:
        raise ValueTooLarge(f"the list of its files has {values:,} values, at most {MOST_VALUES:,} are stored: put small files into one")
    return data


def _values(data: bytes) -> int:
    """Returns an upper bound for the number of values in JSON, since commas in names count, too. Cost: 60 ms for 64 MiB."""
    return sum(map(data.count, (b",", b"[", b"{")))


def _decode(data: bytes, kind: type[T]) -> T:
    if kind is not ManifestHead and (values := _values(data)) > MOST_VALUES:
        raise DataLost(f"its list of files has {values:,} values, more than rmgr ever writes there")
    try:
        return json_decoder(kind).decode(data)
    except UNREADABLE as error:
        raise DataLost(f"its list of files cannot be read: {error}") from None


# -- listing a directory -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seen:
    """A directory entry as found; compares equal as long as it is not changed."""

    mode: int
    size: int
    mtime_ns: int
    inode: int
    link: str = ""


@dataclass(slots=True, kw_only=True)
class DirectoryListing:
    """Content of a directory, by relative path.

    left_out: what cannot be kept (sockets, pipes, links that lead out, names that are not text). closed: what its owner may not read.
    """

    entries: dict[str, Seen] = field(default_factory=dict)
    size_bytes: int = 0
    left_out: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)


def scan(directory: Path, account: Account | None) -> DirectoryListing:
    """Lists everything below a directory except `.rmgr`.

    Raises: OSError; StateConflict if the directory is gone; ValueTooLarge for more than `MAX_FILES`.
    """
    listing = DirectoryListing()
    reader = account.uid if account is not None else os.geteuid()
    home, todo = f"{directory}/", [""]
    with acting(account):
        if not _is_directory(directory):
            raise StateConflict("the job has removed its checkpoint directory, or put something else in its place")
        while todo:
            below = todo.pop()
            with os.scandir(directory / below) as found:
                for entry in found:
                    path = f"{below}/{entry.name}" if below else entry.name
                    if path == CONTROL:
                        continue
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # a temporary file
                    seen = _entry_of(path, entry.path, status, home)
                    if seen is None:
                        listing.left_out.append(path)
                        continue
                    if reader and status.st_uid == reader and stat.S_ISREG(seen.mode) and not seen.mode & stat.S_IRUSR:
                        listing.closed.append(path)
                        continue
                    listing.entries[path] = seen
                    listing.size_bytes += seen.size
                    if stat.S_ISDIR(seen.mode):
                        todo.append(path)
                    if len(listing.entries) > MAX_FILES:
                        raise ValueTooLarge(f"there are more than {MAX_FILES} files in its checkpoint directory")
    return listing


def _is_directory(path: Path) -> bool:
    """Returns whether `path` is a directory and no link: the job did not save the target of a link."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def _entry_of(path: str, name: str, status: os.stat_result, home: str) -> Seen | None:
    mode, link = status.st_mode, ""
    try:
        path.encode()
        if stat.S_ISLNK(mode):
            link = os.readlink(name)
            link.encode()
            if link.startswith(home):  # elsewhere the directory has another path
                link = posixpath.relpath(link[len(home) :] or ".", posixpath.dirname(path) or ".")
            if not _leads_inside(path, link):
                return None
    except (OSError, UnicodeEncodeError):
        return None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or link):
        return None
    size = status.st_size if stat.S_ISREG(mode) else 0
    return Seen(mode, size, 0 if stat.S_ISDIR(mode) else status.st_mtime_ns, status.st_ino, link)


def _leads_inside(path: str, link: str) -> bool:
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    return not link.startswith("/") and target != ".." and not target.startswith("../")


# -- into pieces -------------------------------------------------------------------------------------------------------------


def pack(
    directory: Path, account: Account | None, listing: DirectoryListing, put: Callable[[str, bytes], None], *, max_bytes: int
) -> tuple[FileEntry, ...]:
    """Hands all content to `put` (digest, bytes) and returns what is where.

    Raises: ValueTooLarge above `max_bytes`; OSError; FileNotFoundError if a listed file is gone; whatever `put` raises.
    """
    check_size(listing.size_bytes, max_bytes)
    packer = _Packer(put, max_bytes)
    entries: dict[str, FileEntry] = {}
    for path in sorted(listing.entries):
        seen = listing.entries[path]
        mode = seen.mode & _RIGHTS
        if seen.link:
            entries[path] = FileEntry(path=path, link=seen.link)
        elif stat.S_ISDIR(seen.mode):
            entries[path] = FileEntry(path=path, mode=mode, is_dir=True)
        else:
            packer.add(path, mode, _contents(directory, path, account), is_small=seen.size <= SMALL_BYTES)
    packer.flush()
    return tuple(sorted((*entries.values(), *packer.entries), key=lambda entry: entry.path))


def missing(listing: DirectoryListing) -> str:
    """Returns what the checkpoint of a directory leaves out, for people; "" if nothing."""
    names = [*listing.closed, *listing.left_out]
    if not names:
        return ""
    shown = [name.encode("ascii", "backslashreplace").decode()[-_SHOWN_CHARS:] for name in sorted(names)[:_SHOWN]]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"left out: {', '.join(shown)}{more} (sockets, pipes, links out of it, what it may not read or is not UTF-8)"


def check_size(size: int, limit: int) -> None:
    """Raises: ValueTooLarge naming both sizes."""
    if size > limit:
        raise ValueTooLarge(f"its files have {size_text(size)}, at most {size_text(limit)} are stored ([starter] checkpoint_max_bytes)")


def size_text(size: int) -> str:
    """Returns the size of files, which may be small, for people."""
    return f"{size} bytes" if size < 1024 else format_size(size)


def _contents(directory: Path, path: str, account: Account | None) -> Iterator[bytes]:
    """Yields the current content of a listed name; since the listing, the job may have put a link on the way there."""
    with open(open_regular(path, account, below=str(directory), follow=False), "rb", buffering=0) as file:
        while data := file.read(PIECE_BYTES):
            yield data


class _Packer:
    def __init__(self, put: Callable[[str, bytes], None], max_bytes: int) -> None:
        self.entries: list[FileEntry] = []
        self._put = put
        self._max_bytes = max_bytes
        self._total = 0
        self._shared = bytearray()
        self._waiting: list[tuple[str, int, str, int, int]] = []  #: files of the shared piece: path, mode, digest, start, size

    def add(self, path: str, mode: int, chunks: Iterator[bytes], *, is_small: bool) -> None:
        whole = hashlib.sha256()
        rows: list[tuple[str, int, int]] = []
        size, start = 0, len(self._shared)
        for chunk in chunks:
            whole.update(chunk)
            size += len(chunk)
            self._total += len(chunk)
            check_size(self._total, self._max_bytes)
            data = chunk
            if is_small and size > SMALL_BYTES:  # it has grown since it was listed
                is_small, data = False, bytes(self._shared[start:]) + chunk
                del self._shared[start:]
            if is_small:
                self._shared += data
            else:
                digest = hashlib.sha256(data).hexdigest()
                self._put(digest, data)
                rows.append((digest, 0, len(data)))
        if is_small and size:
            self._waiting.append((path, mode, whole.hexdigest(), start, size))
            if len(self._shared) >= PIECE_BYTES:
                self.flush()
        else:
            self.entries.append(FileEntry(path=path, mode=mode, size=size, sha256=whole.hexdigest(), rows=tuple(rows)))

    def flush(self) -> None:
        if not self._shared:
            return
        data = bytes(self._shared)
        digest = hashlib.sha256(data).hexdigest()
        self._put(digest, data)
        for path, mode, sha256, start, size in self._waiting:
            self.entries.append(FileEntry(path=path, mode=mode, size=size, sha256=sha256, rows=((digest, start, size),)))
        self._shared.clear()
        self._waiting.clear()


# -- and back ----------------------------------------------------------------------------------------------------------------


def clear(directory: Path, account: Account | None) -> None:
    """Empties a directory except for `.rmgr`. Raises: OSError."""
    with acting(account), os.scandir(directory) as found:
        for entry in list(found):
            if entry.name == CONTROL:
                continue
            if entry.is_dir(follow_symlinks=False):
                remove_all(entry.path)
            else:
                os.unlink(entry.path)


def unpack(files: tuple[FileEntry, ...], directory: Path, account: Account | None, get: Callable[[str], bytes | None]) -> None:
    """Writes the files of a checkpoint into an empty directory. get: returns the bytes of a piece.

    Raises: DataLost if something is missing, does not match its hash, or would lie elsewhere; OSError (full disk).
    """
    last: tuple[str, bytes] = ("", b"")

    def piece(digest: str) -> bytes:
        nonlocal last
        if last[0] != digest:
            data = get(digest)
            if data is None:
                raise DataLost(f"the piece {digest[:12]} is not in the data store")
            if hashlib.sha256(data).hexdigest() != digest:
                raise DataLost(f"the piece {digest[:12]} is not what was stored")
            last = (digest, data)
        return last[1]

    for entry in files:
        _check(entry)
    with acting(account):
        for entry in files:
            if entry.is_dir:
                (directory / entry.path).mkdir(mode=0o700, parents=True, exist_ok=True)
    for entry in files:
        if entry.is_dir or entry.link:
            continue
        with acting(account):
            (directory / entry.path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(directory / entry.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        whole = hashlib.sha256()
        with open(fd, "wb") as file:
            for digest, start, size in entry.rows:
                data = piece(digest)[start : start + size]
                whole.update(data)
                file.write(data)
            if whole.hexdigest() != entry.sha256:
                raise DataLost(f"the file {entry.path} is not what was stored")
            file.flush()
            with acting(account):
                os.fchmod(fd, entry.mode & _RIGHTS)
    with acting(account):
        for entry in files:  # last: nothing is written through a link, or into a closed directory
            if entry.link:
                os.symlink(entry.link, directory / entry.path)
        for entry in reversed(files):
            if entry.is_dir:
                os.chmod(directory / entry.path, entry.mode & _RIGHTS)


def _check(entry: FileEntry) -> None:
    parts = entry.path.split("/")
    if not all(parts) or "\0" in entry.path or parts[0] == CONTROL or not {".", ".."}.isdisjoint(parts):
        raise DataLost(f"it names a file {entry.path!r}, which is not in its directory")
    if entry.link and not _leads_inside(entry.path, entry.link):
        raise DataLost(f"it has a link {entry.path!r} that leads out of its directory")
    if sum(size for _, _, size in entry.rows) != entry.size or any(size < 0 for _, _, size in entry.rows):
        raise DataLost(f"the pieces of the file {entry.path!r} are not its {entry.size:,} bytes")


# -- one checkpoint from several directories -------------------------------------------------------------------------------
# One checkpoint from the directories of all nodes of a job. Pure. Every node began with the previous checkpoint as a whole, and each
# changed files of its own: the changes of a node count, its unchanged files do not. If several nodes changed a file, the head's version
# counts, else that of the first of them.


def united(parts: Sequence[Sequence[FileEntry]], base: Iterable[FileEntry] = ()) -> tuple[FileEntry, ...]:
    """Returns the files of the united checkpoint, in order of their paths.

    Args:
        parts: files found on each node, the head first. base: files with which all of them began.
    A file that one node has removed and no other has changed is gone. Cost: O(files of all nodes).
    """
    before = {entry.path: entry for entry in base}
    found = [{entry.path: entry for entry in part} for part in parts]
    kept: dict[str, FileEntry] = {}
    for path in sorted({path for part in found for path in part}):
        old = before.get(path)
        here = [part.get(path) for part in found]
        changed = next((entry for entry in here if entry is not None and (old is None or entry.content != old.content)), None)
        if changed is None and all(entry is not None for entry in here):
            changed = here[0]
        if changed is not None:
            kept[path] = changed
    return tuple(entry for entry in kept.values() if not _is_below_a_file(entry.path, kept))


def _is_below_a_file(path: str, kept: dict[str, FileEntry]) -> bool:
    """Returns whether `path` lies below something that is a file on another node; the file wins."""
    parent = path.rpartition("/")[0]
    while parent:
        above = kept.get(parent)
        if above is not None and not above.is_dir:
            return True
        parent = parent.rpartition("/")[0]
    return False


# -- seals -----------------------------------------------------------------------------------------------------------------
# Checkpoints are sealed by the Starter that took them, and restored only with the seal of a Starter of the cluster. Otherwise, anyone with
# write access to the data store could put files into another user's job. An open cluster seals nothing. Called on threads that may wait.


class Seals:
    """The seals of an open cluster: seals nothing and accepts everything."""

    def seal(self, manifest: Manifest) -> Manifest:
        """Returns a checkpoint as it is to be written."""
        return manifest

    def check(self, row: bytes, manifest: Manifest | ManifestHead) -> None:
        """Checks the seal of a checkpoint. Raises: PermissionDenied saying why it is refused; CoordinationUnavailable."""


class StarterSeals(Seals):
    """Seals and verifies checkpoints in a secured cluster."""

    def __init__(self, credentials: Credentials, trust: Trust, *, cluster_id: str) -> None:
        self._credentials = credentials
        self._trust = trust
        self._cluster_id = cluster_id

    def seal(self, manifest: Manifest) -> Manifest:
        bare = msgspec.structs.replace(manifest, seal=None)
        told = before_seal(encode_manifest(bare), None)
        assert told is not None, "the seal is the last field"
        mine = self._credentials
        signature = mine.sign(checkpoint_statement(told, _name(manifest), cluster_id=self._cluster_id))
        return msgspec.structs.replace(bare, seal=CheckpointSeal(key_id=mine.identity.key_id, signature=signature))

    def check(self, row: bytes, manifest: Manifest | ManifestHead) -> None:
        seal = manifest.seal
        if seal is None:
            raise PermissionDenied("no Starter has sealed it")
        signer = self._trust.find(seal.key_id, at_s=manifest.made_us / 1e6)
        if isinstance(signer, str):
            raise PermissionDenied(signer)
        who = signer.identity
        if who.role is not Role.STARTER:
            raise PermissionDenied(f"it was sealed by {who.role} {who.name}, and only Starters take checkpoints")
        told = before_seal(row, seal)
        if told is None or not signer.verify(seal.signature, checkpoint_statement(told, _name(manifest), cluster_id=self._cluster_id)):
            raise PermissionDenied(f"it is not what Starter {who.name} has sealed")


def _name(manifest: Manifest | ManifestHead) -> Checkpoint:
    return Checkpoint(sub=manifest.sub, index=manifest.index, attempt=manifest.attempt, n=manifest.n)


OPEN = Seals()


def seals_of(credentials: Credentials | None, trust: Trust | None, meta: Meta) -> Seals:
    """Returns how a Starter of this cluster seals checkpoints."""
    if credentials is None or trust is None:
        return OPEN
    return StarterSeals(credentials, trust, cluster_id=meta.cluster_id)


# -- in the data store -----------------------------------------------------------------------------------------------------


def checkpoints_of(store: Store, sub: int, index: int) -> Iterator[Checkpoint]:
    """Yields all checkpoints of a task, newest first, holding a page of them in memory. Raises: StoreUnavailable."""
    before = (math.inf, math.inf)
    while True:
        found = (one for _, one in _keys(store, keys.checkpoints_of(sub, index)) if one is not None and one.order < before)
        newest = heapq.nlargest(PAGE, found, key=lambda one: one.order)
        yield from newest
        if len(newest) < PAGE:
            return
        before = newest[-1].order


def read_checkpoint(store: Store, checkpoint: Checkpoint, seals: Seals = OPEN) -> Manifest:
    """Returns the manifest of a checkpoint. Raises: DataLost; PermissionDenied if it is refused; StoreUnavailable,
    CoordinationUnavailable."""
    data = row_of(store, checkpoint.key, MOST_LIST_BYTES)
    if data is None:
        raise DataLost("its list of files is not in the data store")
    seals.check(data, decode_head(data))  # before decoding: objects for invented files would take ten times the bytes written
    manifest = decode_manifest(data)
    if (manifest.sub, manifest.index, manifest.attempt, manifest.n) != (checkpoint.sub, checkpoint.index, checkpoint.attempt, checkpoint.n):
        raise PermissionDenied(f"it is a copy of checkpoint {manifest.attempt}.{manifest.n} of task {manifest.sub}_{manifest.index}")
    return manifest


def piece_writer(store: Store, sub: int, index: int, attempt: int, written: set[str]) -> Callable[[str, bytes], None]:
    """Returns a function that puts pieces and adds their digests to `written`; known ones are only put again if they were removed."""

    def put(digest: str, data: bytes) -> None:
        key = keys.checkpoint_piece(sub, index, attempt, digest)
        if digest not in written or store.head(key) is None:
            store.put(key, data)
            written.add(digest)

    return put


def piece_reader(store: Store, manifest: Manifest) -> Callable[[str], bytes | None]:
    """Returns a function that gets pieces of a checkpoint. It raises DataLost for one that is larger than any that rmgr makes."""

    def get(digest: str) -> bytes | None:
        try:
            key = keys.checkpoint_piece(manifest.sub, manifest.index, manifest.attempt, digest)
        except UsageError as error:
            raise DataLost(f"it names a piece that there cannot be: {error.message}") from None
        return row_of(store, key, MOST_PIECE_BYTES)

    return get


def write_checkpoint(store: Store, manifest: Manifest) -> None:
    """Writes a checkpoint whose pieces are stored; from now on it can be restored. Raises: StoreUnavailable."""
    store.put(Checkpoint(sub=manifest.sub, index=manifest.index, attempt=manifest.attempt, n=manifest.n).key, encode_manifest(manifest))


def prune_checkpoints(store: Store, sub: int, index: int, attempt: int, seals: Seals = OPEN) -> None:
    """Removes all checkpoints except the last `KEPT`, and pieces that these do not need. Refused or unreadable ones do not count as kept.

    Nothing of a later attempt is touched, since a slow or dead Starter does not know what that needs.
    Raises: StoreUnavailable, CoordinationUnavailable.
    """
    needed: dict[int, set[str]] = {}
    unreadable: set[int] = set()
    kept = 0
    for one in checkpoints_of(store, sub, index):
        if kept == KEPT:
            if one.attempt <= attempt:
                store.delete(one.key)
            continue
        try:
            files = read_checkpoint(store, one, seals).files
        except PermissionDenied:
            if one.attempt <= attempt:
                store.delete(one.key)
            continue
        except DataLost:  # its pieces stay, and it displaces no readable one: any user may have written it
            unreadable.add(one.attempt)
            continue
        kept += 1
        needed.setdefault(one.attempt, set()).update(row[0] for entry in files for row in entry.rows)
    for key, checkpoint in _keys(store, keys.checkpoints_of(sub, index)):
        if checkpoint is None:
            _, _, _, made, digest = key.split("/")
            if int(made) <= attempt and int(made) not in unreadable and digest not in needed.get(int(made), set()):
                store.delete(key)


def _keys(store: Store, prefix: str) -> Iterator[tuple[str, Checkpoint | None]]:
    """Yields the keys below a prefix, a page in memory at a time, each with its checkpoint, or None for a piece. Skips invalid keys."""
    last = ""
    while True:
        page = store.keys(prefix, after=last, limit=PAGE)
        for key in page:
            try:
                yield key, keys.parse_checkpoint(key)
            except UsageError:  # only a user can have written it
                continue
        if len(page) < PAGE:
            return
        last = page[-1]
