"""Data through the data store: inputs of 1 MiB to tasks and the memory that takes, and many small results read back in one loop."""

from __future__ import annotations

import os
import pickle
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future as PoolFuture
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from hashlib import sha256
from itertools import islice

from rmgr.bench.load.processes import MIB, children_of, pss_bytes, sampled
from rmgr.bench.measuring import SETUP, SLOTS, Bench, MeasuringPlan, Row, paired, row, scratch, took_s, two_slots
from rmgr.client.taskqueue import TaskQueue
from rmgr.dev.cluster import OWN_CASSANDRA
from rmgr.errors import RmgrError

_INPUTS, _INPUT_BYTES = 1_000, MIB
_RESULTS, _RESULT_BYTES = 100_000, 100
#: How often memory is looked at while inputs flow (s).
_LOOK_S = 0.1
#: Tasks may wait for a slow store.
_PATIENCE_S = 900.0
_CASSANDRA_SETUP = "1 ZooKeeper (fsync), 1 Cassandra, 2 slots"


def store(plan: MeasuringPlan) -> list[Row]:
    """Inputs through SQLite, and through one Cassandra where `plan.cassandra`; then small results read back, ten times as many too."""
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
        what=f"{what}, put before, to tasks by key",
        unit="MB/s",
        baseline=("ProcessPoolExecutor(2).map", lambda: _mb(count, lambda: list(pool.map(len, _values(count))))),
        ours=("rmgr TaskQueue.submit", setup, by_keys),
    )
    rows += [
        row("rmgr", setup, f"{what}, most memory of the Starter", "MiB PSS", peaks),
        row("files, each with fsync", "the same run", f"{what}, put", "MB/s", files, ratio=1.0),
        row("rmgr Values.put", setup, f"{what}, put", "MB/s", puts, ratio=over(puts, files)),
    ]
    rows += paired(
        plan,
        what=f"{what}, as arguments, whole way",
        unit="MB/s",
        baseline=("ProcessPoolExecutor(2).map", lambda: _mb(count, lambda: list(pool.map(len, _values(count))))),
        ours=("rmgr TaskQueue.map", setup, lambda: _mb(count, lambda: _as_arguments(bench, count))),
    )
    rows.append(row("what must be done, in one thread", "the same run", f"{what}, as arguments, whole way", "MB/s", floors))
    return rows


def _values(count: int) -> Iterator[bytes]:
    """Different ones, made without much time: the data do not compress, and no store could keep one for all."""
    body = os.urandom(_INPUT_BYTES - 8)
    return (number.to_bytes(8, "big") + body for number in range(count))


def _put(bench: Bench, count: int, name: str) -> float:
    def work() -> None:
        for number, value in enumerate(_values(count)):
            bench.connection.store.put(f"{name}/{number}", value)

    return _mb(count, work)


def _to_files(count: int) -> float:
    """What the disk itself takes: one file each, durable."""
    with scratch() as where:

        def work() -> None:
            for number, value in enumerate(_values(count)):
                with (where / str(number)).open("wb") as file:
                    file.write(value)
                    file.flush()
                    os.fsync(file.fileno())

        return _mb(count, work)


def _one_thread(count: int) -> float:
    """The work itself with nothing around it: pickled, hashed, made durable four together, read, hashed, unpickled."""
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
    """Tasks that take their input by its key; each looks whether it came whole."""
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
    return count * _INPUT_BYTES / 1e6 / took_s(work)


@contextmanager
def memory_of_starter(bench: Bench) -> Iterator[list[float]]:
    """Memory (MiB PSS) that the Starter, its spawners and workers have in all, all the while, one sample after the other."""
    pid = bench.cluster.process("n1").pid
    with sampled(lambda: sum(pss_bytes(one) for one in (pid, *children_of(pid))) / MIB, _LOOK_S) as samples:
        yield samples


# -- results -------------------------------------------------------------------------------------------------------------------


def _results(plan: MeasuringPlan, bench: Bench, pool: ProcessPoolExecutor) -> list[Row]:
    """Everything from the first submit to the last result; `growth` is the cost of a result against a tenth of their number."""
    many, few = plan.count(_RESULTS), plan.count(_RESULTS // 10)
    theirs: dict[int, list[float]] = {few: [], many: []}
    ours: dict[int, list[float]] = {few: [], many: []}
    reads: dict[int, list[float]] = {few: [], many: []}
    _read_back(bench, few)
    for number in range(1, plan.repetitions + 1):
        for count in (few, many):
            plan.progress(f"{count} results of {_RESULT_BYTES} bytes: repetition {number} of {plan.repetitions}")
            theirs[count].append(_pool_read_back(pool, count))
            whole, read = _read_back(bench, count)
            ours[count].append(whole)
            reads[count].append(read)
    rows = []
    for count in (few, many):
        what = f"{count} results of {_RESULT_BYTES} bytes"
        last, ended, ratio = f"{what}, submit to last", f"{what}, read when all have ended", over(ours[count], theirs[count])
        rows += [
            row("ProcessPoolExecutor(2), as_completed", "the same run", last, "results/s", theirs[count], ratio=1.0),
            row("rmgr as_completed", SETUP, last, "results/s", ours[count], ratio=ratio, growth=over(ours[few], ours[count])),
            row("rmgr as_completed", SETUP, ended, "results/s", reads[count], growth=over(reads[few], reads[count])),
        ]
    return rows


def over(rates: Sequence[float], others: Sequence[float]) -> float:
    """The median of their ratios, pair by pair. Of few by many it is the growth of the cost of one; 1: it does not grow."""
    return statistics.median(a / b for a, b in zip(rates, others, strict=True))


def _read_back(bench: Bench, count: int) -> tuple[float, float]:
    """(results/s from the first submit on, results/s of a second loop after `attach`, when all have ended)."""
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


def _pool_read_back(pool: ProcessPoolExecutor, count: int) -> float:
    started = time.perf_counter()
    futures: list[PoolFuture[bytes]] = [pool.submit(bytes, _RESULT_BYTES) for _ in range(count)]
    for future in as_completed(futures):
        future.result()
    return count / (time.perf_counter() - started)
