"""Every shipped policy obeys the laws of rmgr/sim/laws/check.py in any world; and the further promises of some policies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from sched_worlds import worlds

from rmgr.sched.catalogue import ORDERS, POLICIES, SEARCHES, policy_named
from rmgr.sched.plan import Reserve
from rmgr.sched.policies.searches import REST
from rmgr.sched.policy import Stage
from rmgr.sched.queue_class import QueueClass
from rmgr.sim.laws.check import Tried, starved, told, tried, waived
from rmgr.sim.laws.world import Budget, Drive, SmallWorld

Pipeline = tuple[Stage, ...]

#: Queue classes of the size of these worlds; jobs come to `default` (no class: they are selected), `small` or `large`.
CLASSES = (
    QueueClass(name="small", max_cpus=2, max_processes=2, max_threads=2),
    QueueClass(name="large", max_cpus=8, max_processes=8, max_threads=2, reservation_threshold=1, max_reservations=2, head_trigger=True),
)
AGED = {"max_wait": "0.000004"}
PLAIN = "head_blocking"
#: Every policy of the catalogue as it is; any order with any search; ageing over some.
EVERY = (
    *((name, {}) for name in POLICIES),
    *(("fcfs", {"order": order, "search": search}) for order in ORDERS for search in SEARCHES if (order, search) != ("fcfs", PLAIN)),
    ("sjf", AGED),
    ("ljf_first_fit", AGED),
)
EVERY_POLICY = pytest.mark.parametrize(
    ("name", "params"), EVERY, ids=lambda value: value if isinstance(value, str) else "+".join(value.values()) or "-"
)
FEW = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def pipeline(name: str, params: dict[str, str]) -> Pipeline:
    takes_classes = "queues" in {parameter.field for parameter in POLICIES[name].parameters}
    return (Stage(policy_named(name, params, records=CLASSES if takes_classes else ())),)


def assert_lawful(result: Tried) -> None:
    if result.breach is not None:
        story = "\n".join(told(result.breach))
        pytest.fail(f"{result.breach.law} is broken: {result.breach.text}\n{story}")


@EVERY_POLICY
@FEW
@given(world=worlds())
def test_every_law_holds_in_every_world(name: str, params: dict[str, str], world: SmallWorld) -> None:
    assert_lawful(tried(world, lambda: pipeline(name, params)))


@EVERY_POLICY
def test_who_lets_a_job_starve_under_an_endless_stream_says_so(name: str, params: dict[str, str]) -> None:
    def make() -> Pipeline:
        return pipeline(name, params)

    if any(result.breach is not None for result in starved(make)):
        assert "endless" in waived(make())


def test_first_fit_lets_a_large_job_starve() -> None:
    broken = [result.breach.text for result in starved(lambda: pipeline("first_fit", {})) if result.breach is not None]
    assert broken == ["a job of every node among jobs of one node waits 94 minutes while 100 others start (" + str(REST) + ")"]


def run(world: SmallWorld, make: Callable[[], Pipeline], look: Callable[[Drive], None] = lambda drive: None) -> Drive:
    drive = Drive(world, make(), budget=Budget(0))
    while drive.advance():
        drive.decide()
        look(drive)
        drive.carry_out()
    return drive


def starts(drive: Drive) -> dict[int, int]:
    """Of each job that ran: its first start."""
    return {stay.job.id: stay.start_us for stay in reversed(drive.stays)}


@FEW
@given(world=worlds(events=False))
def test_conservative_starts_every_job_no_later_than_it_promised_first(world: SmallWorld) -> None:
    promised: dict[int, int] = {}

    def look(drive: Drive) -> None:
        for decision in drive.plan.decisions:
            if isinstance(decision, Reserve) and decision.keep:
                promised.setdefault(decision.job_id, decision.start_us)

    began = starts(run(world, lambda: pipeline("conservative", {}), look))
    for job_id, at_us in promised.items():
        assert began[job_id] <= at_us


@FEW
@given(world=worlds(one_core=True))
def test_counts_and_nodes_decide_alike(world: SmallWorld) -> None:
    """EASY on the fast representation and on the general one: a feature on one node and nowhere asked for selects the latter."""
    first, *others = world.nodes
    general = replace(world, nodes=(replace(first, features=("unused",)), *others))
    fast, slow = (run(w, lambda: pipeline("easy", {})) for w in (world, general))
    assert starts(fast) == starts(slow)


@FEW
@given(world=worlds(one_core=True, events=False))
def test_easy_never_delays_the_head_beyond_its_shadow(world: SmallWorld) -> None:
    """The head's promise can only move earlier while the same job is the head, whatever is backfilled."""
    shadows: dict[int, int] = {}

    def look(drive: Drive) -> None:
        for decision in drive.plan.decisions:
            if isinstance(decision, Reserve):
                assert decision.start_us <= shadows.get(decision.job_id, decision.start_us)
                shadows[decision.job_id] = decision.start_us

    began = starts(run(world, lambda: pipeline("easy", {}), look))
    assert all(began[job_id] <= at_us for job_id, at_us in shadows.items())
