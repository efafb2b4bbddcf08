"""deploy/lib/starter_loss.py kills a Starter that holds work, even if its looks at the cluster fall between tasks."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.places import ROOT


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("starter_loss", ROOT / "deploy" / "lib" / "starter_loss.py")
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def starter() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def told(looks: list[str], pid: int, state: str = "RUNNING") -> Any:
    """What the cluster says: at each look at its tasks the next word of `looks`, how its two running tasks stand just then."""

    def rmgr(*words: str) -> Any:
        if words[0] == "jobs":
            return {"jobs": [{"id": "7", "state": state, "counts": {"COMPLETED": 6, "RUNNING": 2}}]}
        if words[0] == "nodes":
            return {"nodes": [{"id": "n1", "pid": pid}]}
        now = looks.pop(0)
        return {"tasks": [{"state": now, "node": "n1" if now == "RUNNING" else ""}] * 2}

    return rmgr


@pytest.mark.parametrize(
    "looks",
    [
        ["RUNNING", "RUNNING"],
        ["COMPLETED", "STARTING", "RUNNING", "RUNNING"],  # all that ran has ended, and nothing has begun
        ["RUNNING", "COMPLETED", "COMPLETED", "RUNNING", "RUNNING"],  # what it held ended before it was stopped
    ],
)
def test_between_two_tasks_it_looks_again(
    script: ModuleType, starter: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: list[str]
) -> None:
    monkeypatch.setattr(script, "rmgr", told(looks, starter.pid))
    script.kill("7", 0.2, tmp_path / "fault")
    assert starter.wait(60) == -signal.SIGKILL
    assert looks == []
    assert json.loads((tmp_path / "fault").read_text())["node"] == "n1"


def test_a_job_that_has_ended_is_told(script: ModuleType, starter: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(script, "rmgr", told([], starter.pid, "COMPLETED"))
    with pytest.raises(SystemExit, match="job 7 ended before a Starter could be killed"):
        script.kill("7", 0.2, tmp_path / "fault")
    assert starter.poll() is None
