"""The next step of a client for one call, event by event."""

from __future__ import annotations

import pytest

from rmgr.coord.calls.caller import (
    MARGIN_US,
    NONE_US,
    PAUSE_US,
    Acknowledge,
    Answered,
    Ask,
    Begin,
    Broken,
    Calling,
    Cancel,
    Denied,
    Event,
    Finish,
    LifeIs,
    Named,
    NoneOffers,
    NoRoom,
    Numbers,
    Rejected,
    Send,
    Stage,
    Step,
    Tick,
    error_of,
    next_step,
)
from rmgr.coord.calls.ledger import CallId, Ending, Life, Outcome, Standing

S = 1_000_000
ID = CallId("ana", "g", 7)
A, B = Life("s1", 11), Life("s2", 22)
RESULT = Ending(Outcome.RESULT, "x")


def after(*events: Event | tuple[int, Event], idempotent: bool = False, timeout_us: int = 3_600 * S) -> tuple[Calling, tuple[Step, ...]]:
    """The call after these events, and the steps of the last; an event may have its moment."""
    call, steps = Calling(call=ID, deadline_us=timeout_us, idempotent=idempotent), ()
    for told in events:
        now_us, event = told if type(told) is tuple else (0, told)
        call, steps = next_step(call, event, now_us)
    return call, steps


def ended(*events: Event | tuple[int, Event], idempotent: bool = False, timeout_us: int = 3_600 * S) -> Outcome | None:
    call, _ = after(*events, idempotent=idempotent, timeout_us=timeout_us)
    return call.ending.outcome if call.ending else None


SENT = (Begin(), Named(1, A))


def test_a_call_asks_sends_and_ends_with_its_answer() -> None:
    assert after(Begin())[1] == (Ask(1, None, (), 3_600 * S - MARGIN_US),)
    assert after(*SENT)[1] == (Send(1, A),)
    call, steps = after(*SENT, Answered(ID, A, RESULT))
    assert (call.stage, call.wake_us, steps) == (Stage.ENDED, None, (Acknowledge(A), Finish(RESULT)))
    assert next_step(call, Cancel(), 5) == (call, ())


def test_answers_of_other_calls_and_lives_are_none() -> None:
    for other in (Answered(ID._replace(number=8), A, RESULT), Answered(ID, B, RESULT), Answered(ID, Life("s1", 12), RESULT)):
        assert ended(*SENT, other) is None
    assert ended(Begin(), Answered(ID, A, RESULT)) is None


def test_a_bound_call_is_sent_again_to_its_life_alone() -> None:
    assert after(*SENT, Broken(1))[1] == (Ask(2, A, (), 3_600 * S - MARGIN_US),)
    call, steps = after(*SENT, Broken(1), Named(2, B))  # a gateway that names another one is none to talk to
    assert (call.bound, call.stage, steps) == (A, Stage.PAUSED, ())
    assert after(*SENT, Broken(1), Named(2, A, known=True))[1] == ()
    assert after(*SENT, Broken(1), NoneOffers(2))[0].bound == A
    assert ended(*SENT, Broken(1), Denied(2, "revoked")) is None


def test_a_call_that_was_not_sent_is_asked_for_anew() -> None:
    assert after(Begin(), Broken(1))[1][0] == Ask(2, None, (), 3_600 * S - MARGIN_US)
    assert ended(Begin(), Denied(1, "no right")) is Outcome.DENIED


def test_a_refusal_on_record_frees_it_for_the_next_best() -> None:
    call, steps = after(*SENT, Rejected(1, A, "full"))
    assert (call.bound, steps) == (None, (Ask(2, None, (A,), 3_600 * S - MARGIN_US),))
    assert after(*SENT, Broken(1), Rejected(1, A, "full"))[0].bound == A  # of an older attempt: this one may have been taken
    paused, _ = after(*SENT, Rejected(1, A, "full"), NoRoom(2))
    assert (paused.stage, paused.wake_us, paused.full) == (Stage.PAUSED, PAUSE_US, ())
    assert next_step(paused, Tick(), PAUSE_US)[1][0] == Ask(3, None, (), 3_600 * S - PAUSE_US - MARGIN_US)
    for_good, _ = after(*SENT, Rejected(1, A, "not for you", again=False), NoRoom(2))
    assert for_good.refused == (A,)


