"""`--max-fails N` on a live cluster cancels the rest of pulled or placed work after more than N failures, also after a fail-over."""

from __future__ import annotations

import pytest

from rmgr.dev.cluster import DevCluster
from tests.harness.waiting import eventually
from tests.integration.commands import Shell

pytestmark = pytest.mark.usefixtures("live")


@pytest.mark.parametrize("placed", [(), ("-q", "batch", "-t", "5m")])
def test_the_rest_is_cancelled_and_says_why(sh: Shell, placed: tuple[str, ...]) -> None:
    words = "test $RMGR_ARRAY_INDEX -gt 2 || exit 3; sleep 300"
    number = sh.submit("--array", "1-40", "--max-fails", "1", *placed, "--", "sh", "-c", words)
    ended = sh("wait", number, "--timeout", "60s")
    assert ended.code == 3, ended  # the work's own code: what ran was ended, and nobody waited for its 300 s
    shown = sh.ok("show", number, "--json").json
    assert (shown["state"], shown["reason"], shown["max_fails"]) == ("FAILED", "MAX_FAILS", 1)
    assert shown["counts"]["FAILED"] == 2
    assert shown["counts"]["CANCELLED"] == 38
    assert "2 tasks failed, --max-fails is 1" in sh.ok("show", number).out
    assert "MAX_FAILS" in sh.ok("explain", number).out
    tasks = sh.ok("tasks", number, "--json").json["tasks"]
    assert "MAX_FAILS" in {task["reason"] for task in tasks if task["state"] == "CANCELLED"}


def test_as_many_as_allowed_stop_nothing(sh: Shell) -> None:
    number = sh.submit("--array", "1-9", "--max-fails", "3", "--", "sh", "-c", "test $RMGR_ARRAY_INDEX -gt 3")
    assert sh("wait", number).code == 1
    shown = sh.ok("show", number, "--json").json
    assert (shown["counts"]["FAILED"], shown["counts"]["COMPLETED"]) == (3, 6)


def test_a_leader_that_is_killed_leaves_it_to_the_next(live: DevCluster, sh: Shell) -> None:
    words = f"test $RMGR_ARRAY_INDEX -gt 1 && sleep 300; until test -e {sh.directory}/go; do sleep 0.1; done; exit 3"
    number = sh.submit("--array", "1-30", "--max-fails", "0", "--", "sh", "-c", words)
    eventually(lambda: sh.ok("show", number, "--json").json["counts"]["RUNNING"] > 1)
    live.kill("w1")
    sh.file("go", "")
    live.start_watchdog("w1")
    assert sh("wait", number, "--timeout", "60s").code == 3
    assert sh.ok("show", number, "--json").json["counts"]["CANCELLED"] == 29
    live.wait_healthy(nodes=3, deadline_s=60.0)
