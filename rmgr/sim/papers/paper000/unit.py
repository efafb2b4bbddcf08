"""Paper 000: the exact statements (C0.1 to C0.5, C0.7), each by running the policy on a small case built for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter
from typing import Any

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
from rmgr.sim.papers.report import PaperCheck, Within, WithinBounds
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


def selection() -> PaperCheck:
    """C0.1."""
    ours: dict[str, int] = {}
    for processes, threads, hours, expected in SELECTION:
        for tried in (1, 2) if hours is None else (hours,):
            plan = Scene(QueueSelect(), cores=256, nodes=8).arrives(1, processes, "", threads=threads, hours=tried)
            found = [d.to for d in plan.decisions if isinstance(d, Route)] + ["" for d in plan.decisions if isinstance(d, Reject)]
            ours[f"({processes}, {threads}, {tried} h) {expected or 'refused'}"] = int(found == [expected])
    return PaperCheck(
        id="C0.1",
        what="selection table: (processes, threads, time) goes to its queue (1 = it does)",
        paper=dict.fromkeys(ours, 1),
        ours=ours,
        rule=Within(),
    )


def constants() -> Iterator[PaperCheck]:
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


def choices() -> Iterator[PaperCheck]:
    """C0.3, C0.4, C0.5."""
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


def starvation() -> Iterator[PaperCheck]:
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


def _waits(queue: str, processes: int, threads: int, nodes: int, stream: str, **changed: Any) -> list[float]:
    """Of the three jobs (s). changed: fields of their class."""
    jobs = [(second * SECOND + i, 1, 1, _STREAM_RUN_S, stream) for second in range(_STREAM_S) for i in range(nodes)]
    jobs += [((_ASKED_S + i) * SECOND, processes, threads, 100, queue) for i in range(3)]
    queues = tuple(replace(c, **changed) if c.name == queue else c for c in HPC2500)
    setting = Setting(nodes=nodes, cores=128, pipeline=(Stage(ConnectionReservation(queues=queues)),), policy="connection_reservation")
    result = simulate(_workload(jobs, nodes * 128), setting)
    return [outcome.wait_us / SECOND for outcome in result.outcomes if outcome.job.processors > 1]


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
