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
#: Parent of the threads of the kernel.
_KERNEL = 2
_BEGAN_IN = os.getcwd()
_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"})


class Standing:
    """Checks the tests of one run. Cost: nothing if no process was started, else one pass over /proc, 10 us per process."""

    def __init__(self, directory: Callable[[], Path]) -> None:
        """directory: returns the directory below which the run's processes work; called at each check."""
        self._directory = directory
        self._has_started = False
        self._told: set[int] = set()
        self._kernel: set[int] = set()  #: its threads, a third of all processes
        sys.addaudithook(self._heard)

    def _heard(self, event: str, _details: tuple[object, ...]) -> None:
        if event in _STARTS:
            self._has_started = True

    def found(self, patience_s: float) -> list[str]:
        """Returns the processes that have stood still for `patience_s`; reports each process once."""
        if not self._has_started and not _has_children():
            return []
        self._has_started = False
        frozen = functools.cache(_is_frozen)  # at this look
        suspects = {pid: how for pid, state in self._ours() if pid not in self._told and (how := _stands(pid, state, frozen))}
        for _ in range(round(patience_s / _LOOK_S)):  # not by the clock: while the machine stands still, nobody is killed or continued
            if not suspects:
                break
            time.sleep(_LOOK_S)
            suspects = {pid: how for pid in suspects if (how := _stands(pid, _stat(pid)[0], _is_frozen))}
        self._told |= suspects.keys()
        return [f"process {pid} ({_command(pid)}) {how}" for pid, how in sorted(suspects.items())]

    def _ours(self) -> Iterator[tuple[int, str]]:
        """Yields the processes of this run with their states."""
        pids = set(map(int, filter(str.isdigit, os.listdir("/proc"))))
        self._kernel &= pids  # a thread that is gone may have left its number to a process
        seen = {pid: _stat(pid) for pid in pids - self._kernel}
        self._kernel |= {pid for pid, (_, parent) in seen.items() if parent == _KERNEL}
        me = os.getpid()
        mine = {me: True} | dict.fromkeys(self._kernel, False)
        for pid in seen:
            line, at = [], pid
            while at not in mine and at in seen:
                line.append(at)
                at = seen[at][1]
            mine.update(dict.fromkeys(line, mine.get(at, False)))
        directory = f"{self._directory()}/"
        for pid, (state, _) in seen.items():
            if pid != me and (mine[pid] or (pid not in self._kernel and _works_in(pid, directory))):
                yield pid, state


def _stat(pid: int) -> tuple[str, int]:
    """Returns (state, parent) of a process, or ("X", 0) if it is gone."""
    if words := _read(f"/proc/{pid}/stat").rpartition(b") ")[2].split(maxsplit=2):
        return words[0].decode(), int(words[1])
    return "X", 0


def _read(path: str) -> bytes:
    """Returns what a file of the kernel begins with, or nothing if it is gone. Takes half as long as `open`."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(fd, 4096)
    except OSError:  # the process has just ended
        return b""
    finally:
        os.close(fd)


def _works_in(pid: int, directory: str) -> bool:
    with contextlib.suppress(OSError):
        return f"{os.readlink(f'/proc/{pid}/cwd')}/".startswith(directory)
    return False


def _stands(pid: int, state: str, frozen: Callable[[str], bool]) -> str:
    """Returns how a process stands still, or "" if it does not."""
    if state in "ZX":
        return ""
    if state in "Tt":
        return "is stopped"
    group = next((line[3:] for line in _read(f"/proc/{pid}/cgroup").decode().splitlines() if line.startswith("0::")), "/")
    return f"is frozen in {group}" if frozen(group) else ""


def _is_frozen(group: str) -> bool:
    return b"frozen 1" in _read(f"{unified()}{group}/cgroup.events")


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
