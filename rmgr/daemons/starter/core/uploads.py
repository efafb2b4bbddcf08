"""Uploads on a node: fetched once, kept by their hash, copied or unpacked into every work directory; and the room for staged files.

A cache of files below one directory of the Starter, bounded in bytes; an upload in use is never thrown out.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import tarfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Store
from rmgr.errors import DataLost, PermissionDenied, RowGone, ValueTooLarge
from rmgr.model.submission import MAX_UPLOAD_BYTES, MAX_UPLOAD_MEMBERS
from rmgr.model.units import format_size

#: Bytes of uploads kept on a node.
CAP_BYTES = 2 * 1024 * 1024 * 1024
#: Files of one uploaded directory together: twice what may be uploaded, since an archive of 0.1.0 may name a file twice.
MAX_UNPACKED = 2 * MAX_UPLOAD_BYTES
_MODE = 0o755
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Space of a directory or a link on disk, normally the most.
_ENTRY_BYTES = 4096
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: Most steps of a path, bytes of one step, bytes of the path: each step is opened for each member.
_MAX_STEPS, _MAX_STEP_BYTES, _MAX_PATH_BYTES = 100, 255, 4095
#: Most bytes of a header that names or describes a member: it is read whole.
_MAX_HEADER_BYTES = 64 * 1024
_HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
#: Limit if [starter] staging_cap_bytes is not set.
STAGING_BYTES = 16 * 1024 * 1024 * 1024
_PAGE = 4096
#: Step in which more is taken where an estimate was too low.
_STEP_BYTES = 1024 * 1024


@dataclass(slots=True)
class Kept:
    """An upload on this node. size: bytes, -1 if not here. disk_bytes: taken for it. unpacked_bytes: most that a copy has taken so far."""

    path: Path
    fetching: threading.Lock = field(default_factory=threading.Lock)
    size: int = -1
    disk_bytes: int = 0
    unpacked_bytes: int = 0
    users: int = 0

    @property
    def copy_bytes(self) -> int:
        """Bytes that a copy in a work directory will take; an estimate for a directory that was never unpacked here."""
        return max(self.unpacked_bytes, on_disk(self.size))


def _go_on(_disk_bytes: int) -> None:
    """The default check: the copy is wanted, and there is room."""


class Uploads:
    """The uploads of a node. Called on IO threads.

    Args:
        directory: for uploads alone, made when needed. cap_bytes: most bytes kept (uploads in use may exceed it).
        room: kept uploads take their room there, and are thrown out when others need it.
    """

    def __init__(self, directory: Path, *, cap_bytes: int = CAP_BYTES, room: StagingRoom | None = None) -> None:
        self._directory = directory
        self._cap_bytes = cap_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, Kept] = OrderedDict()
        self.room = room or StagingRoom()
        self.room.throw_out = self._throw_out
        self.fetched = 0  #: uploads from the store, so far

    def copy(self, upload: Kept, target: Path, *, name: str, is_dir: bool, check: Callable[[int], None] = _go_on) -> None:
        """Copies or unpacks a kept upload to `target`; the caller has taken the room.

        Args: check: called before each file with the bytes it takes on disk; raises if it must not be made.
        Raises: PermissionDenied when an archive reaches out; DataLost, OSError.
        """
        if not is_dir:
            check(on_disk(upload.size))
            shutil.copyfile(upload.path, target)  # its own: a task may write into it
            target.chmod(_MODE)
            return
        made_bytes = 0

        def counted(disk_bytes: int) -> None:
            nonlocal made_bytes
            made_bytes += disk_bytes
            check(disk_bytes)

        target.mkdir(exist_ok=True)
        try:
            unpack(upload.path, target, name=name, max_bytes=MAX_UNPACKED, check=counted)
        finally:
            upload.unpacked_bytes = max(upload.unpacked_bytes, made_bytes)  # the next one asks for all of it at once

    @contextlib.contextmanager
    def kept(self, store: Store, sha256: str, *, name: str, held_bytes: int = 0) -> Iterator[Kept]:
        """Yields an upload that stays here until the end of the `with` block; fetches it first if it is not here.

        Args: held_bytes: room that the same task has already.
        Raises: RowGone; PermissionDenied if the content does not match the hash; NoRoom, ValueTooLarge (see `StagingRoom.take`);
            DataLost, OSError, StoreUnavailable.
        """
        key = keys.upload(sha256)
        with self._lock:
            entry = self._entries.setdefault(key, Kept(self._directory / key.rpartition("/")[2]))
            self._entries.move_to_end(key)
            entry.users += 1
        try:
            with entry.fetching:
                if entry.size < 0:
                    self._fetch(store, key, entry, name, held_bytes)
            yield entry
        finally:
            with self._lock:
                entry.users -= 1
                self._make_room()
            self.room.freed()

    def forget_lost(self) -> bool:
        """Marks uploads whose files were removed, so that the next use fetches them. Returns: whether there were any. Cost: an lstat
        each."""
        with self._lock:
            lost = [entry for entry in self._entries.values() if entry.size >= 0 and not os.path.lexists(entry.path)]
            for entry in lost:
                entry.size = -1
                self.room.settle(entry.disk_bytes, 0)
                entry.disk_bytes = 0
        return bool(lost)

    def _fetch(self, store: Store, key: str, entry: Kept, name: str, held_bytes: int) -> None:
        head = store.head(key)
        if head is None:
            raise RowGone(f"{key} is not in the data store")
        need_bytes = on_disk(head[0])
        self.room.take(need_bytes, f"the upload {name}", held_bytes=held_bytes)
        really_bytes = 0
        try:
            entry.size = self._read(store, key, entry.path, head[0])
            self.fetched += 1
            entry.disk_bytes = really_bytes = disk_bytes(entry.path)
        finally:
            self.room.settle(need_bytes, really_bytes)

    def _read(self, store: Store, key: str, path: Path, told_bytes: int) -> int:
        chunks = store.stream(key)
        if chunks is None:
            raise RowGone(f"{key} is not in the data store")
        self._directory.mkdir(exist_ok=True, mode=0o700)
        part, digest, size = path.with_suffix(".part"), hashlib.sha256(), 0
        try:
            with part.open("wb") as file:
                for chunk in chunks:
                    size += len(chunk)
                    if size > told_bytes:  # another row since its size was told: there is no room for it
                        raise PermissionDenied(f"{key} in the data store is not what its name says: it has grown from {told_bytes:,} bytes")
                    file.write(chunk)
                    digest.update(chunk)
            if digest.hexdigest() != path.name:
                raise PermissionDenied(f"{key} in the data store is not what its name says: its bytes hash to {digest.hexdigest()}")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        return size

    def _make_room(self) -> None:
        """Drops the least recently used uploads until the rest fits."""
        total = sum(max(0, entry.size) for entry in self._entries.values())
        for key, entry in list(self._entries.items()):
            if entry.users or (entry.size >= 0 and total <= self._cap_bytes):
                continue
            total -= max(0, entry.size)
            self._drop(key, entry)

    def _throw_out(self, short_bytes: int) -> None:
        """Drops the least recently used uploads that are not in use, until `short_bytes` are free."""
        with self._lock:
            for key, entry in list(self._entries.items()):
                if short_bytes <= 0:
                    return
                if not entry.users:
                    short_bytes -= entry.disk_bytes
                    self._drop(key, entry)

    def _drop(self, key: str, entry: Kept) -> None:
        entry.path.unlink(missing_ok=True)
        del self._entries[key]
        self.room.settle(entry.disk_bytes, 0)


# -- unpacking -------------------------------------------------------------------------------------------------------------
# Uploaded directories on the node: an archive is unpacked into a work directory, and nothing of it can land anywhere else. The archive
# is a user's, and the Starter may be root. So no path is ever followed: each directory on the way is opened by itself without following
# links, files are made anew, and symbolic links are made last, after all writing. (Python's own filters come with 3.11.4, and chains of
# links have led out of them more than once.)


class _Member(tarfile.TarInfo):
    """A member whose headers have a limited size."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.size < 0 or (self.type in _HEADERS and self.size > _MAX_HEADER_BYTES):
            raise tarfile.ReadError("a header that is too long")
        return super()._proc_member(tar)  # type: ignore[misc,no-any-return]


