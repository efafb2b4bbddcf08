"""Python workers: initializers, environments, taking tasks back, blocking, suspending, being replaced; slots and their runner."""

from __future__ import annotations

import contextlib
import hashlib
import io
import multiprocessing
import os
import pickle
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import cloudpickle
import msgspec
import pytest

from rmgr.adapters.host.process import Account, Slot, Worker, WorkerSpec
from rmgr.adapters.host.workevents import (
    SlotLost,
    SlotUp,
    TasksEnded,
    TasksReturned,
    WorkerBlocked,
    WorkerEnded,
    WorkerFailed,
    WorkerUnblocking,
)
from rmgr.errors import StateConflict, VersionMismatch
from rmgr.model.frames import BatchShape, TaskBatch, TaskItem
from rmgr.model.states import Reason
from rmgr.runner.python import calls
from tests.harness.reachable import work_that_users_reach
from tests.harness.waiting import eventually, unchanged
from tests.harness.work_node import WorkNode, error_of, is_alive, pid_in

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="nodes run Linux")


# -- workers --------------------------------------------------------------------------------------------------------------


def test_an_initializer_runs_once_and_its_failure_is_told(node: WorkNode, slot: Slot) -> None:
    def setup(value: str) -> None:
        if value == "bad":
            raise RuntimeError("cannot set up")
        os.environ["SET"] = os.environ.get("SET", "") + value

    good = node.worker(slot, WorkerSpec(initializer=cloudpickle.dumps((setup, ("v",)))))
    assert [node.result(node.call(good, lambda: os.environ["SET"])) for _ in range(2)] == ["v", "v"]
    bad = slot.start_worker(WorkerSpec(initializer=cloudpickle.dumps((setup, ("bad",)))))
    seq = node.call(bad, int)
    failed = node.wait(WorkerFailed)
    assert failed.initializer
    assert failed.summary == "RuntimeError: cannot set up"
    gone = node.wait(WorkerEnded, lambda event: event.worker is bad)
    assert (0, (seq,)) == (gone.seq, gone.unstarted)
    good.stop(grace_us=0)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (WorkerSpec(python_version="3.7"), ("3.7", f"{sys.version_info.major}.{sys.version_info.minor}")),
        (WorkerSpec(cloudpickle="1.6.0"), (f"cloudpickle 1.6.0, node n1 has cloudpickle {cloudpickle.__version__}",)),
    ],
    ids=["another python", "a cloudpickle that cannot work"],
)
def test_a_client_of_other_versions_is_refused_by_name(node: WorkNode, slot: Slot, spec: WorkerSpec, told: tuple[str, ...]) -> None:
    worker = slot.start_worker(spec)
    error = pickle.loads(node.wait(WorkerFailed, lambda event: event.worker is worker).error)
    assert isinstance(error, VersionMismatch)
    assert all(text in str(error) for text in told)
    node.wait(WorkerEnded, lambda event: event.worker is worker)


def test_a_function_that_needs_a_newer_cloudpickle_says_so(node: WorkNode, slot: Slot) -> None:
    newer = cloudpickle.__version__.partition(".")[0] + ".99.0"
    worker = node.worker(slot, WorkerSpec(cloudpickle=newer))
    blob = b"\x80\x05ccloudpickle.cloudpickle\n_made_by_a_later_release\n."
    item = TaskItem(node.runner.next_seq(), 0, payload=b"")
    batch = TaskBatch(shape=BatchShape(submission=42), function=hashlib.sha256(blob).hexdigest(), blob=blob, items=(item,))
    assert worker.send(batch)
    error = error_of(node.ended(item.seq))
    assert isinstance(error, VersionMismatch)
    assert f"cloudpickle {newer}, node n1 has cloudpickle {cloudpickle.__version__}" in str(error)
    worker.stop(grace_us=0)


