"""Paper 000: selection table and ladder (C0.1), also live; individual priority (C0.2), promised and returned resources (C0.3 to C0.5)."""

from __future__ import annotations

import json
import random
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmgr.coord.views import answers
from rmgr.daemons.leader.facts import job_of
from rmgr.daemons.leader.placement.placer import Placer
from rmgr.daemons.leader.placement.view import copied, tried
from rmgr.errors import Infeasible
from rmgr.model.base import Request
from rmgr.model.block import BlockKey, job_id
from rmgr.model.queue import ClusterSettings, Dispatch, PipelineSpec, QueueSpec
from rmgr.model.states import State
from rmgr.model.submission import Rigid, Submission, Work
from rmgr.procedures.admission import check_class
from rmgr.sched.job import Job, Running, spans_of
from rmgr.sched.policies.connection_reservation import Overtaken, chosen, constant, exceeds, spared
from rmgr.sched.queue_class import HOUR_US, HPC2500, QueueClass, admitting, checked, selected
from tests.harness.leader_bench import Bench
from tests.places import ROOT

CLASSES = {queue.name: queue for queue in HPC2500}


def a_job(processes: int = 1, threads: int = 1, hours: float = 1, job_id: int = 1) -> Job:
    return Job(id=job_id, submit_us=0, processes=processes, threads=threads, limit_us=round(hours * HOUR_US))


# papers.md C0.1; "*" are tried on both sides of two hours
TABLE = [
    (1, 8, 1, "ss8"),
    (8, 1, 2, "s8"),
    *[(1, 64, h, "s128") for h in (1, 2)],
    *[(2, 64, h, "s128") for h in (1, 2)],
    *[(16, 1, h, "d32") for h in (1, 2)],
    *[(16, 2, h, "d32") for h in (1, 2)],
    *[(33, 1, h, "d128") for h in (1, 2)],
    *[(16, 8, h, "d128") for h in (1, 2)],
    *[(8, 16, h, "s128") for h in (1, 2)],
    *[(129, 1, h, "d512") for h in (1, 2)],
    *[(16, 32, h, "d512") for h in (1, 2)],
    *[(1, 129, h, None) for h in (1, 2)],
    *[(9, 64, h, None) for h in (1, 2)],
    *[(513, 1, h, None) for h in (1, 2)],
]


@pytest.mark.parametrize(("processes", "threads", "hours", "queue"), TABLE)
def test_selection_table(processes: int, threads: int, hours: float, queue: str | None) -> None:
    found = selected(a_job(processes, threads, hours), HPC2500)
    assert (found.name if found else None) == queue


def by_hand(p: int, t: int, hours: float) -> str | None:
    """papers.md 1.3, word by word."""
    cpu = p * t
    if cpu <= 8:
        return "ss8" if hours < 2 else "s8"
    if t > 32:
        return "s128" if p <= 8 and cpu <= 128 else None
    if cpu <= 32:
        return "d32"
    if cpu <= 128:
        return "d128" if p > 8 else "s128"
    return "d512" if cpu <= 512 else None


