"""Output of running tasks as it comes: from the Starters' gRPC service while they run, the rest from what they left.

One thread a streamed task; what arrives passes through a queue to the command's own thread, which alone writes.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from rmgr.client.logs.stored_logs import read_ended, unseen
from rmgr.coord.protocol.keys import STREAMS
from rmgr.errors import NotFound, RmgrError, Unavailable
from rmgr.model.base.units import format_size
from rmgr.runtime import machine

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.coord.protocol.ports import Coordinator, Store

#: Tasks whose output is streamed at once; of the others it comes when they end.
MAX_STREAMS = 64
#: How long a stream may take to bring what its task wrote last, after the task is known to have ended.
_DRAIN_S = 2.0
#: How long a node that did not answer is left alone; behind a gateway it may have been that.
_SILENT_S, _SILENT_BEHIND_S = 10.0, 2.0
_FIRST_LOOK_S, _SLOWEST_LOOK_S = 0.03, 1.0


class Place(Protocol):
    """Leads to nodes and to the store: a command's session, or a connection."""

    @property
    def via(self) -> str: ...
    def coordinator(self) -> Coordinator: ...
    def credentials(self) -> Credentials | None: ...
    def data_store(self) -> Store: ...
    def left_s(self, most: float | None = None) -> float | None: ...
    def note(self, text: str) -> None: ...


