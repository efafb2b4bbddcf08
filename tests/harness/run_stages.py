"""Stages of a run, cheapest first: what is computed, features on real processes, chaos; the longest files of each first.

Files that share a cluster of their own stand together, and run one after another in one worker: else each worker would start that cluster.

How long a file takes stands in `tests/durations.json`, which `RMGR_RECORD_DURATIONS=1 tests/run.sh` refreshes. With `RMGR_STAGED=1`, which
`tests/run.sh` sets, the first failure of what is computed ends the run: a typo shows in minutes.

What needs minutes of waiting or gigabytes is marked `long`: `tests/run.sh` leaves it out, `tests/long.sh` runs it and nothing else.
"""

from __future__ import annotations

import ast
import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.places import TESTS

#: Trees of the later stages; whatever is in none of them is of the first.
_LATER = ("tests/integration/", "tests/chaos/")
_DURATIONS = TESTS / "durations.json"
#: Files that share a cluster, by what they share.
_TOGETHER = {
    "pair_of_run": ("bad_work", "descriptors", "gateways", "keyed", "leaders", "starters", "zookeeper"),
    "keys_of_run": ("keys_claimed", "keys_handed"),
    "three_of_run": ("placed_nodes", "submitters"),
    "attacked": ("attacks", "attacks_replay", "attacks_revoked", "attacks_values"),
    "flooded": ("attacks_bounds", "attacks_places"),
    "besieged": ("attacks_behind", "fuzz_behind"),
}
_GROUP = {f"tests/chaos/test_{name}.py": group for group, names in _TOGETHER.items() for name in names}
#: Files that are quicker are not worth a line.
_LEAST_S = 1.0


def stage_of(name: str) -> int:
    """0 = computed, 1 = features, 2 = chaos. name: of a test, as pytest has it."""
    return next((number for number, tree in enumerate(_LATER, 1) if name.startswith(tree)), 0)


def recorded() -> dict[str, float]:
    """File -> seconds that its tests took in the run that was recorded, without those that took hardly any."""
    found: dict[str, float] = json.loads(_DURATIONS.read_text(encoding="utf-8")) if _DURATIONS.exists() else {}
    return found


def long_tests(path: Path) -> frozenset[str]:
    """Names of a file's tests of which `tests/run.sh` runs nothing; one of which it runs some parameters is not among them."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    marks = [node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"]
    tests = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    if any(_is_long(mark) for mark in marks):
        return frozenset(test.name for test in tests)
    return frozenset(test.name for test in tests if any(_is_long(mark) for mark in test.decorator_list))


def _is_long(mark: ast.expr) -> bool:
    if isinstance(mark, ast.List | ast.Tuple):
        return any(_is_long(one) for one in mark.elts)
    return ast.unparse(mark) == "pytest.mark.long"


class Stages:
    """Orders the files of a run, ends it early, records how long its files took."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._is_worker = hasattr(config, "workerinput")
        self._is_staged = bool(os.environ.get("RMGR_STAGED"))
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """The order of stages, and the longest files of each first: no worker is left alone with a long one at the end."""
        seconds: dict[str, float] = defaultdict(float)
        for file, took_s in recorded().items():
            seconds[group_of(file)] += took_s
        items.sort(key=lambda item: (stage_of(item.nodeid), -seconds[group_of(item.nodeid)], group_of(item.nodeid)))

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Whole files to each worker, or the files of a group."""
        from xdist.scheduler import LoadFileScheduling

        class Together(LoadFileScheduling):  # type: ignore[misc]
            def _split_scope(self, nodeid: str) -> str:
                return group_of(nodeid)

        return Together(config, log) if config.getvalue("dist") == "loadfile" else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Ends the run where what is computed is wrong."""
        self._seconds[_file(report.nodeid)] += report.duration
        if report.failed and self._is_staged and not self._is_worker and not stage_of(report.nodeid):
            why = f"{report.nodeid} failed, and is computed: the later stages would take long to say the same"
            workers: Any = self._config.pluginmanager.get_plugin("dsession")
            if workers is not None:
                workers.shouldstop = workers.shouldstop or why
            else:
                self._config.pluginmanager.get_plugin("session").shouldfail = why  # type: ignore[union-attr]

    def pytest_sessionfinish(self) -> None:
        """Writes down how long files took; those that did not run keep what stands there."""
        if self._is_worker or not os.environ.get("RMGR_RECORD_DURATIONS"):
            return
        found = recorded() | {name: round(seconds, 1) for name, seconds in self._seconds.items()}
        kept = {name: found[name] for name in sorted(found) if found[name] >= _LEAST_S and (TESTS.parent / name).exists()}
        _DURATIONS.write_text(json.dumps(kept, indent=0) + "\n", encoding="utf-8")


def group_of(name: str) -> str:
    """The files that run in one worker with this test, or its file alone. name: of a test or a file."""
    return _GROUP.get(_file(name), _file(name))


def _file(name: str) -> str:
    return name.partition("::")[0]


def pytest_configure(config: pytest.Config) -> None:
    """Joins the run."""
    if not config.pluginmanager.has_plugin(Stages.__name__):
        config.pluginmanager.register(Stages(config), Stages.__name__)
