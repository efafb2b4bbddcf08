"""Asks the program of a job to save its state, and waits for its answer as long as its grace lasts.

    asked -> answered                         it has saved its state: that is stored (of a job that is to stop: once it has ended)
    asked -> silent -> what lies there        of a job that goes on: its files are stored as they are
    asked -> silent -> ended                  of one that is to stop, where a person wants it so
    asked -> silent -> withdrawn -> goes on   of one that a policy would move: nothing is lost, it is told that it need not stop any more

Each step stands in the block (`saving`, `stopping`, `story`), for people and for whoever leads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from rmgr.coord.protocol import paths
from rmgr.daemons.starter.checkpoint.ask import answered
from rmgr.daemons.starter.checkpoint.case import OpenCheckpoint
from rmgr.daemons.starter.checkpoint.parts import JobDirectory, SaveRequest, each, sentence
from rmgr.daemons.starter.checkpoint.way import CheckpointEvent, CheckpointPhase
from rmgr.model.base.units import format_duration, utc
from rmgr.runtime import machine
from rmgr.runtime.logger import Log

if TYPE_CHECKING:
    from rmgr.daemons.starter.checkpoint.doors import AskedCheckpoints, JobParts
    from rmgr.daemons.starter.checkpoint.notes import Notes

#: How often an answer is looked for, and processes that were not told yet.
_LOOK_S, _AGAIN_S = 0.1, 1.0
#: Between SIGTERM and SIGKILL of a job that has not ended by itself.
KILL_US = 2_000_000


class Asking:
    """Asks all jobs of one node for checkpoints, in the loop of its owner. What follows stands in `way.py`."""

    def __init__(
        self, owner: AskedCheckpoints, parts: JobParts, notes: Notes, after: Callable[[float, Callable[[], None]], object], log: Log
    ) -> None:
        self._owner = owner
        self._parts = parts
        self._notes = notes
        self._after = after
        self._log = log

    def begin(self, case: OpenCheckpoint) -> None:
        """Asks the program, again and again while it has not answered: it may have begun to listen only now."""
        block = case.block
        case.end_s = machine.monotonic() + case.grace_us / 1e6
        now_us = machine.wall_us()
        asked = SaveRequest(number=case.number, stop=case.is_stop, deadline_us=now_us + case.grace_us)
        lane, parts = self._owner.lane_of(block), self._parts.parts(block, lambda: case.is_over)
        if lane is not None:
            part = self._parts.own_part(block)
            part.marker, part.spare = lane.slot.marker, (lane.slot.pid,)
        saving = f"asked at {utc(now_us)} ({case.why or 'stop'}), has until {utc(asked.deadline_us)}"
        self._notes.tell(block, "", stopping=(case.why or "stop") if case.is_stop else None, saving=saving)
        if case.is_stop:
            self._owner.let_go(block, case.grace_us + KILL_US)
        if case.is_stop and lane is not None:  # a job that stands still could not answer
            lane.worker.resume() if lane.worker is not None else lane.slot.resume(lane.running_seq)
        self._tell(case, parts, asked)
        self._after(_LOOK_S, partial(self._look, case))

    def _tell(self, case: OpenCheckpoint, parts: list[JobDirectory], asked: SaveRequest) -> None:
        if case.is_over or case.phase is not CheckpointPhase.ASKED:  # its slot may be another job's by now
            return

        def told(result: object) -> None:
            case.is_telling = False
            if case.is_over:
                return
            if isinstance(result, Exception):
                self._log.warning("checkpoint_not_asked", block=paths.block_name(case.block.key), error=sentence(result))
            if case.phase is CheckpointPhase.WITHDRAWING:
                self._tell_withdrawn(case)
            elif case.phase is CheckpointPhase.ASKED:
                self._after(_AGAIN_S, partial(self._tell, case, parts, asked))

        case.is_telling = True
        self._parts.background(lambda: each(parts, lambda part: part.ask(asked)), told)

    def _look(self, case: OpenCheckpoint) -> None:
        if case.is_over or case.phase is not CheckpointPhase.ASKED:
            return
        if not case.answered and self._has_answered(case):
            case.answered = True
            self._owner.happened(case, CheckpointEvent.ANSWERED)
        if machine.monotonic() >= case.end_s:
            self._owner.happened(case, CheckpointEvent.LATE if case.answered else CheckpointEvent.SILENT)
        elif case.phase is CheckpointPhase.ASKED:
            self._after(_LOOK_S, partial(self._look, case))

    def _has_answered(self, case: OpenCheckpoint) -> bool:
        return answered(self._parts.own_part(case.block).directory, case.block.info.account) >= case.number

    def withdraw(self, case: OpenCheckpoint) -> None:
        """The program is told that it need not stop any more, behind a request that is on its way to it."""
        if not case.is_telling:
            self._tell_withdrawn(case)

    def _tell_withdrawn(self, case: OpenCheckpoint) -> None:
        """A program that saves its state only now goes on behind it: the last request of all does not ask it to stop."""
        grace_s = case.grace_us / 1e6
        case.number = self._owner.next_number(case.block)
        parts = self._parts.parts(case.block, lambda: case.is_over)
        asked = SaveRequest(number=case.number, stop=False, deadline_us=machine.wall_us())

        def told(result: object) -> None:
            if isinstance(result, Exception) and case.phase is CheckpointPhase.WITHDRAWING:
                self._log.warning("checkpoint_not_withdrawn", block=paths.block_name(case.block.key), error=sentence(result))
            self._owner.happened(case, CheckpointEvent.WITHDRAWN, f"it has not saved its state within {format_duration(grace_s)}")

        self._parts.background(lambda: each(parts, lambda part: part.ask(asked)), told)
