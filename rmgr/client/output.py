"""Output of tasks in a program: lines for the caller (`future.logs(follow=True)`, `queue.follow()`), or on the program's own streams, as
a process pool has them (`Executor`). Output of running tasks comes from their nodes, the rest from the store.
"""

from __future__ import annotations

import contextlib
import math
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from rmgr.client.futures import Deadline, Future, giving_slot_back
from rmgr.client.logs import EndedTask, Line, LineCutter, LiveOutput, OutputPiece, claims_of, read_flushed
from rmgr.client.progress import shown_on
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.keys import STREAMS
from rmgr.coord.protocol.ports import Store
from rmgr.errors import DaemonFailed, DeadlineExceeded, PermissionDenied, RmgrError, Unavailable, UsageError
from rmgr.model.block import Outcome
from rmgr.procedures.bounded import MOST_LOG_PART_BYTES, rows_within
from rmgr.runtime import machine

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.client.connection import Connection
    from rmgr.client.executor import Core
    from rmgr.client.tasks import Tasks
    from rmgr.submitter.questions import NodeClaims, Question

A = TypeVar("A")
#: An ended call, its attempt, and what to do once its output is written.
Ended = tuple[Outcome, int, Callable[[], None]]

#: Pause between two looks for lines, of followed tasks and of an Executor's calls (s).
_TICK_S, _ECHO_TICK_S = 0.05, 0.1
#: Most parts of one stream that are fetched (256 KiB each); `rmgr logs` shows all.
_MAX_PARTS = 16
#: Running time from which a call is a long one (s).
_LONG_S = 1.0
#: Longest pause between two looks for long calls while other calls end (s).
_SELDOM_S = 5.0
#: Looking takes at most one part in `_COST` of the time. The pause is at most `_LONGEST_S` (s): the first look loads gRPC, which can
#: take seconds on a busy machine.
_COST, _LONGEST_S = 50, 5.0
#: Pause between two looks for the end while no call is left (s).
_IDLE_S = 30.0


def lines_of(source: Tasks, futures: Sequence[Future], *, follow: bool, stream: str, timeout: float | None) -> Iterator[Line]:
    """Yields lines that tasks of one submission have written. See `Future.logs`."""
    if stream not in {"", *STREAMS}:
        raise UsageError(f"stream = {stream!r} is neither 'stdout' nor 'stderr'", hint='"" is both')
    source.connection.check_waitable()
    return _lines(source, list(futures), (stream,) if stream else STREAMS, follow=follow, deadline=Deadline(timeout))


def _lines(source: Tasks, futures: list[Future], streams: tuple[str, ...], *, follow: bool, deadline: Deadline) -> Iterator[Line]:
    while follow and any(future.index < 0 and not future.done() for future in futures):  # not sent yet
        _pause(deadline)
    left = {future.index: future for future in futures if future.index >= 0}
    reach, cutter = ConnectionReach(source.connection), LineCutter()
    live = LiveOutput(reach, source.number, wanted=frozenset(left), streams=streams)
    try:
        while True:
            if follow:
                live.look()
            for piece in live.pieces():
                yield from cutter.take(piece)
            for index in [index for index, future in left.items() if future.done()]:
                settled = left.pop(index).settled
                if settled is not None and settled.attempt:  # it ran, and its end is known
                    for piece in live.ended(_end_of(source.number, settled.outcome, settled.attempt)):
                        yield from cutter.take(piece)
                yield from cutter.rest(index)
            if not left or not follow:
                break
            _pause(deadline)
        for piece in _so_far(reach, source.number, left, streams) if left else ():
            yield from cutter.take(piece)
        yield from cutter.rest()
    finally:
        live.close()


def _pause(deadline: Deadline) -> None:
    if deadline.is_over:
        raise DeadlineExceeded("the tasks whose output is followed have not ended in time", hint="they go on; call it again")
    with giving_slot_back():
        threading.Event().wait(_TICK_S)


def _so_far(reach: ConnectionReach, number: int, wanted: dict[int, Future], streams: tuple[str, ...]) -> Iterator[OutputPiece]:
    """Yields what running tasks have written so far; from the store for nodes that cannot be reached."""
    from rmgr.adapters.rpc.services import NodeClient

    for claims in claims_of(reach, number):
        with NodeClient(claims.endpoint, via=reach.via, credentials=reach.credentials()) as client:
            try:
                running = client.running(number)
            except (Unavailable, DaemonFailed, PermissionDenied):
                yield from _stored_so_far(reach, number, claims, wanted, streams)
                continue
            for task in running:
                if task.node != claims.node or task.index not in wanted:
                    continue
                for said in client.logs(number, task.index, attempt=task.attempt, stream=streams[0] if len(streams) == 1 else ""):
                    if said.data:
                        yield OutputPiece(number, task.index, task.attempt, said.stream, said.data)


