"""Slots run commands and Python tasks: exits, outputs, environment, limits, results, exceptions, taking work back."""

from __future__ import annotations

import hashlib
import os
import pickle
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import msgspec
import pytest

from rmgr.adapters.process import Slot, Worker, WorkerSpec
from rmgr.adapters.workevents import (
    CommandsStarted,
    SlotUp,
    TasksEnded,
    TasksReturned,
    WorkerBlocked,
    WorkerEnded,
    WorkerFailed,
    WorkerReady,
    WorkerUnblocking,
)
from rmgr.errors import PickleFailed, RemoteError, RemoteTraceback, StateConflict, VersionMismatch
from rmgr.model.frames import CommandBatch, CommandItem, KeyedCall, KeyedInput, Shape, TaskBatch, TaskItem
from rmgr.model.states import Reason
from rmgr.runner.calls import TaskTerminated, WrongCount
from tests.harness.work_node import WorkNode, error_of, is_alive, pid_in, until

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="nodes run Linux")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkNode]:
    with WorkNode(tmp_path_factory.mktemp("node") / "run") as node:
        yield node


@pytest.fixture(scope="module")
def slot(node: WorkNode) -> Slot:
    return node.slot(0)


@pytest.fixture(scope="module")
def worker(node: WorkNode, slot: Slot) -> Worker:
    return node.worker(slot)


@pytest.fixture
def fresh(node: WorkNode, slot: Slot) -> Iterator[Worker]:
    """A worker that the test may break."""
    worker = node.worker(slot)
    yield worker
    worker.stop(grace_us=0)


# -- commands -----------------------------------------------------------------------------------------------------------


def test_a_command_ends_with_its_code_its_output_and_its_costs(node: WorkNode, slot: Slot) -> None:
    before = time.time()
    end = node.end_of(node.shell(slot, "echo out; echo err >&2; exit 3"))
    assert (end.reason, end.exit_code, end.signal) == (Reason.EXIT_CODE, 3, 0)
    assert (end.out.data, end.err.data) == (b"out\n", b"err\n")
    assert before - 1 < end.started_us / 1e6 < time.time() + 1
    assert end.elapsed_us > 0
    assert end.max_rss_kib > 0


def test_a_command_that_succeeds_has_no_reason(node: WorkNode, slot: Slot) -> None:
    end = node.end_of(node.run(slot, "true"))
    assert (end.reason, end.exit_code) == (Reason.NONE, 0)


def test_a_command_that_dies_of_a_signal_says_which(node: WorkNode, slot: Slot) -> None:
    end = node.end_of(node.shell(slot, "kill -SEGV $$"))
    assert (end.reason, end.exit_code, end.signal) == (Reason.SIGNAL, None, signal.SIGSEGV)


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (("no-such-program-at-all",), 127, "no program no-such-program-at-all on node n1"),
        (("/no/such/file",), 127, "no such program: /no/such/file"),
        (("/etc/passwd",), 126, "not executable (chmod +x /etc/passwd)"),
        (("/tmp",), 126, "not a file that can be run"),
        ((), 127, "no command"),
        (("true", "a\0b"), 126, "cannot be used"),
        (("true", "x" * 3_000_000), 126, "too long"),
    ],
)
def test_a_command_that_cannot_start_says_why(node: WorkNode, slot: Slot, argv: tuple[str, ...], code: int, says: str) -> None:
    end = node.end_of(node.run(slot, *argv))
    assert (Reason.START_FAILED, code) == (end.reason, end.exit_code)
    assert says in end.detail


def test_a_script_whose_interpreter_is_missing_says_so(node: WorkNode, slot: Slot, tmp_path: Path) -> None:
    script = tmp_path / "s"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    end = node.end_of(node.run(slot, str(script)))
    assert (end.reason, end.exit_code) == (Reason.START_FAILED, 127)
    assert "interpreter" in end.detail


