"""`rmgr submit --from` on a live, secured cluster submits a whole list or nothing, with ZooKeeper and through a gateway."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from rmgr.coord.protocol import paths
from rmgr.dev.cluster import DevCluster
from tests.harness.ended_sessions import expire_all, sessions
from tests.harness.waiting import eventually
from tests.integration.commands import Ended, Shell

pytestmark = pytest.mark.usefixtures("live")

DIAMOND = """
[defaults]
mem = "64M"
[[job]]
name = "report"
command = "cat {0}/log; echo report"
after = ["left", "any:right"]
[[job]]
name = "left"
command = ["sh", "-c", "test -e {0}/prep && echo left >> {0}/log"]
after = ["prep"]
[[job]]
name = "right"
command = "test -e {0}/prep; exit 3"
after = "ok:prep"
[[job]]
name = "prep"
command = "sleep 0.3; touch {0}/prep"
"""


@pytest.fixture
def sh(in_both_ways: Shell) -> Shell:
    return in_both_ways


def jobs_of(sh: Shell) -> dict[str, dict[str, Any]]:
    return {job["id"]: job for job in sh.ok("jobs", "-a", "--json").json["jobs"]}


def with_failpoint(sh: Shell, failpoint: str, *words: str) -> Ended:
    sh.environment["RMGR_FAILPOINT"] = failpoint
    try:
        return sh(*words)
    finally:
        del sh.environment["RMGR_FAILPOINT"]


def test_dependencies_run_in_their_order_and_the_worst_code_is_told(sh: Shell, tmp_path: Path) -> None:
    file = sh.file("jobs.toml", DIAMOND.format(tmp_path))
    ended = sh("submit", "--from", file, "--wait")
    assert ended.code == 3, ended
    ids = ended.err.splitlines()[:4]
    shown = jobs_of(sh)
    assert [shown[number]["name"] for number in ids] == ["report", "left", "right", "prep"]
    assert [shown[number]["state"] for number in ids] == ["COMPLETED", "COMPLETED", "FAILED", "COMPLETED"]
    assert sh.ok("logs", ids[0]).out == "left\nreport\n"


def test_lines_from_standard_input_give_ids_in_their_order(sh: Shell) -> None:
    lines = "".join(json.dumps({"name": f"j{n}", "command": ["true"], "array": "1-3"}) + "\n" for n in range(150))
    told = sh.ok("submit", "--from", "-", "--json", stdin=lines).json
    assert list(told) == ["schema", "jobs"]
    assert [list(job) for job in told["jobs"]] == [["id", "name", "tasks"]] * 150
    assert [job["name"] for job in told["jobs"]] == [f"j{n}" for n in range(150)]
    assert {job["tasks"] for job in told["jobs"]} == {3}
    assert sh("wait", *(job["id"] for job in told["jobs"])).code == 0
    plain = sh.ok("submit", "--parsable", "--from", "-", stdin='{"command": "true"}\n{"command": "true"}')
    assert all(line.isdigit() for line in plain.out.splitlines())
    assert len(plain.out.splitlines()) == 2


@pytest.mark.parametrize(
    ("bad", "code", "told"),
    [
        ('command = "true"\nqueue = "nowhere"', 3, "job 2, line 3 (bad): there is no queue 'nowhere'"),
        ('command = "true"\nafter = [4000000000]', 3, "job 2, line 3 (bad): --after: there is no submission 4000000000"),
        ('command = "true"\ncores = 90000', 2, "job 2, line 3 (bad): "),
        ('command = "true"\ninput = ["no/such/key=x"]', 3, "job 2, line 3 (bad): --input"),
    ],
)
def test_a_bad_entry_lets_nothing_stand(sh: Shell, bad: str, code: int, told: str) -> None:
    file = sh.file("bad.toml", f'[[job]]\ncommand = "true"\n[[job]]\nname = "bad"\n{bad}\n')
    known = set(jobs_of(sh))
    ended = sh("submit", "--from", file)
    assert (ended.code, ended.out) == (code, ""), ended
    assert f"bad.toml: {told}" in ended.err
    assert set(jobs_of(sh)) == known


def test_a_dry_run_tells_all_and_submits_nothing(sh: Shell, tmp_path: Path) -> None:
    file = sh.file("dry.toml", DIAMOND.format(tmp_path))
    known = set(jobs_of(sh))
    ended = sh.ok("submit", "--from", file, "--dry-run")
    assert ended.out.count("would submit") == 4
    assert "after ok:left, any:right" in ended.out
    told = sh.ok("submit", "--from", file, "--dry-run", "--json").json
    assert told["dry_run"] is True
    assert [job["after"] for job in told["jobs"]] == [["ok:left", "any:right"], ["ok:prep"], ["ok:prep"], []]
    assert set(jobs_of(sh)) == known


def test_options_of_one_job_stand_in_the_list(direct: Shell) -> None:
    ended = direct("submit", "--from", "x.toml", "-c", "2")
    assert ended.code == 2
    assert "cores = ... in [defaults]" in ended.err
    assert "one more" in direct("submit", "--from", "x.toml", "--", "true").err


def test_the_same_token_gives_the_same_list(sh: Shell) -> None:
    file = sh.file("twice.toml", '[[job]]\nname = "a"\ncommand = "true"\n[[job]]\ncommand = "true"\nafter = "a"\n')
    token = f"twice-{id(sh)}"
    first = sh.ok("submit", "--from", file, "--token", token)
    again = sh.ok("submit", "--from", file, "--token", token)
    assert again.out == first.out
    assert "nothing new was submitted" in again.err


def test_entries_that_need_several_commits_run_with_the_rest_or_not_at_all(sh: Shell) -> None:
    file = sh.file(
        "large.jsonl", '{"name": "big", "command": "true", "array": "1-60", "queue": "batch"}\n{"command": "true", "after": "big"}\n'
    )
    assert sh.ok("submit", "--from", file, "--wait").code == 0


#: Where a client dies while it submits a list; the second is where its Submitter does, which may be in a gateway.
MOMENTS = ("list.before_entries", "submitter.after_submit", "list.before_release", "list.after_release")


def test_a_client_that_is_killed_leaves_all_or_nothing(live: DevCluster, sh: Shell, tmp_path: Path) -> None:
    others, left = sessions(live.coordinator), {}
    is_gated = "RMGR_GATEWAY" in sh.environment
    moments = [one for one in MOMENTS if one.startswith("list.") or not is_gated]
    for moment in moments:  # one after another, so that the time for which an owner may be away passes for all of them at once
        (place := tmp_path / moment).mkdir()
        file, known = sh.file(f"{moment}.toml", DIAMOND.format(place)), set(jobs_of(sh))
        ended = with_failpoint(sh, f"{moment}=kill", "submit", "--from", file)
        assert ended.code == -signal.SIGKILL, ended
        left[moment] = set(jobs_of(sh)) - known
    expire_all(live.zookeeper.hosts, live.coordinator, others)

    def all_ended() -> bool:
        jobs = jobs_of(sh)
        return all(jobs[number]["state"] in {"COMPLETED", "FAILED", "CANCELLED"} for mine in left.values() for number in mine)

    eventually(all_ended)
    jobs = jobs_of(sh)
    for moment, mine in left.items():
        assert mine, moment
        states = {jobs[number]["name"]: jobs[number]["state"] for number in mine}
        if moment == "list.after_release":
            assert states.pop("right") == "FAILED"
            assert (set(states.values()), len(states)) == ({"COMPLETED"}, 4)
        else:
            assert set(states.values()) == {"CANCELLED"}, moment
            assert not (tmp_path / moment / "prep").exists()


def test_a_leader_that_is_killed_between_changes_nothing(live: DevCluster, direct: Shell, tmp_path: Path) -> None:
    file = direct.file("failover.toml", DIAMOND.format(tmp_path))
    known, others = set(jobs_of(direct)), [path for path in sessions(live.coordinator) if not path.startswith(paths.WATCHDOGS)]
    assert with_failpoint(direct, "list.before_release=kill", "submit", "--from", file).code == -signal.SIGKILL
    live.kill("w1")
    expire_all(live.zookeeper.hosts, live.coordinator, others)
    live.start_watchdog("w1")
    live.wait_healthy(nodes=3, deadline_s=60.0)

    def all_cancelled() -> bool:
        mine = [job for number, job in jobs_of(direct).items() if number not in known]
        return len(mine) == 5 and {job["state"] for job in mine} == {"CANCELLED"}

    eventually(all_cancelled)
    assert not (tmp_path / "prep").exists()


def test_a_list_that_is_cancelled_meanwhile_is_not_let_go(direct: Shell, tmp_path: Path) -> None:
    file = direct.file("slow.toml", DIAMOND.format(tmp_path))
    known = set(jobs_of(direct))
    cancelled = tmp_path / "cancelled"
    direct.environment["RMGR_FAILPOINT"] = f"list.before_release=until:{cancelled}"
    try:
        with direct.running("submit", "--from", file) as process:
            del direct.environment["RMGR_FAILPOINT"]
            eventually(lambda: len(set(jobs_of(direct)) - known) == 5)
            (anchor,) = (number for number, job in jobs_of(direct).items() if number not in known and job["name"].startswith("list "))
            direct.ok("cancel", anchor)
            cancelled.touch()
            _, err = process.communicate(timeout=60)
    finally:
        direct.environment.pop("RMGR_FAILPOINT", None)
    assert process.returncode != 0
    assert "was not let go" in err
    assert not (tmp_path / "prep").exists()
