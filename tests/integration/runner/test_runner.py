"""Python tasks in a worker: results, outputs, environment, failures, which task is blamed for a dead worker; and a full disk."""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import msgspec
import psutil
import pytest

from rmgr.adapters.host import leftovers
from rmgr.adapters.host.process import Worker
from rmgr.adapters.host.workevents import TasksEnded, TasksReturned, WorkerEnded
from rmgr.errors import PickleFailed, RemoteError, RemoteTraceback
from rmgr.model.frames import BatchShape, KeyedCall, KeyedInput, TaskBatch, TaskItem
from rmgr.model.states import Reason
from rmgr.runner.current import TaskTerminated
from rmgr.runner.python.calls import WrongCount
from tests.harness.fair_time import FairTimer
from tests.harness.waiting import eventually
from tests.harness.work_node import WorkNode, error_of

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="nodes run Linux")


# -- Python tasks: results -------------------------------------------------------------------------------------------------


def test_results_come_back_raw_when_they_are_bytes_and_pickled_otherwise(node: WorkNode, worker: Worker) -> None:
    batch = node.batch(lambda x: x, (None,), (b"\x00raw",), ({"a": [1, 2.5]},), ("ü",))
    worker.send(batch)
    assert [node.result(item.seq) for item in batch.items] == [None, b"\x00raw", {"a": [1, 2.5]}, "ü"]
    assert not node.ended(batch.items[1].seq).pickled


def test_a_large_result_travels_as_a_file(node: WorkNode, worker: Worker) -> None:
    end = node.ended(node.call(worker, lambda: b"x" * 3_000_000))
    assert end.extra is not None
    assert end.extra.value is not None
    assert (end.extra.value.size, end.extra.value.pickled) == (3_000_000, False)
    assert Path(end.extra.value.path).read_bytes() == b"x" * 3_000_000
    os.unlink(end.extra.value.path)


@pytest.mark.parametrize("size", [10_000, 33_000, 200_000, 900_000])
def test_results_of_every_size_arrive_whole(node: WorkNode, worker: Worker, size: int) -> None:
    batch = node.batch(os.urandom, *[(size,)] * 5)
    worker.send(batch)
    assert [len(node.result(item.seq)) for item in batch.items] == [size] * 5


def test_objects_of_main_lambdas_and_closures_come_back(node: WorkNode, worker: Worker) -> None:
    class Point:
        def __init__(self, x: int) -> None:
            self.x = x

    Point.__module__ = "__main__"
    factor = 3
    point = node.result(node.call(worker, lambda p: Point(p.x * factor), Point(2)))
    assert point.x == 6
    assert node.result(node.call(worker, lambda: lambda y: y + factor))(1) == 4


def test_arguments_may_come_in_a_file(node: WorkNode, worker: Worker, tmp_path: Path) -> None:
    file = tmp_path / "payload"
    file.write_bytes(pickle.dumps(((b"y" * 2_000_000,), {})))
    blob = cloudpickle.dumps(len)
    seq = node.runner.next_seq()
    worker.send(TaskBatch(shape=BatchShape(), function="len", blob=blob, items=(TaskItem(seq, 0, path=str(file)),)))
    assert node.result(seq) == 2_000_000


def test_a_large_function_comes_from_a_file(node: WorkNode, worker: Worker, tmp_path: Path) -> None:
    table = os.urandom(100_000)
    blob = cloudpickle.dumps(lambda i: table[i])
    name = hashlib.sha256(blob).hexdigest()
    file = tmp_path / name
    file.write_bytes(blob)
    seq = node.runner.next_seq()
    worker.send(TaskBatch(shape=BatchShape(), function=name, path=str(file), items=(TaskItem(seq, 0, payload=pickle.dumps(((7,), {}))),)))
    assert node.result(seq) == table[7]


def _keyed(node: WorkNode, worker: Worker, function: object, outputs: int, *values: object) -> int:
    inputs = tuple(KeyedInput(v) if isinstance(v, bytes) else KeyedInput(pickle.dumps(v), pickled=True) for v in values)
    payload = msgspec.msgpack.encode(KeyedCall(inputs=inputs, outputs=outputs))
    seq = node.runner.next_seq()
    blob = cloudpickle.dumps(function)
    items = (TaskItem(seq, 0, payload=payload),)
    worker.send(TaskBatch(shape=BatchShape(), function=hashlib.sha256(blob).hexdigest(), blob=blob, keyed=True, items=items))
    return seq


