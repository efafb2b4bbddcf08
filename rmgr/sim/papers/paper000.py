"""Repeats paper 000, automatic queue selection and connection reservation: its exact statements, figures 2 and 3, its future work.

Kawanami, Yoshihisa, Kanazawa: batch queues of an HPC2500 (papers.md 1). The log is not public; the workload is the stand-in of papers.md
1.6, drawn once per seed and the same for every system. Nothing is tuned to make a claim hold. The file has three parts. Runs: the four
systems that figures 2 and 3 compare, a single run of one system, and how checks and tables ask for runs. Checks C0.1 to C0.11 (papers.md
1.7): C0.1 to C0.5 and C0.7 are exact, each runs the policy on a small case built for it; C0.6 looks at the reservations of all runs; C0.8
to C0.11 judge the paper's claims about figures 2 and 3, for each queue, load and seed. Tables and figures: figures 2 and 3, the region in
which the claims hold, the future work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from functools import cache
from itertools import product
from math import sqrt
from operator import itemgetter
from statistics import fmean, median
from typing import Any, ClassVar, NamedTuple, TypeAlias

from rmgr.model.units import counted
from rmgr.sched.draft import Draft
from rmgr.sched.engine import run_pass
from rmgr.sched.job import Job, Node, Placement
from rmgr.sched.plan import HoldCores, Plan, Reject, Route
from rmgr.sched.policies.connection_reservation import ConnectionReservation, constant
from rmgr.sched.policies.queue_first_fit import QueueFirstFit, QueueSelect
from rmgr.sched.policy import Cause, Policy, Stage
from rmgr.sched.queue_class import HOUR_US, HPC2500, Ladder, QueueClass
from rmgr.sched.state.cluster import ClusterState
from rmgr.sim.engine.driver import simulate
from rmgr.sim.engine.outcome import JobOutcome, Setting
from rmgr.sim.models.hpc2500 import CPUS_PER_NODE, NODES, hpc2500
from rmgr.sim.papers.report import Box, Boxes, Cell, Figure, Line, PaperCheck, Point, Runs, Study, Table, Within, WithinBounds, mean, spread
from rmgr.sim.workload import jobs as sim
from rmgr.sim.workload.jobs import SECOND, Workload

QUEUES = tuple(queue.name for queue in HPC2500)
ALL = "all"
#: Systems of figures 2 and 3, and a second baseline (papers.md 1.8).
CONVENTIONAL, PARTITIONED, PROPOSAL_1, PROPOSAL_2 = "conventional", "conventional_partitioned", "proposal 1", "proposal 2"
SYSTEMS = (CONVENTIONAL, PARTITIONED, PROPOSAL_1, PROPOSAL_2)
#: Partitions of conventional_partitioned: (queues, number of nodes), with 128, 256, 128, 384 and 512 CPUs.
PARTITIONS: tuple[tuple[tuple[str, ...], int], ...] = ((("ss8", "s8"), 1), (("s128",), 2), (("d32",), 1), (("d128",), 3), (("d512",), 4))
LOADS = (Fraction("0.95"), Fraction("1.10"))
JOBS = 20_000
#: Share of the jobs, in order of arrival, that measures leave out.
WARM_UP = Fraction(1, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper000Run:
    """Settings of one run: system, offered load, seed of the workload, number of jobs. queues: the paper's classes or others.

    small: factor by which jobs of up to 8 CPUs are more frequent. firstfit_nodes: option of the conventional system, 0 = all nodes.
    """

    system: str
    load: Fraction
    seed: int
    jobs: int = JOBS
    queues: Ladder = HPC2500
    small: int = 1
    firstfit_nodes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Waiting times (s) of one queue or of all jobs, without the warm-up."""

    jobs: int
    median_s: float
    mean_s: float
    max_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measures of a run. waits: by queue, and for `all`. held, made: by queue, the most reservations at one instant, and their total."""

    waits: Mapping[str, Waits]
    utilisation: float
    held: Mapping[str, int]
    made: Mapping[str, int]
    faults: int

    def wait_s(self, queue: str, statistic: str) -> float:
        """Returns a wait (s) of a queue; 0 for a queue without jobs. statistic: `median`, `mean` or `max`."""
        waits = self.waits.get(queue)
        return 0.0 if waits is None else float(getattr(waits, f"{statistic}_s"))


class Paper000Runs(Runs[Paper000Run, Measured]):
    """The runs of figures 2 and 3 by system and load, one value per seed; runs of other sizes by `Paper000Run`.

    quick: only the higher load, without region and future work.
    """

    def __init__(self, seeds: Sequence[int], *, quick: bool = False) -> None:
        super().__init__(seeds, Measured(waits={}, utilisation=1.0, held={}, made={}, faults=0), measure, quick=quick)
        self.loads = LOADS[-1:] if quick else LOADS

    def of(self, system: str, load: Fraction) -> list[Measured]:
        return [self[Paper000Run(system=system, load=load, seed=seed)] for seed in self.seeds]


@dataclass(frozen=True, slots=True)
class _Watch:
    """A measuring instrument, not a policy: as the last stage of a pipeline, it counts the reservations in force after each pass."""

    name: ClassVar[str] = "watch"
    most: Counter[str] = field(default_factory=Counter)  #: the most at one instant
    made: Counter[str] = field(default_factory=Counter)
    standing: set[int] = field(default_factory=set)

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:  # noqa: ARG002 - the same for every cause
        holds = [hold.job_id for hold in draft.holds()]
        if self.standing == set(holds):
            return
        now = Counter[str]()
        for job_id in holds:
            job = draft.job(job_id)
            assert job is not None
            now[job.queue] += 1
            if job_id not in self.standing:
                self.made[job.queue] += 1
        for queue, count in now.items():
            self.most[queue] = max(self.most[queue], count)
        self.standing.clear()
        self.standing.update(holds)


def policy_of(system: str, queues: Ladder = HPC2500, firstfit_nodes: int = 0) -> Policy:
    """Returns the policy of a system."""
    match system:
        case "proposal 1":
            return QueueSelect(queues=queues)
        case "proposal 2":
            return ConnectionReservation(queues=queues)
        case _:
            return QueueFirstFit(queues=queues, firstfit_nodes=firstfit_nodes)


def measure(cell: Paper000Run) -> Measured:
    """Runs the cell and measures it. Cost: a few seconds for 20,000 jobs."""
    users = cell.system in {CONVENTIONAL, PARTITIONED}
    workload = hpc2500(cell.jobs, seed=cell.seed, kind="user" if users else "", small=cell.small).at_load(cell.load)
    watch = _Watch()
    pipeline: tuple[Stage, ...] = (Stage(policy_of(cell.system, cell.queues, cell.firstfit_nodes)),)
    if cell.system == PROPOSAL_2:
        pipeline += (Stage(watch),)
    setting = Setting(
        nodes=_partitioned() if cell.system == PARTITIONED else NODES,
        cores=CPUS_PER_NODE,
        pipeline=pipeline,
        policy=cell.system,
        seed=cell.seed,
        partitions={queue: _name(queues) for queues, _ in PARTITIONS for queue in queues} if cell.system == PARTITIONED else {},
    )
    result = simulate(workload, setting)
    outcomes = [outcome for outcome in result.outcomes if outcome.job.number > cell.jobs * WARM_UP]
    work = sum(job.processors * job.run_us for job in workload.jobs)
    return Measured(
        waits=waits_of(outcomes, cell.queues),
        utilisation=work / (result.processors * max(outcome.end_us for outcome in result.outcomes)),
        held=dict(watch.most),
        made=dict(watch.made),
        faults=sum(count for _, count in result.faults),
    )


def _partitioned() -> tuple[Node, ...]:
    """Returns the nodes, each in the partition of its queues."""
    names = [_name(queues) for queues, nodes in PARTITIONS for _ in range(nodes)]
    return tuple(Node(id=number, cores=CPUS_PER_NODE, partition=name) for number, name in enumerate(names))


def _name(queues: Iterable[str]) -> str:
    return "-".join(queues)


def waits_of(outcomes: Sequence[JobOutcome], queues: Ladder) -> dict[str, Waits]:
    """Returns the waits by queue, and of all jobs. A queue without jobs is left out."""
    by_queue: dict[str, list[float]] = {name: [] for name in (*(queue.name for queue in queues), ALL)}
    for outcome in outcomes:
        wait = outcome.wait_us / SECOND
        by_queue[outcome.queue].append(wait)
        by_queue[ALL].append(wait)
    return {
        name: Waits(jobs=len(waits), median_s=median(waits), mean_s=fmean(waits), max_s=max(waits))
        for name, waits in by_queue.items()
        if waits
    }


# -- checks ------------------------------------------------------------------------------------------------------------------

#: papers.md C0.1: (processes, threads, hours, queue), queue "" = refused. Without hours, both 1 and 2 hours are tried.
SELECTION = (
    (1, 8, 1, "ss8"), (8, 1, 2, "s8"), (1, 64, None, "s128"), (2, 64, None, "s128"), (16, 1, None, "d32"), (16, 2, None, "d32"),
    (33, 1, None, "d128"), (16, 8, None, "d128"), (8, 16, None, "s128"), (129, 1, None, "d512"), (16, 32, None, "d512"),
    (1, 129, None, ""), (9, 64, None, ""), (513, 1, None, ""),
)  # fmt: skip
#: papers.md C0.2: (processes, threads, queue, w, number of overtakings at which the job reserves or None if papers.md does not say).
CONSTANTS = (
    (9, 1, "d32", 10.667, 2), (1, 32, "d32", 1.0, 21), (2, 64, "s128", 1.4142, None), (512, 1, "d512", 5.65685, 4),
    (16, 32, "d512", 1.0, 21),
)  # fmt: skip

SMALL, LARGE = ("ss8", "s8"), ("s128", "d32", "d128", "d512")
#: "Clearly above" means more than this share above, "about equal" means within it (a choice, since the paper prints no values of bars).
CLEARLY = 0.10
#: system -> measure of one queue (s), for one load and seed.
Bars: TypeAlias = Mapping[str, float]
Check: TypeAlias = Callable[[Paper000Runs], Iterator[PaperCheck]]

_CLASSES = {queue.name: queue for queue in HPC2500}
#: C0.7: 1-CPU jobs of 150 s arrive for 1,000 s, one per second for each node of 128 CPUs; the three jobs come after 300 s.
_STREAM_RUN_S, _STREAM_S, _ASKED_S = 150, 1000, 300


class Scene:
    """A cluster of one partition, a policy, and jobs placed by hand. Times in seconds."""

    def __init__(self, policy: Policy, cores: int, nodes: int = 1) -> None:
        self.state = ClusterState(Node(id=i, cores=cores) for i in range(nodes))
        self._pipeline = (Stage(policy),)
        self.now = 0

    def runs(self, job_id: int, processes: int, queue: str, placement: Placement, *, threads: int = 1) -> None:
        """Starts a job now, at the given placement."""
        self.state.job_submitted(self._job(job_id, processes, threads, queue))
        self.state.job_started(job_id, placement, self.now * SECOND)
        self.now += 1

    def arrives(self, job_id: int, processes: int, queue: str, *, threads: int = 1, hours: int = 1) -> Plan:
        """Submits a job. Returns the plan of the pass that follows, after carrying it out."""
        self.state.job_submitted(self._job(job_id, processes, threads, queue, hours))
        return self.look(Cause.JOB_SUBMITTED)

    def look(self, cause: Cause) -> Plan:
        plan = run_pass(self.state, frozenset({cause}), now=self.now * SECOND, seed=0, pipeline=self._pipeline)
        if plan.faults:
            raise AssertionError(f"{plan.faults[0].policy}: {plan.faults[0].error}")
        self.state.apply(plan, self.now * SECOND)
        self.now += 1
        return plan

    def _job(self, job_id: int, processes: int, threads: int, queue: str, hours: int = 1) -> Job:
        return Job(
            id=job_id, submit_us=self.now * SECOND, processes=processes, threads=threads, limit_us=hours * HOUR_US, queue=queue or "default"
        )


def promised_to(job_id: int, plan: Plan) -> list[int]:
    """Returns the ids of the running jobs whose resources the plan promises to the job."""
    return [share.run_id for d in plan.decisions if isinstance(d, HoldCores) and d.job_id == job_id for share in d.hold.waits_for]


def selection(_runs: Paper000Runs) -> Iterator[PaperCheck]:
    """Checks C0.1."""
    ours: dict[str, int] = {}
    for processes, threads, hours, expected in SELECTION:
        for tried in (1, 2) if hours is None else (hours,):
            plan = Scene(QueueSelect(), cores=256, nodes=8).arrives(1, processes, "", threads=threads, hours=tried)
            found = [d.to for d in plan.decisions if isinstance(d, Route)] + ["" for d in plan.decisions if isinstance(d, Reject)]
            ours[f"({processes}, {threads}, {tried} h) {expected or 'refused'}"] = int(found == [expected])
    yield PaperCheck(
        "C0.1", "selection table: (processes, threads, time) goes to its queue (1 = it does)",
        paper=dict.fromkeys(ours, 1), ours=ours, rule=Within(),
    )


def constants(_runs: Paper000Runs) -> Iterator[PaperCheck]:
    """Checks C0.2."""
    rows = {f"({p}, {t}) in {queue}": (p, t, queue, w, at) for p, t, queue, w, at in CONSTANTS}
    yield PaperCheck(
        "C0.2a", "constant w of formula (1) for (processes, threads)",
        paper={row: w for row, (_, _, _, w, _) in rows.items()},
        ours={row: constant(Job(id=1, submit_us=0, processes=p, threads=t), _CLASSES[queue]) for row, (p, t, queue, _, _) in rows.items()},
        rule=Within(absolute=0.0005),
    )
    told = {row: value for row, value in rows.items() if value[4] is not None}
    yield PaperCheck(
        "C0.2b", "the overtaking at which a job reserves (threshold 20)",
        paper={row: at or 0 for row, (_, _, _, _, at) in told.items()},
        ours={row: _overtakings(_CLASSES[queue], p, t) for row, (p, t, queue, _, _) in told.items()}, rule=Within(),
    )


def _overtakings(queue: QueueClass, processes: int, threads: int) -> int:
    """Returns how often the second waiting job is overtaken before it reserves; the first reserved when it came to the empty queue."""
    cpus = processes * threads
    patient = replace(queue, max_reservations=2, head_trigger=False)
    scene = Scene(ConnectionReservation(queues=(patient,)), cores=3 * cpus - 1)
    for job_id in (1, 2):
        scene.runs(job_id, processes, queue.name, ((0, 0, processes),), threads=threads)
    scene.arrives(3, processes, queue.name, threads=threads)
    scene.arrives(4, processes, queue.name, threads=threads)
    for count in range(1, cpus):
        if promised_to(4, scene.arrives(100 + count, 1, queue.name)):
            return count
    return 0


def matches(_runs: Paper000Runs) -> Iterator[PaperCheck]:
    """Checks C0.3."""
    scene = Scene(ConnectionReservation(), cores=256)
    for job_id, processes in ((1, 128), (2, 32), (3, 32), (4, 64)):
        scene.runs(job_id, processes, "d128", ((0, 0, processes),))
    first = promised_to(5, scene.arrives(5, 32, "d128"))
    second = promised_to(6, scene.arrives(6, 224, "d512"))
    yield PaperCheck(
        "C0.3", "128, 32, 32, 64 CPUs run in this order: a match goes first, the earlier of two; what is promised is not chosen again",
        paper={"32 CPUs take over job": 2, **{f"224 CPUs take over job {job_id}": int(job_id != 2) for job_id in (1, 2, 3, 4)}},
        ours={
            "32 CPUs take over job": first[0] if len(first) == 1 else 0,
            **{f"224 CPUs take over job {job_id}": second.count(job_id) for job_id in (1, 2, 3, 4)},
        },
        rule=Within(),
    )


def largest_first(_runs: Paper000Runs) -> Iterator[PaperCheck]:
    """Checks C0.4."""
    result = simulate(max_space(), Setting(nodes=1, cores=128, pipeline=(Stage(ConnectionReservation()),), policy="connection_reservation"))
    requester = result.outcomes[3]
    yield PaperCheck(
        "C0.4", "64, 32, 32 CPUs run, 96 are wanted: 64 and the earlier 32; starts when both have ended, nobody uses the CPUs before",
        paper={"start (s)": 100, "1-CPU jobs started before": 0, "CPUs of its choice": 96},
        ours={
            "start (s)": requester.start_us // SECOND,
            "1-CPU jobs started before": sum(other.start_us < requester.start_us for other in result.outcomes[4:]),
            "CPUs of its choice": 96 if requester.spells[0].cores == ((0, 95),) else 0,
        },
        rule=Within(),
    )


def all_running(_runs: Paper000Runs) -> Iterator[PaperCheck]:
    """Checks C0.5."""
    scene = Scene(ConnectionReservation(), cores=128, nodes=4)
    scene.runs(1, 256, "d512", ((0, 1, 128),))
    for job_id, node in ((2, 2), (3, 3)):
        scene.runs(job_id, 128, "d128", ((node, node, 128),))
    wide = promised_to(4, scene.arrives(4, 512, "d512"))
    yield PaperCheck(
        "C0.5", "512 CPUs wanted while d512 runs 256: all running jobs become candidates",
        paper={"jobs promised": 3, "of them from other queues": 2},
        ours={"jobs promised": len(wide), "of them from other queues": len([job_id for job_id in wide if job_id != 1])}, rule=Within(),
    )


def max_space() -> Workload:
    """Returns the jobs of C0.4: 1 (64 CPUs) ends at 100 s, 2 (32) at 51 s, 3 (32, started later) at 502 s; 4 wants 96; then a 1-CPU job
    arrives every second.
    """
    jobs = [(0, 64, 100), (1, 32, 50), (2, 32, 500), (10, 96, 20), *((15 + number, 1, 10) for number in range(5, 100))]
    return _workload([(at * SECOND, cpus, 1, run, "d128" if cpus > 1 else "ss8") for at, cpus, run in jobs], 128)


def starvation(_runs: Paper000Runs) -> Iterator[PaperCheck]:
    """Checks C0.7: three jobs of a queue that may reserve, a second apart, under a stream of 1-CPU jobs that alone overloads the nodes."""
    rest_s = _STREAM_S - _ASKED_S
    waits: dict[str, float] = {}
    after: dict[str, float] = {}
    behind: dict[str, float] = {}
    cured: dict[str, float] = {}
    for queue, processes, threads, nodes in (("s128", 1, 64, 1), ("d32", 9, 1, 1), ("d128", 16, 8, 1), ("d512", 512, 1, 4)):
        head = _CLASSES[queue].head_trigger
        stream = "ss8" if head else queue
        row = f"{queue} (1-CPU jobs in {stream})"
        waits[row] = max(_waits(queue, processes, threads, nodes, stream))
        after[queue] = min(_waits(queue, processes, threads, nodes, "ss8", max_reservations=0)) - rest_s
        if not head:
            first, *others = _waits(queue, processes, threads, nodes, "ss8")
            waits[f"{queue} (1-CPU jobs in ss8), its first job"] = first
            behind[queue] = max(others) - rest_s
            cured[queue] = max(_waits(queue, processes, threads, nodes, "ss8", head_trigger=True))
    yield PaperCheck(
        "C0.7a", f"longest wait (s) of three jobs under a saturating stream that lasts {rest_s} s more; limits of table 4",
        ours=waits, rule=WithinBounds(at_least=0, below=rest_s),
    )
    yield PaperCheck(
        "C0.7b", "limit 0: the first start of the three (s), counted from the end of the stream",
        ours=after, rule=WithinBounds(at_least=0),
    )
    yield PaperCheck(
        "C0.7c",
        "the jobs behind the first when only other queues overtake them (no rule of the paper is theirs): last start (s), as in C0.7b",
        ours=behind, rule=WithinBounds(below=0), required=False,
    )
    yield PaperCheck(
        "C0.7d", "the same with head_trigger in their class, too: longest wait (s)",
        ours=cured, rule=WithinBounds(at_least=0, below=rest_s), required=False,
    )


@cache  # since checks are written twice
def _waits(queue: str, processes: int, threads: int, nodes: int, stream: str, **changed: Any) -> tuple[float, ...]:
    """Returns the waits of the three jobs (s). changed: fields of their class."""
    jobs = [(second * SECOND + i, 1, 1, _STREAM_RUN_S, stream) for second in range(_STREAM_S) for i in range(nodes)]
    jobs += [((_ASKED_S + i) * SECOND, processes, threads, 100, queue) for i in range(3)]
    queues = tuple(replace(c, **changed) if c.name == queue else c for c in HPC2500)
    setting = Setting(nodes=nodes, cores=128, pipeline=(Stage(ConnectionReservation(queues=queues)),), policy="connection_reservation")
    result = simulate(_workload(jobs, nodes * 128), setting)
    return tuple(outcome.wait_us / SECOND for outcome in result.outcomes if outcome.job.processors > 1)


def _workload(jobs: list[tuple[int, int, int, int, str]], processors: int) -> Workload:
    """Returns the workload of jobs given as (submit in us, processes, threads, run time in s, queue)."""
    made = []
    for number, (at_us, processes, threads, run_s, queue) in enumerate(sorted(jobs, key=itemgetter(0)), 1):
        run_us, cpus = run_s * SECOND, processes * threads
        made.append(
            sim.WorkloadJob(
                number=number,
                submit_us=at_us,
                run_us=run_us,
                estimate_us=run_us,
                processors=cpus,
                processes=processes,
                threads=threads,
                queue=queue,
            )
        )
    return Workload(name="by hand", jobs=tuple(made), processors=processors)


def limits(runs: Paper000Runs) -> Iterator[PaperCheck]:
    """Checks C0.6."""
    found = [run for load in runs.loads for run in runs.of(PROPOSAL_2, load)]
    yield PaperCheck(
        "C0.6", "the most reservations of a queue at one instant, less its limit of table 4 (ss8, s8: none), in all runs of proposal 2",
        ours={queue.name: max(run.held.get(queue.name, 0) for run in found) - queue.max_reservations for queue in HPC2500},
        rule=WithinBounds(at_most=0),
    )


# -- the paper's claims about the bars of figures 2 and 3 ----------------------------------------------------------------------


class Relation(StrEnum):
    """Relation of a bar to another bar, or to the lower of two others (`LOWEST`)."""

    LOWEST = "lowest"
    CLEARLY_ABOVE = "clearly above"
    ABOVE = "above"
    BELOW = "below"
    EQUAL = "about equal to"

    def holds(self, ours: float, other: float) -> bool:
        match self:
            case Relation.LOWEST:
                return ours <= other
            case Relation.CLEARLY_ABOVE:
                return ours > (1 + CLEARLY) * other
            case Relation.ABOVE:
                return ours > other
            case Relation.BELOW:
                return ours < other
            case Relation.EQUAL:
                return abs(ours - other) <= CLEARLY * other

    def is_tie(self, ours: float, other: float) -> bool:
        """Returns whether the bars decide nothing: they are equal. For `EQUAL`, equal bars decide too, unless no job waits."""
        return ours == other and (self is not Relation.EQUAL or ours == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim of the paper about bars. id: of papers.md. measure: `median` or `max`. against: other system, None = the conventional one."""

    id: str
    what: str
    measure: str
    queues: tuple[str, ...]
    system: str
    relation: Relation
    against: str | None = None

    def compared(self, bars: Bars, baseline: str) -> tuple[float, float]:
        """Returns (bar of the claim's system, bar that it is compared with)."""
        if self.relation is Relation.LOWEST:
            return bars[self.system], min(bars[other] for other in (baseline, PROPOSAL_1, PROPOSAL_2) if other != self.system)
        return bars[self.system], bars[baseline]


