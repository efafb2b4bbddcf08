"""One life of a server handles offers that come late, twice, and in any order."""

from __future__ import annotations

import pytest

from rmgr.coord.calls import ledger as module
from rmgr.coord.calls.ledger import (
    ABSENT_US,
    FORGOTTEN_US,
    KEPT_US,
    OVER_US,
    REMEMBERED_US,
    SILENT_US,
    CallId,
    Drop,
    Ending,
    Fetch,
    Joined,
    Kill,
    Ledger,
    Life,
    Lives,
    Outcome,
    Refused,
    Standing,
    Verdict,
)

S = 1_000_000
ONE, TWO = CallId("ana", "g", 1), CallId("ana", "g", 2)
RESULT = Ending(Outcome.RESULT)


def offer(ledger: Ledger, call: CallId, attempt: int = 1, lowest: int = 1, *, now_us: int = 0, left_us: int = 3_600 * S) -> Verdict:
    return ledger.offered(call, attempt=attempt, lowest=lowest, left_us=left_us, now_us=now_us)


def running(ledger: Ledger, call: CallId, **more: int) -> None:
    assert offer(ledger, call, **more) == Fetch()
    assert ledger.fetched(call, 1)
    assert ledger.start(0) == call


def refused(verdict: Verdict) -> bool | None:
    """Whether it may come again; None: it is not refused."""
    return verdict.again if isinstance(verdict, Refused) else None


def test_an_id_runs_once_and_its_answer_is_there_until_acknowledged() -> None:
    ledger = Ledger()
    running(ledger, ONE)
    assert (offer(ledger, ONE), offer(ledger, ONE, 2), ledger.start(0)) == (Joined(), Joined(), None)
    assert ledger.ended(ONE, RESULT, now_us=5) == RESULT
    assert offer(ledger, ONE, 3) == RESULT
    ledger.acknowledged(ONE, 6)
    assert (ledger.orders(), refused(offer(ledger, ONE, 4))) == ([Drop(ONE)], False)
    assert ledger.ended(ONE, RESULT, now_us=7) is None


def test_users_take_turns_for_slots_whoever_came_first() -> None:
    ledger = Ledger()
    anns = [CallId("ann", "g", number) for number in range(1, 5)]
    bobs = [CallId("bob", "g", number) for number in range(1, 3)]
    for call in (*anns, *bobs):
        assert offer(ledger, call) == Fetch()
        assert ledger.fetched(call, 1)
    assert [ledger.start(0) for _ in range(3)] == [anns[0], bobs[0], anns[1]]
    ledger.ended(bobs[0], RESULT, now_us=1)
    assert ledger.start(1) == bobs[1], "he has fewer calls in slots"
    ledger.ended(bobs[1], RESULT, now_us=2)
    assert [ledger.start(2) for _ in range(3)] == [anns[2], anns[3], None]


def test_slots_are_taken_in_order_of_complete_arguments() -> None:
    ledger = Ledger()
    assert (offer(ledger, ONE), offer(ledger, TWO), ledger.start(0)) == (Fetch(), Fetch(), None)
    assert (ledger.fetched(TWO, 1), ledger.fetched(ONE, 1), ledger.fetched(ONE, 1)) == (True, True, False)
    assert (ledger.waiting, ledger.start(0), ledger.start(0), ledger.start(0), ledger.running) == (2, TWO, ONE, None, 2)


def test_arguments_of_an_older_attempt_do_not_count() -> None:
    ledger = Ledger()
    assert (offer(ledger, ONE), offer(ledger, ONE), offer(ledger, ONE, 3)) == (Fetch(), Joined(), Fetch())
    assert (refused(offer(ledger, ONE, 2)), ledger.fetched(ONE, 1)) == (True, False)
    ledger.fetch_failed(ONE, 1)
    assert ledger.fetched(ONE, 3)


