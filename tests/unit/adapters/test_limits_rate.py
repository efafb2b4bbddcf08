"""Requests of a user have a rate; who is beyond it waits a moment, or is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rmgr.adapters.access.limits import BURST_S, Bounds
from rmgr.errors import QueueFull, Throttled
from rmgr.model.cluster.queue import UserLimits


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


def test_a_request_of_many_bytes_counts_for_more_and_is_never_impossible() -> None:
    clock = Clock()
    made = bounds(clock, requests_per_s=10)
    assert made.wait_s("ann", 4 << 20) > 0
    with pytest.raises(Throttled):
        made.wait_s("ann", 4 << 20)
    clock.now_s += 60
    assert made.wait_s("ann", 4 << 20) > 0


def test_no_limit_is_no_limit() -> None:
    made = bounds(requests_per_s=0, followed=0)
    for _ in range(20_000):
        made.wait_s("ann")
    made.take("followed", "ann", 300_000)
