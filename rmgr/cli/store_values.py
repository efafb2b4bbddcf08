"""What `rmgr store` does, as plain functions over a data store: names, values as bytes, files, sums."""

from __future__ import annotations

import base64
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from rmgr.cli.context import Session
from rmgr.cli.render import printable
from rmgr.coord import keys
from rmgr.coord.ports import Encoding, Store
from rmgr.errors import DataLost, NotConnected, NotFound, PermissionDenied, StoreUnavailable, UsageError

_PAGE = 1000
_READ_BYTES = 1 << 20
_KINDS = {Encoding.RAW: "bytes", Encoding.PICKLE: "python", Encoding.POINTER: "output"}

@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """An open store, for the length of a command. locate: the row of an output key (asks ZooKeeper when needed)."""

    store: Store
    timeout_s: float
    locate: Callable[[str, keys.Pointer], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One key in a listing. size: bytes, None for an output (it has its own row, or none yet)."""

    key: str
    size: int | None
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A value that is there. parts: its bytes, piece by piece; can be asked for more than once."""

    key: str
    size: int
    encoding: Encoding
    parts: Callable[[], Iterator[bytes]]


@contextlib.contextmanager
def opened(session: Session) -> Iterator[Opened]:
    """The configured store. Raises: NotConnected, StoreUnavailable; DeadlineExceeded instead when --timeout ran out."""
    from rmgr.cli.reach import open_data_store

    cluster = session.config().cluster
    if not cluster.store and not cluster.uses_gateway:
        raise NotConnected(
            "no data store is configured and no cluster is running on this machine",
            hint="start one with: rmgr dev   (or: --store sqlite:PATH)",
        )
    timeout_s = session.left_s(30.0) or 30.0

    def locate(user_key: str, pointer: keys.Pointer) -> str:
        from rmgr.adapters.zk import ZkCoordinator
        from rmgr.client.pointers import locate as locate_in_cluster
        from rmgr.runtime.secured import zookeeper_options

        final = keys.final(pointer)
        if store.head(final, timeout_s=timeout_s) is not None:
            return final
        if cluster.uses_gateway:
            return locate_in_cluster(session.coordinator(), store, user_key, pointer, timeout_s=min(timeout_s, 10.0))
        hosts, chroot = cluster.hosts_and_chroot()
        wait_s = session.left_s(cluster.connect_timeout_s) or cluster.connect_timeout_s
        options = zookeeper_options(session.config(), session.credentials())
        coordinator = ZkCoordinator.connect(hosts, chroot, connect_timeout_s=wait_s, session_timeout_s=cluster.session_timeout_s, **options)
        try:
            return locate_in_cluster(coordinator, store, user_key, pointer, timeout_s=min(timeout_s, 10.0))
        finally:
            coordinator.close()

    try:
        store = open_data_store(session)
        try:
            yield Opened(store=store, timeout_s=timeout_s, locate=locate)
        finally:
            store.close()
    except StoreUnavailable:
        session.left_s()
        raise


# -- names ------------------------------------------------------------------------------------------------------------------


def names(opened: Opened, prefix: str, *, after: str, limit: int | None) -> Iterator[str]:
    """Keys of users with `prefix`, sorted, behind `after`; at most `limit`."""
    left = limit
    behind = keys.named(after) if after else ""
    while left is None or left > 0:
        wanted = _PAGE if left is None else min(left, _PAGE)
        page = opened.store.keys(keys.named_prefix(prefix), after=behind, limit=wanted, timeout_s=opened.timeout_s)
        yield from map(keys.user_key, page)
        if len(page) < wanted:
            return
        behind = page[-1]
        left = None if left is None else left - len(page)


def page(opened: Opened, prefix: str, *, after: str, limit: int | None) -> tuple[list[Entry], str | None]:
    """Keys with size and kind, and the key to go on after when there are more. Cost: one read a key."""
    entries: list[Entry] = []
    for key in names(opened, prefix, after=after, limit=None if limit is None else limit + 1):
        if len(entries) == limit:
            return entries, entries[-1].key
        head = opened.store.head(keys.named(key), timeout_s=opened.timeout_s)
        if head is not None:  # else it was deleted just now
            size, encoding = head
            entries.append(Entry(key=key, size=None if encoding is Encoding.POINTER else size, kind=_KINDS[encoding]))
    return entries, None


def as_json(entry: Entry) -> dict[str, Any]:
    """One element of `keys` in `rmgr store ls --json`."""
    return {"key": entry.key, "bytes": entry.size, "kind": entry.kind}


def shown(key: str) -> str:
    """A key for a line of text: as it is for programs, without control characters on a terminal."""
    return printable(key) if sys.stdout.isatty() else key


# -- values -----------------------------------------------------------------------------------------------------------------


def parts_of(source: Path) -> Iterator[bytes]:
    """The bytes of a file, or of stdin for `-`; opened at once, so that a missing file is told before anything is done."""
    if str(source) == "-":
        if sys.stdin.isatty():
            sys.stderr.write("rmgr: reading the value from the terminal; Ctrl-D ends it\n")
        return iter(lambda: sys.stdin.buffer.read(_READ_BYTES), b"")
    if source.is_dir():
        raise UsageError(f"{source} is a directory", hint="store its files one by one, or as an archive: tar c DIR | rmgr store put KEY")
    try:
        file = source.open("rb")
    except OSError as error:
        raise UsageError(f"cannot read {source}: {error.strerror}") from None

    def read() -> Iterator[bytes]:
        with file:
            yield from iter(lambda: file.read(_READ_BYTES), b"")

    return read()


def put(opened: Opened, key: str, parts: Iterable[bytes], *, overwrite: bool, ttl_s: float | None = None) -> int:
    """Stores bytes under the key of a user, for `ttl_s` or for ever; returns how many. Raises: KeyExists, ValueTooLarge."""
    size = 0

    def counted() -> Iterator[bytes]:
        nonlocal size
        for part in parts:
            size += len(part)
            yield part

    replaced = _pointer(opened, key)
    opened.store.put(keys.named(key), counted(), overwrite=overwrite, ttl_s=ttl_s, timeout_s=opened.timeout_s)
    if replaced is not None:
        _forget(opened, replaced)
    return size


def find(opened: Opened, key: str) -> Found:
    """The value of a user's key; an output is looked up at its task. Raises: NotFound."""
    row = keys.named(key)
    head = opened.store.head(row, timeout_s=opened.timeout_s)
    if head is None:
        close = next(names(opened, key, after="", limit=1), None)
        raise NotFound(
            f"there is no value {key!r}",
            hint=f"there is {close!r}; rmgr store ls lists them" if close else "rmgr store ls lists what is there",
        )
    if head[1] is Encoding.POINTER:
        pointer = _pointer(opened, key)
        if pointer is None:
            raise NotFound(f"the value {key!r} was replaced or deleted just now", hint="try again")
        row = opened.locate(key, pointer)
        head = opened.store.head(row, timeout_s=opened.timeout_s)
        if head is None:
            raise DataLost(f"the output {key!r} of task {pointer.sub}_{pointer.index} is missing from the store (row {row})")
    size, encoding = head

    def parts() -> Iterator[bytes]:
        stream = opened.store.stream(row, timeout_s=opened.timeout_s)
        if stream is None:
            raise NotFound(f"the value {key!r} was deleted just now")
        return stream

    return Found(key=key, size=size, encoding=encoding, parts=parts)


def refuse_on_terminal(found: Found, out: TextIO) -> None:
    """Raises UsageError for a pickle that would be printed on a terminal."""
    if found.encoding is Encoding.PICKLE and out.isatty():
        raise UsageError(
            f"{found.key!r} is a Python object ({found.size:,} bytes, pickled), which a terminal cannot show",
            hint=f"in Python: rmgr.connect().store.get({found.key!r})   or the pickle itself: rmgr store get {found.key} -o FILE",
        )


def write_file(found: Found, target: Path) -> int:
    """Writes a value to a file that appears when it is complete; returns its size."""
    if target.is_dir():
        raise UsageError(f"{target} is a directory", hint=f"-o {target / found.key.rpartition('/')[2]}")
    if target.exists() and not target.is_file():  # a pipe, a device
        with target.open("wb") as out:
            return sum(out.write(part) for part in found.parts())
    try:
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}") from None
    size = 0
    try:
        with open(descriptor, "wb") as out:
            for part in found.parts():
                size += out.write(part)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    return size


