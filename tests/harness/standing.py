"""Checks after each test that no process of the test, or of a cluster of this run, stays stopped or frozen, and that it left no other
working directory.

Stopped work that is never continued is a defect that no other test would notice. It looks at descendants of this process, and at orphans
whose working directory is below the run's; it reads their state (`T`) and their control group.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

#: How long a process may stand still (s): it may be about to be killed, or between two turns. A stopped node's work is gone sooner.
PATIENCE_S = 8.0
_LOOK_S = 0.1
_BEGAN_IN = os.getcwd()
_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"})


class Standing:
    """Checks the tests of one run. Cost: nothing if no process was started, else one pass over /proc, 20 us per process."""

    def __init__(self, directory: Callable[[], Path]) -> None:
        """directory: returns the directory below which the run's processes work; called at each check."""
        self._directory = directory
        self._has_started = False
        self._told: set[int] = set()
        sys.addaudithook(self._heard)

    def _heard(self, event: str, _details: tuple[object, ...]) -> None:
        if event in _STARTS:
            self._has_started = True

    def found(self, patience_s: float) -> list[str]:
        """Returns the processes that have stood still for `patience_s`; reports each process once."""
        if not self._has_started and not _has_children():
            return []
        self._has_started = False
        suspects = {pid: how for pid in self._ours() if pid not in self._told and (how := _stands(pid))}
        end_s = time.monotonic() + patience_s
        while suspects and time.monotonic() < end_s:
            time.sleep(_LOOK_S)
            suspects = {pid: how for pid in suspects if (how := _stands(pid))}
        self._told |= suspects.keys()
        return [f"process {pid} ({_command(pid)}) {how}" for pid, how in sorted(suspects.items())]

    def _ours(self) -> Iterator[int]:
        parents = {int(name): _stat(name)[1] for name in os.listdir("/proc") if name.isdigit()}
        me = os.getpid()
        mine = {me: True}
        for pid in parents:
            line, at = [], pid
            while at not in mine and at in parents:
                line.append(at)
                at = parents[at]
            mine.update(dict.fromkeys(line, mine.get(at, False)))
        directory = f"{self._directory()}/"
        for pid, is_mine in mine.items():
            if pid != me and (is_mine or _works_in(pid, directory)):
                yield pid


def _stat(pid: int | str) -> tuple[str, int]:
    """Returns (state, parent) of a process, or ("X", 0) if it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        words = file.read().rpartition(b") ")[2].split(maxsplit=2)
        if len(words) > 1:
            return words[0].decode(), int(words[1])
    return "X", 0


def _works_in(pid: int, directory: str) -> bool:
    with contextlib.suppress(OSError):
        return f"{os.readlink(f'/proc/{pid}/cwd')}/".startswith(directory)
    return False


def _stands(pid: int) -> str:
    """Returns how a process stands still, or "" if it does not."""
    state, _ = _stat(pid)
    if state in "ZX":
        return ""
    if state in "Tt":
        return "is stopped"
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/cgroup", encoding="utf-8") as file:
            group = next((line[3:].strip() for line in file if line.startswith("0::")), "/")
        with open(f"{unified()}{group}/cgroup.events", encoding="utf-8") as file:
            return f"is frozen in {group}" if "frozen 1" in file.read() else ""
    return ""


@functools.cache
def unified() -> str:
    """Returns where control groups of version 2 are mounted, or "/" if nowhere."""
    with open("/proc/self/mounts", encoding="utf-8") as file:
        return next((line.split()[1] for line in file if line.split()[2] == "cgroup2"), "/")


def _command(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read(200).replace(b"\0", b" ").decode(errors="replace").strip()
    return "?"


def _has_children() -> bool:
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/children", "rb") as file:
            if file.read(1):
                return True
    return False


_of_run: list[Standing] = []


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Starts watching for started processes (Linux only)."""
    if sys.platform.startswith("linux"):

        def directory() -> Path:  # pytest sets it later
            return Path(config._tmp_path_factory.getbasetemp())  # type: ignore[attr-defined]

        _of_run[:] = [Standing(directory)]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None]:
    """Checks after the test's fixtures are torn down, and fails the test if a process stands still or it has left its directory."""
    yield
    if not os.path.samefile(".", _BEGAN_IN):
        os.chdir(_BEGAN_IN)
        pytest.fail("left the working directory, in which other tests find their files: monkeypatch.chdir() comes back", pytrace=False)
    found = [told for one in _of_run for told in one.found(PATIENCE_S)]
    if found:
        pytest.fail(f"left standing still for {PATIENCE_S:g} s:\n" + "\n".join(found), pytrace=False)
