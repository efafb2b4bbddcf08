"""The policies that rmgr/docs/policies.md prints: they load, type-check and do what they say; the first is at most 40 lines long."""

from __future__ import annotations

import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import rmgr
from rmgr.sched.engine import run_pass
from rmgr.sched.job import Job, Node
from rmgr.sched.plan import Send, Start
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.records import Call, Server
from rmgr.sched.state.cluster import ClusterState
from tests.places import ROOT

HOUR_US = 3_600_000_000
TEXT = (Path(rmgr.__file__).parent / "docs/policies.md").read_text("utf-8")
NAMES = ("keep_room", "nearest")
SOURCES = dict(zip(NAMES, re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL), strict=True))
SUBMITTED = frozenset({Cause.JOB_SUBMITTED})


@pytest.fixture
def example(request: pytest.FixtureRequest) -> Iterator[types.ModuleType]:
    module = types.ModuleType(request.param)
    sys.modules[request.param] = module  # dataclasses look their module up
    exec(SOURCES[request.param], module.__dict__)
    yield module
    del sys.modules[request.param]


def test_every_policy_of_the_document_type_checks(tmp_path: Path) -> None:
    assert len(SOURCES["keep_room"].splitlines()) <= 40
    for name, source in SOURCES.items():
        (tmp_path / f"{name}.py").write_text(source, "utf-8")
    files = [str(tmp_path / f"{name}.py") for name in NAMES]
    argv = [sys.executable, "-m", "mypy", "--strict", "--cache-dir=.mypy_cache/readme", *files]  # a cache of its own: other options
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert "2 source files" in done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if str(tmp_path) in line or tmp_path.name in line] == []


@pytest.mark.parametrize("example", ["keep_room"], indirect=True)
def test_the_policy_of_the_document_does_what_it_says(example: types.ModuleType) -> None:
    # 8 nodes. Jobs 1 (5 nodes) and 2 (2 nodes) are long, 3 (2 nodes) is short: 2 would leave 1 < 2 free, 3 may have them.
    state = ClusterState(Node(id=i) for i in range(8))
    for job_id, processes, limit_us in ((1, 5, 2 * HOUR_US), (2, 2, 2 * HOUR_US), (3, 2, HOUR_US)):
        state.job_submitted(Job(id=job_id, submit_us=0, processes=processes, limit_us=limit_us))
    plan = run_pass(state, SUBMITTED, now=0, seed=0, pipeline=(Stage(example.KeepRoom()),))
    assert plan.faults == ()
    assert [d.job_id for d in plan.decisions if isinstance(d, Start)] == [1, 3]
    assert str(plan.why(2)) == "keep_room: would leave 1 core free for short jobs"


@pytest.mark.parametrize("example", ["nearest"], indirect=True)
def test_the_server_selection_of_the_readme_sends_calls_to_the_nearest_server(example: types.ModuleType) -> None:
    state = ClusterState()
    state.server_changed(Server("A", 400e6, 0, (("c", 0.20e6),), partition="calls"))
    state.server_changed(Server("B", 40e6, 9, (("c", 1.08e6),), partition="calls", functions=("f",)))
    for call_id, function in ((1, "f"), (2, ""), (3, "g"), (4, "f")):
        excluded = ("A", "B") if call_id == 4 else ()
        state.call_submitted(Call(call_id, 0, 144_720_000, 2_892_000, "c", "calls", function, excluded))
    plan = run_pass(state, SUBMITTED, now=0, seed=0, pipeline=(Stage(example.Nearest()),))
    assert plan.faults == ()
    assert [(d.job_id, d.to) for d in plan.decisions if isinstance(d, Send)] == [(1, "B"), (2, "B"), (3, "A")]
    assert str(plan.why(4, "calls")) == "nearest: no open server offers f"
