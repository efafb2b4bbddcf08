"""Commands in a slot: exits, outputs, environment, work directories, limits, and taking commands back."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import cloudpickle
import pytest

from rmgr.adapters.host.process import Slot
from rmgr.adapters.host.workevents import TasksReturned
from rmgr.model.frames import NO_OUTPUT, BatchShape, CommandBatch, CommandItem
from rmgr.model.states import Reason
from tests.harness.fair_time import FairTimer
from tests.harness.waiting import eventually, unchanged
from tests.harness.work_node import WorkNode

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="nodes run Linux")


# -- commands -----------------------------------------------------------------------------------------------------------


def test_a_command_ends_with_its_code_its_output_and_its_costs(node: WorkNode, slot: Slot) -> None:
    before = time.time()
    end = node.end_of(node.shell(slot, "echo out; echo err >&2; exit 3"))
    assert (end.reason, end.exit_code, end.signal) == (Reason.EXIT_CODE, 3, 0)
    assert (end.out.data, end.err.data) == (b"out\n", b"err\n")
    assert before - 1 < end.started_us / 1e6 < time.time() + 1
    assert end.elapsed_us > 0
    assert end.max_rss_kib > 0


def test_a_command_that_fails_while_a_cleaner_is_at_work_has_not_failed(node: WorkNode, slot: Slot) -> None:
    """`rm -rf` has taken the slot's output files and what is in the work directory, and not yet that itself."""
    end = node.end_of(node.shell(slot, "echo made > file; rm file ../stderr ../stdout; cat file"))
    assert (end.reason, end.detail) == (Reason.NODE_LOST, "its files on node n1 were removed while it ran")
    end = node.end_of(node.shell(slot, "echo out; exit 3"))
    assert (end.reason, end.out.data) == (Reason.EXIT_CODE, b"out\n"), "they are there again"


def test_output_that_is_lost_is_not_the_next_commands(node: WorkNode, slot: Slot) -> None:
    end = node.end_of(node.shell(slot, "rm ../stdout; head -c 1000000 /dev/zero"))
    assert end.out.data.startswith(b"[rmgr: the output is lost")
    assert node.end_of(node.shell(slot, "echo out")).out.data == b"out\n"


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


def test_a_long_path_is_not_told_whole(node: WorkNode, slot: Slot) -> None:
    path = os.pathsep.join(f"/opt/modules/{number}/bin" for number in range(200))
    end = node.end_of(node.run(slot, "no-such-program", shape=BatchShape(submission=42, environ={"PATH": path})))
    assert end.detail.startswith("no program no-such-program on node n1 (PATH=/opt/modules/0/bin:")
    assert end.detail.endswith("... (200 directories))")
    assert len(end.detail) < 300


def test_a_script_whose_interpreter_is_missing_says_so(node: WorkNode, slot: Slot, tmp_path: Path) -> None:
    script = tmp_path / "s"
    script.touch(0o755)
    for text, says in [
        ("#!/no/such/interpreter -w\n", "names an interpreter that node n1 lacks: /no/such/interpreter -w"),
        ("#!/bin/sh\r\necho\r\n", f"its lines end as those of DOS do (sed -i 's/\\r$//' {script})"),
    ]:
        script.write_text(text, newline="")
        end = node.end_of(node.run(slot, str(script)))
        assert (end.reason, end.exit_code) == (Reason.START_FAILED, 127)
        assert says in end.detail
    end = node.end_of(node.run(slot, script=b"#!/no/such/interpreter\n"))
    assert (end.reason, end.exit_code) == (Reason.START_FAILED, 127)
    assert end.detail == "no such program: /no/such/interpreter on node n1, which the first line of its script names"


@pytest.mark.parametrize("isolate", [False, True])
def test_a_program_for_another_kind_of_machine_is_not_read_by_the_shell(node: WorkNode, slot: Slot, tmp_path: Path, isolate: bool) -> None:
    program, text = tmp_path / "program", tmp_path / "text"
    for path, data in [(program, b"\x7fELF\2\1\1" + bytes(9) + b"\2\0\xb7\0" + bytes(200)), (text, b"echo as shells do\n")]:
        path.write_bytes(data)
        path.chmod(0o755)
    end = node.end_of(node.run(slot, str(program), isolate=isolate))
    assert (end.reason, end.exit_code, end.err) == (Reason.START_FAILED, 126, NO_OUTPUT)
    assert f"({os.uname().machine}): it is damaged, or for another kind of machine (file {program})" in end.detail
    assert node.end_of(node.run(slot, str(text), isolate=isolate)).out.data == b"as shells do\n"