CLAIMS = (
    Claim(id="C0.8", what="figure 2: proposal 1 has the lowest median wait", measure="median", queues=("d32", "d128", ALL),
          system=PROPOSAL_1, relation=Relation.LOWEST),
    Claim(id="C0.8", what="figure 2: median wait of proposal 1 clearly above conventional", measure="median", queues=("s8", "s128", "d512"),
          system=PROPOSAL_1, relation=Relation.CLEARLY_ABOVE),
    Claim(id="C0.9", what="figure 2: proposal 2 has the lowest median wait", measure="median", queues=("ss8",),
          system=PROPOSAL_2, relation=Relation.LOWEST),
    Claim(id="C0.9", what="figure 2: median wait of proposal 2 above conventional", measure="median", queues=("s8", *LARGE),
          system=PROPOSAL_2, relation=Relation.ABOVE),
    Claim(id="C0.9", what="figure 2: median wait of proposal 2 about equal to conventional", measure="median", queues=(ALL,),
          system=PROPOSAL_2, relation=Relation.EQUAL),
    Claim(id="C0.10", what="figure 3: proposal 1 has the lowest longest wait", measure="max", queues=("s128", "d128"),
          system=PROPOSAL_1, relation=Relation.LOWEST),
    Claim(id="C0.10", what="figure 3: longest wait of proposal 1 about equal to conventional", measure="max",
          queues=("ss8", "s8", "d32", "d512", ALL), system=PROPOSAL_1, relation=Relation.EQUAL),
    Claim(id="C0.10", what="figure 3: longest wait of proposal 2 below conventional", measure="max", queues=("ss8", "s8", "s128"),
          system=PROPOSAL_2, relation=Relation.BELOW),
    Claim(id="C0.10", what="figure 3: proposal 2 has the lowest longest wait", measure="max", queues=SMALL,
          system=PROPOSAL_2, relation=Relation.LOWEST),
    Claim(id="C0.11", what="reservation raises the median wait in queues of large jobs", measure="median", queues=LARGE,
          system=PROPOSAL_2, relation=Relation.ABOVE, against=PROPOSAL_1),
    Claim(id="C0.11", what="reservation raises the longest wait in queues of large jobs", measure="max", queues=LARGE,
          system=PROPOSAL_2, relation=Relation.ABOVE, against=PROPOSAL_1),
    Claim(id="C0.11", what="reservation lowers the median wait in queues of small jobs", measure="median", queues=SMALL,
          system=PROPOSAL_2, relation=Relation.BELOW, against=PROPOSAL_1),
    Claim(id="C0.11", what="reservation lowers the longest wait in queues of small jobs", measure="max", queues=SMALL,
          system=PROPOSAL_2, relation=Relation.BELOW, against=PROPOSAL_1),
)  # fmt: skip


