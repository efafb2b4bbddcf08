"""FAILED calls run again with arguments from their outcome or the store; `with_options` gives calls other needs than the rest."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import rmgr
from rmgr import TaskQueue
from rmgr.client.connection import Connection
from rmgr.coord import validity
from rmgr.coord.protocol import paths
from rmgr.dev.cluster import DevCluster
from rmgr.errors import DataLost, NotFound, StateConflict, TaskFailed, UsageError
from rmgr.model.submission import Submission
from tests.integration.commands import Shell

pytestmark = pytest.mark.usefixtures("live")


def test_failed_calls_run_again_in_a_queue_of_their_own(connection: Connection, tmp_path: Path) -> None:
    mended = str(tmp_path / "mended")

    def work(number: int, data: bytes = b"") -> tuple[int, int]:
        import os

        if number % 3 == 1 and not os.path.exists(mended):
            raise ValueError(number)
        return number, len(data)

    with TaskQueue(work, connection=connection) as queue:
        for number in range(7):
            queue.submit_call(number, b"x" * (100_000 if number == 4 else 10))
        with pytest.raises(TaskFailed):
            queue.wait_all(timeout=60)
        (tmp_path / "mended").touch()
        again = queue.rerun_failed(memory="64M", name="again")
        assert (len(again), again.id != queue.id) == (2, True)
        assert [future.result(60) for future in again.futures()] == [(1, 10), (4, 100_000)]
        assert again.wait_all(timeout=60).counts["COMPLETED"] == 2
        with pytest.raises(UsageError, match="no option 'colour'"):
            queue.rerun_failed(colour="red")
        with pytest.raises(DataLost, match=rf"{queue.id}_2 are not kept"):
            queue.rerun_failed([1, 2])
        with pytest.raises(NotFound, match="has failed"):
            again.rerun_failed()
    record = TaskQueue.attach(again.id, connection=connection)
    assert record.futures()[1].result(60) == (4, 100_000)
    attached = TaskQueue.attach(queue.id, connection=connection).rerun_failed([4])
    assert attached.futures()[0].result(60) == (4, 100_000)


def test_keyed_tasks_that_failed_write_their_own_keys(connection: Connection, tmp_path: Path) -> None:
    mended = str(tmp_path / "mended")

    def work(value: int) -> int:
        import os

        if value > 1 and not os.path.exists(mended):
            raise ValueError(value)
        return value * 10

    connection.store.put_many({f"rerun/in/{number}": number for number in range(4)})
    with TaskQueue(work, connection=connection) as queue:
        for number in range(4):
            queue.submit(inputs=[f"rerun/in/{number}"], outputs=[f"rerun/out/{number}"])
        with pytest.raises(TaskFailed):
            queue.wait_all(timeout=60)
        (tmp_path / "mended").touch()
        queue.rerun_failed().wait_all(timeout=60)
    assert list(connection.store.get_many(f"rerun/out/{number}" for number in range(4)).values()) == [0, 10, 20, 30]


def test_functions_are_run_again_from_the_shell(live_cluster: DevCluster, tmp_path: Path) -> None:
    sh = Shell(tmp_path / "home", live_cluster.environment())
    program = """
        import os, rmgr
        def work(number):
            if number and not os.path.exists(MENDED):
                raise ValueError(number)
            print("ran", number)
        with rmgr.TaskQueue(work) as queue:
            queue.map(None, range(3))
            try:
                queue.wait_all()
            except rmgr.errors.TaskFailed:
                print(queue.id)
    """.replace("MENDED", repr(str(tmp_path / "mended")))
    path = sh.file("program.py", textwrap.dedent(program))
    done = subprocess.run(
        [sys.executable, path], cwd=sh.directory, env=sh.environment, capture_output=True, text=True, check=True, timeout=120
    )
    number = done.stdout.strip()
    explained = sh.ok("explain", number).out
    assert "2 of 3 tasks: ValueError" in explained
    assert f"{number}_1 | ValueError: 1" in explained
    (tmp_path / "mended").touch()
    told = sh.ok("rerun", number, "--failed", "--mem", "64M", "-t", "1m").out
    again = told.split()[2].rstrip(":")
    assert told == f"Submitted job {again}: 2 tasks of {number}\n"
    assert sh("wait", again).code == 0
    shown = sh.ok("show", again, "--json").json
    assert (shown["mem_bytes"], shown["time_limit"], shown["state"]) == (64 << 20, 60.0, "COMPLETED")
    for words, code, text in (
        (("--env", "A=b"), 2, "--env is for commands"),
        ((), 125, "only a task that FAILED on a node leaves them"),
    ):
        refused = sh("rerun", number, *words)
        assert (refused.code, text in refused.err) == (code, True), refused


def fails(text: str) -> None:
    raise ValueError(text)


def record_of(connection: Connection, number: int | None) -> Submission:
    assert number is not None
    assert connection.coordinator is not None
    return validity.submission(connection.coordinator.get(paths.sub(number)).result(60).data, number)


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