def test_what_was_refused_is_refused_until_a_later_attempt() -> None:
    ledger = Ledger(most_waiting=1)
    offer(ledger, ONE)
    assert refused(offer(ledger, TWO, 2)) is True
    ledger.cancelled(ONE, 0)
    assert [refused(offer(ledger, TWO, attempt)) for attempt in (1, 2)] == [True, True]  # late copies, though there is room
    assert offer(ledger, TWO, 3) == Fetch()
    ledger.fetch_failed(TWO, 3)
    assert (refused(offer(ledger, TWO, 3)), ledger.orders()) == (True, [Drop(ONE), Drop(TWO)])
    full = Ledger(per_user=1)
    offer(full, ONE)
    assert "1 calls of ana wait here" in str(offer(full, TWO))
    assert full.offered(CallId("bob", "g", 1), attempt=1, lowest=1, left_us=S, now_us=0) == Fetch()
    assert refused(offer(full, CallId("eve", "g", 1), left_us=0)) is False
    odd = Refused("odd interface", again=False)
    assert full.offered(CallId("eve", "g", 2), attempt=1, lowest=1, left_us=S, now_us=0, refusal=odd) == odd


def test_below_the_lowest_open_number_all_is_refused_and_forgotten() -> None:
    ledger = Ledger()
    running(ledger, ONE)
    assert offer(ledger, TWO, lowest=2) == Fetch()
    assert (ledger.orders(), refused(offer(ledger, ONE, 9, lowest=1))) == ([Kill(ONE)], False)
    assert (ledger.ended(ONE, RESULT, now_us=1), ledger.orders()) == (None, [Drop(ONE)])
    ledger.acknowledged(ONE, 1)
    assert ledger.orders() == []


def test_a_cancel_that_overtakes_its_offer_counts() -> None:
    ledger = Ledger()
    ledger.cancelled(ONE, 0)
    assert refused(offer(ledger, ONE)) is False


def test_time_ends_what_waits_and_what_runs() -> None:
    ledger = Ledger()
    running(ledger, ONE, left_us=S)
    offer(ledger, TWO, left_us=S)
    ledger.due(S)
    assert ledger.orders() == [Kill(ONE)]
    ending = ledger.ended(ONE, Ending(Outcome.FAILED, "SIGKILL"), now_us=S)
    assert (ending and ending.outcome, ending and "it ran" in ending.why) == (Outcome.TIMEOUT, True)
    verdict = offer(ledger, TWO, 2, now_us=S)
    assert isinstance(verdict, Ending)
    assert (verdict.outcome, "never ran" in verdict.why) == (Outcome.TIMEOUT, True)


def test_a_result_that_was_faster_than_the_kill_is_a_result() -> None:
    ledger = Ledger()
    running(ledger, ONE, left_us=S)
    ledger.due(S)
    assert ledger.ended(ONE, RESULT, now_us=S) == RESULT


def test_without_its_client_a_call_is_killed_or_never_runs() -> None:
    ledger = Ledger()
    running(ledger, ONE)
    offer(ledger, TWO)
    ledger.due(ABSENT_US - 1)
    assert ledger.orders() == []
    ledger.heard(ONE, 1)
    ledger.due(ABSENT_US)
    assert (ledger.orders(), refused(offer(ledger, TWO)), ledger.waiting) == ([Drop(TWO)], True, 0)
    ledger.due(ABSENT_US + 1)
    assert ledger.orders() == [Kill(ONE)]
    ending = ledger.ended(ONE, Ending(Outcome.FAILED), now_us=ABSENT_US)
    assert ending.outcome is Outcome.LOST


def test_answers_are_bounded_in_time_and_bytes_and_never_computed_again() -> None:
    ledger = Ledger(kept_bytes=10)
    for number in (1, 2, 3):
        call = CallId("ana", "g", number)
        running(ledger, call)
        ledger.ended(call, RESULT, now_us=number, size_bytes=6 if number < 3 else 20)
    assert ledger.orders() == [Drop(ONE), Drop(TWO)]  # the last one stays, however large
    lost = offer(ledger, ONE, 2)
    assert isinstance(lost, Ending)
    assert lost.outcome is Outcome.LOST
    ledger.due(KEPT_US + 3)
    assert ledger.orders() == [Drop(CallId("ana", "g", 3))]
    ledger.acknowledged(ONE, KEPT_US)