def test_a_script_text_runs_by_its_first_line_or_by_sh(node: WorkNode, slot: Slot) -> None:
    by_sh = node.end_of(node.run(slot, "a b", "c", script=b'printf "%s|" "$@"'))
    by_python = node.end_of(node.run(slot, "x", script=f"#!{sys.executable} -u\nimport sys\nprint(sys.argv[1:])\n".encode()))
    assert (by_sh.out.data, by_python.out.data) == (b"a b|c|", b"['x']\n")


def test_work_finds_its_environment_and_a_private_directory_that_goes_away(node: WorkNode, slot: Slot) -> None:
    shape = BatchShape(submission=42, cores=4, environ={"RMGR_HOSTFILE": "/h", "MINE": "ä"})
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
    eventually(lambda: not directory.exists())


@pytest.mark.parametrize("touch", ["touch a", "touch a; rm a", "chmod 700 .", "mkdir b"])
def test_a_work_directory_is_passed_on_only_as_it_was_made(node: WorkNode, slot: Slot, touch: str) -> None:
    """pwd | pwd (the same, untouched) | changes it | finds nothing of that, and ordinary rights"""
    look = "pwd; ls -A; stat -c %a ."
    scripts = ("sleep 0.02; " + look, "sleep 0.02; " + look + "; " + touch, look)
    seqs = [node.runner.next_seq() for _ in scripts]
    items = tuple(CommandItem(seq=seq, index=0, argv=("sh", "-c", text)) for seq, text in zip(seqs, scripts, strict=True))
    slot.run(CommandBatch(shape=BatchShape(submission=1), argv=("sh",), items=items))
    first, second, third = (node.end_of(seq).out.data.decode().split() for seq in seqs)
    assert first == second  # the same directory, empty
    assert [second[1]] == third[1:]  # empty again, with the same rights
    eventually(lambda: not Path(first[0]).exists() and not Path(third[0]).exists())


def test_a_given_directory_is_used_and_kept(node: WorkNode, slot: Slot, tmp_path: Path) -> None:
    end = node.end_of(node.run(slot, "sh", "-c", "pwd; touch made", directory=str(tmp_path)))
    assert f"{tmp_path}\n".encode() == end.out.data
    assert str(tmp_path) == end.directory
    assert (tmp_path / "made").exists()


