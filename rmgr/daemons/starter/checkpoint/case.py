"""One checkpoint of a job under way: what was asked, how far it is, and which ends of its attempt are its doing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from rmgr.checkpoint import SAVED_EXIT_CODE
from rmgr.daemons.starter.checkpoint.way import CheckpointKind, CheckpointPhase
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.staging.outputs import Ending
from rmgr.model.base.states import Reason
from rmgr.model.tasks.placing import Rigid


@dataclass(slots=True, kw_only=True, eq=False)
class OpenCheckpoint:
    """One checkpoint under way. kills: none, the attempt ends now. ending: of the attempt, once it has; tell: what it would end as then.

    goes_on: a job that has not saved its state in its grace is not ended. by_policy: a policy moves it. is_telling: its processes are being
    told. answered: the program has said that it has saved.
    """

    block: ClaimedBlock
    number: int
    is_stop: bool = False
    kills: bool = False
    why: str
    grace_us: int
    goes_on: bool = False
    by_policy: bool = False
    is_telling: bool = False
    answered: bool = False
    made_us: int  #: the same however often it is written: a row never changes
    orders: list[str] = field(default_factory=list)
    phase: CheckpointPhase = CheckpointPhase.BEGUN
    end_s: float = -math.inf
    copies: int = 0
    ending: Ending | None = None
    tell: Callable[[], None] | None = None

    @property
    def is_over(self) -> bool:
        """Nobody waits for it any more."""
        return self.phase is CheckpointPhase.OVER

    @property
    def kind(self) -> CheckpointKind:
        """What becomes of the job."""
        if not self.is_stop:
            return CheckpointKind.GO_ON
        if self.kills:
            return CheckpointKind.PREEMPT
        return CheckpointKind.POLICY if self.goes_on else CheckpointKind.STOP

    @property
    def reason(self) -> Reason:
        """Of the attempt that it ends."""
        return Reason.PREEMPTED if self.kills else Reason.MIGRATED


def rigid_of(block: ClaimedBlock) -> Rigid:
    """What its job asks for."""
    found: Rigid | None = block.info.record.rigid
    return found or Rigid()


def was_stopped(case: OpenCheckpoint, ending: Ending) -> bool:
    """The end of an attempt is that of one that was asked to stop, or was stopped."""
    if ending.reason in {Reason.MIGRATED, Reason.PREEMPTED}:
        return True
    if case.phase not in {CheckpointPhase.ASKED, CheckpointPhase.WITHDRAWING, CheckpointPhase.ENDING}:
        return False
    return says_saved(ending)


def says_saved(ending: Ending) -> bool:
    """The program has ended with the code for "saved, run me again"."""
    if ending.reason is Reason.EXCEPTION:
        return ending.error.startswith(f"SystemExit: {SAVED_EXIT_CODE}")
    return ending.reason is Reason.EXIT_CODE and ending.exit_code == SAVED_EXIT_CODE
