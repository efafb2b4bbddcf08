"""Placed jobs: single-node jobs a second through the leader, their cost to each part, the latency of a four-rank job; passes.

Single-node jobs have one core each, on two Starters of eight cores and on two of thirty-two (on a machine that may have fewer, since
the jobs do nothing; more slots mean more jobs in one commit). They are 2,000 commands (`/bin/true`) of one array, 2,000
Python no-ops of one TaskQueue, and 200 submissions of one command each, in sequence by one client. Time runs from the first
submission to the last result in the client. `us/job` are processor times.

A job of four ranks is a script on two nodes (`-N 2 -n 4`). Its time runs from the call that commits its submission (`rmgr bench
commands` measures the start of the command line) to the first instruction of the script on its first node, which is after the
start barrier of both nodes; and to the first instruction of its last rank, started by `rmgr run` in the script. One at a time, on a
cluster that does nothing else.

Then connection reservation with pulled work (`gaps`): how soon a job that waited for others runs once the last of them has ended.
Every core of the cluster has a placed job of one core, and pulled tasks of 0.3 s wait for any of them. A job of all cores is promised
the cores of these jobs, and they end. The gap is from the last reported end of these jobs to the first instruction of the job, on one
clock.

Passes of a live leader (`bench placing`): 1,000 nodes of 16 cores published in ZooKeeper, full, and 10,000 waiting jobs; jobs end and
come by znodes. The nodes are silent Starters (a record and a session each, nothing runs): the leader reads lists, makes its state, passes,
and commits as always. An event is the end of one job (its block goes, as by COMPLETE) or the submission of one. Times of passes and
of turns of the leader's loop are the leader's own, from its metrics: a pass runs in a thread of its own, and the longest turn shows how
long the loop, which keeps nodes alive and answers, was blocked. All processes share the machine, so its load is in the figures.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from rmgr.bench.load.processes import children_of, cpu_s
from rmgr.bench.measuring import MeasuringPlan, Row, connected, row, scratch, wait_until, zookeeper_counts
from rmgr.bench.reality import WorkloadStage, command_draft, pipeline_with, send
from rmgr.bench.scale import silent
from rmgr.bench.tasks import no_op
from rmgr.client.connection import Connection
from rmgr.client.specs import Options, draft_of
from rmgr.client.submission.engine import Engine
from rmgr.client.submission.handle import SilentListener
from rmgr.client.submission.packing import FirstTasks, TaskSpec
from rmgr.client.taskqueue import TaskQueue
from rmgr.coord.ops.membership import set_settings
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Multi, remove
from rmgr.daemons.leader.placement.pipeline import named
from rmgr.dev.cluster import DevCluster
from rmgr.errors import RmgrError, Unavailable
from rmgr.model.block import Fragment, Outcome
from rmgr.model.states import State
from rmgr.model.submission import Command, Rigid, Submission, Work
from rmgr.model.units import percentile
from rmgr.procedures.bootstrap import read_settings

_NODES, _QUEUE = 2, "batch"
#: Cores of a node; jobs of several ranks are measured with the first.
_CORES = (8, 32)
_JOBS, _SUBMISSIONS, _PARALLEL = 2_000, 200, 100
_WARM = 5
_PATIENCE_S = 300.0
SETUP = f"1 ZooKeeper (fsync), SQLite, {_NODES} Starters of %d cores, queue {_QUEUE} (easy)"
#: Writes the time when it runs; then its ranks do the same: nanoseconds since the epoch, one file each.
_SCRIPT = """date +%s%N > "$1.script"
exec rmgr run sh -c 'date +%s%N > "$0.$RMGR_RANK"' "$1"
"""
_RANKS = 4
_ROUNDS, _PULLED = 20, 5_000
_GAP_PATIENCE_S = 120.0
_ONE = 'touch "$1/begun.$RMGR_ARRAY_INDEX"; while [ ! -e "$1/go" ]; do sleep 0.02; done; date +%s%N > "$1/ended.$RMGR_ARRAY_INDEX"'
_ALL = 'date +%s%N > "$1/new" && mv "$1/new" "$1/ran"'
_PULL = '[ -e "$1/stop" ] || sleep 0.3'


def jobs(plan: MeasuringPlan) -> list[Row]:
    """Measures placed jobs, on one cluster for each size of nodes."""
    rows = []
    for cores in _CORES:
        with scratch() as where, DevCluster(where / "cluster", nodes=_NODES, cores=cores) as cluster, connected(cluster) as connection:
            bench = _Bench(plan, cluster, connection, where, cores)
            rows += bench.rates()
            if cores == _CORES[0]:
                rows += bench.latencies()
                rows += bench.gaps()
    return rows


@dataclass(frozen=True, slots=True)
class _Used:
    """Processor seconds by part, requests and transactions of ZooKeeper, and seconds; up to now, or of one run."""

    cpu: dict[str, float]
    requests: float
    transactions: float
    at_s: float

    def __sub__(self, other: _Used) -> _Used:
        cpu = {name: value - other.cpu[name] for name, value in self.cpu.items()}
        return _Used(cpu, self.requests - other.requests, self.transactions - other.transactions, self.at_s - other.at_s)

    def per_job(self, count: int) -> dict[str, float]:
        """Returns microseconds of each part, and counts, per job."""
        return {f"{name}_us": value / count * 1e6 for name, value in self.cpu.items()} | {
            "in_all_us": sum(self.cpu.values()) / count * 1e6,
            "requests": self.requests / count,
            "transactions": self.transactions / count,
        }


class _Bench:
    def __init__(self, plan: MeasuringPlan, cluster: DevCluster, connection: Connection, directory: Path, cores: int) -> None:
        self._plan, self._cluster, self._connection, self._directory = plan, cluster, connection, directory
        self._engine = connection.submitter
        self._setup = SETUP % cores
        self._cores = cores

    # -- jobs a second

    def rates(self) -> list[Row]:
        """Runs each kind once to warm up, then measures it."""
        kinds: dict[str, tuple[int, Callable[[int], None]]] = {
            "commands of one array": (self._plan.count(_JOBS), self._array),
            "Python no-ops of one TaskQueue": (self._plan.count(_JOBS), self._python),
            "commands, a submission each": (self._plan.count(_SUBMISSIONS), self._many),
        }
        found: dict[str, list[tuple[float, dict[str, float]]]] = {name: [] for name in kinds}
        for name, (count, run) in kinds.items():
            run(max(_WARM, count // 20))
            for _ in self._plan.rounds(name):
                before = self._used()
                run(count)
                used = self._used() - before
                found[name].append((count / used.at_s, used.per_job(count)))
        rows = []
        for name, runs in found.items():
            detail = {key: statistics.median(one[key] for _, one in runs) for key in runs[0][1]}
            what = f"{kinds[name][0]:,} single-node jobs, {name}; nodes of {self._cores} cores"
            rows.append(row("rmgr", self._setup, what, "jobs/s", [rate for rate, _ in runs], **detail))
        return rows

    def _used(self) -> _Used:
        state = self._cluster.state
        starters = [process.pid for process in state.processes if process.role == "starter"]
        spawners = [child for pid in starters for child in children_of(pid)]
        leader = {"leader": [process.pid for process in state.processes if process.role == "watchdog"]}
        parts = leader | {"zookeeper": [self._cluster.process("zk1").pid], "starters": starters, "spawners": spawners}
        cpu = {name: cpu_s(pids) for name, pids in parts.items()}
        cpu["jobs"] = sum(_of_children(pid) for pid in spawners)
        cpu["client"] = time.process_time()
        return _Used(cpu, *zookeeper_counts(self._cluster), time.monotonic())

    def _draft(self, *argv: str, queue: str = _QUEUE, **fields: Any) -> Submission:
        return command_draft(self._engine, argv, Options(queue=queue, name="bench"), **fields)

    def _array(self, count: int) -> None:
        send_tasks(self._engine, self._draft("/bin/true", array=f"1-{count}"), count).wait()

    def _python(self, count: int) -> None:
        with TaskQueue(no_op, queue=_QUEUE, connection=self._connection) as queue:
            if [future.result(timeout=_PATIENCE_S) for future in queue.map(None, range(count))] != list(range(count)):
                raise RmgrError("wrong results")

    def _many(self, count: int) -> None:
        ends = AwaitedEnds(count)
        draft = self._draft("/bin/true")
        for _ in range(count):
            self._engine.open(draft, ends, timeout_s=30.0, first=FirstTasks(spec=TaskSpec(), payloads=[b""], complete=True))
        ends.wait()

    # -- ranks

    def latencies(self) -> list[Row]:
        """Measures parallel jobs, one after the other."""
        count = self._plan.count(_PARALLEL)
        script: list[list[float]] = []
        ranks: list[list[float]] = []
        for _ in range(_WARM):
            self._parallel("warm")
        for number in self._plan.rounds(f"jobs of {_RANKS} ranks"):
            times = [self._parallel(f"{number}-{at}") for at in range(count)]
            script.append([one[0] for one in times])
            ranks.append([one[1] for one in times])
        rows = []
        for what, values in (("submit to first instruction", script), ("submit to the last rank's first instruction", ranks)):
            for percent in (50, 99):
                found = [percentile(one, percent) for one in values]
                rows.append(row("rmgr", self._setup, f"a job of {_RANKS} ranks on 2 nodes, {what}, p{percent}", "ms", found))
        return rows

    def _parallel(self, name: str) -> tuple[float, float]:
        """Returns the milliseconds to the script's first instruction, and to the last rank's."""
        base = self._directory / f"job-{name}"
        rigid = Rigid(processes=_RANKS, nodes=2)
        draft = self._draft(*_shell(_SCRIPT, base), rigid=rigid)
        ends = AwaitedEnds(1)
        began_ns = time.time_ns()
        number = send(self._engine, draft)
        self._engine.attach(number, ends, own=False, timeout_s=30.0)
        ends.wait()
        said = [int(Path(f"{base}.{who}").read_text()) for who in ("script", *range(_RANKS))]
        for who in ("script", *range(_RANKS)):
            Path(f"{base}.{who}").unlink()
        return (said[0] - began_ns) / 1e6, (max(said[1:]) - began_ns) / 1e6

    # -- gaps

    def gaps(self) -> list[Row]:
        """Measures gaps (see the first lines of the file); replaces the cluster's policy. Raises: Unavailable."""
        nodes = sorted(process.id for process in self._cluster.state.processes if process.role == "starter")
        cores = self._cores * len(nodes)
        WorkloadStage(self._connection).use(pipeline_with("gaps", gap_classes(cores)))
        count, found = self._plan.count(_ROUNDS), []
        pulled = _shell(_PULL, self._directory)
        send_tasks(self._engine, self._draft(*pulled, queue="default", array=f"1-{_PULLED}"), _PULLED)
        try:
            self._gap(0, nodes, cores)
            rounds = self._plan.rounds("jobs that take over from others")
            found += [[self._gap(number * count + at, nodes, cores) for at in range(count)] for number in rounds]
        finally:
            (self._directory / "stop").touch()
        what = f"a job of {cores} cores beside pulled work: end of the last job whose cores it was promised to its first instruction"
        setup = self._setup.replace("easy", "connection_reservation")
        return [row("rmgr", setup, f"{what}, p{percent}", "ms", [percentile(one, percent) for one in found]) for percent in (50, 95)]

    def _gap(self, number: int, nodes: Sequence[str], cores: int) -> float:
        """Returns one gap, in milliseconds."""
        where = self._directory / f"gap-{number}"
        where.mkdir()
        send_tasks(self._engine, self._draft(*_shell(_ONE, where), array=f"1-{cores}"), cores)
        wait_until("jobs on all cores", lambda: len(list(where.glob("begun.*"))) == cores, within_s=_GAP_PATIENCE_S)
        job = send(self._engine, self._draft(*_shell(_ALL, where), rigid=Rigid(processes=cores)))
        wait_until("the promise", lambda: all(f"r-{job}.0" in self._holds_on(node) for node in nodes), within_s=_GAP_PATIENCE_S)
        (where / "go").touch()
        wait_until("the job", (where / "ran").exists, within_s=_GAP_PATIENCE_S)
        last = max(int(path.read_text()) for path in where.glob("ended.*"))
        return (int((where / "ran").read_text()) - last) / 1e6

    def _holds_on(self, node: str) -> list[str]:
        assert self._connection.coordinator is not None
        return self._connection.coordinator.children(paths.hold(node), timeout_s=10.0).result(11.0) or []


