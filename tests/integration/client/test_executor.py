"""rmgr.Executor on a real cluster: initializers, nested executors, caps, output, the end of the interpreter."""

from __future__ import annotations

import concurrent.futures as stdlib
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import rmgr
from rmgr.errors import PickleFailed
from tests.harness.fair_time import FairTimer
from tests.harness.waiting import eventually
from tests.places import ROOT

if TYPE_CHECKING:
    from rmgr.client.connection import Connection
    from rmgr.dev.cluster import DevCluster


_loaded = 0


def load(value: int) -> None:
    global _loaded
    _loaded += value


def loaded(_: int) -> tuple[int, int]:
    return os.getpid(), _loaded


def refuse(text: str) -> None:
    raise ValueError(text)


def run(program: str, directory: Path, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    (directory / "main.py").write_text(textwrap.dedent(program))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "main.py"], cwd=directory, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def test_every_worker_runs_the_initializer_once(connection: Connection) -> None:
    with rmgr.Executor(initializer=load, initargs=(7,), connection=connection) as executor:
        seen = list(executor.map(loaded, range(200)))
    assert {value for _, value in seen} == {7}
    with rmgr.Executor(initializer=load, initargs=(1,), connection=connection) as executor:
        assert {value for _, value in executor.map(loaded, range(20))} == {1}, "workers of another initializer were used"


def test_a_failing_initializer_breaks_the_executor(connection: Connection) -> None:
    executor = rmgr.Executor(2, initializer=refuse, initargs=("no licence",), connection=connection)
    with pytest.raises(stdlib.BrokenExecutor, match="no licence") as caught:
        executor.submit(abs, -1).result(60)
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(stdlib.BrokenExecutor):
        executor.submit(abs, -1)
    executor.shutdown()
    with rmgr.Executor(connection=connection) as healthy:
        assert healthy.submit(abs, -1).result(60) == 1


def test_a_cap_holds_however_many_nodes_there_are(connection: Connection, tmp_path: Path) -> None:
    def at_once(_: int) -> int:
        mine = tmp_path / f"{os.getpid()}"
        mine.touch()
        count = len(list(tmp_path.iterdir()))
        time.sleep(0.02)
        mine.unlink()
        return count

    with rmgr.Executor(2, connection=connection) as executor:
        assert max(executor.map(at_once, range(40))) <= 2
    with rmgr.Executor(connection=connection) as executor:
        assert max(executor.map(at_once, range(60))) > 2


def test_executors_inside_of_tasks_and_what_they_print(live: DevCluster, tmp_path: Path) -> None:
    program = """
        import rmgr, sys
        def leaf(x):
            return x * x
        def branch(n):
            print("branch", n)
            with rmgr.Executor(2) as executor:
                return sum(executor.map(leaf, range(n)))
        if __name__ == "__main__":
            with rmgr.Executor() as executor:
                results = sorted(executor.map(branch, range(8)))
            print(results)
    """
    ended = run(program, tmp_path)
    assert ended.stderr == ""
    lines = ended.stdout.splitlines()
    assert (Counter(lines[:-1]), lines[-1]) == (Counter(f"branch {n}" for n in range(8)), "[0, 0, 1, 5, 14, 30, 55, 91]")