class _Limits:
    """What an upload may still make: bytes of content (second names too), and entries of any kind (directories on the way too)."""

    def __init__(self, name: str, max_bytes: int, check: Callable[[int], None]) -> None:
        self.name = name
        self._bytes = max_bytes
        self._things = MAX_UPLOAD_MEMBERS
        self._check = check

    def read(self) -> None:
        """Counts a member of the archive, whether it is made or not."""
        self._things -= 1

    def make(self, path: str, size: int, disk_bytes: int) -> None:
        """Counts an entry that is about to be made. Raises: PermissionDenied; whatever the caller's check raises."""
        self._bytes -= size
        if size < 0 or self._bytes < 0 or self._things < 0:
            raise PermissionDenied(f"the upload {self.name} is larger unpacked than it may be ({path[:_MAX_PATH_BYTES]})")
        self._check(disk_bytes)

    def directory(self, path: str) -> None:
        """Counts a directory on the way to a member."""
        self._things -= 1
        self.make(path, 0, _ENTRY_BYTES)


def unpack(archive: str | Path, target: Path, *, name: str, max_bytes: int, check: Callable[[int], None] = lambda _: None) -> None:
    """Unpacks a tar archive below `target`, an existing directory that no other process can reach yet.

    Args:
        name: of the upload, for messages. max_bytes: of all files that are made, second names included (each is a file of its own).
        check: called before each file, directory or link is made, with its bytes on disk; raises if it must not be made.
    Raises: PermissionDenied naming a member that leads out, is no file, directory or link, or is too much (`MAX_UPLOAD_MEMBERS`
        files, directories and links, those on the way included); DataLost if the bytes are no archive; OSError.
    """
    links: list[tuple[tuple[str, ...], str]] = []
    limits = _Limits(name, max_bytes, check)
    root = os.open(target, _DIRECTORY)
    try:
        with tarfile.open(archive, "r:", tarinfo=_Member) as tar:
            for member in tar:
                limits.read()
                parts = _parts(member.name, name)
                if member.issparse():
                    raise PermissionDenied(f"the upload {name} is larger unpacked than it may be ({member.name})")
                if member.issym():
                    limits.make(member.name, 0, _ENTRY_BYTES)
                    if parts:
                        links.append((parts, _link(member, parts, name)))
                elif member.isdir():
                    limits.make(member.name, 0, 0)
                    with _inside(root, (*parts,), limits):
                        pass
                elif member.isreg() or member.islnk():
                    if parts:
                        _file(tar, member, root, parts, limits)
                else:
                    raise PermissionDenied(f"the upload {name} has {member.name}, which is no file, directory or link")
        for parts, to in links:
            with _inside(root, parts[:-1], limits) as parent:
                os.symlink(to, parts[-1], dir_fd=parent)
    except (tarfile.TarError, RecursionError, OverflowError, ValueError) as error:
        raise DataLost(f"the uploaded directory {name} cannot be unpacked: {error}") from None
    except (FileExistsError, NotADirectoryError) as error:
        raise PermissionDenied(f"the upload {name} has two things of one name: {error.filename}") from None
    finally:
        os.close(root)


