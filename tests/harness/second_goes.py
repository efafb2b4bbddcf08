"""Second goes: a test of real processes that fails runs again, alone, at the end of the run, on fresh clusters.

Real processes miss deadlines when the machine stands still. A failure is excused, and not counted, if a witness saw a stall during the
test; an excused test has at most three goes, any other two. A run fails when a last go fails, or when more than `RMGR_MOST_RERUNS` (10)
tests needed another go without a stall: a test that often needs one hides a defect.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

#: Trees of tests with real processes; all other tests have one go.
REAL = ("tests/chaos/", "tests/integration/")
MOST_VARIABLE = "RMGR_MOST_RERUNS"
STALLED_VARIABLE = "RMGR_STALLED"  #: set when stalls are made on purpose, which excuse no failure
_IS_AGAIN = "RMGR_SECOND_GO"  #: set in the process of a second go, which starts no further ones
_MOST = 10
_GOES, _EXCUSED_GOES = 2, 3
_MOST_CAUSE = 300  # characters
_LONGEST_GO_S = 1500.0
#: A stall is a sleep of _LOOK_S that lasted _STALL_S, or that much time in which all processes waited for a disk (s).
_STALL_S, _LOOK_S = 2.0, 0.25
_PRESSURE = Path("/proc/pressure/io")


class Witness:
    """Records when the machine stood still: gaps in its own time, and times at which every process waited for a disk."""

    def __init__(self) -> None:
        self.stalls: list[tuple[float, float]] = []  #: (begin, end), seconds since the epoch
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="witness", daemon=True)

    def start(self) -> None:
        """Starts watching."""
        self._thread.start()

    def stop(self) -> None:
        """Stops watching."""
        self._over.set()

    def saw(self, begin_s: float, end_s: float) -> bool:
        """Whether there was a stall between two times."""
        return any(begin < end_s and begin_s < end for begin, end in self.stalls)

    def _watch(self) -> None:
        before_s, waited_s = time.time(), _disk_wait_s()
        window_s = before_s
        while not self._over.wait(_LOOK_S):
            now_s = time.time()
            if now_s - before_s > _STALL_S:
                self.stalls.append((before_s, now_s))
            if now_s - window_s >= _STALL_S:
                waits_s = _disk_wait_s()
                if waits_s - waited_s > 0.9 * (now_s - window_s):
                    self.stalls.append((window_s, now_s))
                window_s, waited_s = now_s, waits_s
            before_s = now_s


def _disk_wait_s() -> float:
    try:
        full = next(line for line in _PRESSURE.read_text().splitlines() if line.startswith("full"))
        return int(full.rpartition("total=")[2]) / 1e6
    except (OSError, StopIteration, ValueError):
        return 0.0  # the kernel does not report it


@dataclass(slots=True)
class _Seen:
    """The reports of one test. begin_s, end_s: seconds since the epoch."""

    begin_s: float
    end_s: float
    failures: list[pytest.TestReport] = field(default_factory=list)


class SecondGoes:
    """Listens to every report, also from workers, and runs failed tests again."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.most = int(os.environ.get(MOST_VARIABLE) or _MOST)
        self.causes: dict[str, str] = {}  #: test that needed another go -> why
        self.excused: set[str] = set()
        self._seen: dict[str, _Seen] = {}
        self.witness = Witness()
        self._excuses = STALLED_VARIABLE not in os.environ

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keeps the failures of each test, and their times."""
        if not report.nodeid.startswith(REAL):
            return
        seen = self._seen.setdefault(report.nodeid, _Seen(report.start, report.stop))
        seen.begin_s, seen.end_s = min(seen.begin_s, report.start), max(seen.end_s, report.stop)
        if report.failed:
            seen.failures.append(report)
            self._line(f"failed: {report.nodeid}: {cause_of(report)}")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Runs all tests, then the failed ones again, unless the run was cut short."""
        self.witness.start()
        try:
            result = yield
            for name, seen in self._seen.items():
                if seen.failures:
                    self._again(session, name, seen)
            return result
        finally:
            self.witness.stop()

    def is_excused(self, begin_s: float, end_s: float) -> bool:
        """Whether the machine stood still between two times, and not on purpose."""
        return self._excuses and self.witness.saw(begin_s, end_s)

    def _again(self, session: pytest.Session, name: str, seen: _Seen) -> None:
        first = seen.failures[0]
        self.causes[name] = cause_of(first)
        begin_s, end_s = seen.begin_s, seen.end_s
        for number in range(2, _EXCUSED_GOES + 1):
            is_stall = self.is_excused(begin_s, end_s)
            if is_stall and number == 2:
                self.excused.add(name)
            if number > _GOES and not is_stall:
                return
            self._line(f"go {number}{' (the machine stood still)' if is_stall else ''}: {name}")
            begin_s = time.time()
            said = run_alone(name, self._config.rootpath)
            end_s = time.time()
            if said is None:
                self._forgive(session, name, seen)
                return
            first.sections.append((f"go {number}", said))

    def _forgive(self, session: pytest.Session, name: str, seen: _Seen) -> None:
        """Turns a test's failures into a rerun in the summary, so that the run does not fail for them."""
        terminal: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        session.testsfailed -= len(seen.failures)
        if terminal is None:
            return
        for kind in ("failed", "error"):
            left = [report for report in terminal.stats.get(kind, ()) if report.nodeid != name]
            terminal.stats[kind] = left
            if not left:
                del terminal.stats[kind]
        passed = copy.copy(seen.failures[0])
        passed.outcome, passed.longrepr, passed.when = "passed", None, "call"
        kept = terminal.stats.setdefault("passed", [])
        if not any(report.nodeid == name and report.when == "call" for report in kept):
            kept.append(passed)
        terminal.stats.setdefault("rerun", []).append(passed)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fails a run in which too many tests needed another go."""
        if self._counted() > self.most and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Prints which tests needed another go, why, and whether these are too many."""
        if not self.causes:
            return
        count, total = self._counted(), len(self.causes)
        verdict = f"the run has failed for that: at most {self.most} may" if count > self.most else f"at most {self.most} may"
        terminalreporter.section(f"{total} needed another go, {total - count} of them in a stall; {verdict}")
        for name, cause in sorted(self.causes.items()):
            terminalreporter.line(f"{name}: {'(stall) ' if name in self.excused else ''}{cause}")

    def _counted(self) -> int:
        return len(self.causes.keys() - self.excused)

    def _line(self, text: str) -> None:
        terminal: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:  # at once, so that it shows even if the run is cut short
            terminal.ensure_newline()
            terminal.line(text)


def run_alone(name: str, root: Path) -> str | None:
    """Runs one test in a separate process; returns None if it passes, else its output."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")} | {_IS_AGAIN: "1"}
    words = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "--rootdir", str(root), name]
    with subprocess.Popen(words, cwd=root, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            said, _ = process.communicate(timeout=_LONGEST_GO_S)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
            return f"{said}\nnot over after {_LONGEST_GO_S:.0f} s"
    return None if process.returncode == 0 else said


def cause_of(report: pytest.TestReport) -> str:
    """Returns where and with what a test failed, in one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return " ".join(str(report.longrepr).split())[-_MOST_CAUSE:]
    place = f"{os.path.basename(crash.path)}:{crash.lineno}: "
    return (place + " ".join(str(crash.message).split()))[:_MOST_CAUSE]


def pytest_configure(config: pytest.Config) -> None:
    """Registers second goes, except in a worker, whose reports go to the main process, and in a second go itself."""
    if not hasattr(config, "workerinput") and _IS_AGAIN not in os.environ and not config.pluginmanager.has_plugin(SecondGoes.__name__):
        config.pluginmanager.register(SecondGoes(config), SecondGoes.__name__)