def test_the_keyed_form_gives_values_and_takes_one_for_each_key(node: WorkNode, worker: Worker) -> None:
    two = node.ended(_keyed(node, worker, lambda a, b: (a + b"!", b), 2, b"raw", [1]))
    assert two.extra is not None
    assert two.extra.values is not None
    assert [(v.data, v.pickled) for v in two.extra.values] == [(b"raw!", False), (pickle.dumps([1], 5), True)]
    one = node.ended(_keyed(node, worker, lambda a: (a, a), 1, b"x"))
    assert one.extra is not None
    assert one.extra.values is not None
    assert pickle.loads(one.extra.values[0].data) == (b"x", b"x")


@pytest.mark.parametrize("returned", [None, 5, (1,), [1, 2, 3]])
def test_the_wrong_number_of_values_is_bad_output(node: WorkNode, worker: Worker, returned: object) -> None:
    end = node.ended(_keyed(node, worker, lambda: returned, 2))
    assert end.extra is not None
    assert end.extra.reason is Reason.BAD_OUTPUT
    assert isinstance(error_of(end), WrongCount)
    assert "2 output keys" in end.extra.summary


def test_tasks_find_their_environment_as_the_programs_they_start_do(node: WorkNode, worker: Worker) -> None:
    def look(_: int) -> tuple[str, str, tuple[object, ...]]:
        import subprocess

        from rmgr.runner.current import current

        me = current()
        assert me is not None
        inside = " ".join(os.environ[name] for name in ("RMGR_TASK_ID", "RMGR_ARRAY_INDEX", "RMGR_ATTEMPT", "RMGR_TOKEN", "RMGR_JOB_ID"))
        echo = "echo $RMGR_TASK_ID $RMGR_ARRAY_INDEX $RMGR_ATTEMPT $RMGR_TOKEN $RMGR_JOB_ID"
        child = subprocess.check_output(["sh", "-c", echo], text=True)
        return inside, child.strip(), (me.task_id, me.token, me.array_index, me.node, me.cores)

    batch = node.batch(look, (0,), (1,), shape=BatchShape(submission=77, cores=2))
    items = (msgspec.structs.replace(batch.items[0], index=100, attempt=2), msgspec.structs.replace(batch.items[1], index=5, label=9))
    worker.send(msgspec.structs.replace(batch, items=items))
    first, second = (node.result(item.seq) for item in items)
    assert first == ("77_100 100 2 77_100.2 77",) * 2 + (("77_100", "77_100.2", 100, "n1", 2),)
    assert second == ("77_9 9 1 77_9.1 77",) * 2 + (("77_9", "77_9.1", 9, "n1", 2),)


def test_what_a_task_prints_is_its_own(node: WorkNode, worker: Worker) -> None:
    def say(n: int) -> None:
        if n == 0:
            print("python", n, end="")
            print("oops", file=sys.stderr)
        elif n == 1:
            os.system("echo child")
            os.write(2, b"raw\n")
        elif n == 3:
            print("x" * 10_000)

    batch = node.batch(say, (0,), (1,), (2,), (3,), (2,))
    worker.send(batch)
    extras = [node.ended(item.seq).extra for item in batch.items]
    outs = [(e.out.data, e.err.data) if e else None for e in extras]
    assert outs[:2] == [(b"python 0", b"oops\n"), (b"child\n", b"raw\n")]
    assert extras[3] is not None
    assert Path(extras[3].out.path).read_bytes() == b"x" * 10_000 + b"\n"
    assert all(e is None or (not e.out.size and not e.err.size) for e in (extras[2], extras[4]))


def test_what_a_task_prints_can_be_read_while_it_runs(node: WorkNode, worker: Worker, tmp_path: Path) -> None:
    def work(gate: str) -> None:
        print("line", flush=False)
        while not os.path.exists(gate):
            time.sleep(0.01)

    gate = tmp_path / "gate"
    seq = node.call(worker, work, str(gate))
    eventually(lambda: worker.live_output(seq, "stdout", 0) == (b"line\n", 5))
    assert worker.running()[0] == seq
    gate.touch()
    node.ended(seq)
    assert worker.live_output(seq, "stdout", 0) is None