class AwaitedEnds(SilentListener):
    """Waits for the ends of so many tasks; each must be COMPLETED."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._wrong: list[str] = []
        self._over = threading.Event()

    def on_outcomes(self, _fragment: Fragment, outcomes: Sequence[Outcome]) -> None:
        """See `handle.Listener`. Called on the Submitter's thread."""
        self._wrong += [f"{one.state} {one.reason} {one.error}" for one in outcomes if one.state is not State.COMPLETED]
        self._left -= len(outcomes)
        if self._left <= 0:
            self._over.set()

    def on_dead(self, error: RmgrError) -> None:
        """See `handle.Listener`."""
        if self._left > 0:
            self._wrong.append(error.message)
            self._over.set()

    def wait(self) -> None:
        """Waits for all ends. Raises: Unavailable; RmgrError."""
        if not self._over.wait(_PATIENCE_S):
            raise Unavailable(f"{self._left} jobs have not ended after {_PATIENCE_S:g} s")
        if self._wrong:
            raise RmgrError(f"{len(self._wrong)} jobs did not do what they should: {self._wrong[0]}")


def send_tasks(engine: Engine, draft: Submission, count: int, *, patience_s: float = 60.0) -> AwaitedEnds:
    """Submits so many tasks in one submission; returns when all are durable."""
    ends = AwaitedEnds(count)
    handle = engine.open(draft, ends, timeout_s=30.0)
    handle.add(TaskSpec(), [b""] * count)
    handle.complete()
    handle.flush(patience_s)
    return ends


