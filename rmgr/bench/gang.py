"""Jobs that share cores in time (policy dqt): how exactly they take turns, what a turn costs, and what sharing costs the jobs.

Eight Starters of one core each run on a machine that has fewer cores, so spinning jobs on all of them also wait for processors. The
switch therefore has a baseline that waits in the same way: a bare loop per node, with as many spinning processes, that stops and continues
them at the same interval. Ranks stamp the start of each stretch of running; the offset is the distance of the first stamp of a turn from
the boundary in the record. Its repetitions are consecutive parts of one series of turns.

Then jobs on real nodes are compared with a simulation of the same jobs (`model`): utilisation and shares. Jobs of 1 to 8 processes come
at .8 of the machine and sleep 10 ms at a time: a sleep that ends while a job is stopped goes unnoticed, so the job needs its turns. Then
equal jobs, of all nodes and of one length, come at once. The simulator has no costs: starts, stops and Python take no time in it.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from rmgr.adapters.host.cgroup import CgroupConfig, Cgroups
from rmgr.bench.jobs import AwaitedEnds
from rmgr.bench.load import turns
from rmgr.bench.load.processes import children_of, cpu_s
from rmgr.bench.measuring import SAME_RUN, MeasuringPlan, Row, connected, over, row, scratch, wait_until, zookeeper_counts
from rmgr.bench.reality import PARTITION, Played, WorkloadStage, command_draft, compare, pipeline_with, send, simulated
from rmgr.client.connection import Connection
from rmgr.client.specs import Options
from rmgr.coord import validity
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.records import decode_record, encode_record
from rmgr.dev.cluster import DevCluster
from rmgr.errors import Unavailable
from rmgr.model.block import job_id
from rmgr.model.node import Freezer, GangClock, GangRecord, NodeRecord
from rmgr.model.submission import Rigid
from rmgr.model.units import percentile
from rmgr.sched.capacity.gangs import Carousel, Timetable
from rmgr.sched.records import Gang
from rmgr.sim.workload.jobs import SECOND, Workload, WorkloadJob

_NODES = 8
#: Nodes of the jobs that measure the switch, and number of slots observed for each quantum (s).
_SIZES = (2, 8)
_SLOTS = {0.1: 30, 0.5: 8, 1.0: 6}
#: Size and quantum (s) for which the switch goes on for `_TURNING_S`, while requests are counted, after an idle cluster for `_IDLE_S`.
#: A Starter re-reads all that it watches every 20 s, all nodes at about the same time: a shorter sample would contain none of it or all.
_COUNTED, _TURNING_S, _IDLE_S = (8, 0.5), 60.0, 60.0
#: How long computing jobs and ping-pongs are observed, alone and together (s).
_ALONE_S, _TOGETHER_S = 1.0, 1.0
#: Number of jobs timed to their first instruction, per repetition.
_STARTS = 2
_PATIENCE_S = 60.0
#: Size of the record that is read in process.
_LEAVES, _JOBS = 256, 500
PROGRAM = turns.__file__
LOAD = 0.8
_MODEL_JOBS, _EQUALS, _SEED = 24, 4, 11
#: Length of slots (s).
_QUANTUM_S = 0.5


class Switches(NamedTuple):
    """Milliseconds: offsets per boundary and node (< 0: early), and spreads per boundary (last node minus first node)."""

    offsets: list[float]
    spreads: list[float]


def gang(plan: MeasuringPlan) -> list[Row]:
    """Measures gangs on one cluster, and the record of a large tree in process."""
    with scratch() as where, DevCluster(where / "cluster", nodes=_NODES, cores=1) as cluster, connected(cluster) as connection:
        bench = _Bench(plan, cluster, connection, where)
        rows = [*bench.switches(), *bench.work(), *bench.talk(), *bench.starts(), *bench.model()]
    return rows + reading(plan)


@dataclass(frozen=True, slots=True)
class _Job:
    number: int
    ends: AwaitedEnds


class _Bench:
    def __init__(self, plan: MeasuringPlan, cluster: DevCluster, connection: Connection, directory: Path) -> None:
        self._plan, self._cluster, self._engine, self._directory = plan, cluster, connection.submitter, directory
        assert connection.coordinator is not None
        self._coordinator = connection.coordinator
        self._stage = WorkloadStage(connection)
        self._nodes = sorted(process.id for process in cluster.state.processes if process.role == "starter")
        self._freezer = Freezer(self._record(paths.node(self._nodes[0]), NodeRecord).freezer or Freezer.SIGNALS)
        self._setup = f"{_NODES} Starters of 1 core on {os.cpu_count()} cores, freezer {self._freezer}"
        self._made = 0

    def model(self) -> list[Row]:
        """Calls `model` on this cluster."""
        return model(self._plan, self._stage, _NODES, self._setup)

    # -- the switch --------------------------------------------------------------------------------------------------------

    def switches(self) -> list[Row]:
        """Measures the switch for each size and quantum, the requests of one of them, and the turners' time."""
        turning = (0.0, 0.0)
        others: dict[str, float] = {}
        idle_s = self._seconds(_IDLE_S)
        self._plan.progress(f"an idle cluster: {idle_s:g} s")
        idle = self._requests(partial(time.sleep, idle_s))
        rows: list[Row] = []
        spent: list[tuple[float, float]] = []
        for size in _SIZES:
            for quantum_s, count in _SLOTS.items():
                is_counted = (size, quantum_s) == _COUNTED
                slots = self._slots(round(_TURNING_S / quantum_s) if is_counted else count)
                self._plan.progress(f"the switch: 2 jobs on {size} nodes, {slots} slots of {quantum_s:g} s")
                ours, used, turned = self._turn(size, quantum_s, slots)
                theirs = self._loops(size, quantum_s, self._slots(count))
                rows += self._compared(f"2 jobs on {size} nodes, slots of {quantum_s:g} s", ours, theirs)
                spent.append(used)
                turning = turned if is_counted else turning
                others[f"on_{size}_at_{quantum_s:g}_s"] = turned[0]
        rate, changes = turning
        rows.append(row("an idle cluster", SAME_RUN, "requests to ZooKeeper", "a second", [idle[0]], ratio=1.0, transactions=idle[1]))
        rows.append(
            row("rmgr", self._setup, "... while jobs turn", "a second", [rate], ratio=rate / idle[0], transactions=changes, **others)
        )
        costs = [1000 * seconds / switches for seconds, switches in spent]
        rows.append(row("rmgr", self._setup, "processor time of a turner, a switch", "ms", costs))
        return rows

    def _turn(self, size: int, quantum_s: float, slots: int) -> tuple[Switches, tuple[float, float], tuple[float, float]]:
        """Returns (its switches, (processor seconds of the turners, their switches), (requests, transactions a second))."""
        self._use(quantum_s)
        where = self._place()
        seconds = str((slots / 2 + 1) * quantum_s)  # the first and the last turn are ignored
        jobs = [self._submit(size, "stamp", str(where), str(quantum_s / 2), seconds) for _ in range(2)]
        wait_until(f"{2 * size} ranks stamp", lambda: sum(bool(stretches(path)) for path in where.iterdir()) == 2 * size)
        record = self._record(paths.gangs(PARTITION), GangRecord)
        turners = self._turners(self._nodes[:size])
        before_s, began_s = cpu_s(turners), time.monotonic()
        turned = self._requests(partial(time.sleep, slots * quantum_s))
        used_s, lasted_s = cpu_s(turners) - before_s, time.monotonic() - began_s
        for job in jobs:
            job.ends.wait()
        origin_ns = (record.origin_us - record.clock.offset_us) * 1000
        return switches_of(where, origin_ns, round(quantum_s * 1e9)), (used_s, len(turners) * lasted_s / quantum_s), turned

    def _loops(self, size: int, quantum_s: float, slots: int) -> Switches:
        """Measures the same with a bare loop per node."""
        where = self._place()
        quantum_ns = round(quantum_s * 1e9)
        origin_ns = turns.now_ns() + 1_000_000_000  # all of them have started by then
        with self._groups(size) as groups:
            commands = [
                (0, (PROGRAM, "loop", str(where), str(quantum_ns), str(origin_ns), str(slots + 2), f"n{at}", *groups[at]))
                for at in range(size)
            ]
            with _running(commands) as loops:
                for child in loops:
                    child.wait(_PATIENCE_S + (slots + 2) * quantum_s)
        return switches_of(where, origin_ns, quantum_ns)

    @contextlib.contextmanager
    def _groups(self, size: int) -> Iterator[list[tuple[str, ...]]]:
        """Yields two control groups per node where Starters use them, else none."""
        made = Cgroups.open(CgroupConfig(), f"bench-{os.getpid()}") if self._freezer is Freezer.V2 else None
        if made is None:
            yield [()] * size
            return
        try:
            slots = [[made.slot(f"{node}-{at}", pids_limit=0) for at in range(2)] for node in range(size)]
            yield [tuple(slot.freeze_file.removesuffix("/cgroup.freeze") for slot in of_node) for of_node in slots]
        finally:
            made.close()

    def _compared(self, what: str, ours: Switches, theirs: Switches) -> list[Row]:
        rows = []
        for percent in (50, 99):
            found = []
            for one in (theirs, ours):
                offsets = [abs(offset) for offset in one.offsets]
                parts = _parts(offsets, self._plan.repetitions)
                detail = {"spread_of_nodes": percentile(one.spreads, percent), "boundaries": len(one.spreads), "earliest": min(one.offsets)}
                found.append((percentile(offsets, percent), [percentile(part, percent) for part in parts], detail))
            (bare, their_parts, their_detail), (mine, our_parts, our_detail) = found
            label = f"{what}: first stamp beside the boundary, p{percent}"
            rows.append(replace(row("a bare loop a node", SAME_RUN, label, "ms", their_parts, ratio=1.0, **their_detail), rate=bare))
            rows.append(replace(row("rmgr", self._setup, label, "ms", our_parts, ratio=mine / bare, **our_detail), rate=mine))
        return rows

    # -- jobs that compute, and that talk --------------------------------------------------------------------------------------

    def work(self) -> list[Row]:
        """Measures two computing jobs on one core: time for one second of a lone job's work, without the last, half used slots."""
        alone: list[float] = []
        shared: dict[float, list[float]] = {quantum_s: [] for quantum_s in sorted(_SLOTS, reverse=True)}
        for _ in self._plan.rounds("two jobs on one core"):
            alone += self._rates("work", 1, 1, self._seconds(_ALONE_S, least=0.4))
            for quantum_s, found in shared.items():
                self._use(quantum_s)
                found.append(sum(self._rates("work", 1, 2, self._rounds_s(quantum_s))))
        what = "two computing jobs on a core, for as much as a job alone does in 1 s"
        rows = [row("one after the other", self._setup, what, "s", [1.0] * len(alone), ratio=1.0)]
        for quantum_s, found in shared.items():
            times = [one / both for one, both in zip(alone, found, strict=True)]
            rows.append(row("rmgr", self._setup, f"... alternating, slots of {quantum_s:g} s", "s", times, ratio=statistics.median(times)))
        return rows

    def talk(self) -> list[Row]:
        """Measures two ranks on two nodes that answer each other: alone, with another such job, and both as plain processes."""
        self._use(0.5)
        rates: dict[str, list[list[float]]] = {"plain Linux": [], "rmgr": []}
        alone: list[float] = []
        for _ in self._plan.rounds("two ping-pongs"):
            alone += self._rates("pingpong", 2, 1, self._seconds(_ALONE_S, least=0.4))
            rates["plain Linux"].append(self._rates("pingpong", 2, 2, self._rounds_s(0.5), plain=True))
            rates["rmgr"].append(self._rates("pingpong", 2, 2, self._rounds_s(0.5)))
        rows = [row("rmgr", self._setup, "messages of a ping-pong between 2 nodes, alone", "a second", alone, ratio=1.0)]
        for system, found in rates.items():
            setup = self._setup if system == "rmgr" else SAME_RUN
            for what, pick in (("slower", min), ("faster", max)):
                values = [pick(pair) for pair in found]
                rows.append(row(system, setup, f"... two at once, the {what} one", "a second", values, ratio=over(values, alone)))
        return rows

    def _rounds_s(self, quantum_s: float) -> float:
        """Returns whole rounds of two slots, of which each job gets half wherever they begin."""
        return 2 * quantum_s * max(1, round(self._seconds(_TOGETHER_S, least=0.5) / (2 * quantum_s)))

    def _rates(self, program: str, processes: int, count: int, seconds: float, *, plain: bool = False) -> list[float]:
        """Returns what each of `count` jobs counts per second. plain: run them as processes of this machine."""
        where = self._place()
        files = [where / str(at) for at in range(count)]
        for path in files:
            path.write_bytes(bytes(turns.COUNT_BYTES))
        ranks = list(range(processes))
        jobs: list[_Job] = []
        with _running([(rank, (PROGRAM, program, str(path))) for path in files for rank in ranks] if plain else []) as children:
            try:
                jobs += [self._submit(processes, program, str(path)) for path in files if not plain]
                wait_until(f"{count} jobs count", lambda: all(_word(path, turns.PONG) for path in files))
                before, began_s = [_word(path, turns.PONG) for path in files], time.monotonic()
                time.sleep(seconds)
                after, lasted_s = [_word(path, turns.PONG) for path in files], time.monotonic() - began_s
            finally:
                for path in files:
                    with path.open("r+b") as file:
                        file.seek(turns.OVER)
                        file.write(turns.WORD.pack(1))
            for job in jobs:
                job.ends.wait()
            for child in children:
                child.wait(_PATIENCE_S)
        return [(last - first) / lasted_s for first, last in zip(before, after, strict=True)]

    # -- jobs that start -----------------------------------------------------------------------------------------------------

    def starts(self) -> list[Row]:
        """Measures the start of a one-process job on an idle tree, and with two jobs that have all nodes in turn."""
        quantum_s = 0.5
        self._use(quantum_s)
        count = max(2, round(_STARTS * min(1.0, self._plan.scale)))
        idle = [[self._started() for _ in range(count)] for _ in self._plan.rounds("submit to first instruction, an idle tree")]
        where = self._place()
        jobs = [self._submit(_NODES, "stamp", str(where), "1", "300") for _ in range(2)]
        wait_until("both jobs turn", lambda: sum(bool(stretches(path)) for path in where.iterdir()) == 2 * _NODES)
        busy = [[self._started() for _ in range(count)] for _ in self._plan.rounds("... a busy tree")]
        for job in jobs:
            self._engine.cancel_tasks(job.number, [0], reason="measured", running=True, timeout_s=30.0)
        medians = [[statistics.median(one) for one in found] for found in (idle, busy)]
        round_s = 3 * quantum_s  # the starting job has a slot of it
        bound_s = round_s + 2 * statistics.median(medians[0])
        what = "submit to first instruction, p50"
        return [
            row("rmgr", self._setup, f"{what}, an idle tree", "s", medians[0], ratio=1.0),
            row(
                "rmgr", self._setup, f"... beside two jobs on all nodes, slots of {quantum_s:g} s", "s", medians[1],
                ratio=statistics.median(medians[1]) / statistics.median(medians[0]), round_s=round_s, bound_s=bound_s,
            ),
        ]  # fmt: skip

    def _started(self) -> float:
        path = self._place() / "at"
        began_ns = time.time_ns()
        self._command(1, ("/bin/sh", "-c", 'date +%s%N > "$0"', str(path))).ends.wait()
        return (int(path.read_text()) - began_ns) / 1e9

    # -- parts ---------------------------------------------------------------------------------------------------------------

    def _seconds(self, seconds: float, *, least: float = 1.0) -> float:
        return max(least, seconds * min(1.0, self._plan.scale))

    def _slots(self, count: int) -> int:
        return max(4, round(count * min(1.0, self._plan.scale)))

    def _use(self, quantum_s: float) -> None:
        table: dict[str, Any] = {"policy": "dqt", "parameters": {"quantum": f"{quantum_s * 1000:g}ms"}}
        self._stage.use(pipeline_with("dqt", {"stage": [table]}))

    def _place(self) -> Path:
        self._made += 1
        made = self._directory / f"work-{self._made}"
        made.mkdir()
        return made

    def _submit(self, processes: int, *program: str) -> _Job:
        return self._command(processes, ("rmgr", "run", sys.executable, PROGRAM, *program))

    def _command(self, processes: int, argv: tuple[str, ...]) -> _Job:
        """Submits a job of this command on the first nodes."""
        rigid = Rigid(processes=processes, nodelist=tuple(self._nodes[:processes]))
        ends = AwaitedEnds(1)
        number = send(self._engine, command_draft(self._engine, argv, Options(queue="batch", name="bench", time=600), rigid=rigid))
        self._engine.attach(number, ends, own=False, timeout_s=30.0)
        return _Job(number, ends)

    def _record(self, path: str, kind: type[Any]) -> Any:
        found = self._coordinator.get(path, timeout_s=10.0).result(11.0)
        if found is None:
            raise Unavailable(f"there is no {path}", hint="the cluster of the measurement is broken: run it again")
        return decode_record(found.data, kind, path)

    def _requests(self, work: Callable[[], None]) -> tuple[float, float]:
        """Returns the requests and transactions a second during `work`."""
        before, began_s = zookeeper_counts(self._cluster), time.monotonic()
        work()
        after, lasted_s = zookeeper_counts(self._cluster), time.monotonic() - began_s
        return (after[0] - before[0]) / lasted_s, (after[1] - before[1]) / lasted_s

    def _turners(self, nodes: Sequence[str]) -> list[int]:
        found = []
        for node in nodes:
            for pid in children_of(self._cluster.process(node).pid):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if "rmgr.runner.turner" in psutil.Process(pid).cmdline():
                        found.append(pid)
        return found