@pytest.mark.parametrize("most", [256, 1 << 16], ids=["as_daemons_do", "all"])
def test_a_task_may_close_all_descriptors_that_it_does_not_know(node: WorkNode, worker: Worker, most: int) -> None:
    def work(number: int) -> int:
        print("before", number, flush=True)
        os.closerange(3, most)
        print("after")
        return number

    for seq in (node.call(worker, work, 1), node.call(worker, work, 2)) if most == 256 else (node.call(worker, work, 1),):
        end = node.ended(seq)
        assert end.extra is not None
        assert end.extra.reason is Reason.NONE
        assert end.extra.out.data == f"before {pickle.loads(end.data)}\nafter\n".encode()


# -- Python tasks: failures --------------------------------------------------------------------------------------------------


def test_a_missing_module_is_told_with_node_interpreter_and_cure(node: WorkNode, worker: Worker) -> None:
    def work() -> object:
        import no_such_module.below  # type: ignore[import-not-found]

        return no_such_module.below

    end = node.ended(node.call(worker, work))
    assert end.extra is not None
    assert end.extra.reason is Reason.EXCEPTION
    told = f"node n1 runs {sys.executable}, which has no 'no_such_module'"
    assert told in end.extra.summary
    assert "modules=['no_such_module']" in end.extra.summary
    error = error_of(end)
    assert isinstance(error, ModuleNotFoundError)
    assert told in error.__notes__[0]


def test_an_exception_comes_back_with_its_remote_traceback(node: WorkNode, worker: Worker) -> None:
    def fail() -> None:
        raise ValueError("no good")

    end = node.ended(node.call(worker, fail))
    assert end.extra is not None
    assert (end.extra.reason, end.extra.summary) == (Reason.EXCEPTION, "ValueError: no good")
    error = error_of(end)
    assert isinstance(error, ValueError)
    assert error.args == ("no good",)
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "in fail" in str(error.__cause__)
    assert "runner/python/worker.py" not in str(error.__cause__)


def _raise_unpicklable() -> None:
    class NoPickleError(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"{one} and {two}")
            self.lock = threading.Lock()

    raise NoPickleError(1, 2)


def _raise_unsayable() -> None:
    class NoPickleError(Exception):
        def __reduce__(self) -> str:
            raise RuntimeError("never")

    raise NoPickleError("1 and 2")


