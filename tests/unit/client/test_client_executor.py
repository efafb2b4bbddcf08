"""rmgr.Executor and its futures on a cluster in memory (tests/integration has CPython's own tests, on a real one)."""

from __future__ import annotations

import asyncio
import concurrent.futures as stdlib
import gc
import io
import pickle
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

from rmgr.client.executor import BrokenExecutor, Executor, Throttle
from rmgr.client.futures import Arrivals, Future, as_completed
from rmgr.client.taskqueue import TaskQueue
from rmgr.client.tasks import batches, calls_at_once
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import NotConnected, PickleFailed, RmgrError
from rmgr.model.block import INITIALIZER_FAILED, BlockKey, Outcome
from rmgr.model.states import Reason, State
from rmgr.model.submission import Submission, Tail
from rmgr.runner.program import mine
from tests.harness.client_cluster import Cluster, running
from tests.harness.waiting import eventually


def square(x: int) -> int:
    return x * x


def record_of(cluster: Cluster, number: int | None) -> Submission:
    return decode_record(cluster.coordinator.get(paths.sub(number or 0)).result(60).data, Submission)  # type: ignore[union-attr]


def tail_of(cluster: Cluster, number: int) -> Tail:
    return decode_record(cluster.coordinator.get(paths.tail(number)).result(60).data, Tail)  # type: ignore[union-attr]


def finished(cluster: Cluster) -> Executor:
    """An executor on a connection that ends with the test."""
    connection = cluster.connect()
    return Executor(connection=connection)


# -- as concurrent.futures


@pytest.mark.parametrize("max_workers", [None, 1, 3])
def test_calls_maps_waits_and_shutdown_behave_as_a_pool(max_workers: int | None) -> None:
    with running() as (_, connection):
        with Executor(max_workers, connection=connection) as executor:
            assert isinstance(executor, stdlib.Executor)
            futures = [executor.submit(square, x) for x in range(100)]
            done, left = stdlib.wait(futures, timeout=60)
            assert (len(done), left) == (100, set())
            assert sum(future.result() for future in stdlib.as_completed(futures)) == sum(x * x for x in range(100))
            assert list(executor.map(pow, range(20), range(20))) == [x**x for x in range(20)]
            assert list(executor.map(square, range(50), chunksize=7)) == [x * x for x in range(50)]
            assert list(executor.map(square, range(50), chunksize=7, buffersize=10)) == [x * x for x in range(50)]
        with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
            executor.submit(square, 1)
        with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
            executor.map(square, [1])


def test_what_libraries_look_at_is_there() -> None:
    with running() as (_, connection), Executor(connection=connection) as executor:
        assert (executor._max_workers, executor._broken, executor._shutdown) == (4, None, False)
        assert Executor(7, connection=connection)._max_workers == 7
    for number in (0, -1):
        with pytest.raises(ValueError, match="max_workers must be greater than 0"):
            Executor(number)
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        Executor(1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="initializer must be a callable"):
        Executor(initializer=3)  # type: ignore[arg-type]


def test_map_reads_a_lazy_input_no_further_than_its_buffer() -> None:
    with running() as (_, connection), Executor(connection=connection) as executor:
        read: list[int] = []

        def source() -> Iterator[int]:
            for x in range(1000):
                read.append(x)
                yield x

        results = executor.map(square, source(), buffersize=5)
        assert len(read) == 5
        assert [next(results) for _ in range(3)] == [0, 1, 4]
        assert len(read) == 8
        results.close()  # type: ignore[attr-defined]
        assert len(read) == 8
        for bad in (0, True, 1.5):
            with pytest.raises((ValueError, TypeError), match="buffersize must be"):
                executor.map(square, [1], buffersize=bad)  # type: ignore[arg-type]


def test_calls_of_a_map_run_while_its_input_is_read_and_those_before_an_error_of_the_input_run() -> None:
    def source(length: int) -> Iterator[int]:
        yield from range(3)
        eventually(lambda: f"{length} of {length} calls ended" in repr(executor))
        raise LookupError("no more")

    with running() as (_, connection), Executor(connection=connection) as executor:
        with pytest.raises(LookupError, match="no more"):
            executor.map(square, source(3))
        with pytest.raises(LookupError, match="no more"):
            executor.map(square, source(4), chunksize=3)


