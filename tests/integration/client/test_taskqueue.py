"""TaskQueue on a real cluster: programs of users, large values, failures of work, owners that die."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path
from typing import TYPE_CHECKING

import cloudpickle
import pytest

from rmgr import TaskQueue
from rmgr.coord.protocol import paths
from rmgr.errors import NotFound, PickleFailed, TaskFailed, VersionMismatch
from tests.harness.waiting import eventually
from tests.places import ROOT

if TYPE_CHECKING:
    from rmgr.client.connection import Connection
    from rmgr.dev.cluster import DevCluster


class Program:
    """A user's program as a process of its own: files by name, `main.py` is run."""

    def __init__(self, directory: Path, main: str, **files: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in {"main.py": main, **files}.items():
            path = directory / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "main.py"],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """Its next line of output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self, timeout_s: float = 60.0) -> str:
        """Waits for it; its output."""
        try:
            out, err = self.process.communicate(timeout=timeout_s)
        finally:
            self.process.kill()
        assert self.process.returncode == 0, err
        return out


# -- what travels


def test_functions_of_the_main_program_and_its_modules_run_on_the_nodes(live: DevCluster, tmp_path: Path) -> None:
    main = """
        import functools, local_module, pickle
        from rmgr import TaskQueue
        K = 5
        class Point:
            def __init__(self, x): self.x = x
            def plus(self, y): return self.x + y + K
        def of_main(x): return x * K
        def closure(n):
            return lambda x: x + n
        if __name__ == "__main__":
            with TaskQueue(of_main) as queue:
                futures = [queue.submit_call(2)]
                for function in (lambda x: x + K, closure(7), Point(3).plus, functools.partial(pow, 2), local_module.triple):
                    futures += queue.map(function, [4])
                futures += queue.map(lambda point: Point(point.x + 1), [Point(8)])
                print([f.result(60) for f in futures[:-1]], futures[-1].result(60).x)
    """
    program = Program(tmp_path, main, **{"local_module.py": "def triple(x): return 3 * x\n"})
    assert program.end() == "[10, 9, 11, 12, 16, 12] 9\n"


def test_a_shipped_package_is_found_where_it_is_not_installed(live: DevCluster, tmp_path: Path) -> None:
    package = tmp_path / "elsewhere" / "travelling"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from travelling.inner import answer\n")
    (package / "inner.py").write_text("def answer(): return 42\n")
    main = f"""
        import sys
        sys.path.insert(1, {str(package.parent)!r})
        import travelling, shutil
        from rmgr import TaskQueue
        with TaskQueue(travelling.answer, modules=[travelling]) as queue:
            shutil.rmtree({str(package)!r})       # the nodes cannot have it from here
            print(queue.submit_call().result(60))
    """
    assert Program(tmp_path / "app", main).end() == "42\n"


def test_an_interpreter_whose_cloudpickle_cannot_work_is_a_typed_error_naming_both(connection: Connection, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text('import cloudpickle\ncloudpickle.__version__ = "99.0.1"\n')
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nexport PYTHONPATH="{tmp_path}:$PYTHONPATH"\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    with TaskQueue(lambda: 1, python=str(other), connection=connection) as queue:
        error = queue.submit_call().exception(30)
    assert isinstance(error, VersionMismatch), error
    assert re.search(rf"cloudpickle {re.escape(cloudpickle.__version__)}, node n\d has cloudpickle 99\.0\.1", str(error))


def test_a_registered_function_is_used_by_its_id(connection: Connection) -> None:
    identity = connection.register(lambda x: x + 1)
    with TaskQueue(identity, connection=connection) as queue:
        assert queue.submit_call(1).result(60) == 2
    with pytest.raises(NotFound, match="there is no function"):
        TaskQueue("0" * 64, connection=connection)


@pytest.mark.parametrize("size", [1_000, 20_000, 400_000, 9_000_000])
def test_values_of_any_size_go_there_and_come_back(connection: Connection, size: int) -> None:
    with TaskQueue(lambda data: data[::-1], connection=connection) as queue:
        data = os.urandom(size)
        assert [future.result(60) for future in queue.map(None, [data] * 3)] == [data[::-1]] * 3


def test_a_million_bytes_of_arguments_in_small_pieces(connection: Connection) -> None:
    with TaskQueue(len, connection=connection) as queue:
        assert sum(future.result(60) for future in queue.map(None, [bytes(1000)] * 1000)) == 1_000_000


def test_the_program_of_the_paper_works_by_position(connection: Connection) -> None:
    """Seed 003, section 2.2: a queue of a function and its cores; arrays of keys, and whether the task is run again."""
    store, prefix = connection.store, f"tq/{time.time_ns()}"
    store.put(f"{prefix}/in", 3)
    with TaskQueue(lambda value: value + 1, 1, connection=connection) as queue:
        queue.submit([f"{prefix}/in"], [f"{prefix}/out"], True)
        counts, failed = queue.wait_all(timeout=60)
    assert (counts["COMPLETED"], failed) == (1, [])
    assert store.get(f"{prefix}/out") == 4
    with pytest.raises(TypeError):
        TaskQueue(len, 1, 2)  # type: ignore[misc]


def test_values_by_key_go_through_the_data_store(connection: Connection) -> None:
    store = connection.store
    prefix = f"tq/{time.time_ns()}"
    for i in range(20):
        store.put(f"{prefix}/in/{i}", {"i": i})
    store.put(f"{prefix}/large", bytes(2_000_000))
    with TaskQueue(lambda value, large: (value["i"] ** 2, len(large)), connection=connection) as queue:
        for i in range(20):
            queue.submit(inputs=[f"{prefix}/in/{i}", f"{prefix}/large"], outputs=[f"{prefix}/out/{i}", f"{prefix}/n/{i}"])
        counts, failed = queue.wait_all(timeout=60)
    assert (counts["COMPLETED"], failed) == (20, [])
    assert [store.get(f"{prefix}/out/{i}") for i in range(20)] == [i * i for i in range(20)]
    assert {store.get(key) for key in store.keys(f"{prefix}/n/")} == {2_000_000}


# -- work that goes wrong


def _end_process() -> None:
    os._exit(3)


def _segv() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _lock() -> object:
    return threading.Lock()


def _raise_unpicklable() -> None:
    error = RuntimeError("carries a lock")
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    raise error


def test_every_way_to_fail_is_told_with_its_reason(connection: Connection) -> None:
    with TaskQueue(_end_process, connection=connection, resubmit=False) as queue:
        exits, dies, result, error, leaves = (
            queue.map(lambda function: function(), [function])[0] for function in (_end_process, _segv, _lock, _raise_unpicklable, sys.exit)
        )
        with pytest.raises(TaskFailed, match="exit code 3") as caught:
            exits.result(60)
        assert (caught.value.reason, caught.value.work_exit_code) == ("EXIT_CODE", 3)
        with pytest.raises(TaskFailed, match="SIGSEGV") as caught:
            dies.result(60)
        assert caught.value.reason == "SIGNAL"
        with pytest.raises(PickleFailed, match=r"the result, a .*lock, cannot be pickled"):
            result.result(60)
        with pytest.raises(RuntimeError, match="carries a lock") as raised:
            error.result(60)
        assert not hasattr(raised.value, "lock")
        with pytest.raises(TaskFailed) as caught:
            leaves.result(60)
        assert isinstance(caught.value.__cause__, SystemExit)
        counts, failed = queue.wait_all(timeout=60)
        assert (counts["FAILED"], len(failed)) == (5, 5)


def test_wrong_counts_and_missing_keys_fail_clearly(connection: Connection) -> None:
    prefix = f"bad/{time.time_ns()}"
    connection.store.put(f"{prefix}/in", 1)
    with TaskQueue(lambda x: (x, x, x), connection=connection, resubmit=False) as queue:
        wrong = queue.submit(inputs=[f"{prefix}/in"], outputs=[f"{prefix}/a", f"{prefix}/b"])
        missing = queue.submit(inputs=[f"{prefix}/nothing"], outputs=[f"{prefix}/c"])
        error = wrong.exception(30)
        assert "3 values for 2 output keys" in str(error)
        with pytest.raises(TaskFailed, match="nothing' does not exist") as caught:
            missing.result(60)
        assert caught.value.hint == f"rmgr explain {caught.value.task_id}", "it has written nothing"
        queue.wait_all(timeout=60)
    eventually(lambda: connection.store.keys(prefix) == [f"{prefix}/in"])
    with pytest.raises(NotFound):
        connection.store.get(f"{prefix}/a")


def test_a_task_that_fails_is_tried_again_as_often_as_it_may(connection: Connection, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"

    def sometimes(good: int) -> int:
        with ledger.open("a") as file:
            file.write("x")
        attempts = ledger.stat().st_size
        if attempts < good:
            raise ValueError(f"attempt {attempts}")
        return attempts

    with TaskQueue(sometimes, retries=3, backoff=0.05, connection=connection) as queue:
        future = queue.submit_call(3)
        assert (future.result(60), future.attempt) == (3, 3)
    ledger.unlink()
    with TaskQueue(sometimes, retries=1, connection=connection) as queue, pytest.raises(ValueError, match="attempt 2"):
        queue.submit_call(9).result(60)
    assert ledger.stat().st_size == 2


def test_single_running_tasks_are_ended_and_the_queue_goes_on(connection: Connection, tmp_path: Path) -> None:
    def stand(index: int) -> int:
        (tmp_path / f"ran{index}").touch()
        while not (tmp_path / "go").exists():
            time.sleep(0.02)
        return index

    with TaskQueue(stand, connection=connection) as queue:
        futures = [queue.submit_call(index) for index in range(2)]
        eventually(lambda: all((tmp_path / f"ran{index}").exists() for index in range(2)), "the tasks start")
        assert not futures[0].cancel(), "a running task is not ended unless that is asked for"
        assert futures[0].cancel(running=True, timeout=60)
        with pytest.raises(CancelledError):
            futures[0].result(60)
        queue.cancel(1, "wrong input")
        with pytest.raises(CancelledError):
            futures[1].result(60)
        with pytest.raises(NotFound, match="no task 7"):
            queue.cancel(7)
        (tmp_path / "go").touch()
        assert queue.submit_call(2).result(60) == 2, "the queue did not go on"
        assert queue.wait_all(timeout=60).counts["CANCELLED"] == 2


def test_a_time_limit_ends_a_task_and_cancel_ends_running_ones(connection: Connection) -> None:
    with TaskQueue(time.sleep, time=0.3, connection=connection) as queue:
        with pytest.raises(TaskFailed, match=r"TIME_LIMIT .*over its limit of 0?\.?3") as caught:
            queue.submit_call(60).result(60)
        assert "TaskQueue(f, time=" in str(caught.value.hint)
    queue = TaskQueue(time.sleep, connection=connection)
    futures = queue.map(None, [60] * 20)
    eventually(lambda: _claimed(connection, queue.id))
    queue.cancel("enough")
    assert queue.wait_all(timeout=60).counts["CANCELLED"] == 20
    assert all(future.cancelled() for future in futures)


def _claimed(connection: Connection, number: int) -> bool:
    assert connection.coordinator is not None
    nodes = connection.coordinator.children(paths.NODES).result(60) or []
    names = [name for node in nodes for name in connection.coordinator.children(paths.running_node(node)).result(60) or []]
    return any(paths.parse_block(name).submission == number for name in names)


# -- nested


def test_no_depth_of_nesting_blocks_the_cluster(live: DevCluster, tmp_path: Path) -> None:
    main = """
        from rmgr import TaskQueue, Executor
        def depth(n):
            if n == 0:
                return 0
            with TaskQueue(depth) as queue:
                return 1 + queue.submit_call(n - 1).result(60)
        def fan(n):
            with Executor() as executor:
                return sum(executor.map(abs, range(n)))
        if __name__ == "__main__":
            with TaskQueue(depth) as queue:
                futures = queue.map(depth, [9, 8]) + queue.map(fan, [10] * 8)   # six slots
                print([future.result(100) for future in futures])
    """
    assert Program(tmp_path, main).end(120) == f"{[9, 8] + [45] * 8}\n"


# -- owners that die


def test_after_kill_9_another_process_goes_on_with_the_same_results(live: DevCluster, connection: Connection, tmp_path: Path) -> None:
    main = """
        import time
        from rmgr import TaskQueue
        def slow(x):
            time.sleep(0.05)
            return x * x
        if __name__ == "__main__":
            queue = TaskQueue(slow, retries=1)
            futures = queue.map(slow, range(100))
            next(queue.as_completed(futures))
            queue.flush()
            print(queue.name)
            time.sleep(600)
    """
    program = Program(tmp_path, main)
    name = program.line()
    program.process.kill()
    program.process.wait()
    queue = TaskQueue.attach(name, connection=connection)
    assert queue.name == name
    assert [future.result(60) for future in queue.futures()] == [x * x for x in range(100)]
    added = queue.submit_call(11)  # waits until the owner's session has ended, then takes over
    assert added.result(60) == 121
    assert queue.wait_all(timeout=60) == ({"COMPLETED": 101, "FAILED": 0, "CANCELLED": 0}, [])
    queue.close()


def test_what_was_submitted_is_durable_when_the_program_ends(live: DevCluster, connection: Connection, tmp_path: Path) -> None:
    main = """
        from rmgr import TaskQueue
        queue = TaskQueue(lambda x: x + 1)
        for x in range(2000):
            queue.submit_call(x)
        print(queue.name)
    """
    queue = TaskQueue.attach(Program(tmp_path, main).end().strip(), connection=connection)
    assert queue.wait_all(timeout=60).counts["COMPLETED"] == 2000


# -- waiting and telling


def test_progress_is_plain_lines_where_there_is_no_terminal(live: DevCluster, tmp_path: Path) -> None:
    main = """
        import time
        from rmgr import TaskQueue
        import rmgr.client.progress as progress
        progress.LINE_S = 0.2
        with TaskQueue(time.sleep, name="naps") as queue:
            queue.map(None, [0.3] * 12)
            print(queue.wait_all(progress=True).counts["COMPLETED"])
    """
    program = Program(tmp_path, main)
    out, err = program.process.communicate(timeout=60)
    assert out == "12\n"
    assert "naps  12/12 (100%)" in err.splitlines()[-1]


def test_importing_rmgr_costs_nothing() -> None:
    program = "import sys; before = set(sys.modules); import rmgr; print(sorted(set(sys.modules) - before))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True)
    assert len(ended.stdout.split()) < 40, ended.stdout
    assert not {"kazoo", "grpc", "cloudpickle", "msgspec", "rich"} & set(ended.stdout.replace("'", " ").replace(",", " ").split())
