"""`future.logs` and `queue.follow` return the lines that tasks write, during the run and afterwards."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import rmgr
from rmgr.client.logs import LiveOutput
from rmgr.errors import DeadlineExceeded, UsageError
from tests.harness.waiting import eventually

if TYPE_CHECKING:
    from rmgr.client.connection import Connection


def talk(gate: str, start: str = "/") -> int:
    """Writes before and after `gate` exists, once `start` does."""
    while not Path(start).exists():
        time.sleep(0.02)
    print("begun", flush=True)
    print("careful", file=sys.stderr, flush=True)
    end = time.monotonic() + 120  # else a failed test waits for ever
    while not Path(gate).exists() and time.monotonic() < end:
        time.sleep(0.02)
    sys.stdout.write("done\nno end of line")
    return 7


def test_lines_of_a_running_task_come_while_it_runs(connection: Connection, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with rmgr.TaskQueue(talk, connection=connection) as queue:
        future = queue.submit_call(str(gate))
        try:
            lines = future.logs(follow=True, stream="stdout", timeout=60)
            first = next(lines)
            assert (first, first.task_id, first.stream, first.attempt) == ("begun", future.task_id, "stdout", 1)
            assert not future.done()
            eventually(lambda: sorted(future.logs()) == ["begun", "careful"], "what it has written so far")
            with pytest.raises(DeadlineExceeded):
                list(future.logs(follow=True, timeout=0.5))
        finally:
            gate.touch()
        assert list(lines) == ["done", "no end of line"]
        assert future.result(60) == 7
        assert list(future.logs(stream="stdout")) == ["begun", "done", "no end of line"]
        assert list(future.logs(follow=True, stream="stderr")) == ["careful"]
        with pytest.raises(UsageError, match="neither 'stdout' nor 'stderr'"):
            future.logs(stream="out")


def test_a_queue_is_followed_until_its_tasks_have_ended(connection: Connection, tmp_path: Path) -> None:
    gates = [tmp_path / name for name in "ab"]
    with rmgr.TaskQueue(talk, connection=connection) as queue:
        futures = queue.map(None, map(str, gates))
        seen: dict[str, list[str]] = {future.task_id: [] for future in futures}
        for line in queue.follow(stream="stdout", timeout=60):
            seen[line.task_id].append(line)
            if all(seen.values()):
                for gate in gates:
                    gate.touch()
        assert seen == {future.task_id: ["begun", "done", "no end of line"] for future in futures}
        assert list(queue.follow()) == []


def test_a_call_of_an_executor_is_followed_too(connection: Connection, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with rmgr.Executor(1, output="log", connection=connection) as executor:
        future = executor.submit(talk, str(gate))
        lines = future.logs(follow=True, stream="stdout", timeout=60)
        assert next(lines) == "begun"
        gate.touch()
        assert list(lines) == ["done", "no end of line"]


def test_an_executor_writes_lines_as_they_come(connection: Connection, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    gates, start, out = [tmp_path / name for name in "ab"], tmp_path / "start", ""
    with rmgr.Executor(output="live", connection=connection) as executor:
        futures = [executor.submit(talk, str(gate), str(start)) for gate in gates]
        start.touch()  # lines of a call that is still the only one have no task before them
        try:
            end = time.monotonic() + 60
            while out.count(": begun\n") < 2:
                time.sleep(0.1)  # reading what was captured drops what is written meanwhile: seldom, then
                out += capfd.readouterr().out
                assert time.monotonic() < end, out
            assert not any(future.done() for future in futures)
        finally:  # else leaving the block waits for them
            for gate in gates:
                gate.touch()
        assert executor.submit(print, "at once").result(60) is None
    out += capfd.readouterr().out
    wanted = [f"{future.task_id}: {text}" for future in futures for text in ("begun", "done", "no end of line")]
    number = futures[0].task_id.partition("_")[0]
    assert sorted(out.splitlines()) == sorted([*wanted, f"{number}_2: at once"])


def test_the_lines_of_one_call_stand_alone(connection: Connection, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gate").touch()
    with rmgr.Executor(1, output="live", connection=connection) as executor:
        executor.submit(talk, str(tmp_path / "gate"))
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("begun\ndone\nno end of line\n", "careful\n")


def test_lines_of_calls_that_last_come_unasked(connection: Connection, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """And what short calls print is written as they end, byte for byte."""
    gates, out = [tmp_path / name for name in "ab"], ""
    with rmgr.Executor(connection=connection) as executor:
        assert executor.submit(print, "at once", end="").result(60) is None
        futures = [executor.submit(talk, str(gate)) for gate in gates]
        end = time.monotonic() + 60
        while out.count(": begun\n") < 2:
            out += capfd.readouterr().out
            assert time.monotonic() < end, out
            time.sleep(0.1)
        assert not any(future.done() for future in futures)
        assert executor.submit(print, "meanwhile").result(60) is None
        for gate in gates:
            gate.touch()
    out += capfd.readouterr().out
    assert out.startswith("at once")
    wanted = [f"{future.task_id}: {text}" for future in futures for text in ("begun", "done", "no end of line")]
    assert sorted(out.removeprefix("at once").splitlines()) == sorted([*wanted, "meanwhile"])


@pytest.mark.parametrize("cap", [None, 1])
def test_lines_of_one_call_that_lasts_stand_alone(
    connection: Connection, tmp_path: Path, capfd: pytest.CaptureFixture[str], cap: int | None
) -> None:
    gate, out = tmp_path / "gate", ""
    with rmgr.Executor(cap, connection=connection) as executor:
        executor.submit(talk, str(gate))
        end = time.monotonic() + 60
        while "begun\n" not in out:
            out += capfd.readouterr().out
            assert time.monotonic() < end, out
            time.sleep(0.1)
        gate.touch()
    captured = capfd.readouterr()
    assert (out + captured.out, captured.err.count("careful\n")) == ("begun\ndone\nno end of line\n", captured.err.count("\n"))


def test_a_map_of_short_calls_is_not_looked_at(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """While calls end one after the other nobody asks the nodes for others that last, but now and then."""
    looks, slow = [], 0
    monkeypatch.setattr(LiveOutput, "look_now", lambda _live: looks.append(time.monotonic()))
    with rmgr.Executor(connection=connection) as executor:
        began = time.monotonic()
        while (round_s := time.monotonic()) < began + 3.0:
            assert list(executor.map(abs, range(-20, 0))) == list(range(20, 0, -1))
            slow += int(time.monotonic() - round_s)
    assert len(looks) <= max(1, slow), "once, and once for each second in which the machine stood still"
