"""Decides each step of a checkpoint: from its phase, its kind and what has happened to the next phase and what is to be done. Pure.

    go-on      MEASURING -> ASKED -> COPYING -> OVER        it is copied when it has answered, else at the end of its grace
    stop       MEASURING -> ASKED -> ENDING -> COPYING -> LEAVING       it ends (85), or is ended after its grace; STOP: the job waits again
    policy     MEASURING -> ASKED -> WITHDRAWING -> OVER    the same, but one that does not answer in its grace goes on
    preempt    ENDING -> COPYING -> LEAVING                 nothing is asked or stored; the same, but asked, with restart = start

`Checkpoints.happened` (`checkpoint.py`) runs the table and carries the effects out. What is not in the table came too late: it changes
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product
from typing import NamedTuple

from rmgr.checkpoint import SAVED_EXIT_CODE
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.staging.outputs import Ending
from rmgr.model.base.states import Reason
from rmgr.model.tasks.submission import Rigid


class CheckpointPhase(StrEnum):
    """Phase of a checkpoint."""

    BEGUN = "begun"
    MEASURING = "measuring"
    ASKED = "asked"
    WITHDRAWING = "withdrawing"  #: its grace is over, and the job goes on: it is told so
    ENDING = "ending"
    COPYING = "copying"
    LEAVING = "leaving"  #: its STOP is on its way
    OVER = "over"


class CheckpointKind(StrEnum):
    """Fate of the job."""

    GO_ON = "go-on"
    STOP = "stop"
    POLICY = "policy"  #: it stops if it has saved its state in its grace, and goes on if not
    PREEMPT = "preempt"  #: it ends now, whatever it does


class CheckpointEvent(StrEnum):
    """Events on the way of a checkpoint."""

    SAVES = "saves"  #: it is begun, of a job that can begin from what it has saved
    FROM_START = "from-start"  #: of a job that always begins from the start
    RUNS_ONCE = "runs-once"  #: of a job that may not be run again
    FITS = "fits"  #: what lies in its directories may be stored
    UNFIT = "unfit"
    ANSWERED = "answered"  #: the program has saved its state
    SILENT = "silent"  #: its grace is over, and it has not
    LATE = "late"  #: its grace is over: it has answered and has not ended
    WITHDRAWN = "withdrawn"  #: the program was told that it need not stop
    KILL = "kill"  #: another order wants the attempt to end now
    REPLACED = "replaced"  #: another checkpoint takes its place
    ENDED = "ended"  #: the attempt, as one that was stopped, or that says so itself
    COPIED = "copied"
    CHANGED = "changed"  #: files changed while they were copied
    STORE_AWAY = "store-away"
    NOT_STORED = "not-stored"
    CANCELLED = "cancelled"  #: the job, while what it saved was copied
    NODE_LOST = "node-lost"
    FORGOTTEN = "forgotten"  #: the block is over, or not the node's own any more


class CheckpointEffect(StrEnum):
    """Actions that follow an event."""

    NOTHING = "nothing"
    MEASURE = "measure"
    ASK = "ask"
    WITHDRAW = "withdraw"
    PREEMPT = "preempt"  #: ends the attempt, and says so
    END = "end"
    END_SILENT = "end-silent"  #: ends one that has not ended by itself
    COPY = "copy"
    COPY_SOON = "copy-soon"
    TELL = "tell"
    LEAVE = "leave"
    LEAVE_UNSTORED = "leave-unstored"
    REFUSE = "refuse"
    REFUSE_SILENT = "refuse-silent"  #: the same, of a program that did not answer
    TELL_CANCELLED = "tell-cancelled"
    TELL_LOST = "tell-lost"


class CheckpointStep(NamedTuple):
    """The next phase, and what is to be done."""

    phase: CheckpointPhase
    effect: CheckpointEffect


_P, _K, _E, _F = CheckpointPhase, CheckpointKind, CheckpointEvent, CheckpointEffect


_STOPS = (_K.STOP, _K.POLICY, _K.PREEMPT)


_ASKS = (_K.GO_ON, _K.STOP, _K.POLICY)


_Key = tuple[CheckpointPhase, CheckpointEvent, CheckpointKind]


def _edges(
    phases: CheckpointPhase | Iterable[CheckpointPhase],
    event: CheckpointEvent,
    kinds: Iterable[CheckpointKind],
    phase: CheckpointPhase,
    effect: CheckpointEffect,
) -> dict[_Key, CheckpointStep]:
    former = (phases,) if isinstance(phases, CheckpointPhase) else phases
    return {(old, event, kind): CheckpointStep(phase, effect) for old, kind in product(former, kinds)}


#: (phase, event, kind) -> step.
STEPS: dict[_Key, CheckpointStep] = (
    # A job that may run only once cannot be sent back to its queue; it can save its state and go on.
    _edges(_P.BEGUN, _E.RUNS_ONCE, _STOPS, _P.OVER, _F.REFUSE)
    # Whoever preempts does not wait for an answer.
    | _edges(_P.BEGUN, _E.SAVES, (_K.PREEMPT,), _P.ENDING, _F.PREEMPT)
    | _edges(_P.BEGUN, _E.FROM_START, (_K.PREEMPT,), _P.ENDING, _F.PREEMPT)
    # Nothing of it is stored, so nothing is measured: it is asked only so that it may end in order.
    | _edges(_P.BEGUN, _E.FROM_START, (_K.STOP,), _P.ASKED, _F.ASK)
    # A checkpoint of such a job is nothing; and a policy would move it for the price of all that it has done.
    | _edges(_P.BEGUN, _E.FROM_START, (_K.GO_ON, _K.POLICY), _P.OVER, _F.REFUSE)
    # What cannot be stored is better known before the program is disturbed.
    | _edges(_P.BEGUN, _E.SAVES, _ASKS, _P.MEASURING, _F.MEASURE)
    | _edges(_P.MEASURING, _E.FITS, _ASKS, _P.ASKED, _F.ASK)
    | _edges(_P.MEASURING, _E.UNFIT, _ASKS, _P.OVER, _F.REFUSE)
    # It goes on while its files are copied; what it writes meanwhile is seen by the copy (CHANGED).
    | _edges(_P.ASKED, _E.ANSWERED, (_K.GO_ON,), _P.COPYING, _F.COPY)
    # A job without an answer may have saved by itself before: its files are stored as they are.
    | _edges(_P.ASKED, _E.SILENT, (_K.GO_ON,), _P.COPYING, _F.COPY)
    # It has saved its state, and is to end by itself: that is awaited until its grace is over.
    | _edges(_P.ASKED, _E.ANSWERED, (_K.STOP, _K.POLICY), _P.ASKED, _F.NOTHING)
    | _edges(_P.ASKED, _E.SILENT, (_K.STOP,), _P.ENDING, _F.END_SILENT)
    | _edges(_P.ASKED, _E.LATE, (_K.STOP, _K.POLICY), _P.ENDING, _F.END_SILENT)
    # What a policy would move loses nothing: one that did not answer is told that it need not stop any more.
    | _edges(_P.ASKED, _E.SILENT, (_K.POLICY,), _P.WITHDRAWING, _F.WITHDRAW)
    | _edges(_P.WITHDRAWING, _E.WITHDRAWN, (_K.POLICY,), _P.OVER, _F.REFUSE_SILENT)
    # It is of kind PREEMPT from then on. An attempt that has ended cannot be ended: it leaves as it was going to (COPYING).
    | _edges((_P.MEASURING, _P.ASKED, _P.WITHDRAWING, _P.ENDING), _E.KILL, (_K.PREEMPT,), _P.ENDING, _F.END)
    # A stop does not wait for what goes on: it has the orders of both.
    | _edges((_P.MEASURING, _P.ASKED, _P.COPYING), _E.REPLACED, (_K.GO_ON,), _P.OVER, _F.NOTHING)
    # Nobody asked it to stop: it was asked to save, and has ended with the code for "run me again".
    | _edges(_P.BEGUN, _E.ENDED, (_K.STOP,), _P.COPYING, _F.COPY)
    # Of one that is measured: as the answer to a request before this one.
    | _edges((_P.MEASURING, _P.ASKED), _E.ENDED, (_K.STOP, _K.POLICY), _P.COPYING, _F.COPY)
    | _edges(_P.WITHDRAWING, _E.ENDED, (_K.POLICY,), _P.COPYING, _F.COPY)
    | _edges(_P.ENDING, _E.ENDED, _STOPS, _P.COPYING, _F.COPY)
    | _edges(_P.COPYING, _E.COPIED, (_K.GO_ON,), _P.OVER, _F.TELL)
    | _edges(_P.COPYING, _E.COPIED, _STOPS, _P.LEAVING, _F.LEAVE)
    # Of a job that goes on files change: it is copied again. The files of one that has ended do not.
    | _edges(_P.COPYING, _E.CHANGED, (_K.GO_ON,), _P.COPYING, _F.COPY_SOON)
    | _edges(_P.COPYING, _E.CHANGED, _STOPS, _P.LEAVING, _F.LEAVE_UNSTORED)
    # The work is done, and lies here: it waits for the store. A job that goes on will be asked another time.
    | _edges(_P.COPYING, _E.STORE_AWAY, _STOPS, _P.COPYING, _F.COPY_SOON)
    | _edges(_P.COPYING, _E.STORE_AWAY, (_K.GO_ON,), _P.OVER, _F.REFUSE)
    | _edges(_P.COPYING, _E.NOT_STORED, (_K.GO_ON,), _P.OVER, _F.REFUSE)
    # It has ended: it waits again, from the checkpoint that it had before.
    | _edges(_P.COPYING, _E.NOT_STORED, _STOPS, _P.LEAVING, _F.LEAVE_UNSTORED)
    # A cancel that comes before STOP is committed wins; so does the loss of a node, whose files are gone.
    | _edges(_P.COPYING, _E.CANCELLED, _STOPS, _P.OVER, _F.TELL_CANCELLED)
    | _edges(_P.COPYING, _E.NODE_LOST, _STOPS, _P.OVER, _F.TELL_LOST)
    | _edges([phase for phase in _P if phase is not _P.OVER], _E.FORGOTTEN, _K, _P.OVER, _F.NOTHING)
)


def next_step(phase: CheckpointPhase, event: CheckpointEvent, kind: CheckpointKind) -> CheckpointStep | None:
    """What follows. None: it came too late, or concerns another phase; nothing changes. Cost: O(1)."""
    return STEPS.get((phase, event, kind))


# -- one under way ---------------------------------------------------------------------------------------------------------
# One checkpoint of a job under way: what was asked, how far it is, and which ends of its attempt are its doing.


@dataclass(slots=True, kw_only=True, eq=False)
class OpenCheckpoint:
    """One checkpoint under way. ending: of the attempt, once it has ended; tell: what it would end as then.

    by_policy: a policy moves it. is_telling: its processes are being told. answered: the program has said that it has saved.
    is_waiting: its files wait for the data store, and people were told.
    """

    block: ClaimedBlock
    number: int
    kind: CheckpointKind = CheckpointKind.GO_ON
    why: str
    grace_us: int
    by_policy: bool = False
    is_telling: bool = False
    answered: bool = False
    is_waiting: bool = False
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
    def is_asked(self) -> bool:
        """Its program has not answered yet, and its grace is not over."""
        return self.phase is CheckpointPhase.ASKED

    @property
    def is_stop(self) -> bool:
        """The job is to stop, if it can."""
        return self.kind is not CheckpointKind.GO_ON

    @property
    def kills(self) -> bool:
        """The attempt ends now, and nothing of it is stored."""
        return self.kind is CheckpointKind.PREEMPT

    @property
    def reason(self) -> Reason:
        """Of the attempt that it ends."""
        return Reason.PREEMPTED if self.kills else Reason.MIGRATED


def kind_of(order: Mapping[str, str]) -> CheckpointKind:
    """What an order asks for, by its `extra`."""
    if order.get("then") != "stop":
        return CheckpointKind.GO_ON
    if order.get("kill") == "1":
        return CheckpointKind.PREEMPT
    return CheckpointKind.POLICY if order.get("unsaved") == "go-on" else CheckpointKind.STOP


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
