"""Tests that needed their second go: the end of a run counts and names them, and a run may be told how many it allows.

Real processes on a machine that others use miss a deadline now and then, so there is a second go (tests/conftest.py); a test that often
needs it hides a defect. RMGR_MOST_RERUNS=2 makes a run fail that had more: for a machine of one's own. Without it they are only told.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

VARIABLE = "RMGR_MOST_RERUNS"


def second_goes(config: pytest.Config) -> list[str]:
    """Ids of tests that were run again, sorted. Empty in a worker of several, which does not know."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    return sorted({report.nodeid for report in reporter.stats.get("rerun", ())}) if reporter is not None else []


def allowed() -> int | None:
    """How many of them a run may have; None: as many as there are."""
    text = os.environ.get(VARIABLE, "")
    return int(text) if text else None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails a run that had more than it is allowed."""
    most = allowed()
    if most is not None and len(second_goes(session.config)) > most and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Says how many, which, and whether that is too many."""
    again, most = second_goes(config), allowed()
    if again:
        verdict = "" if most is None else f", at most {most} may: the run has {'failed' if len(again) > most else 'not failed'} for that"
        terminalreporter.section(f"{len(again)} needed a second go{verdict}")
        for name in again:
            terminalreporter.line(name)
