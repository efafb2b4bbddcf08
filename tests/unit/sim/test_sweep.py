"""`rmgr sim sweep`: every combination once, the same bytes however often it was interrupted, nothing half-written among results."""

from __future__ import annotations

import csv
import hashlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rmgr.cli.main import run
from rmgr.cli.sim.runs import parse_seeds
from rmgr.errors import UsageError
from tests.harness.waiting import eventually

WORDS = ["sim", "sweep", "--policy", "fcfs,easy", "--load", ".7", "--seeds", "1-2", "lublin99", "--count", "1500", "--jobs", "2"]
Captured = pytest.CaptureFixture[str]


def digests(directory: Path) -> dict[str, str]:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_sweep_that_was_interrupted_goes_on_to_the_same_bytes(tmp_path: Path, capsys: Captured) -> None:
    for attempt in range(10):
        out = tmp_path / f"stopped{attempt}"
        words = [sys.executable, "-m", "rmgr.cli.main", *WORDS, "--out", str(out)]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            eventually(lambda out=out, process=process: list(out.glob("runs/[!.]*")) or process.poll() is not None)
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=120)
        if process.returncode != 0:  # else it was through before it heard of it: we were held up
            break
    assert process.returncode == 130, told
    assert "the same command goes on" in told
    assert "Traceback" not in told
    kept = digests(out)
    assert "results.csv" not in kept
    assert not [name for name in kept if "partial" in name]
    assert run([*WORDS, "--out", str(out)]) == 0
    assert run([*WORDS, "--out", str(tmp_path / "whole")]) == 0
    capsys.readouterr()
    assert digests(out) == digests(tmp_path / "whole")
    assert kept.items() <= digests(out).items()

    rows = list(csv.DictReader((out / "results.csv").read_text().splitlines()))
    assert [row["name"] for row in rows[:3]] == ["fcfs-load0.7-seed1", "fcfs-load0.7-seed2", "easy-load0.7-seed1"]
    assert len(rows) == 4
    submits = [(out / "runs" / f"{policy}-load0.7-seed1" / "jobs.csv").read_text().splitlines() for policy in ("fcfs", "easy")]
    asked = [[line.split(",")[:6] for line in lines] for lines in submits]
    assert asked[0] == asked[1]  # common random numbers

    # It is finished: again, it only reads. Another sweep is refused and changes nothing.
    before = digests(out)
    assert run([*WORDS, "--out", str(out), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 4
    assert run([*WORDS, "--seeds", "1-3", "--out", str(out)]) == 2
    assert "holds another sweep: its runs differ" in capsys.readouterr().err
    assert digests(out) == before


LAZY = """
from dataclasses import dataclass
from typing import ClassVar

@dataclass(frozen=True)
class Lazy:
    name: ClassVar[str] = "lazy"
    def plan(self, draft, causes): ...
"""


def test_a_failed_run_ends_the_sweep_and_says_which(tmp_path: Path, capsys: Captured) -> None:
    lazy = tmp_path / "lazy.py"
    lazy.write_text(LAZY)
    assert run(["sim", "sweep", "--policy", str(lazy), "lublin99", "--count", "5", "--out", str(tmp_path / "out")]) == 1
    told = capsys.readouterr().err
    assert "run lazy.py-seed0" in told
    assert "leaves 5 jobs waiting for ever" in told
    assert not (tmp_path / "out" / "results.csv").exists()


def test_a_wrong_name_or_a_directory_of_something_else_is_told_before_anything_runs(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "bad.swf").write_text("; MaxProcs: 4\n1 0 -1 x 1 -1 -1 1 5 -1 1 1 1 -1 -1 -1 -1 -1\n")
    words = ["sim", "sweep", "--policy", "fcfs", str(tmp_path / "mine" / "bad.swf"), "--out", str(tmp_path / "out")]
    assert run(words) == 2
    assert "line 2, field 4 (run time)" in capsys.readouterr().err
    for words, told in (
        (["--policy", "fcfs,esay", "--out", str(tmp_path / "out")], "esay"),
        (["--policy", "fcfs", "--out", str(tmp_path / "mine")], "is no sweep"),
        (["--policy", "fcfs,fcfs", "--out", str(tmp_path / "out")], "stands in it twice"),
        (["--policy", "fcfs", "--load", "a", "--out", str(tmp_path / "out")], "not a factor"),
    ):
        assert run(["sim", "sweep", "lublin99", *words]) == 2
        assert told in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [tmp_path / "mine"]


def test_seeds_are_lists_and_ranges() -> None:
    assert parse_seeds("1-3,7") == (1, 2, 3, 7)
    for wrong in ("", "x", "3-1", "1-", "-1", "0-999999"):
        with pytest.raises(UsageError):
            parse_seeds(wrong)
