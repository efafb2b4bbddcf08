"""`rmgr rerun` runs stored commands again, `--max-fails` ends them, and `rmgr explain` says why work failed and what to type."""

from __future__ import annotations

import pytest

from rmgr.dev.cluster import DevCluster
from tests.harness.waiting import eventually
from tests.integration.commands import Shell

pytestmark = pytest.mark.usefixtures("live")


def outputs(sh: Shell, number: str) -> list[str]:
    """Lines of all tasks, with their ids."""
    return sorted(line for line in sh.ok("logs", number).out.splitlines() if line)


def test_what_failed_runs_again_under_its_own_numbers(sh: Shell) -> None:
    mended = sh.directory / "mended"
    text = f'[ -e {mended} ] || [ $((RMGR_ARRAY_INDEX % 2)) = 0 ] || exit 3; echo "$RMGR_ARRAY_INDEX $GIVEN $SECOND"'
    number = sh.submit("--array", "1-7%2", "--env", "GIVEN=once", "--env", "SECOND=a", "-J", "sweep", "--", "sh", "-c", text)
    assert sh("wait", number).code == 3
    mended.touch()
    told = sh.ok("rerun", number, "--failed", "--env", "SECOND=b", "--mem", "64M").out
    again = told.split()[2].rstrip(":")
    assert told == f"Submitted job {again}: 4 tasks of {number}\n"
    assert sh("wait", again).code == 0
    assert [" ".join(line.split()) for line in outputs(sh, again)] == [f"{again}_{index}| {index} once b" for index in (1, 3, 5, 7)] or [
        line.partition(" ")[2].strip() for line in outputs(sh, again)
    ] == [f"{index} once b" for index in (1, 3, 5, 7)], outputs(sh, again)
    shown = sh.ok("show", again, "--json").json
    assert (shown["name"], shown["array"], shown["cap"], shown["mem_bytes"]) == ("sweep", "1-7:2%2", 2, 64 << 20)
    one = sh.ok("rerun", number, "--tasks", "2,5-6", "--json").json
    assert (one["tasks"], one["of"]) == (3, number)
    assert sh("wait", one["id"]).code == 0
    assert sh.ok("show", one["id"], "--json").json["array"] == "2,5-6%2"
    assert sh.ok("rerun", f"{number}_4", "--parsable").out.strip().isdigit()


def test_script_stdin_upload_lines_and_files_are_those_that_were_given(sh: Shell) -> None:
    script = sh.file("job.sh", '#!/bin/sh\n#RMGR -J scripted\nread first\necho "$1 $first $RMGR_ENTRY $(cat given)"\nexit 5\n')
    sh.file("given", "uploaded")
    sh.file("stdin", "from stdin\n")
    sh.file("lines", "red\ngreen\n\nblue\n")
    number = sh.submit("--each-line", "lines", "--stdin", "stdin", "--upload", "given", script, "argument")
    assert sh("wait", number).code == 5
    for name in ("job.sh", "given", "stdin", "lines"):
        (sh.directory / name).unlink()
    expected = [f"argument from stdin {line} uploaded" for line in ("blue", "green", "red")]
    again = sh("rerun", number, "--wait", "--json")
    assert again.code == 5
    found = sh.ok("jobs", "last", "--json").json["jobs"][0]
    assert (found["name"], found["tasks"], found["array"]) == ("scripted", 3, "0-2")
    assert sorted(line[line.index("argument") :] for line in outputs(sh, found["id"])) == expected
    third = sh.ok("rerun", found["id"], "--tasks", "2", "--parsable").out.strip()
    assert sh("wait", third).code == 5
    assert outputs(sh, third)[0].endswith("argument from stdin blue uploaded"), "a part of a part keeps its lines"


def test_placed_jobs_keep_their_shape_and_limits_may_be_others(sh: Shell) -> None:
    number = sh.submit("-n", "2", "-N", "2", "-t", "5m", "--exclude", "n3", "--begin", "1s", "--", "sh", "-c", "exit 6")
    assert sh("wait", number).code == 6
    plan = sh.ok("rerun", number, "-t", "90s", "--dry-run", "--json").json
    assert (plan["time_limit"], plan["placed"]["processes"], plan["placed"]["nodes"], plan["placed"]["exclude"]) == (90.0, 2, 2, ["n3"])
    assert plan["placed"]["begin"] is None, "--begin is not repeated"
    assert sh("rerun", number, "--wait").code == 6


def test_output_keys_of_what_failed_can_be_had_again(sh: Shell) -> None:
    ready = sh.directory / "ready"
    number = sh.submit("--array", "1-2", "--output", "again/%a=out.txt", "--", "sh", "-c", f"[ -e {ready} ] && echo fine > out.txt")
    assert sh("wait", number).code == 1
    ready.touch()
    assert sh("rerun", number, "--failed", "--wait").code == 0
    assert sh.ok("store", "get", "again/2").out == "fine\n"
    refused = sh("rerun", number)
    assert refused.code == 1
    assert "the key 'again/1' exists already" in refused.err


def test_of_some_tasks_those_that_failed_run_again(sh: Shell) -> None:
    number = sh.submit("--array", "1-9", "--", "sh", "-c", "exit $((RMGR_ARRAY_INDEX % 2))")
    assert sh("wait", number).code == 1
    again = sh.ok("rerun", number, "--failed", "--tasks", "3-6", "--hold", "--parsable").out.strip()
    assert sorted(task["index"] for task in sh.ok("tasks", again, "--json").json["tasks"]) == [3, 5]
    assert "nothing to run again" in sh.ok("rerun", number, "--failed", "--tasks", "2,4,77").err
    assert "nothing to run again" in sh.ok("rerun", number, "--lost", "--tasks", "1-9").err
    sh.ok("cancel", again)


def test_nothing_to_run_again_is_said_and_wrong_input_is_told(sh: Shell) -> None:
    number = sh.submit("--wait", "--", "true") or sh.ok("jobs", "last", "--json").json["jobs"][0]["id"]
    nothing = sh.ok("rerun", number, "--failed")
    assert (nothing.out, f"nothing to run again: no task of {number} has failed" in nothing.err) == ("", True)
    assert sh.ok("rerun", number, "--lost", "--json").json == {"schema": "rmgr/1", "id": "", "tasks": 0, "of": number}
    for words, code, told in (
        ((number, "--failed", "--lost"), 2, "exclude each other"),
        ((number, "--tasks", "0,9"), 3, f"there is no task {number}_9"),
        ((number, "--tasks", "x"), 2, "is not an array"),
        ((f"{number}_0", "--failed"), 2, "names a task already"),
        (("999999",), 3, "there is no submission 999999"),
        ((number, "--mem", "900T"), 2, ""),
        ((number, "--python", "x"), 2, ""),
    ):
        ended = sh("rerun", *words)
        assert (ended.code, told in ended.err) == (code, True), (words, ended)


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
    assert {task["reason"] for task in tasks if task["state"] == "CANCELLED"} == {"MAX_FAILS"}, "those that ran, too"


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