class Judged(NamedTuple):
    """A claim for one queue and load. pairs: for each seed, the bar of the claim's system and the bar that it is compared with.

    verdicts: for each seed, 1 if the claim holds, 0 if not, None for a tie.
    """

    load: Fraction
    queue: str
    pairs: list[tuple[float, float]]
    verdicts: list[int | None]


def judged(runs: Paper000Runs, claim: Claim, baseline: str) -> Iterator[Judged]:
    for load, queue in product(runs.loads, claim.queues):
        of_seeds = zip(*(runs.of(system, load) for system in SYSTEMS), strict=True)
        bars = [{name: run.wait_s(queue, claim.measure) for name, run in zip(SYSTEMS, of_it, strict=True)} for of_it in of_seeds]
        pairs = [claim.compared(of_it, baseline) for of_it in bars]
        yield Judged(load, queue, pairs, [None if claim.relation.is_tie(*pair) else int(claim.relation.holds(*pair)) for pair in pairs])


def compared() -> Iterator[tuple[str, Claim, str]]:
    """Yields (id of the check, claim, system that it is compared with)."""
    letters: Counter[str] = Counter()
    for claim in CLAIMS:
        for baseline in (claim.against,) if claim.against else (CONVENTIONAL, PARTITIONED):
            yield f"{claim.id}{chr(ord('a') + letters[claim.id])}", claim, baseline
            letters[claim.id] += 1