def test_a_map_holds_few_large_arguments_at_a_time() -> None:
    sizes = [len(batch) for batch in batches(iter([bytes(3 << 20)] * 5 + [b""] * 600), 512)]
    assert sizes[:2] == [2, 2]
    assert sum(sizes) == 605
    assert calls_at_once([[1], range(2)]) == 512
    assert calls_at_once([[1], iter([])]) == 1


def test_map_stops_at_its_timeout_and_cancels_the_rest(cluster: Cluster) -> None:
    with cluster.connect() as connection:
        executor = Executor(connection=connection)
        results = executor.map(square, range(3), timeout=0.1)
        with pytest.raises(TimeoutError):
            next(results)
        eventually(lambda: not cluster.pending())
        executor.shutdown()


def test_callbacks_may_submit_and_block_without_stopping_anything() -> None:
    with running() as (_, connection), Executor(2, connection=connection) as executor:
        total: list[int] = []
        ended = threading.Event()

        def again(future: stdlib.Future[int]) -> None:
            total.append(future.result())
            if len(total) < 20:
                total.append(executor.submit(square, 2).result(60))
                executor.submit(square, len(total)).add_done_callback(again)
            else:
                ended.set()

        executor.submit(square, 1).add_done_callback(again)
        assert ended.wait(60)


def test_asyncio_runs_its_work_on_the_cluster() -> None:
    with running() as (_, connection), Executor(connection=connection) as executor:

        async def main() -> list[int]:
            loop = asyncio.get_running_loop()
            return list(await asyncio.gather(*(loop.run_in_executor(executor, square, x) for x in range(10))))

        assert asyncio.run(main()) == [x * x for x in range(10)]


def test_arguments_and_results_are_let_go() -> None:
    class Thing:
        pass

    with running() as (_, connection), Executor(connection=connection) as executor:
        thing = Thing()
        gone = weakref.ref(thing)
        executor.submit(id, thing)
        del thing
        eventually(lambda: gc.collect() >= 0 and gone() is None)  # a thread of the client may hold it for a moment
        future = executor.submit(square, 3)
        kept = weakref.ref(future)
        assert future.result(60) == 9
        del future
        eventually(lambda: gc.collect() >= 0 and kept() is None)


def test_a_dropped_executor_still_ends_its_calls_and_completes_its_submission() -> None:
    with running() as (cluster, connection):
        executor = Executor(2, connection=connection)
        results = executor.map(square, range(30))
        number = executor.id
        del executor
        gc.collect()
        assert list(results) == [x * x for x in range(30)]
        assert number is not None
        # A thread of the client may have held it at the first look.
        eventually(lambda: gc.collect() >= 0 and tail_of(cluster, number).complete)
        assert cluster.pending() == []


def test_shutdown_may_cancel_what_has_not_started(cluster: Cluster) -> None:
    with cluster.connect() as connection:
        uncapped = Executor(connection=connection)
        futures = [uncapped.submit(square, x) for x in range(10)]
        uncapped.shutdown(wait=False, cancel_futures=True)
        assert all(future.cancelled() for future in futures)
        assert cluster.pending() == []
        capped = Executor(2, connection=connection)
        futures = [capped.submit(square, x) for x in range(10)]
        capped.shutdown(wait=False, cancel_futures=True)
        assert [future.cancelled() for future in futures] == [False] * 2 + [True] * 8
        cluster.start()
        assert [future.result(60) for future in futures[:2]] == [0, 1]


def test_results_that_are_dropped_after_shutdown_leave_a_submission_that_is_complete_while_its_last_call_runs(cluster: Cluster) -> None:
    cluster.on_call = lambda key, index: Outcome(index=index, value=pickle.dumps(index), elapsed_us=2_000_000)  # so each call is a block
    with cluster.connect() as connection:
        executor = Executor(1, connection=connection)
        results = executor.map(square, range(4))
        eventually(cluster.run_one)
        assert next(results) == 0
        runs = eventually(cluster.claim)
        executor.shutdown(wait=False)
        number = executor.id
        assert number is not None
        assert not tail_of(cluster, number).complete, "two calls wait in this process"
        results.close()  # type: ignore[attr-defined]
        eventually(lambda: tail_of(cluster, number).complete)
        cluster.complete(*runs)


