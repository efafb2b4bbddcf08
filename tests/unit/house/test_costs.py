"""What a run says that it has cost, by kinds of tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import costs
from tests.places import ROOT

#: A child that computes for as long as is said here, and a WatchDog, as far as a start of one can be seen.
_TEST = """
import subprocess, sys

def test_costs():
    work = "import time; end = time.process_time() + {seconds}\\nwhile time.process_time() < end: pass"
    subprocess.run([sys.executable, "-c", work], check=True)
    for place in {clusters}:
        subprocess.run([sys.executable, "-c", "", "watchdog"], env={{"RMGR_ZK": place}}, check=True)
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_tells_what_each_kind_of_tests_has_cost_with_its_children(tmp_path: Path, workers: int) -> None:
    for tree, seconds, clusters in (("unit", 1.0, ()), ("chaos", 2.0, ("a", "a", "b"))):
        (tmp_path / "tests" / tree).mkdir(parents=True)
        (tmp_path / "tests" / tree / f"test_{tree}.py").write_text(_TEST.format(seconds=seconds, clusters=clusters))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    words = ["-m", "pytest", "-p", "tests.harness.costs", "-p", "no:cacheprovider", "-n", str(workers), "--dist", "loadfile"]
    ended = subprocess.run(
        [sys.executable, *words, "--rootdir", str(tmp_path), "."],
        cwd=tmp_path,
        env=environ | {"PYTHONPATH": str(ROOT), "RMGR_COSTS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = {
        row[1]: [float(cell) for cell in row[2].split("|")]
        for row in re.finditer(r"^\| (\w+) \| ([\d., |]+) \|$", ended.stdout, re.MULTILINE)
    }
    assert rows.keys() == {"unit", "chaos", "all"}, ended.stdout
    assert [rows[kind][0] for kind in ("unit", "chaos", "all")] == [1, 1, 2]
    assert rows["unit"][2] >= 1
    assert rows["chaos"][2] >= 2
    assert rows["all"][2] >= 3
    assert [rows[kind][3] for kind in ("unit", "chaos", "all")] == [0, 2, 2]


def test_the_table_adds_up_kinds() -> None:
    cost = {"tests": 2, "s": 3.0, "cpu_s": 1500.0, "clusters": 1, "jvms": 1}
    found = costs.table({"tests/test_house.py": cost, "tests/unit/a/test_b.py": cost, "tests/unit/a/test_c.py": cost})
    assert found[0] == "| kind | tests | seconds | CPU-seconds | clusters | JVMs |"
    assert found[2:] == ["| house | 2 | 3 | 1,500 | 1 | 1 |", "| unit | 4 | 6 | 3,000 | 2 | 2 |", "| all | 6 | 9 | 4,500 | 3 | 3 |"]