def _of_children(pid: int) -> float:
    """Returns the processor seconds of ended children that this process has waited for; 0 if it is gone."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.children_user + times.children_system)


def gap_classes(cores: int) -> dict[str, object]:
    """Returns a pipeline with two classes: jobs of one core, and jobs of up to `cores`, one of which may reserve."""
    small = {"name": "one", "max_cpus": 1, "max_processes": 1, "max_threads": 1}
    large = {"name": "all", "max_cpus": cores, "max_processes": cores, "max_threads": 1, "reservation_threshold": 20, "max_reservations": 1}
    return {"stage": [{"policy": "connection_reservation"}], "queue": [small, large]}


def _shell(script: str, where: Path) -> tuple[str, ...]:
    return ("/bin/sh", "-c", script, "sh", str(where))


# -- passes of a live leader -------------------------------------------------------------------------------------------------

_PUBLISHED_NODES, _PUBLISHED_CORES, _PENDING, _SUBMISSIONS_THAT_WAIT = 1_000, 16, 10_000, 20
_POLICIES = ("first_fit", "easy")
_EVENTS = 30
_SESSION_S, _PLACING_S, _READ_S = 60.0, 180.0, 30.0
_HOUR_S = 3600
_POLL_S = 0.02


def published(plan: MeasuringPlan) -> list[Row]:
    """Measures for each policy the pass after an event, the longest turn of the loop, and the leader's processor time per event."""
    nodes, pending = plan.count(_PUBLISHED_NODES), plan.count(_PENDING)
    setup = f"1 ZooKeeper, a leader, {nodes:,} nodes of {_PUBLISHED_CORES} cores published, full; {pending:,} jobs wait"
    with scratch() as directory:
        plan.progress(f"starting {nodes} silent Starters")
        with (
            DevCluster(directory / "cluster", nodes=0, watchdogs=1, session_timeout_s=_SESSION_S, secured=False) as cluster,
            silent(cluster, directory, "n", nodes, cores=_PUBLISHED_CORES, session_s=_SESSION_S) as starters,
        ):
            starters.told("ready")
            with connected(cluster) as connection:
                live = _Live(cluster, connection.submitter)
                plan.progress(f"placing {nodes} jobs that fill the nodes, then {pending} that wait")
                live.submit(nodes, processes=_PUBLISHED_CORES, hours=2)
                live.until(lambda told: told.placed >= nodes, "the nodes are full")
                for number in range(_SUBMISSIONS_THAT_WAIT):
                    live.submit(pending // _SUBMISSIONS_THAT_WAIT, processes=1 + number % _PUBLISHED_CORES, hours=1 + number % 3)
                live.until(lambda told: told.waiting >= pending - _SUBMISSIONS_THAT_WAIT, "all jobs wait")
                rows: list[Row] = []
                for policy in _POLICIES:
                    plan.progress(f"{policy}: {_EVENTS} events")
                    live.set_policy(policy)
                    rows += live.measured(policy, setup)
                return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """Counts and seconds since the leader's start. turns: upper bound in seconds -> number of turns of its loop within it."""

    placed: float
    waiting: float
    passes: float
    pass_s: float
    turns: dict[float, float]


class _Live:
    def __init__(self, cluster: DevCluster, engine: Engine) -> None:
        self._cluster = cluster
        self._engine = engine
        line = next(line for line in cluster.log_file("w1").read_text().split("\n") if '"watchdog_listens"' in line)
        self._metrics = f"http://{json.loads(line)['address']}/metrics"

    def submit(self, count: int, *, processes: int, hours: int) -> None:
        """Submits so many jobs in one submission."""
        rigid = Rigid(processes=processes)
        draft = draft_of(
            Options(queue=_QUEUE, name="bench", time=hours * _HOUR_S), work=Work.COMMAND, command=Command(argv=("/bin/true",)), rigid=rigid
        )
        send_tasks(self._engine, draft, count, patience_s=_PLACING_S)

    def set_policy(self, policy: str) -> None:
        """Sets the policy from the next pass on, and waits for that pass."""
        coordinator = self._cluster.coordinator
        found = coordinator.get(paths.CONFIG).result(_READ_S)
        assert found is not None
        settings = replace(read_settings(coordinator), pipelines=(named("default", policy, {}),))
        before = self.told().passes
        self._commit(set_settings(settings, found.version))
        self.until(lambda told: told.passes > before, "the policy has passed")

    def measured(self, policy: str, setup: str) -> list[Row]:
        """Makes events one after another, each after the pass that follows the one before."""
        leader = self._cluster.process("w1").pid
        began, began_cpu_s = self.told(), cpu_s([leader])
        times: list[float] = []
        for number in range(_EVENTS):
            before = self.told()
            if number % 2:
                self.submit(1, processes=1 + number % _PUBLISHED_CORES, hours=1)
            else:
                self._end(number)
            after = self.until(lambda told, before=before: told.passes > before.passes, "a pass")  # type: ignore[misc]
            times.append((after.pass_s - before.pass_s) / (after.passes - before.passes) * 1e3)
        ended = self.told()
        turns = {bound: ended.turns[bound] - began.turns[bound] for bound in ended.turns}
        longest_ms = 1e3 * min((bound for bound, count in turns.items() if count == max(turns.values())), default=0.0)
        per_event_ms = (cpu_s([leader]) - began_cpu_s) / _EVENTS * 1e3
        return [
            row("rmgr", setup, f"{policy}: a pass after an event", "ms", times, passes=ended.passes - began.passes),
            row("rmgr", setup, f"{policy}: longest turn of the leader's loop, below", "ms", [longest_ms]),
            row("rmgr", setup, f"{policy}: processor of the leader, all of it", "ms/event", [per_event_ms]),
        ]

    def _end(self, number: int) -> None:
        """Ends a job that runs on the node of this number, or on one of the next nodes."""
        zk = self._cluster.coordinator
        for at in range(number, number + 200):
            node = f"n{at}"
            names = zk.children(paths.running_node(node)).result(_READ_S)
            if names:
                path = f"{paths.running_node(node)}/{names[0]}"
                self._commit(remove("END", path))
                return
        raise Unavailable("no job runs")

    def _commit(self, multi: Multi) -> None:
        outcome = self._cluster.coordinator.commit(multi).result(_READ_S)
        if not isinstance(outcome, Committed):
            raise Unavailable(f"{multi.name}: {outcome}")

    def told(self) -> _Told:
        """Returns the leader's metrics."""
        with urllib.request.urlopen(self._metrics, timeout=_READ_S) as answer:  # noqa: S310 - its own address
            lines = [line.rpartition(" ") for line in answer.read().decode().splitlines() if not line.startswith("#")]
        values = {name: float(value) for name, _, value in lines}
        turn = 'rmgr_leader_pass_seconds_bucket{le="'
        return _Told(
            placed=values["rmgr_leader_placed_jobs_total"],
            waiting=values["rmgr_leader_waiting_jobs"],
            passes=values["rmgr_leader_placing_seconds_count"],
            pass_s=values["rmgr_leader_placing_seconds_sum"],
            turns={float(name.removeprefix(turn).rstrip('"}')): value for name, value in values.items() if name.startswith(turn)},
        )

    def until(self, condition: Callable[[_Told], bool], what: str) -> _Told:
        """Waits for the condition; returns the metrics that fulfil it. Raises: Unavailable."""
        end_s = time.monotonic() + _PLACING_S
        while not condition(told := self.told()):
            if time.monotonic() > end_s:
                raise Unavailable(f"not within {_PLACING_S:g} s: {what}; {told}")
            time.sleep(_POLL_S)
        return told
