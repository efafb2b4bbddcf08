"""Data through the data store: inputs of 1 MiB to tasks and the memory they take, many small results, and tasks whose data are keys.

Tasks whose inputs and outputs are keys of the store (`bench keyed`) are compared with a bare program that does their reads and writes on
the same store. It keeps as many requests under way as help (tried before), each in a thread: a value is read, a value is written. The pool
of the standard library does the same work without a store. All three run in turn, in one run.
"""

from __future__ import annotations

import os
import pickle
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future as PoolFuture
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import count as counter
from itertools import islice

from rmgr.adapters.stores import open_store
from rmgr.bench.idle import parts_of
from rmgr.bench.load.processes import MIB, children_of, cpu_s, pss_bytes, sampled
from rmgr.bench.measuring import SAME_RUN, SETUP, SLOTS, Bench, MeasuringPlan, Row, over, paired, per_second, row, scratch, two_slots
from rmgr.client.taskqueue import TaskQueue
from rmgr.coord.protocol.ports import Store
from rmgr.dev.cluster import OWN_CASSANDRA
from rmgr.errors import RmgrError
from rmgr.model.units import format_size

_INPUTS, _INPUT_BYTES = 1_000, MIB
_RESULTS, _RESULT_BYTES = 100_000, 100
#: Interval of memory samples while inputs flow (s).
_LOOK_S = 0.1
#: Deadline of tasks, which may wait for a slow store (s).
_PATIENCE_S = 900.0
_CASSANDRA_SETUP = "1 ZooKeeper (fsync), 1 Cassandra, 2 slots"


def store(plan: MeasuringPlan) -> list[Row]:
    """Measures inputs through SQLite, and Cassandra if `plan.cassandra`; then reads small results back, also ten times as many."""
    with two_slots(plan) as bench, ProcessPoolExecutor(SLOTS) as pool:
        _by_keys(bench, plan.count(20), "warm")
        list(pool.map(len, [b""] * 100))
        rows = _inputs(plan, bench, pool, SETUP)
        rows += _results(plan, bench, pool)
    if plan.cassandra:
        with two_slots(plan, store=OWN_CASSANDRA) as bench, ProcessPoolExecutor(SLOTS) as pool:
            _by_keys(bench, plan.count(20), "warm")
            rows += _inputs(plan, bench, pool, _CASSANDRA_SETUP)
    return rows


# -- inputs --------------------------------------------------------------------------------------------------------------------


def _inputs(plan: MeasuringPlan, bench: Bench, pool: ProcessPoolExecutor, setup: str) -> list[Row]:
    count = plan.count(_INPUTS)
    kind = "Cassandra" if setup == _CASSANDRA_SETUP else "SQLite"
    what = f"{count} inputs of 1 MiB, {kind}"
    names = iter(range(1_000_000))
    puts: list[float] = []
    peaks: list[float] = []
    files: list[float] = []
    floors: list[float] = []

    def by_keys() -> float:
        name = f"bench/{next(names)}"
        files.append(_to_files(count))
        floors.append(_one_thread(count))
        puts.append(_put(bench, count, name))
        try:
            with memory_of_starter(bench) as samples:
                rate = _mb(count, lambda: _by_keys(bench, count, name))
        finally:
            for number in range(count):
                bench.connection.store.delete(f"{name}/{number}")
        peaks.append(max(samples))
        return rate

    rows = paired(
        plan,
        ("ProcessPoolExecutor(2).map", SAME_RUN, lambda: _mb(count, lambda: list(pool.map(len, _values(count))))),
        ("rmgr TaskQueue.submit", setup, by_keys),
        what=f"{what}, put before, to tasks by key",
        unit="MB/s",
    )
    rows += [
        row("rmgr", setup, f"{what}, most memory of the Starter", "MiB PSS", peaks),
        row("files, each with fsync", SAME_RUN, f"{what}, put", "MB/s", files, ratio=1.0),
        row("rmgr Values.put", setup, f"{what}, put", "MB/s", puts, ratio=over(puts, files)),
    ]
    rows += paired(
        plan,
        ("ProcessPoolExecutor(2).map", SAME_RUN, lambda: _mb(count, lambda: list(pool.map(len, _values(count))))),
        ("rmgr TaskQueue.map", setup, lambda: _mb(count, lambda: _as_arguments(bench, count))),
        what=f"{what}, as arguments, whole way",
        unit="MB/s",
    )
    rows.append(row("what must be done, in one thread", SAME_RUN, f"{what}, as arguments, whole way", "MB/s", floors))
    return rows


