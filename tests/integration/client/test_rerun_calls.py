"""FAILED calls run again with their arguments: small ones come from their outcome, large ones from the store."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rmgr import Connection, TaskQueue
from rmgr.dev.cluster import DevCluster
from rmgr.errors import DataLost, NotFound, TaskFailed, UsageError
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
    assert "2 of 3 tasks: an exception" in explained
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
