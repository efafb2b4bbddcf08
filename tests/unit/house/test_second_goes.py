"""What a run says of tests that needed their second go, and when it fails for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.second_goes import allowed
from tests.places import ROOT

_TESTS = """
import pathlib, pytest

@pytest.mark.flaky(reruns=1)
@pytest.mark.parametrize("number", range(3))
def test_at_the_second_go(number, request):
    seen = pathlib.Path(__file__).with_name(f"seen-{number}")
    if not seen.exists():
        seen.touch()
        assert number == "another", "a deadline"
"""


@pytest.mark.parametrize(
    ("text", "processors", "load", "most"),
    [("", 8, 0.0, None), ("5", 1, 99.0, 5), ("auto", 4, 1.0, 2), ("auto", 4, 3.5, None), ("auto", 2, 0.0, None)],
)
def test_a_machine_of_ones_own_has_a_bound(text: str, processors: int, load: float, most: int | None) -> None:
    assert allowed(text, processors, load) == most


@pytest.mark.parametrize(("most", "code"), [("", 0), ("3", 0), ("2", 1)])
@pytest.mark.parametrize("workers", [0, 2])
def test_second_goes_are_counted_with_their_causes_and_fail_a_run_that_allows_fewer(
    tmp_path: Path, most: str, code: int, workers: int
) -> None:
    (tmp_path / "test_flaky.py").write_text(_TESTS)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environ |= {"PYTHONPATH": str(ROOT), "RMGR_MOST_RERUNS": most}
    words = ["-m", "pytest", "-p", "tests.harness.second_goes", "-p", "no:cacheprovider", "-n", str(workers), "--rootdir", str(tmp_path)]
    ended = subprocess.run(
        [sys.executable, *words, "."], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert "3 needed a second go" in ended.stdout
    at_once, _, at_the_end = ended.stdout.partition("3 needed a second go")
    for number in range(3):
        cause = f"test_flaky.py::test_at_the_second_go[{number}]: test_flaky.py:10: AssertionError: a deadline"
        assert f"second go: {cause}" in at_once, ended.stdout
        assert cause in at_the_end, ended.stdout
    assert "3 passed, 3 rerun" in ended.stdout.splitlines()[-1]