def test_only_idempotent_calls_leave_a_life_that_is_silent_or_over() -> None:
    silent, over = LifeIs(A, Standing.SILENT), LifeIs(A, Standing.OVER)
    assert after(*SENT, silent, idempotent=True)[1][0] == Ask(2, None, (A,), 3_600 * S - MARGIN_US)
    assert after(*SENT, over, idempotent=True)[1][0] == Ask(2, None, (A,), 3_600 * S - MARGIN_US)
    assert after(*SENT, silent)[0].bound == A
    assert ended(*SENT, over) is Outcome.LOST
    for nothing in (LifeIs(B, Standing.OVER), LifeIs(A, Standing.HEARD)):
        assert after(*SENT, nothing, idempotent=True)[0].bound == A


def test_the_deadline_tells_whether_it_may_have_run() -> None:
    late = (3 * S, Tick())
    assert ended(Begin(), late, timeout_us=3 * S) is Outcome.TIMEOUT
    assert ended(*SENT, late, timeout_us=3 * S) is Outcome.LOST
    assert ended(*SENT, LifeIs(A, Standing.OVER), late, idempotent=True, timeout_us=3 * S) is Outcome.LOST
    assert ended(*SENT, (4 * S, Answered(ID, A, RESULT)), timeout_us=3 * S) is Outcome.RESULT  # the clock stood, the answer is here
    assert after(Begin(), timeout_us=3 * S)[1] == (Ask(1, None, (), 3 * S - 3 * S // 4),)


def test_none_offers_it_for_ten_seconds() -> None:
    waits = after(Begin(), NoneOffers(1))[0]
    assert (waits.stage, waits.wake_us) == (Stage.PAUSED, PAUSE_US)
    again = (PAUSE_US, Tick())
    assert ended(Begin(), NoneOffers(1), again, (NONE_US - 1, NoneOffers(2))) is None
    assert ended(Begin(), NoneOffers(1), again, (NONE_US, NoneOffers(2))) is Outcome.NO_SERVER
    assert ended(Begin(), NoneOffers(1), again, (PAUSE_US, NoRoom(2)), (2 * PAUSE_US, Tick()), (NONE_US, NoneOffers(3))) is None
    gone = (*SENT, LifeIs(A, Standing.OVER), NoneOffers(2), again, (NONE_US, NoneOffers(3)))
    assert ended(*gone, idempotent=True) is Outcome.LOST


def test_lost_streams_are_retried_ever_later() -> None:
    call, now, waits = after(Begin())[0], 0, []
    for _ in range(7):
        call, _ = next_step(call, Broken(call.attempt), now)
        if call.stage is Stage.PAUSED:
            waits.append(call.pause_until_us - now)
            now = call.pause_until_us
            assert next_step(call, Tick(), now - 1) == (call, ())
            call, _ = next_step(call, Tick(), now)
    assert waits == [100_000, 200_000, 400_000, 800_000, S, S]


def test_a_cancelled_call_tells_its_life() -> None:
    assert after(*SENT, Cancel())[1][0] == Acknowledge(A)
    assert [type(step) for step in after(Begin(), Cancel())[1]] == [Finish]


@pytest.mark.parametrize(
    ("outcome", "name", "exit_code"),
    [
        (Outcome.FAILED, "CallFailed", 1),
        (Outcome.TIMEOUT, "CallTimeout", 6),
        (Outcome.NO_SERVER, "NoServer", 5),
        (Outcome.LOST, "CallLost", 8),
    ],
)
def test_endings_are_errors_with_exit_codes(outcome: Outcome, name: str, exit_code: int) -> None:
    error = error_of(ID, Ending(outcome, "because"))
    assert (type(error).__name__, error.exit_code) == (name, exit_code)
    assert "ana/g/7" in error.message
    assert "because" in error.message


def test_the_lowest_open_number_never_falls_and_passes_what_is_closed() -> None:
    numbers = Numbers()
    assert [numbers.take() for _ in range(4)] == [1, 2, 3, 4]
    seen = [numbers.lowest]
    for number in (2, 3, 1, 4):
        numbers.close(number)
        seen.append(numbers.lowest)
    assert seen == [1, 1, 1, 4, 5]
    assert error_of(ID, RESULT) is None