def test_an_interpreter_that_ends_waits_for_what_it_submitted(live: DevCluster, tmp_path: Path) -> None:
    program = """
        import rmgr, time
        def slow(x):
            time.sleep(0.3)
            print("done", x)
        if __name__ == "__main__":
            executor = rmgr.Executor(4)
            for x in range(8):
                executor.submit(slow, x)
            executor.shutdown(wait=False)
    """
    ended = run(program, tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert sorted(ended.stdout.splitlines()) == [f"done {x}" for x in range(8)]


def test_the_end_of_a_program_tells_of_every_queue_that_was_refused_something(connection: Connection, tmp_path: Path) -> None:
    for n in (1, 2, 3):
        connection.store.put(f"at-the-end/{n}", 1)
    program = """
        import rmgr
        def nothing():
            return 1
        if __name__ == "__main__":
            queues = []
            for key in "at-the-end/1", "at-the-end/2", "at-the-end/3":
                queues.append(rmgr.TaskQueue(nothing))
                queues[-1].submit(outputs=[key])
    """
    ended = run(program, tmp_path)
    told = [line for line in ended.stderr.splitlines() if line.startswith("rmgr: ")]
    assert sorted(key for line in told for key in re.findall("at-the-end/[123]", line)) == [f"at-the-end/{n}" for n in (1, 2, 3)]


def test_exceptions_carry_the_traceback_of_the_node(connection: Connection) -> None:
    with rmgr.Executor(connection=connection) as executor:
        future = executor.submit(divmod, 1, 0)
        with pytest.raises(ZeroDivisionError) as caught:
            future.result(60)
        assert "ZeroDivisionError" in str(caught.value.__cause__)
        with pytest.raises(ValueError, match=r"x{100000}"):
            executor.submit(refuse, "x" * 100_000).result(60)


def test_many_short_calls_are_no_slower_than_on_this_machine_alone(connection: Connection) -> None:
    """Not a benchmark (`rmgr bench` is): a guard against a path that has become slow by an order of magnitude."""
    with rmgr.Executor(connection=connection) as executor:
        list(executor.map(abs, range(100)))
        with FairTimer() as timer:
            assert list(executor.map(abs, range(5000))) == list(range(5000))
        assert 5000 / timer.elapsed_s > 1000


def test_ctrl_c_says_what_still_runs_and_another_one_leaves_it_to_the_cluster(connection: Connection, tmp_path: Path) -> None:
    program = """
        import os, pathlib, signal, threading, time
        import rmgr

        here = pathlib.Path.cwd()

        def stand():
            (here / "ran").touch()
            while not (here / "go").exists():
                time.sleep(0.05)

        def press():
            while not (here / "ran").exists():
                time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGINT)
            while not executor._shutdown:
                time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGINT)

        with rmgr.Executor() as executor:
            future = executor.submit(stand)
            print(future.task_id, flush=True)
            threading.Thread(target=press, daemon=True).start()
            future.result()
    """
    done = run(program, tmp_path)
    number = done.stdout.strip().partition("_")[0]
    try:
        assert f"1 call of submission {number} not ended yet; waiting (Ctrl-C again leaves)" in done.stderr
        assert f"rmgr cancel {number}" in done.stderr
        assert done.returncode != 0
    finally:
        (tmp_path / "go").touch()
    assert rmgr.TaskQueue.attach(int(number), connection=connection).future(0).result(60) is None, "it did not go on"


def worker_of_a_moment() -> int:
    """Lasts long enough for all workers to get some of several calls."""
    time.sleep(0.05)
    return os.getpid()


class EndsWhenPickled:
    """A result that raises what would end its worker while it is pickled, and says in a file which worker that is."""

    def __init__(self, end: type[BaseException], told: Path) -> None:
        self.end, self.told = end, told

    def __reduce__(self) -> str:
        self.told.write_text(str(os.getpid()))
        raise self.end("pickled")


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_result_that_ends_its_process_when_it_is_pickled_fails_its_call_alone(
    connection: Connection, tmp_path: Path, end: type[BaseException]
) -> None:
    with rmgr.Executor(connection=connection) as executor:
        with pytest.raises(PickleFailed, match=f"the result, a .*EndsWhenPickled, cannot be pickled: {end.__name__}: pickled"):
            executor.submit(EndsWhenPickled, end, tmp_path / "pid").result(60)
        worker = int((tmp_path / "pid").read_text())

        def lives_on() -> bool:
            calls = [executor.submit(worker_of_a_moment) for _ in range(12)]
            return worker in [call.result(60) for call in calls]

        eventually(lives_on, "no other call finds its worker")


async def promise(x: int) -> int:
    return x


def test_a_coroutine_as_a_result_says_what_to_do(connection: Connection) -> None:
    with rmgr.Executor(connection=connection) as executor, pytest.raises(PickleFailed, match="the result, a coroutine") as caught:
        executor.submit(promise, 1).result(60)
    assert "asyncio.run" in caught.value.hint


def test_what_belongs_to_a_process_says_what_to_do_in_another(connection: Connection) -> None:
    with rmgr.Executor(connection=connection) as executor, rmgr.TaskQueue(abs, connection=connection) as queue:
        for value, what, instead in (
            (executor, "an Executor", r"rmgr.Executor\(\) in a task"),
            (queue, "a TaskQueue", r"TaskQueue.attach\(name\)"),
            (connection, "a Connection", r"rmgr.connect\(\)"),
        ):
            for call in (lambda value=value: executor.submit(str, value), lambda value=value: executor.submit(lambda: str(value))):
                with pytest.raises(PickleFailed, match=f"{what} stays in its process") as caught:
                    call()
                assert re.search(instead, caught.value.hint)


def test_whatever_a_callback_raises_the_others_are_called(connection: Connection, tmp_path: Path) -> None:
    called: list[str] = []

    def stand() -> None:
        while not (tmp_path / "go").exists():
            time.sleep(0.02)

    with rmgr.Executor(connection=connection) as executor:
        future = executor.submit(stand)
        for error in (ValueError, SystemExit, KeyboardInterrupt):

            def fail(_: object, error: type[BaseException] = error) -> None:
                called.append(error.__name__)
                raise error("of a callback")

            future.add_done_callback(fail)
        last = threading.Event()
        future.add_done_callback(lambda _: last.set())
        (tmp_path / "go").touch()
        assert last.wait(60)
    assert called == ["ValueError", "SystemExit", "KeyboardInterrupt"]
