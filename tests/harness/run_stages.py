"""Orders a run in stages, cheapest first: tests without processes, features on real processes, chaos; in each, the longest files first.

Files that share their own cluster run one after another in one worker, or each worker would start that cluster.

`tests/durations.json` holds how long each file takes; `RMGR_RECORD_DURATIONS=1 tests/run.sh` refreshes it. With `RMGR_STAGED=1`, which
`tests/run.sh` sets, the first failure of a test without processes ends the run: a typo shows in minutes.

Tests that need minutes of waiting, or gigabytes, are marked `long`: `tests/run.sh` leaves them out, `tests/long.sh` runs only them.
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

#: Trees of the later stages; all other tests belong to the first.
_LATER = ("tests/integration/", "tests/chaos/")
INTEGRATION = 1
_DURATIONS = TESTS / "durations.json"
#: Files that share a cluster, by the name of their group, in the order in which they run: those that leave much in the cluster last, those
#: that read all of it first. No group takes longer than the other workers need for the rest of its stage.
#: Files with `cluster_of_run` are in none: each worker has some of them.
_TOGETHER = {
    "attacked": (
        *("chaos/attacks", "chaos/attacks_access", "chaos/attacks_gateway", "chaos/attacks_replay", "chaos/attacks_revoked"),
        *("chaos/attacks_values", "chaos/attacks_places", "chaos/attacks_bounds"),
    ),
    "besieged": ("chaos/attacks_behind", "chaos/fuzz_behind"),
    "brief_and_gangs": ("chaos/gangs_live", "chaos/leaders", "chaos/silence"),
    "brief_and_starters": ("chaos/monkey", "chaos/starters", "chaos/zookeeper"),
    "calls_cluster": ("calls/calls", "calls/shaped_links"),
    "lend_secured": (
        *("client/large_values_killed", "client/large_values_users", "client/many_values", "client/nested_work"),
        *("client/programs_in_turn", "leader/calls_picked", "leader/policies_live", "leader/policies_order", "security/calls_roles"),
        *("security/secured_cluster", "starter/resources_live", "users/run_as_user", "users/unreachable_work"),
    ),
    "live_cli": (
        *("cli/placed_bad_input", "cli/placed_cli", "cli/rerun", "cli/slurm_scripts", "cli/submit_from", "cli/terminal"),
        *("cli/update", "cli/work", "cli/wrong_input"),
    ),
    "live_client": ("client/cpython_executor", "client/owners_gone", "client/programs", "client/programs_apart", "client/taskqueue"),
    "live_others": (
        *("security/no_secrets", "client/executor", "client/output_lines", "client/quiet", "client/rank_tasks", "client/rerun_calls"),
        *("client/user_words", "gateway/fork", "gateway/live", "install/notify", "leader/nowhere", "runner/inherited_signals"),
        *("users/users_rights", "client/large_values"),
    ),
}


def _path(subject: str) -> str:
    """Returns the path of a file. subject: room/subject, of `integration` unless the room is `chaos`."""
    tree = "tests" if subject.startswith("chaos/") else "tests/integration"
    return f"{tree}/{subject.replace('/', '/test_')}.py"


_GROUP = {_path(subject): group for group, subjects in _TOGETHER.items() for subject in subjects}
_PLACE = {_path(subject): place for subjects in _TOGETHER.values() for place, subject in enumerate(subjects)}
#: Shortest time (s) that is recorded.
_LEAST_S = 1.0


def stage_of(name: str) -> int:
    """Returns a test's stage: 0 = without processes, 1 = features, 2 = chaos. name: pytest's id of the test."""
    return next((number for number, tree in enumerate(_LATER, 1) if name.startswith(tree)), 0)


def recorded() -> dict[str, float]:
    """Returns the seconds that each file's tests took in the recorded run, without the quickest files."""
    found: dict[str, float] = json.loads(_DURATIONS.read_text(encoding="utf-8")) if _DURATIONS.exists() else {}
    return found


def long_tests(path: Path) -> frozenset[str]:
    """Returns the names of a file's tests that `tests/run.sh` does not run with any parameters."""
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
    """Orders the files of a run, ends it early, and records how long they took."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._is_worker = hasattr(config, "workerinput")
        self._is_staged = bool(os.environ.get("RMGR_STAGED"))
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Orders tests by stage, and the longest files of each first, so that no worker is left with a long one at the end."""
        seconds: dict[str, float] = defaultdict(float)
        for file, took_s in recorded().items():
            seconds[group_of(file)] += took_s

        def place_of(item: pytest.Item) -> tuple[int, float, str, int]:
            group = group_of(item.nodeid)
            return stage_of(item.nodeid), -seconds[group], group, _PLACE.get(_file(item.nodeid), 0)

        items.sort(key=place_of)

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Gives each worker whole files, or all files of a group."""
        from xdist.scheduler import LoadFileScheduling

        class Together(LoadFileScheduling):  # type: ignore[misc]
            def _split_scope(self, nodeid: str) -> str:
                return group_of(nodeid)

        return Together(config, log) if config.getvalue("dist") == "loadfile" else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds the test's time, and ends a staged run if a test of the first stage fails."""
        self._seconds[_file(report.nodeid)] += report.duration
        if report.failed and self._is_staged and not self._is_worker and not stage_of(report.nodeid):
            why = f"{report.nodeid} failed, and is computed: the later stages would take long to say the same"
            workers: Any = self._config.pluginmanager.get_plugin("dsession")
            if workers is not None:
                workers.shouldstop = workers.shouldstop or why
            else:
                self._config.pluginmanager.get_plugin("session").shouldfail = why  # type: ignore[union-attr]

    def pytest_sessionfinish(self) -> None:
        """Records how long files took; files that did not run keep their recorded time."""
        if self._is_worker or not os.environ.get("RMGR_RECORD_DURATIONS"):
            return
        found = recorded() | {name: round(seconds, 1) for name, seconds in self._seconds.items()}
        kept = {name: found[name] for name in sorted(found) if found[name] >= _LEAST_S and (TESTS.parent / name).exists()}
        _DURATIONS.write_text(json.dumps(kept, indent=0) + "\n", encoding="utf-8")


def group_of(name: str) -> str:
    """Returns the group of a test's file, or the file itself if it is in none. name: of a test or a file."""
    return _GROUP.get(_file(name), _file(name))


def _file(name: str) -> str:
    return name.partition("::")[0]


def pytest_configure(config: pytest.Config) -> None:
    """Registers the stages, once per run."""
    if not config.pluginmanager.has_plugin(Stages.__name__):
        config.pluginmanager.register(Stages(config), Stages.__name__)
