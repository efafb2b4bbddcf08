"""The way of a checkpoint as a table: from its phase, its kind and an event to its next phase and the action to take. Pure.

    go-on      MEASURING -> ASKED -> COPYING -> OVER        it is copied when it has answered, else at the end of its grace
    stop       MEASURING -> ASKED -> ENDING -> COPYING -> LEAVING       it ends (85), or is ended after its grace; STOP: the job waits again
    policy     MEASURING -> ASKED -> WITHDRAWING -> OVER    the same, but a job that does not answer in its grace goes on
    preempt    ENDING -> COPYING -> LEAVING                 nothing is asked or stored

A stop of a job with restart = start begins with ASKED: it is asked, so that it can end in order, but nothing is measured or stored.

`Checkpoints.happened` (`checkpoint.py`) runs the table and carries out the effects. An event that is not in the table came too late and
changes nothing.
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
    WITHDRAWING = "withdrawing"  #: its grace is over and the job goes on: the program is being told
    ENDING = "ending"
    COPYING = "copying"
    LEAVING = "leaving"  #: its STOP is being committed
    OVER = "over"


class CheckpointKind(StrEnum):
    """What becomes of the job."""

    GO_ON = "go-on"
    STOP = "stop"
    POLICY = "policy"  #: it stops if it saves its state within its grace, else it goes on
    PREEMPT = "preempt"  #: it ends at once


class CheckpointEvent(StrEnum):
    """Events on the way of a checkpoint."""

    SAVES = "saves"  #: begun for a job that can start from its saved state
    FROM_START = "from-start"  #: begun for a job that always starts from the beginning
    RUNS_ONCE = "runs-once"  #: begun for a job that may not run again
    FITS = "fits"  #: its files are small enough to be stored
    UNFIT = "unfit"
    ANSWERED = "answered"  #: the program has saved its state
    SILENT = "silent"  #: its grace is over without an answer
    LATE = "late"  #: its grace is over: it has answered, but not ended
    WITHDRAWN = "withdrawn"  #: the program was told that it need not stop
    KILL = "kill"  #: another order requires the attempt to end now
    REPLACED = "replaced"  #: another checkpoint takes its place
    ENDED = "ended"  #: the attempt ended because it was stopped, or with the code for "saved"
    COPIED = "copied"
    CHANGED = "changed"  #: files changed while they were copied
    STORE_AWAY = "store-away"
    NOT_STORED = "not-stored"
    CANCELLED = "cancelled"  #: the job was cancelled while its files were copied
    NODE_LOST = "node-lost"
    FORGOTTEN = "forgotten"  #: the block is over, or no longer the node's own


class CheckpointEffect(StrEnum):
    """Actions that follow an event."""

    NOTHING = "nothing"
    MEASURE = "measure"
    ASK = "ask"
    WITHDRAW = "withdraw"
    PREEMPT = "preempt"  #: ends the attempt, and notes why
    END = "end"
    END_SILENT = "end-silent"  #: ends a program that has not ended by itself
    COPY = "copy"
    COPY_SOON = "copy-soon"
    TELL = "tell"
    LEAVE = "leave"
    LEAVE_UNSTORED = "leave-unstored"
    REFUSE = "refuse"
    REFUSE_SILENT = "refuse-silent"  #: the same for a program that did not answer
    TELL_CANCELLED = "tell-cancelled"
    TELL_LOST = "tell-lost"


class CheckpointStep(NamedTuple):
    """The next phase, and the action to take."""

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
    # A job that may run only once cannot go back to its queue; it can save its state and go on.
    _edges(_P.BEGUN, _E.RUNS_ONCE, _STOPS, _P.OVER, _F.REFUSE)
    # A preemption does not wait for an answer.
    | _edges(_P.BEGUN, _E.SAVES, (_K.PREEMPT,), _P.ENDING, _F.PREEMPT)
    | _edges(_P.BEGUN, _E.FROM_START, (_K.PREEMPT,), _P.ENDING, _F.PREEMPT)
    # Nothing of it is stored, so nothing is measured: it is asked only so that it can end in order.
    | _edges(_P.BEGUN, _E.FROM_START, (_K.STOP,), _P.ASKED, _F.ASK)
    # A checkpoint of this job would be useless, and a policy would move it at the price of all its work.
    | _edges(_P.BEGUN, _E.FROM_START, (_K.GO_ON, _K.POLICY), _P.OVER, _F.REFUSE)
    # It is better known before the program is disturbed that its files cannot be stored.
    | _edges(_P.BEGUN, _E.SAVES, _ASKS, _P.MEASURING, _F.MEASURE)
    | _edges(_P.MEASURING, _E.FITS, _ASKS, _P.ASKED, _F.ASK)
    | _edges(_P.MEASURING, _E.UNFIT, _ASKS, _P.OVER, _F.REFUSE)
    # It goes on while its files are copied; the copy notices if they change (CHANGED).
    | _edges(_P.ASKED, _E.ANSWERED, (_K.GO_ON,), _P.COPYING, _F.COPY)
    # A job without an answer may have saved its state earlier: its files are stored as they are.
    | _edges(_P.ASKED, _E.SILENT, (_K.GO_ON,), _P.COPYING, _F.COPY)
    # It has saved its state and should end by itself, within its grace.
    | _edges(_P.ASKED, _E.ANSWERED, (_K.STOP, _K.POLICY), _P.ASKED, _F.NOTHING)
    | _edges(_P.ASKED, _E.SILENT, (_K.STOP,), _P.ENDING, _F.END_SILENT)
    | _edges(_P.ASKED, _E.LATE, (_K.STOP, _K.POLICY), _P.ENDING, _F.END_SILENT)
    # A policy must not cost work: a program that did not answer is told that it need not stop any more.
    | _edges(_P.ASKED, _E.SILENT, (_K.POLICY,), _P.WITHDRAWING, _F.WITHDRAW)
    | _edges(_P.WITHDRAWING, _E.WITHDRAWN, (_K.POLICY,), _P.OVER, _F.REFUSE_SILENT)
    # Its kind is PREEMPT from now on. An attempt that has ended cannot be ended: it leaves as planned (COPYING).
    | _edges((_P.MEASURING, _P.ASKED, _P.WITHDRAWING, _P.ENDING), _E.KILL, (_K.PREEMPT,), _P.ENDING, _F.END)
    # A stop does not wait for a checkpoint of kind GO_ON: it takes over its orders.
    | _edges((_P.MEASURING, _P.ASKED, _P.COPYING), _E.REPLACED, (_K.GO_ON,), _P.OVER, _F.NOTHING)
    # It was not asked to stop, only to save, and has ended with the code for "run me again".
    | _edges(_P.BEGUN, _E.ENDED, (_K.STOP,), _P.COPYING, _F.COPY)
    # During measuring, the end is the answer to an earlier request.
    | _edges((_P.MEASURING, _P.ASKED), _E.ENDED, (_K.STOP, _K.POLICY), _P.COPYING, _F.COPY)
    | _edges(_P.WITHDRAWING, _E.ENDED, (_K.POLICY,), _P.COPYING, _F.COPY)
    | _edges(_P.ENDING, _E.ENDED, _STOPS, _P.COPYING, _F.COPY)
    | _edges(_P.COPYING, _E.COPIED, (_K.GO_ON,), _P.OVER, _F.TELL)
    | _edges(_P.COPYING, _E.COPIED, _STOPS, _P.LEAVING, _F.LEAVE)
    # A running job may change its files: copied again. The files of an ended one do not change.
    | _edges(_P.COPYING, _E.CHANGED, (_K.GO_ON,), _P.COPYING, _F.COPY_SOON)
    | _edges(_P.COPYING, _E.CHANGED, _STOPS, _P.LEAVING, _F.LEAVE_UNSTORED)
    # The work is saved here and waits for the store. A job that goes on will be asked another time.
    | _edges(_P.COPYING, _E.STORE_AWAY, _STOPS, _P.COPYING, _F.COPY_SOON)
    | _edges(_P.COPYING, _E.STORE_AWAY, (_K.GO_ON,), _P.OVER, _F.REFUSE)
    | _edges(_P.COPYING, _E.NOT_STORED, (_K.GO_ON,), _P.OVER, _F.REFUSE)
    # It has ended: it waits again, with its previous checkpoint.
    | _edges(_P.COPYING, _E.NOT_STORED, _STOPS, _P.LEAVING, _F.LEAVE_UNSTORED)
    # A cancel that comes before STOP is committed wins; so does the loss of a node, whose files are gone.
    | _edges(_P.COPYING, _E.CANCELLED, _STOPS, _P.OVER, _F.TELL_CANCELLED)
    | _edges(_P.COPYING, _E.NODE_LOST, _STOPS, _P.OVER, _F.TELL_LOST)
    | _edges([phase for phase in _P if phase is not _P.OVER], _E.FORGOTTEN, _K, _P.OVER, _F.NOTHING)
)


def next_step(phase: CheckpointPhase, event: CheckpointEvent, kind: CheckpointKind) -> CheckpointStep | None:
    """Returns the next step; None if the event came too late, or concerns another phase, and nothing changes. Cost: O(1)."""
    return STEPS.get((phase, event, kind))


# -- a checkpoint under way ------------------------------------------------------------------------------------------------
# A checkpoint under way: what was asked, how far it is, and which ends of its attempt it causes.


@dataclass(slots=True, kw_only=True, eq=False)
class OpenCheckpoint:
    """A checkpoint under way. ending: of the attempt, once it has ended; tell: reports that end.

    by_policy: a policy moves the job. is_telling: its processes are being told. answered: the program has reported that it saved.
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
    made_us: int  #: always the same, since a stored row never changes
    orders: list[str] = field(default_factory=list)
    phase: CheckpointPhase = CheckpointPhase.BEGUN
    end_s: float = -math.inf
    copies: int = 0
    ending: Ending | None = None
    tell: Callable[[], None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether it is over."""
        return self.phase is CheckpointPhase.OVER

    @property
    def is_asked(self) -> bool:
        """Whether its program has not answered yet, within its grace."""
        return self.phase is CheckpointPhase.ASKED

    @property
    def is_stop(self) -> bool:
        """Whether the job is to stop, if it can."""
        return self.kind is not CheckpointKind.GO_ON

    @property
    def kills(self) -> bool:
        """Whether the attempt ends now, without anything being stored."""
        return self.kind is CheckpointKind.PREEMPT

    @property
    def reason(self) -> Reason:
        """Reason of the attempt's end."""
        return Reason.PREEMPTED if self.kills else Reason.MIGRATED


def kind_of(order: Mapping[str, str]) -> CheckpointKind:
    """Returns the kind that an order asks for in its `extra`."""
    if order.get("then") != "stop":
        return CheckpointKind.GO_ON
    if order.get("kill") == "1":
        return CheckpointKind.PREEMPT
    return CheckpointKind.POLICY if order.get("unsaved") == "go-on" else CheckpointKind.STOP


def rigid_of(block: ClaimedBlock) -> Rigid:
    """Returns its job's request."""
    found: Rigid | None = block.info.record.rigid
    return found or Rigid()


def was_stopped(case: OpenCheckpoint, ending: Ending) -> bool:
    """Returns whether an attempt ended because it was asked to stop, or was stopped."""
    if ending.reason in {Reason.MIGRATED, Reason.PREEMPTED}:
        return True
    if case.phase not in {CheckpointPhase.ASKED, CheckpointPhase.WITHDRAWING, CheckpointPhase.ENDING}:
        return False
    return says_saved(ending)


def says_saved(ending: Ending) -> bool:
    """Returns whether the program ended with the code for "saved, run me again"."""
    if ending.reason is Reason.EXCEPTION:
        return ending.error.startswith(f"SystemExit: {SAVED_EXIT_CODE}")
    return ending.reason is Reason.EXIT_CODE and ending.exit_code == SAVED_EXIT_CODE