def test_answers_that_nobody_fetches_push_out_their_own_users_answers_alone() -> None:
    ledger = Ledger(kept_bytes=10)
    anns = CallId("ann", "g", 1)
    running(ledger, anns)
    ledger.ended(anns, RESULT, now_us=1, size_bytes=4)
    evils = [CallId("eve", "g", number) for number in range(1, 5)]
    for call in evils:
        running(ledger, call)
        ledger.ended(call, RESULT, now_us=2, size_bytes=5)
    assert ledger.orders() == [Drop(call) for call in evils[:3]]
    running(ledger, CallId("eve", "g", 5))
    ledger.ended(CallId("eve", "g", 5), RESULT, now_us=3, size_bytes=50)
    assert ledger.orders() == [Drop(evils[3])]
    assert offer(ledger, anns, 2) == RESULT
    ledger.acknowledged(CallId("eve", "g", 5), 4)
    ledger.due(KEPT_US + 1)
    assert ledger.orders() == [Drop(CallId("eve", "g", 5)), Drop(anns)]


def test_a_client_cannot_fill_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_IDS", 3)
    monkeypatch.setattr(module, "MOST_CLIENTS", 2)
    ledger = Ledger(most_waiting=0)
    for number in (5, 6, 7):
        assert refused(offer(ledger, CallId("eve", "g", number))) is True
    ledger.cancelled(CallId("eve", "g", 9), 0)
    assert [refused(offer(ledger, CallId("eve", "g", number), 2)) for number in (5, 8, 9)] == [True, False, False]
    assert [refused(offer(ledger, CallId("eve", "g", number), 3, lowest=8)) for number in (7, 8, 9, 10)] == [False, False, False, True]
    for at, guid in enumerate("hij"):
        offer(ledger, CallId("eve", guid, 1), now_us=at + 1)
    assert sorted(ledger.users["eve"]) == ["i", "j"]


def test_clients_that_are_quiet_for_a_day_are_forgotten() -> None:
    ledger = Ledger()
    running(ledger, ONE)
    ledger.acknowledged(CallId("bob", "h", 1), 0)
    ledger.heard(ONE, FORGOTTEN_US)
    ledger.due(FORGOTTEN_US)
    assert sorted(ledger.users) == ["ana"]


# -- lives ---------------------------------------------------------------------------------------------------------------------


def test_a_life_is_silent_then_over_and_stays_so() -> None:
    lives, one = Lives(), Life("s1", 1)
    assert lives.hello(one, 0)
    seen = [lives.standing(one, at) for at in (0, SILENT_US - 1, SILENT_US, OVER_US - 1)]
    assert seen == [Standing.HEARD, Standing.HEARD, Standing.SILENT, Standing.SILENT]
    assert lives.heard(one, OVER_US - 1)
    assert lives.heard(one, 5)  # what another gateway heard before
    assert lives.standing(one, OVER_US) is Standing.HEARD
    assert lives.standing(one, 2 * OVER_US - 1) is Standing.OVER
    assert (lives.heard(one, 2 * OVER_US), lives.hello(one, 2 * OVER_US)) == (False, False)


def test_a_successor_and_its_own_word_end_a_life() -> None:
    lives, one, two = Lives(), Life("s1", 1), Life("s1", 2)
    lives.hello(one, 0)
    assert lives.hello(two, 1)
    assert (lives.standing(one, 1), lives.standing(two, 1)) == (Standing.OVER, Standing.HEARD)
    lives.over(two, 2)
    assert lives.standing(two, 2) is Standing.OVER
    assert lives.standing(Life("s9", 9), OVER_US * 2) is Standing.HEARD  # unheard only from now on
    lives.forget(REMEMBERED_US + 2)
    assert lives.standing(Life("s9", 9), REMEMBERED_US + 2) is Standing.OVER
    assert [lives.standing(life, REMEMBERED_US + 2) for life in (one, two)] == [Standing.HEARD] * 2, "they are forgotten"
