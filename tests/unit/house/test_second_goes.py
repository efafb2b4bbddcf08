"""What a run does with tests that fail: which run again, when the run fails for it, and what it says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.places import ROOT

_TESTS = """
import pathlib, pytest

@pytest.fixture(scope="module")
def shared():
    return []

@pytest.mark.parametrize("number", range(3))
def test_at_the_second_go(number, shared):
    seen = pathlib.Path(__file__).with_name(f"seen-{number}")
    if not seen.exists():
        seen.touch()
        shared.append(number)
        assert number == "another", "a deadline"
    assert shared == [], "alone, on fresh fixtures"
"""


def _run(folder: Path, tree: str, text: str, workers: int, most: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "tests" / tree).mkdir(parents=True)
    (folder / "tests" / tree / "test_flaky.py").write_text(text)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "RMGR_SECOND_GO"))}
    environ |= {"PYTHONPATH": str(ROOT), "RMGR_MOST_RERUNS": most}
    words = ["-m", "pytest", "-p", "tests.harness.second_goes", "-p", "no:cacheprovider", "-n", str(workers), "--rootdir", str(folder)]
    return subprocess.run([sys.executable, *words, "."], cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(("most", "code", "workers"), [("", 0, 2), ("3", 0, 0), ("2", 1, 0)])
def test_second_goes_run_alone_at_the_end_are_counted_with_their_causes_and_fail_a_run_that_allows_fewer(
    tmp_path: Path, most: str, code: int, workers: int
) -> None:
    ended = _run(tmp_path, "chaos", _TESTS, workers, most)
    assert ended.returncode == code, ended.stdout + ended.stderr
    at_once, _, at_the_end = ended.stdout.partition("3 needed another go")
    for number in range(3):
        cause = f"tests/chaos/test_flaky.py::test_at_the_second_go[{number}]: test_flaky.py:14: AssertionError: a deadline"
        assert f"failed: {cause}" in at_once, ended.stdout
        assert cause in at_the_end.replace("(stall) ", ""), ended.stdout
    assert ("the run has failed for that" in at_the_end) == bool(code)
    assert "FAILURES" not in ended.stdout
    assert "3 passed, 3 rerun" in ended.stdout.splitlines()[-1]


def test_a_test_that_fails_twice_fails_the_run_and_both_failures_are_shown(tmp_path: Path) -> None:
    ended = _run(tmp_path, "integration", "def test_never():\n    assert 1 == 2, 'never'\n\ndef test_well():\n    pass\n", 0)
    assert ended.returncode == 1, ended.stdout
    assert "1 failed, 1 passed" in ended.stdout.splitlines()[-1]
    assert ended.stdout.count("def test_never") == 2, "once in the run, once in the second go"


def test_what_is_computed_has_one_go(tmp_path: Path) -> None:
    ended = _run(tmp_path, "unit", _TESTS, 0)
    assert ended.returncode == 1, ended.stdout
    assert "needed another go" not in ended.stdout
    assert "3 failed" in ended.stdout.splitlines()[-1]


def test_the_witness_sees_a_process_that_stands_still() -> None:
    script = """if True:
        import time
        from tests.harness.second_goes import Witness
        witness = Witness()
        witness.start()
        time.sleep(1)
        print("watches", flush=True)
        deadline = time.monotonic() + 60
        while not witness.stalls and time.monotonic() < deadline:
            time.sleep(0.05)
        begin, end = witness.stalls[0]
        assert witness.saw(begin - 9, begin + 0.1) and not witness.saw(end + 1, end + 2)
        print(end - begin)
    """
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        time.sleep(3)  # the length of the stall itself
        process.send_signal(signal.SIGCONT)
        assert float(process.stdout.read()) > 2
    assert process.returncode == 0
