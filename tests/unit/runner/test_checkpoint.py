"""`rmgr.checkpoint` as a program uses it."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from rmgr import checkpoint
from tests.places import ROOT


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(checkpoint.VARIABLE, str(tmp_path))
    monkeypatch.delenv("RMGR_NPROCS", raising=False)
    return tmp_path


def ask(home: Path, number: int, *, stop: bool) -> None:
    (home / ".rmgr").mkdir(exist_ok=True)
    (home / ".rmgr" / "request").write_text(json.dumps({"number": number, "stop": stop, "deadline": 9.5}))


def test_what_was_saved_is_restored_and_answers_the_request(home: Path) -> None:
    assert checkpoint.restore(default=(0, "")) == (0, "")
    checkpoint.save((3, "x"))
    assert checkpoint.restore() == (3, "x")
    assert not checkpoint.requested()
    ask(home, 2, stop=False)
    assert checkpoint.requested()
    assert not checkpoint.should_stop()
    checkpoint.save((4, "y"))
    assert (home / ".rmgr" / "saved").read_text() == "2"
    assert not checkpoint.requested()
    ask(home, 3, stop=True)
    assert (checkpoint.requested(), checkpoint.should_stop()) == (True, True)
    assert checkpoint.request() == checkpoint.Request(3, True, 9.5)
    with pytest.raises(SystemExit) as ended:
        checkpoint.stop()
    assert ended.value.code == 85
    assert sorted(path.name for path in home.iterdir()) == [".rmgr", "state.pickle"]
    assert sorted(path.name for path in (home / ".rmgr").iterdir()) == ["request", "saved"]


def test_one_of_several_processes_answers_when_it_is_told_to(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMGR_NPROCS", "4")
    ask(home, 1, stop=False)
    checkpoint.save(7, name="rank2")
    assert checkpoint.requested()
    checkpoint.answer()
    assert not checkpoint.requested()
    assert checkpoint.restore("rank2") == 7


def test_a_save_that_fails_leaves_what_was_there(home: Path) -> None:
    checkpoint.save("old")
    with pytest.raises((AttributeError, pickle.PicklingError)):
        checkpoint.save(lambda: None)
    assert checkpoint.restore() == "old"
    for name in ("", "../x", ".rmgr", "a/b"):
        with pytest.raises(ValueError, match="cannot be the name"):
            checkpoint.save(1, name=name)
    (home / ".rmgr" / "request").write_text("{half")
    assert checkpoint.request() is None


def test_outside_of_a_job_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(checkpoint.VARIABLE, raising=False)
    checkpoint.save(1)
    checkpoint.answer()
    assert checkpoint.restore(default="none") == "none"
    assert not checkpoint.requested()
    assert not checkpoint.should_stop()
    with pytest.raises(RuntimeError, match="RMGR_CHECKPOINT_DIR"):
        checkpoint.directory()


def test_a_program_loads_it_and_nothing_else_of_rmgr() -> None:
    code = "from rmgr import checkpoint; import sys; print(sorted(m for m in sys.modules if m.startswith('rmgr') or m == 'msgspec'))"
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    told = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "['rmgr', 'rmgr.checkpoint']"