def _stored_so_far(
    reach: ConnectionReach, number: int, claims: NodeClaims, wanted: dict[int, Future], streams: tuple[str, ...]
) -> Iterator[OutputPiece]:
    for block in claims.blocks:
        for index in range(block.first, block.end):
            for name in streams if index in wanted else ():
                for data in read_flushed(reach.data_store(), number, index, block.attempt, name):
                    yield OutputPiece(number, index, block.attempt, name, data)


def _end_of(number: int, outcome: Outcome, attempt: int) -> EndedTask:
    return EndedTask(submission=number, position=outcome.index, attempt=attempt, log=outcome.log, log_parts=outcome.log_parts)


class ConnectionReach:
    """A `reach.NodeReach` of a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def via(self) -> str:
        """The gateway through which nodes are asked, "" = directly."""
        return str(getattr(self._connection.asks, "endpoint", "")) if self._connection.config.cluster.uses_gateway else ""

    def ask(self, question: Question[A], most_s: float = 10.0) -> A:
        """See `NodeReach`."""
        return self._connection.asks.ask(question, timeout_s=most_s)

    def credentials(self) -> Credentials | None:
        """Returns the connection's credentials."""
        return self._connection.credentials

    def data_store(self) -> Store:
        """Returns the connection's data store."""
        return self._connection.submitter.store

    def note(self, text: str) -> None:
        """Does nothing: a line where output was cut says that some is missing."""


# -- on this process's own streams ---------------------------------------------------------------------------------------------


def write(store: Store, number: int, outcome: Outcome, attempt: int) -> None:
    """Writes the output of one ended attempt of an Executor's call, as the workers of a process pool do. Never raises."""
    for at, stream in enumerate((sys.stdout, sys.stderr)):
        with contextlib.suppress(RmgrError, OSError, ValueError):
            data = _output(store, number, outcome, attempt, at)
            if data and stream is not None:
                _put(stream, data)


def _put(stream: TextIO, data: bytes) -> None:
    """Writes `data` and flushes: text as the stream's encoding can show it, other bytes as they are if the stream takes bytes."""
    raw: Any = getattr(stream, "buffer", None)
    try:
        text = data.decode("utf-8", "replace" if raw is None else "strict")
    except UnicodeDecodeError:
        stream.flush()
        raw.write(data)
    else:
        stream.write(shown_on(text, stream))
    stream.flush()


def _output(store: Store, number: int, outcome: Outcome, attempt: int, at: int) -> bytes:
    parts = outcome.log_parts[at]
    rows = [keys.log(number, outcome.index, attempt, keys.STREAMS[at], part) for part in range(min(parts, _MAX_PARTS))]
    found = rows_within(store, rows, MOST_LOG_PART_BYTES)
    gap = f"\n[{parts - _MAX_PARTS} parts left out: rmgr logs {number}_{outcome.index}]\n".encode() if parts > _MAX_PARTS else b""
    return b"".join(found[row] for row in rows if row in found) + gap + outcome.log[at]


class LiveEcho:
    """Writes lines of an Executor's calls as they come, on a thread of its own; of up to 64 calls at once, of others when they end.

    Cost: one look per second at what the nodes run, plus a thread and a call to its node for each running call.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._ends: queue.SimpleQueue[Ended | threading.Event | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_over = False

    def begin(self) -> None:
        """Starts the thread, once the executor has its submission."""
        with self._lock:
            if self._thread is None:
                self._thread = machine.Thread(target=self._run, name=f"echo-{self._core.number}", daemon=True)
                self._thread.start()

    def heard(self) -> None:
        """Is called when calls have ended, before `takes` of each."""

    def takes(self, _index: int) -> bool:
        """Returns whether the echo writes the rest of this ended call's output: the caller then calls `end`."""
        return True

    def end(self, outcome: Outcome, attempt: int, then: Callable[[], None]) -> None:
        """Writes the rest of an ended call's output, soon, and calls `then`, in any case."""
        with self._lock:
            if not self._is_over:
                self._ends.put((outcome, attempt, then))
                return
        then()

    def settle(self, timeout_s: float) -> None:
        """Waits until the output of all ended calls is written."""
        if self._thread is not None and self._thread.is_alive():
            written = threading.Event()
            self._ends.put(written)
            written.wait(timeout_s)

    def _run(self) -> None:
        core, cutter = self._core, LineCutter()
        live = LiveOutput(ConnectionReach(core.connection), core.number, admits=self._admits)
        try:
            while core.connection.is_usable and core.dead is None and not (core.is_over and self._ends.empty()):
                with contextlib.suppress(RmgrError):
                    self.look(live)
                for piece in live.pieces():
                    self.show(cutter.take(piece))
                with contextlib.suppress(queue.Empty):
                    told = self._ends.get(timeout=self.tick_s(live))
                    while True:
                        self._take(live, cutter, told)
                        told = self._ends.get_nowait()
        finally:
            with self._lock:
                self._is_over = True
            while not self._ends.empty():
                told = self._ends.get()
                if isinstance(told, threading.Event):
                    told.set()
                elif told is not None:
                    told[2]()
            live.close()

    def _take(self, live: LiveOutput, cutter: LineCutter, told: Ended | threading.Event | None) -> None:
        if isinstance(told, threading.Event):
            told.set()
        elif told is not None:
            outcome, attempt, then = told
            try:
                self._end(live, cutter, outcome, attempt)
            finally:
                then()

    def look(self, live: LiveOutput) -> None:
        live.look()

    def _admits(self, _index: int, _attempt: int) -> bool:
        """Returns whether to follow the output of this running call."""
        return True

    def tick_s(self, _live: LiveOutput) -> float:
        return _ECHO_TICK_S

    def _end(self, live: LiveOutput, cutter: LineCutter, outcome: Outcome, attempt: int) -> None:
        with contextlib.suppress(RmgrError):  # `rmgr logs` shows it once the store is back
            for piece in live.ended(_end_of(self._core.number, outcome, attempt)):
                self.show(cutter.take(piece))
        self.show(cutter.rest(outcome.index))

    def show(self, lines: Iterable[Line]) -> None:
        several = self._core.handle is not None and self._core.handle.next_index > 1
        for line in lines:
            stream = sys.stdout if line.stream == keys.STREAMS[0] else sys.stderr
            with contextlib.suppress(OSError, ValueError, AttributeError):  # the reader is gone, or there is no such stream
                _put(stream, b"%s%s\n" % (f"{line.task_id}: ".encode() if several else b"", line.data))