def test_pwd_names_the_directory_of_a_command_with_the_links_it_was_asked_for_by(node: WorkNode, slot: Slot, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    look = "import os; print(os.environ.get('PWD'), os.environ.get('OLDPWD'), os.getcwd())"
    linked, own = (node.end_of(node.run(slot, sys.executable, "-c", look, cwd=cwd)) for cwd in (str(tmp_path / "link"), ""))
    assert linked.out.data.decode().split() == [str(tmp_path / "link"), "None", str(tmp_path / "real")]
    named, old, really = own.out.data.decode().split()
    assert (old, os.path.realpath(named)) == ("None", really)


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
    node.end_of(node.shell(slot, "echo a; echo b >&2", out=str(file), err=str(file), append=(True, True)))
    assert file.read_text() == "old\na\nb\n"
    end = node.end_of(node.shell(slot, "echo new", out=str(file)))
    assert file.read_text() == "new\n"
    assert (str(file), 4) == (end.out.path, end.out.size)
    refused = node.end_of(node.shell(slot, "true", out=str(tmp_path)))
    assert refused.reason is Reason.START_FAILED
    assert str(tmp_path) in refused.detail


def test_a_file_that_its_user_has_named_stays_whole_above_the_cap(node: WorkNode, slot: Slot, tmp_path: Path) -> None:
    """What is told of it is a copy without its middle, which is not the user's."""
    file, gate = tmp_path / "log", tmp_path / "gate"
    text = f"head -c 1000000 /dev/zero; while [ ! -e {gate} ]; do sleep 0.01; done; echo end"
    seq = node.shell(slot, text, out=str(file), shape=BatchShape(submission=1, output_cap=64 * 1024))
    eventually(lambda: file.exists() and file.stat().st_size == 1_000_000)
    gate.touch()
    end = node.end_of(seq)
    assert file.read_bytes() == bytes(1_000_000) + b"end\n"
    assert (end.out.size, end.out.dropped > 800_000, Path(end.out.path).parent) == (1_000_004, True, slot.directory)
    assert Path(end.out.path).read_bytes().endswith(b"end\n")


def test_of_a_file_that_is_appended_to_only_its_own_output_is_told(node: WorkNode, slot: Slot, tmp_path: Path) -> None:
    file, gate = tmp_path / "log", tmp_path / "gate"
    file.write_text("of an earlier one\n")
    text = f"echo one; while [ ! -e {gate} ]; do sleep 0.01; done; echo two"
    seq = node.shell(slot, text, out=str(file), append=(True, True))
    eventually(lambda: slot.live_output(seq, "stdout", 0) == (b"one\n", 4))
    assert slot.live_output(seq, "stdout", 4) == (b"", 4)
    gate.touch()
    assert node.end_of(seq).out.data == b"one\ntwo\n"
    assert file.read_text() == "of an earlier one\none\ntwo\n"
    mixed = node.end_of(node.shell(slot, "echo three; echo e >&2", out=str(file), append=(True, True), is_mixed=True))
    assert (mixed.out, mixed.err.data) == (NO_OUTPUT, b"e\n")
    own = tmp_path / "own"
    own.write_text("old")
    half = node.end_of(node.shell(slot, "echo o; echo e >&2", out=str(own), err=str(file), append=(False, True), is_mixed=True))
    assert (half.out.path, half.out.size, own.read_text(), half.err) == (str(own), 2, "o\n", NO_OUTPUT)
    assert file.read_text().endswith("two\nthree\ne\n")


@pytest.mark.parametrize("count", [1, 5000])
@pytest.mark.parametrize("then", ["mv {0} {0}.done", "rm {0}", "mv {0} {0}.done; mkfifo {0}", "mv {0} {0}.done; echo other > {0}"])
def test_output_is_told_although_the_command_has_moved_its_file(node: WorkNode, slot: Slot, tmp_path: Path, count: int, then: str) -> None:
    file = tmp_path / "log"
    end = node.end_of(node.shell(slot, f"head -c {count} /dev/zero; {then.format(file)}", out=str(file), append=(True, True)))
    assert (end.reason, end.out.size) == (Reason.NONE, count)
    assert (end.out.data or Path(end.out.path).read_bytes()) == bytes(count)


def test_output_for_dev_null_is_kept_nowhere(node: WorkNode, slot: Slot) -> None:
    end = node.end_of(node.shell(slot, "echo a; echo b >&2", out="/dev/null"))
    assert (end.reason, end.out, end.err.data) == (Reason.NONE, NO_OUTPUT, b"b\n")
    both = node.end_of(node.shell(slot, "echo a; echo b >&2", out="/dev/null", err="/dev/null"))
    assert (both.reason, both.out, both.err) == (Reason.NONE, NO_OUTPUT, NO_OUTPUT)


@pytest.mark.parametrize("name", ["/dev/full", "/dev/stdout", "/dev/stderr", "/dev/fd/1", "/proc/self/fd/1", "pipe"])
def test_what_is_no_plain_file_takes_no_output(node: WorkNode, slot: Slot, tmp_path: Path, name: str) -> None:
    """It is the command's own failure: nothing about its node is wrong, and what the Starter has open stays its own."""
    os.mkfifo(tmp_path / "pipe")
    path = str(tmp_path / name)  # that of /dev and /proc is whole
    end = node.end_of(node.shell(slot, "echo a", out=path))
    assert (end.reason, end.exit_code) == (Reason.START_FAILED, 126)
    assert f"the output file {path} cannot be written" in end.detail


def test_streams_for_files_whose_directory_is_not_here_are_private(node: WorkNode, slot: Slot) -> None:
    end = node.end_of(node.shell(slot, "echo a; echo b >&2", out="/no/such/dir/x", err="/no/such/dir/x"))
    assert (end.reason, end.out.data, end.err.data) == (Reason.NONE, b"a\n", b"b\n")
    end = node.end_of(node.shell(slot, "touch ran", out="/no/such/dir/x", named_only=True))  # nor at its submitter's
    assert (end.reason, end.exit_code) == (Reason.START_FAILED, 126)
    assert end.detail == "the output file /no/such/dir/x cannot be written on n1: there is no directory /no/such/dir"


def test_output_can_be_read_while_the_command_runs(node: WorkNode, slot: Slot, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    seq = node.shell(slot, f"echo one; while [ ! -e {gate} ]; do sleep 0.01; done; echo two")
    eventually(lambda: slot.live_output(seq, "stdout", 0) == (b"one\n", 4))
    assert slot.live_output(seq, "stdout", 4) == (b"", 4)
    gate.touch()
    assert node.end_of(seq).out.data == b"one\ntwo\n"
    assert slot.live_output(seq, "stdout", 0) is None


def test_a_batch_of_commands_runs_in_order_and_is_told_in_few_messages(node: WorkNode, slot: Slot) -> None:
    seqs = [node.runner.next_seq() for _ in range(40)]
    slot.run(CommandBatch(shape=BatchShape(submission=1), argv=("true",), items=tuple(CommandItem(seq, n) for n, seq in enumerate(seqs))))
    before = node.messages
    ends = [node.end_of(seq) for seq in seqs]
    assert [end.started_us for end in ends] == sorted(end.started_us for end in ends)
    assert node.messages - before < len(seqs)


def test_queued_commands_are_taken_back_and_cancelled_and_never_run(node: WorkNode, slot: Slot, tmp_path: Path) -> None:
    first = node.shell(slot, f"touch {tmp_path}/first; sleep 60")
    eventually((tmp_path / "first").exists, "the first of them runs")
    second, third, fourth = (node.shell(slot, f"touch {tmp_path}/{n}") for n in range(3))
    slot.recall(keep=1)
    assert node.wait(TasksReturned).seqs == (third, fourth)
    slot.stop(second)
    assert node.end_of(second).reason is Reason.USER_CANCEL
    slot.stop(first, grace_us=10_000_000)
    end = node.end_of(first)
    assert (end.reason, end.signal) == (Reason.USER_CANCEL, signal.SIGTERM)
    assert [path.name for path in tmp_path.iterdir()] == ["first"]


def test_the_time_limit_is_sigterm_then_grace_then_sigkill(node: WorkNode, slot: Slot) -> None:
    shape = BatchShape(submission=1, limit_us=500_000, grace_us=300_000)
    polite = node.shell(slot, "trap 'echo bye; exit 5' TERM; while :; do sleep 0.02; done", shape=shape)
    stubborn = node.shell(slot, "trap '' TERM; while :; do sleep 0.02; done", shape=shape)
    with FairTimer() as timer:
        end = node.end_of(polite)
        assert (end.reason, end.exit_code, end.out.data) == (Reason.TIME_LIMIT, 5, b"bye\n")
        assert 500_000 <= end.elapsed_us < 800_000 + 300_000 + timer.withheld_s * 1e6
        end = node.end_of(stubborn)
        assert (end.reason, end.signal) == (Reason.TIME_LIMIT, signal.SIGKILL)
        assert 800_000 <= end.elapsed_us < 2_300_000 + timer.withheld_s * 1e6


def test_a_suspended_command_stands_still_and_its_limit_too(node: WorkNode, slot: Slot) -> None:
    seq = node.shell(slot, "i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done", shape=BatchShape(submission=1, limit_us=2_000_000))
    eventually(lambda: (slot.live_output(seq, "stdout", 0) or (b"", 0))[0])
    slot.suspend(seq)

    eventually(lambda: unchanged(lambda: slot.live_output(seq, "stdout", 0)))
    with pytest.raises(AssertionError):
        node.end_of(seq, 2.0)  # as long as it may run
    slot.resume(seq)
    assert node.end_of(seq).reason is Reason.TIME_LIMIT


def test_a_signal_reaches_what_the_command_started(node: WorkNode, slot: Slot) -> None:
    seq = node.shell(slot, "sh -c \"trap 'echo got; exit 0' USR1; echo up; while :; do sleep 0.01; done\" & trap '' USR1; wait")
    eventually(lambda: slot.live_output(seq, "stdout", 0) == (b"up\n", 3))
    slot.signal(seq, signal.SIGUSR1)
    assert node.end_of(seq).out.data == b"up\ngot\n"
