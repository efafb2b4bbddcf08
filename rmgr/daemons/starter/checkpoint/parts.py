"""The directories of one job: on this node, and on its other nodes through their Starters. Called on threads that may wait.

A helper stores the files of its directory itself and answers with the key of their list; the head makes one checkpoint of all lists.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from rmgr.adapters.host.accounts import Account
from rmgr.adapters.rpc.ranks import Peers, Step
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.ports import Coordinator, Store
from rmgr.coord.protocol.records import decode_record
from rmgr.daemons.starter.checkpoint import ask as asking
from rmgr.daemons.starter.checkpoint import rows
from rmgr.daemons.starter.checkpoint.files import (
    MOST_LIST_BYTES,
    FileEntry,
    Manifest,
    clear,
    decode_files,
    encode_files,
    missing,
    pack,
    scan,
    unpack,
)
from rmgr.daemons.starter.checkpoint.seal import OPEN, Seals
from rmgr.errors import DataLost, NotFound, PermissionDenied, RmgrError, StateConflict, Unavailable
from rmgr.model.cluster.node import NodeRecord
from rmgr.procedures.bounded import row_of
from rmgr.runtime import machine

T = TypeVar("T")

#: How long another Starter may take for what is quick, and for files.
_QUICK_S, _LONG_S = 20.0, 1800.0
#: How long a node that does not answer is asked again, and the pause.
_PATIENCE_S, _PAUSE_S = 20.0, 0.5
_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveRequest:
    """A request to save. number: as the program sees it."""

    number: int
    stop: bool
    deadline_us: int


class JobDirectory(Protocol):
    """The directory of a job on one node. Everything may raise OSError and errors of `rmgr.errors`."""

    node: str
    lacks: str  #: what of it the last `collect` could not keep, as far as it is known here; for people

    def measure(self) -> int:
        """Bytes of its files. Raises: PermissionError for one that may not be read."""

    def ask(self, asked: SaveRequest) -> None:
        """Tells the processes there, each once, however often this is called."""

    def collect(self, *, stop: bool, max_bytes: int) -> tuple[FileEntry, ...]:
        """Stores its content. stop: whatever runs there is ended first; else it must not change meanwhile (StateConflict)."""

    def restore(self, manifest: Manifest, key: str) -> None:
        """Fills it with a checkpoint, nothing else is in it then. Raises: DataLost."""


@dataclass(slots=True, kw_only=True, eq=False)
class LocalPart:
    """On a node of this Starter.

    marker: of the slot that runs the job here ("" = none yet). spare: processes with it that are not the job's.
    ends: `collect` ends what is left of the job (on the head its spawner has done so). written: pieces of this attempt in the store.
    number: of the last request. told: processes that have had its signal. lacks: what the last `collect` could not keep, for people.
    """

    node: str
    directory: Path
    account: Account | None
    store: Store
    sub: int
    index: int
    attempt: int
    marker: str = ""
    spare: Sequence[int] = ()
    ends: bool = False
    written: set[str] = field(default_factory=set)
    number: int = 0
    told: set[int] = field(default_factory=set)
    lacks: str = ""
    copying: threading.Lock = field(default_factory=threading.Lock)
    seals: Seals = OPEN

    def measure(self) -> int:
        listing = scan(self.directory, self.account)
        if listing.closed:  # better now than when the job has ended
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), listing.closed[0])
        return listing.size_bytes

    def ask(self, asked: SaveRequest) -> None:
        if asked.number != self.number:
            asking.ask(self.directory, self.account, number=asked.number, stop=asked.stop, deadline_us=asked.deadline_us)
            self.number = asked.number
            self.told.clear()
        if self.marker:
            self.told.update(asking.notify(self.marker, self.account, (*self.spare, *self.told)))

    def collect(self, *, stop: bool, max_bytes: int) -> tuple[FileEntry, ...]:
        if stop and self.ends and self.marker and not asking.end_all(self.marker, self.account, self.spare):
            raise StateConflict(f"processes of the job on node {self.node} do not end")
        before = scan(self.directory, self.account)
        put = rows.piece_writer(self.store, self.sub, self.index, self.attempt, self.written)
        try:
            files = pack(self.directory, self.account, before, put, max_bytes=max_bytes)
        except FileNotFoundError as error:
            raise StateConflict(f"{error.filename} went while the files were copied") from None
        if not stop and scan(self.directory, self.account).entries != before.entries:
            raise StateConflict("the files changed while they were copied")
        self.lacks = missing(before)
        return files

    def restore(self, manifest: Manifest, key: str) -> None:
        del key
        clear(self.directory, self.account)
        try:
            unpack(manifest.files, self.directory, self.account, rows.piece_reader(self.store, manifest))
        except DataLost:
            clear(self.directory, self.account)
            raise


@dataclass(slots=True, kw_only=True, eq=False)
class RemotePart:
    """On another node. hold: the job's name below /holds. is_over: nobody waits for it any more."""

    node: str
    hold: str
    peers: Peers
    coordinator: Coordinator
    store: Store
    is_over: Callable[[], bool] = lambda: False
    lacks: str = ""

    def measure(self) -> int:
        return self._step(Step(step="measure"))[0]

    def ask(self, asked: SaveRequest) -> None:
        self._step(Step(step="ask", number=asked.number, stop=asked.stop, deadline_us=asked.deadline_us))

    def collect(self, *, stop: bool, max_bytes: int) -> tuple[FileEntry, ...]:
        _, row = self._step(Step(step="collect", stop=stop, max_bytes=max_bytes), timeout_s=_LONG_S)
        data = row_of(self.store, row, MOST_LIST_BYTES)
        if data is None or hashlib.sha256(data).hexdigest() != row.rpartition("/")[2]:
            raise DataLost(f"the list of files of node {self.node} is not in the data store, or not what that node has stored")
        return decode_files(data)

    def restore(self, manifest: Manifest, key: str) -> None:
        del manifest
        self._step(Step(step="restore", row=key), timeout_s=_LONG_S)

    def _step(self, step: Step, *, timeout_s: float = _QUICK_S) -> tuple[int, str]:
        end_s = machine.monotonic() + _PATIENCE_S
        while True:
            try:
                return self.peers.checkpoint(self._endpoint(), self.node, self.hold, step, timeout_s=timeout_s)
            except Unavailable:
                if machine.monotonic() > end_s or self.is_over():
                    raise
                machine.sleep(_PAUSE_S)

    def _endpoint(self) -> str:
        found = self.coordinator.get(paths.node(self.node)).result(_QUICK_S)
        if found is None:
            raise NotFound(f"there is no node {self.node} any more")
        return decode_record(found.data, NodeRecord, self.node).endpoint