def test_an_argument_that_cannot_travel_is_told_at_once(cluster: Cluster) -> None:
    with cluster.connect() as connection, Executor(connection=connection) as executor:
        with pytest.raises(PickleFailed, match=r"argument 0 of .*square"):
            executor.submit(square, threading.Lock())
        with pytest.raises(TypeError, match="is not callable"):
            executor.submit(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("max_workers", [None, 2])
def test_an_executor_is_named_after_its_first_function_unless_it_has_a_name(max_workers: int | None) -> None:
    def name_of_job(executor: Executor) -> str:
        return record_of(cluster, executor.id).name

    with running() as (cluster, connection):
        for make in (lambda e: e.submit(square, 2).result(60), lambda e: list(e.map(square, [1, 2], chunksize=2))):
            with Executor(max_workers, connection=connection) as executor:
                make(executor)
                executor.submit(pow, 2, 3).result(60)
                assert name_of_job(executor).endswith("square")
        with Executor(max_workers, connection=connection, name="mine") as executor:
            executor.submit(square, 2).result(60)
            assert name_of_job(executor) == "mine"


# -- a cap on slots


def test_no_more_blocks_than_the_cap_are_ever_on_the_way(cluster: Cluster) -> None:
    with cluster.connect() as connection:
        executor = Executor(3, connection=connection)
        futures = [executor.submit(square, x) for x in range(500)]
        largest = 0
        while not all(future.done() for future in futures):
            eventually(lambda: cluster.pending() or all(future.done() for future in futures))
            waiting = cluster.pending()
            assert len(waiting) <= 3
            if waiting:
                largest = max(largest, waiting[0].count)
                cluster.run_one()
        assert [future.result() for future in futures] == [x * x for x in range(500)]
        assert largest > 20, "short tasks should travel together"
        executor.shutdown()


def test_tasks_of_a_capped_block_run_one_after_another(cluster: Cluster) -> None:
    with cluster.connect() as connection:
        executor = Executor(1, connection=connection)
        futures = [executor.submit(square, x) for x in range(100)]
        cluster.start()
        assert [future.result(60) for future in futures] == [x * x for x in range(100)]
        executor.shutdown()
        assert all(data.serial for key, data in cluster.claims if key.count > 1)
        assert any(data.serial for _, data in cluster.claims)


def test_long_tasks_travel_alone() -> None:
    class Nobody:
        number = 1
        index = 0

        def add_for(self, spec: object, payloads: list[bytes], futures: list[Future], **_: object) -> int:
            self.sizes.append(len(payloads))
            first, self.index = self.index, self.index + len(payloads)
            return first

        sizes: list[int] = []

    from rmgr.client.executor import OutgoingTask
    from rmgr.client.submission.packing import TaskSpec

    tasks = Nobody()
    throttle = Throttle(tasks, 2)  # type: ignore[arg-type]
    throttle.add([OutgoingTask(TaskSpec(), b"", "", Future(tasks)) for _ in range(12)])  # type: ignore[arg-type]
    assert tasks.sizes == [1, 1]
    throttle.ended([Outcome(index=0, elapsed_us=2_000_000)])
    assert tasks.sizes == [1, 1, 1]
    assert len(throttle.waiting()) == 9


# -- initializers


def refuse(key: BlockKey, index: int) -> Outcome:
    del key
    return Outcome(index=index, state=State.FAILED, reason=Reason.START_FAILED, error=f"{INITIALIZER_FAILED}: ValueError: no licence")


def test_a_failing_initializer_breaks_the_executor(cluster: Cluster) -> None:
    cluster.on_call = refuse
    with cluster.connect() as connection:
        executor = Executor(2, initializer=square, initargs=(1,), connection=connection)
        futures = [executor.submit(square, x) for x in range(10)]
        cluster.start()  # not before: the first refusal breaks the executor for calls that are still to come
        for future in futures:
            with pytest.raises(BrokenExecutor, match=r"the initializer of the workers failed: .*no licence"):
                future.result(60)
        assert isinstance(futures[0].exception(), stdlib.BrokenExecutor)
        assert isinstance(futures[0].exception(), RmgrError)
        with pytest.raises(stdlib.BrokenExecutor):
            executor.submit(square, 1)
        assert isinstance(executor._broken, BrokenExecutor)
        executor.shutdown()


def test_workers_of_an_initializer_are_not_shared(cluster: Cluster) -> None:
    with cluster.connect() as connection:
        made = [*(Executor(initializer=square, initargs=(1,), connection=connection) for _ in range(2)), Executor(connection=connection)]
        groups = []
        for executor in made:
            executor.submit(square, 1)
            groups.append(record_of(cluster, executor.id).python.worker_group)  # type: ignore[union-attr]
            executor.shutdown(wait=False, cancel_futures=True)
        assert len({*groups}) == 3
        assert groups[2] == mine().workers["group"], "no initializer: the workers of all that this program does"


# -- what calls print


def test_what_calls_print_appears_here(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.on_call = lambda key, index: Outcome(index=index, value=b"", log=(f"out {index}\n".encode(), b"err\n"))
    cluster.start()
    with cluster.connect() as connection:
        with Executor(connection=connection) as executor:
            executor.submit(square, 1)
            executor.submit(square, 2)
        with Executor(output="log", connection=connection) as executor:
            executor.submit(square, 3)
    seen = capsys.readouterr()
    assert (seen.out, seen.err) == ("out 0\nout 1\n", "err\nerr\n")


class _Slow(io.StringIO):
    """A terminal that takes its time."""

    def write(self, text: str) -> int:
        time.sleep(0.05)
        return super().write(text)


@pytest.mark.parametrize("ask", ["result", "as_completed", "map", "callback"])
def test_a_result_comes_after_what_its_call_has_printed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, ask: str) -> None:
    cluster.on_call = lambda key, index: Outcome(index=index, value=b"", log=(f"call {index}\n".encode(), b""))
    cluster.start()
    out = _Slow()
    monkeypatch.setattr(sys, "stdout", out)
    with cluster.connect() as connection, Executor(connection=connection) as executor:
        for at in range(3):
            if ask == "result":
                executor.submit(square, at).result(60)
            elif ask == "map":
                list(executor.map(square, [at]))
            elif ask == "as_completed":
                list(stdlib.as_completed([executor.submit(square, at)], timeout=60))
            else:
                called = threading.Event()
                executor.submit(square, at).add_done_callback(lambda _, called=called: called.set())
                assert called.wait(60)
            io.StringIO.write(out, f"result {at}\n")
    assert out.getvalue().splitlines() == [line for at in range(3) for line in (f"call {at}", f"result {at}")]


def test_a_stream_of_the_program_that_fails_costs_no_result(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.StringIO):
        def write(self, _text: str) -> int:
            raise RuntimeError("no paper")

    cluster.on_call = lambda key, index: Outcome(index=index, value=b"", log=(b"out\n", b""))
    cluster.start()
    monkeypatch.setattr(sys, "stdout", Broken())
    with cluster.connect() as connection, Executor(connection=connection) as executor:
        assert executor.submit(square, 1).result(60) is None


# -- futures


class _Nowhere:
    where = "nowhere"

    def trouble(self) -> str:
        return ""

    def check_waitable(self) -> None: ...


class _Source:
    number = 7
    request = None
    store = None
    connection = _Nowhere()

    def call_soon(self, callback: Callable[[], None]) -> None:
        callback()

    def cancel_futures(self, futures: list[Future]) -> list[Future]:
        for future in futures:
            future.mark_cancelled()
        return futures


def test_a_pending_future_is_small() -> None:
    source = _Source()
    futures = [Future(source, index) for index in range(1000)]  # type: ignore[arg-type]
    size = sum(sys.getsizeof(future) + sys.getsizeof(future.__dict__) for future in futures) / len(futures)
    assert size <= 500


def test_who_asks_again_and_again_for_the_next_that_ends_leaves_nothing_behind() -> None:
    def hooks() -> int:
        gc.collect()
        return sum(isinstance(one, Arrivals) for one in gc.get_objects())

    before = hooks()
    futures = [Future(_Source(), index) for index in range(20)]  # type: ignore[arg-type]
    for at, future in enumerate(futures[:10]):
        loop = as_completed(futures[at:], 60)
        future.break_off(KeyError())
        assert next(loop) is future
    untold = as_completed(futures[10:], 60)  # is kept
    assert hooks() - before == 2  # its own, and that of `loop`
    futures[15].break_off(KeyError())
    assert next(untold) is futures[15]


def test_in_a_forked_child_every_wait_for_its_parents_tasks_says_so(cluster: Cluster) -> None:
    with cluster.connect() as connection:
        executor = Executor(connection=connection)
        future = executor.submit(square, 1)
        queue = TaskQueue(square, connection=connection)
        queue.submit_call(2)
        connection.pid += 1  # as a child sees it
        waits: list[Callable[[], object]] = [
            future.result,
            future.exception,
            lambda: list(queue.as_completed([future])),
            lambda: stdlib.wait([future]),
            lambda: next(stdlib.as_completed([future])),
            queue.wait_all,
            queue.flush,
        ]
        for wait in waits:
            with pytest.raises(NotConnected, match="belongs to the parent process"):
                wait()
        executor.shutdown()  # its parent's to wait for
        connection.pid -= 1
        while cluster.run_one():
            pass
        assert future.result(60) == 1


def test_a_future_obeys_the_base_class(cluster: Cluster) -> None:
    future = Future(_Source(), 3)  # type: ignore[arg-type]
    seen: list[object] = []
    future.add_done_callback(seen.append)
    assert (future.done(), future.cancelled(), future.running()) == (False, False, False)
    assert future.cancel()
    assert future.cancel()
    assert (future.done(), future.cancelled(), seen) == (True, True, [future])
    with pytest.raises(stdlib.CancelledError):
        future.exception()
    future.add_done_callback(seen.append)
    assert seen == [future, future]
    broken = Future(_Source(), 4)  # type: ignore[arg-type]
    broken.break_off(KeyError("x"))
    assert isinstance(broken.exception(), KeyError)
    assert not broken.cancel()
    assert "4" in repr(broken)


def test_inside_of_a_task_every_kind_of_wait_gives_the_slot_back(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    from rmgr.runner.current import gate

    told: list[str] = []
    monkeypatch.setattr(gate, "seq", lambda: 7)
    monkeypatch.setattr(gate, "block", lambda seq: told.append("blocked"))
    monkeypatch.setattr(gate, "unblock", lambda seq: told.append("unblocked"))
    with cluster.connect() as connection:
        executor = Executor(connection=connection)

        def waits() -> Iterator[Callable[[list[Future]], object]]:
            yield lambda futures: futures[0].result(60)
            yield lambda futures: stdlib.wait(futures, timeout=60)
            yield lambda futures: list(stdlib.as_completed(futures, timeout=60))
            yield lambda futures: executor.shutdown()

        for wait in waits():
            futures = [executor.submit(square, x) for x in range(3)]
            eventually(lambda: sum(key.count for key in cluster.pending()) == 3)
            waiter = threading.Thread(target=wait, args=(futures,), daemon=True)
            waiter.start()
            eventually(lambda: told)
            assert told == ["blocked"]
            while cluster.pending():
                cluster.run_one()
            waiter.join(60)
            assert not waiter.is_alive()
            assert told[:2] == ["blocked", "unblocked"]
            assert told.count("blocked") == told.count("unblocked")
            told.clear()


def test_many_threads_may_wait_for_one_future() -> None:
    with running() as (_, connection), Executor(connection=connection) as executor:
        future = executor.submit(square, 12)
        results: list[int] = []
        threads = [threading.Thread(target=lambda: results.append(future.result(60))) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert results == [144] * 10