class EndedTask(Protocol):
    """End of a task: its id for people, its last attempt, and the place of its output."""

    @property
    def id(self) -> str: ...
    @property
    def position(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def log(self) -> tuple[bytes, bytes]: ...
    @property
    def log_parts(self) -> tuple[int, int]: ...
    @property
    def ended_us(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPiece:
    """Some output of a task. time_us: when it was read."""

    submission: int
    position: int
    attempt: int
    stream: str
    data: bytes
    time_us: int = 0


@dataclass(slots=True)
class _Stream:
    """One attempt being streamed. shown: bytes passed on, of (stdout, stderr). is_cut: it may have more to say."""

    attempt: int
    node: str
    shown: list[int]
    thread: threading.Thread | None = None
    client: Any = None
    is_over: bool = False
    is_cut: bool = False


class LiveOutput:
    """Output of tasks of one submission.

    Args:
        wanted: positions, None = all. streams: which of stdout and stderr. admits: whether to follow (position, attempt), which runs.
    `pieces` gives what has come, `look` begins to stream tasks that have begun, `ended` gives the rest of a task.
    """

    def __init__(
        self,
        place: Place,
        number: int,
        *,
        wanted: frozenset[int] | None = None,
        streams: tuple[str, ...] = STREAMS,
        admits: Callable[[int, int], bool] = lambda *_: True,
    ) -> None:
        self._place = place
        self._number = number
        self._wanted = wanted
        self._streams_wanted = streams
        self._admits = admits
        self._pieces: queue.SimpleQueue[OutputPiece] = queue.SimpleQueue()
        self._streams: dict[int, _Stream] = {}
        self._ended: set[int] = set()
        self._told: set[tuple[int, str]] = set()
        self._silent_s: dict[str, float] = {}  # endpoints that did not answer, and until when they are left alone
        self._wait_s = _FIRST_LOOK_S
        self._look_s = machine.monotonic() + self._wait_s
        self.on_attempt: Callable[[int, int, str], None] = lambda *_: None  #: (position, attempt, node): a new one begins

    def pieces(self) -> Iterator[OutputPiece]:
        """What has come since the last call; does not wait."""
        while True:
            try:
                yield self._pieces.get_nowait()
            except queue.Empty:
                return

    def look(self) -> None:
        """Finds tasks that run and begins to stream them; cheap when called often: it looks when it is time to."""
        now = machine.monotonic()
        if now < self._look_s:
            return
        self._wait_s = min(_SLOWEST_LOOK_S, self._wait_s * 1.6)
        self._look_s = now + self._wait_s
        self.look_now()

    @property
    def follows(self) -> bool:
        """There is something that it streams."""
        return bool(self._streams)

    def look_now(self) -> None:
        """As `look`, at once. Cost: a call to each node that has claimed something of the submission."""
        now = machine.monotonic()
        with contextlib.suppress(Unavailable):
            for node, endpoint in nodes_of(self._place, self._number):
                if self._silent_s.get(endpoint, -math.inf) < now:
                    self._look_at(node, endpoint)

    def ended(self, end: EndedTask) -> Iterator[OutputPiece]:
        """The rest of what a task wrote in its last attempt. Raises StoreUnavailable, DataLost."""
        self._ended.add(end.position)
        stream = self._streams.pop(end.position, None)
        shown = [0, 0]
        if stream is not None:
            if stream.attempt == end.attempt and stream.thread is not None:
                limit = machine.monotonic() + _DRAIN_S
                while stream.thread.is_alive() and machine.monotonic() < limit:
                    yield from self.pieces()
                    stream.thread.join(0.01)
                yield from self.pieces()
                shown = list(stream.shown)
            self._stop(stream)
        now_us = end.ended_us or machine.wall_us()
        for number, name in enumerate(STREAMS):
            if name not in self._streams_wanted:
                continue
            skip = shown[number]
            store = self._place.data_store() if end.log_parts[number] else None
            parts, rest = end.log_parts[number], end.log[number]
            kept = read_ended(store, self._number, end.position, end.attempt, name, parts=parts, rest=rest)
            for fresh in unseen(kept, skip, on_drop=partial(self._tell_drop, end, name)):
                if fresh:
                    yield OutputPiece(
                        submission=self._number, position=end.position, attempt=end.attempt, stream=name, data=fresh, time_us=now_us
                    )

    def _tell_drop(self, end: EndedTask, stream: str, count: int, cap: int) -> None:
        if (end.position, stream) not in self._told:
            self._told.add((end.position, stream))
            self._place.note(
                f"{end.id} wrote more to {stream} than is kept ({format_size(cap)}): {count} bytes from the middle of it are missing; "
                "large output belongs into a file (--output KEY=FILE, -o FILE)"
            )

    def close(self) -> None:
        """Ends all streams."""
        for stream in self._streams.values():
            self._stop(stream)
        self._streams.clear()

    # -- inside

    def _look_at(self, node: str, endpoint: str) -> None:
        from rmgr.adapters.rpc.server import NodeClient

        try:
            with NodeClient(endpoint, timeout_s=2.0, via=self._place.via, credentials=self._place.credentials()) as client:
                running = client.running(self._number)
        except RmgrError:  # it is going, or cannot be reached from here: the stored output comes at the end
            self._silent_s[endpoint] = machine.monotonic() + (_SILENT_BEHIND_S if self._place.via else _SILENT_S)
            return
        for task in running:
            if task.node != node or task.index in self._ended or (self._wanted is not None and task.index not in self._wanted):
                continue
            known = self._streams.get(task.index)
            if known is not None and (known.attempt >= task.attempt and not (known.is_over and (known.is_cut or known.node != node))):
                continue
            if known is not None:
                self._stop(known)
            if known is None and (len(self._streams) >= MAX_STREAMS or not self._admits(task.index, task.attempt)):
                continue
            goes_on = known is not None and known.is_cut and (known.attempt, known.node) == (task.attempt, node)
            if not goes_on:
                self.on_attempt(task.index, task.attempt, node)
            self._begin(task.index, task.attempt, node, endpoint, known.shown if known is not None and goes_on else [0, 0])

    def _begin(self, position: int, attempt: int, node: str, endpoint: str, shown: list[int]) -> None:
        from rmgr.adapters.rpc.server import NodeClient

        stream = _Stream(attempt, node, shown)
        stream.client = NodeClient(endpoint, via=self._place.via, credentials=self._place.credentials())
        self._streams[position] = stream
        stream.thread = machine.Thread(target=self._read, args=(position, stream), name=f"logs-{position}", daemon=True)
        stream.thread.start()

    def _read(self, position: int, stream: _Stream) -> None:
        only = self._streams_wanted[0] if len(self._streams_wanted) == 1 else ""
        try:
            begins = (stream.shown[0], stream.shown[1])
            for piece in stream.client.logs(self._number, position, attempt=stream.attempt, stream=only, follow=True, offsets=begins):
                if piece.data:
                    stream.shown[STREAMS.index(piece.stream)] = piece.offset + len(piece.data)
                    self._pieces.put(
                        OutputPiece(
                            submission=self._number,
                            position=position,
                            attempt=stream.attempt,
                            stream=piece.stream,
                            data=piece.data,
                            time_us=piece.time_us or machine.wall_us(),
                        )
                    )
                if piece.ended:
                    break
        except NotFound:
            pass  # the attempt is over: what is missing comes from the store
        except RmgrError:  # the node is gone, or the gateway is, or full: while the task runs there it is asked for again
            stream.is_cut = True
        except ValueError:
            pass  # the channel was closed under it
        finally:
            stream.is_over = True

    @staticmethod
    def _stop(stream: _Stream) -> None:
        if stream.client is not None:
            stream.client.close()


def nodes_of(place: Place, number: int) -> list[tuple[str, str]]:
    """(node, endpoint) of the nodes that have claimed something of a submission. Raises Unavailable."""
    from rmgr.coord.protocol import paths
    from rmgr.coord.protocol.records import decode_record
    from rmgr.model.cluster.node import NodeRecord
    from rmgr.procedures.snapshot import fetch

    coordinator = place.coordinator()
    timeout_s = place.left_s(5.0) or 5.0
    names = coordinator.children(paths.NODES, timeout_s=timeout_s).result(timeout_s + 1.0) or []
    claimed = fetch([paths.running_node(name) for name in names], coordinator.children, timeout_s=timeout_s)
    here = [
        name
        for name, blocks in zip(names, claimed, strict=True)
        if any(paths.parse_block(block).submission == number for block in blocks or ())
    ]
    records = fetch([paths.node(name) for name in here], coordinator.get, timeout_s=timeout_s)
    found = []
    for name, item in zip(here, records, strict=True):
        if item is not None:
            found.append((name, decode_record(item.data, NodeRecord, paths.node(name)).endpoint))
    return found