def test_the_ladder_of_the_classes_is_the_rule_of_the_paper_for_every_shape() -> None:
    for processes in range(1, 515):
        for threads in range(1, 514 // processes + 1):
            found = selected(a_job(processes, threads, 1), HPC2500)
            assert (found.name if found else None) == by_hand(processes, threads, 1), (processes, threads)
    for hours in (1.999999, 2, 0):
        found = selected(a_job(2, 2, hours), HPC2500)
        assert found is not None
        assert found.name == ("ss8" if 0 < hours < 2 else "s8")


def test_thread_affinity_sends_jobs_of_few_processes_to_the_queue_for_threads() -> None:
    for processes, threads, without, with_it in [
        (1, 16, "d32", "s128"),
        (8, 4, "d32", "s128"),
        (16, 2, "d32", "d32"),
        (4, 2, "ss8", "ss8"),
    ]:
        job = a_job(processes, threads)
        assert [getattr(selected(job, HPC2500, thread_affinity=affine), "name", None) for affine in (False, True)] == [without, with_it]


def test_the_ladder_of_another_site_follows_from_its_classes_in_any_order() -> None:
    site = (
        QueueClass(name="huge"),
        QueueClass(name="long", max_cpus=16),
        QueueClass(name="short", max_cpus=16, max_time_us=HOUR_US),
        QueueClass(name="debug", max_cpus=2, max_time_us=HOUR_US // 4),
    )
    expected = [((1, 1, 0.1), "debug"), ((1, 2, 0.25), "short"), ((16, 1, 0.5), "short"), ((16, 1, 1), "long"), ((17, 1, 0.1), "huge")]
    for classes in (site, site[::-1]):
        assert [getattr(selected(a_job(*shape), classes), "name", None) for shape, _ in expected] == [name for _, name in expected]


def test_a_job_may_run_in_every_queue_that_admits_it() -> None:
    assert [q.name for q in admitting(a_job(1, 4, 1), HPC2500)] == ["ss8", "s8", "s128", "d32", "d128", "d512"]
    assert [q.name for q in admitting(a_job(1, 64, 1), HPC2500)] == ["s128"]
    elsewhere = replace(CLASSES["d32"], partition="other")
    assert not elsewhere.admits(a_job())


def test_classes_that_mean_nothing_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="queue q: max_cpus is -1"):
        QueueClass(name="q", max_cpus=-1)
    with pytest.raises(ValueError, match="queue q: reservations need max_cpus and max_threads"):
        QueueClass(name="q", max_reservations=1)
    with pytest.raises(ValueError, match="queue d32 is configured twice"):
        checked((*HPC2500, CLASSES["d32"]))


@pytest.mark.parametrize(
    ("processes", "threads", "queue", "w"),
    [(9, 1, "d32", 10.667), (1, 32, "d32", 1.0), (2, 64, "s128", 1.4142), (512, 1, "d512", 5.65685), (16, 32, "d512", 1.0)],
)
def test_constants_of_formula_1(processes: int, threads: int, queue: str, w: float) -> None:
    assert constant(a_job(processes, threads), CLASSES[queue]) == pytest.approx(w, abs=5e-4)


@pytest.mark.parametrize(
    ("processes", "threads", "queue", "at"), [(512, 1, "d512", 4), (16, 32, "d512", 21), (1, 32, "d32", 21), (9, 1, "d32", 2)]
)
def test_the_overtaking_at_which_a_job_reserves(processes: int, threads: int, queue: str, at: int) -> None:
    job = a_job(processes, threads)
    assert [exceeds(count, job, CLASSES[queue]) for count in (at - 1, at, at + 1)] == [False, True, True]


def test_a_start_counts_for_those_ahead_of_it_and_for_nobody_else() -> None:
    jobs = [replace(a_job(16, 32, job_id=i), submit_us=i, queued_us=-1) for i in (1, 2, 3)]
    places = [(job.submit_us, job.id) for job in jobs]
    found = Overtaken().passed([places[0], places[1], places[1]], places[0], CLASSES["d512"])  # one starts behind 1, two behind 2
    assert [found.of(place) for place in places] == [3, 2, 0]
    assert Overtaken.recorded(found.record()) == found
    d512 = replace(CLASSES["d512"], reservation_threshold=1)  # of these jobs w = 1: above it at the second
    assert [job.id for job in found.above(jobs, d512)] == [1, 2]
    after = found.passed([], places[1], CLASSES["d512"])  # 1 has started: what passed only 1 is gone
    assert [after.of(place) for place in places[1:]] == [2, 0]
    assert after.passed([], places[2], CLASSES["d512"]) == Overtaken()


def test_the_record_of_a_queue_is_no_longer_than_its_threshold_and_says_all_that_counts() -> None:
    queue = CLASSES["d32"]
    waiting = [replace(a_job(1, 32, job_id=i), submit_us=i, queued_us=-1) for i in range(1, 201)]  # w = 1, the least there is
    found, passed = Overtaken(), Counter[int]()
    chance = random.Random(1)
    for _ in range(300):
        ahead = chance.randint(1, 200)
        found = found.passed([(ahead, ahead)], (1, 1), queue)
        passed.update(range(1, ahead + 1))
        assert [job.id for job in found.above(waiting, queue)] == [job.id for job in waiting if passed[job.id] > 20]
    assert len(found.places) <= 21


def sized(job_id: int, processes: int, threads: int = 1) -> Job:
    return Job(id=job_id, submit_us=0, processes=processes, threads=threads)


def a_run(job_id: int, processes: int, threads: int = 1, *, since: int = 0, node: int = 0) -> Running:
    return Running(sized(job_id, processes, threads), since, 1 << 60, ((node, node, processes),))


def room(job: Job, _node: int, cores: int) -> int:
    return cores // job.threads


def ids(job: Job, mine: Iterable[Running], others: Iterable[Running] = (), promised: Iterable[int] = (), **options: bool) -> list[int]:
    return [run.job.id for run in chosen(job, list(mine), list(others), frozenset(promised).__contains__, room, **options)]


def test_c0_3_a_match_goes_before_a_larger_job_and_the_earliest_of_matches_first() -> None:
    runs = [a_run(1, 128), a_run(2, 32, since=5), a_run(3, 32, since=3), a_run(4, 64)]
    assert ids(sized(9, 32), runs) == [3]
    assert ids(sized(9, 32), runs, promised=[3]) == [2]
    assert ids(sized(9, 32), runs, promised=[2, 3]) == [1]


def test_c0_3_promised_jobs_are_never_chosen_again() -> None:
    runs = [a_run(1, 64, since=1), a_run(2, 64, since=2)]
    assert ids(sized(9, 64), runs, promised=[1]) == [2]
    assert ids(sized(9, 64), runs, promised=[1, 2]) == []
    assert ids(sized(9, 100), runs, promised=[2]) == [], "nothing is promised when it would not be enough"


def test_a_match_is_one_of_processes_and_threads_or_of_cpus_where_that_is_configured() -> None:
    runs = [a_run(1, 16, 2, since=1), a_run(2, 32, 1, since=2), a_run(3, 64, 1)]
    assert ids(sized(9, 32), runs) == [2]
    assert ids(sized(9, 32), runs, by_cpus=True) == [1]
    spread = Running(sized(1, 32), 0, 1 << 60, ((0, 1, 16),))  # 32 CPUs, but 16 on each of two nodes
    assert ids(sized(9, 1, 32), [spread, a_run(2, 40, node=2)], by_cpus=True) == [2], "a match that it does not fit on is none"


def test_c0_4_the_largest_first_and_the_earlier_of_equals() -> None:
    runs = [a_run(1, 32, since=7, node=1), a_run(2, 64), a_run(3, 32, since=4, node=2)]
    assert ids(sized(9, 96), runs) == [2, 3]
    assert ids(sized(9, 97), runs) == [2, 3, 1]


def test_equal_cpus_are_chosen_by_threads_before_start() -> None:
    runs = [a_run(1, 64, 1, since=1), a_run(2, 2, 32, since=9, node=1)]
    assert ids(sized(9, 10), runs) == [2]


def test_c0_5_all_running_jobs_are_candidates_when_the_queue_has_fewer_cpus() -> None:
    d512 = [a_run(1, 128, node=0), a_run(2, 128, node=1)]
    others = [a_run(3, 256, node=2), a_run(4, 64, node=3), a_run(5, 128, since=-1, node=4)]
    assert ids(sized(9, 512), d512, others) == [3, 5, 1]
    assert ids(sized(9, 256), d512, others, promised=[1]) == [], "not widened: its queue has enough, though promised"


def test_threads_of_a_process_stay_inside_a_node() -> None:
    runs = [a_run(1, 48, node=0), a_run(2, 40, node=1), a_run(3, 20, node=1)]
    assert ids(sized(9, 3, 32), runs) == [], "32 + 16 and 32 + 28 cores hold two processes of 32"
    assert ids(sized(9, 2, 32), runs) == [1, 2]
    closed = {0}

    def room_of_open(job: Job, node: int, cores: int) -> int:
        return 0 if node in closed else cores // job.threads

    assert [run.job.id for run in chosen(sized(9, 32), runs, [], lambda _: False, room_of_open)] == [1, 2]


def test_surplus_comes_from_the_job_that_ended_first() -> None:
    requester = sized(9, 80)
    assert spared(requester, {0: 32}, {1: 64}, room) == {0: 16}
    assert spared(requester, {1: 64}, {0: 32}, room) == {1: 16}
    assert spared(requester, {0: 16}, {1: 64}, room) == {}, "given back once"
    assert spared(requester, {0: 64, 1: 64, 2: 32}, {}, room) is not None
    assert spared(requester, {0: 16}, {1: 63}, room) is None


cores = st.dictionaries(st.integers(0, 3), st.integers(0, 9), max_size=4)


@settings(max_examples=200, deadline=None)
@given(held=cores, coming=cores, processes=st.integers(1, 6), threads=st.integers(1, 4))
def test_nobody_could_spare_more(held: dict[int, int], coming: dict[int, int], processes: int, threads: int) -> None:
    job = sized(1, processes, threads)
    found = spared(job, held, coming, room)
    nodes = sorted(held.keys() | coming.keys())
    best = -1
    for counts in product(*(range(1 + (held.get(n, 0) + coming.get(n, 0)) // threads) for n in nodes)):
        if sum(counts) == processes:
            left = zip(nodes, counts, strict=True)
            best = max(best, sum(min(held.get(n, 0), held.get(n, 0) + coming.get(n, 0) - count * threads) for n, count in left))
    assert (-1 if found is None else sum(found.values())) == best
    if found is not None:
        left_over = {n: held[n] - found.get(n, 0) for n in held}
        assert spared(job, left_over, coming, room) == {}, "what it can spare is given back at once"
        assert sum((left_over.get(n, 0) + coming.get(n, 0)) // threads for n in nodes) >= processes


def test_cores_as_spans() -> None:
    assert spans_of([(0, 4), (1, 4), (2, 4), (4, 2), (5, 4)]) == ((0, 2, 4), (4, 4, 2), (5, 5, 4))


def placed(processes: int, threads: int, hours: float, nodes: int) -> Job:
    record = Submission(
        id=7, name="x", user="ann", queue="batch", work=Work.COMMAND, request=Request(cores=threads, time_limit_us=round(hours * HOUR_US)),
        rigid=Rigid(processes=processes, nodes=nodes),
    )
    return job_of(record, BlockKey(priority=0, seq=1, submission=7, first=0, count=1, attempt=1, cores=threads, memory_mib=0), "default", 0)


@pytest.mark.parametrize(
    ("processes", "threads", "hours", "queue", "nodes"), [(*row, nodes) for row in TABLE for nodes in (0, 1, 3, 4) if nodes <= row[0]]
)
def test_nodes_do_not_change_the_class_of_a_job(processes: int, threads: int, hours: float, queue: str | None, nodes: int) -> None:
    found = selected(placed(processes, threads, hours, nodes), HPC2500)
    assert (found.name if found else None) == queue


def test_nodes_do_not_change_the_weight_of_an_overtaking_and_are_what_is_placed() -> None:
    spread, plain = placed(6, 8, 1, 4), placed(6, 8, 1, 0)
    assert constant(spread, CLASSES["s128"]) == constant(plain, CLASSES["s128"])
    assert ((spread.processes, spread.threads, spread.cpus), spread.wanted_cpus) == ((4, 16, 64), 48)


NODES, CORES = tuple(f"n{number}" for number in range(1, 12)), 128
DOCUMENT = tomllib.loads((ROOT / "deploy/policies/hpc2500.toml").read_text())
QUEUES = (QueueSpec(name="default"), QueueSpec(name="batch", dispatch=Dispatch.PLACE))
SETTINGS = ClusterSettings(queues=QUEUES, pipelines=(PipelineSpec(partition="default", document=json.dumps(DOCUMENT)),))


class Machine:
    """Eleven nodes of 128 processors, and whoever leads."""

    def __init__(self) -> None:
        self.bench = Bench(SETTINGS)
        self.bench.lead()
        self.bench.starter(*NODES, cores=CORES)
        self.bench.advance(1)

    @property
    def placer(self) -> Placer:
        assert self.bench.leader is not None
        return self.bench.leader.placer

    def admitted(self, request: Request, rigid: Rigid) -> bool:
        """As the client says it before anything is submitted."""
        try:
            check_class(request, rigid, QUEUES[1], SETTINGS)
        except Infeasible:
            return False
        return True

    def would(self, request: Request, rigid: Rigid) -> str | None:
        """The class that `--dry-run` names, None = it would fail."""
        record = Submission(id=0, name="x", user="u", queue="batch", work=Work.COMMAND, request=request, rigid=rigid, submitted_us=1)
        trial = copied(self.placer, record)
        assert trial is not None
        try:
            return tried(trial).route
        except Infeasible:
            return None

    def placed(self, request: Request, rigid: Rigid) -> str | None:
        """The class that the leader chooses for it, None = it ends FAILED. Whoever submits does not ask whether it is admitted."""
        number = self.bench.submitter.submit(1, block=1, queue="batch", rigid=rigid, request=request)
        self.bench.advance(1)
        if (job := job_id(number, 0)) not in self.placer.job_table.placed:
            assert self.bench.leader is not None
            assert [view.state for view in answers.jobs(self.bench.leader.snapshot(), (number,))] == [State.FAILED]
            return None
        return self.placer.job_table.class_of(job)


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    try:
        yield made
    finally:
        made.bench.close()


def shapes() -> list[tuple[int, int, float, str | None, int]]:
    """Each row, and on so many nodes as its processes need: all, or one more."""
    found = []
    for processes, threads, hours, queue in TABLE:
        room = CORES // threads  # processes on one node
        least = -(-processes // room) if room else 0
        found.append((processes, threads, hours, queue, 0))
        found += [(processes, threads, hours, queue, nodes) for nodes in (least, least + 1) if 0 < nodes <= min(processes, len(NODES))]
    return found


@pytest.mark.parametrize(("processes", "threads", "hours", "queue", "nodes"), shapes())
def test_admission_a_dry_run_and_the_leader_choose_what_the_table_says(
    machine: Machine, processes: int, threads: int, hours: float, queue: str | None, nodes: int
) -> None:
    request, rigid = Request(cores=threads, time_limit_us=round(hours * HOUR_US)), Rigid(processes=processes, nodes=nodes)
    assert machine.admitted(request, rigid) is (queue is not None)
    if threads <= CORES:
        assert machine.would(request, rigid) == queue
        assert machine.placed(request, rigid) == queue


def test_five_hundred_and_twelve_processes_on_four_nodes_are_a_job_of_the_paper(machine: Machine) -> None:
    request, rigid = Request(cores=1, time_limit_us=HOUR_US), Rigid(processes=512, nodes=4)
    assert (machine.admitted(request, rigid), machine.would(request, rigid), machine.placed(request, rigid)) == (True, "d512", "d512")
