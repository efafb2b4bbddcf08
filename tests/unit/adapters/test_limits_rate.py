"""Requests of many users through one server: who works is served, who floods is slowed down, whatever the server's own state is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from rmgr.adapters.access.limits import BURST_S, BUSY_PART, CAPACITY_PER_S, DEEP, EARLY_S, LATE_S, SESSION_COST, Bounds, StrainMeter
from rmgr.adapters.gateway.bounds import WORD_COST, Booking
from rmgr.errors import PermissionDenied, QueueFull, Throttled
from rmgr.model.cluster.queue import UserLimits
from tests.harness.waiting import eventually


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def bounds(clock: Callable[[], float] | None = None, **limits: int) -> Bounds:
    return Bounds(UserLimits(**limits), clock=clock or Clock())


def test_a_user_alone_has_the_rate_of_the_settings_and_waits_beyond_it() -> None:
    clock = Clock()
    made = bounds(clock, requests_per_s=100)
    assert [made.wait_s("ann") for _ in range(int(100 * BURST_S))] == [0.0] * int(100 * BURST_S)
    assert made.wait_s("ann") == pytest.approx(0.01)
    assert made.wait_s("ann") == pytest.approx(0.02)
    with pytest.raises(Throttled, match="ann has reached the limit requests_per_s = 100: requests a second") as refused:
        for _ in range(200):
            made.wait_s("ann")
    assert "rmgr limits" in refused.value.hint
    assert isinstance(refused.value, QueueFull)  # clients try again
    with pytest.raises(Throttled):
        made.spend("ann")
    assert made.wait_s("ben") == 0.0
    clock.now_s += 2.5
    made.spend("ann")
    assert made.refused("ann")["requests_per_s"] == 2


def test_many_who_flood_get_little_and_who_works_beside_them_is_served_at_once() -> None:
    clock = Clock()
    made = bounds(clock, requests_per_s=5000)
    users = [f"m{at}" for at in range(100)]
    served = 0
    for tenth in range(100):  # two seconds in which what was saved up is used, then eight
        clock.now_s += 0.1
        served = served if tenth > 20 else 0
        for user in users:
            for _ in range(50):
                try:
                    made.spend(user)
                    served += 1
                except Throttled:
                    break
        if not tenth % 4:  # a submission every 0.4 s
            made.spend("ann", SESSION_COST)
            for _ in range(20):
                assert made.wait_s("ann", 500) == 0.0
    assert served / 8 < CAPACITY_PER_S * 0.7
    with pytest.raises(Throttled, match="101 users share this server"):
        for _ in range(100):
            made.spend("m7")


def test_who_is_slowed_down_all_the_time_floods_however_patiently_he_waits() -> None:
    """A session that sleeps for each of its requests is never in debt for long."""
    clock = Clock()
    made = bounds(clock, requests_per_s=5000)
    due = {f"m{at}": clock.now_s for at in range(100)}
    served = 0
    for _ in range(1200):
        clock.now_s += 0.01
        served = served if clock.now_s > 1006 else 0
        for user in due:
            while due[user] <= clock.now_s:
                with contextlib.suppress(Throttled):
                    wait_s = made.wait_s(user)
                    served += 1
                    due[user] = max(due[user], clock.now_s) + wait_s if wait_s else due[user] + 0.0001
                    continue
                due[user] = clock.now_s + 0.1
    assert served / 6 < CAPACITY_PER_S * 0.8


def _crowd(made: Bounds, clock: Clock) -> None:
    """A hundred users who ask for little."""
    for _ in range(4):
        clock.now_s += 0.3
        for at in range(1, 100):
            made.spend(f"m{at}")
    assert made.is_crowded


def _waited(made: Bounds, clock: Clock, user: str) -> float:
    """How long his next request waits, after a second in which he asked for nothing."""
    clock.now_s += 1.0
    made.spend("m99")  # counts who is there
    return sum(made.wait_s(user) for _ in range(20))


def test_who_asks_for_much_at_once_floods_where_answers_are_late_and_nowhere_else() -> None:
    clock = Clock()
    made = bounds(clock, requests_per_s=5000)
    his = Booking(made, "m0")
    his.begin(range(DEEP + 1))
    assert made.wait_s("m0") == 0.0
    made.strained(2 * LATE_S)
    assert made.wait_s("m0") == 0.0  # nobody beside him
    _crowd(made, clock)
    clock.now_s += 60
    _crowd(made, clock)
    assert _waited(made, clock, "m0") == 0.0  # they get their turn
    made.strained(0.0, 2 * BUSY_PART)
    with pytest.raises(Throttled):
        _waited(made, clock, "m0")
    assert _waited(made, clock, "m1") == 0.0  # one thing after the other
    his.end()
    clock.now_s += 20
    made.strained(2 * LATE_S)
    _crowd(made, clock)
    assert _waited(made, clock, "m0") == 0.0
    his.begin(range(DEEP))
    his.close()
    clock.now_s += 20
    made.strained(2 * LATE_S)
    _crowd(made, clock)
    assert _waited(made, clock, "m0") == 0.0


def test_floods_get_less_while_threads_get_their_turn_late_and_who_works_gets_as_much() -> None:
    clock = Clock()
    made = bounds(clock, requests_per_s=5000)

    def served(seconds: int) -> int:
        count = 0
        for _ in range(seconds * 10):
            clock.now_s += 0.1
            for user in [f"m{at}" for at in range(100)]:
                with contextlib.suppress(Throttled):
                    while True:
                        made.spend(user)
                        count += 1
            made.spend("ann", 10.0)
        return count

    served(3)
    before = served(10)
    for _ in range(20):
        made.strained(2 * LATE_S)
    assert served(10) < before / 2
    for _ in range(60):
        made.strained(EARLY_S / 2)
    assert served(10) > before * 0.9


def test_what_is_forbidden_costs_whoever_asks_for_it_again_and_again() -> None:
    clock = Clock()
    made = bounds(clock, requests_per_s=5000)
    _crowd(made, clock)
    served = dict.fromkeys(("m0", "m1"), 0)
    for tick in range(300):
        clock.now_s += 0.025  # forty changes a second
        if not tick % 10:
            made.spend("m99")
        for user in served:
            with contextlib.suppress(Throttled):
                served[user] += made.wait_s(user, cost=WORD_COST) == 0.0
        made.failed("m0", PermissionDenied("no"))
    made.failed("m1", PermissionDenied("no"))
    assert made.wait_s("m1") == 0.0
    assert served["m0"] < 50 < 300 == served["m1"]


def test_how_late_threads_get_their_turn_is_told_while_many_ask() -> None:
    told: list[tuple[float, float]] = []

    class Noted(Bounds):
        is_crowded = True

        def strained(self, late_s: float, busy_part: float = 0.0) -> None:
            told.append((late_s, busy_part))

    meter = StrainMeter(Noted()).start()
    eventually(lambda: len(told) > 1)
    meter.stop()
    assert all(late_s >= 0 and busy >= 0 for late_s, busy in told)


def test_a_few_users_share_what_the_server_bears() -> None:
    clock = Clock()
    made = bounds(clock, requests_per_s=5000)
    served = dict.fromkeys(("ann", "ben", "eve"), 0)
    for _ in range(60):
        clock.now_s += 0.1
        for user in served:
            for _ in range(600):
                try:
                    made.spend(user)
                    served[user] += 1
                except Throttled:
                    break
    assert all(5 * CAPACITY_PER_S / 3 < count < 10 * CAPACITY_PER_S for count in served.values())


def test_a_request_of_many_bytes_counts_for_more_and_is_never_impossible() -> None:
    clock = Clock()
    made = bounds(clock, requests_per_s=10)
    assert made.wait_s("ann", 4 << 20) > 0
    with pytest.raises(Throttled):
        made.wait_s("ann", 4 << 20)
    clock.now_s += 60
    assert made.wait_s("ann", 4 << 20) > 0


def test_words_and_values_cost_more_than_reads_in_a_crowd_and_nowhere_else() -> None:
    clock = Clock()
    made = bounds(clock, requests_per_s=100)
    for _ in range(int(100 * BURST_S)):
        assert made.wait_s("m0", cost=WORD_COST) == 0.0
        made.charge_stored("m0", 100_000)
    assert made.wait_s("m0") > 0.0
    made = bounds(clock, requests_per_s=5000)
    _crowd(made, clock)
    assert sum(made.wait_s("m1") for _ in range(30)) == 0.0
    assert sum(made.wait_s("m2", cost=WORD_COST) for _ in range(30)) > 0.0
    for _ in range(7):
        assert made.wait_s("m3") == 0.0
        made.charge_stored("m3", 100_000)
    assert made.wait_s("m3") > 0.0


def test_no_limit_is_no_limit() -> None:
    made = bounds(requests_per_s=0, followed=0)
    for _ in range(20_000):
        made.wait_s("ann")
    made.take("followed", "ann", 300_000)
