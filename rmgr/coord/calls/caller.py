"""What a client does next for one call: `next_step(call, event) -> call, steps`, a pure function.

The rule that keeps a call from running twice: from its first argument on, a call is bound to one life of one server. A repeated
request goes to that life, through any gateway; the life runs each id once (`ledger.py`). The call goes elsewhere only if no argument was
sent, if that life has refused it on record, or if the call is idempotent and that life is over or silent.

```
NEW ──> ASKED ──named──> SENT ──answered──> ENDED      each way back to ASKED is a new attempt; messages of older attempts are ignored
          ^ │              │
          │ └──full, none──┤ refused, the stream broke, the life is silent or over
          └──── PAUSED <───┘
```

Every call ends: with an answer, or at its deadline. A life gets a little less time than is left, so that its own verdict arrives first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple, TypeAlias, assert_never

from rmgr.coord.calls.ledger import CallId, Ending, Life, Outcome, Standing
from rmgr.errors import CallFailed, CallLost, CallTimeout, NoServer, RmgrError
from rmgr.model.units import format_duration

#: How long a call waits for a server that offers its function (us).
NONE_US = 10_000_000
#: Pause between two looks for a free server; first and last pause between two gateways, doubled each time (the first retry is at once).
PAUSE_US, FIRST_RETRY_US, LAST_RETRY_US = 500_000, 100_000, 1_000_000
#: Time that a life gets less than is left: a quarter, at most this (us).
MARGIN_US = 2_000_000


class Stage(StrEnum):
    """Stage of a call in its client."""

    NEW = "new"
    ASKED = "asked"  #: a gateway is to name a server
    SENT = "sent"  #: the arguments are under way, or have arrived
    PAUSED = "paused"  #: until `wake_us`
    ENDED = "ended"


#: The legal changes of stage.
CHANGES: dict[Stage, frozenset[Stage]] = {
    Stage.NEW: frozenset({Stage.ASKED, Stage.ENDED}),
    Stage.ASKED: frozenset({Stage.ASKED, Stage.SENT, Stage.PAUSED, Stage.ENDED}),
    Stage.SENT: frozenset({Stage.ASKED, Stage.PAUSED, Stage.ENDED}),
    Stage.PAUSED: frozenset({Stage.ASKED, Stage.ENDED}),
    Stage.ENDED: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Calling:
    """One call. deadline_us: on the client's monotonic clock. attempt: number of the open request.

    bound: the life that may have the arguments. may_run: a life that was left behind may have them, too (idempotent calls only).
    full, refused: lives left out until the next pause, and for ever. none_since_us: since when no server has offered the function.
    breaks: number of lost streams.
    """

    call: CallId
    deadline_us: int
    idempotent: bool = False
    stage: Stage = Stage.NEW
    attempt: int = 0
    bound: Life | None = None
    may_run: bool = False
    full: tuple[Life, ...] = ()
    refused: tuple[Life, ...] = ()
    none_since_us: int | None = None
    breaks: int = 0
    pause_until_us: int = 0
    ending: Ending | None = None

    @property
    def wake_us(self) -> int | None:
        """Time at which `Tick` is due; None if the call has ended."""
        if self.stage is Stage.ENDED:
            return None
        return min(self.pause_until_us, self.deadline_us) if self.stage is Stage.PAUSED else self.deadline_us


# -- what happens -----------------------------------------------------------------------------------------------------------------


class Begin(NamedTuple):
    """The user makes the call."""


class Tick(NamedTuple):
    """The time `wake_us` is reached."""


class Cancel(NamedTuple):
    """The user no longer wants an answer."""


class Named(NamedTuple):
    """A gateway names the server. known: that life has the call already and needs no arguments."""

    attempt: int
    life: Life
    known: bool = False


class NoRoom(NamedTuple):
    """Servers offer the function, but all of them are full or left out."""

    attempt: int


class NoneOffers(NamedTuple):
    """No server offers the function to this user now, except those left out for ever."""

    attempt: int


class Denied(NamedTuple):
    """A gateway refuses the request before it names a server: bad arguments, or no right."""

    attempt: int
    why: str


class Rejected(NamedTuple):
    """The life has refused this attempt on record. again: it may take a later one."""

    attempt: int
    life: Life
    why: str
    again: bool = True


class Broken(NamedTuple):
    """The attempt's stream ended or was silent for 10 s, or its gateway does not reach the requested life."""

    attempt: int