# -- stamps ------------------------------------------------------------------------------------------------------------------


def stretches(path: Path) -> list[int]:
    """Returns the times at which a rank's stretches began."""
    data = path.read_bytes()
    return [at for (at,) in turns.WORD.iter_unpack(data[: len(data) // turns.WORD.size * turns.WORD.size]) if at]


def switches_of(directory: Path, origin_ns: int, quantum_ns: int) -> Switches:
    """Returns the first stamp of each rank at each boundary where its job came. The first and the last turn are left out.

    Two jobs alternate, so a job's boundaries are two slots apart: a stamp belongs to the one that it follows, or precedes by at most half
    a slot. A later stretch in the same turn is ignored: the rank waited for a processor that others had.
    """
    jobs: dict[str, dict[str, list[int]]] = {}  # job -> node -> its stamps
    for path in sorted(directory.iterdir()):
        job, _, node = path.name.partition(".")
        jobs.setdefault(job, {})[node] = [at - origin_ns for at in stretches(path)]
    found: dict[int, list[float]] = {}
    for nodes in jobs.values():
        odd = statistics.mode([round(at / quantum_ns) % 2 for stamps in nodes.values() for at in stamps] or [0])
        firsts: list[dict[int, float]] = []
        for stamps in nodes.values():
            firsts.append({})
            for at in stamps:
                slot = (at + quantum_ns // 2 - odd * quantum_ns) // (2 * quantum_ns) * 2 + odd
                firsts[-1].setdefault(slot, (at - slot * quantum_ns) / 1e6)
        low, high = max(min(one, default=0) for one in firsts), min(max(one, default=0) for one in firsts)
        for of_node in firsts:
            for slot, offset in of_node.items():
                if low < slot < high:
                    found.setdefault(slot, []).append(offset)
    if not found:
        raise Unavailable("no rank had three turns", hint="a larger --scale looks for longer")
    ordered = [found[slot] for slot in sorted(found)]
    return Switches([offset for one in ordered for offset in one], [max(one) - min(one) for one in ordered])


def _parts(values: Sequence[float], count: int) -> list[Sequence[float]]:
    """Splits the values into consecutive parts of about equal length, none empty."""
    count = min(count, len(values))
    return [values[at * len(values) // count : (at + 1) * len(values) // count] for at in range(count)]


def _word(path: Path, at: int) -> int:
    return int(turns.WORD.unpack_from(path.read_bytes(), at)[0])


@contextlib.contextmanager
def _running(commands: Sequence[tuple[int, tuple[str, ...]]]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Runs Python programs, each with its rank and a process group of its own that is killed afterwards."""
    children: list[subprocess.Popen[bytes]] = []
    try:
        for rank, command in commands:
            environment = {**os.environ, "RMGR_RANK": str(rank)}
            children.append(subprocess.Popen([sys.executable, *command], env=environment, start_new_session=True))
        yield children
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait(10.0)


# -- a large record ------------------------------------------------------------------------------------------------------------


def reading(plan: MeasuringPlan) -> list[Row]:
    """Measures what a Starter does with a generation: decode the record, build the tree, compute its rows of half a minute."""
    data = encode_record(large_record())
    path = paths.gangs(PARTITION)
    read: list[float] = []
    rows: list[float] = []
    for _ in plan.rounds(f"the record of {_LEAVES} leaves and {_JOBS} jobs"):
        began_s = time.process_time()
        table = Timetable(validity.decode(data, GangRecord, path), f"n{_LEAVES // 2}")
        read.append(1000 * (time.process_time() - began_s))
        count = 90  # of 0.5 s: as many as a Starter sends to its turner
        began_s = time.process_time()
        for _ in range(count):
            table.next()
        rows.append(1000 * (time.process_time() - began_s) / count)
    setup = f"in process, {_LEAVES} leaves, {_JOBS} jobs, {len(data) / 1024:.0f} KiB"
    return [
        row("rmgr", setup, "processor time of a Starter that reads a generation", "ms", read),
        row("rmgr", setup, "... for each row that it computes", "ms", rows),
    ]


def large_record() -> GangRecord:
    """Returns the record, after some turns, of a tree of one-core nodes whose partitions all have jobs."""
    carousel = Carousel(Gang("dqt", 500_000, 0, 0, 2, tuple((at, at, 1) for at in range(_LEAVES)), ()))
    for number in range(_JOBS):
        carousel.add(job_id(number + 1, 0), number % carousel.tree.nodes, 1)
    carousel.advance_to(7)
    grown = carousel.record("dqt", "dqt", PARTITION)
    return GangRecord(
        policy="dqt",
        slot_us=grown.slot_us,
        origin_us=0,
        slot=grown.slot,
        width=grown.width,
        leaves=tuple((f"n{at}", 1) for at in range(_LEAVES)),
        clock=GangClock(node="n0", incarnation=1, offset_us=0),
        queues=grown.queues,
        front=grown.front,
        late=grown.late,
        attempts=tuple((job, 1, 0) for job in grown.jobs),
    )


def model(plan: MeasuringPlan, stage: WorkloadStage, nodes: int, setup: str) -> list[Row]:
    """Returns rows compared with the simulator's. Raises: RmgrError for a job that does not run to its end."""
    document: Mapping[str, object] = {"stage": [{"policy": "dqt", "parameters": {"quantum": f"{_QUANTUM_S:g}s"}}]}
    stage.use(pipeline_with("dqt", document))
    jobs, equals = coming(max(1, round(_MODEL_JOBS * plan.scale)), nodes), _workload([(0, nodes, 2_000_000)] * _EQUALS, nodes)
    used: list[float] = []
    apart: list[float] = []
    virtual, virtual_equals = simulated(jobs, document, nodes=nodes), simulated(equals, document, nodes=nodes)
    for _ in plan.rounds(f"{len(jobs.jobs)} jobs at a load of {LOAD:g}, then {_EQUALS} equals, live and simulated"):
        live = stage.play(jobs, naps=True)
        compare(live, virtual)
        used.append(utilisation(jobs, live))
        live_equals = stage.play(equals, naps=True)
        compare(live_equals, virtual_equals)
        apart.append(100 * farthest(live_equals, virtual_equals))
    told = utilisation(jobs, virtual)
    return [
        row("the simulator", "the same jobs", f"{len(jobs.jobs)} jobs at a load of {LOAD:g}: utilisation", "", [told]),
        row("rmgr", setup, "... on nodes", "", used, ratio=statistics.median(used) / told, apart=told - statistics.median(used)),
        row("rmgr", setup, f"shares of {_EQUALS} equals, live and simulated apart, the farthest", "%", apart),
    ]


def coming(count: int, nodes: int) -> Workload:
    """Returns jobs of 1 to all processes and 0.5 to 3 s that ask for `LOAD` of the machine."""
    rng = random.Random(_SEED)
    at_us, made = 0.0, []
    for _ in range(count):
        processes = rng.choice([size for size in (1, 1, 2, 4, 8) if size <= nodes])
        run_us = 10_000 * rng.randrange(50, 300)
        made.append((round(at_us), processes, run_us))
        at_us += processes * run_us / nodes / LOAD
    return _workload(made, nodes)


def utilisation(jobs: Workload, played: Sequence[Played]) -> float:
    """Returns the utilisation of the machine until the last job has ended."""
    return sum(job.processes * job.run_us for job in jobs.jobs) / jobs.processors / max(one.end_us for one in played)


def farthest(live: Sequence[Played], virtual: Sequence[Played]) -> float:
    """Returns the largest relative difference between live and simulated shares (work / stay) of the equals, paired in order of stay."""
    stays, others = (sorted(one.end_us - one.start_us for one in played) for played in (live, virtual))
    return max(abs(other / stay - 1) for stay, other in zip(stays, others, strict=True))


def _workload(jobs: Sequence[tuple[int, int, int]], nodes: int) -> Workload:
    made = [
        WorkloadJob(number=number, submit_us=at_us, run_us=run_us, estimate_us=600 * SECOND, processors=processes, processes=processes)
        for number, (at_us, processes, run_us) in enumerate(jobs, 1)
    ]
    return Workload(name="gang", jobs=tuple(made), processors=nodes)
