"""`future.logs` and `queue.follow`: what tasks write, line by line, while they run and afterwards."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import rmgr
from rmgr.errors import DeadlineExceeded, UsageError

if TYPE_CHECKING:
    from rmgr.client.connection import Connection


def talk(gate: str) -> int:
    """Writes before and after `gate` exists."""
    print("begun", flush=True)
    print("careful", file=sys.stderr, flush=True)
    while not Path(gate).exists():
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
            assert sorted(future.logs()) == ["begun", "careful"], "so far"
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
    gates, out = [tmp_path / name for name in "ab"], ""
    with rmgr.Executor(output="live", connection=connection) as executor:
        futures = [executor.submit(talk, str(gate)) for gate in gates]
        end = time.monotonic() + 60
        while out.count(": begun\n") < 2:
            out += capfd.readouterr().out
            assert time.monotonic() < end, out
        assert not any(future.done() for future in futures)
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