def content_as_json(found: Found) -> dict[str, Any]:
    """The value for `get --json`: as text where it is text, else in base64."""
    value = b"".join(found.parts())
    about = {"bytes": found.size, "encoding": found.encoding.value}
    if found.encoding is Encoding.RAW:
        with contextlib.suppress(UnicodeDecodeError):
            return {**about, "text": value.decode()}
    return {**about, "base64": base64.b64encode(value).decode("ascii")}


def remove(opened: Opened, wanted: Sequence[str], prefix: str | None) -> tuple[list[str], list[str]]:
    """Deletes keys, and those with `prefix`; returns (deleted, not there)."""
    deleted: list[str] = []
    missing: list[str] = []
    for key in dict.fromkeys(wanted):
        pointer = _pointer(opened, key)
        if opened.store.delete(keys.named(key), timeout_s=opened.timeout_s):
            deleted.append(key)
        else:
            missing.append(key)
        if pointer is not None:
            _forget(opened, pointer)
    if prefix:
        more, _ = remove(opened, list(names(opened, prefix, after="", limit=None)), None)
        deleted += more
    return deleted, missing


def _forget(opened: Opened, pointer: keys.Pointer) -> None:
    """Nothing points to it any more. A gateway of the release before keeps it when it is of somebody else's work."""
    with contextlib.suppress(PermissionDenied):
        opened.store.delete(keys.final(pointer), timeout_s=opened.timeout_s)


def _pointer(opened: Opened, key: str) -> keys.Pointer | None:
    """The pointer under a user's key, None when there is a value or nothing."""
    head = opened.store.head(keys.named(key), timeout_s=opened.timeout_s)
    if head is None or head[1] is not Encoding.POINTER:
        return None
    row = opened.store.get(keys.named(key), timeout_s=opened.timeout_s)
    return keys.decode_pointer(row[0]) if row is not None and row[1] is Encoding.POINTER else None