def claimed(name: str) -> Check:
    """Returns the check of all claims with this id: the share of deciding seeds in which each holds, a row for each queue and load."""

    def checks(runs: Paper000Runs) -> Iterator[PaperCheck]:
        for check_id, claim, baseline in compared():
            if claim.id != name:
                continue
            shares: dict[str, float] = {}
            spreads: dict[str, float] = {}
            ties: dict[str, int] = {}
            decided: dict[str, int] = {}
            for load, queue, _, verdicts in judged(runs, claim, baseline):
                row = f"{queue} at load {float(load):g}"
                deciding = [verdict for verdict in verdicts if verdict is not None]
                decided[row], ties[row] = len(deciding), verdicts.count(None)
                if deciding:
                    shares[row], spreads[row] = mean(deciding), spread(deciding)
            what = claim.what if claim.against else f"{claim.what} ({baseline})"
            yield PaperCheck(
                check_id, f"{what}: share of deciding seeds",
                paper=dict.fromkeys(shares, 1), ours=shares, spread=spreads, ties=ties, decided=decided, rule=Within(), required=False,
            )

    return checks


CHECKS: Mapping[str, Check] = {
    "C0.1": selection,
    "C0.2": constants,
    "C0.3": matches,
    "C0.4": largest_first,
    "C0.5": all_running,
    "C0.6": limits,
    "C0.7": starvation,
    **{name: claimed(name) for name in ("C0.8", "C0.9", "C0.10", "C0.11")},
}