def test_a_script_text_runs_by_its_first_line_or_by_sh(node: WorkNode, slot: Slot) -> None:
    by_sh = node.end_of(node.run(slot, "a b", "c", script='printf "%s|" "$@"'))
    by_python = node.end_of(node.run(slot, "x", script=f"#!{sys.executable} -u\nimport sys\nprint(sys.argv[1:])\n"))
    assert (by_sh.out.data, by_python.out.data) == (b"a b|c|", b"['x']\n")


def test_work_finds_its_environment_and_a_private_directory_that_goes_away(node: WorkNode, slot: Slot) -> None:
    shape = Shape(submission=42, cores=4, environ={"RMGR_HOSTFILE": "/h", "MINE": "ä"})
    seq = node.run(slot, "sh", "-c", "env; pwd; touch a b; mkdir c", shape=shape, index=6, label=13, attempt=2)
    lines = node.end_of(seq).out.data.decode().split("\n")
    wanted = {
        "RMGR_JOB_ID=42", "RMGR_TASK_ID=42_13", "RMGR_ARRAY_INDEX=13", "RMGR_ATTEMPT=2", "RMGR_TOKEN=42_13.2", "RMGR_NODELIST=n1",
        "RMGR_NPROCS=1", "RMGR_RANK=0", "RMGR_THREADS=4", "OMP_NUM_THREADS=4", "RMGR_HOSTFILE=/h", "MINE=ä",
    }  # fmt: skip
    assert wanted <= set(lines)
    assert not [line for line in lines if line.startswith(("PYTHONPATH=", "RMGR_SPAWNER"))]
    directory = Path(lines[-2])
    assert directory.parent == slot.directory
    until(lambda: not directory.exists())


def test_a_given_directory_is_used_and_kept(node: WorkNode, slot: Slot, tmp_path: Path) -> None:
    end = node.end_of(node.run(slot, "sh", "-c", "pwd; touch made", directory=str(tmp_path)))
    assert f"{tmp_path}\n".encode() == end.out.data
    assert str(tmp_path) == end.directory
    assert (tmp_path / "made").exists()


def test_a_missing_directory_is_an_error_that_names_it(node: WorkNode, slot: Slot) -> None:
    end = node.end_of(node.run(slot, "true", cwd="/no/such/place"))
    assert Reason.START_FAILED is end.reason
    assert "/no/such/place" in end.detail


def test_standard_input_is_empty_or_what_was_given(node: WorkNode, slot: Slot, tmp_path: Path) -> None:
    given = tmp_path / "in"
    given.write_bytes(b"from file")
    ends = [
        node.end_of(node.run(slot, "cat")),
        node.end_of(node.run(slot, "cat", stdin=b"from bytes")),
        node.end_of(node.run(slot, "cat", stdin_path=str(given))),
    ]
    assert [end.out.data for end in ends] == [b"", b"from bytes", b"from file"]


def test_long_output_becomes_a_file_and_the_next_command_starts_afresh(node: WorkNode, slot: Slot) -> None:
    long = node.end_of(node.shell(slot, "head -c 5000 /dev/zero; echo e >&2"))
    short = node.end_of(node.shell(slot, "echo short"))
    assert (long.out.size, long.out.data, long.err.data) == (5000, b"", b"e\n")
    assert Path(long.out.path).stat().st_size == 5000
    assert (short.out.data, short.err.data) == (b"short\n", b"")
    os.unlink(long.out.path)


