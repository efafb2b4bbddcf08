"""What the cluster takes for the time: ZooKeeper's clock, carried on by the boot clock, whatever happens to the machine's own."""

from __future__ import annotations

import pytest

from rmgr.runtime import machine
from rmgr.runtime.zookeeper_clock import ZooKeeperClock

DAY_S = 86_400


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The machine's clocks, in seconds, moved by the test."""
    clocks = {"wall": 1_000_000.0, "boot": 50.0}
    monkeypatch.setattr(machine, "wall_s", lambda: clocks["wall"])
    monkeypatch.setattr(machine, "wall_us", lambda: round(clocks["wall"] * 1e6))
    monkeypatch.setattr(machine, "boottime_ns", lambda: round(clocks["boot"] * 1e9))
    return clocks


@pytest.mark.parametrize(("ahead_s", "told"), [(DAY_S, "1d ahead of"), (-DAY_S, "1d behind"), (200.0, ""), (-200.0, "")])
def test_it_is_zookeepers_time_and_a_wrong_clock_is_told(now: dict[str, float], ahead_s: float, told: str) -> None:
    clock = ZooKeeperClock()
    clock.heard(1_000_000_000)
    now["wall"] += 60 + ahead_s
    now["boot"] += 60
    assert clock.wall_us() == 1_000_060_000_000
    assert clock.fault() == (f"{told} ZooKeeper's" if told else "")


def test_until_it_was_heard_it_is_the_machines_own(now: dict[str, float]) -> None:
    clock = ZooKeeperClock()
    now["wall"] += DAY_S
    assert (clock.wall_us(), clock.fault()) == (1_086_400_000_000, "")
    clock.heard(0)
    assert (clock.wall_us(), clock.fault()) == (1_086_400_000_000, "")


@pytest.mark.parametrize("clock_set", ["wall", "boot"])
def test_it_is_heard_anew_once_this_machines_clock_was_set_or_the_machine_stood_still(now: dict[str, float], clock_set: str) -> None:
    clock = ZooKeeperClock()
    assert not clock.is_outdated()
    now["wall"] -= DAY_S
    assert not clock.is_outdated(), "it was not heard yet"
    clock.heard(1_000_000_000)
    assert (clock.fault(), clock.is_outdated()) == ("1d behind ZooKeeper's", False), "wrong, but as it was"
    now["wall"] += 1000
    now["boot"] += 1200
    assert not clock.is_outdated()
    now[clock_set] += DAY_S
    assert clock.is_outdated()
    clock.heard(1_000_000_000)
    assert not clock.is_outdated()