class LifeIs(NamedTuple):
    """A gateway reports the standing of the life."""

    life: Life
    standing: Standing


class Answered(NamedTuple):
    """The life answers."""

    call: CallId
    life: Life
    ending: Ending


Event: TypeAlias = Begin | Tick | Cancel | Named | NoRoom | NoneOffers | Denied | Rejected | Broken | LifeIs | Answered


# -- what to do -------------------------------------------------------------------------------------------------------------------


class Ask(NamedTuple):
    """Open a request at any gateway in place of the open one. to: only this life. without: not these. left_us: sent along."""

    attempt: int
    to: Life | None
    without: tuple[Life, ...]
    left_us: int


class Send(NamedTuple):
    """Send the arguments on the open request."""

    attempt: int
    life: Life


class Acknowledge(NamedTuple):
    """Tell the life that its answer has arrived, or is not wanted: it forgets the answer, or kills the call. Once, through any gateway."""

    life: Life


class Finish(NamedTuple):
    """The call has ended: close its number."""

    ending: Ending


Step: TypeAlias = Ask | Send | Acknowledge | Finish


def next_step(call: Calling, event: Event, now_us: int) -> tuple[Calling, tuple[Step, ...]]:
    """Returns the call after the event, and the steps to take, in order. An outdated event changes nothing. Cost: O(1)."""
    if call.stage is Stage.ENDED:
        return call, ()
    after, steps = _after(call, event, now_us)
    if after.stage is not call.stage and after.stage not in CHANGES[call.stage]:
        raise AssertionError(f"call {call.call} goes from {call.stage} to {after.stage} by {event}")
    return after, steps


def _after(call: Calling, event: Event, now_us: int) -> tuple[Calling, tuple[Step, ...]]:
    if isinstance(event, Answered):
        return _end(call, event.ending) if event.call == call.call and event.life == call.bound else (call, ())
    if isinstance(event, Cancel):
        return _end(call, Ending(Outcome.CANCELLED, "its client wants no answer"))
    if now_us >= call.deadline_us:
        return _end(call, _too_late(call))
    match event:
        case Begin():
            return _ask(call, now_us) if call.stage is Stage.NEW else (call, ())
        case Tick():
            return _ask(call, now_us) if call.stage is Stage.PAUSED and now_us >= call.pause_until_us else (call, ())
        case LifeIs(life, standing):
            if life != call.bound or standing is Standing.HEARD:
                return call, ()
            if call.idempotent:
                left = replace(call, bound=None, may_run=True)
                over = standing is Standing.OVER
                return _ask(replace(left, refused=(*left.refused, life)) if over else replace(left, full=(*left.full, life)), now_us)
            if standing is Standing.SILENT:
                return call, ()
            return _end(call, Ending(Outcome.LOST, f"server {life} ended while it had the call: it may have run"))
    if event.attempt != call.attempt or call.stage not in (Stage.ASKED, Stage.SENT):
        return call, ()
    match event:
        case Broken():
            return _ask_again(call, now_us)
        case Rejected(_, life, why, again):
            if life != call.bound:
                return _ask_again(call, now_us)
            call = replace(call, bound=None)
            call = replace(call, full=(*call.full, life)) if again else replace(call, refused=(*call.refused, life))
            return _ask(call, now_us)
    if call.stage is Stage.SENT:
        return _ask_again(call, now_us)  # a gateway that says this now is not to be trusted
    match event:
        case Named(_, life, known):
            if call.bound not in (None, life):
                return _ask_again(call, now_us)
            sent = replace(call, stage=Stage.SENT, bound=life, none_since_us=None)
            return sent, () if known else (Send(call.attempt, life),)
        case Denied(_, why):
            if call.bound is not None or call.may_run:
                return _ask_again(call, now_us)  # the answer may still be there, and rights may come back
            return _end(call, Ending(Outcome.DENIED, why))
        case NoRoom():
            return _ask_again(call, now_us) if call.bound else _pause(replace(call, full=(), none_since_us=None), now_us, PAUSE_US)
        case NoneOffers():
            if call.bound:
                return _ask_again(call, now_us)
            since = now_us if call.none_since_us is None else call.none_since_us
            if now_us - since >= NONE_US:
                why = f"no server has offered its function for {format_duration(NONE_US / 1e6)}"
                lost = Ending(Outcome.LOST, f"{why}, and one that is gone may have run it")
                return _end(call, lost if call.may_run else Ending(Outcome.NO_SERVER, why))
            return _pause(replace(call, full=(), none_since_us=since), now_us, PAUSE_US)
        case _:
            assert_never(event)