def _file(tar: tarfile.TarFile, member: tarfile.TarInfo, root: int, parts: tuple[str, ...], limits: _Limits) -> None:
    """Makes a file."""
    name = limits.name
    if member.islnk():  # another name of an earlier file of the archive: becomes a file of its own
        source = _parts(member.linkname, name)
        with _inside(root, source[:-1], limits) as parent, os.fdopen(_open_old(parent, source, name), "rb") as content:
            stat = os.fstat(content.fileno())
            limits.make(member.name, stat.st_size, on_disk(stat.st_size))
            _write(content, root, parts, stat.st_mode, limits)
        return
    limits.make(member.name, member.size, on_disk(member.size))
    content = tar.extractfile(member)  # type: ignore[assignment]
    assert content is not None, "a regular file"
    with content:
        _write(content, root, parts, member.mode, limits)


def _write(content: IO[bytes], root: int, parts: tuple[str, ...], mode: int, limits: _Limits) -> None:
    with _inside(root, parts[:-1], limits) as parent:
        out = os.open(parts[-1], _NEW, 0o600, dir_fd=parent)
    with os.fdopen(out, "wb") as file:
        shutil.copyfileobj(content, file, 1 << 20)
        os.fchmod(file.fileno(), mode & 0o755 | 0o600)


