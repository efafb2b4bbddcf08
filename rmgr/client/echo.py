"""Writes what an Executor's calls print to this process's own streams (a process pool's workers share them).

`write` does so as calls end. `LongEcho` writes the lines of calls that last as they come, `LiveEcho` those of all calls; each line begins
with its task where there are several. What a stream's encoding cannot show is replaced character by character.
"""

from __future__ import annotations

import contextlib
import math
import queue
import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from rmgr.client.progress import shown_on
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Store
from rmgr.errors import RmgrError
from rmgr.model.tasks.outcome import Outcome
from rmgr.procedures.bounded import MOST_LOG_PART_BYTES, rows_within
from rmgr.runtime import machine

if TYPE_CHECKING:
    from rmgr.client.connection import Connection
    from rmgr.client.logs.lines import Line, LineCutter
    from rmgr.client.logs.live import LiveOutput
    from rmgr.client.ports import HandlePort

#: Most parts of one stream that are fetched (256 KiB each); `rmgr logs` has all of it.
_MAX_PARTS = 16


def write(store: Store, number: int, outcome: Outcome, attempt: int) -> None:
    """Writes the output of one attempt. Never raises: nobody waits for it."""
    for at, stream in enumerate((sys.stdout, sys.stderr)):
        try:
            text = _output(store, number, outcome, attempt, at).decode("utf-8", "replace")
            if text and stream is not None:
                stream.write(shown_on(text, stream))
                stream.flush()
        except (RmgrError, OSError, ValueError):
            continue


def _output(store: Store, number: int, outcome: Outcome, attempt: int, at: int) -> bytes:
    parts = outcome.log_parts[at]
    rows = [keys.log(number, outcome.index, attempt, keys.STREAMS[at], part) for part in range(min(parts, _MAX_PARTS))]
    found = rows_within(store, rows, MOST_LOG_PART_BYTES)
    gap = f"\n[{parts - _MAX_PARTS} parts left out: rmgr logs {number}_{outcome.index}]\n".encode() if parts > _MAX_PARTS else b""
    return b"".join(found[row] for row in rows if row in found) + gap + outcome.log[at]


class EchoedCalls(Protocol):
    """The calls of an Executor whose output is written."""

    connection: Connection
    handle: HandlePort | None
    dead: RmgrError | None

    @property
    def number(self) -> int:
        """Their submission."""
        ...

    @property
    def is_over(self) -> bool:
        """No call will come, and all have ended."""
        ...

    @property
    def has_pending(self) -> bool:
        """Some have not ended."""
        ...


#: How often is looked for what has come.
_TICK_S = 0.1


