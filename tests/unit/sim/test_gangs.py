"""Jobs that share cores in time, in the simulator: slots of the queue tree, lasting positions, one row per job."""

from __future__ import annotations

import pytest

from rmgr.model.states import State
from rmgr.sched import job as sched_job
from rmgr.sched.capacity.gangs import Carousel
from rmgr.sched.catalogue import policy_named
from rmgr.sched.engine import run_pass
from rmgr.sched.job import Node
from rmgr.sched.plan import GangSet, Start, Why
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.records import Gang, Limits, Maintenance
from rmgr.sched.state.cluster import ClusterState
from rmgr.sched.state.event_log import Passed, described, encode
from rmgr.sched.tree.shape import AllocationRule, choose
from rmgr.sim.engine.driver import simulate
from rmgr.sim.engine.outcome import Result, Setting
from rmgr.sim.engine.validate import violations
from rmgr.sim.runs.output import summary
from rmgr.sim.workload.events import Cancel, Event, FailOver, NodesFail, NodesRepaired
from rmgr.sim.workload.jobs import SECOND, Workload, WorkloadJob


def a_job(number: int, submit: int, run: int, processors: int, queue: str = "") -> WorkloadJob:
    times = {"submit_us": submit * SECOND, "run_us": run * SECOND, "estimate_us": run * SECOND}
    return WorkloadJob(number=number, processors=processors, processes=processors, queue=queue, **times)


def spells(result: Result, number: int) -> list[tuple[float, float, str]]:
    return [(s.start_us / SECOND, s.end_us / SECOND, str(s.parting)) for s in result.outcomes[number - 1].spells]


def shares(*jobs: WorkloadJob, quantum: str = "2s", spells: bool = True, events: tuple[Event, ...] = (), **params: str) -> Result:
    """Under dqt on four one-core nodes, validated."""
    policy = policy_named("dqt", {"quantum": quantum, **params})
    setting = Setting(nodes=4, pipeline=(Stage(policy),), policy="dqt", spells=spells, events=events)
    workload = Workload(name="by hand", jobs=jobs, processors=4)
    result = simulate(workload, setting)
    assert violations(result, workload, setting) == []
    return result


def test_jobs_of_a_queue_run_in_turn_and_a_job_ends_in_the_middle_of_its_slot() -> None:
    # 1 and 2 stand in the root's queue, slots of 2 s. 1 ends at 9 s in its third slot; the rest of it is idle.
    result = shares(a_job(1, 0, 5, 4), a_job(2, 0, 4, 4))
    assert spells(result, 1) == [(0, 2, "suspended"), (4, 6, "suspended"), (8, 9, "ended")]
    assert spells(result, 2) == [(2, 4, "suspended"), (6, 8, "ended")]
    assert [outcome.turns for outcome in result.outcomes] == [3, 2]


def test_positions_survive_an_arrival_which_delays_others_by_its_own_slots_only() -> None:
    # 1, 2, 3 of the root in turn; one-core jobs come all the time and run below. The turn of 3 comes in each round.
    few = shares(a_job(1, 0, 6, 4), a_job(2, 0, 6, 4), a_job(3, 0, 6, 4))
    many = shares(*(a_job(n, 0, 6, 4) for n in (1, 2, 3)), *(a_job(4 + n, 1 + n, 1, 1) for n in range(12)), most_jobs="0")
    slots = {n: len(spells(many, n)) for n in (1, 2, 3)}
    assert slots == {1: 3, 2: 3, 3: 3}
    taken = sum(outcome.turns for outcome in many.outcomes[3:]) * 2
    for n in (1, 2, 3):
        before, after = few.outcomes[n - 1].end_us, many.outcomes[n - 1].end_us
        assert before <= after <= before + taken * SECOND


def test_a_job_is_one_row_and_its_stretches_are_kept_only_when_asked() -> None:
    jobs = (a_job(1, 0, 5, 4), a_job(2, 1, 4, 4), a_job(3, 3, 7, 1))
    plain, whole = shares(*jobs, spells=False), shares(*jobs)
    assert [len(outcome.spells) for outcome in plain.outcomes] == [1, 1, 1]
    for one, other in zip(plain.outcomes, whole.outcomes, strict=True):
        assert (one.end_us, one.ran_us, one.turns) == (other.end_us, other.ran_us, other.turns)
        assert one.ran_us == one.job.run_us
    assert "suspensions" in summary(plain)
    assert summary(plain)["suspensions"] == 0


