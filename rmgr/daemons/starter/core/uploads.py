"""Uploads on a node: each is fetched from the data store once, kept by its hash, and copied into every work directory that wants it.

A cache of files below one directory of the Starter, bounded in bytes; what tasks are being made from is never thrown out.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Store
from rmgr.daemons.starter.core.room import StagingRoom, disk_bytes, on_disk
from rmgr.daemons.starter.core.unpack import unpack
from rmgr.errors import PermissionDenied, RowGone
from rmgr.model.tasks.submission import MAX_UPLOAD_BYTES

#: Bytes of uploads kept on a node.
CAP_BYTES = 2 * 1024 * 1024 * 1024
#: Files of one uploaded directory together: twice what may be uploaded, for an archive of 0.1.0 may name a file twice.
_MAX_UNPACKED = 2 * MAX_UPLOAD_BYTES
_MODE = 0o755


@dataclass(slots=True)
class Kept:
    """An upload on this node. size: of its bytes, -1 = not here. disk_bytes: taken for it. unpacked_bytes: of a copy so far."""

    path: Path
    fetching: threading.Lock = field(default_factory=threading.Lock)
    size: int = -1
    disk_bytes: int = 0
    unpacked_bytes: int = 0
    users: int = 0

    @property
    def copy_bytes(self) -> int:
        """What a copy in a work directory will take, an estimate for a directory that was never unpacked here."""
        return max(self.unpacked_bytes, on_disk(self.size))


def _go_on(_disk_bytes: int) -> None:
    """It is wanted, and there is room."""


class Uploads:
    """Called on IO threads.

    Args:
        directory: made when needed; its own. cap_bytes: kept at most (what is in use may be more).
        room: what is kept is taken from it, and thrown out for others who need it.
    """

    def __init__(self, directory: Path, *, cap_bytes: int = CAP_BYTES, room: StagingRoom | None = None) -> None:
        self._directory = directory
        self._cap_bytes = cap_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, Kept] = OrderedDict()
        self.room = room or StagingRoom()
        self.room.throw_out = self._throw_out
        self.fetched = 0  #: from the store, so far

    def place(self, store: Store, sha256: str, target: Path, *, name: str, is_dir: bool) -> None:
        """Puts an upload at `target`: a file of mode 755, or a directory with what was in it. Raises: as `kept` and `copy`."""
        with self.kept(store, sha256, name=name) as upload:
            self.copy(upload, target, name=name, is_dir=is_dir)

    def copy(self, upload: Kept, target: Path, *, name: str, is_dir: bool, check: Callable[[int], None] = _go_on) -> None:
        """A copy of what is kept; its room is the caller's business.

        Args: check: called before each file with what that takes on disk; raises when it is not to be made.
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
            unpack(upload.path, target, name=name, max_bytes=_MAX_UNPACKED, check=counted)
        finally:
            upload.unpacked_bytes = max(upload.unpacked_bytes, made_bytes)  # the next one asks for all of it at once

    @contextlib.contextmanager
    def kept(self, store: Store, sha256: str, *, name: str, held_bytes: int = 0) -> Iterator[Kept]:
        """An upload that stays here until the end of the block; fetched first if it is not here.

        Args: held_bytes: of room, which the same task has already.
        Raises: RowGone; PermissionDenied when the bytes are not those of the hash; NoRoom, ValueTooLarge (see `StagingRoom.take`);
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
        """Those whose files were removed are fetched again at the next use. Returns: there were some. Cost: an lstat each."""
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
        """The least recently used go until the rest fits."""
        total = sum(max(0, entry.size) for entry in self._entries.values())
        for key, entry in list(self._entries.items()):
            if entry.users or (entry.size >= 0 and total <= self._cap_bytes):
                continue
            total -= max(0, entry.size)
            self._drop(key, entry)

    def _throw_out(self, short_bytes: int) -> None:
        """Others need that much: the least recently used go, as far as nobody uses them."""
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
