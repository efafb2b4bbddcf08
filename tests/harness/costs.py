"""The costs of a run: a table of kinds of tests with their number, seconds and CPU-seconds, and the clusters and JVMs that they started.

`RMGR_COSTS=20 tests/run.sh` prints it at the end, with the twenty files that used most; tests/README.md keeps a copy. Whenever a
file begins, each worker reads what it and its children, living and ended, have used. Processes that detach themselves
(`rmgr dev --detach`, the shared Cassandra) are not counted. A cluster is counted when a worker starts its first WatchDog.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections import Counter, defaultdict
from typing import Any

import psutil
import pytest

#: Columns of the table.
_COLUMNS = ("tests", "s", "cpu_s", "clusters", "jvms")
_KINDS = ("unit", "property", "papers", "integration", "chaos")


def kind_of(file: str) -> str:
    """Returns the kind of a test file: its tree below `tests`, or "house" if it is in none. file: path from the checkout's root."""
    tree = file.split("/")[1]
    return tree if tree in _KINDS else "house"


def cpu_s() -> float:
    """Returns the CPU-seconds that this process and all its descendants have used so far."""
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    used = sum(one.ru_utime + one.ru_stime for one in own)
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            used += sum(process.cpu_times()[:4])  # includes its ended children
    return used


class Costs:
    """Counts the costs in one worker; `Sums` adds them up and prints them."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._file = ""
        self._used_s = 0.0
        self._started: Counter[str] = Counter()
        self._clusters: set[str] = set()
        self.costs: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(_COLUMNS, 0.0))
        sys.addaudithook(self._heard)

    def _heard(self, event: str, details: tuple[Any, ...]) -> None:
        if event != "subprocess.Popen":
            return
        words = [str(word) for word in details[1]]
        if os.path.basename(words[0]) == "java":
            self._started["jvms"] += 1
        elif "watchdog" in words and (zookeeper := (details[3] or {}).get("RMGR_ZK")) and zookeeper not in self._clusters:
            self._clusters.add(zookeeper)
            self._started["clusters"] += 1

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """At the first test of a file, charges what was used so far to the previous file."""
        file = nodeid.partition("::")[0]
        if file != self._file:
            self._account()
            self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds the seconds of a test, and counts it."""
        cost = self.costs[report.nodeid.partition("::")[0]]
        cost["s"] += report.duration
        cost["tests"] += report.when == "call"

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Hands over what this worker has counted; its shared clusters have ended by now."""
        self._account()
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["costs"] = {file: dict(cost) for file, cost in self.costs.items()}

    def _account(self) -> None:
        used_s = cpu_s()
        if self._file:
            self.costs[self._file]["cpu_s"] += max(0.0, used_s - self._used_s)  # negative if a process was left to init
            for what, count in self._started.items():
                self.costs[self._file][what] += count
        self._started.clear()
        self._used_s = used_s


class Sums:
    """The sums of all workers, printed as the table of tests/README.md."""

    def __init__(self, own: Costs | None) -> None:
        self._own = own
        self._files: dict[str, dict[str, float]] = {}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Takes over the counts of a worker that has ended."""
        self._files |= getattr(node, "workeroutput", {}).get("costs", {})

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Prints the table, and the files that used most."""
        files = self._files or (self._own.costs if self._own else {})
        terminalreporter.section("costs")
        for line in table(files):
            terminalreporter.line(line)
        terminalreporter.line("")
        for file, cost in sorted(files.items(), key=lambda one: -one[1]["cpu_s"])[: int(os.environ["RMGR_COSTS"])]:
            terminalreporter.line(" ".join([f"{file}:", *(f"{cost[name]:.0f} {name}" for name in _COLUMNS)]))


def table(files: dict[str, dict[str, float]]) -> list[str]:
    """Returns the table in Markdown: one line per kind, and their sum."""
    kinds: dict[str, Counter[str]] = {}
    for file, cost in files.items():
        for kind in (kind_of(file), "all"):
            kinds.setdefault(kind, Counter()).update(cost)  # type: ignore[arg-type]
    order = [kind for kind in ("house", *_KINDS, "all") if kind in kinds]
    rows = [f"| {kind} | " + " | ".join(f"{kinds[kind][name]:,.0f}" for name in _COLUMNS) + " |" for kind in order]
    return ["| kind | tests | seconds | CPU-seconds | clusters | JVMs |", "|---|---|---|---|---|---|", *rows]


def pytest_configure(config: pytest.Config) -> None:
    """Counts the costs of the run if RMGR_COSTS is set."""
    if not os.environ.get("RMGR_COSTS") or config.pluginmanager.has_plugin("rmgr-costs"):
        return
    is_worker, is_alone = hasattr(config, "workerinput"), not getattr(config.option, "numprocesses", None)
    own = Costs(config) if is_worker or is_alone else None
    if own is not None:
        config.pluginmanager.register(own, "rmgr-costs")
    if not is_worker:
        config.pluginmanager.register(Sums(own), "rmgr-cost-sums")
