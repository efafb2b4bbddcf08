"""Wrong input, or input in the style of other systems: one line per case, with the message and the exit code."""

from __future__ import annotations

import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rmgr.dev.cluster import DevCluster
from tests.harness.fair_time import FairTimer
from tests.harness.waiting import eventually
from tests.integration.commands import Shell

pytestmark = pytest.mark.usefixtures("live")


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["help"], 0, "Usage: rmgr"),
        (["--version"], 0, "rmgr "),
        (["-h"], 0, "Usage: rmgr"),
        (["help", "submit"], 0, "Usage: rmgr submit"),
        (["show", "99999999999999999999"], 3, "there is no submission 99999999999999999999"),
        (["cancel", "-u", "nobody-at-all"], 0, "nothing is there to be changed"),
        (["show", "n1"], 2, "rmgr nodes n1"),
        (["show", "last_7"], 2, "of job 42 it is 42_7"),
        (["show", "job", "1"], 2, "rmgr show 1"),
        (["show", "node", "n1"], 2, "rmgr nodes n1"),
        (["show"], 2, "Missing argument 'ID'"),
        (["submit", "--dry-run", "-t", "0", "--", "true"], 0, "-t 0 sets no time limit: it runs until it ends"),
        (["submit", "--wait", "--", "/nonexistent"], 127, "next: rmgr explain"),
        (["submit", "--wait", "-o", "/nonexistent/dir/x", "--", "true"], 126, "there is no directory /nonexistent/dir"),
        (["store", "put", "a/../b", "-"], 2, "has . or .. between its slashes"),
        (["submit", "--name", "x" * 10_000, "--", "true"], 2, "--name has 10000 characters; at most 1000 are recorded"),
        (["jobs", "-s", "weird"], 2, "PENDING (INITIAL)"),
        (["submit", "--partition", "batch", "--", "true"], 3, "did you mean the queue: -q batch?"),
        (["submit", "--partition", "batch", "--", "true"], 3, "there is default"),
        (["submit", "--gpus", "1", "--", "true"], 2, "it needs 1 core, 1 gpu"),
        (["submit", "--mem", "4000", "--", "true"], 2, "with a unit: 4000M"),
        (["submit", "--output", "x.out", "--", "true"], 2, "what the work prints goes to -o FILE"),
        (["submit", "--priority", "high", "--", "true"], 2, "'high' is not a valid integer."),
        (["submit", "--ntasks=4", "--", "true"], 2, "here it is -n P"),
        (["submit", "-p", "batch", "--", "true"], 2, "here it is -q QUEUE"),
        (["submit", "--wrap", "echo hi"], 2, "here it is -- sh -c 'COMMAND'"),
        (["submit", "--gres=gpu:1", "--", "true"], 2, "here it is --gpus N"),
        (["run", "--env=A=1 hostname"], 2, "there is nothing to run; '--env=A=1 hostname' is one word, by its quotes"),
        (["submit"], 2, "rmgr submit -- CMD ARGS..., a script, or - for a script on stdin"),
        (["submit", "--", "echo hi"], 2, "type the words apart (echo hi), or let a shell read them: sh -c 'echo hi'"),
        (["run", "echo hi"], 2, "'echo hi' is one word, and no program is called so"),
        (["submit", "-d", "afterok:", "--", "true"], 2, "'afterok:' is not a dependency: no id stands behind it"),
        (["submit", "--dependency=afterok:", "--", "true"], 2, "is a variable empty? --after=ok:ID"),
        (["submit", "--cwd", "sub", "--", "true"], 2, "the whole path: --cwd=/"),
        (["submit", "-o", "-", "--", "true"], 2, "--out - names no file"),
        (["submit", "--dry-run", "-o", "x-%A_%a.out", "--", "true"], 0, "-o: %A stays as it is: %j is the job"),
        (["submit", "--dry-run", "-e", "%4j%%", "--", "true"], 0, "-e: %4j stays as it is"),
        (["submit", "--dry-run", "-a", "1-2", "-o", "x.out", "--", "true"], 0, "%a in its name gives each its own file"),
        (["submit", "--dry-run", "-a", "1-2", "--", "echo", "$RMGR_ARRAY_INDEX"], 0, "sh -c 'CMD $RMGR_ARRAY_INDEX'"),
        (["submit", "--dry-run", "--", "sh", "-c", "cd $PBS_O_WORKDIR"], 0, "--env PBS_O_WORKDIR=VALUE sets it"),
        (["jobs", "list"], 2, "did you mean: rmgr jobs"),
        (["status", "7"], 2, "of one job: rmgr show 7"),
        (["attach", "7"], 2, "did you mean: rmgr logs -f 7"),
        (["uncordon", "n1"], 2, "did you mean: rmgr resume n1"),
        (["suspend", "7"], 2, "waiting work: rmgr hold ID"),
        (["jobs", "cancel", "7"], 2, "did you mean: rmgr cancel 7"),
        (["jobs", "running"], 2, "did you mean: rmgr jobs -s running"),
        (["scontrol", "show", "job", "7"], 2, "did you mean: rmgr show 7"),
        (["scontrol", "show", "node", "n1"], 2, "did you mean: rmgr nodes n1"),
        (["squeue", "-u", "ada"], 2, "did you mean: rmgr jobs"),
        (["submit", "-t", "UNLIMITED", "--", "true"], 2, "leave it out, or -t 0"),
        (["submit", "--dry-run", "--upload", "no/such", "--", "true"], 2, "there is no file or directory no/such"),
        (["submit", "--dry-run", "--stdin", "no/such", "--", "cat"], 2, "there is no file no/such"),
        (["condor_q"], 2, "did you mean: rmgr jobs"),
        (["qalter", "5"], 2, "rmgr update ID"),
        (["parallel", "echo", ":::", "1"], 2, "rmgr submit --each-line FILE"),
        (["hq", "job", "list"], 2, "did you mean: rmgr jobs"),
        (["hq", "submit", "x"], 2, "did you mean: rmgr submit x"),
        (["job", "cancel", "7"], 2, "did you mean: rmgr cancel 7"),
        (["top"], 2, "did you mean: rmgr jobs --watch"),
        (["reprot"], 2, "did you mean: rmgr report"),
        (["store", "du", "--all", "out/"], 2, "rmgr store du out/"),
        (["store", "du", "--all", "--by-user"], 2, "--by-user counts the rows of rmgr, too"),
        (["store", "put", "x", "/nonexistent/file"], 2, "/nonexistent/file"),
        (["agent", "n1", "hostname"], 2, "this is not the script of a placed job: RMGR_HOSTFILE is not set"),
        (["agent", "n1", "hostname"], 2, "rmgr submit -q QUEUE -n 4 -- rmgr run ./solver"),
    ],
)
def test_it_is_answered_with_what_helps(sh: Shell, words: list[str], code: int, told: str) -> None:
    ended = sh(*words)
    assert ended.code == code, ended
    assert told in ended.out + ended.err


