"""Parts of the runner without processes: the board, output files and their stored part, control groups, scripts."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from rmgr.adapters.host.accounts import live_output
from rmgr.adapters.host.cgroup import members, remove_group
from rmgr.client.logs import unseen
from rmgr.model.block import gap_line, place
from rmgr.model.frames import NO_OUTPUT, BatchShape, CommandBatch, CommandItem, Output
from rmgr.model.states import Reason
from rmgr.runner import modules
from rmgr.runner.command import Launcher, interpreter_of_script
from rmgr.runner.host import contain
from rmgr.runner.host.board import Board, create_board
from rmgr.runner.host.contain import ControlGroup, Forks
from rmgr.runner.host.environment import command_environment, shared_variables
from rmgr.runner.host.outputs import open_output, settle, take, trim
from rmgr.runner.python.calls import read_part

MIB = 1024 * 1024


@pytest.fixture
def board() -> Iterator[Board]:
    fd = create_board()
    board = Board(fd)
    os.close(fd)
    yield board
    board.close()


def test_what_has_begun_stays_begun_when_the_worker_rests(board: Board) -> None:
    board.start(7, 123)
    assert (board.running(), board.seq, board.begun) == ((7, 123), 7, 7)
    board.rest()
    assert (board.running(), board.seq, board.begun) == ((0, 0), 0, 7)


def test_fields_of_the_board_do_not_disturb_each_other(board: Board) -> None:
    board.start(2**63, 5)
    board.set_batch(limit_ns=1, grace_ns=2, exclusive=True, memory_bytes=3, output_cap=4)
    board.terminate(9, Reason.TIME_LIMIT)
    board.lease_end_ns = 77
    board.revoke(10, 20)
    board.busy = board.watched = True
    assert (board.seq, board.limit_ns, board.grace_ns, board.exclusive, board.memory_bytes, board.output_cap) == (2**63, 1, 2, True, 3, 4)
    assert (board.terminated, board.lease_end_ns, board.revoked) == ((9, Reason.TIME_LIMIT), 77, (10, 20))
    assert board.busy
    assert board.watched


def test_unsent_results_are_read_until_they_have_been_sent(board: Board) -> None:
    assert board.unsent() == (b"", 0)
    board.view[4096 + 16 : 4096 + 21] = b"hello"
    board.set_results(5, 2)
    assert board.unsent() == (b"hello", 2)
    board.clear_results()
    assert board.unsent() == (b"", 0)


def test_an_output_file_is_taken_inline_or_moved_or_condensed(tmp_path: Path) -> None:
    path, final = str(tmp_path / "stdout"), str(tmp_path / "final")
    fd = open_output(path)
    assert take(fd, path, final, MIB) is NO_OUTPUT
    os.write(fd, b"small")
    assert take(fd, path, final, MIB).data == b"small"
    assert os.lseek(fd, 0, os.SEEK_END) == 0
    os.write(fd, b"y" * 10_000)
    moved = take(fd, path, final, MIB)
    assert (moved.size, moved.path, moved.dropped) == (10_000, final, 0)
    assert Path(final).read_bytes() == b"y" * 10_000
    os.close(fd)


@pytest.mark.parametrize("holes", [True, False])
def test_a_file_above_its_cap_gives_its_middle_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holes: bool) -> None:
    """Where the file system has no holes, it keeps the first part only."""
    if not holes:
        monkeypatch.setattr("rmgr.runner.host.outputs.fallocate", None)
    path, final = str(tmp_path / "stdout"), str(tmp_path / "final")
    fd = open_output(path)
    for n in range(5):
        os.write(fd, b"a" * MIB)
        assert trim(fd, MIB) == (n > 0)
    assert os.fstat(fd).st_blocks * 512 <= 2 * MIB
    os.write(fd, b"the end\n")
    output = take(fd, path, final, MIB)
    kept = Path(final).read_bytes()
    assert len(kept) < MIB + 8192
    assert (output.size == 5 * MIB + 8) == holes
    assert kept.endswith(b"the end\n")
    assert f"{output.dropped} bytes of output dropped".encode() in kept
    os.close(fd)


def _settled(path: Path | str, start: int, final: Path) -> Output:
    fd = os.open(path, os.O_RDWR)
    try:
        return settle(fd, str(path), start, str(final), MIB)
    finally:
        os.close(fd)


def test_a_users_own_output_file_stays_whole_and_is_told_without_its_middle(tmp_path: Path) -> None:
    path, final = tmp_path / "log", tmp_path / "final"
    path.write_bytes(b"b" * (3 * MIB))
    output = _settled(path, 0, final)
    assert (output.size, output.path) == (3 * MIB, str(final))
    assert path.stat().st_size == 3 * MIB
    assert f"{output.dropped} bytes of output dropped".encode() in final.read_bytes()
    assert final.stat().st_size < MIB + 8192
    assert _settled(os.devnull, 0, final) is NO_OUTPUT


def test_of_a_file_that_is_appended_to_what_was_there_before_is_not_told(tmp_path: Path) -> None:
    path, final = tmp_path / "log", tmp_path / "final"
    path.write_bytes(b"old" + b"n" * 5000)
    assert _settled(path, 4993, final) == Output(size=10, data=b"n" * 10)
    assert _settled(path, 5003, final) == Output(size=0)
    assert _settled(path, 3, final) == Output(size=5000, path=str(final))
    assert final.read_bytes() == b"n" * 5000
    assert _settled(path, 6000, final) == Output(size=5003, path=str(path)), "it was truncated since, and begins anew"


def test_live_output_never_follows_a_link(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (tmp_path / "stdout").symlink_to(secret)
    assert live_output(str(tmp_path / "stdout"), None, 0, 100, MIB) is None
    assert live_output(str(secret), None, 2, 3, MIB) == (b"cre", 5)
    assert live_output(str(tmp_path / "absent"), None, 0, 1, MIB) is None


def _group(path: Path, *files: str) -> str:
    path.mkdir()
    for name in files:
        (path / name).write_text("")
    return str(path)


def test_a_version_2_group_limits_memory_freezes_and_kills_by_its_files(tmp_path: Path) -> None:
    group = ControlGroup(_group(tmp_path / "slot"), "", "", "w1", has_memory=True)
    leaf = tmp_path / "slot" / "w1"
    for name in ("memory.max", "memory.swap.max", "memory.oom.group", "cgroup.kill", "cgroup.freeze", "memory.events", "cgroup.procs"):
        (leaf / name).write_text("")
    assert group.limits_memory
    assert group.set_memory(5 * MIB)
    assert ((leaf / "memory.max").read_text(), (leaf / "memory.swap.max").read_text()) == (str(5 * MIB), "0")
    assert (leaf / "memory.oom.group").read_text() == "1", "a script does not go on without a child that was killed for lack of memory"
    assert group.freeze(True)
    assert (leaf / "cgroup.freeze").read_text() == "1"
    group.kill()
    assert (leaf / "cgroup.kill").read_text() == "1"
    assert not group.had_oom()
    (leaf / "memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    assert group.had_oom()
    (leaf / "cgroup.procs").write_text("12\n13\n")
    assert group.members() == [12, 13]
    assert not group.remove()


def test_a_version_1_group_limits_memory_and_freezes_by_its_files(tmp_path: Path) -> None:
    group = ControlGroup("", _group(tmp_path / "freezer"), _group(tmp_path / "memory"), "w1", has_memory=False)
    memory, freezer = tmp_path / "memory" / "w1", tmp_path / "freezer" / "w1"
    for path in (memory / "memory.limit_in_bytes", memory / "memory.oom_control", freezer / "freezer.state", freezer / "cgroup.procs"):
        path.write_text("")
    assert group.set_memory(0)
    assert (memory / "memory.limit_in_bytes").read_text() == "-1"
    (memory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert group.had_oom()
    group.kill()
    assert (freezer / "freezer.state").read_text().endswith("THAWED")


@pytest.mark.parametrize("code", [0, 1, 137])
def test_a_script_whose_child_was_killed_for_lack_of_memory_has_run_out_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Groups of version 1 kill a single process, and its script may go on to a good end."""
    monkeypatch.chdir(tmp_path)  # the launcher goes to its tasks' directories
    batch = CommandBatch(shape=BatchShape(submission=1, memory_bytes=MIB), argv=("sh", "-c", f"exit {code}"), items=(CommandItem(1, 0),))
    launcher = Launcher(str(tmp_path), "n1")
    run = launcher.start(batch, batch.items[0], None)
    run.group = cast("ControlGroup", SimpleNamespace(limits_memory=True, had_oom=lambda: True, peak_bytes=lambda: MIB))
    _, status, usage = os.wait4(run.pid, 0)
    end = launcher.finish(run, status, usage, reason=Reason.NONE, leftovers=0)
    assert (end.reason, end.exit_code, end.signal) == (Reason.OUT_OF_MEMORY, None, signal.SIGKILL)


