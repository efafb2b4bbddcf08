"""The policy that rmgr/sched/README.md teaches: as printed there it loads, is at most 40 lines long, and does what its docstring says."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import rmgr.sched
from rmgr.sched.engine import run_pass
from rmgr.sched.job import Job, Node
from rmgr.sched.plan import Start
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.state import ClusterState

HOUR_US = 3_600_000_000


@pytest.fixture
def example() -> Iterator[types.ModuleType]:
    text = (Path(rmgr.sched.__file__).parent / "README.md").read_text("utf-8")
    (source,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(source.splitlines()) <= 40
    module = types.ModuleType("keep_room")
    sys.modules["keep_room"] = module  # dataclasses look their module up
    exec(source, module.__dict__)
    yield module
    del sys.modules["keep_room"]


def test_the_policy_of_the_readme_does_what_it_says(example: types.ModuleType) -> None:
    # 8 nodes. Jobs 1 (5 nodes) and 2 (2 nodes) are long, 3 (2 nodes) is short: 2 would leave 1 < 2 free, 3 may have them.
    state = ClusterState(Node(id=i) for i in range(8))
    for job_id, processes, limit_us in ((1, 5, 2 * HOUR_US), (2, 2, 2 * HOUR_US), (3, 2, HOUR_US)):
        state.job_submitted(Job(id=job_id, submit_us=0, processes=processes, limit_us=limit_us))
    plan = run_pass(state, frozenset({Cause.JOB_SUBMITTED}), now=0, seed=0, pipeline=(Stage(example.KeepRoom()),))
    assert plan.faults == ()
    assert [d.job_id for d in plan.decisions if isinstance(d, Start)] == [1, 3]
    assert str(plan.why(2)) == "keep_room: would leave 1 cores free for short jobs"
