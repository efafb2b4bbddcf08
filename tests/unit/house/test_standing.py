"""A test that leaves work stopped or frozen fails, be it a child or an orphan; one that leaves it running does not."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.standing import Standing, unified
from tests.harness.waiting import eventually
from tests.places import ROOT

_TEST = """
import os, signal, subprocess

def test_leaves_something():
    work = subprocess.Popen(["sleep", "600"])
    with open("pid", "w") as file:
        file.write(str(work.pid))
    os.kill(work.pid, signal.{signal})

def test_starts_nothing():
    pass
"""


@pytest.fixture
def left(tmp_path: Path) -> Iterator[list[int]]:
    """What is killed at the end."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(("name", "told"), [("SIGSTOP", 1), ("SIGCONT", 0)])
def test_who_leaves_a_stopped_process_fails_and_the_next_test_does_not(tmp_path: Path, left: list[int], name: str, told: int) -> None:
    (tmp_path / "test_planted.py").write_text(_TEST.replace("{signal}", name))
    (tmp_path / "conftest.py").write_text("from tests.harness import standing\nstanding.PATIENCE_S = 0.2\n")
    words = ["-m", "pytest", "-p", "tests.harness.standing", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "test_planted.py"]
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")} | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, *words], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False)
    left.append(int((tmp_path / "pid").read_text()))
    assert ended.returncode == told, ended.stdout + ended.stderr
    assert f"2 passed{', 1 error' if told else ''}" in ended.stdout
    assert ended.stdout.count(f"process {left[0]} (sleep 600) is stopped") >= told


def test_an_orphan_is_known_by_where_it_works(tmp_path: Path, left: list[int]) -> None:
    standing = Standing(lambda: tmp_path)
    started = subprocess.run(["sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"], cwd=tmp_path, capture_output=True, text=True, check=True)
    left.append(int(started.stdout))
    assert standing.found(0.0) == []
    os.kill(left[0], signal.SIGSTOP)
    eventually(lambda: bool(standing.found(0.0)) or not _touch(), "it is found")
    assert standing.found(0.0) == []  # it was told


def _touch() -> bool:
    """Something is started: the next look is one over all processes."""
    return subprocess.run(["true"], check=True).returncode == 0


def test_what_is_frozen_is_found_and_named(tmp_path: Path, left: list[int]) -> None:
    group = Path(unified()) / f"rmgr-standing-{os.getpid()}"
    if unified() == "/" or not os.access(unified(), os.W_OK):
        pytest.skip("no control groups of version 2 can be made")
    group.mkdir()
    try:
        if not (group / "cgroup.freeze").exists():
            pytest.skip("control groups here have no freezer")
        work = subprocess.Popen(["sleep", "600"])
        left.append(work.pid)
        (group / "cgroup.procs").write_text(str(work.pid))
        standing = Standing(lambda: tmp_path)
        assert standing.found(0.0) == []
        (group / "cgroup.freeze").write_text("1")
        found: list[str] = []
        eventually(lambda: bool(found.extend(standing.found(0.0)) or found), "it is found")
        assert f"is frozen in /{group.name}" in found[0]
        (group / "cgroup.freeze").write_text("0")
        work.kill()
        work.wait(60)
    finally:
        eventually(lambda: not (group / "cgroup.procs").read_text(), "the group is empty")
        group.rmdir()
