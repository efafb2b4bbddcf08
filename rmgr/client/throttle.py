"""A cap on slots in flight: tasks wait here and go out in serial blocks, never more of them at once than the cap.

A serial block runs one task after another in one slot and is never taken in part, so blocks in flight are slots in
flight. A block holds about `BLOCK_S` of work, as measured, and never more than its share of what waits.
Lives on the Submitter's thread and the callers'; `lock` guards it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rmgr.client.futures import Future
from rmgr.client.ports import TaskSpec
from rmgr.errors import RmgrError
from rmgr.model.tasks.block import MAX_TASKS
from rmgr.model.tasks.outcome import Outcome

#: Work of one block (s): at most so much, so that no task waits long behind others. At least so much even when little is left,
#: because between two blocks a slot waits for commits.
BLOCK_S, LEAST_S = 0.1, 0.02
#: What a task costs beside its own time.
_TASK_US = 30.0
_MAX_BYTES = 1024 * 1024


@dataclass(slots=True, eq=False)
class OutgoingTask:
    """A task on its way out. row: where its arguments are stored, when they are large."""

    spec: TaskSpec
    payload: bytes
    row: str
    future: Future


class TaskSink(Protocol):
    """Takes the tasks that may go out."""

    def add_for(
        self, spec: TaskSpec, payloads: Sequence[bytes], futures: list[Future], *, solid: bool = False, row: str = ""
    ) -> int:  # fmt: skip
        """Adds tasks for these futures. Returns the first index."""
        ...


class Throttle:
    """Holds tasks of one submission back until one of `cap` places is free."""

    def __init__(self, tasks: TaskSink, cap: int) -> None:
        self.cap = cap
        self._tasks = tasks
        self._lock = threading.RLock()
        self._waiting: deque[OutgoingTask] = deque()
        self._left: dict[int, list[int]] = {}  #: index -> [tasks of its block that have not ended]
        self._flying = 0
        self._mean_us: float | None = None

    def add(self, calls: Iterable[OutgoingTask]) -> None:
        """They go out as soon as there is room."""
        with self._lock:
            self._waiting.extend(calls)
            self._send()

    def ended(self, outcomes: Sequence[Outcome]) -> None:
        """These tasks are final."""
        with self._lock:
            for outcome in outcomes:
                if outcome.elapsed_us:
                    mean = self._mean_us
                    self._mean_us = outcome.elapsed_us if mean is None else 0.9 * mean + 0.1 * outcome.elapsed_us
                left = self._left.pop(outcome.index, None)
                if left is not None:
                    left[0] -= 1
                    if not left[0]:
                        self._flying -= 1
            self._send()

    def take_back(self, futures: set[Future] | None = None) -> list[Future]:
        """Those that wait (all, or these) will not go out. Returns them."""
        with self._lock:
            taken = [call.future for call in self._waiting if futures is None or call.future in futures]
            gone = set(taken)
            self._waiting = deque(call for call in self._waiting if call.future not in gone)
        return taken

    def waiting(self) -> list[Future]:
        """Futures of what waits here."""
        with self._lock:
            return [call.future for call in self._waiting]

    @property
    def is_empty(self) -> bool:
        """Nothing waits here."""
        return not self._waiting

    def _send(self) -> None:
        while self._waiting and self._flying < self.cap:
            block = self._next_block()
            futures = [call.future for call in block]
            self._flying += 1
            try:
                first = self._tasks.add_for(
                    block[0].spec, [call.payload for call in block], futures, solid=len(block) > 1, row=block[0].row
                )
            except RmgrError as error:
                self._flying -= 1
                for future in futures:
                    future.break_off(error)
                continue
            left = [len(block)]
            for index in range(first, first + len(block)):
                self._left[index] = left

    def _next_block(self) -> list[OutgoingTask]:
        waiting, size = self._waiting, self._size()
        block = [waiting.popleft()]
        spec, room = block[0].spec, _MAX_BYTES - len(block[0].payload)
        while waiting and len(block) < size and waiting[0].spec == spec and not (block[0].row or waiting[0].row):
            room -= len(waiting[0].payload)
            if room < 0:
                break
            block.append(waiting.popleft())
        return block

    def _size(self) -> int:
        """Tasks of the next block: one until it is known how long they take."""
        if self._mean_us is None:
            return 1
        each_us = self._mean_us + _TASK_US
        share = -(-len(self._waiting) // (2 * self.cap))
        return max(1, min(MAX_TASKS, max(share, int(LEAST_S * 1e6 / each_us)), int(BLOCK_S * 1e6 / each_us)))