# -- tables and figures ------------------------------------------------------------------------------------------------------

ROWS = (*QUEUES, ALL)
#: Seeds of the future work and of the region, and their jobs: fewer than those of the figures, since there are many settings.
_SWEEP_SEEDS, _REGION_SEEDS = 2, 3
FEWER_JOBS = 3_000
#: The region (papers.md 1.9): its loads and its baselines. A baseline is the number of nodes on which First-Fit of the conventional system
#: may pass other jobs (0: all 11), or -1 for queues on separate nodes.
REGION_LOADS = (Fraction("0.9"), Fraction("1.2"), Fraction(2))
BASELINES = (0, 1, 4, 8, -1)
#: name -> (factor by which jobs of up to 8 CPUs are more frequent than in papers.md 1.6, order in which queues are scanned; 1.4: open).
MIXES: Mapping[str, tuple[int, Ladder]] = {"small first": (1, HPC2500), "x8, large first": (8, HPC2500[::-1])}
#: Settings of the future work.
THRESHOLDS = (5, 10, 20, 30, 40)
LIMITS = (0, 1, 2, 3, 4)
SWEEP_LOAD = Fraction("1.10")
#: Queues in the order of scanning.
ORDERS: Mapping[str, Ladder] = {"small": HPC2500, "large": HPC2500[::-1]}
SCANNED = (CONVENTIONAL, PROPOSAL_1, PROPOSAL_2)
#: Queues in the figures of the future work.
_LONGEST, _MEDIAN = ("ss8", "s128", "d32", "d128", "d512", "all"), ("s128", "d128", "d512")
#: (threshold, limit, whether the small queues have the limit too).
Reserving: TypeAlias = tuple[int, int, bool]