def _values(count: int) -> Iterator[bytes]:
    """Yields different values, made quickly: they do not compress, and no store could keep one copy for all."""
    body = os.urandom(_INPUT_BYTES - 8)
    return (number.to_bytes(8, "big") + body for number in range(count))


def _put(bench: Bench, count: int, name: str) -> float:
    def work() -> None:
        for number, value in enumerate(_values(count)):
            bench.connection.store.put(f"{name}/{number}", value)

    return _mb(count, work)


def _to_files(count: int) -> float:
    """Measures the disk itself: one durable file per value."""
    with scratch() as where:

        def work() -> None:
            for number, value in enumerate(_values(count)):
                with (where / str(number)).open("wb") as file:
                    file.write(value)
                    file.flush()
                    os.fsync(file.fileno())

        return _mb(count, work)


def _one_thread(count: int) -> float:
    """Measures the necessary work alone: pickle, hash, write four at a time durably, read, hash, unpickle."""
    with scratch() as where:

        def work() -> None:
            values = _values(count)
            for number in range(-(-count // 4)):
                some = [pickle.dumps(((value,), {}), 5) for value in islice(values, 4)]
                digest = sha256()
                path = where / str(number)
                with path.open("wb", buffering=0) as file:
                    for data in some:
                        digest.update(data)
                        file.write(data)
                    os.fsync(file.fileno())
                with path.open("rb", buffering=0) as file:
                    again = sha256()
                    for data in some:
                        found = file.read(len(data))
                        again.update(found)
                        pickle.loads(found)  # noqa: S301 - our own
                if again.digest() != digest.digest():
                    raise RmgrError(f"{path} was read as it was not written")

        return _mb(count, work)


def _by_keys(bench: Bench, count: int, name: str) -> None:
    """Runs tasks that take their input by key; each checks its length."""
    if name == "warm":
        _put(bench, count, name)
    size = _INPUT_BYTES

    def is_whole(value: bytes) -> None:
        if len(value) != size:
            raise ValueError(len(value))

    with TaskQueue(is_whole, connection=bench.connection) as queue:
        for number in range(count):
            queue.submit(inputs=[f"{name}/{number}"])
        queue.wait_all(timeout=_PATIENCE_S)


def _as_arguments(bench: Bench, count: int) -> None:
    with TaskQueue(len, connection=bench.connection) as queue:
        lengths = {future.result(timeout=_PATIENCE_S) for future in queue.map(None, _values(count))}
    if lengths != {_INPUT_BYTES}:
        raise RmgrError(f"arguments came as {lengths} bytes")


def _mb(count: int, work: Callable[[], object]) -> float:
    return per_second(count * _INPUT_BYTES, work) / 1e6


@contextmanager
def memory_of_starter(bench: Bench) -> Iterator[list[float]]:
    """Yields samples of the total memory (MiB PSS) of the Starter, its spawners and workers, added while the context lasts."""
    pid = bench.cluster.process("n1").pid
    with sampled(lambda: sum(pss_bytes(one) for one in (pid, *children_of(pid))) / MIB, _LOOK_S) as samples:
        yield samples


# -- results -------------------------------------------------------------------------------------------------------------------


def _results(plan: MeasuringPlan, bench: Bench, pool: ProcessPoolExecutor) -> list[Row]:
    """Measures from the first submit to the last result; `growth`: cost of a result relative to a tenth as many; 1 = none."""
    many, few = plan.count(_RESULTS), plan.count(_RESULTS // 10)
    theirs: dict[int, list[float]] = {few: [], many: []}
    ours: dict[int, list[float]] = {few: [], many: []}
    reads: dict[int, list[float]] = {few: [], many: []}
    _read_back(bench, few)
    for _ in plan.rounds(f"{few} and {many} results of {_RESULT_BYTES} bytes"):
        for count in (few, many):
            theirs[count].append(per_second(count, lambda: _pool_read_back(pool, count)))  # noqa: B023 - called here
            whole, read = _read_back(bench, count)
            ours[count].append(whole)
            reads[count].append(read)
    rows = []
    for count in (few, many):
        what = f"{count} results of {_RESULT_BYTES} bytes"
        last, ended, ratio = f"{what}, submit to last", f"{what}, read when all have ended", over(ours[count], theirs[count])
        rows += [
            row("ProcessPoolExecutor(2), as_completed", SAME_RUN, last, "results/s", theirs[count], ratio=1.0),
            row("rmgr as_completed", SETUP, last, "results/s", ours[count], ratio=ratio, growth=over(ours[few], ours[count])),
            row("rmgr as_completed", SETUP, ended, "results/s", reads[count], growth=over(reads[few], reads[count])),
        ]
    return rows


def _read_back(bench: Bench, count: int) -> tuple[float, float]:
    """Returns (results/s from the first submit on, results/s of a second loop after `attach`, when all have ended)."""
    started = time.perf_counter()
    with TaskQueue(bytes, connection=bench.connection) as queue:
        size = sum(len(future.result()) for future in queue.as_completed(queue.map(None, [_RESULT_BYTES] * count), timeout=_PATIENCE_S))
        whole_s = time.perf_counter() - started
    started = time.perf_counter()
    again = TaskQueue.attach(queue.name, connection=bench.connection)
    size_again = sum(len(future.result()) for future in again.as_completed(timeout=_PATIENCE_S))
    read_s = time.perf_counter() - started
    if {size, size_again} != {count * _RESULT_BYTES}:
        raise RmgrError(f"results of {size} and {size_again} bytes were read back, not {count * _RESULT_BYTES}")
    return count / whole_s, count / read_s


def _pool_read_back(pool: ProcessPoolExecutor, count: int) -> None:
    futures: list[PoolFuture[bytes]] = [pool.submit(bytes, _RESULT_BYTES) for _ in range(count)]
    for future in as_completed(futures):
        future.result()


# -- tasks by keys -----------------------------------------------------------------------------------------------------------

#: Default sizes of values (bytes).
SIZES = (100, 10 * 1024, MIB)
_REPLICATED_SETUP = "3 ZooKeepers (fsync), 1 Cassandra, 2 slots"
#: Tasks per measurement: with small values, and limited by their bytes in total.
_TASKS, _TASKS_ON_CASSANDRA, _BYTES = 4_000, 1_500, 200 * MIB
_SINGLES, _SINGLE_BYTES = 200, 10 * 1024
_PASSING, _PASSING_BYTES, _PASSING_KEYS = 100_000, 100_000, 1_000
_REQUESTS = (1, 4, 16, 64)
_BATCH = 256
_BATCHED = "a bare program, get_many and put_many"
_BARE, _POOL, _OURS = "a bare program, n requests at once", f"ProcessPoolExecutor({SLOTS}).map", "rmgr TaskQueue.submit"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedShape:
    """Keys that a task reads and writes."""

    name: str
    reads: bool
    writes: bool


_SHAPES = (
    KeyedShape(name="in and out", reads=True, writes=True),
    KeyedShape(name="in", reads=True, writes=False),
    KeyedShape(name="out", reads=False, writes=True),
    KeyedShape(name="neither", reads=False, writes=False),
)


def keyed(plan: MeasuringPlan) -> list[Row]:
    """Measures tasks by keys on SQLite and, if `plan.cassandra`, on 3 ZooKeepers and a Cassandra: rates, one alone, cost, memory."""
    rows: list[Row] = []
    for setup, store, zookeepers, most in [(SETUP, "", 1, _TASKS), (_REPLICATED_SETUP, OWN_CASSANDRA, 3, _TASKS_ON_CASSANDRA)]:
        if store and not plan.cassandra:
            continue
        with two_slots(plan, store=store, zookeepers=zookeepers) as bench, ProcessPoolExecutor(SLOTS) as pool:
            field = _Field(plan, bench, pool, setup, most)
            try:
                for size in plan.sizes or SIZES:
                    rows += field.rates(size)
                rows += field.alone()
                rows += field.passing()
            finally:
                field.close()
    return rows


class _Field:
    """One cluster, its store opened a second time for the bare program, and the pool."""

    def __init__(self, plan: MeasuringPlan, bench: Bench, pool: ProcessPoolExecutor, setup: str, most: int) -> None:
        self._plan = plan
        self._bench = bench
        self._pool = pool
        self._setup = setup
        self._most = most
        self._bare: Store = open_store(bench.cluster.state.store)
        self._fresh = counter()
        list(pool.map(_produce, [1] * 100))
        with _standing(bench, [f"keyed/warm/{n}" for n in range(50)], 100) as names:
            self._run_submitted(KeyedShape(name="", reads=True, writes=True), names, 100)

    def close(self) -> None:
        """Closes the store."""
        self._bare.close()

    # -- rates

    def rates(self, size: int) -> list[Row]:
        """Measures tasks a second of each shape, and their processor cost by part."""
        count = self._plan.count(max(10, min(self._most, _BYTES // size)))
        rows: list[Row] = []
        with _standing(self._bench, [f"keyed/{size}/{n}" for n in range(count)], size) as names:
            for shape in _SHAPES:
                what = f"{count} tasks by keys, {shape.name}, {format_size(size)}"
                bare: list[float] = []
                batched: list[float] = []
                pooled: list[float] = []
                ours: list[float] = []
                loops: list[float] = []
                costs: list[dict[str, float]] = []
                at_once = self._best_at_once(shape, names, size)
                for _ in self._plan.rounds(what):
                    pooled.append(per_second(count, partial(self._by_pool, shape, count, size)))
                    if shape.reads or shape.writes:
                        bare.append(per_second(count, partial(self._bare_program, shape, names, size, at_once)))
                        batched.append(per_second(count, partial(self._bare_batches, shape, names, size)))
                    before = self._cpu()
                    ours.append(per_second(count, lambda: loops.append(count / self._run_submitted(shape, names, size))))  # noqa: B023 - called here
                    costs.append({part: (used - before.get(part, 0.0)) / count * 1e3 for part, used in self._cpu().items()})
                rows.append(row(_POOL, SAME_RUN, what, "tasks/s", pooled))
                if bare:
                    rows.append(row(_BARE, SAME_RUN, what, "tasks/s", bare, ratio=1.0, at_once=at_once))
                    rows.append(row(_BATCHED, SAME_RUN, what, "tasks/s", batched, ratio=over(batched, bare), at_once=_BATCH))
                rows.append(row(_OURS, self._setup, what, "tasks/s", ours, ratio=over(ours, bare or pooled)))
                rows.append(row(_OURS, self._setup, f"{what}: the loop of submit by itself", "calls/s", loops))
                rows += [
                    row(_OURS, self._setup, f"{what}: processor, {part}", "ms a task", [cost[part] for cost in costs]) for part in costs[0]
                ]
        return rows

    def _best_at_once(self, shape: KeyedShape, names: Sequence[str], size: int) -> int:
        """Returns the number of simultaneous requests that makes the bare program fastest."""
        if not (shape.reads or shape.writes):
            return 0
        some = names[: max(10, len(names) // 4)]
        rates = {at_once: per_second(len(some), partial(self._bare_program, shape, some, size, at_once)) for at_once in _REQUESTS}
        return max(rates, key=lambda at_once: rates[at_once])

    def _bare_program(self, shape: KeyedShape, names: Sequence[str], size: int, at_once: int) -> None:
        run, value = next(self._fresh), os.urandom(size)

        def one(item: tuple[int, str]) -> None:
            number, name = item
            if shape.reads and self._bare.get(f"name/{name}") is None:
                raise AssertionError(name)
            if shape.writes:
                self._bare.put(f"name/bare/{run}/{number}", value)

        with ThreadPoolExecutor(at_once) as threads:
            for _ in threads.map(one, enumerate(names)):
                pass

    def _bare_batches(self, shape: KeyedShape, names: Sequence[str], size: int) -> None:
        """Does the same reads and writes in batches, as a program could that needs many values before it uses the first."""
        run, value = next(self._fresh), os.urandom(size)
        for at in range(0, len(names), _BATCH):
            some = names[at : at + _BATCH]
            if shape.reads and len(self._bare.get_many([f"name/{name}" for name in some])) != len(some):
                raise AssertionError(some)
            if shape.writes:
                self._bare.put_many([(f"name/bare/{run}/{at + number}", value) for number in range(len(some))])

    def _by_pool(self, shape: KeyedShape, count: int, size: int) -> None:
        value = os.urandom(size) if shape.reads else b""
        work: Callable[..., object] = _pass_on if shape.reads and shape.writes else _take if shape.reads else _produce
        given = (value if shape.reads else size if shape.writes else 0 for _ in range(count))
        for _ in self._pool.map(work, given):
            pass

    def _run_submitted(self, shape: KeyedShape, names: Sequence[str], size: int) -> float:
        """Runs the tasks until all have ended; returns the seconds that the loop of submits took."""
        run = next(self._fresh)
        work = _function(shape, size)
        with TaskQueue(work, connection=self._bench.connection) as queue:
            begun = time.perf_counter()
            for number, name in enumerate(names):
                queue.submit([name] if shape.reads else (), [f"keyed/out/{run}/{number}"] if shape.writes else ())
            loop_s = time.perf_counter() - begun
            queue.wait_all(timeout=_PATIENCE_S)
        return loop_s

    def _cpu(self) -> dict[str, float]:
        """Returns the processor seconds used so far, by part."""
        used = {"client": cpu_s([os.getpid()])}
        for part in parts_of(self._bench.cluster):
            name = part.name.partition(" ")[0]
            used[name] = used.get(name, 0.0) + cpu_s(part.pids)
        return {part: used[part] for part in ("client", "starter", "spawners", "zookeeper", "cassandra") if part in used}

    # -- one alone

    def alone(self) -> list[Row]:
        """Measures one keyed task at a time, from submit to its end, compared with a call and with its reads and writes alone."""
        count = self._plan.count(_SINGLES)
        calls: list[float] = []
        bare: list[float] = []
        ours: list[float] = []
        value = os.urandom(_SINGLE_BYTES)
        with _standing(self._bench, [f"keyed/alone/{n}" for n in range(count)], _SINGLE_BYTES) as names:
            queue = TaskQueue(_function(KeyedShape(name="", reads=True, writes=True), _SINGLE_BYTES), connection=self._bench.connection)
            plain = TaskQueue(_produce, connection=self._bench.connection)
            with queue, plain:
                for _ in self._plan.rounds("one keyed task alone"):
                    run = next(self._fresh)
                    samples: list[tuple[float, float, float]] = []
                    for at, name in enumerate(names):
                        begun = time.perf_counter()
                        plain.submit_call(0).result(timeout=_PATIENCE_S)
                        called = time.perf_counter()
                        self._bare.get(f"name/{name}")
                        self._bare.put(f"name/bare/{run}/{at}", value)
                        passed = time.perf_counter()
                        queue.submit([name], [f"keyed/out/{run}/{at}"]).result(timeout=_PATIENCE_S)
                        samples.append((called - begun, passed - called, time.perf_counter() - passed))
                    for into, times in zip((calls, bare, ours), zip(*samples, strict=True), strict=True):
                        into.append(statistics.median(times) * 1e3)
        what = f"one keyed task alone, in and out, {format_size(_SINGLE_BYTES)}, p50"
        floors = [call + store for call, store in zip(calls, bare, strict=True)]
        above_ms = statistics.median(mine - floor for mine, floor in zip(ours, floors, strict=True))
        return [
            row("a call, and a bare read and write", SAME_RUN, what, "ms", floors, call=statistics.median(calls)),
            row(_OURS, self._setup, what, "ms", ours, above_it_ms=above_ms),
        ]

    # -- memory

    def passing(self) -> list[Row]:
        """Measures the Starter's memory while many inputs pass it, after a tenth of them have passed. growth: peak of the second half of
        the time over the peak of the first.
        """
        count = self._plan.count(_PASSING)
        what = f"{count} inputs of 100 kB pass, most memory of the Starter and its workers"
        samples: list[float] = []
        with _standing(self._bench, [f"keyed/pass/{n}" for n in range(min(count, _PASSING_KEYS))], _PASSING_BYTES) as names:
            shape = KeyedShape(name="", reads=True, writes=False)
            for tasks in (count // 10, count):
                self._plan.progress(f"{tasks} inputs of 100 kB pass")
                with memory_of_starter(self._bench) as samples:
                    self._run_submitted(shape, [names[number % len(names)] for number in range(tasks)], _PASSING_BYTES)
        half = max(1, len(samples) // 2)
        return [row(_OURS, self._setup, what, "MiB PSS", [max(samples)], growth=max(samples[-half:]) / max(samples[:half]))]


# -- the work --------------------------------------------------------------------------------------------------------------------


def _pass_on(value: bytes) -> bytes:
    return value


def _take(value: bytes) -> None:
    del value


def _produce(size: int) -> bytes:
    return os.urandom(size)


def _function(shape: KeyedShape, size: int) -> Callable[..., object]:
    if shape.reads:
        return _pass_on if shape.writes else _take
    return partial(_produce, size) if shape.writes else partial(_take, b"")


@contextmanager
def _standing(bench: Bench, names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """Yields keys whose values, all different, exist while the context lasts."""
    store, body = bench.connection.store, os.urandom(size)
    try:
        store.put_many((name, (name.encode() + body)[:size]) for name in names)
        yield names
    finally:
        store.delete_many(names)