def test_forking_is_forbidden_and_allowed_again(tmp_path: Path) -> None:
    (tmp_path / "pids.max").write_text("300\n")
    forks = Forks(str(tmp_path))
    assert forks.forbid()
    assert (tmp_path / "pids.max").read_text().startswith("1")
    forks.allow()
    assert (tmp_path / "pids.max").read_text().startswith("300")
    assert not Forks(str(tmp_path / "absent")).forbid()


def test_groups_are_removed_from_the_leaves_up(tmp_path: Path) -> None:
    (tmp_path / "rmgr-n1" / "s0" / "main").mkdir(parents=True)
    assert members(tmp_path / "rmgr-n1") == []
    assert remove_group(tmp_path / "rmgr-n1", wait_s=0)
    assert not (tmp_path / "rmgr-n1").exists()


@pytest.mark.parametrize(
    ("text", "argv"),
    [
        ("echo hi", ["/bin/sh"]),
        ("", ["/bin/sh"]),
        ("#!/bin/bash\necho", ["/bin/bash"]),
        ("#!/usr/bin/env  python3 -u\r\n", ["/usr/bin/env", "python3 -u"]),
        ("#!\n", ["/bin/sh"]),
    ],
)
def test_a_script_is_run_as_the_kernel_would(text: str, argv: list[str]) -> None:
    assert interpreter_of_script(text.encode()) == argv


