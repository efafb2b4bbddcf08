"""Tests that needed their second go: each is named at once with the cause, the end of a run counts them, and too many fail it.

Real processes on a machine that others use miss a deadline now and then, so there is a second go (tests/conftest.py); a test that often
needs it hides a defect. RMGR_MOST_RERUNS=2 makes a run fail that had more; `auto`, which tests/run.sh sets, means 2 on a machine of the
run's own, and no bound on one that others use or that has less than four processors; without it they are only told. A cause stands in
the log as soon as it is known, so that a run that is cut off has told it, too.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

VARIABLE = "RMGR_MOST_RERUNS"
_MOST_CAUSE = 300  # characters
_MOST, _WORKERS = 2, 4  # of `auto`; tests/run.sh runs so many files at a time
_BUSY = 0.75  # of the processors, on average over five minutes before the run: others use the machine


class SecondGoes:
    """Hears of every report, also of those that workers send."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.most = allowed(os.environ.get(VARIABLE, ""), os.cpu_count() or 1, os.getloadavg()[1])
        self.causes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Names the test and the cause in the log."""
        terminal: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is None or report.outcome != "rerun":  # type: ignore[comparison-overlap]  # of pytest-rerunfailures
            return
        self.causes[report.nodeid] = cause_of(report)
        terminal.ensure_newline()
        terminal.line(f"second go: {report.nodeid}: {self.causes[report.nodeid]}")


def cause_of(report: pytest.TestReport) -> str:
    """Where it failed and with what, in one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return " ".join(str(report.longrepr).split())[-_MOST_CAUSE:]
    place = f"{os.path.basename(crash.path)}:{crash.lineno}: "
    return (place + " ".join(str(crash.message).split()))[:_MOST_CAUSE]


def pytest_configure(config: pytest.Config) -> None:
    """Listens, unless this is one of several workers: those report to the one that started them."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(SecondGoes(config), SecondGoes.__name__)


def allowed(text: str, processors: int, load: float) -> int | None:
    """How many of them a run may have; None: as many as there are. load: processes that ran before the run did."""
    if text != "auto":
        return int(text) if text else None
    return _MOST if processors >= _WORKERS and load < _BUSY * processors else None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails a run that had more than it is allowed."""
    heard: SecondGoes | None = session.config.pluginmanager.get_plugin(SecondGoes.__name__)
    if heard is not None and heard.most is not None and len(heard.causes) > heard.most and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Says how many, which, why, and whether that is too many."""
    heard: SecondGoes | None = config.pluginmanager.get_plugin(SecondGoes.__name__)
    if heard is not None and heard.causes:
        again, most = heard.causes, heard.most
        verdict = "" if most is None else f", at most {most} may: the run has {'failed' if len(again) > most else 'not failed'} for that"
        terminalreporter.section(f"{len(again)} needed a second go{verdict}")
        for name, cause in sorted(again.items()):
            terminalreporter.line(f"{name}: {cause}")