NOTES = (
    f"workload: {JOBS:,} jobs of the stand-in model hpc2500, on 11 nodes x 128 CPUs; the first {float(WARM_UP):.0%} of them are left out",
    f"every system gets the same jobs; loads {', '.join(f'{float(load):g}' for load in LOADS)} of the machine",
    "tables: means over the seeds; sd: standard deviation over them; in the table of claims 1 = holds, nothing = a tie",
    "conventional: the user names the queue, First-Fit in each queue over all CPUs; conventional_partitioned: queues on nodes of their own",
    f"'clearly above': more than {CLEARLY:.0%} above; 'about equal': within {CLEARLY:.0%}; of equals each is the lowest",
    "C0.8 to C0.11 depend on Kyoto's log, which is not public: they are reported, and nothing is tuned until they hold",
    "papers.md 1.4: the order between queues is open; here small queues first, so that they hardly ever wait in any system",
    (
        "C0.7: in s128, d32, d128 a job that came while another waited, and that no job of its own queue overtakes, never reserves (head "
        "reservation is for d512 only, as the paper has it): a stream of other queues can starve it; head_trigger of a class cures that"
    ),
    (
        "future work: a job with a reservation starts on what it is promised and nowhere else; in queues of small jobs, where First-Fit "
        "finds room soon, that makes the longest waits longer, not shorter"
    ),
)


def tables(runs: Paper000Runs) -> Iterator[Table]:
    yield from _of_figures(runs)
    yield _claims(runs)
    if not runs.quick:
        yield from _region(runs)
        yield from _future(runs)


def figures(runs: Paper000Runs) -> Iterator[Figure | Boxes]:
    for load in runs.loads:
        yield from boxes({system: runs.of(system, load) for system in SYSTEMS}, f"load {float(load):g}")
    if not runs.quick:
        yield from _most_agreeing(runs)
        yield from _by_threshold(runs)


# -- figures 2 and 3 -----------------------------------------------------------------------------------------------------------


def boxes(runs: Mapping[str, Sequence[Measured]], where: str) -> Iterator[Boxes]:
    """Yields figures 2 and 3: the median and the longest wait of each seed, by queue and system."""
    for title, statistic, told in (("Figure 2", "median", "median"), ("Figure 3", "max", "longest")):
        yield Boxes(
            title=f"{title}: {told} wait, {where}",
            y_label=f"{told} wait of a seed (s)",
            groups=ROWS,
            boxes=tuple(
                Box(name, tuple(tuple(run.wait_s(queue, statistic) for run in its) for queue in ROWS)) for name, its in runs.items()
            ),
        )


