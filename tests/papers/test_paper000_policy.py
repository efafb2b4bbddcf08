"""Paper 000: exact statements of papers.md 1.7, the policies, the report of `rmgr sim paper 000`, and which cases decide (1.9)."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from heapq import heappop, heappush
from operator import attrgetter

import pytest
from test_paper000_again import CPUS, EAGER, a_workload

from rmgr.sched.engine import run_pass
from rmgr.sched.job import Job, Node
from rmgr.sched.plan import HoldCores, ReleaseHold, Start
from rmgr.sched.policies.connection_reservation import ConnectionReservation, Match
from rmgr.sched.policies.queue_first_fit import QueueFirstFit, QueueSelect
from rmgr.sched.policy import Cause, Policy, Stage
from rmgr.sched.queue_class import HPC2500, Ladder
from rmgr.sched.state.cluster import ClusterState
from rmgr.sim.engine.driver import Setting, simulate
from rmgr.sim.engine.validate import check
from rmgr.sim.engine.world import shuffled
from rmgr.sim.models.hpc2500 import hpc2500
from rmgr.sim.papers import paper000
from rmgr.sim.papers.paper000 import (
    ALL,
    CHECKS,
    CLAIMS,
    CONVENTIONAL,
    LOADS,
    PARTITIONED,
    PROPOSAL_1,
    PROPOSAL_2,
    QUEUES,
    Measured,
    Paper000Run,
    Paper000Runs,
    Relation,
    Scene,
    Waits,
    measure,
    promised_to,
)
from rmgr.sim.papers.report import Box, Boxes, PaperCheck, Within
from rmgr.sim.workload.jobs import SECOND

EXACT = [check for name in ("C0.1", "C0.2", "C0.3", "C0.4", "C0.5") for check in CHECKS[name](Paper000Runs(()))]


@pytest.mark.parametrize("exact", EXACT, ids=attrgetter("id"))
def test_c0_1_to_c0_5(exact: PaperCheck) -> None:
    assert exact.required
    assert exact.holds, f"{exact.what}: {exact.ours}, not {exact.paper}"


def test_c0_7_with_a_limit_every_job_starts_in_the_stream_and_without_one_after_it() -> None:
    finite, without, *reported = CHECKS["C0.7"](Paper000Runs(()))
    assert (finite.required, finite.holds) == (True, True), finite.ours
    assert (without.required, without.holds) == (True, True), without.ours
    assert {one.verdict for one in reported} == {"reported"}


def test_c0_6_no_queue_ever_holds_more_reservations_than_its_limit_and_the_small_ones_none() -> None:
    run = measure(Paper000Run(system=PROPOSAL_2, load=Fraction("1.1"), seed=1, jobs=1500))
    assert run.faults == 0
    limits = {queue.name: queue.max_reservations for queue in HPC2500}
    assert all(most <= limits[queue] for queue, most in run.held.items()), run.held
    assert set(run.held) == {"s128", "d32", "d128", "d512"}
    # golden: a change of these numbers is a change of the policy, of the workload or of where jobs are put
    assert run.made == {"s128": 4, "d32": 6, "d128": 4, "d512": 9}
    assert {queue: waits.max_s for queue, waits in run.waits.items()} == {
        "ss8": 13_339, "s8": 12_972, "s128": 274_303, "d32": 169_430, "d128": 182_417, "d512": 333_365, "all": 333_365
    }  # fmt: skip


@pytest.mark.parametrize("policy", [QueueSelect(), ConnectionReservation(queues=EAGER)], ids=["proposal 1", "eager reservations"])
def test_schedules_are_valid_on_nodes_and_the_same_again(policy: Policy) -> None:
    workload = hpc2500(800, seed=3).at_load(Fraction("1.2"))
    setting = Setting(nodes=11, cores=128, pipeline=(Stage(policy),), policy=policy.name)
    result = simulate(workload, setting)
    assert result.faults == ()
    check(result, workload)
    assert simulate(workload, setting).outcomes == result.outcomes


def test_another_leader_after_every_pass_makes_the_same_reservations() -> None:
    workload = a_workload(5, 150)
    pipeline = (Stage(ConnectionReservation(queues=EAGER)),)
    state = ClusterState([Node(id=0, cores=CPUS)])
    ends: list[tuple[int, int]] = []
    arrivals = list(workload.jobs)
    starts: dict[int, int] = {}
    reserved = 0
    while arrivals or ends:
        now = min([end for end, _ in ends[:1]] + [job.submit_us for job in arrivals[:1]])
        causes = set()
        while ends and ends[0][0] == now:
            state.job_ended(heappop(ends)[1], now=now)
            causes.add(Cause.JOB_ENDED)
        while arrivals and arrivals[0].submit_us == now:
            job = arrivals.pop(0)
            request = Job(id=job.number, submit_us=now, processes=job.processes, threads=job.threads, limit_us=job.run_us, queue=job.queue)
            state.job_submitted(request)
            causes.add(Cause.JOB_SUBMITTED)
        plan = run_pass(state, frozenset(causes), now=now, seed=0, pipeline=pipeline)
        state = ClusterState.restored(shuffled(state.snapshot(), random.Random(now)))
        pipeline = (Stage(ConnectionReservation(queues=EAGER)),)
        assert run_pass(state, frozenset(causes), now=now, seed=0, pipeline=pipeline) == plan
        reserved += sum(isinstance(decision, HoldCores) for decision in plan.decisions)
        for run in state.apply(plan, now):
            starts[run.job.id] = now
            heappush(ends, (now + workload.jobs[run.job.id - 1].run_us, run.job.id))
    result = simulate(workload, Setting(nodes=1, cores=CPUS, pipeline=pipeline, policy="connection_reservation"))
    assert reserved > 20
    assert starts == {outcome.job.number: outcome.start_us for outcome in result.outcomes}


def test_surplus_is_free_as_soon_as_the_first_promised_job_ends() -> None:
    # node 0: 64 + 64 CPUs run; 100 are wanted, so 28 too many are promised: they come from the first that ends, and serve the 28 that wait
    scene = Scene(ConnectionReservation(), cores=128)
    scene.runs(1, 64, "d128", ((0, 0, 64),))
    scene.runs(2, 64, "d128", ((0, 0, 64),))
    assert promised_to(3, scene.arrives(3, 100, "d128")) == [1, 2]
    scene.arrives(4, 28, "d32")
    scene.arrives(5, 9, "d32")
    scene.state.job_ended(2, now=scene.now * SECOND)
    plan = scene.look(Cause.JOB_ENDED)
    assert [d.job_id for d in plan.decisions if isinstance(d, Start)] == [4]
    assert [d.hold.held[0].cores for d in plan.decisions if isinstance(d, HoldCores)] == [((0, 0, 36),)]
    assert str(plan.why(3)) == "connection_reservation: starts when running job 1 has ended, on its resources"
    scene.state.job_ended(1, now=scene.now * SECOND)
    assert [d.job_id for d in scene.look(Cause.JOB_ENDED).decisions if isinstance(d, Start)] == [3]


@pytest.mark.parametrize("first_ended", [False, True])
def test_a_reservation_on_a_node_that_is_lost_is_given_up(first_ended: bool) -> None:
    scene = Scene(ConnectionReservation(), cores=128, nodes=3)
    for job_id in (1, 2, 3):
        scene.runs(job_id, 128, "d128", ((job_id - 1, job_id - 1, 128),))
    assert promised_to(4, scene.arrives(4, 128, "d128")) == [1]
    scene.state.node_changed(Node(id=0, cores=128, closed=True))
    if first_ended:
        scene.state.job_ended(1, now=scene.now * SECOND)
    plan = scene.look(Cause.JOB_ENDED if first_ended else Cause.NODES_CHANGED)
    assert [d.job_id for d in plan.decisions if isinstance(d, ReleaseHold)] == [4]
    scene.state.job_ended(2, now=scene.now * SECOND)
    assert [d.placement for d in scene.look(Cause.JOB_ENDED).decisions if isinstance(d, Start)] == [((1, 1, 128),)]


@pytest.mark.parametrize(("match", "chosen"), [(Match.SHAPE, [2]), (Match.CPUS, [1])])
def test_match_says_what_a_running_job_must_equal(match: Match, chosen: list[int]) -> None:
    scene = Scene(ConnectionReservation(match=match), cores=128)
    scene.runs(1, 32, "d128", ((0, 0, 32),), threads=2)
    scene.runs(2, 64, "d128", ((0, 0, 64),))
    assert promised_to(3, scene.arrives(3, 64, "d128")) == chosen


@pytest.mark.parametrize(("affinity", "queue"), [(False, "d32"), (True, "s128")])
def test_thread_affinity_is_a_parameter_of_both_policies(affinity: bool, queue: str) -> None:
    for policy in (QueueSelect(thread_affinity=affinity), ConnectionReservation(thread_affinity=affinity)):
        scene = Scene(policy, cores=128)
        scene.arrives(1, 4, "", threads=8)
        assert scene.state.snapshot().running[0].job.queue == queue


@pytest.mark.parametrize(("nodes", "started"), [(0, {3, 4}), (1, {3}), (2, {3, 4})])
def test_first_fit_past_others_can_be_kept_to_some_nodes(nodes: int, started: set[int]) -> None:
    # 8 of 16 cores are taken on node 0; job 2 (32) waits; 3 (8) passes it on node 0, 4 (8) only on node 1
    scene = Scene(QueueFirstFit(firstfit_nodes=nodes), cores=16, nodes=2)
    scene.runs(1, 8, "d32", ((0, 0, 8),))
    scene.arrives(2, 32, "d32")
    ran = set()
    for job_id in (3, 4):
        ran |= {d.job_id for d in scene.arrives(job_id, 8, "d32").decisions if isinstance(d, Start)}
    assert ran == started


def test_queues_are_scanned_in_the_order_of_the_classes_or_as_told() -> None:
    def first(scan: tuple[str, ...], queues: Ladder = HPC2500) -> str:
        scene = Scene(QueueFirstFit(queues=queues, scan=scan), cores=8)
        for job_id, queue in ((1, "d512"), (2, "ss8"), (3, "s8")):
            scene.state.job_submitted(Job(id=job_id, submit_us=0, processes=8, queue=queue))
        scene.look(Cause.JOB_SUBMITTED)
        return scene.state.snapshot().running[0].job.queue

    assert [first(()), first(("d512",)), first((), HPC2500[::-1]), first(("s8", "d512"))] == ["ss8", "d512", "d512", "s8"]
    with pytest.raises(ValueError, match="queue d99 is to be scanned"):
        QueueFirstFit(scan=("d99",))


def test_the_workload_is_the_same_whoever_names_the_queue() -> None:
    mine, users = hpc2500(500, seed=4), hpc2500(500, seed=4, kind="user")
    assert tuple(replace(job, queue="") for job in users.jobs) == mine.jobs
    assert {job.queue for job in users.jobs} == {queue.name for queue in HPC2500}
    assert hpc2500(500, seed=5).jobs != mine.jobs
    assert float(mine.at_load(Fraction("0.95")).offered_load or 0) == pytest.approx(0.95, abs=1e-3)


def test_the_report_of_named_checks_runs_what_they_need_only() -> None:
    seen: list[tuple[int, int]] = []
    report = paper000.STUDY.report(Paper000Runs((1,)), ["C0.2", "C0.5"], on_progress=lambda *at: seen.append(at))
    assert [one.id for one in report.checks] == ["C0.2a", "C0.2b", "C0.5"]
    assert report.passes
    assert seen == [(0, 0)]
    assert {one["verdict"] for one in report.document()["checks"]} == {"pass"}


def test_the_sweep_covers_thresholds_5_to_40_limits_0_to_4_and_small_queues() -> None:
    settings = paper000.swept()
    assert {limit for _, limit, _ in settings} == {0, 1, 2, 3, 4}
    assert {threshold for threshold, limit, _ in settings if limit} == {5, 10, 20, 30, 40}
    assert len(settings) == 41
    runs = Paper000Runs((1, 2, 3))
    list(paper000.tables(runs)), list(paper000.figures(runs))
    swept = [run for run in runs.asked if run.load == paper000.SWEEP_LOAD and run.jobs == paper000.FEWER_JOBS]
    assert {run.seed for run in swept} == {1, 2}
    assert len({run.queues for run in swept}) == 41 + 2, "and the paper's settings, scanned from both ends"
    assert len(swept) == 2 * (41 + 3 * 2)
    without, small = (paper000.classes((10, 2, with_small)) for with_small in (False, True))
    assert [queue.max_reservations for queue in without] == [0, 0, 2, 2, 2, 2]
    assert [queue.max_reservations for queue in small] == [2] * 6


SEEDS = (1, 2)


def bars(wait_s: float) -> Measured:
    """Everybody waits so long."""
    waits = {queue: Waits(jobs=1, median_s=wait_s, mean_s=wait_s, max_s=wait_s) for queue in (*QUEUES, ALL)}
    return Measured(waits=waits, utilisation=1, held={}, made={}, faults=0)


def runs(waits: dict[str, float]) -> Paper000Runs:
    """Of the higher load."""
    known = Paper000Runs(SEEDS, quick=True)
    known.found = {Paper000Run(system=name, load=LOADS[-1], seed=seed): bars(wait) for name, wait in waits.items() for seed in SEEDS}
    return known


@pytest.mark.parametrize(
    ("relation", "pair", "tie"),
    [
        (Relation.LOWEST, (0, 0), True),
        (Relation.LOWEST, (5, 5), True),
        (Relation.BELOW, (0, 0), True),
        (Relation.EQUAL, (0, 0), True),
        (Relation.EQUAL, (5, 5), False),
        (Relation.ABOVE, (5, 0), False),
    ],
)
def test_equal_bars_decide_nothing(relation: Relation, pair: tuple[float, float], tie: bool) -> None:
    assert relation.is_tie(*pair) is tie


def test_a_check_counts_ties_and_says_nothing_when_nobody_waits() -> None:
    nobody = runs(dict.fromkeys((CONVENTIONAL, PARTITIONED, PROPOSAL_1, PROPOSAL_2), 0.0))
    found = [check for name in ("C0.8", "C0.9", "C0.10", "C0.11") for check in CHECKS[name](nobody)]
    assert all(check.ours == {} and not check.holds and check.verdict == "reported" for check in found)
    assert found[0].document()["ties"] == {f"{queue} at load 1.1": 2 for queue in ("d32", "d128", ALL)}
    assert set(found[0].document()["decided"].values()) == {0}
    some = runs({CONVENTIONAL: 9, PARTITIONED: 9, PROPOSAL_1: 1, PROPOSAL_2: 2})
    first = next(CHECKS["C0.8"](some))
    assert (first.id, first.holds, first.document()["decided"]["d32 at load 1.1"]) == ("C0.8a", True, 2)
    verdicts = list(paper000.tables(some))[-1]
    assert len(verdicts.columns) == 8 + len(SEEDS)
    assert not Within().holds({}, {})


def test_a_region_asks_every_seed_and_queue_and_a_queue_that_never_decides_is_told() -> None:
    lowest = CLAIMS[0]
    place = paper000.PLACES[0]
    asking = Paper000Runs((1, 2, 3))
    for anywhere in paper000.PLACES:
        paper000.votes(asking, lowest, anywhere)
    assert len(asking.asked) == 3 * 2 * 3 * (2 + 5)

    def votes(waits: dict[str, float]) -> tuple[int, int, bool]:
        of_two = Paper000Runs(SEEDS)
        for name in waits:
            place.of(of_two, name)
        of_two.found = {run: bars(waits[run.system]) for run in of_two.asked}
        return paper000.votes(of_two, lowest, place)

    assert votes({CONVENTIONAL: 9.0, PROPOSAL_1: 1.0, PROPOSAL_2: 2.0}) == (6, 6, True)
    assert votes({CONVENTIONAL: 9.0, PROPOSAL_1: 1.0, PROPOSAL_2: 1.0}) == (0, 0, False)
    assert paper000.interval(9, 9) == pytest.approx((0.701, 1.0), abs=0.001)
    assert paper000.interval(0, 0) == (0.0, 1.0)


def test_more_small_jobs_are_more_small_jobs_and_the_first_fit_of_the_baseline_is_kept_to_its_nodes() -> None:
    few, many = ([job.processors <= 8 for job in hpc2500(2000, seed=3, small=factor).jobs] for factor in (1, 30))
    assert sum(few) / len(few) == pytest.approx(0.72, abs=0.03)
    assert sum(many) / len(many) > 0.98
    cells = [Paper000Run(system=CONVENTIONAL, load=Fraction(2), seed=1, jobs=400, firstfit_nodes=nodes) for nodes in (0, 1)]
    free, kept = map(measure, cells)
    assert free.waits != kept.waits


def test_figures_2_and_3_are_boxes_by_queue() -> None:
    median, longest = paper000.boxes({PROPOSAL_1: runs({PROPOSAL_1: 3.0}).of(PROPOSAL_1, LOADS[-1])}, "load 1.1")
    assert isinstance(median, Boxes)
    assert (median.groups, longest.boxes) == ((*QUEUES, ALL), (Box(PROPOSAL_1, ((3.0, 3.0),) * 7),))
