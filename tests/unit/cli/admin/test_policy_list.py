"""`rmgr policy list`: every name of the catalogue with its parameters, in text and JSON; those of files and plug-ins, broken ones too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmgr.cli.main import run
from rmgr.sched.catalogue import POLICIES

Captured = pytest.CaptureFixture[str]

MINE = '''\
"""Search: keeps cores free."""
from dataclasses import dataclass, field
from typing import ClassVar
from rmgr.sched.parameters import about

@dataclass(frozen=True)
class KeepRoom:
    name: ClassVar[str] = "keep_room"
    spare_cores: int = field(default=2, metadata=about("cores for short jobs", unit="cores", least=0, most=64))
    short_us: int = 3_600_000_000

    def plan(self, draft, causes): ...
'''


def test_json_has_every_policy_with_its_parameters(capsys: Captured) -> None:
    assert run(["policy", "list", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    listed = {policy["name"]: policy for policy in answer["policies"]}
    assert list(listed)[: len(POLICIES) + 2] == ["fair", "fifo", *POLICIES]
    assert listed["fifo"] == {"name": "fifo", "summary": listed["fifo"]["summary"], "parameters": {}, "dispatch": "pull"}
    assert listed["sjf"]["parameters"]["order"]["default"] == "sjf"
    assert listed["easy"]["parameters"]["max_wait"]["unit"] == "s"
    assert all(policy["summary"] for policy in answer["policies"])


def test_text_tells_where_they_work_and_how_one_is_set(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["policy", "list"]) == 0
    told = capsys.readouterr()
    assert [line.split()[0] for line in told.out.splitlines()][:4] == ["POLICY", "fair", "fifo", "fcfs"]
    assert "order=ljf" in told.out
    assert "rmgr policy set NAME" in told.err
    assert run(["policy", "list", "easy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:4] == ["PARAMETER", "KIND", "DEFAULT", "RANGE"]
    assert [line.split()[0] for line in lines[2:5]] == ["search", "order", "max_wait"]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    assert run(["policy", "list", "easy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    at = lines.index("half_life  duration; default 7d; from 1s to 36500d")
    assert lines[at + 1] == "    with order=fair_share: use counts half after so long"
    assert run(["policy", "list", "esay"]) == 2
    assert "did you mean easy" in capsys.readouterr().err


def test_a_file_and_plug_ins_are_listed_broken_ones_with_their_error(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(MINE)
    (tmp_path / "broken_one.py").write_text("1 / 0\n")
    info = tmp_path / "kyoto-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kyoto\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rmgr.policies]\nkeep = mine:KeepRoom\nbroken = broken_one:X\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert run(["policy", "list", "--json"]) == 0
    *_, broken, keep = json.loads(capsys.readouterr().out)["policies"]
    assert (broken["name"], "raises ZeroDivisionError" in broken["error"]) == ("broken", True)
    assert (keep["origin"], keep["summary"]) == ("mine:KeepRoom", "Search: keeps cores free")
    assert keep["parameters"]["spare_cores"] == {
        "kind": "integer",
        "default": 2,
        "unit": "cores",
        "least": 0,
        "most": 64,
        "summary": "cores for short jobs",
    }
    assert keep["parameters"]["short"]["default"] == 3600.0
    assert run(["policy", "list", str(mine)]) == 0
    assert "from 0 to 64 cores" in capsys.readouterr().out
