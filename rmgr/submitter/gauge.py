"""Estimates how full the queues are: their waiting blocks, measured beside the commits and never before them.

Lives on the Submitter's thread. Full means: the next block would go above `max_pending_blocks` of the queue.
"""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stat
from rmgr.coord.protocol.ports import Coordinator
from rmgr.errors import RmgrError
from rmgr.runtime import machine
from rmgr.runtime.story import Stories, Story, StoryLoop

#: A measurement older than this is renewed; a full queue is looked at this often.
FRESH_S = 1.0
FULL_LOOK_S = 0.2


@dataclass(slots=True)
class _Level:
    blocks: int = 0
    measured_s: float | None = None
    measuring: Future[Stat | None] | None = None


class Gauge:
    """Estimates how full the queues are that this Submitter feeds."""

    def __init__(self, loop: StoryLoop, coordinator: Coordinator) -> None:
        self._loop = loop
        self._coordinator = coordinator
        self._stories = Stories(loop)
        self._levels: dict[str, _Level] = {}

    def admit(self, queue: str, blocks: int, cap: int) -> Story[bool]:
        """Whether `blocks` more may enter; then they are counted in. False: ask again after `FULL_LOOK_S`. cap: 0 = no limit."""
        if cap <= 0 or not blocks:
            return True
        level = self._levels.setdefault(queue, _Level())
        known_s = level.measured_s
        if known_s is None or machine.monotonic() - known_s > (FRESH_S if level.blocks < cap // 2 else FULL_LOOK_S):
            if (measuring := level.measuring) is None:
                measuring = level.measuring = self._coordinator.stat(paths.pending(queue))
                self._stories.begin(self._measure(level, measuring))
            if known_s is None or level.blocks >= cap // 2:
                with suppress(RmgrError):  # the commit that waits for this finds out what is wrong
                    yield measuring
        if level.blocks + blocks > cap:
            return False
        level.blocks += blocks
        return True

    def admit_now(self, queue: str, blocks: int, cap: int, timeout_s: float) -> bool:
        """As `admit`, from any other thread: waits for the measurement. False also: not within the timeout."""
        if cap <= 0 or not blocks:
            return True
        answer: Future[bool] = Future()

        def ask() -> Story[None]:
            answer.set_result((yield from self.admit(queue, blocks, cap)))

        self._loop.post(lambda: self._stories.begin(ask()))
        try:
            return machine.result(answer, timeout_s)
        except TimeoutError:
            return False

    def _measure(self, level: _Level, asked: Future[Stat | None]) -> Story[None]:
        with suppress(RmgrError):  # as above
            stat = yield asked
            level.blocks = stat.children if stat else 0
        level.measuring, level.measured_s = None, machine.monotonic()