def test_a_worker_has_its_own_modules_path_and_environment(node: WorkNode, slot: Slot, tmp_path: Path) -> None:
    import zipfile

    archive = tmp_path / "mods.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("shipped_module.py", "VALUE = 5\n")
    (tmp_path / "local_module.py").write_text("VALUE = 6\n")
    spec = WorkerSpec(archives=(str(archive),), sys_path=(str(tmp_path), "/no/such/dir"), environ={"OMP_NUM_THREADS": "7"})
    worker = node.worker(slot, spec)

    def look() -> tuple[int, int, bool]:
        import local_module
        import shipped_module

        return shipped_module.VALUE, local_module.VALUE, "/no/such/dir" in sys.path

    assert node.result(node.call(worker, look)) == (5, 6, False)
    assert node.result(node.call(worker, os.getcwd)).startswith(str(slot.directory))
    assert node.result(node.call(worker, lambda: os.path.samefile(os.environ["PWD"], ".")))
    worker.stop(grace_us=0)


def test_a_module_of_the_program_hides_an_installed_one_as_at_home(node: WorkNode, slot: Slot, tmp_path: Path) -> None:
    for place in ("front", "back"):
        (tmp_path / place).mkdir()
        (tmp_path / place / f"{'kazoo' if place == 'front' else 'psutil'}.py").write_text("MINE = True\n")
    worker = node.worker(slot, WorkerSpec(sys_path=(str(tmp_path / "front"), "", str(tmp_path / "back"))))

    def look() -> tuple[bool, bool]:
        import kazoo
        import psutil

        return hasattr(kazoo, "MINE"), hasattr(psutil, "MINE")

    assert node.result(node.call(worker, look)) == (True, False)
    worker.stop(grace_us=0)


def test_a_function_finds_the_words_of_its_program(node: WorkNode, slot: Slot) -> None:
    worker = node.worker(slot, WorkerSpec(argv=("main.py", "-n", "3")))
    assert node.result(node.call(worker, lambda: sys.argv)) == ["main.py", "-n", "3"]
    worker.stop(grace_us=0)
    worker = node.worker(slot, WorkerSpec())
    assert node.result(node.call(worker, lambda: sys.argv)) == [""], "not the spawner's"
    worker.stop(grace_us=0)


def test_what_an_initializer_has_done_to_its_process_holds_for_all_calls(node: WorkNode, slot: Slot, tmp_path: Path) -> None:
    def begin(directory: str) -> None:
        os.chdir(directory)
        os.umask(0o077)
        os.dup2(os.open(os.path.join(directory, "told"), os.O_WRONLY | os.O_CREAT), 2)
        sys.stdout = os.fdopen(os.open(os.path.join(directory, "said"), os.O_WRONLY | os.O_CREAT), "w", buffering=1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: print("saved"))

    def look() -> tuple[str, int]:
        print("hello")
        os.write(2, b"there\n")
        mask = os.umask(0)
        os.umask(mask)
        found = os.getcwd(), mask
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.chdir("/")
        sys.stdout = sys.__stdout__
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        return found

    data = cloudpickle.dumps((begin, (str(tmp_path),)))
    worker = node.worker(slot, WorkerSpec(initializer=data, group="g"))
    for _ in range(3):
        end = node.ended(node.call(worker, look))
        assert end.extra is None or not (end.extra.out.size or end.extra.err.size), "it was written elsewhere"
        assert node.result(end.seq) == (str(tmp_path), 0o077)
    assert (tmp_path / "said").read_text() == 3 * "hello\nsaved\n"
    assert (tmp_path / "told").read_text() == 3 * "there\n"
    worker.stop(grace_us=0)


def test_what_a_node_lacks_is_told_with_what_to_do(node: WorkNode, worker: Worker) -> None:
    def read() -> bytes:
        with open("data.txt", "rb") as file:
            return file.read()

    error = error_of(node.ended(node.call(worker, read)))
    assert isinstance(error, FileNotFoundError)
    assert re.search(r"node n1 looked for it in /.*: give the whole path", error.__notes__[0])
    error = error_of(node.ended(node.call(worker, partial(open, "/no/such/file"))))
    assert not hasattr(error, "__notes__")
    error = error_of(node.ended(node.call(worker, lambda: os.environ["NOT_THERE"])))
    assert error.__notes__[0].startswith("node n1 does not get variables of your program: pass the value, or set 'NOT_THERE'")
    with multiprocessing.get_context("spawn").Manager() as manager:
        queue = manager.Queue()
        error = error_of(node.ended(node.call(worker, id, queue)))
    assert "a multiprocessing.Manager is reached by processes that its program has started, not from node n1" in error.__notes__[0]