def _of_figures(runs: Paper000Runs) -> Iterator[Table]:
    """Yields figures 2 and 3 and the mean wait as numbers, then utilisation and reservations of each system."""
    columns = ("queue", *(name for system in SYSTEMS for name in (system, f"{system} sd")))
    for title, statistic in (("Figure 2: median wait", "median"), ("Figure 3: longest wait", "max"), ("Mean wait", "mean")):
        for load in runs.loads:
            rows: list[tuple[Cell, ...]] = []
            for queue in ROWS:
                bars = [[run.wait_s(queue, statistic) for run in runs.of(system, load)] for system in SYSTEMS]
                rows.append((queue, *(number for values in bars for number in (round(mean(values), 1), round(spread(values), 1)))))
            yield Table(title=f"{title} at load {float(load):g} (s)", columns=columns, rows=tuple(rows))
    uses: list[tuple[Cell, ...]] = []
    for system, load in product(SYSTEMS, runs.loads):
        found = runs.of(system, load)
        made = (round(mean([run.made.get(queue, 0) for run in found]), 1) for queue in LARGE)
        uses.append((system, float(load), round(mean([run.utilisation for run in found]), 4), *made))
    columns = ("system", "load", "utilisation", *(f"reservations {queue}" for queue in LARGE))
    yield Table(title="Utilisation until the last end, reservations made", columns=columns, rows=tuple(uses))


def _claims(runs: Paper000Runs) -> Table:
    """Returns every verdict: 1 if the claim holds, 0 if not, empty for a tie."""
    rows: list[tuple[Cell, ...]] = []
    for name, claim, baseline in compared():
        for load, queue, pairs, verdicts in judged(runs, claim, baseline):
            ours, other = (round(mean([pair[side] for pair in pairs]), 1) for side in (0, 1))
            rows.append((name, claim.system, ours, str(claim.relation), baseline, other, float(load), queue, *verdicts))
    columns: tuple[str, ...] = ("check", "system", "its mean (s)", "should be", "against", "that one's mean (s)", "load", "queue")
    columns += tuple(f"seed {seed}" for seed in runs.seeds)
    return Table(title="Claims of figures 2 and 3 by queue and seed", columns=columns, rows=tuple(rows))


# -- the region: where the claims hold, over loads, mixes and baselines in which small jobs do wait (papers.md 1.9) -------------

# Kyoto's log is not public, so the load and the mix of figures 2 and 3 are unknown. The paper's conventional system lets jobs pass others
# on some nodes only, but the paper does not say on how many. So each claim is judged in every combination of these; ties decide nothing.


class Place(NamedTuple):
    """A combination of load, mix and baseline. nodes: the baseline, of `BASELINES`."""

    load: Fraction
    mix: str
    nodes: int

    def of(self, runs: Paper000Runs, system: str) -> list[Measured]:
        """Returns the measures of a system in this place, one per seed; `conventional` means the baseline."""
        small, queues = MIXES[self.mix]
        run = Paper000Run(system=system, load=self.load, seed=0, jobs=FEWER_JOBS, small=small, queues=queues)
        if system == CONVENTIONAL:
            run = replace(run, system=PARTITIONED) if self.nodes < 0 else replace(run, firstfit_nodes=self.nodes)
        return [runs[replace(run, seed=seed)] for seed in runs.seeds[:_REGION_SEEDS]]

    @property
    def baseline(self) -> str:
        return {0: "all nodes", -1: "partitioned"}.get(self.nodes, counted(self.nodes, "node"))

    def __str__(self) -> str:
        return f"load {float(self.load):g}, {self.mix}, {self.baseline}"


PLACES = tuple(Place(*each) for each in product(REGION_LOADS, MIXES, BASELINES))


class Votes(NamedTuple):
    """A claim in a place: in how many pairs (seed, queue) it holds, how many decide, and whether every queue has a deciding pair."""

    holds: int
    decided: int
    whole: bool

    @property
    def agree(self) -> bool:
        return self.whole and self.holds == self.decided


def votes(runs: Paper000Runs, claim: Claim, place: Place) -> Votes:
    """Judges the claim for each of its seeds and queues."""
    holds = decided = 0
    whole = True
    of_seeds = list(zip(*(place.of(runs, system) for system in SCANNED), strict=True))
    for queue in claim.queues:
        deciding = 0
        for of_it in of_seeds:
            bars = {name: run.wait_s(queue, claim.measure) for name, run in zip(SCANNED, of_it, strict=True)}
            pair = claim.compared(bars, claim.against or CONVENTIONAL)
            if not claim.relation.is_tie(*pair):
                deciding += 1
                holds += claim.relation.holds(*pair)
        decided += deciding
        whole = whole and deciding > 0
    return Votes(holds, decided, whole)


def interval(holds: int, decided: int) -> tuple[float, float]:
    """Returns the 95 % interval of a share (Wilson's score); 0 to 1 if no pair decides."""
    if not decided:
        return 0.0, 1.0
    z, share = 1.96, holds / decided
    middle = (share + z * z / (2 * decided)) / (1 + z * z / decided)
    half = z * sqrt(share * (1 - share) / decided + z * z / (4 * decided * decided)) / (1 + z * z / decided)
    return max(0.0, middle - half), min(1.0, middle + half)


def _most_agreeing(runs: Paper000Runs) -> Iterator[Boxes]:
    """Yields figures 2 and 3 for the place in which most claims hold."""
    place = max(PLACES, key=lambda place: sum(votes(runs, claim, place).agree for claim in CLAIMS))
    systems = {CONVENTIONAL: f"conventional, {place.baseline}", PROPOSAL_1: PROPOSAL_1, PROPOSAL_2: PROPOSAL_2}
    yield from boxes({told: place.of(runs, system) for system, told in systems.items()}, f"load {float(place.load):g}, {place.mix}")


