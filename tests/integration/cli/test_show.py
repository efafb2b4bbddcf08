"""`rmgr show` prints all requested details of waiting and of ended work, for people and for programs."""

from __future__ import annotations

import pytest

from tests.integration.commands import Shell

pytestmark = pytest.mark.usefixtures("live")


def test_all_that_was_asked_for(sh: Shell) -> None:
    first = sh.submit("--hold", "--", "true")
    words = ["--array", "1-8%4", "--max-fails", "2", "--retries", "1", "--backoff", "5s", "-t", "1h", "--mem", "64M", "--account", "lab"]
    number = sh.submit(*words, "--priority", "3", "--after", f"any:{first}", "--", "true")
    try:
        told = sh.ok("show", number, "--json").json
        expected = {
            "time_limit": 3600.0, "cap": 4, "max_fails": 2, "retries": 1, "backoff": 5.0, "array": "1-8%4", "account": "lab", "priority": 3,
            "mem_bytes": 64 << 20, "after": [f"any:{first}"], "resubmit": True, "features": [], "nodes_asked": None,
        }  # fmt: skip
        assert {name: told[name] for name in expected} == expected
        shown = sh.ok("show", number).out
        for text in (
            "1 core, 64M",
            "at most 1h",
            "4 at once",
            "more than 2 failures",
            "1 retry",
            "back-off 5s",
            f"any:{first}",
            "lab",
        ):
            assert text in shown
        task = sh.ok("show", f"{number}_1", "--json").json
        assert {name: task[name] for name in ("time_limit", "retries", "cap", "after")} == {
            name: told[name] for name in ("time_limit", "retries", "cap", "after")
        }
    finally:
        sh.ok("cancel", first, number)


def test_what_a_placed_job_asked_for_stays_known_in_the_history(sh: Shell) -> None:
    words = ["-n", "2", "-N", "2", "-t", "5m", "--exclusive", "--exclude", "n3", "--no-requeue"]
    number = sh.submit(*words, "--", "true")
    assert sh("wait", number).code == 0
    expected = {"time_limit": 300.0, "nodes_asked": 2, "exclusive": True, "exclude": ["n3"], "resubmit": False, "processes": 2}
    told = sh.ok("show", number, "--json").json
    assert {name: told[name] for name in expected} == expected
    assert "on 2 nodes, alone on its nodes, not on n3, never again after a loss" in sh.ok("show", number).out
