"""Programs with an Executor or a TaskQueue that die, or stop for too long: what happens to their work, and how it is reported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness.waiting import eventually
from tests.places import ROOT

if TYPE_CHECKING:
    from rmgr.dev.cluster import DevCluster


class Programs:
    """Programs of users, started here and ended with the test."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.all: list[subprocess.Popen[str]] = []

    def start(self, text: str) -> subprocess.Popen[str]:
        """Runs it; it may wait for a line of input."""
        path = self._directory / f"main{len(self.all)}.py"
        path.write_text(textwrap.dedent(text))
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(
            [sys.executable, str(path)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.all.append(process)
        return process


@pytest.fixture
def programs(live: DevCluster, tmp_path: Path) -> Iterator[Programs]:
    made = Programs(tmp_path)
    yield made
    for process in made.all:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=60)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def cli(*words: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "rmgr.cli.main", *words], capture_output=True, text=True, timeout=timeout_s, check=False)


def job(number: str) -> dict[str, Any]:
    told = cli("show", number, "--json")
    assert told.returncode == 0, told.stderr
    found: dict[str, Any] = json.loads(told.stdout)
    return found


EXECUTOR = """
    import time, rmgr
    executor = rmgr.Executor(name="calls")
    assert list(executor.map(abs, range(-60, 1)))[0] == 60
    print(executor.id)
    {then}
"""
GOES_ON = """
    input()
    try:
        print(executor.submit(abs, -1).result(60))
    except Exception as error:
        print(type(error).__name__, error)
"""
QUEUE = """
    import time
    from rmgr import TaskQueue
    queue = TaskQueue(abs, name="calls")
    queue.map(None, range(-60, 1))
    queue.wait_all()
    print(queue.id)
    time.sleep(600)
"""


def test_work_of_a_program_that_was_killed_ends_or_is_said_to_have_no_owner(live: DevCluster, programs: Programs) -> None:
    """Both had all their work done. The Executor ends; the TaskQueue may be attached to and stays, and nobody waits for it."""
    executors, queues = programs.start(EXECUTOR.format(then="time.sleep(600)")), programs.start(QUEUE)
    executor, queue = line_of(executors), line_of(queues)
    waiting = subprocess.Popen([sys.executable, "-m", "rmgr.cli.main", "wait", executor, queue], stderr=subprocess.PIPE, text=True)
    programs.all.append(waiting)
    assert job(executor)["state"] == job(queue)["state"] == "RUNNING"
    executors.kill()
    queues.kill()
    eventually(lambda: job(executor)["state"] == "COMPLETED")
    eventually(lambda: job(queue)["reason"] == "OWNER_GONE")
    _, told = waiting.communicate(timeout=60)
    assert (waiting.returncode, f"{queue}: its program is gone" in told) == (0, True), told
    assert "owner gone, 61/61 done" in cli("jobs", queue).stdout
    assert f"taskq-{int(queue):010}" in cli("explain", queue).stdout
    from rmgr import TaskQueue

    added = TaskQueue.attach(int(queue))
    assert added.submit_call(-7).result(60) == 7
    eventually(lambda: job(queue)["reason"] == "", "the leader has heard of the new owner")
    added.close()
    eventually(lambda: job(queue)["state"] == "COMPLETED")


def test_a_program_that_stood_still_for_too_long_is_told_what_became_of_its_executor(live: DevCluster, programs: Programs) -> None:
    frozen = programs.start(EXECUTOR.format(then=GOES_ON))
    number = line_of(frozen)
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        eventually(lambda: job(number)["state"] == "COMPLETED")
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    out, err = frozen.communicate("go on\n", timeout=60)
    told = f"StateConflict submission {number} was ended while this program was cut off or stood still: its last 1 task was not submitted"
    assert told in out, (out, err)
    assert job(number)["counts"]["COMPLETED"] == 61