def _region(runs: Paper000Runs) -> Iterator[Table]:
    """Yields the region of each claim with its best place, then holds/decided in every place, then the list of claims."""
    regions: list[tuple[Cell, ...]] = []
    every: list[tuple[Cell, ...]] = []
    for number, claim in enumerate(CLAIMS, 1):
        by_place = {place: votes(runs, claim, place) for place in PLACES}
        holding = [place for place, its in by_place.items() if its.agree]
        best = max(PLACES, key=lambda place: (by_place[place].agree, by_place[place].whole, interval(*by_place[place][:2])[0]))
        holds, decided, _ = by_place[best]
        low, high = interval(holds, decided)
        name = f"{claim.id}, {number}"
        regions.append((name, len(holding), str(best) if holds else "none", f"{holds}/{decided}", f"{low:.2f}-{high:.2f}"))
        for mix, nodes in product(MIXES, BASELINES if claim.against is None else BASELINES[:1]):
            row = [by_place[Place(load, mix, nodes)] for load in REGION_LOADS]
            told = [f"{its.holds}/{its.decided}{'' if its.whole else '?'}" for its in row]
            every.append((name, mix, "-" if claim.against else Place(REGION_LOADS[0], mix, nodes).baseline, *told))
    columns = ("claim", f"of {len(PLACES)}", "best place", "pairs", "95 %")
    size = f"{FEWER_JOBS:,} jobs, {len(runs.seeds[:_REGION_SEEDS])} seeds"
    yield Table(title=f"Where the claims hold, {size}", columns=columns, rows=tuple(regions))
    names = tuple(f"load {float(load):g}" for load in REGION_LOADS)
    title = "Claims by mix, baseline and load: pairs that hold/decide (? a queue never decides)"
    yield Table(title=title, columns=("claim", "mix", "baseline", *names), rows=tuple(every))
    yield Table(
        title="The claims by number",
        columns=("claim", "system", "measure", "queues", "relation"),
        rows=tuple((f"{c.id}, {n}", c.system, c.measure, " ".join(c.queues), str(c.relation)) for n, c in enumerate(CLAIMS, 1)),
    )


# -- future work (section 5 of the paper; papers.md 2.6): thresholds, limits of reservations, reservation in queues of small jobs;
# -- and, left open by the paper (papers.md 1.4, 1.8), the order in which the queues are scanned


def swept() -> list[Reserving]:
    """Returns all settings; limit 0 occurs once, since nothing else matters then."""
    return [(THRESHOLDS[0], 0, False), *product(THRESHOLDS, LIMITS[1:], (False, True))]


def classes(reserving: Reserving) -> Ladder:
    """Returns the paper's classes with one threshold and one limit for all queues that reserve."""
    threshold, limit, small = reserving
    return tuple(
        replace(queue, reservation_threshold=threshold, max_reservations=limit) if small or queue.name not in SMALL else queue
        for queue in HPC2500
    )


def _with_fewer_jobs(runs: Paper000Runs, system: str, queues: Ladder) -> list[Measured]:
    run = Paper000Run(system=system, load=SWEEP_LOAD, seed=0, jobs=FEWER_JOBS, queues=queues)
    return [runs[replace(run, seed=seed)] for seed in runs.seeds[:_SWEEP_SEEDS]]


def _future(runs: Paper000Runs) -> Iterator[Table]:
    """Yields median and longest waits by queue: for the sweep, then (with means) for the orders of scanning."""

    def means(found: Iterable[Measured], statistic: str) -> tuple[float, ...]:
        return tuple(round(mean([run.wait_s(queue, statistic) for run in found]), 1) for queue in ROWS)

    size = f"{FEWER_JOBS:,} jobs, load {float(SWEEP_LOAD):g}, {len(runs.seeds[:_SWEEP_SEEDS])} seeds"
    for told, statistic in (("median", "median"), ("longest", "max")):
        rows: list[tuple[Cell, ...]] = []
        for setting in swept():
            threshold, limit, with_small = setting
            values = means(_with_fewer_jobs(runs, PROPOSAL_2, classes(setting)), statistic)
            rows.append((threshold if limit else None, limit, limit if with_small else 0, *values))
        columns = ("threshold", "limit", "limit of ss8 and s8", *ROWS)
        yield Table(title=f"Future work: {told} wait (s), {size}", columns=columns, rows=tuple(rows))
    orders: list[tuple[Cell, ...]] = []
    for system, (order, queues) in product(SCANNED, ORDERS.items()):
        found = _with_fewer_jobs(runs, system, queues)
        for told, statistic in (("median", "median"), ("mean", "mean"), ("longest", "max")):
            orders.append((system, order, told, *means(found, statistic)))
    columns = ("system", "queues scanned first", "wait", *ROWS)
    yield Table(title=f"The order of scanning (s), {size}", columns=columns, rows=tuple(orders))


def _by_threshold(runs: Paper000Runs) -> Iterator[Figure]:
    """Yields a figure for each of some queues: longest or median wait against the threshold, a line for each limit of the large queues."""
    kinds = [("longest", "max", queue) for queue in _LONGEST] + [("median", "median", queue) for queue in _MEDIAN]
    for told, statistic, queue in kinds:
        lines = []
        for limit in LIMITS[1:]:
            points = []
            for threshold in THRESHOLDS:
                found = _with_fewer_jobs(runs, PROPOSAL_2, classes((threshold, limit, False)))
                points.append(Point.of(threshold, [run.wait_s(queue, statistic) / 3600 for run in found]))
            lines.append(Line(f"limit {limit}", tuple(points)))
        yield Figure(
            title=f"Future work: {told} wait in {queue} by threshold and limit",
            x_label="threshold of individual priority",
            y_label=f"{told} wait (h)",
            lines=tuple(lines),
        )


#: With five seeds: 40 runs of 20,000 jobs, 94 of 3,000 for the future work and 126 for the region; four minutes on two processors.
STUDY = Study(paper="000", runs=Paper000Runs, seeds=5, quick_seeds=2, checks=CHECKS, tables=tables, figures=figures, notes=NOTES)
