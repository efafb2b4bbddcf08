"""Paper 000, its checks C0.1 to C0.11 (papers.md 1.7).

C0.1 to C0.5 and C0.7 are exact: each runs the policy on a small case built for it. C0.6 looks at the reservations of all runs; C0.8 to
C0.11 judge what the paper says of figures 2 and 3, for each queue, load and seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from functools import cache
from itertools import product
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from rmgr.sched.engine import run_pass
from rmgr.sched.job import Job, Node, Placement
from rmgr.sched.plan import HoldCores, Plan, Reject, Route
from rmgr.sched.policies.connection_reservation import ConnectionReservation, constant
from rmgr.sched.policies.queue_first_fit import QueueSelect
from rmgr.sched.policy import Cause, Policy, Stage
from rmgr.sched.queue_class import HOUR_US, HPC2500, QueueClass
from rmgr.sched.state.cluster import ClusterState
from rmgr.sim.engine.driver import simulate
from rmgr.sim.engine.outcome import Setting
from rmgr.sim.papers.paper000.runs import ALL, CONVENTIONAL, PARTITIONED, PROPOSAL_1, PROPOSAL_2, SYSTEMS, Paper000Runs
from rmgr.sim.papers.report import PaperCheck, Within, WithinBounds, mean, spread
from rmgr.sim.workload import jobs as sim
from rmgr.sim.workload.jobs import SECOND, Workload

#: papers.md C0.1: processes, threads, hours, queue ("" = refused); where it gives no time, both sides of two hours are tried.
SELECTION = (
    (1, 8, 1, "ss8"), (8, 1, 2, "s8"), (1, 64, None, "s128"), (2, 64, None, "s128"), (16, 1, None, "d32"), (16, 2, None, "d32"),
    (33, 1, None, "d128"), (16, 8, None, "d128"), (8, 16, None, "s128"), (129, 1, None, "d512"), (16, 32, None, "d512"),
    (1, 129, None, ""), (9, 64, None, ""), (513, 1, None, ""),
)  # fmt: skip
#: papers.md C0.2: processes, threads, queue, w, the overtaking at which it reserves (None: papers.md does not say).
CONSTANTS = (
    (9, 1, "d32", 10.667, 2), (1, 32, "d32", 1.0, 21), (2, 64, "s128", 1.4142, None), (512, 1, "d512", 5.65685, 4),
    (16, 32, "d512", 1.0, 21),
)  # fmt: skip

SMALL, LARGE = ("ss8", "s8"), ("s128", "d32", "d128", "d512")
#: "Clearly above" is more than this share above, "about equal" is within it (a choice: the paper prints no bar's value).
CLEARLY = 0.10
#: Of one load and seed: system -> measure of one queue (s).
Bars: TypeAlias = Mapping[str, float]
Check: TypeAlias = Callable[[Paper000Runs], Iterator[PaperCheck]]

_CLASSES = {queue.name: queue for queue in HPC2500}
#: C0.7: 1-CPU jobs of 150 s, one a second for each node of 128 CPUs, for 1,000 s; the three jobs come when 300 s have passed.
_STREAM_RUN_S, _STREAM_S, _ASKED_S = 150, 1000, 300


class Scene:
    """A cluster of one partition, a policy, and jobs put on it by hand. Times in seconds."""

    def __init__(self, policy: Policy, cores: int, nodes: int = 1) -> None:
        self.state = ClusterState(Node(id=i, cores=cores) for i in range(nodes))
        self._pipeline = (Stage(policy),)
        self.now = 0

    def runs(self, job_id: int, processes: int, queue: str, placement: Placement, *, threads: int = 1) -> None:
        """The job runs since now."""
        self.state.job_submitted(self._job(job_id, processes, threads, queue))
        self.state.job_started(job_id, placement, self.now * SECOND)
        self.now += 1

    def arrives(self, job_id: int, processes: int, queue: str, *, threads: int = 1, hours: int = 1) -> Plan:
        """The job is submitted; the pass that follows, carried out."""
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
    """The running jobs whose resources this plan promises the job, by id."""
    return [share.run_id for d in plan.decisions if isinstance(d, HoldCores) and d.job_id == job_id for share in d.hold.waits_for]


def selection(_runs: Paper000Runs) -> Iterator[PaperCheck]:
    """C0.1."""
    ours: dict[str, int] = {}
    for processes, threads, hours, expected in SELECTION:
        for tried in (1, 2) if hours is None else (hours,):
            plan = Scene(QueueSelect(), cores=256, nodes=8).arrives(1, processes, "", threads=threads, hours=tried)
            found = [d.to for d in plan.decisions if isinstance(d, Route)] + ["" for d in plan.decisions if isinstance(d, Reject)]
            ours[f"({processes}, {threads}, {tried} h) {expected or 'refused'}"] = int(found == [expected])
    yield PaperCheck(
        id="C0.1",
        what="selection table: (processes, threads, time) goes to its queue (1 = it does)",
        paper=dict.fromkeys(ours, 1),
        ours=ours,
        rule=Within(),
    )


def constants(_runs: Paper000Runs) -> Iterator[PaperCheck]:
    """C0.2."""
    rows = {f"({p}, {t}) in {queue}": (p, t, queue, w, at) for p, t, queue, w, at in CONSTANTS}
    yield PaperCheck(
        id="C0.2a",
        what="constant w of formula (1) for (processes, threads)",
        paper={row: w for row, (_, _, _, w, _) in rows.items()},
        ours={row: constant(Job(id=1, submit_us=0, processes=p, threads=t), _CLASSES[queue]) for row, (p, t, queue, _, _) in rows.items()},
        rule=Within(absolute=0.0005),
    )
    told = {row: value for row, value in rows.items() if value[4] is not None}
    yield PaperCheck(
        id="C0.2b",
        what="the overtaking at which a job reserves (threshold 20)",
        paper={row: at or 0 for row, (_, _, _, _, at) in told.items()},
        ours={row: _overtakings(_CLASSES[queue], p, t) for row, (p, t, queue, _, _) in told.items()},
        rule=Within(),
    )


def _overtakings(queue: QueueClass, processes: int, threads: int) -> int:
    """How often a second waiting job is overtaken before it reserves; the first has reserved when it came to the empty queue."""
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
    """C0.3."""
    scene = Scene(ConnectionReservation(), cores=256)
    for job_id, processes in ((1, 128), (2, 32), (3, 32), (4, 64)):
        scene.runs(job_id, processes, "d128", ((0, 0, processes),))
    first = promised_to(5, scene.arrives(5, 32, "d128"))
    second = promised_to(6, scene.arrives(6, 224, "d512"))
    yield PaperCheck(
        id="C0.3",
        what="128, 32, 32, 64 CPUs run in this order: a match goes first, the earlier of two; what is promised is not chosen again",
        paper={"32 CPUs take over job": 2, **{f"224 CPUs take over job {job_id}": int(job_id != 2) for job_id in (1, 2, 3, 4)}},
        ours={
            "32 CPUs take over job": first[0] if len(first) == 1 else 0,
            **{f"224 CPUs take over job {job_id}": second.count(job_id) for job_id in (1, 2, 3, 4)},
        },
        rule=Within(),
    )


def largest_first(_runs: Paper000Runs) -> Iterator[PaperCheck]:
    """C0.4."""
    result = simulate(max_space(), Setting(nodes=1, cores=128, pipeline=(Stage(ConnectionReservation()),), policy="connection_reservation"))
    requester = result.outcomes[3]
    yield PaperCheck(
        id="C0.4",
        what="64, 32, 32 CPUs run, 96 are wanted: 64 and the earlier 32; starts when both have ended, nobody uses the CPUs before",
        paper={"start (s)": 100, "1-CPU jobs started before": 0, "CPUs of its choice": 96},
        ours={
            "start (s)": requester.start_us // SECOND,
            "1-CPU jobs started before": sum(other.start_us < requester.start_us for other in result.outcomes[4:]),
            "CPUs of its choice": 96 if requester.spells[0].cores == ((0, 95),) else 0,
        },
        rule=Within(),
    )


def all_running(_runs: Paper000Runs) -> Iterator[PaperCheck]:
    """C0.5."""
    scene = Scene(ConnectionReservation(), cores=128, nodes=4)
    scene.runs(1, 256, "d512", ((0, 1, 128),))
    for job_id, node in ((2, 2), (3, 3)):
        scene.runs(job_id, 128, "d128", ((node, node, 128),))
    wide = promised_to(4, scene.arrives(4, 512, "d512"))
    yield PaperCheck(
        id="C0.5",
        what="512 CPUs wanted while d512 runs 256: all running jobs become candidates",
        paper={"jobs promised": 3, "of them from other queues": 2},
        ours={"jobs promised": len(wide), "of them from other queues": len([job_id for job_id in wide if job_id != 1])},
        rule=Within(),
    )


def max_space() -> Workload:
    """C0.4: job 1 (64 CPUs) ends at 100 s, 2 (32) at 51 s, 3 (32, started later) at 502 s; 4 wants 96; then one CPU a second."""
    jobs = [(0, 64, 100), (1, 32, 50), (2, 32, 500), (10, 96, 20), *((15 + number, 1, 10) for number in range(5, 100))]
    return _workload([(at * SECOND, cpus, 1, run, "d128" if cpus > 1 else "ss8") for at, cpus, run in jobs], 128)


def starvation(_runs: Paper000Runs) -> Iterator[PaperCheck]:
    """C0.7: three jobs of a queue that may reserve, a second apart, under a stream of 1-CPU jobs that alone wants more than there is."""
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
        id="C0.7a",
        what=f"longest wait (s) of three jobs under a saturating stream that lasts {rest_s} s more; limits of table 4",
        ours=waits,
        rule=WithinBounds(at_least=0, below=rest_s),
    )
    yield PaperCheck(
        id="C0.7b",
        what="limit 0: the first start of the three (s), counted from the end of the stream",
        ours=after,
        rule=WithinBounds(at_least=0),
    )
    yield PaperCheck(
        id="C0.7c",
        what="the jobs behind the first when only other queues overtake them (no rule of the paper is theirs): last start (s), as in C0.7b",
        ours=behind,
        rule=WithinBounds(below=0),
        required=False,
    )
    yield PaperCheck(
        id="C0.7d",
        what="the same with head_trigger in their class, too: longest wait (s)",
        ours=cured,
        rule=WithinBounds(at_least=0, below=rest_s),
        required=False,
    )


@cache  # checks are written twice
def _waits(queue: str, processes: int, threads: int, nodes: int, stream: str, **changed: Any) -> tuple[float, ...]:
    """Of the three jobs (s). changed: fields of their class."""
    jobs = [(second * SECOND + i, 1, 1, _STREAM_RUN_S, stream) for second in range(_STREAM_S) for i in range(nodes)]
    jobs += [((_ASKED_S + i) * SECOND, processes, threads, 100, queue) for i in range(3)]
    queues = tuple(replace(c, **changed) if c.name == queue else c for c in HPC2500)
    setting = Setting(nodes=nodes, cores=128, pipeline=(Stage(ConnectionReservation(queues=queues)),), policy="connection_reservation")
    result = simulate(_workload(jobs, nodes * 128), setting)
    return tuple(outcome.wait_us / SECOND for outcome in result.outcomes if outcome.job.processors > 1)


def _workload(jobs: list[tuple[int, int, int, int, str]], processors: int) -> Workload:
    """Of (submit in us, processes, threads, run time in s, queue)."""
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
    """C0.6."""
    found = [run for load in runs.loads for run in runs.of(PROPOSAL_2, load)]
    yield PaperCheck(
        id="C0.6",
        what="the most reservations of a queue at one instant, less its limit of table 4 (ss8, s8: none), in all runs of proposal 2",
        ours={queue.name: max(run.held.get(queue.name, 0) for run in found) - queue.max_reservations for queue in HPC2500},
        rule=WithinBounds(at_most=0),
    )


# -- what the paper says of figures 2 and 3: claims about bars -----------------------------------------------------------------


class Relation(StrEnum):
    """Relation of a bar to another, or to the lower of two others (`LOWEST`)."""

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
        """Equal bars decide nothing; about equal ones do, unless nobody waits."""
        return ours == other and (self is not Relation.EQUAL or ours == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A sentence of the paper about bars. id: of papers.md. measure: `median` or `max`. against: None = the conventional system."""

    id: str
    what: str
    measure: str
    queues: tuple[str, ...]
    system: str
    relation: Relation
    against: str | None = None

    def compared(self, bars: Bars, baseline: str) -> tuple[float, float]:
        """(our bar, the one that it is held against)."""
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
    """A claim at one queue and load. pairs: of each seed our bar and the one that it is held against. verdicts: 1 holds, 0 does not,
    None: a tie.
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
    """Each claim with every system that it is held against, and the id of that check."""
    letters: Counter[str] = Counter()
    for claim in CLAIMS:
        for baseline in (claim.against,) if claim.against else (CONVENTIONAL, PARTITIONED):
            yield f"{claim.id}{chr(ord('a') + letters[claim.id])}", claim, baseline
            letters[claim.id] += 1


def claimed(name: str) -> Check:
    """The claims of this id: the share of those seeds that decide in which each holds, a row for each queue and load."""

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
                id=check_id,
                what=f"{what}: share of deciding seeds",
                paper=dict.fromkeys(shares, 1),
                ours=shares,
                spread=spreads,
                ties=ties,
                decided=decided,
                rule=Within(),
                required=False,
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