def test_a_process_that_a_task_has_forked_ends_as_anywhere(node: WorkNode, worker: Worker) -> None:
    def work(how: str) -> int:
        pid = os.fork()
        if pid == 0:
            if how == "raises":
                raise ValueError("of the child")
            if how == "exits":
                sys.exit(7)
            return 0
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    codes = []
    for how in ("raises", "exits", "returns"):
        end = node.ended(node.call(worker, work, how))
        codes.append(node.result(end.seq))
        if how == "raises":
            assert end.extra is not None
            assert b"ValueError: of the child" in end.extra.err.data
    assert codes == [1, 7, 0]


def test_tasks_not_begun_are_taken_back_even_while_one_holds_the_interpreter(node: WorkNode, worker: Worker, tmp_path: Path) -> None:
    def work(n: int, gate: str, ledger: str) -> None:
        with open(ledger, "a") as file:
            file.write(f"{n}\n")
        if n == 0:
            pow(3, 6_000_000)  # one C call, a second or so: no thread of this process runs meanwhile
            while not os.path.exists(gate):
                time.sleep(0.01)

    gate, ledger = tmp_path / "gate", tmp_path / "ledger"
    batch = node.batch(work, *[(n, str(gate), str(ledger)) for n in range(6)])
    seqs = tuple(item.seq for item in batch.items)
    worker.send(batch)
    eventually(lambda: worker.running()[0] == seqs[0])
    worker.recall(keep=2)
    assert node.wait(TasksReturned, lambda event: event.worker is worker).seqs == seqs[3:]
    more = node.batch(work, (8, str(gate), str(ledger)))
    worker.send(more)
    gate.touch()
    node.ended(more.items[0].seq)
    assert [node.result(seq) for seq in seqs[:3]] == [None] * 3
    assert ledger.read_text().split() == ["0", "1", "2", "8"]
    assert worker.load == 0


def test_a_recall_is_answered_even_when_there_is_nothing_to_take_back(node: WorkNode, slot: Slot, worker: Worker) -> None:
    worker.recall()
    assert node.wait(TasksReturned, lambda event: event.worker is worker).seqs == ()
    slot.recall()
    assert node.wait(TasksReturned, lambda event: event.worker is None).seqs == ()


def test_work_recalled_before_the_worker_exists_comes_back_whole(node: WorkNode, slot: Slot) -> None:
    worker = slot.start_worker(WorkerSpec())
    batch = node.batch(int, (), ())
    worker.send(batch)
    worker.recall()
    seqs = {item.seq for item in batch.items}
    returned: set[int] = set()
    while seqs - returned - set(node.ends):  # it may have been forked before it was asked
        event = node.wait((TasksReturned, TasksEnded), lambda event: event.worker is worker)
        if isinstance(event, TasksReturned):
            returned.update(event.seqs)
    eventually(lambda: worker.is_ready, "a worker that is ready")
    assert node.result(node.call(worker, int, 5)) == 5
    worker.stop(grace_us=0)


def test_a_quick_result_does_not_wait_for_the_slow_task_behind_it(node: WorkNode, worker: Worker) -> None:
    batch = node.batch(time.sleep, (0,), (60,))
    worker.send(batch)
    assert node.result(batch.items[0].seq) is None
    assert batch.items[1].seq not in node.ends
    worker.stop(batch.items[1].seq)
    node.ended(batch.items[1].seq)


def test_a_task_that_waits_gives_its_slot_back_and_gets_it_again(node: WorkNode, worker: Worker, tmp_path: Path) -> None:
    def work(gate: str) -> str:
        from rmgr.runner.current import blocking

        with blocking():
            while not os.path.exists(gate):
                time.sleep(0.01)
        return "went on"

    gate = tmp_path / "gate"
    batch = node.batch(work, (str(gate),), (str(gate),), (str(gate),))
    first, *rest = (item.seq for item in batch.items)
    worker.send(batch)
    node.wait(WorkerBlocked, lambda event: event.seq == first)
    assert node.wait(TasksReturned, lambda event: event.worker is worker).seqs == tuple(rest)
    gate.touch()
    node.wait(WorkerUnblocking, lambda event: event.seq == first)
    assert worker.load == 1
    worker.grant(first)
    assert node.result(first) == "went on"