def _open_old(parent: int, source: tuple[str, ...], name: str) -> int:
    try:
        return os.open(source[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except (OSError, IndexError):
        raise PermissionDenied(f"the upload {name} has a link to {'/'.join(source)}, which is no file before it") from None


@contextlib.contextmanager
def _inside(root: int, parts: tuple[str, ...], limits: _Limits) -> Iterator[int]:
    """Yields a descriptor of the directory `parts` below `root`, made if absent; no step of the way is a link."""
    here = os.dup(root)
    try:
        for part in parts:
            try:
                below = _step(here, part, limits)
            except OSError as error:
                raise PermissionDenied(
                    f"the upload {limits.name} has {'/'.join(parts)} below something that is no directory: {error}"
                ) from None
            os.close(here)
            here = below
        yield here
    finally:
        os.close(here)


def _step(here: int, part: str, limits: _Limits) -> int:
    try:
        return os.open(part, _DIRECTORY, dir_fd=here)
    except FileNotFoundError:
        limits.directory(part)
        os.mkdir(part, 0o755, dir_fd=here)
        return os.open(part, _DIRECTORY, dir_fd=here)


def _parts(path: str, name: str) -> tuple[str, ...]:
    """Returns the steps of a relative path. Raises: PermissionDenied for an absolute path, or one with `..`."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or "\0" in path:
        raise PermissionDenied(f"the upload {name} has a member {path!r}, which leads out of the work directory")
    size = len(os.fsencode(path))
    if size > _MAX_PATH_BYTES or len(pure.parts) > _MAX_STEPS or any(len(os.fsencode(part)) > _MAX_STEP_BYTES for part in pure.parts):
        raise PermissionDenied(f"the upload {name} has a member whose path is too long: {path[:80]!r}... ({size} bytes)")
    return pure.parts


def _link(member: tarfile.TarInfo, parts: tuple[str, ...], name: str) -> str:
    """Returns the target of a symbolic link. Raises: PermissionDenied if that target, as written, is outside of the upload."""
    to = member.linkname
    where = os.path.normpath(os.path.join(*parts[:-1], to))
    if len(os.fsencode(to)) > _MAX_PATH_BYTES or os.path.isabs(to) or "\0" in to or where.split(os.sep)[0] == "..":
        raise PermissionDenied(f"the upload {name} has a link {member.name} to {to!r}, which leads out of it"[:_MAX_PATH_BYTES])
    return to


# -- room on the disk ------------------------------------------------------------------------------------------------------
# Room for staged files on a Starter's disk: a limit in bytes, how much of it is taken, and what is thrown out when it is full. Room is
# taken by an estimate before a write, and corrected to the real size afterwards. Nothing waits here: a caller who gets no room is told,
# and asks again once room was given back.


class NoRoom(Exception):
    """The limit is reached now; ask again once `StagingRoom.given` has changed. user: set if it is that user's own limit."""

    def __init__(self, user: str = "") -> None:
        super().__init__(user)
        self.user = user


class GivenUpError(Exception):
    """The file is not wanted any more."""


class StagingRoom:
    """Bytes on disk that a Starter's staged files may take. Thread-safe.

    Attributes:
        cap_user_bytes: of it, for each user. used_bytes: taken now. given: grows whenever room is given back or could be.
        throw_out: called to give back at least so many bytes that are not in use.
    """

    def __init__(self, cap_bytes: int = STAGING_BYTES, cap_user_bytes: int = 0) -> None:
        self.cap_bytes = cap_bytes
        self.cap_user_bytes = min(cap_user_bytes or cap_bytes, cap_bytes)
        self.used_bytes = 0
        self._of: dict[str, int] = {}  #: taken by users
        self.given = 0
        self.throw_out: Callable[[int], None] = lambda _short: None
        self._lock = threading.Lock()

    def take(self, need_bytes: int, what: str, *, held_bytes: int = 0, user: str = "") -> None:
        """Takes `need_bytes`, or nothing at all.

        Args:
            what: the purpose, for messages. held_bytes: already taken by the asking task, which keeps them meanwhile.
            user: whose bytes they are, "" for what all share.
        Raises: ValueTooLarge if they will never fit; NoRoom if they do not fit now.
        """
        whole, cap, setting = held_bytes + need_bytes, self.cap_bytes, "staging_cap_bytes"
        if user and self.cap_user_bytes < cap:
            cap, setting = self.cap_user_bytes, "staging_cap_user_bytes"
        if whole > cap:
            message = f"{what} would take {format_size(whole)} of this node's disk, and "
            message += "its limit for staged files" if cap == self.cap_bytes else "the limit for staged files of one user"
            message += f" is {format_size(cap)} ([starter] {setting})"
            raise ValueTooLarge(f"{message}: send less, use a shared file system, or have the limit raised")
        if self._try(need_bytes, user):
            return
        self.throw_out(self.used_bytes + need_bytes - self.cap_bytes)
        if not self._try(need_bytes, user):
            raise NoRoom

    def settle(self, taken_bytes: int, really_bytes: int, *, user: str = "") -> None:
        """Corrects an estimate `taken_bytes` to the real size; 0 gives the room back."""
        with self._lock:
            self._add(really_bytes - taken_bytes, user)
            self.given += really_bytes < taken_bytes

    def freed(self) -> None:
        """Notes that something that could be thrown out is not in use any more."""
        with self._lock:
            self.given += 1

    def _try(self, need_bytes: int, user: str) -> bool:
        with self._lock:
            if user and self._of.get(user, 0) + need_bytes > self.cap_user_bytes < self.cap_bytes:
                raise NoRoom(user)
            fits = self.used_bytes + need_bytes <= self.cap_bytes
            if fits:
                self._add(need_bytes, user)
        return fits

    def _add(self, more_bytes: int, user: str) -> None:
        self.used_bytes += more_bytes
        if user:
            self._of[user] = self._of.get(user, 0) + more_bytes
            if not self._of[user]:
                del self._of[user]


@dataclass(slots=True, eq=False)
class Wish:
    """A task that is being staged. is_wanted: its block is still on this node, and the task was not given away."""

    is_wanted: bool = True


class StagingShare:
    """Room that one task takes while it is staged. what: for messages. user: whose room it is."""

    def __init__(self, room: StagingRoom, wish: Wish, what: str, user: str = "") -> None:
        self._user = user
        self._room = room
        self._wish = wish
        self._what = what
        self.held_bytes = 0  #: by uploads that the task uses
        self._taken = self._made = 0

    def take(self, need_bytes: int) -> None:
        """Takes room for bytes to be written. Raises: ValueTooLarge, NoRoom (see `StagingRoom.take`); GivenUpError."""
        if not self._wish.is_wanted:
            raise GivenUpError
        self._room.take(need_bytes, self._what, held_bytes=self.held_bytes + self._taken, user=self._user)
        self._taken += need_bytes

    def making(self, more_bytes: int) -> None:
        """Counts bytes that are written now, and takes room if too little was taken before. Raises: as `take`."""
        self._made += more_bytes
        if self._made > self._taken or not self._wish.is_wanted:
            self.take(max(self._made - self._taken, _STEP_BYTES))

    def settle(self, really_bytes: int) -> None:
        """Ends staging: corrects the room taken to the bytes that are kept."""
        self._room.settle(self._taken, really_bytes, user=self._user)
        self._taken = 0


def disk_bytes(path: Path) -> int:
    """Returns what a file, or a directory with its content, uses on disk: each inode once, no link followed. Cost: an lstat a name."""
    seen: set[tuple[int, int]] = set()
    used = 0
    names = [str(path)]
    while names:
        name = names.pop()
        try:
            found = os.lstat(name)
            if (found.st_dev, found.st_ino) not in seen:
                seen.add((found.st_dev, found.st_ino))
                used += found.st_blocks * 512
            if stat.S_ISDIR(found.st_mode):
                names += [entry.path for entry in os.scandir(name)]
        except FileNotFoundError:
            continue
    return used


def on_disk(size_bytes: int) -> int:
    """Estimates the disk space of a file of that size: whole pages."""
    return -(-size_bytes // _PAGE) * _PAGE