def test_output_files_of_the_user_are_written_and_shared_when_they_are_one(node: WorkNode, slot: Slot, tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("old\n")
    node.end_of(node.shell(slot, "echo a; echo b >&2", out=str(file), err=str(file), append=True))
    assert file.read_text() == "old\na\nb\n"
    end = node.end_of(node.shell(slot, "echo new", out=str(file)))
    assert file.read_text() == "new\n"
    assert (str(file), 4) == (end.out.path, end.out.size)
    refused = node.end_of(node.shell(slot, "true", out="/no/such/dir/x"))
    assert "/no/such/dir/x" in refused.detail


def test_output_can_be_read_while_the_command_runs(node: WorkNode, slot: Slot, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    seq = node.shell(slot, f"echo one; while [ ! -e {gate} ]; do sleep 0.01; done; echo two")
    node.wait(CommandsStarted, lambda event: event.started[0].seq == seq)
    assert until(lambda: slot.live_output(seq, "stdout", 0)) == b"one\n"
    assert slot.live_output(seq, "stdout", 4) == b""
    gate.touch()
    assert node.end_of(seq).out.data == b"one\ntwo\n"
    assert slot.live_output(seq, "stdout", 0) is None


def test_a_batch_of_commands_runs_in_order_and_is_told_in_few_messages(node: WorkNode, slot: Slot) -> None:
    seqs = [node.runner.next_seq() for _ in range(40)]
    slot.run(CommandBatch(shape=Shape(submission=1), argv=("true",), items=tuple(CommandItem(seq, n) for n, seq in enumerate(seqs))))
    before = node.messages
    ends = [node.end_of(seq) for seq in seqs]
    assert [end.started_us for end in ends] == sorted(end.started_us for end in ends)
    assert node.messages - before < len(seqs)


def test_queued_commands_are_taken_back_and_cancelled_and_never_run(node: WorkNode, slot: Slot, tmp_path: Path) -> None:
    first = node.shell(slot, "sleep 60")
    node.wait(CommandsStarted, lambda event: event.started[0].seq == first)
    second, third, fourth = (node.shell(slot, f"touch {tmp_path}/{n}") for n in range(3))
    slot.recall(keep=1)
    assert node.wait(TasksReturned).seqs == (third, fourth)
    slot.stop(second)
    assert node.end_of(second).reason is Reason.USER_CANCEL
    slot.stop(first, grace_us=10_000_000)
    end = node.end_of(first)
    assert (end.reason, end.signal) == (Reason.USER_CANCEL, signal.SIGTERM)
    assert list(tmp_path.iterdir()) == []


def test_the_time_limit_is_sigterm_then_grace_then_sigkill(node: WorkNode, slot: Slot) -> None:
    shape = Shape(submission=1, limit_us=200_000, grace_us=300_000)
    polite = node.shell(slot, "trap 'echo bye; exit 5' TERM; while :; do sleep 0.02; done", shape=shape)
    stubborn = node.shell(slot, "trap '' TERM; while :; do sleep 0.02; done", shape=shape)
    end = node.end_of(polite)
    assert (end.reason, end.exit_code, end.out.data) == (Reason.TIME_LIMIT, 5, b"bye\n")
    assert 200_000 <= end.elapsed_us < 500_000 + 300_000
    end = node.end_of(stubborn)
    assert (end.reason, end.signal) == (Reason.TIME_LIMIT, signal.SIGKILL)
    assert 500_000 <= end.elapsed_us < 2_000_000


def test_a_suspended_command_stands_still_and_its_limit_too(node: WorkNode, slot: Slot) -> None:
    seq = node.shell(slot, "i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done", shape=Shape(submission=1, limit_us=1_000_000))
    until(lambda: slot.live_output(seq, "stdout", 0))
    slot.suspend(seq)

    def stands_still() -> bool:
        before = slot.live_output(seq, "stdout", 0)
        time.sleep(0.1)
        return before == slot.live_output(seq, "stdout", 0)

    until(stands_still)
    time.sleep(1.0)
    assert slot.outstanding == (seq,)
    slot.resume(seq)
    assert node.end_of(seq).reason is Reason.TIME_LIMIT


def test_a_signal_reaches_what_the_command_started(node: WorkNode, slot: Slot) -> None:
    seq = node.shell(slot, "sh -c \"trap 'echo got; exit 0' USR1; echo up; while :; do sleep 0.01; done\" & trap '' USR1; wait")
    until(lambda: slot.live_output(seq, "stdout", 0) == b"up\n")
    slot.signal(seq, signal.SIGUSR1)
    assert node.end_of(seq).out.data == b"up\ngot\n"


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
    worker.send(TaskBatch(shape=Shape(), function="len", blob=blob, items=(TaskItem(seq, 0, path=str(file)),)))
    assert node.result(seq) == 2_000_000


def test_a_large_function_comes_from_a_file(node: WorkNode, worker: Worker) -> None:
    table = os.urandom(100_000)
    blob = cloudpickle.dumps(lambda i: table[i])
    name = hashlib.sha256(blob).hexdigest()
    seq = node.runner.next_seq()
    worker.send(
        TaskBatch(
            shape=Shape(), function=name, path=node.runner.put_file(name, blob), items=(TaskItem(seq, 0, payload=pickle.dumps(((7,), {}))),)
        )
    )
    assert node.result(seq) == table[7]


def _keyed(node: WorkNode, worker: Worker, function: object, outputs: int, *values: object) -> int:
    inputs = tuple(KeyedInput(v) if isinstance(v, bytes) else KeyedInput(pickle.dumps(v), pickled=True) for v in values)
    payload = msgspec.msgpack.encode(KeyedCall(inputs=inputs, outputs=outputs))
    seq = node.runner.next_seq()
    blob = cloudpickle.dumps(function)
    items = (TaskItem(seq, 0, payload=payload),)
    worker.send(TaskBatch(shape=Shape(), function=hashlib.sha256(blob).hexdigest(), blob=blob, keyed=True, items=items))
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

    batch = node.batch(look, (0,), (1,), shape=Shape(submission=77, cores=2))
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
    assert until(lambda: worker.live_output(seq, "stdout", 0)) == b"line\n"
    assert worker.running()[0] == seq
    gate.touch()
    node.ended(seq)
    assert worker.live_output(seq, "stdout", 0) is None


# -- Python tasks: failures --------------------------------------------------------------------------------------------------


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
    assert "runner/worker.py" not in str(error.__cause__)


def _raise_unpicklable() -> None:
    class NoPickleError(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"{one} and {two}")

        def __reduce__(self) -> str:
            raise TypeError("never")

    raise NoPickleError(1, 2)


class NeedsTwoError(Exception):
    """Pickles, but cannot be built again from its args."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def _raise_unbuildable() -> None:
    raise NeedsTwoError(1, 2)


@pytest.mark.parametrize("function", [_raise_unpicklable, _raise_unbuildable])
def test_an_exception_that_cannot_travel_keeps_its_name_message_and_traceback(node: WorkNode, worker: Worker, function: object) -> None:
    error = error_of(node.ended(node.call(worker, function)))  # type: ignore[arg-type]
    assert isinstance(error, RemoteError)
    assert "1 and 2" in str(error)
    assert error.type_name.endswith(("NoPickleError", "NeedsTwoError"))
    assert "raise" in error.traceback


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
    end = node.ended(node.call(worker, work, shape=Shape(submission=42, limit_us=150_000)))
    assert end.extra is not None
    assert (end.extra.reason, end.extra.out.data) == (Reason.TIME_LIMIT, b"cleaned up\n")
    assert isinstance(error_of(end), TaskTerminated)
    assert 150_000 <= end.elapsed_us < 1_500_000
    assert node.result(node.call(worker, os.getpid)) == pid


def test_a_time_limit_ends_a_task_that_ignores_sigterm_with_its_worker(node: WorkNode, fresh: Worker) -> None:
    def work() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(1)

    batch = node.batch(work, (), shape=Shape(submission=42, limit_us=150_000, grace_us=200_000))
    fresh.send(batch)
    gone = node.wait(WorkerEnded, lambda event: event.worker is fresh)
    assert (batch.items[0].seq, Reason.TIME_LIMIT) == (gone.seq, gone.reason)
    assert 350_000 <= gone.elapsed_us < 3_000_000


def test_a_cancel_ends_the_running_task_only(node: WorkNode, worker: Worker) -> None:
    batch = node.batch(time.sleep, (60,), (0,))
    first, second = (item.seq for item in batch.items)
    worker.send(batch)
    until(lambda: worker.running()[0] == first)
    worker.stop(second)  # it does not run: nothing happens to it
    worker.stop(first)
    extra = node.ended(first).extra
    assert extra is not None
    assert extra.reason is Reason.USER_CANCEL
    assert node.result(second) is None


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


def test_a_client_of_another_python_is_refused_by_name(node: WorkNode, slot: Slot) -> None:
    worker = slot.start_worker(WorkerSpec(python_version="3.7"))
    failed = node.wait(WorkerFailed, lambda event: event.worker is worker)
    error = pickle.loads(failed.error)
    assert isinstance(error, VersionMismatch)
    assert "3.7" in str(error)
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in str(error)
    node.wait(WorkerEnded, lambda event: event.worker is worker)


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
    worker.stop(grace_us=0)


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
    until(lambda: worker.running()[0] == seqs[0])
    worker.recall(keep=2)
    assert node.wait(TasksReturned).seqs == seqs[3:]
    more = node.batch(work, (8, str(gate), str(ledger)))
    worker.send(more)
    gate.touch()
    node.ended(more.items[0].seq)
    assert [node.result(seq) for seq in seqs[:3]] == [None] * 3
    assert ledger.read_text().split() == ["0", "1", "2", "8"]
    assert worker.load == 0


def test_work_recalled_before_the_worker_exists_comes_back_whole(node: WorkNode, slot: Slot) -> None:
    worker = slot.start_worker(WorkerSpec())
    batch = node.batch(int, (), ())
    worker.send(batch)
    worker.recall()
    seqs = {item.seq for item in batch.items}
    event = node.wait((TasksReturned, TasksEnded), lambda e: e.worker is worker)
    if isinstance(event, TasksReturned):
        assert set(event.seqs) == seqs
    node.wait(WorkerReady, lambda event: event.worker is worker)
    assert node.result(node.call(worker, int, 5)) == 5
    worker.stop(grace_us=0)


def test_a_quick_result_does_not_wait_for_the_slow_task_behind_it(node: WorkNode, worker: Worker) -> None:
    batch = node.batch(time.sleep, (0,), (60,))
    worker.send(batch)
    began = time.monotonic()
    assert node.result(batch.items[0].seq) is None
    assert time.monotonic() - began < 5
    worker.stop(batch.items[1].seq)
    node.ended(batch.items[1].seq)


def test_a_task_that_waits_gives_its_slot_back_and_gets_it_again(node: WorkNode, worker: Worker, tmp_path: Path) -> None:
    def work(gate: str) -> str:
        from rmgr.runner.blocking import blocking

        with blocking():
            while not os.path.exists(gate):
                time.sleep(0.01)
        return "went on"

    gate = tmp_path / "gate"
    batch = node.batch(work, (str(gate),), (str(gate),), (str(gate),))
    first, *rest = (item.seq for item in batch.items)
    worker.send(batch)
    assert node.wait(WorkerBlocked).seq == first
    assert node.wait(TasksReturned).seqs == tuple(rest)
    gate.touch()
    asks = node.wait(WorkerUnblocking)
    assert asks.seq == first
    assert worker.load == 1
    worker.grant(first)
    assert node.result(first) == "went on"


def test_several_threads_of_a_task_may_wait(node: WorkNode, worker: Worker) -> None:
    def work() -> int:
        import threading

        from rmgr.runner.blocking import blocking

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
    ledger = tmp_path / "ledger"

    def work(path: str) -> None:
        for _ in range(50):
            with open(path, "a") as file:
                file.write("x")
            time.sleep(0.01)

    seq = node.call(worker, work, str(ledger))
    until(ledger.exists)
    worker.suspend()

    def stands_still() -> bool:
        size = ledger.stat().st_size
        time.sleep(0.1)
        return ledger.stat().st_size == size

    until(stands_still)
    assert ledger.stat().st_size < 50
    worker.resume()
    node.result(seq)
    assert ledger.stat().st_size == 50


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
    until(lambda: not is_alive(pid))


def test_a_slot_opens_again_after_it_was_closed(node: WorkNode) -> None:
    slot = node.slot(5)
    slot.close()
    slot.wait(5)
    again = node.slot(5)
    assert node.end_of(node.run(again, "true")).exit_code == 0
    assert SlotUp