class NeedsTwoError(Exception):
    """Pickles, but cannot be built again from its args."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def _raise_unbuildable() -> None:
    error = NeedsTwoError(1, 2)
    error.add_note("a note")
    raise error


class NeedsKeywordsError(OSError):
    """Of a built-in class with fields of its own; its keywords are in no `args`."""

    def __init__(self, *, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")
        self.one = one


def _raise_keyword_only() -> None:
    error = NeedsKeywordsError(one=1, two=2)
    error.add_note("a note")
    raise error


def _raise_group() -> None:
    raise ExceptionGroup("several", [NeedsTwoError(1, 2), ValueError("three")])


def test_exceptions_of_a_group_keep_their_types(node: WorkNode, worker: Worker) -> None:
    error = error_of(node.ended(node.call(worker, _raise_group)))
    assert isinstance(error, ExceptionGroup)
    assert [(type(one).__name__, str(one)) for one in error.exceptions] == [("NeedsTwoError", "1 and 2"), ("ValueError", "three")]


def _raise_half_a_character() -> None:
    raise ValueError("no file \udcff")


def test_an_exception_with_half_a_character_keeps_type_and_worker(node: WorkNode, worker: Worker) -> None:
    error = error_of(node.ended(node.call(worker, _raise_half_a_character)))
    assert isinstance(error, ValueError)
    assert str(error) == "no file \udcff"
    assert node.result(node.call(worker, int, "7")) == 7


def test_an_exception_with_an_attribute_that_cannot_travel_arrives_without_it(node: WorkNode, worker: Worker) -> None:
    error = error_of(node.ended(node.call(worker, _raise_unpicklable)))
    assert type(error).__name__ == "NoPickleError"
    assert str(error) == "1 and 2"
    assert not hasattr(error, "lock")
    assert isinstance(error.__cause__, RemoteTraceback)


def test_an_exception_that_cannot_travel_keeps_its_name_message_and_traceback(node: WorkNode, worker: Worker) -> None:
    error = error_of(node.ended(node.call(worker, _raise_unsayable)))
    assert isinstance(error, RemoteError)
    assert "1 and 2" in str(error)
    assert error.type_name.endswith("NoPickleError")
    assert "raise" in error.traceback


@pytest.mark.parametrize(("function", "name"), [(_raise_unbuildable, "NeedsTwoError"), (_raise_keyword_only, "NeedsKeywordsError")])
def test_an_exception_whose_constructor_takes_other_arguments_keeps_its_type(
    node: WorkNode, worker: Worker, function: Callable[[], None], name: str
) -> None:
    error = error_of(node.ended(node.call(worker, function)))
    assert type(error).__name__ == name
    assert "1 and 2" in str(error)
    assert (getattr(error, "one", 1), error.__notes__) == (1, ["a note"])  # type: ignore[attr-defined]
    assert isinstance(error.__cause__, RemoteTraceback)
    assert name in str(error.__cause__)


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda: sys.exit(3), SystemExit),
        (lambda: (_ for _ in ()).throw(KeyboardInterrupt), KeyboardInterrupt),
        (lambda: (lambda f: f(f))(lambda f: f(f)), RecursionError),
        (lambda: bytearray(1 << 60), MemoryError),
    ],
)
def test_whatever_a_task_raises_its_worker_lives_on(node: WorkNode, worker: Worker, function: object, kind: type) -> None:
    assert isinstance(error_of(node.ended(node.call(worker, function))), kind)  # type: ignore[arg-type]
    assert node.result(node.call(worker, int, "7")) == 7


def test_a_result_that_cannot_be_pickled_is_an_exception_that_names_it(node: WorkNode, worker: Worker) -> None:
    import threading

    end = node.ended(node.call(worker, threading.Lock))
    error = error_of(end)
    assert isinstance(error, PickleFailed)
    assert "lock" in str(error)


def test_a_function_or_argument_that_cannot_be_unpickled_fails_to_start(node: WorkNode, worker: Worker) -> None:
    good = node.batch(len, ("abc",))
    broken_function = msgspec.structs.replace(node.batch(len, ("a",), ("b",)), function="other", blob=b"cno_such_module\nx\n.")
    broken_payload = msgspec.structs.replace(good, items=(TaskItem(node.runner.next_seq(), 0, payload=b"junk"),))
    worker.send(broken_function)
    worker.send(broken_payload)
    for item in broken_function.items:
        end = node.ended(item.seq)
        assert end.extra is not None
        assert (end.extra.reason, end.extra.summary.split(":")[0]) == (Reason.START_FAILED, "ModuleNotFoundError")
    end = node.ended(broken_payload.items[0].seq)
    assert end.extra is not None
    assert end.extra.reason is Reason.START_FAILED


@pytest.mark.parametrize(
    ("function", "reason", "code", "signum"),
    [
        (lambda: os._exit(3), Reason.EXIT_CODE, 3, 0),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), Reason.SIGNAL, None, signal.SIGSEGV),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), Reason.WORKER_LOST, None, signal.SIGKILL),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), Reason.SIGNAL, None, signal.SIGTERM),
    ],
)
def test_only_the_task_that_ends_its_worker_is_blamed(
    node: WorkNode, fresh: Worker, function: object, reason: Reason, code: int | None, signum: int
) -> None:
    """Finished ones before it are results, those after it come back unstarted."""

    def act(what: str) -> str:
        if what == "die":
            print("last words", flush=True)
            function()  # type: ignore[operator]
        return what

    batch = node.batch(act, *[("ok",)] * 20, ("die",), ("never",), ("never",))
    fresh.send(batch)
    gone = node.wait(WorkerEnded, lambda event: event.worker is fresh)
    seqs = [item.seq for item in batch.items]
    assert (seqs[20], reason, code, signum) == (gone.seq, gone.reason, gone.exit_code, gone.signal)
    assert tuple(seqs[21:]) == gone.unstarted
    assert gone.out.data == b"last words\n"
    assert (b"Segmentation fault" in gone.err.data) == (signum == signal.SIGSEGV)
    assert [node.result(seq) for seq in seqs[:20]] == ["ok"] * 20


def test_a_child_that_comes_back_from_a_fork_is_not_a_second_worker(node: WorkNode, worker: Worker) -> None:
    batch = node.batch(lambda: os.fork() and 1, (), ())
    worker.send(batch)
    assert [node.result(item.seq) for item in batch.items] == [1, 1]


def test_a_time_limit_ends_a_task_that_gives_way_and_its_worker_lives_on(node: WorkNode, worker: Worker) -> None:
    def work() -> None:
        try:
            time.sleep(60)
        finally:
            print("cleaned up")

    pid = worker.pid
    with FairTimer() as timer:
        end = node.ended(node.call(worker, work, shape=BatchShape(submission=42, limit_us=500_000)))
    assert end.extra is not None
    assert (end.extra.reason, end.extra.out.data) == (Reason.TIME_LIMIT, b"cleaned up\n")
    assert isinstance(error_of(end), TaskTerminated)
    assert 500_000 <= end.elapsed_us < 1_850_000 + timer.withheld_s * 1e6
    assert node.result(node.call(worker, os.getpid)) == pid


def test_a_time_limit_ends_a_task_that_ignores_sigterm_with_its_worker(node: WorkNode, fresh: Worker) -> None:
    def work() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(1)

    batch = node.batch(work, (), shape=BatchShape(submission=42, limit_us=500_000, grace_us=200_000))
    with FairTimer() as timer:
        fresh.send(batch)
        gone = node.wait(WorkerEnded, lambda event: event.worker is fresh)
    assert (batch.items[0].seq, Reason.TIME_LIMIT) == (gone.seq, gone.reason)
    assert 700_000 <= gone.elapsed_us < 3_350_000 + timer.withheld_s * 1e6


def test_a_cancel_ends_the_running_task_or_takes_back_one_that_has_not_begun(node: WorkNode, worker: Worker) -> None:
    batch = node.batch(time.sleep, (60,), (0,), (60,), (0,))
    first, second, third, fourth = (item.seq for item in batch.items)
    worker.send(batch)
    eventually(lambda: worker.running()[0] == first)
    worker.stop(third)
    assert node.wait(TasksReturned).seqs == (third, fourth)
    worker.stop(first)
    extra = node.ended(first).extra
    assert extra.reason is Reason.USER_CANCEL
    assert node.result(second) is None
    worker.stop(second)  # it has ended: nothing happens
    assert node.result(node.call(worker, int)) == 0


def test_a_cancel_right_after_sending_is_never_lost(node: WorkNode, worker: Worker) -> None:
    for _ in range(200):
        seq = node.call(worker, time.sleep, 60)
        worker.stop(seq)
        event = node.wait((TasksReturned, TasksEnded), lambda e: e.worker is worker)
        assert isinstance(event, TasksReturned) or (event.ends[0].seq, event.ends[0].extra.reason) == (seq, Reason.USER_CANCEL)


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_worker_forked_on_a_full_disk_works_and_the_starter_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with WorkNode(tmp_path / "run") as node:
        slot = node.slot()
        monkeypatch.setattr(leftovers, "_record", _full)
        assert node.result(node.call(node.worker(slot), lambda: 42)) == 42


def test_of_a_slot_that_cannot_be_opened_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = set(psutil.Process().children())  # of this process, which runs other tests, too
    with WorkNode(tmp_path / "run") as node:
        before = {entry.name for entry in node.directory.iterdir()}
        groups = node.runner._cgroups.directories if node.runner._cgroups is not None else []
        with monkeypatch.context() as full:
            full.setattr(leftovers, "_record", _full)
            with pytest.raises(OSError, match="No space left"):
                node.runner.open_slot(0)
        assert {entry.name for entry in node.directory.iterdir()} == before
        assert not [found for group in groups for found in Path(group).iterdir() if found.is_dir()]
        eventually(lambda: not set(psutil.Process().children()) - others, "no spawner")
        assert node.end_of(node.shell(node.slot(), "echo hi")).out.data == b"hi\n"