def test_several_threads_of_a_task_may_wait(node: WorkNode, worker: Worker) -> None:
    def work() -> int:
        import threading

        from rmgr.runner.current import blocking

        done: list[int] = []

        def wait(n: int) -> None:
            with blocking():
                time.sleep(0.1)
                done.append(n)

        threads = [threading.Thread(target=wait, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(done)

    seq = node.call(worker, work)
    while seq not in node.ends:  # the cores may be given back and asked for more than once: each asking is answered
        event = node.wait((WorkerUnblocking, TasksEnded), lambda e: e.worker is worker)
        if isinstance(event, WorkerUnblocking):
            worker.grant(event.seq)
    assert node.result(seq) == 4


def test_suspended_workers_stand_still(node: WorkNode, worker: Worker, tmp_path: Path) -> None:
    ledger, go = tmp_path / "ledger", tmp_path / "go"

    def work(path: str, go: str) -> None:
        while not os.path.exists(go):
            with open(path, "a") as file:
                file.write("x")
            time.sleep(0.01)

    seq = node.call(worker, work, str(ledger), str(go))
    eventually(ledger.exists)
    worker.suspend()

    eventually(lambda: unchanged(lambda: ledger.stat().st_size))
    stood = ledger.stat().st_size
    worker.resume()
    eventually(lambda: ledger.stat().st_size > stood, "it goes on")
    go.touch()
    node.result(seq)


def test_two_runners_cannot_have_one_directory(node: WorkNode) -> None:
    with pytest.raises(StateConflict, match="another Starter"):
        WorkNode(node.directory)


def test_a_spawner_loads_nothing_heavy(node: WorkNode, slot: Slot, worker: Worker) -> None:
    loaded = node.result(node.call(worker, lambda: sorted(sys.modules)))
    assert not {"kazoo", "grpc", "structlog", "click", "psutil", "rmgr.client", "rmgr.adapters"} & set(loaded)


def test_a_worker_of_which_processes_are_left_is_replaced(node: WorkNode, fresh: Worker, tmp_path: Path) -> None:
    def work(path: str) -> None:
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                with open(path, "w") as file:
                    file.write(f"{os.getpid()}\n")
                time.sleep(600)
            os._exit(0)
        os.wait()

    path = tmp_path / "pid"
    node.result(node.call(fresh, work, str(path)))
    pid = pid_in(path)
    gone = node.wait(WorkerEnded, lambda event: event.worker is fresh)
    assert (gone.seq, gone.unstarted) == (0, ())
    eventually(lambda: not is_alive(pid))


def test_a_slot_opens_again_after_it_was_closed(node: WorkNode) -> None:
    slot = node.slot(5)
    slot.close()
    slot.wait(60)
    again = node.slot(5)
    assert node.end_of(node.run(again, "true")).exit_code == 0
    assert SlotUp


def test_many_large_payloads_are_sent_in_parts(node: WorkNode, worker: Worker) -> None:
    batch = node.batch(len, *[(os.urandom(1_000_000),)] * 80)
    assert worker.send(batch)
    assert [node.result(item.seq) for item in batch.items] == [1_000_000] * 80


@pytest.mark.parametrize(("waits_s", "event"), [(60, WorkerBlocked), (0, WorkerUnblocking)], ids=["while it waits", "for its cores"])
def test_a_task_can_be_cancelled_while_it_waits(
    node: WorkNode, worker: Worker, waits_s: float, event: type[WorkerBlocked | WorkerUnblocking]
) -> None:
    def work() -> None:
        from rmgr.runner.current import blocking

        with blocking():
            time.sleep(waits_s)

    seq = node.call(worker, work)
    node.wait(event, lambda found: found.seq == seq)
    worker.stop(seq)
    assert node.ended(seq).extra.reason is Reason.USER_CANCEL
    assert worker.blocked_seq == 0
    assert node.result(node.call(worker, int, 3)) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_work_runs_as_another_user_without_new_privileges(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = Path(tempfile.mkdtemp(prefix="rmgr-test-", dir="/tmp"))
    directory.chmod(0o755)
    try:
        with work_that_users_reach(), WorkNode(directory / "run") as node:
            slot = node.slot(0, account=Account(name="nobody", uid=65534, gid=65534, groups=(65534,)))
            end = node.end_of(node.shell(slot, "id -u; id -g; id -G; grep NoNewPrivs /proc/self/status; touch mine && echo wrote"))
            assert end.out.data == b"65534\n65534\n65534\nNoNewPrivs:\t1\nwrote\n", end
            worker = node.worker(slot)
            assert node.result(node.call(worker, lambda: (os.getuid(), os.getgid(), os.getgroups()))) == (65534, 65534, [65534])
            worker.stop(grace_us=0)
            node.wait(WorkerEnded)
            limited = node.end_of(
                node.shell(slot, "sleep 60 & sleep 60", shape=BatchShape(submission=1, limit_us=100_000, grace_us=100_000))
            )
            assert limited.reason is Reason.TIME_LIMIT
    finally:
        directory.rmdir()


def test_a_full_disk_is_the_nodes_fault(node: WorkNode, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> bytes:
        import builtins
        import errno

        real = builtins.open

        def full(path: object, mode: str = "r", *args: object, **kwargs: object) -> object:
            if "w" in mode:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(path, mode, *args, **kwargs)  # type: ignore[call-overload]

        builtins.open = full
        return b"x" * 2_000_000

    def heal() -> None:
        import builtins
        import io

        builtins.open = io.open

    end = node.ended(node.call(worker, work))
    node.result(node.call(worker, heal))
    assert end.extra is not None
    assert end.extra.reason is Reason.NODE_LOST
    assert "No space left" in end.extra.summary


def test_an_initializer_that_crashes_its_worker_is_told_as_a_failure(node: WorkNode, slot: Slot) -> None:
    worker = slot.start_worker(WorkerSpec(initializer=cloudpickle.dumps((os._exit, (4,)))))
    batch = node.batch(int, ())
    worker.send(batch)
    failed = node.wait(WorkerFailed, lambda event: event.worker is worker)
    assert failed.initializer
    assert "exit code 4" in failed.summary
    assert node.wait(WorkerEnded, lambda event: event.worker is worker).unstarted == (batch.items[0].seq,)


def test_the_end_of_a_worker_that_was_killed_in_its_initializer_says_so(node: WorkNode, slot: Slot) -> None:
    worker = slot.start_worker(WorkerSpec(initializer=cloudpickle.dumps((os.system, ("kill -9 $PPID",)))))
    ended = node.wait(WorkerEnded, lambda event: event.worker is worker)
    assert ended.detail == "its worker process was killed from outside while its initializer ran"


def test_another_submission_never_meets_the_threads_of_the_last(node: WorkNode, fresh: Worker) -> None:
    def work() -> None:
        import threading

        threading.Thread(target=time.sleep, args=(600,)).start()

    node.result(node.call(fresh, work, shape=BatchShape(submission=1)))
    assert node.result(node.call(fresh, int, shape=BatchShape(submission=1))) == 0
    seq = node.call(fresh, int, shape=BatchShape(submission=2))
    assert node.wait(WorkerEnded, lambda event: event.worker is fresh).unstarted == (seq,)


def test_a_task_may_close_its_output(node: WorkNode, worker: Worker) -> None:
    def close() -> None:
        print("before")
        sys.stdout.close()
        os.close(2)

    assert node.ended(node.call(worker, close)).seq
    extra = node.ended(node.call(worker, lambda: (print("out"), print("err", file=sys.stderr)))).extra
    assert (extra.out.data, extra.err.data) == (b"out\n", b"err\n")

    def detach() -> int:
        sys.stdout = io.TextIOWrapper(sys.stdout.detach(), "latin-1")
        print("\xe9")
        return os.getpid()

    for _ in range(2):
        assert node.ended(node.call(worker, detach)).extra.out.data == b"\xe9\n", "also of a stream that it has put there itself"
    assert node.result(node.call(worker, os.getpid)) == node.result(node.call(worker, detach)), "the worker lives on"

    def wrap() -> None:
        sys.stdout = io.TextIOWrapper(sys.stdout.buffer, "utf-8")  # closes the worker's own stream when it goes
        print("wrapped")

    for _ in range(2):
        assert node.ended(node.call(worker, wrap)).extra.out.data == b"wrapped\n"
    assert node.ended(node.call(worker, print, "plain")).extra.out.data == b"plain\n"


def test_the_streams_of_a_task_have_the_names_of_those_of_a_program(node: WorkNode, worker: Worker) -> None:
    def look() -> list[tuple[str, str, int]]:
        return [(stream.name, stream.mode, stream.fileno()) for stream in (sys.stdin, sys.stdout, sys.stderr)]

    assert node.result(node.call(worker, look)) == [("<stdin>", "r", 0), ("<stdout>", "w", 1), ("<stderr>", "w", 2)]


def test_processes_of_the_spawn_method_work_inside_a_task(node: WorkNode, worker: Worker) -> None:
    def work() -> list[int]:
        import multiprocessing

        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.map(abs, [-1, -2])

    assert node.result(node.call(worker, work)) == [1, 2]


def test_a_process_that_a_task_ends_as_soon_as_it_has_forked_it_ends(node: WorkNode, worker: Worker) -> None:
    """As a pool of processes does with those that had nothing to do."""

    def work() -> list[int]:
        import signal

        ended = []
        for _ in range(100):
            pid = os.fork()
            if pid == 0:
                time.sleep(5)
                os._exit(0)
            os.kill(pid, signal.SIGTERM)
            ended.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            if not ended[-1]:
                break
        return ended

    assert node.result(node.call(worker, work)) == [-15] * 100


def test_a_task_that_forks_all_the_time_is_told_to_end_as_others_are(node: WorkNode, fresh: Worker, tmp_path: Path) -> None:
    began, told = tmp_path / "began", tmp_path / "told"

    def work() -> None:
        import gc

        gc.disable()
        try:
            began.touch()
            while True:
                if (pid := os.fork()) == 0:
                    os._exit(0)
                os.waitpid(pid, 0)
        finally:
            told.touch()
            with contextlib.suppress(ChildProcessError):  # a worker with nothing to do ends itself if a task has left a process
                os.waitpid(-1, 0)

    for _ in range(5):
        seq = node.call(fresh, work)
        eventually(began.exists)
        fresh.stop(seq, grace_us=60_000_000)
        extra = node.ended(seq).extra
        assert extra.reason is Reason.USER_CANCEL
        assert told.exists(), "it was killed before it could clean up"
        began.unlink()
        told.unlink()


def test_a_package_that_vanishes_under_its_worker_is_a_fault_of_the_node_and_not_of_the_call(node: WorkNode, tmp_path: Path) -> None:
    package = shutil.copytree(Path(calls.__file__).parents[2], tmp_path / "rmgr", ignore=shutil.ignore_patterns("__pycache__"))
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    slot = node.slot(11, python=str(python))
    worker = node.worker(slot)

    def load(module: str) -> tuple[Reason, str]:
        batch = msgspec.structs.replace(node.batch(len, ("a",)), function=module, blob=f"c{module}\nx\n.".encode())
        worker.send(batch)
        end = node.ended(batch.items[0].seq)
        return end.extra.reason, end.extra.summary

    assert load("rmgr.nothing")[0] is Reason.START_FAILED
    (package / "another.py").touch()  # in a checkout that is worked in
    assert load("rmgr.none")[0] is Reason.START_FAILED
    package.rename(tmp_path / "away")
    assert load("rmgr.client.futures") == (
        Reason.NODE_LOST,
        f"rmgr was changed or removed in {package} of node n1 while its Starter ran (No module named 'rmgr.client')",
    )
    assert load("nothing.of.ours")[0] is Reason.START_FAILED
    (tmp_path / "away").rename(package)
    assert load("rmgr.nowhere")[0] is Reason.START_FAILED
    slot.close()


@pytest.mark.parametrize("free", [1, 2])
def test_a_starter_without_descriptors_for_a_new_worker_loses_that_slot_alone(node: WorkNode, slot: Slot, free: int) -> None:
    other = node.slot(12 + free)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = [os.open(os.devnull, os.O_RDONLY) for _ in range(free)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(spare) + 1, limits[1]))
    try:
        for fd in spare:
            os.close(fd)
        other.start_worker(WorkerSpec())
        lost = node.wait(SlotLost, lambda event: event.slot is other)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert ("Too many open files" if free == 2 else "none left") in lost.why
    assert node.result(node.call(node.worker(slot), len, "abc")) == 3
