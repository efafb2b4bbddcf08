"""How much a Starter claims and hands out, from how long tasks take."""

from __future__ import annotations

import math

import pytest

from rmgr.daemons.starter.core.shares import (
    AHEAD_S,
    BATCH_S,
    BATCH_TASKS,
    GROWTH,
    OVERHEAD_S,
    TaskTimes,
    batch_size,
    claim_size,
    wants_more,
)


def size(**given: object) -> int:
    facts = {"count": 256, "serial": False, "at_most_once": False, "free": 2, "slots": 2, "task_s": None, "ended": 0, "ahead_s": 0.0}
    return claim_size(**(facts | given))  # type: ignore[arg-type]


def test_tasks_of_unknown_length_are_claimed_one_a_free_slot_and_never_ahead() -> None:
    assert size() == 2
    assert size(free=0) == 0
    assert size(count=1) == 1


def test_known_tasks_are_claimed_for_about_a_fifth_of_a_second_of_all_slots() -> None:
    assert size(task_s=0.01, ended=1000) == int(AHEAD_S * 2 / 0.01)
    assert size(task_s=0.01, ended=1000, ahead_s=0.3, free=0) == 10
    assert size(task_s=0.01, ended=1000, ahead_s=0.5, free=0) == 0


def test_long_tasks_are_not_claimed_before_a_slot_is_free() -> None:
    assert size(task_s=10.0, ended=50, free=0) == 0
    assert size(task_s=10.0, ended=50, free=1) == 1


def test_what_is_claimed_ahead_is_bounded_by_what_has_ended_however_many_claims_make_it_up() -> None:
    quick = 2**-15
    assert size(task_s=quick, ended=2, free=0) == 2 * GROWTH + 2
    assert size(task_s=quick, ended=2, free=0, ahead_s=10 * quick) == 2 * GROWTH + 2 - 10
    assert size(task_s=quick, ended=2, free=0, ahead_s=(2 * GROWTH + 2) * quick) == 0
    assert size(task_s=quick, ended=2, free=1, ahead_s=(2 * GROWTH + 2) * quick) == 1
    assert size(task_s=quick, ended=5000) == 256


def test_at_most_once_is_claimed_no_larger_than_the_free_slots_though_quick() -> None:
    assert size(at_most_once=True, task_s=30e-6, ended=1000) == 2
    assert size(at_most_once=True, task_s=30e-6, ended=1000, free=0) == 0


def test_a_serial_block_is_taken_whole_when_a_slot_is_free() -> None:
    assert size(serial=True) == 256
    assert size(serial=True, free=0) == 0


def test_more_is_claimed_when_half_of_the_work_ahead_is_used_up() -> None:
    assert wants_more(free=1, slots=2, ahead_s=math.inf)
    assert not wants_more(free=0, slots=2, ahead_s=0.21)
    assert wants_more(free=0, slots=2, ahead_s=0.19)


def test_a_batch_lasts_some_ms_and_leaves_the_other_slots_their_share() -> None:
    assert batch_size(ready=1000, slots=2, task_s=0.001) == int(BATCH_S / 0.001)
    assert batch_size(ready=10, slots=2, task_s=0.001) == 5
    assert batch_size(ready=1000, slots=2, task_s=1e-6) == BATCH_TASKS
    assert batch_size(ready=1000, slots=2, task_s=1.0) == 1
    assert batch_size(ready=1000, slots=2, task_s=None) == 1
    assert batch_size(ready=0, slots=2, task_s=None) == 0


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