class LiveEcho:
    """Writes lines of an Executor's calls as they come, on a thread of its own; up to 64 calls at once, others when they end.

    Cost: a look at what the nodes run each second, and a thread and a call to its node for each call that runs.
    """

    def __init__(self, core: EchoedCalls) -> None:
        self._core = core
        self._ends: queue.SimpleQueue[tuple[Outcome, int] | threading.Event | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """The executor has its submission. Cost: a thread, once."""
        with self._lock:
            if self._thread is None:
                self._thread = machine.Thread(target=self._run, name=f"echo-{self._core.number}", daemon=True)
                self._thread.start()

    def heard(self) -> None:
        """Calls have ended; `takes` is asked about each."""

    def takes(self, outcome: Outcome, attempt: int) -> bool:
        """Whether it writes the rest of what this call wrote, which has ended."""
        self._ends.put((outcome, attempt))
        return True

    def settle(self, timeout_s: float) -> None:
        """Waits until everything was written of calls that have ended."""
        if self._thread is not None and self._thread.is_alive():
            written = threading.Event()
            self._ends.put(written)
            written.wait(timeout_s)

    def _run(self) -> None:
        from rmgr.client.logs.lines import LineCutter
        from rmgr.client.logs.live import LiveOutput
        from rmgr.client.output import ConnectionPlace

        core, cutter = self._core, LineCutter()
        live = LiveOutput(ConnectionPlace(core.connection), core.number, admits=self._admits)
        try:
            while core.connection.is_usable and core.dead is None and not (core.is_over and self._ends.empty()):
                with contextlib.suppress(RmgrError):
                    self._look(live)
                for piece in live.pieces():
                    self._write(cutter.take(piece))
                with contextlib.suppress(queue.Empty):
                    told = self._ends.get(timeout=self._tick_s(live))
                    if isinstance(told, threading.Event):
                        told.set()
                    elif told is not None:
                        self._end(live, cutter, *told)
        finally:
            live.close()

    def _look(self, live: LiveOutput) -> None:
        live.look()

    def _admits(self, _index: int, _attempt: int) -> bool:
        """Whether the output of this call, which runs, is to be followed."""
        return True

    def _tick_s(self, _live: LiveOutput) -> float:
        return _TICK_S

    def _end(self, live: LiveOutput, cutter: LineCutter, outcome: Outcome, attempt: int) -> None:
        from rmgr.client.output import OutputEnd

        number, index = self._core.number, outcome.index
        end = OutputEnd(id=f"{number}_{index}", position=index, attempt=attempt, log=outcome.log, log_parts=outcome.log_parts)
        with contextlib.suppress(RmgrError):  # `rmgr logs` has it once the store is back
            for piece in live.ended(end):
                self._write(cutter.take(piece))
        self._write(cutter.rest(index))

    def _write(self, lines: Iterable[Line]) -> None:
        several = self._core.handle is not None and self._core.handle.view.next_index > 1
        for line in lines:
            stream = sys.stdout if line.stream == keys.STREAMS[0] else sys.stderr
            with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody reads, or there is no such stream
                stream.write(shown_on(f"{line.task_id}: {line}\n" if several else f"{line}\n", stream))
                stream.flush()


#: A call that runs this long is a long one.
_LONG_S = 1.0
#: While calls end it is looked this seldom whether others last.
_SELDOM_S = 5.0
#: Looking takes at most one part in so many of the time; but the first look loads gRPC, which on a busy machine takes seconds.
_COST, _LONGEST_S = 50, 5.0
#: While no call is left it is looked this seldom whether it is over.
_IDLE_S = 30.0


class LongEcho(LiveEcho):
    """Writes lines of calls that run for a second and more as they come; others are for `write`, once they end.

    Cost: a thread, which sleeps while calls end one after the other. It looks at what the nodes run when none has ended for a second,
    else every 5 s, and takes 2 % of the time at most where looks are quick. gRPC is loaded by the first look.
    """

    def __init__(self, core: EchoedCalls) -> None:
        super().__init__(core)
        self._before: dict[tuple[int, int], float] = {}
        self._heard_s = self._looked_s = self._due_s = -math.inf
        self._is_parked = self._looks_again = self._has_young = False
        self._seen: dict[tuple[int, int], float] = {}  #: (index, attempt) of calls that run -> since when that is known
        self._mine = threading.Lock()  #: guards these:
        self._followed: set[int] = set()
        self._ended: set[int] | None = None  #: those that end while it looks: their nodes may have said before that they run
        self._has_taken = False

    def begin(self) -> None:
        """See `LiveEcho`; again whenever calls were added."""
        if self._thread is None:
            self._heard_s = self._looked_s = machine.monotonic()
            super().begin()
        elif self._is_parked:
            self._heard_s = machine.monotonic()
            self._ends.put(None)

    def heard(self) -> None:
        """See `LiveEcho`."""
        self._heard_s = machine.monotonic()

    def takes(self, outcome: Outcome, attempt: int) -> bool:
        """See `LiveEcho`."""
        if not self._followed and self._ended is None:
            return False
        with self._mine:
            if outcome.index not in self._followed:
                if self._ended is not None:
                    self._ended.add(outcome.index)
                return False
            self._followed.discard(outcome.index)
        return super().takes(outcome, attempt)

    def settle(self, timeout_s: float) -> None:
        """See `LiveEcho`."""
        if self._has_taken:
            super().settle(timeout_s)

    def _tick_s(self, live: LiveOutput) -> float:
        if live.follows:
            return _TICK_S
        self._is_parked = not self._core.has_pending
        return _IDLE_S if self._is_parked and not self._core.has_pending else _LONG_S / 2

    def _look(self, live: LiveOutput) -> None:
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
            self._due_s = self._looked_s + max(_LONG_S / (2 if self._has_young else 1), rest_s) - _TICK_S
            self._looks_again = not is_quiet and not self._looks_again and self._has_young

    def _admits(self, index: int, attempt: int) -> bool:
        now = machine.monotonic()
        since = self._seen[index, attempt] = self._before.get((index, attempt), now)
        with self._mine:
            if index not in self._followed:
                if self._ended is None or index in self._ended:
                    return False
                if now - since < _LONG_S / 4:  # by the next look it is a long one, or over
                    self._has_young = True
                    return False
                self._followed.add(index)
                self._has_taken = True
            return True