def test_a_number_that_is_none_in_a_variable(live: DevCluster, tmp_path: Path) -> None:
    sh = Shell(tmp_path, live.environment() | {"RMGR_STARTER_CORES": "abc"})
    ended = sh("starter")
    assert (ended.code, "cores = 'abc' is not valid: a whole number is needed" in ended.err) == (2, True), ended


@pytest.mark.parametrize("words", [["n1", "n2"], ["n1,n2"], ["n[1-2]"]])
def test_several_nodes_are_drained_at_once(sh: Shell, words: list[str]) -> None:
    sh.ok("drain", *words)
    try:
        assert {node["id"] for node in sh.ok("nodes", "--json").json["nodes"] if node["state"] in {"draining", "drained"}} == {"n1", "n2"}
        eventually(  # as `nodes` has it, once they are empty
            lambda: re.search(r"^nodes +1 up, 2 drained$", sh("status").out, re.MULTILINE), lambda: sh("status")
        )
    finally:
        sh.ok("resume", *words)


def test_draining_again_keeps_the_reason_unless_there_is_another(sh: Shell) -> None:
    try:
        told = [sh.ok("drain", "n1", "--json", *more).json["reason"] for more in (["--reason", "fan"], [], ["--reason", "disk"], [])]
        assert told == ["fan", "fan", "disk", "disk"]
    finally:
        sh.ok("resume", "n1")
    assert sh.ok("drain", "n1", "--json").json["reason"] == ""  # not that of an earlier drain
    sh.ok("resume", "n1")


def test_one_is_one(sh: Shell) -> None:
    number = sh.submit("--", "true")
    sh.ok("wait", number)
    assert "its only task has ended" in sh.ok("explain", number).out
    assert "it has 1 task, counted from 0" in sh("show", f"{number}_9").err


def test_a_status_keeps_its_time_while_zookeeper_is_stopped(live: DevCluster, sh: Shell) -> None:
    (server,) = [process.id for process in live.state.processes if process.role == "zookeeper"]
    live.kill(server, signal.SIGSTOP)
    try:
        began = time.monotonic()
        with FairTimer() as timer:
            ended = sh("status", "--timeout", "2s")
        took_s = time.monotonic() - began
    finally:
        live.kill(server, signal.SIGCONT)
    live.wait_healthy(nodes=3, deadline_s=60.0)
    assert ended.code == 6, ended
    assert took_s >= 2.0
    assert timer.elapsed_s < 3.5 + _start_s(sh), "as the machine grants it"


def test_what_is_away_until_the_timeout_is_over_is_that_in_every_command(live: DevCluster, sh: Shell) -> None:
    (server,) = [process.id for process in live.state.processes if process.role == "zookeeper"]
    asked = (["jobs"], ["submit", "--timeout", "1s", "--", "true"], ["nodes", "--json"])
    live.kill(server, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(len(asked)) as pool:  # together: no session of the cluster shall end meanwhile
            jobs, submit, nodes = pool.map(lambda words: sh(*words, *([] if "--timeout" in words else ["--timeout", "1s"])), asked)
    finally:
        live.kill(server, signal.SIGCONT)
    live.wait_healthy(nodes=3, deadline_s=60.0)
    assert (jobs.code, submit.code, nodes.code) == (6, 6, 6), (jobs, submit, nodes)
    assert "within 1s (--timeout)" in jobs.err
    assert nodes.json["error"]["code"] == "UNAVAILABLE"


def _start_s(sh: Shell) -> float:
    """What a command costs before and after it has waited, here and now."""
    with FairTimer() as timer:
        sh("version")
    return 2 * timer.elapsed_s
