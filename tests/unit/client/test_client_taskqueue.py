"""TaskQueue on a cluster in memory: permitted calls, messages for mistakes, behaviour after faults."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from concurrent.futures import Future as StdlibFuture
from dataclasses import replace
from typing import Any

import pytest

from rmgr.client.executor import Executor
from rmgr.client.taskqueue import TaskQueue
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.ports import Encoding
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import (
    DeadlineExceeded,
    Infeasible,
    KeyExists,
    NotConnected,
    NotFound,
    PermissionDenied,
    QueueFull,
    RemoteTraceback,
    StateConflict,
    TaskFailed,
    UsageError,
)
from rmgr.model.queue import ClusterSettings, Dispatch, QueueSpec
from rmgr.model.submission import Phase, Rigid, Submission, Tail
from rmgr.procedures.snapshot import read_submission
from rmgr.submitter.orders import cancel_submission, hold_submission, release_submission
from tests.harness.client_cluster import Cluster, running, told_full
from tests.harness.waiting import eventually

SETTINGS = ClusterSettings(
    queues=(
        QueueSpec(name="default", max_cores=3, max_time_us=60_000_000),
        QueueSpec(name="placed", dispatch=Dispatch.PLACE),
        QueueSpec(name="closed", state="closed"),
        QueueSpec(name="theirs", users=("somebody-else",)),
        QueueSpec(name="small", max_pending_blocks=2),
    )
)


def with_comm(comm: object) -> object:
    return comm


def double(x: int) -> int:
    if x < 0:
        raise ValueError(f"negative: {x}")
    return 2 * x


def pair(a: int, b: int) -> tuple[int, int]:
    return a + b, a - b


def record_of(cluster: Cluster, number: int) -> Submission:
    return decode_record(cluster.coordinator.get(paths.sub(number)).result(60).data, Submission)


# -- calls and their futures


def long_text(n: int) -> str:
    return "x" * n


def test_a_queue_that_was_attached_to_gives_the_same_result_again_and_again() -> None:
    with running() as (_, connection), TaskQueue(long_text, connection=connection) as queue:
        queue.submit_call(1000).result(60)
        attached = TaskQueue.attach(queue.id, connection=connection)
        assert [len(attached.future(0).result(60)) for _ in range(3)] == [1000] * 3


def test_calls_return_their_results_and_raise_their_exceptions() -> None:
    with running() as (_, connection), TaskQueue(double, connection=connection) as queue:
        future = queue.submit_call(3)
        assert future.result(60) == 6
        assert (future.task_id, future.attempt, future.node, future.done()) == (f"{queue.id}_0", 1, "n1", True)
        failing = queue.submit_call(x=-1)
        with pytest.raises(ValueError, match="negative: -1") as caught:
            failing.result(60)
        assert isinstance(caught.value.__cause__, RemoteTraceback)
        assert "in double" in str(caught.value.__cause__)
        assert isinstance(failing.exception(), ValueError)


def test_map_gives_futures_in_order_and_as_completed_each_once() -> None:
    with running() as (_, connection), TaskQueue(double, connection=connection) as queue:
        futures = queue.map(double, range(700))
        assert [future.result(60) for future in futures] == [2 * x for x in range(700)]
        again = list(queue.as_completed([*futures, futures[0]], timeout=60))
        assert sorted(future.result() for future in again) == [2 * x for x in range(700)]
        assert queue.map(None, [1])[0].result(60) == 2
        assert queue.map(abs, [-3])[0].result(60) == 3
        assert queue.wait_all(timeout=60).counts["COMPLETED"] == 702


def test_calls_of_a_place_queue_have_a_block_each(cluster: Cluster) -> None:
    with cluster.connect() as connection:
        queue = TaskQueue(double, queue="placed", cores=2, connection=connection)
        queue.map(None, range(5))
        queue.close()
        eventually(lambda: len(cluster.pending("placed")) == 5)
        assert {(key.first, key.count, key.cores) for key in cluster.pending("placed")} == {(index, 1, 2) for index in range(5)}
        assert record_of(cluster, 1).rigid == Rigid()
        queue.cancel()


def test_tasks_of_several_processes_are_placed_without_naming_a_queue(cluster: Cluster) -> None:
    with cluster.connect() as connection:
        queue = TaskQueue(double, cores=2, processes=2, connection=connection)
        queue.submit_call(1)
        eventually(lambda: len(cluster.pending("placed")) == 1)
        assert (record_of(cluster, 1).queue, record_of(cluster, 1).rigid) == ("placed", Rigid(processes=2, launch="ranks"))
        queue.cancel()
        assert record_of(cluster, TaskQueue(double, nodes=1, connection=connection).id).rigid == Rigid(processes=1, nodes=1)
        for options, launch in (({}, "mpi"), ({"launch": "ranks"}, "ranks"), ({"launch": "once"}, "")):
            assert record_of(cluster, TaskQueue(with_comm, processes=2, connection=connection, **options).id).rigid.launch == launch
        with pytest.raises(UsageError, match="launch = 'mpi' needs several processes"):
            TaskQueue(with_comm, launch="mpi", connection=connection)


def test_a_wait_that_takes_too_long_says_so_and_changes_nothing(cluster: Cluster) -> None:
    with cluster.connect() as connection:
        queue = TaskQueue(double, connection=connection)
        future = queue.submit_call(1)
        with pytest.raises(TimeoutError, match=f"task {queue.id}_0 is not done within 50ms") as late:
            future.result(0.05)
        assert isinstance(late.value, DeadlineExceeded)
        assert late.value.hint == f"it goes on; why it waits: rmgr explain {queue.id}_0"
        with pytest.raises(DeadlineExceeded, match=r"1 of 1 in taskq-0000000001 have not ended within 50ms"):
            queue.wait_all(timeout=0.05)
        with pytest.raises(TimeoutError, match=r"1 \(of 1\) futures unfinished"):
            next(queue.as_completed([future], timeout=0.05))
        cluster.start()
        assert future.result(60) == 2


def test_wait_all_raises_only_for_tasks_that_had_to_succeed() -> None:
    with running() as (_, connection):
        lenient = TaskQueue(double, resubmit=False, connection=connection)
        lenient.map(None, [1, -2, 3, -4])
        counts, failed = lenient.wait_all(timeout=60)
        assert (counts["COMPLETED"], counts["FAILED"], failed) == (2, 2, [f"{lenient.id}_1", f"{lenient.id}_3"])
        strict = TaskQueue(double, connection=connection)
        strict.map(None, [1, -2, 3, -4])
        with pytest.raises(TaskFailed, match=r"task \d+_1 failed on n1: EXCEPTION .* \(2 tasks failed in all\)") as caught:
            strict.wait_all(timeout=60)
        assert (caught.value.task_id, caught.value.reason, caught.value.attempts) == (f"{strict.id}_1", "EXCEPTION", 1)
        assert isinstance(caught.value.__cause__, ValueError)


def test_tasks_of_both_kinds_may_stand_in_one_queue() -> None:
    with running() as (_, connection), TaskQueue(double, connection=connection) as queue:
        connection.store.put("in/good", 4)
        connection.store.put("in/bad", -4)
        queue.submit(["in/good"], ["out/good"])
        queue.submit(["in/bad"], ["out/bad"], resubmit=False)
        counts, failed = queue.wait_all(timeout=60)
        assert (counts["COMPLETED"], failed) == (1, [f"{queue.id}_1"])
        assert connection.store.get("out/good") == 8
        eventually(lambda: connection.store.keys("out/") == ["out/good"])


# -- values by key


def test_an_output_key_has_a_value_only_once_its_task_has_completed(cluster: Cluster) -> None:
    with cluster.connect() as connection, TaskQueue(pair, connection=connection) as queue:
        connection.store.put("a", 5)
        connection.store.put("b", 3)
        queue.submit(["a", "b"], ["sum", "difference"])
        queue.flush(60)
        assert connection.store.keys() == ["a", "b"]
        with pytest.raises(StateConflict, match="'sum' is not there yet: task 1_0 has not ended"):
            connection.store.get("sum")
        assert connection.store.get("sum", default=None) is None
        cluster.start()
        queue.wait_all(timeout=60)
        assert (connection.store.get("sum"), connection.store.get("difference")) == (8, 2)
        assert connection.store.keys() == ["a", "b", "difference", "sum"]


def test_an_output_key_that_exists_is_refused_unless_it_is_to_be_replaced() -> None:
    with running() as (_, connection), TaskQueue(double, connection=connection) as queue:
        connection.store.put("in", 1)
        connection.store.put("mine", b"bytes")
        queue.submit(["in"], ["out"])
        with pytest.raises(KeyExists, match="'out' exists already: task 1_0 wr"):
            queue.submit(["in"], ["out"])
        with pytest.raises(KeyExists, match="'mine' exists already"):
            queue.submit(["in"], ["mine"])
        queue.submit(["in"], ["mine"], overwrite=True)
        assert queue.wait_all(timeout=60).counts["COMPLETED"] == 2
        assert connection.store.get("mine") == 2


def test_an_output_key_taken_between_the_look_and_the_commit_fails_its_task_alone(cluster: Cluster) -> None:
    with cluster.connect() as connection, TaskQueue(double, connection=connection, resubmit=False) as queue:
        connection.store.put("in", 4)
        queue.flush(60)
        blocked, go = threading.Event(), threading.Event()
        connection.submitter.thread.post(lambda: (blocked.set(), go.wait(60)))  # type: ignore[attr-defined]
        assert blocked.wait(60)
        futures = [queue.submit(["in"], [f"out/{i}"]) for i in range(5)]
        with pytest.raises(KeyExists, match="'out/3' exists already: task 1_3 writes it"):
            queue.submit(["in"], ["out/3"])
        with pytest.raises(UsageError, match="stands twice"):
            queue.submit(["in"], ["twice", "twice"])
        connection.store.put("out/2", "somebody else's")
        go.set()
        cluster.start()
        with pytest.raises(TaskFailed, match=r"OUTPUT_EXISTS \(the output key 'out/2' exists already"):
            futures[2].result(60)
        counts, failed = queue.wait_all(timeout=60)
        assert (counts["COMPLETED"], failed) == (4, ["1_2"])
        assert [connection.store.get(f"out/{i}") for i in range(5)] == [8, 8, "somebody else's", 8, 8]


def test_an_output_key_of_a_failed_task_is_free_again() -> None:
    with running() as (_, connection), TaskQueue(double, resubmit=False, connection=connection) as queue:
        connection.store.put("bad", -1)
        connection.store.put("good", 1)
        queue.submit(["bad"], ["out"])
        queue.wait_all(timeout=60)
        queue.submit(["good"], ["out"])
        queue.wait_all(timeout=60)
        assert connection.store.get("out") == 2


def test_a_pointer_of_a_task_that_was_never_submitted_is_not_believed() -> None:
    with running() as (_, connection), TaskQueue(double, connection=connection) as queue:
        connection.store.put("in", 4)
        pointer = keys.Pointer(sub=queue.id, index=0, by="a-submitter-that-died-before-its-commit")
        connection.submitter.store.put(keys.named("orphan"), keys.encode_pointer(pointer), encoding=Encoding.POINTER)
        queue.submit(["in"], ["real"])
        queue.wait_all(timeout=60)
        with pytest.raises(NotFound, match="no value under the key 'orphan'"):
            connection.store.get("orphan")
        assert connection.store.keys() == ["in", "real"]
        queue.submit(["in"], ["orphan"])
        queue.wait_all(timeout=60)
        assert connection.store.get("orphan") == 8


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), True, "30"])
def test_a_time_in_which_nothing_can_be_made_is_refused_and_no_part_of_the_cluster_blamed(cluster: Cluster, timeout: Any) -> None:
    connection = cluster.connect()
    with pytest.raises(UsageError, match="timeout must be more than 0 seconds"):
        TaskQueue(double, connection=connection, timeout=timeout)
    with pytest.raises(UsageError, match="timeout must be more than 0 seconds"):
        TaskQueue.attach(7, connection=connection, timeout=timeout)


def test_text_in_place_of_a_list_of_keys_is_refused(cluster: Cluster) -> None:
    with cluster.connect() as connection, TaskQueue(double, connection=connection) as queue:
        with pytest.raises(UsageError, match="inputs and outputs are lists of keys"):
            queue.submit("in/1", ["out/1"])  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="a key cannot be empty"):
            queue.submit(["in/1"], [""])


@pytest.mark.parametrize("given", [(3,), ([3],), ([], [b"out/1"]), ([], 3), (double,), ([], [], 3)])
def test_arguments_of_a_call_in_place_of_keys_are_refused_with_what_to_write(cluster: Cluster, given: tuple[Any, ...]) -> None:
    with cluster.connect() as connection, TaskQueue(double, connection=connection) as queue:
        with pytest.raises(UsageError, match="takes keys of the data store") as told:
            queue.submit(*given)
        assert "queue.submit_call(" in told.value.hint
        queue.submit(["in/1"], ["out/1"])  # nothing of what was refused was added
        assert len(queue) == 1


# -- what is refused


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (
            {"cores": 9, "queue": "small"},
            Infeasible,
            "it needs 9 cores; the largest node, n1, has 4 cores and 8.0G",
        ),
        ({"cores": 4}, Infeasible, "4 cores are more than queue default allows (3)"),
        ({"time": "2m"}, Infeasible, "a time limit of 2m is more than queue default allows (1m)"),
        ({"memory": "16G"}, Infeasible, "16G; the largest node, n1, has 4 cores and 8.0G"),
        ({"features": ["gpu"]}, Infeasible, "no node of partition default has the features gpu"),
        ({"queue": "defualt"}, NotFound, "there is no queue 'defualt'; the queues are default, placed, closed, theirs, small"),
        ({"queue": "closed"}, StateConflict, "queue closed is closed"),
        ({"queue": "theirs"}, PermissionDenied, "may not submit to queue theirs"),
        ({"cores": 0}, UsageError, "cores = 0"),
        ({"processes": 0}, UsageError, "processes = 0"),
        ({"processes": 9}, Infeasible, "9 processes of 1 core each are more than partition default ever has"),
        ({"processes": 2, "nodes": 3}, UsageError, "-N 3 nodes are more than -n 2 processes"),
        ({"processes": 2, "queue": "default"}, UsageError, "needs a queue whose jobs the leader places"),
        ({"retries": -1}, UsageError, "negative"),
        ({"priority": 2_000_000}, UsageError, "priority 2000000"),
        ({"memory": "lots"}, UsageError, "'lots' is not a size"),
        ({"on_disconnect": "maybe"}, UsageError, "neither 'keep' nor 'exclusive'"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused_at_once(
    cluster: Cluster, options: dict[str, object], error: type[Exception], words: str
) -> None:
    with cluster.connect() as connection:
        with pytest.raises(error) as caught:
            TaskQueue(double, connection=connection, **options)  # type: ignore[arg-type]
        assert words in str(caught.value)
        assert cluster.coordinator.children(f"{paths.SUBS}/0").result(60) is None


def test_what_was_added_is_sent_before_a_connection_closes(cluster: Cluster) -> None:
    with cluster.connect() as connection:
        queue = TaskQueue(double, connection=connection)
        futures = queue.map(None, range(10))
        coordinator: Any = connection.coordinator
        coordinator.pause()
        futures += queue.map(None, range(3000))
        threading.Timer(0.1, coordinator.resume).start()
        connection.close(timeout=60)
    assert sum(key.count for key in cluster.pending()) == len(futures) == 3010
    with pytest.raises(NotConnected, match=r"submission 1 goes on without it$"):
        futures[-1].result(60)


def test_what_could_not_be_sent_before_a_connection_closed_is_told(cluster: Cluster) -> None:
    with cluster.connect() as connection:
        full = TaskQueue(double, queue="small", connection=connection)
        last = full.map(None, range(601))[-1]
        capped = Executor(1, connection=connection)
        calls = [capped.submit(double, x) for x in range(3)]
        connection.close(timeout=0.1)
    with pytest.raises(NotConnected, match=r"tasks from 1_[0-9]+ on may never run"):
        last.result(60)
    with pytest.raises(NotConnected, match="closed before this call was sent"):
        calls[-1].result(60)


def test_nothing_can_be_added_after_close_or_cancel(cluster: Cluster) -> None:
    with cluster.connect() as connection:
        queue = TaskQueue(double, connection=connection)
        queue.submit_call(1)
        queue.close()
        with pytest.raises(StateConflict, match="is complete; no task can be added"):
            queue.submit_call(2)
        other = TaskQueue(double, connection=connection)
        (handle,) = eventually(lambda: connection.submitter.handles.get(other.id))  # type: ignore[attr-defined]
        other.cancel("changed my mind")
        eventually(lambda: handle.submission.phase is Phase.CANCELLED)
        with pytest.raises(StateConflict, match="was cancelled"):
            other.submit_call(2)
        handle.submission = replace(handle.submission, phase=Phase.CLOSED)
        with pytest.raises(StateConflict, match="was cancelled"):
            other.submit_call(3)
        with pytest.raises(StateConflict, match="was cancelled"):
            other.submit(["in"], ["out"])
        assert record_of(cluster, other.id).reason_detail == "changed my mind"


def test_a_full_queue_is_told_and_goes_on_when_it_drains() -> None:
    cluster = Cluster(ClusterSettings(queues=(QueueSpec(name="default", max_pending_blocks=2),)))
    with cluster.connect() as connection:
        queue = TaskQueue(double, connection=connection)
        for x in range(2):
            queue.submit_call(x)
            queue.flush(60)
        third = queue.submit_call(2)
        eventually(lambda: "queue default holds its maximum of 2 waiting blocks" in told_full(queue))
        connection.store.put("in", 3)
        with pytest.raises(QueueFull):
            queue.submit(["in"], ["out"], block=False)
        with pytest.raises(QueueFull):
            queue.submit(["in"], ["out"], timeout=0.1)
        assert connection.store.keys() == ["in"]
        assert len(cluster.pending()) == 2
        cluster.start()
        queue.submit(["in"], ["out"])
        assert third.result(60) == 4
        queue.wait_all(timeout=60)
        assert connection.store.get("out") == 6
    cluster.stop()


# -- cancelling


def test_a_future_cancels_what_has_not_started(cluster: Cluster) -> None:
    with cluster.connect() as connection, TaskQueue(double, connection=connection) as queue:
        futures = queue.map(None, range(10))
        queue.flush(60)
        claimed = cluster.claim(take=4)
        assert claimed is not None
        assert [future.cancel() for future in futures[2:6]] == [False, False, True, True]
        with pytest.raises(CancelledError, match=r"task \d+_\d+ was cancelled"):
            futures[5].result(0)
        cluster.complete(*claimed)
        cluster.start()
        queue.close()
        assert queue.wait_all(timeout=60).counts == {"COMPLETED": 8, "FAILED": 0, "CANCELLED": 2}
        assert [future.result(60) for future in futures[:4] + futures[6:]] == [0, 2, 4, 6, 12, 14, 16, 18]


def test_tasks_cancelled_before_they_were_sent_never_run(cluster: Cluster) -> None:
    with cluster.connect() as connection, TaskQueue(double, connection=connection) as queue:
        assert queue.name, "it is recorded before its first task"
        engine = connection.submitter
        blocked, go = threading.Event(), threading.Event()
        engine.thread.post(lambda: (blocked.set(), go.wait(60)))  # type: ignore[attr-defined]
        assert blocked.wait(60)
        futures = queue.map(None, range(300))
        cancelled = [future for future in futures if future.index % 3 == 0]
        assert [future.cancel() for future in cancelled] == [True] * 100
        go.set()
        cluster.start()
        assert queue.wait_all(timeout=60).counts == {"COMPLETED": 200, "FAILED": 0, "CANCELLED": 100}
        ran = {index for key, _ in cluster.claims for index in range(key.first, key.end)}
        assert ran == {future.index for future in futures if future.index % 3}


def test_cancelling_the_queue_ends_what_was_not_sent_and_completes_it(cluster: Cluster) -> None:
    def tail() -> Tail:
        return decode_record(cluster.coordinator.get(paths.tail(queue.id)).result(60).data, Tail)

    with cluster.connect() as connection:
        queue = TaskQueue(double, connection=connection)
        blocked, go = threading.Event(), threading.Event()
        connection.submitter.thread.post(lambda: (blocked.set(), go.wait(60)))  # type: ignore[attr-defined]
        assert blocked.wait(60)
        cancel_submission(cluster.coordinator, queue.id)
        record = read_submission(cluster.coordinator, queue.id)
        known: Any = connection.submitter
        known.thread.post(lambda: known.handles[queue.id][0].on_record(record, 1))  # before anything is sent
        futures = [queue.submit_call(x) for x in range(3)]
        go.set()
        eventually(lambda: tail().complete)
        assert [future.cancelled() for future in futures] in ([True] * 3, [False] * 3)  # sent before the news came, or not at all
        assert tail().next in {0, 3}


def test_hold_and_release_change_gate_and_record(cluster: Cluster) -> None:
    with cluster.connect() as connection:
        queue = TaskQueue(double, connection=connection)
        assert hold_submission(cluster.coordinator, queue.id, detail="later").unchanged == ""
        assert cluster.coordinator.stat(paths.gate(queue.id)).result(60) is None
        assert hold_submission(cluster.coordinator, queue.id).unchanged == "it is held already"
        assert release_submission(cluster.coordinator, queue.id).unchanged == ""
        assert cluster.coordinator.stat(paths.gate(queue.id)).result(60) is not None
        assert release_submission(cluster.coordinator, queue.id).unchanged == "it is not held (OPEN)"
        assert cancel_submission(cluster.coordinator, queue.id).unchanged == ""
        assert cancel_submission(cluster.coordinator, queue.id).unchanged == "it is CANCELLED already"
        assert hold_submission(cluster.coordinator, queue.id).unchanged == "it is CANCELLED"
        with pytest.raises(NotFound, match="there is no submission 99"):
            hold_submission(cluster.coordinator, 99)


@pytest.mark.parametrize(
    ("args", "shown"),
    [((3,), "3 is none"), (([1, 2],), r"\[1, 2\] is none"), ((double, 3), "a function is none"), (([], [], 3), "resubmit = 3")],
)
def test_arguments_in_place_of_keys_name_submit_call(cluster: Cluster, args: Any, shown: str) -> None:
    with cluster.connect() as connection, TaskQueue(double, connection=connection) as queue:
        with pytest.raises(UsageError, match=shown) as caught:
            queue.submit(*args)
        assert "queue.submit_call(" in caught.value.hint
        assert len(queue) == 0


def test_a_map_without_its_function_says_what_was_meant(cluster: Cluster) -> None:
    with cluster.connect() as connection, TaskQueue(double, connection=connection) as queue:
        for iterable in (range(3), [1, 2]):
            with pytest.raises(UsageError, match=f"map takes a function first, and this is a {type(iterable).__name__}") as caught:
                queue.map(iterable)  # type: ignore[arg-type]
            assert "queue.map(None, range(3))" in caught.value.hint


def test_a_future_as_an_argument_is_a_type_error_that_says_result(cluster: Cluster) -> None:
    with cluster.connect() as connection, TaskQueue(double, connection=connection) as queue, Executor(connection=connection) as executor:
        future = queue.submit_call(1)
        for call in (
            lambda: queue.submit_call(future),
            lambda: queue.submit_call(x=[future]),
            lambda: queue.map(None, [future]),
            lambda: executor.submit(double, future),
            lambda: executor.submit(double, {"deep": [future]}),
            lambda: executor.submit(double, StdlibFuture()),
        ):
            with pytest.raises(TypeError, match=r"Future: pass its value, future\.result\(\)"):
                call()
        assert len(queue) == 1
