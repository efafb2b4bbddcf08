"""How much a Starter claims and hands out, and which user's turn it is."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmgr.daemons.starter.core.shares import (
    AHEAD_S,
    BATCH_S,
    BATCH_TASKS,
    GROWTH,
    HALF_LIFE_S,
    OVERHEAD_S,
    TaskTimes,
    Turns,
    batch_size,
    claim_size,
    owed_of,
    wants_more,
)

QUICK = 2**-15
#: name -> the size of the claim, then what differs from a free node of two slots that knows nothing of a block of 256 tasks
CLAIMS: dict[str, list[tuple[int, dict[str, object]]]] = {
    "tasks of unknown length: one a free slot, and never ahead": [(2, {}), (0, {"free": 0}), (1, {"count": 1})],
    "known ones: for about a fifth of a second of all slots": [
        (int(AHEAD_S * 2 / 0.01), {"task_s": 0.01, "ended": 1000}),
        (10, {"task_s": 0.01, "ended": 1000, "ahead_s": 0.3, "free": 0}),
        (0, {"task_s": 0.01, "ended": 1000, "ahead_s": 0.5, "free": 0}),
    ],
    "long ones: not before a slot is free": [(0, {"task_s": 10.0, "ended": 50, "free": 0}), (1, {"task_s": 10.0, "ended": 50, "free": 1})],
    "ahead: bounded by what has ended, however many claims make it up": [
        (2 * GROWTH + 2, {"task_s": QUICK, "ended": 2, "free": 0}),
        (2 * GROWTH + 2 - 10, {"task_s": QUICK, "ended": 2, "free": 0, "ahead_s": 10 * QUICK}),
        (0, {"task_s": QUICK, "ended": 2, "free": 0, "ahead_s": (2 * GROWTH + 2) * QUICK}),
        (1, {"task_s": QUICK, "ended": 2, "free": 1, "ahead_s": (2 * GROWTH + 2) * QUICK}),
        (256, {"task_s": QUICK, "ended": 5000}),
    ],
    "at most once: no larger than the free slots, though quick": [
        (2, {"at_most_once": True, "task_s": 30e-6, "ended": 1000}),
        (0, {"at_most_once": True, "task_s": 30e-6, "ended": 1000, "free": 0}),
    ],
    "a serial block: whole, when a slot is free": [(256, {"serial": True}), (0, {"serial": True, "free": 0})],
}


@pytest.mark.parametrize("rule", CLAIMS)
def test_a_claim_has_the_size_that_its_rule_says(rule: str) -> None:
    usual = {"count": 256, "serial": False, "at_most_once": False, "free": 2, "slots": 2, "task_s": None, "ended": 0, "ahead_s": 0.0}
    for size, facts in CLAIMS[rule]:
        assert claim_size(**(usual | facts)) == size, facts


@pytest.mark.parametrize(("free", "ahead_s", "wants"), [(1, math.inf, True), (0, 0.21, False), (0, 0.19, True)])
def test_more_is_claimed_when_half_of_the_work_ahead_is_used_up(free: int, ahead_s: float, wants: bool) -> None:
    assert wants_more(free=free, slots=2, ahead_s=ahead_s) is wants


BATCHES = [(1000, 0.001, int(BATCH_S / 0.001)), (10, 0.001, 5), (1000, 1e-6, BATCH_TASKS), (1000, 1.0, 1), (1000, None, 1), (0, None, 0)]


@pytest.mark.parametrize(("ready", "task_s", "size"), BATCHES)
def test_a_batch_lasts_some_ms_and_leaves_the_other_slots_their_share(ready: int, task_s: float | None, size: int) -> None:
    assert batch_size(ready=ready, slots=2, task_s=task_s) == size


def test_times_follow_what_is_observed() -> None:
    times = TaskTimes()
    assert times.of(1) is None
    times.observe(1, 1, 1.0)
    assert times.of(1) == pytest.approx(1.0 + OVERHEAD_S)
    for _ in range(100):
        times.observe(1, 10, 0.1)
    assert times.of(1) == pytest.approx(0.01, rel=0.01)
    assert times.ended(1) == 1001


def test_only_the_newest_submissions_are_remembered() -> None:
    times = TaskTimes()
    for number in range(5000):
        times.observe(number, 1, 1.0)
    assert times.of(0) is None
    assert times.of(4999) is not None


class Node:
    """Slots that are never empty while anybody waits; tasks are claimed one by one."""

    def __init__(self, slots: int, *, knows: bool = True, at_s: float = 50_000.0) -> None:
        self.turns, self.slots, self.now_s = Turns(), slots, at_s
        self.knows = knows  #: how long tasks take
        self.waiting: dict[str, float] = {}
        self.running: list[tuple[float, int, float, str]] = []
        self.had: Counter[str] = Counter()  #: core-seconds that have ended
        self.begun: list[str] = []
        self._numbers = itertools.count()

    def come(self, **users: float) -> None:
        """Each with tasks of so many seconds."""
        for user, task_s in users.items():
            if self.waiting:
                self.turns.enter([user], list(self.waiting), self.now_s)
            self.waiting[user] = task_s

    def run(self, for_s: float) -> None:
        end_s = self.now_s + for_s
        while True:
            while len(self.running) < self.slots and self.waiting:
                self._begin()
            if not self.running or self.running[0][0] > end_s:
                self.now_s = end_s
                return
            self.now_s, _, task_s, user = heapq.heappop(self.running)
            self.turns.charge(user, 1, task_s, 1, self.now_s)
            self.had[user] += task_s

    def _begin(self) -> None:
        owed: Counter[str] = Counter()
        for until_s, _, task_s, user in self.running:
            known, age_s = (task_s if self.knows else None), self.now_s - (until_s - task_s)
            owed[user] += owed_of(cores=1, count=1, unfinished=1, live=1, task_s=known, age_s=age_s)
        self.turns.owe("n", owed)
        user = next(self.turns.order(self.waiting, self.now_s))
        task_s = self.waiting[user]
        heapq.heappush(self.running, (self.now_s + task_s, next(self._numbers), task_s, user))
        self.begun.append(user)

    def so_far(self) -> dict[str, float]:
        """With what runs."""
        had = dict(self.had)
        for until_s, _, task_s, user in self.running:
            had[user] = had.get(user, 0.0) + self.now_s - (until_s - task_s)
        return had


@settings(deadline=None, max_examples=12)
@given(slots=st.integers(1, 9), lengths=st.lists(st.floats(0.1, 1.0), min_size=10, max_size=10), knows=st.booleans())
def test_ten_users_with_short_tasks_have_equal_shares(slots: int, lengths: list[float], knows: bool) -> None:
    node = Node(slots, knows=knows)
    node.come(**{f"u{at}": seconds for at, seconds in enumerate(lengths)})
    node.run(400.0 / slots)
    equal = 400.0 / 10
    assert all(abs(had - equal) <= 0.1 * equal for had in node.so_far().values()), node.so_far()


@settings(deadline=None, max_examples=8)
@given(slots=st.integers(2, 9), long_s=st.sampled_from([20.0, 120.0]), knows=st.booleans())
def test_who_has_long_tasks_has_no_more_than_who_has_short_ones(slots: int, long_s: float, knows: bool) -> None:
    node = Node(slots, knows=knows)
    node.come(long=long_s, short=1.0)
    node.run(20 * long_s)
    had = node.so_far()
    assert had["short"] / (20 * long_s * slots) == pytest.approx(0.5, abs=0.15 if slots > 2 else 0.2), had


def test_a_slot_turns_between_seconds_and_hours() -> None:
    node = Node(1)
    node.come(long=3600.0, short=1.0)
    node.run(40 * 3600.0)
    assert 0.3 < node.had["short"] / (node.had["short"] + node.had["long"]) < 0.6, "half, less what is forgotten within such an hour"


def test_a_lone_user_has_all_of_it() -> None:
    node = Node(4)
    node.come(ann=0.5)
    node.run(100.0)
    assert node.had["ann"] == pytest.approx(400.0, rel=0.01)


def test_a_newcomer_is_served_at_once_and_starves_nobody() -> None:
    node = Node(4)
    node.come(ann=1.0, bob=1.0)
    node.run(5000.0)
    node.come(eve=1.0)
    before = len(node.begun)
    node.run(30.0)
    begun = node.begun[before:]
    assert "eve" in begun[:4]
    assert Counter(begun)["ann"] == pytest.approx(40, abs=5)
    assert Counter(begun)["bob"] == pytest.approx(40, abs=5)


def test_who_had_all_while_alone_is_not_shut_out_by_who_comes_then() -> None:
    node = Node(4)
    node.come(ann=1.0)
    node.run(10_000.0)
    del node.waiting["ann"]
    node.run(10.0)
    node.come(bob=1.0)
    node.run(5.0)
    node.come(ann=1.0)
    before = len(node.begun)
    node.run(20.0)
    assert Counter(node.begun[before:])["ann"] == pytest.approx(40, abs=6)


def test_who_leaves_for_a_moment_gains_nothing() -> None:
    node = Node(2)
    node.come(ann=1.0, bob=1.0, eve=1.0)
    for _ in range(300):
        node.run(1.0)
        del node.waiting["eve"]
        node.come(eve=1.0)
    assert node.so_far()["eve"] == pytest.approx(200.0, rel=0.1)


def test_equal_ones_come_in_the_order_in_which_they_stand() -> None:
    assert list(Turns().order(["c", "a", "b"], 5.0)) == ["c", "a", "b"]
    assert list(Turns().order([], 5.0)) == []


def test_counts_outlive_years_and_many_users() -> None:
    turns, now_s = Turns(), 1e9
    turns.charge("ann", 1, 10.0, 1, now_s)
    turns.charge("bob", 1, 5.0, 1, now_s)
    for _ in range(200):
        now_s += 10 * HALF_LIFE_S
        assert list(turns.order(["ann", "bob"], now_s)) == ["bob", "ann"]
        turns.charge("ann", 1, 10.0, 1, now_s)
    for at in range(10_000):
        turns.charge(f"u{at}", 1, 1.0, 1, now_s)
    assert next(turns.order(["ann", "u9999"], now_s)) == "u9999"