def answer(part: LocalPart, step: Step) -> tuple[int, str]:
    """What a helper's Starter does when the head asks. Raises: as `JobDirectory`; NotFound for a step that this release does not know."""
    match step.step:
        case "measure":
            return part.measure(), ""
        case "ask":
            part.ask(SaveRequest(number=step.number, stop=step.stop, deadline_us=step.deadline_us))
        case "collect":
            listed = encode_files(part.collect(stop=step.stop, max_bytes=step.max_bytes))
            digest = hashlib.sha256(listed).hexdigest()
            part.store.put(keys.checkpoint_piece(part.sub, part.index, part.attempt, digest), listed)
            return len(listed), keys.checkpoint_piece(part.sub, part.index, part.attempt, digest)
        case "restore":
            saved = keys.parse_checkpoint(step.row)
            if saved is None or (saved.sub, saved.index) != (part.sub, part.index):
                raise NotFound(f"{step.row!r} is no checkpoint of this job")
            try:
                part.restore(rows.read(part.store, saved, part.seals), step.row)
            except PermissionDenied as error:
                raise DataLost(error.message) from None
        case _:
            raise NotFound(f"this Starter does not know the step {step.step!r}")
    return 0, ""


def each(parts: Sequence[JobDirectory], call: Callable[[JobDirectory], T]) -> list[T]:
    """The same of every part, several at once; the first error is raised when all have ended."""
    if len(parts) == 1:
        return [call(parts[0])]
    with machine.pool(min(_AT_ONCE, len(parts)), "checkpoint") as pool:
        futures = [pool.submit(call, part) for part in parts]
        return [future.result() for future in futures]


def sentence(error: Exception) -> str:
    """What went wrong, for people."""
    if isinstance(error, RmgrError):
        return error.message
    if isinstance(error, OSError):
        return f"{error.strerror or error}{f': {os.path.basename(str(error.filename))}' if error.filename else ''}"
    return f"{type(error).__name__}: {error}"