def test_the_variables_of_a_batch_win_over_the_nodes_and_the_made_ones() -> None:
    shape = BatchShape(submission=42, cores=2, environ={"RMGR_RANK": "3", "A": "batch", "RMGR_ENTRY": "batch"})
    base = {"A": "node", "PATH": "/bin", **shared_variables(shape, "n1")}
    environ = command_environment(base, shape, CommandItem(1, 6, 2, entry=b"\xfc"))
    assert environ["RMGR_RANK"] == "3"
    assert (environ["A"], environ["RMGR_ENTRY"], environ["RMGR_TOKEN"], environ["OMP_NUM_THREADS"]) == ("batch", "\udcfc", "42_6.2", "2")


# -- arguments


def test_arguments_are_whole_although_the_kernel_gives_some_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = tmp_path / "arguments", os.pread
    path.write_bytes(bytes(range(256)) * 40)
    monkeypatch.setattr("os.pread", lambda fd, size, start: read(fd, min(size, 1000), start))  # 2 GiB, really
    with path.open("rb", buffering=0) as file:
        assert read_part(file.fileno(), 7, 5000) == path.read_bytes()[7:5007]
        assert len(read_part(file.fileno(), 7, 20_000)) == 256 * 40 - 7, "the file ends before"


# -- processors


def test_what_has_left_its_parent_waits_for_processors_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contain, "waited_for_processor", lambda _pid: (1_000_000_000, False))
    alone = contain.processor_seconds(os.getpid())[1]
    assert contain.processor_seconds(os.getpid(), [os.getpid(), 1])[1] == alone + 1, "each process once"


# -- edited modules


@pytest.mark.parametrize("ahead_s", [-3600, 3600])
def test_a_module_is_edited_when_its_file_changes_whatever_time_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    file, born_s = tmp_path / "some_module.py", time.time()
    file.write_text("x = 1")
    os.utime(file, (born_s + ahead_s, born_s + ahead_s))
    monkeypatch.setitem(sys.modules, "some_module", SimpleNamespace(__file__=str(file)))
    assert not any(modules.is_edited(round(born_s * 1e9)) for _ in range(3))
    file.write_text("x = 2")
    os.utime(file, (born_s + ahead_s - 7, born_s + ahead_s - 7))  # an older one was put back
    assert modules.is_edited(round(born_s * 1e9))


CAP = 64 * 1024


def kept(tmp_path: Path, written: bytes) -> bytes:
    """What the runner keeps of this output."""
    fd = open_output(str(tmp_path / "live"))
    try:
        os.write(fd, written)
        trim(fd, CAP)
        output = take(fd, str(tmp_path / "live"), str(tmp_path / "final"), CAP)
    finally:
        os.close(fd)
    return (tmp_path / "final").read_bytes() if output.path else output.data


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("shown", [0, 1, 99, 100, 101, 5000, 6000])
@pytest.mark.parametrize("size", [7, 100, 4096, 10_000])
def test_what_was_shown_is_not_shown_again(shown: int, size: int) -> None:
    data = bytes(range(256)) * 20
    assert b"".join(unseen(pieces(data, size), shown)) == data[shown:]


@pytest.mark.parametrize("size", [97, 4096, 1 << 20])
def test_a_dropped_middle_is_told_and_its_end_is_shown(tmp_path: Path, size: int) -> None:
    written = b"".join(b"%09d\n" % number for number in range(50_000))
    stored, drops = kept(tmp_path, written), []
    whole = b"".join(unseen(pieces(stored, size), 0, on_gap=drops.append))
    assert whole == stored
    [one] = drops
    assert one.cap == CAP
    assert len(stored) - stored.count(b"dropped here") * len(marker(stored)) + one.dropped == len(written)
    # Shown into the dropped middle: the line that says so, of what was missed, and the end. Shown into the end: only what follows.
    tail = len(written) - (len(stored) - stored.index(marker(stored)) - len(marker(stored)))
    lagging = b"".join(unseen(pieces(stored, size), tail - 1000))
    assert lagging == gap_line(1000, CAP) + written[tail:]
    almost = b"".join(unseen(pieces(stored, size), len(written) - 30))
    assert almost == written[-30:]


def marker(stored: bytes) -> bytes:
    start = stored.index(b"\n[rmgr: ")
    return stored[start : stored.index(b"]\n", start) + 2]


@pytest.mark.parametrize("digits", [16, 5000])
def test_a_line_that_a_program_prints_stands_for_no_more_than_a_file_can_have(digits: int) -> None:
    line = gap_line(1, 1).replace(b"1 bytes", b"9" * digits + b" bytes")
    placed = list(place([b"a" * 200 + line + b"b" * 200]))
    assert b"".join(one.data for one in placed) == b"a" * 200 + line + b"b" * 200
    assert placed[-1].end == 400 + len(line)
