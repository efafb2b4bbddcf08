"""`with_options` gives calls of one TaskQueue or Executor other needs than the rest."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

import rmgr
from rmgr.coord import validity
from rmgr.coord.protocol import paths
from rmgr.errors import StateConflict, TaskFailed, UsageError

if TYPE_CHECKING:
    from rmgr.client.connection import Connection
    from rmgr.model.tasks.submission import Submission


def fails(text: str) -> None:
    raise ValueError(text)


def record_of(connection: Connection, number: int | None) -> Submission:
    assert number is not None
    assert connection.coordinator is not None
    return validity.submission(connection.coordinator.get(paths.sub(number)).result(30).data, number)


def test_tasks_of_one_queue_may_need_something_else(connection: Connection) -> None:
    with rmgr.TaskQueue(abs, memory="64M", retries=1, connection=connection) as queue:
        mine = queue.submit_call(-1)
        larger = queue.with_options(cores=2, priority=1, time="5m")
        assert larger.submit_call(-2).result(60) == 2
        assert queue.with_options(priority=1, cores=2, time="5m") is larger, "one submission for each set of options"
        assert queue.with_options(memory="64M") is queue
        record = record_of(connection, larger.id)
        assert (record.request.cores, record.priority, record.request.time_limit_us) == (2, 1, 300_000_000)
        assert (record.request.memory_bytes, record.retries) == (64 << 20, 1), "the rest is as of the queue"
        assert (larger.id != queue.id, mine.result(60)) == (True, 1)
        queue.with_options(name="third").map(None, [-3, -4])
        assert queue.wait_all(timeout=60).counts == {"COMPLETED": 4, "FAILED": 0, "CANCELLED": 0}
        assert list(queue.as_completed(timeout=60)) == []
        attached = rmgr.TaskQueue.attach(larger.id, connection=connection).with_options(cores=1)
        assert attached.submit_call(-5).result(60) == 5
        assert record_of(connection, attached.id).request.time_limit_us == 300_000_000
        attached.close()
    with pytest.raises(StateConflict, match="is complete"):
        larger.submit_call(-6)


def test_one_that_fails_is_told_by_the_queue_that_it_was_made_from(connection: Connection) -> None:
    with rmgr.TaskQueue(fails, connection=connection) as queue:
        failed = queue.with_options(priority=5).submit_call("no")
        with pytest.raises(TaskFailed, match=failed.task_id or "_0"):
            queue.wait_all(timeout=60)
        with pytest.raises(UsageError, match="no option 'core'"):
            queue.with_options(core=2)
        with pytest.raises(UsageError, match="cores = 0"):
            queue.with_options(cores=0)


def test_calls_of_one_executor_may_need_something_else(connection: Connection) -> None:
    executor = rmgr.Executor(connection=connection)
    with executor:
        plain, larger = executor.submit(abs, -1), executor.with_options(cores=2, priority=1).submit(abs, -2)
        assert (plain.result(60), larger.result(60)) == (1, 2)
        slow = executor.with_options(cores=2, priority=1).submit(time.sleep, 0.3)
        assert record_of(connection, int(larger.task_id.partition("_")[0])).request.cores == 2
        assert slow.task_id.partition("_")[0] == larger.task_id.partition("_")[0]
    assert slow.done(), "the end of the executor waits for them"
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.with_options(cores=2)
