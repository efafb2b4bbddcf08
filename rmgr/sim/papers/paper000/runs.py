"""Paper 000, its runs: the four systems that figures 2 and 3 compare, one run of one of them, and how checks and tables ask for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from statistics import fmean, median
from typing import ClassVar

from rmgr.sched.draft import Draft
from rmgr.sched.job import Node
from rmgr.sched.policies.connection_reservation import ConnectionReservation
from rmgr.sched.policies.queue_first_fit import QueueFirstFit, QueueSelect
from rmgr.sched.policy import Cause, Policy, Stage
from rmgr.sched.queue_class import HPC2500, Ladder
from rmgr.sim.engine.driver import simulate
from rmgr.sim.engine.outcome import JobOutcome, Setting
from rmgr.sim.models.hpc2500 import CPUS_PER_NODE, NODES, hpc2500
from rmgr.sim.papers.report import Runs
from rmgr.sim.workload.jobs import SECOND

QUEUES = tuple(queue.name for queue in HPC2500)
ALL = "all"
#: Figures 2 and 3, and a second baseline (papers.md 1.8).
CONVENTIONAL, PARTITIONED, PROPOSAL_1, PROPOSAL_2 = "conventional", "conventional_partitioned", "proposal 1", "proposal 2"
SYSTEMS = (CONVENTIONAL, PARTITIONED, PROPOSAL_1, PROPOSAL_2)
#: Of conventional_partitioned: queues of one partition, and its nodes (128, 256, 128, 384 and 512 CPUs).
PARTITIONS: tuple[tuple[tuple[str, ...], int], ...] = ((("ss8", "s8"), 1), (("s128",), 2), (("d32",), 1), (("d128",), 3), (("d512",), 4))
LOADS = (Fraction("0.95"), Fraction("1.10"))
JOBS = 20_000
#: The share of jobs, by arrival, that measures leave out.
WARM_UP = Fraction(1, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper000Run:
    """One run: a system, the offered load, the seed of its workload, how many jobs. queues: the classes, the paper's or others.

    small: jobs of at most 8 CPUs are so many times as frequent. firstfit_nodes: of the conventional system, 0 = all.
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
    """Waiting times of one queue, or of all jobs, warm-up left out (seconds)."""

    jobs: int
    median_s: float
    mean_s: float
    max_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measures of a run. waits: by queue, and of `all`. held: by queue the most reservations at one instant. made: reservations in all."""

    waits: Mapping[str, Waits]
    utilisation: float
    held: Mapping[str, int]
    made: Mapping[str, int]
    faults: int

    def wait_s(self, queue: str, statistic: str) -> float:
        """statistic: `median`, `mean` or `max`. 0 for a queue in which nobody was."""
        waits = self.waits.get(queue)
        return 0.0 if waits is None else float(getattr(waits, f"{statistic}_s"))


class Paper000Runs(Runs[Paper000Run, Measured]):
    """The runs of figures 2 and 3 by system and load, a value a seed; those of other sizes by `Paper000Run`.

    quick: the higher load alone, neither region nor future work.
    """

    def __init__(self, seeds: Sequence[int], *, quick: bool = False) -> None:
        super().__init__(seeds, Measured(waits={}, utilisation=1.0, held={}, made={}, faults=0), measure, quick=quick)
        self.loads = LOADS[-1:] if quick else LOADS

    def of(self, system: str, load: Fraction) -> list[Measured]:
        return [self[Paper000Run(system=system, load=load, seed=seed)] for seed in self.seeds]


@dataclass(frozen=True, slots=True)
class _Watch:
    """An instrument, not a policy: the last stage of a pipeline, it counts the reservations that stand after each pass."""

    name: ClassVar[str] = "watch"
    most: Counter[str] = field(default_factory=Counter)  #: at one instant
    made: Counter[str] = field(default_factory=Counter)
    standing: set[int] = field(default_factory=set)

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:  # noqa: ARG002 - the same whatever happened
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
    """What schedules this system."""
    match system:
        case "proposal 1":
            return QueueSelect(queues=queues)
        case "proposal 2":
            return ConnectionReservation(queues=queues)
        case _:
            return QueueFirstFit(queues=queues, firstfit_nodes=firstfit_nodes)


def measure(cell: Paper000Run) -> Measured:
    """Runs it. Cost: some seconds for 20,000 jobs."""
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
    """The nodes, each in the partition of its queues."""
    names = [_name(queues) for queues, nodes in PARTITIONS for _ in range(nodes)]
    return tuple(Node(id=number, cores=CPUS_PER_NODE, partition=name) for number, name in enumerate(names))


def _name(queues: Iterable[str]) -> str:
    return "-".join(queues)


def waits_of(outcomes: Sequence[JobOutcome], queues: Ladder) -> dict[str, Waits]:
    """By the queue in which each job was, and of all. A queue without jobs is left out."""
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
