"""What a run says of tests that needed their second go, and when it fails for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT

_TESTS = """
import pathlib, pytest

@pytest.mark.flaky(reruns=1)
@pytest.mark.parametrize("number", range(3))
def test_at_the_second_go(number, request):
    seen = pathlib.Path(__file__).with_name(f"seen-{number}")
    if not seen.exists():
        seen.touch()
        assert False
"""


@pytest.mark.parametrize(("most", "code"), [("", 0), ("3", 0), ("2", 1)])
@pytest.mark.parametrize("workers", [0, 2])
def test_second_goes_are_counted_and_named_and_fail_a_run_that_allows_fewer(tmp_path: Path, most: str, code: int, workers: int) -> None:
    (tmp_path / "test_flaky.py").write_text(_TESTS)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environ |= {"PYTHONPATH": str(ROOT), "RMGR_MOST_RERUNS": most}
    words = ["-m", "pytest", "-p", "tests.harness.second_goes", "-p", "no:cacheprovider", "-n", str(workers), "--rootdir", str(tmp_path)]
    ended = subprocess.run(
        [sys.executable, *words, "."], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert "3 needed a second go" in ended.stdout
    assert [f"test_flaky.py::test_at_the_second_go[{number}]" in ended.stdout for number in range(3)] == [True] * 3
    assert "3 passed, 3 rerun" in ended.stdout.splitlines()[-1]
