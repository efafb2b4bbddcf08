"""What a server says of its load: other work, means, arrivals and service times."""

from __future__ import annotations

import pytest

from rmgr.daemons.server.work import LoadMeter, machine_busy_s


class Clocks:
    busy = 0.0
    own = 0.0


def meter(slots: int = 2, cores: int = 4) -> tuple[LoadMeter, Clocks]:
    clocks = Clocks()
    return LoadMeter(slots, cores, 0.0, busy_s=lambda: clocks.busy, own_s=lambda: clocks.own), clocks


@pytest.mark.parametrize(
    ("busy", "own", "other"),
    [
        (0.0, 0.0, 0.0),
        (20.0, 0.0, 0.0),  # two cores of others, and two that are no slots
        (30.0, 0.0, 1.0),
        (40.0, 20.0, 0.0),  # all are busy, two of them with calls
        (40.0, 10.0, 1.0),
    ],
)
def test_other_work_counts_beyond_the_cores_that_are_no_slots(busy: float, own: float, other: float) -> None:
    load, clocks = meter()
    clocks.busy, clocks.own = busy, own
    assert load.now(10.0, 0, 0, "g1").other == pytest.approx(other)


def test_between_two_looks_the_last_one_holds_and_a_slot_that_is_lost_takes_nothing_back() -> None:
    load, clocks = meter(slots=1, cores=1)
    clocks.busy, clocks.own = 10.0, 5.0
    assert load.now(10.0, 0, 0, "g1").other == pytest.approx(0.5)
    clocks.busy = 100.0
    assert load.now(10.1, 0, 0, "g1").other == pytest.approx(0.5)
    clocks.busy, clocks.own = 15.0, 0.0
    assert load.now(20.0, 0, 0, "g1").other == pytest.approx(0.5)


def test_the_mean_load_is_since_the_same_gateway_asked() -> None:
    load, _ = meter()
    load.changed(0.0, 2)
    load.changed(5.0, 4)
    assert load.now(10.0, 3, 1, "g1").mean_load == pytest.approx(3.0)
    assert load.now(20.0, 3, 1, "g1").mean_load == pytest.approx(4.0)
    assert load.now(20.0, 3, 1, "g2").mean_load == pytest.approx(3.5)


def test_arrivals_and_service_times_are_since_the_start() -> None:
    load, _ = meter()
    for seconds in (1.0, 3.0):
        load.arrived()
        load.served(seconds)
    told = load.now(10.0, 0, 0, "g1")
    assert (told.arrivals_per_s, told.service_s, told.service_cv) == (pytest.approx(0.2), pytest.approx(2.0), pytest.approx(0.5))


def test_the_machine_says_how_busy_it_was() -> None:
    before = machine_busy_s()
    assert before is None or 0.0 < before <= (machine_busy_s() or 0.0)
