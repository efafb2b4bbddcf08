"""What work needs from the data store before it can start: functions, modules, scripts, argument rows; fetched once, kept.

Level-triggered: `get` answers what is here, or None and sees to it that it comes (the owner is woken then and asks again).
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from rmgr.coord.ports import Store
from rmgr.daemons.starter_arguments import Arguments, read_arguments
from rmgr.daemons.starter_io import StoreIO
from rmgr.daemons.starter_room import Room
from rmgr.daemons.starter_uploads import Uploads
from rmgr.errors import DataLost, PermissionDenied
from rmgr.model.frames import MAX_INLINE_FUNCTION
from rmgr.model.states import Reason
from rmgr.runner.kernel import NODE_TROUBLE

V = TypeVar("V")

#: How long an absent row is believed absent.
_FAILURE_S = 1.0
#: Values above this are kept as files.
_IN_MEMORY = 1024 * 1024
_HASH = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, slots=True)
class Failure:
    """It cannot be had: what that means for the work that needs it. blames_node: it may be this node's fault."""

    reason: Reason
    error: str
    blames_node: bool = True


def reason_of(error: Exception) -> Reason:
    """What a failure to get something ready says: it was exchanged, it is gone, this node is in trouble, the work cannot start."""
    if isinstance(error, PermissionDenied):
        return Reason.UNTRUSTED
    if isinstance(error, DataLost):
        return Reason.DATA_LOST
    return Reason.NODE_LOST if isinstance(error, OSError) and error.errno in NODE_TROUBLE else Reason.START_FAILED


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes by content hash. data: when small; path: a file of this node when not, or when a file was asked for."""

    data: bytes
    path: str
    size: int


class Fetched(Generic[V]):
    """A cache of what `load(store, key)` returns; the least recently used are forgotten.

    load: raises DataLost or LookupError (with a sentence) when it cannot be had.
    """

    def __init__(self, io: StoreIO, wake: Callable[[], None], load: Callable[[Store, str], V], *, keep: int) -> None:
        self._io = io
        self._wake = wake
        self._load = load
        self._keep = keep
        self._here: OrderedDict[str, V | Failure] = OrderedDict()
        self._coming: set[str] = set()
        self._failed_s: dict[str, float] = {}

    def get(self, key: str) -> V | Failure | None:
        """The value, why there is none, or None: it is on its way. Owner's thread only. Cost: O(1)."""
        found = self._here.get(key)
        if found is None or (type(found) is Failure and time.monotonic() - self._failed_s.get(key, -math.inf) > _FAILURE_S):
            if key not in self._coming:
                self._coming.add(key)
                self._io.run(lambda store: self._load(store, key), lambda result: self._arrived(key, result), is_read=True)
            return None
        self._here.move_to_end(key)
        return found

    def _arrived(self, key: str, result: V | Exception) -> None:
        self._coming.discard(key)
        if isinstance(result, Exception):
            reason = reason_of(result)
            self._here[key] = Failure(reason, str(result), blames_node=reason is not Reason.UNTRUSTED)
            self._failed_s[key] = time.monotonic()
        else:
            self._here[key] = result
            self._failed_s.pop(key, None)
        while len(self._here) > self._keep:
            self._failed_s.pop(self._here.popitem(last=False)[0], None)
        self._wake()


class Fetcher:
    """All that is fetched for work on this node. `directory`: where files are kept. `room`: for uploads, and what is staged."""

    def __init__(self, io: StoreIO, wake: Callable[[], None], directory: Path, room: Room | None = None) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        #: store key -> bytes, in a file when they are large
        self.blobs: Fetched[Blob] = Fetched(io, wake, self._blob, keep=512)
        #: store key -> file (archives, large standard input)
        self.files: Fetched[str] = Fetched(io, wake, self._file, keep=512)
        #: store key -> arguments of a block
        self.rows: Fetched[Arguments] = Fetched(io, wake, self._row, keep=8)
        self.uploads = Uploads(directory / "uploads", room=room)

    def function(self, sha256_key: str) -> Blob | Failure | None:
        """The pickled function of a batch: inline when small, else a file."""
        return self.blobs.get(sha256_key)

    def _blob(self, store: Store, key: str) -> Blob:
        found = store.get(key)
        if found is None:
            raise LookupError(f"{key} is not in the data store")
        data = found[0]
        check_content(key, hashlib.sha256(data).hexdigest())
        if len(data) <= MAX_INLINE_FUNCTION:
            return Blob(data, "", len(data))
        return Blob(data if len(data) <= _IN_MEMORY else b"", self._write(key, iter((data,))), len(data))

    def _row(self, store: Store, key: str) -> Arguments:
        return read_arguments(store, key, self._directory, check_content)

    def _file(self, store: Store, key: str) -> str:
        chunks = store.stream(key)
        if chunks is None:
            raise LookupError(f"{key} is not in the data store")
        return self._write(key, chunks)

    def _write(self, key: str, chunks: object) -> str:
        """A file of its own for `key`, whole or not there."""
        path = self._directory / hashlib.sha256(key.encode()).hexdigest()
        part = path.with_suffix(f".{time.monotonic_ns()}")
        digest = hashlib.sha256()
        try:
            with part.open("wb") as file:
                for chunk in chunks:  # type: ignore[attr-defined]
                    file.write(chunk)
                    digest.update(chunk)
            check_content(key, digest.hexdigest())
            part.chmod(0o644)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        return str(path)


def check_content(key: str, sha256: str) -> None:
    """A row that is named by its content holds it: nothing else is believed, least of all what the store says of itself.

    Raises: PermissionDenied.
    """
    name = key.rpartition("/")[2]
    if _HASH.match(name) and name != sha256:
        raise PermissionDenied(f"{key} in the data store is not what its name says: its bytes hash to {sha256}")