def test_jobs_of_a_gang_lose_their_node_or_are_cancelled_and_the_others_go_on() -> None:
    lost = shares(
        a_job(1, 0, 4, 4), a_job(2, 0, 4, 2), a_job(3, 0, 4, 2),
        events=(NodesFail(5 * SECOND, ((0, 0),)), NodesRepaired(7 * SECOND, ((0, 0),)), Cancel(9 * SECOND, 3)),
    )
    assert [spell.parting for spell in lost.outcomes[0].spells if spell.parting != "suspended"] == ["lost", "ended"]
    assert [outcome.state for outcome in lost.outcomes] == [State.COMPLETED, State.COMPLETED, lost.outcomes[2].state]


def test_a_fail_over_changes_no_slot() -> None:
    jobs = tuple(a_job(n, n // 3, 3 + n % 5, 1 + n % 4) for n in range(1, 15))
    steady = shares(*jobs, newcomers="next_round")
    shaken = shares(*jobs, newcomers="next_round", events=tuple(FailOver(at * SECOND, 0) for at in range(1, 40, 3)))
    assert [spells(steady, job.number) for job in jobs] == [spells(shaken, job.number) for job in jobs]


def test_weights_give_slots_by_priority() -> None:
    requests = {
        n: sched_job.Job(id=n, submit_us=0, processes=4, limit_us=60 * SECOND, priority=priority) for n, priority in ((1, 0), (2, 100))
    }
    policy = policy_named("dqt", {"quantum": "1s", "weights": "0:1,100:3"})
    setting = Setting(nodes=4, pipeline=(Stage(policy),), policy="dqt", spells=True, requests=requests)
    result = simulate(Workload(name="by hand", jobs=(a_job(1, 0, 6, 4), a_job(2, 0, 6, 4)), processors=4), setting)
    assert spells(result, 2) == [(1, 4, "suspended"), (5, 8, "ended")]


def test_the_record_of_a_large_gang_fits_into_128_kib_and_is_read_as_the_same_slots() -> None:
    wheel = Carousel(Gang("dqt", 1_000_000, 0, 0, 2, ((0, 511, 1),), ()))
    for job_id in range(1, 4097):
        wheel.add(90_000_000 + job_id, choose(wheel.entries, 1, AllocationRule.APA, {}) or 0, 1)
    wheel.advance_to(12_345)
    record = wheel.record("dqt", "dqt", "default")
    assert len(encode(Passed(0, 1, (), described([GangSet(record, Why("dqt", "shares"))])))) < 128 * 1024
    other = Carousel(record)
    for _ in range(3):
        assert other.rotation.row() == wheel.rotation.row()
        wheel.advance_to(wheel.rotation.now + 7)
        other.advance_to(other.rotation.now + 7)


def test_a_gang_grows_with_the_partition_and_nobody_moves() -> None:
    state = ClusterState([Node(id=0), Node(id=4)])
    pipeline = (Stage(policy_named("dqt", {"quantum": "1s", "allocation": "rr"})),)

    def submit(job_id: int, processes: int, at: int) -> Gang:
        state.job_submitted(sched_job.Job(id=job_id, submit_us=at * SECOND, processes=processes))
        plan = run_pass(state, frozenset(Cause), now=at * SECOND, seed=0, pipeline=pipeline)
        assert plan.faults == ()
        state.apply(plan, at * SECOND)
        (gang,) = state.snapshot().gangs
        again = ClusterState.restored(state.snapshot())
        assert again.snapshot() == state.snapshot()
        return gang

    for job_id in (1, 2, 3):
        gang = submit(job_id, 1 + job_id % 2, 0)
    before = {run.job.id: run.placement for run in state.snapshot().running}
    assert (gang.leaves, gang.homes) == (((0, 0, 1), (4, 4, 1)), {1: 0, 3: 0, 2: 1})
    rows = Carousel(gang).rotation
    rows.advance(5)
    for node in (Node(id=2), Node(id=3)):
        state.node_changed(node)
    gang = submit(4, 4, 5)
    assert gang.leaves == ((0, 0, 1), (4, 4, 1), (2, 3, 1))
    assert gang.homes == {4: 0, 1: 1, 3: 1, 2: 3}
    assert before.items() <= {run.job.id: run.placement for run in state.snapshot().running}.items()
    assert [task for _, task in Carousel(gang).rotation.row()] == [task for _, task in rows.row()]
    assert submit(5, 1, 6).homes[5] in {4, 5, 6}


@pytest.mark.parametrize("closed", [False, True], ids=["opened since", "closed since"])
def test_a_gang_grows_also_where_a_node_has_closed_or_opened_since_its_jobs_began(closed: bool) -> None:
    state = ClusterState([Node(id=0, closed=not closed), Node(id=1), Node(id=2), Node(id=3)])
    pipeline = (Stage(policy_named("dqt", {"quantum": "1s"})),)

    def submit(job_id: int, at: int) -> dict[int, int]:
        state.job_submitted(sched_job.Job(id=job_id, submit_us=at * SECOND, processes=3))
        plan = run_pass(state, frozenset(Cause), now=at * SECOND, seed=0, pipeline=pipeline)
        assert plan.faults == ()
        state.apply(plan, at * SECOND)
        (gang,) = state.snapshot().gangs
        return gang.homes

    assert submit(1, 0) == {1: 0}
    state.node_changed(Node(id=0, closed=closed))
    for added in (4, 5):
        state.node_changed(Node(id=added))
    assert set(submit(2, 1)) == {1, 2}
    assert [run.job.id for run in state.snapshot().running] == [1, 2]


def test_a_limit_of_one_user_holds_up_nobody_else_who_comes_at_the_same_time() -> None:
    state = ClusterState([Node(id=0), Node(id=1)])
    state.limits_changed("default", Limits(max_jobs_per_user=1))
    for job_id, user in ((1, "ann"), (2, "ann"), (3, "ben"), (4, "eve")):
        state.job_submitted(sched_job.Job(id=job_id, submit_us=0, user=user))
    plan = run_pass(state, frozenset(Cause), now=0, seed=0, pipeline=(Stage(policy_named("dqt")),))
    assert plan.faults == ()
    assert sorted(decision.job_id for decision in plan.decisions if isinstance(decision, Start)) == [1, 3, 4]
    assert str(plan.why(2)) == "limits: user ann may run 1 job at once and does"


def test_a_job_for_a_node_that_has_grown_waits_for_the_tree_of_smaller_nodes_and_is_not_rejected() -> None:
    state = ClusterState([Node(id=0), Node(id=1)])
    pipeline = (Stage(policy_named("dqt", {"quantum": "1s"})),)

    def starts(at: int) -> list[int]:
        plan = run_pass(state, frozenset(Cause), now=at * SECOND, seed=0, pipeline=pipeline)
        assert plan.faults == ()
        state.apply(plan, at * SECOND)
        return [decision.job_id for decision in plan.decisions if isinstance(decision, Start)]

    state.job_submitted(sched_job.Job(id=1, submit_us=0))
    assert starts(0) == [1]
    state.node_changed(Node(id=1, cores=4))
    state.job_submitted(sched_job.Job(id=2, submit_us=1, threads=4))
    assert starts(1) == []
    assert list(state.partitions["default"].jobs) == [2]
    state.job_ended(1)
    assert starts(2) == [2]


def test_a_job_that_waits_for_maintenance_is_told_so() -> None:
    state = ClusterState([Node(id=0)])
    state.maintenance_planned(Maintenance(1, 100 * SECOND, 200 * SECOND, (0,)))
    state.job_submitted(sched_job.Job(id=1, submit_us=0))
    plan = run_pass(state, frozenset(Cause), now=0, seed=0, pipeline=(Stage(policy_named("dqt")),))
    assert "planned for maintenance" in str(plan.why(1))
    state.maintenance_over(1)
    plan = run_pass(state, frozenset(Cause), now=200 * SECOND, seed=0, pipeline=(Stage(policy_named("dqt")),))
    assert [decision.job_id for decision in plan.decisions if isinstance(decision, Start)] == [1]


def test_two_partitions_under_one_policy_have_a_gang_each() -> None:
    # Two cores each: 1 and 2 take turns in one partition, 3 and 4 in the other, whose gang has the same name.
    nodes = tuple(Node(id=n, cores=1, partition="main" if n < 2 else "debug") for n in range(4))
    jobs = (a_job(1, 0, 4, 2, "q0"), a_job(2, 0, 4, 2, "q0"), a_job(3, 1, 4, 2, "q1"), a_job(4, 1, 4, 2, "q1"))
    setting = Setting(
        nodes=nodes, pipeline=(Stage(policy_named("dqt", {"quantum": "2s"})),), policy="dqt", spells=True,
        partitions={"q0": "main", "q1": "debug"},
    )
    workload = Workload(name="by hand", jobs=jobs, processors=4)
    result = simulate(workload, setting)
    assert violations(result, workload, setting) == []
    assert [spells(result, n) for n in (1, 2)] == [[(0, 2, "suspended"), (4, 6, "ended")], [(2, 4, "suspended"), (6, 8, "ended")]]
    assert [spells(result, n) for n in (3, 4)] == [[(1, 3, "suspended"), (5, 7, "ended")], [(3, 5, "suspended"), (7, 9, "ended")]]
    assert {outcome.spells[0].cores for outcome in result.outcomes} == {((0, 1),), ((2, 3),)}
