"""Uploads on a node: each is fetched from the data store once, kept by its hash, and copied into every work directory that wants it.

A cache of files below one directory of the Starter, bounded in bytes; what tasks are being made from is never thrown out.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rmgr.coord import keys
from rmgr.coord.ports import Store
from rmgr.daemons.starter_unpack import unpack
from rmgr.errors import NotFound, PermissionDenied
from rmgr.model.submission import MAX_UPLOAD_BYTES

#: Bytes of uploads kept on a node.
CAP_BYTES = 2 * 1024 * 1024 * 1024
#: Files of one uploaded directory together: twice what may be uploaded, for an archive of 0.1.0 may name a file twice.
_MAX_UNPACKED = 2 * MAX_UPLOAD_BYTES
_MODE = 0o755


@dataclass(slots=True)
class _Entry:
    path: Path
    fetching: threading.Lock = field(default_factory=threading.Lock)
    size: int = -1  #: -1 = not here
    users: int = 0


class Uploads:
    """Called on IO threads.

    Args:
        directory: made when needed; its own. cap_bytes: kept at most (what is in use may be more).
    """

    def __init__(self, directory: Path, *, cap_bytes: int = CAP_BYTES) -> None:
        self._directory = directory
        self._cap_bytes = cap_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self.fetched = 0  #: from the store, so far

    def place(self, store: Store, sha256: str, target: Path, *, name: str, is_dir: bool) -> None:
        """Puts an upload at `target`: a file of mode 755, or a directory with what was in it.

        Raises: NotFound; PermissionDenied when the bytes are not those of the hash, or an archive reaches out; DataLost, OSError,
            StoreUnavailable.
        """
        with self._kept(store, keys.upload(sha256)) as source:
            if is_dir:
                target.mkdir(exist_ok=True)
                unpack(source, target, name=name, max_bytes=_MAX_UNPACKED)
            else:
                shutil.copyfile(source, target)  # its own: a task may write into it
                target.chmod(_MODE)

    @contextlib.contextmanager
    def _kept(self, store: Store, key: str) -> Iterator[Path]:
        with self._lock:
            entry = self._entries.setdefault(key, _Entry(self._directory / key.rpartition("/")[2]))
            self._entries.move_to_end(key)
            entry.users += 1
        try:
            with entry.fetching:
                if entry.size < 0:
                    entry.size = self._fetch(store, key, entry.path)
                    self.fetched += 1
            yield entry.path
        finally:
            with self._lock:
                entry.users -= 1
                self._make_room()

    def _fetch(self, store: Store, key: str, path: Path) -> int:
        chunks = store.stream(key)
        if chunks is None:
            raise NotFound(f"{key} is not in the data store")
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        part, digest, size = path.with_suffix(".part"), hashlib.sha256(), 0
        try:
            with part.open("wb") as file:
                for chunk in chunks:
                    file.write(chunk)
                    digest.update(chunk)
                    size += len(chunk)
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
            entry.path.unlink(missing_ok=True)
            del self._entries[key]