def error_of(call: CallId, ending: Ending) -> RmgrError | None:
    """Returns the user's error; None for a result, and for CANCELLED and DENIED, for which the client has its own errors."""
    match ending.outcome:
        case Outcome.FAILED:
            return CallFailed(f"call {call} failed: {ending.why}")
        case Outcome.TIMEOUT:
            return CallTimeout(f"call {call} did not end in time: {ending.why}", hint="give it more: timeout=, --timeout")
        case Outcome.NO_SERVER:
            return NoServer(f"call {call} was not sent: {ending.why}", hint="rmgr servers; rmgr functions")
        case Outcome.LOST:
            return CallLost(f"call {call} is lost: {ending.why}", hint="call again if it may run twice, or declare it idempotent")
        case _:
            return None


class Numbers:
    """The numbers of a client's calls, from 1, and the lowest open one. Cost: O(1) amortised."""

    def __init__(self) -> None:
        self.lowest = 1  #: the lowest open number, or the next one
        self._next = 1
        self._closed: set[int] = set()

    def take(self) -> int:
        """Returns the next number, which is open from now on."""
        self._next += 1
        return self._next - 1

    def close(self, number: int) -> None:
        """Closes the number of a call that has ended."""
        self._closed.add(number)
        while self.lowest in self._closed:
            self._closed.remove(self.lowest)
            self.lowest += 1


# -- parts ------------------------------------------------------------------------------------------------------------------------


def _ask(call: Calling, now_us: int) -> tuple[Calling, tuple[Step, ...]]:
    left_us = call.deadline_us - now_us
    asked = replace(call, stage=Stage.ASKED, attempt=call.attempt + 1)
    without = () if call.bound else (*call.refused, *call.full)
    return asked, (Ask(asked.attempt, call.bound, without, left_us - min(MARGIN_US, left_us // 4)),)


def _ask_again(call: Calling, now_us: int) -> tuple[Calling, tuple[Step, ...]]:
    """Asks by another gateway: at once the first time, then after growing pauses."""
    broken = replace(call, breaks=call.breaks + 1)
    if not call.breaks:
        return _ask(broken, now_us)
    return _pause(broken, now_us, min(FIRST_RETRY_US << min(call.breaks - 1, 10), LAST_RETRY_US))


def _pause(call: Calling, now_us: int, pause_us: int) -> tuple[Calling, tuple[Step, ...]]:
    return replace(call, stage=Stage.PAUSED, pause_until_us=now_us + pause_us), ()


def _too_late(call: Calling) -> Ending:
    if call.bound is None and not call.may_run:
        return Ending(Outcome.TIMEOUT, "it never ran")
    return Ending(Outcome.LOST, f"server {call.bound or 'unknown'} has not answered before the deadline: it may have run")


def _end(call: Calling, ending: Ending) -> tuple[Calling, tuple[Step, ...]]:
    acknowledgement = (Acknowledge(call.bound),) if call.bound is not None else ()
    return replace(call, stage=Stage.ENDED, ending=ending), (*acknowledgement, Finish(ending))
