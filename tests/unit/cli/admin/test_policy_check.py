"""`rmgr policy check`: what each kind of bad policy is told, in a world small enough to read; the seed repeats it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rmgr.cli.main import run

HEAD = """\
from dataclasses import dataclass
from typing import ClassVar
from rmgr.sched.plan import Why

WHY = Why("mine", "because")
MEMORY = []

@dataclass(frozen=True)
class Mine:
    name: ClassVar[str] = "mine"

    def plan(self, draft, causes):
        draft.leave_rest(WHY)
"""
#: What it does -> the law that it breaks.
BAD = {
    "remembers": ("MEMORY.append(1); len(MEMORY) % 2 or [draft.start(j.id, WHY) for j in draft.by_arrival()]", "pure"),
    "raises": ("[draft.start(j.id, WHY) for j in draft.by_arrival() if 1 / (j.id - 2)]", "sound"),
    "sleeps": ("while True: pass", "in_time"),
    "refuses": ("[draft.start(j.id, WHY) for j in draft.by_arrival() if j.processes < 3]", "served"),
    "is_silent": ("draft.rest = None; [draft.start(j.id, WHY) for j in draft.by_arrival()]", "explained"),
    "passes_by": ("[draft.start(j.id, WHY) for j in draft.by_arrival()]", "endless"),
}
GOOD = "\n        ".join(
    (
        "for job in draft.by_arrival():",
        "    if not hasattr(draft.start(job.id, WHY), 'at_us'):",
        "        return",
    )
)
WAIVED = HEAD.replace('"mine"\n\n    def', '"mine"\n    waives: ClassVar[dict] = {"endless": "a whim of mine"}\n\n    def')

Captured = pytest.CaptureFixture[str]


def policy(tmp_path: Path, does: str, head: str = HEAD) -> str:
    path = tmp_path / "mine.py"
    path.write_text(f"{head}        {does}\n", "utf-8")
    return str(path)


@pytest.mark.parametrize(("does", "law"), BAD.values(), ids=BAD)
def test_a_broken_law_is_named_with_a_small_world_and_how_to_repeat_it(tmp_path: Path, capsys: Captured, does: str, law: str) -> None:
    file, budget = policy(tmp_path, does), "0.05" if law == "in_time" else "60"
    assert run(["policy", "check", file, "--worlds", "25", "--budget", budget]) == 1
    told = capsys.readouterr().out
    (seed,) = re.findall(rf"^{law} is broken: .*?--seed (\d+) --worlds 1$", told, re.DOTALL | re.MULTILINE)
    assert "in the smallest world found:" in told
    if law == "endless":
        return
    assert run(["policy", "check", file, "--worlds", "1", "--seed", seed, "--budget", budget, "--json"]) == 1
    laws = {row["law"]: row for row in json.loads(capsys.readouterr().out)["laws"]}
    assert laws[law]["verdict"] == "broken"
    jobs = [line for line in laws[law]["breach"]["story"] if re.match(r"  job \d+: ", line)]
    assert len(jobs) <= 3


def test_a_lawful_policy_passes_and_a_waiver_is_told(tmp_path: Path, capsys: Captured) -> None:
    assert run(["policy", "check", policy(tmp_path, GOOD), "--worlds", "40", "--budget", "60", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["lawful"]
    assert {row["verdict"] for row in answer["laws"]} == {"holds"}
    assert answer["worlds"] == 40
    does, _ = BAD["passes_by"]
    assert run(["policy", "check", policy(tmp_path, does, WAIVED), "--worlds", "5", "--budget", "60"]) == 0
    assert "endless is waived: a whim of mine" in capsys.readouterr().out


def test_what_is_no_policy_is_a_usage_error(tmp_path: Path, capsys: Captured) -> None:
    assert run(["policy", "check", "easi"]) == 2
    assert "did you mean easy" in capsys.readouterr().err
    assert run(["policy", "check", policy(tmp_path, "return", "import nothing_there\n" + HEAD)]) == 2
    assert "line 1" in capsys.readouterr().err
    assert run(["policy", "check", "--param", "order=sjf"]) == 2