class LongEcho(LiveEcho):
    """Writes lines of calls that run for a second or more as they come; `write` handles other calls when they end.

    Cost: a thread, which sleeps while calls end one after another. It looks at what the nodes run if no call has ended for a second,
    else every 5 s, and takes at most 2 % of the time if looks are quick. The first look loads gRPC.
    """

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._before: dict[tuple[int, int], float] = {}
        self._heard_s = self._looked_s = self._due_s = -math.inf
        self._is_parked = self._looks_again = self._has_young = False
        self._seen: dict[tuple[int, int], float] = {}  #: (index, attempt) of running calls -> first seen at
        self._mine = threading.Lock()  #: guards the following:
        self._followed: set[int] = set()
        self._ended: set[int] | None = None  #: calls that end during a look: their nodes may have reported them before as running
        self._has_taken = False

    def begin(self) -> None:
        """See `LiveEcho`; called again whenever calls were added."""
        if self._thread is None:
            self._heard_s = self._looked_s = machine.monotonic()
            super().begin()
        elif self._is_parked:
            self._heard_s = machine.monotonic()
            self._ends.put(None)

    def heard(self) -> None:
        """See `LiveEcho`."""
        self._heard_s = machine.monotonic()

    def takes(self, index: int) -> bool:
        """See `LiveEcho`."""
        if not self._followed and self._ended is None:
            return False
        with self._mine:
            if index not in self._followed:
                if self._ended is not None:
                    self._ended.add(index)
                return False
            self._followed.discard(index)
        return True

    def settle(self, timeout_s: float) -> None:
        """See `LiveEcho`."""
        if self._has_taken:
            super().settle(timeout_s)

    def tick_s(self, live: LiveOutput) -> float:
        if live.follows:
            return _ECHO_TICK_S
        self._is_parked = not self._core.has_pending
        return _IDLE_S if self._is_parked and not self._core.has_pending else _LONG_S / 2

    def look(self, live: LiveOutput) -> None:
        self._is_parked = False
        now = machine.monotonic()
        is_quiet = now - self._heard_s >= _LONG_S
        if not self._core.has_pending or now < self._due_s or not (is_quiet or self._looks_again or now - self._looked_s >= _SELDOM_S):
            return
        with self._mine:
            self._ended = set()
        self._before, self._seen, self._has_young = self._seen, {}, False
        try:
            live.look_now()
        finally:
            with self._mine:
                self._ended = None
            self._looked_s = machine.monotonic()
            rest_s = min(_COST * (self._looked_s - now), _LONGEST_S)
            self._due_s = self._looked_s + max(_LONG_S / (2 if self._has_young else 1), rest_s) - _ECHO_TICK_S
            self._looks_again = not is_quiet and not self._looks_again and self._has_young

    def _admits(self, index: int, attempt: int) -> bool:
        now = machine.monotonic()
        since = self._seen[index, attempt] = self._before.get((index, attempt), now)
        with self._mine:
            if index not in self._followed:
                if self._ended is None or index in self._ended:
                    return False
                if now - since < _LONG_S / 4:  # by the next look it is a long one, or has ended
                    self._has_young = True
                    return False
                self._followed.add(index)
                self._has_taken = True
            return True
