"""Estimates how full the queues are: an estimate of their waiting blocks, refreshed beside the commits and never before them.

Lives on the Submitter's thread. Full means: the next block would go above `max_pending_blocks` of the queue.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from rmgr.client.submission.doors import SubmitterHost
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stat
from rmgr.errors import RmgrError
from rmgr.runtime import machine

#: A measurement older than this is renewed; a full queue is looked at this often.
FRESH_S = 1.0
FULL_LOOK_S = 0.2


@dataclass(slots=True)
class _Level:
    blocks: int = 0
    measured_s: float | None = None
    asking: bool = False
    waiting: list[Callable[[], None]] = field(default_factory=list)


class Gauge:
    """Estimates how full the queues are that this Submitter feeds."""

    def __init__(self, host: SubmitterHost) -> None:
        self._host = host
        self._levels: dict[str, _Level] = {}

    def admit(self, queue: str, blocks: int, cap: int, when_known: Callable[[], None]) -> bool | None:
        """Whether `blocks` more may enter. None: not known yet, `when_known` will be called to ask again.

        True counts them in. False: full; ask again after `FULL_LOOK_S`. cap: 0 = no limit.
        """
        if cap <= 0:
            return True
        level = self._levels.setdefault(queue, _Level())
        now = machine.monotonic()
        old = level.measured_s is None or now - level.measured_s > (FRESH_S if level.blocks < cap // 2 else FULL_LOOK_S)
        if old:
            self._ask(queue, level)
            if level.measured_s is None or level.blocks >= cap // 2:
                level.waiting.append(when_known)
                return None
        if level.blocks + blocks > cap:
            return False
        level.blocks += blocks
        return True

    def admit_now(self, queue: str, blocks: int, cap: int, timeout_s: float) -> bool:
        """As `admit`, from any other thread: waits for the measurement. False also: not within the timeout."""
        if cap <= 0 or not blocks:
            return True
        answer: Future[bool] = Future()

        def ask() -> None:
            known = self.admit(queue, blocks, cap, ask)
            if known is not None:
                answer.set_result(known)

        self._host.post(ask)
        try:
            return machine.result(answer, timeout_s)
        except TimeoutError:
            return False

    def _ask(self, queue: str, level: _Level) -> None:
        if level.asking:
            return
        level.asking = True
        asked = self._host.coordinator.stat(paths.pending(queue))
        asked.add_done_callback(lambda _: self._host.post(lambda: self._measured(level, asked)))

    def _measured(self, level: _Level, asked: Future[Stat | None]) -> None:
        level.asking = False
        try:
            stat = asked.result(0)
            level.blocks = stat.children if stat else 0
        except RmgrError:
            pass  # the commit that waits for this will find out what is wrong
        level.measured_s = machine.monotonic()
        waiting, level.waiting = level.waiting, []
        for ask_again in waiting:
            ask_again()
