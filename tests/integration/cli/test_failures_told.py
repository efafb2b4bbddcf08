"""Failures are reported with their cause: the limit, the last line of stderr, equal ends once, and hints that work."""

from __future__ import annotations

import pytest

from tests.harness.waiting import eventually
from tests.integration.commands import Shell

pytestmark = pytest.mark.usefixtures("live")

ODD = 'echo "working on $RMGR_ARRAY_INDEX"; [ $((RMGR_ARRAY_INDEX % 2)) = 0 ] || { echo "bad parameter $RMGR_ARRAY_INDEX" >&2; exit 3; }'


def test_alike_ends_are_told_once_with_what_one_of_them_said(sh: Shell) -> None:
    number = sh.submit("--array", "1-6", "--", "sh", "-c", ODD)
    assert sh("wait", number).code == 3
    for command in ("explain", "show"):
        told = " ".join(sh.ok(command, number).out.split())
        assert "3 of 6 tasks: exit code 3" in told
        assert f"{number}_1 | bad parameter 1" in told
        assert told.count("| bad parameter") == 1
        assert f"rmgr logs {number} --failed" in told
        assert f"rmgr rerun {number} --failed" in told
    found = sh.ok("explain", number, "--json").json
    assert sum(group["tasks"] for group in found["failures"]) == 3
    assert {(group["reason"], group["exit_code"], group["task"], group["stderr"]) for group in found["failures"]} == {
        ("EXIT_CODE", 3, f"{number}_1", "bad parameter 1")
    }
    assert found["next"] == [f"rmgr logs {number} --failed", f"rmgr rerun {number} --failed"]
    [listed] = sh.ok("jobs", number, "--json").json["jobs"]
    assert sum(group["tasks"] for group in listed["failures"]) == 3
    assert "exit code 3 on " in sh.ok("jobs", number).out
    assert "bad parameter 2" not in sh.ok("logs", number, "--failed").err
    kept = sh.ok("logs", number, "--failed")
    assert [line.partition("bad")[2] for line in kept.err.splitlines() if "bad" in line] == [f" parameter {index}" for index in (1, 3, 5)]
    assert "working on 2" not in kept.out
    assert "working on 2" in sh.ok("logs", number).out
    assert "neither -n nor --attempt nor --failed" in sh("logs", "-f", number, "--failed").err


def test_what_has_failed_is_told_while_the_rest_runs(sh: Shell) -> None:
    number = sh.submit("--array", "1-3", "--", "sh", "-c", 'test $RMGR_ARRAY_INDEX = 2 && { echo "bad parameter" >&2; exit 3; }; sleep 600')
    try:
        eventually(lambda: sh.ok("jobs", number, "--json").json["jobs"][0]["counts"]["FAILED"] == 1, "it fails")
        told = sh.ok("explain", number).out
        assert f"{number} is RUNNING" in told or f"{number} is INITIAL" in told
        assert "failed: 1 of 3 tasks: exit code 3 on n" in told
        assert f"{number}_2 | bad parameter" in told
        assert "failed" not in sh.ok("explain", f"{number}_1").out
        assert f"rmgr rerun {number} --failed" in sh.ok("show", number).out
    finally:
        sh.ok("cancel", number)


def test_a_log_that_is_empty_is_not_named(sh: Shell) -> None:
    number = sh.submit("--", "sh", "-c", "exit 7")
    assert sh("wait", number).code == 7
    told = sh.ok("explain", number).out
    assert "failed: exit code 7 on n" in told
    assert "rmgr logs" not in told
    assert f"next: rmgr rerun {number}\n" in told
    sh.ok("submit", "--wait", "--", "true")
    assert "has failed" in sh.ok("logs", "--failed", "last").err


@pytest.mark.parametrize(
    ("words", "code", "told", "again"),
    [
        (["--mem", "60M", "--", "python3", "-c", "x = bytearray(400 << 20)"], 137, r"out of memory on n", "--mem 256M"),
        (["-t", "200ms", "--", "sleep", "60"], 124, "out of time on n", "-t 1s"),
    ],
)
def test_an_end_at_a_limit_says_which_and_what_was_used(sh: Shell, words: list[str], code: int, told: str, again: str) -> None:
    number = sh.submit(*words)
    assert sh("wait", number).code == code
    shown = sh.ok("explain", number).out
    assert told in shown
    assert "over its 60M (peak " in shown if code == 137 else "over its limit of 200ms" in shown
    task = sh.ok("show", f"{number}_0", "--json").json
    assert task["error"].startswith("over its ")
    if code == 137:
        assert task["max_rss_bytes"] > 0
        again = again if task["max_rss_bytes"] <= 64 << 20 else "--mem "
    assert f"rmgr rerun {number} {again}" in shown


def test_a_program_that_is_not_there_is_told_and_nobody_is_sent_to_its_log(sh: Shell) -> None:
    number = sh.submit("--", "no-such-program")
    assert sh("wait", number).code == 127
    told = sh.ok("explain", number).out
    assert "no program no-such-program on node n" in told
    assert "rmgr logs" not in told


def test_what_is_cancelled_beside_failures_is_told_too(sh: Shell) -> None:
    number = sh.submit("--array", "1-30%1", "--max-fails", "0", "--", "sh", "-c", "echo no >&2; exit 4")
    assert sh("wait", number).code == 4
    told = sh.ok("explain", number).out
    assert "1 of 30 tasks: exit code 4 on n" in told
    assert "cancelled: 29 of 30 tasks" in told
