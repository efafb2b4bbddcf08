"""Impossible requests for placed jobs, through the real command line: message, hint and exit code of each."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

from rmgr.dev.cluster import DevCluster
from tests.harness.waiting import eventually
from tests.integration.commands import Ended, Shell

#: Runs command lines one after another, each in a process of its own that was forked after the imports: they cost the most.
MANY = """
import json, os, sys, tempfile
import kazoo.client, rmgr.adapters.zookeeper.client, rmgr.cli.main, rmgr.client.commands.sending, rmgr.cli.submit.submit
import rmgr.procedures.admission, rmgr.procedures.bootstrap
for words in json.load(sys.stdin):
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if not child:
            os.dup2(out.fileno(), 1), os.dup2(err.fileno(), 2), os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            sys.argv = ["rmgr", *words]
            try:
                rmgr.cli.main.main()
            except SystemExit as end:
                sys.stdout.flush(), sys.stderr.flush()
                os._exit(end.code or 0)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0), err.seek(0)
        print(json.dumps([code, out.read(), err.read()]), flush=True)
"""

#: Words after `rmgr`, exit code, what the message names, what it says to type.
REFUSED = [
    ("submit -n 7 -- true", 2, "7 processes of 1 core each are more than partition default ever has", "-n 6 at most"),
    ("submit -n 4 -N 3 -c 2 -- true", 2, "spread over 3 nodes, are 2 on a node; partition default has no such nodes", "more nodes (-N)"),
    ("submit -n 2 -N 3 -- true", 2, "-N 3 nodes are more than -n 2 processes", "-n 3, or -N 2"),
    ("submit -q short -n 2 -t 2h -- true", 2, "a time limit of 2h is more than queue short allows (1h)", "-q"),
    ("submit -n 2 --nodelist n1,n9 -- true", 3, "--nodelist: there is no node 'n9'", "rmgr nodes lists them"),
    ("submit -n 2 -N 2 --nodelist n1 -- true", 2, "-N 2 nodes, and --nodelist names only 1", "name more nodes, or -N 1"),
    ("submit -n 3 --nodelist n1 -- true", 2, "its one node has room for 2", "-n 2 at most"),
    ("submit --exclude n[1-3] -- true", 2, "--exclude n1,n2,n3 leaves no node of partition default", "exclude fewer"),
    ("submit -q batch -a 0-1048576 -- true", 2, "1,048,577 tasks: a placed submission has at most 1,048,576", "submit it in parts"),
    ("submit -q batch -d ok:999999 -- true", 3, "there is no submission 999999 to wait for", "rmgr jobs -a"),
    ("submit -n 0 -- true", 2, "0 is not in the range x>=1", "rmgr submit --help"),
    ("submit -n 99999999999 -- true", 2, "-n 99999999999 is not between 1 and", "an array of jobs is -a"),
    ("submit -q batch -c 0 -- true", 2, "0 is not in the range", "rmgr submit --help"),
    ("submit -n 2 --mem -1G -- true", 2, "'-1G' is not a size", "512M"),
    ("submit -n 2 -t -5m -- true", 2, "'-5m' is not a duration", "15m"),
    ("submit wrong.sh", 2, "-N 5 nodes are more than -n 4 processes", "-n 5, or -N 4"),
    ("submit -n 2 -q default -- true", 2, "needs a queue whose jobs the leader places", "-q batch"),
    ("policy set nope", 2, "no policy is called 'nope'", "rmgr policy list"),
]


@pytest.fixture(scope="module")
def sh(live_cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """With a queue of its own for a while, that allows an hour."""
    sh = Shell(tmp_path_factory.mktemp("bad"), live_cluster.environment())
    before = sh.ok("config", "show", "--cluster").out
    sh.file("before.toml", before)
    sh.file("short.toml", f'{before}\n[queues.short]\ndispatch = "place"\nmax_time = "1h"\n')
    sh.ok("config", "apply", "short.toml")
    yield sh
    sh.ok("config", "apply", "--remove", "before.toml")


def many(sh: Shell, lines: Sequence[str]) -> list[Ended]:
    """Each line is a command."""
    done = subprocess.run(
        [sys.executable, "-c", MANY],
        input=json.dumps([line.split() for line in lines]),
        capture_output=True,
        text=True,
        env=sh.environment,
        cwd=sh.directory,
        timeout=150,
        check=False,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(lines), done.stderr
    return [Ended(code=code, out=out, err=err) for code, out, err in found]


def test_what_cannot_be_is_refused_with_its_cause_and_what_to_type(sh: Shell) -> None:
    sh.file("wrong.sh", "#!/bin/sh\n#RMGR -n 4 -N 5\ntrue\n")
    wrong = []
    for ended, (line, code, message, hint) in zip(many(sh, [line for line, *_ in REFUSED]), REFUSED, strict=True):
        if ended.code != code or ended.out or message not in ended.err or hint not in ended.err.partition("\n")[2]:
            wrong.append((line, ended))
    assert not wrong


def test_a_script_without_a_shebang_is_the_shell_s_and_a_begin_in_the_past_is_now(sh: Shell) -> None:
    sh.file("plain.sh", 'echo "hello from $RMGR_NPROCS"\n')
    (ended,) = many(sh, ["submit --wait -n 2 --begin 2001-01-01 plain.sh"])
    assert (ended.code, ended.out) == (0, "hello from 2\n"), ended.err


def test_a_job_for_a_partition_that_is_down_waits_and_says_for_what(sh: Shell) -> None:
    nodes = ("n1", "n2", "n3")
    sh.ok("drain", *nodes, "--reason", "maintenance")
    try:
        number = sh.submit("-n", "2", "--", "true")
        eventually(lambda: "n1 drained (maintenance)" in sh.ok("explain", number).out, lambda: sh("explain", number))
        told = sh.ok("explain", number).out
        assert "no node of partition default is up" in told
        assert "rmgr resume n1" in told
        tried = ("submit", "--dry-run", "-n", "2", "--", "true")  # by what the scheduler knows, which hears of drains at its next turn
        eventually(lambda: "no node of partition default takes work now" in sh.ok(*tried).out, lambda: sh(*tried))
        status = sh("status")
        assert (status.code, "rmgr resume n1" in status.out) == (1, True), status
    finally:
        sh.ok("resume", *nodes)
    assert sh("wait", number).code == 0
