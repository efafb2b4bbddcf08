"""Placed jobs on a live cluster as users see them: submitted, explained, tried out, waited for."""

from __future__ import annotations

from rmgr import TaskQueue
from rmgr.client.connection import Connection
from tests.harness.waiting import eventually
from tests.integration.commands import Shell

SCRIPT = """#!/bin/sh
#RMGR -n 3 -N 3 --exclusive -t 5m
#RMGR -J spread
echo "$RMGR_NPROCS processes"; tr ' ' '\\n' < "$RMGR_HOSTFILE" | grep -c slots=1
exit 3
"""


def test_a_script_that_asks_for_three_nodes_runs_once_with_all_of_them(sh: Shell) -> None:
    sh.file("job.sh", SCRIPT)
    ended = sh("submit", "--wait", "job.sh")
    assert (ended.code, ended.out) == (3, "3 processes\n3\n")
    shown = sh.ok("jobs", "-a", "--name", "spread", "--json").json["jobs"][-1]
    assert (shown["queue"], shown["processes"], sorted(shown["nodes"])) == ("batch", 3, ["n1", "n2", "n3"])


def test_a_dry_run_of_a_script_says_where_it_would_run(sh: Shell) -> None:
    sh.file("job.sh", SCRIPT)
    tried = sh.ok("submit", "--dry-run", "--json", "job.sh")
    assert "is not known" not in tried.err
    assert sorted(node["id"] for node in tried.json["would"]["nodes"]) == ["n1", "n2", "n3"]


def test_a_job_that_waits_is_explained_and_starts_when_there_is_room(sh: Shell) -> None:
    first = sh.submit("-n", "6", "-t", "5m", "--", "sleep", "200")
    try:
        eventually(lambda: len(sh.ok("show", first, "--json").json["nodes"]) == 3, "the first job has all nodes")
        tried = sh.ok("submit", "--dry-run", "--json", "-n", "2", "-N", "2", "-t", "1m", "--", "true").json
        assert (tried["policy"], tried["would"]["at_once"], len(tried["would"]["nodes"])) == ("easy", False, 2)
        assert tried["would"]["start"]
        second = sh.submit("-n", "2", "-N", "2", "-t", "1m", "--", "true")
        eventually(lambda: sh.ok("explain", second, "--json").json["expected_start"], "it has been promised a start")
        told = sh.ok("explain", second, "--json").json
        assert (told["state"], told["reason"], [why["what"] for why in told["why"]]) == ("INITIAL", "RESOURCES", ["resources"])
    finally:
        sh.ok("cancel", first)
    assert sh("wait", second).code == 0
    assert len(sh.ok("show", second, "--json").json["nodes"]) == 2


def test_calls_of_a_task_queue_can_be_placed(connection: Connection) -> None:
    def where(n: int) -> tuple[int, str]:
        import os

        return n + 1, os.environ.get("RMGR_NODELIST", "")  # of placed jobs only

    with TaskQueue(where, queue="batch", connection=connection) as queue:
        found = [future.result(60) for future in queue.map(None, range(4))]
        assert [number for number, _ in found] == [1, 2, 3, 4]
        found += [queue.submit_call(n).result(60) for n in range(3)]  # one after another: none goes past the leader
        assert all(nodes for _, nodes in found), found

CLASSES = """[[stage]]
policy = "queue_select"
[[queue]]
name = "one"
max_cpus = 1
[[queue]]
name = "more"
"""


def look_at_classes(sh: Shell) -> None:
    """A job is sent to a class by hand, and seen there; what the class does not admit is refused with the reason."""
    number = sh.submit("-q", "more", "-t", "1m", "--", "sleep", "600")

    def line(name: str) -> dict[str, object]:
        return next(item for item in sh.ok("queues", "--json").json["classes"] if item["id"] == name)

    eventually(lambda: (line("more")["running"], line("one")["running"]) == (1, 0), "it runs in the class that was named")
    assert [job["id"] for job in sh.ok("jobs", "-q", "more", "--json").json["jobs"]] == [number]
    assert sh.ok("jobs", "-q", "one", "--json").json["jobs"] == []
    assert sh("jobs", "-q", "two").code == 3
    assert "named by its user (-q more)" in sh.ok("explain", number).out
    assert [words.split()[:3] for words in sh.ok("queues").out.splitlines() if words.startswith(("one", "more"))] == [
        ["one", "0", "0"],
        ["more", "0", "1"],
    ]
    words = "class      more of partition default, placed by queue_select, open\nlimits     no limits\n"
    assert sh.ok("queues", "more").out.startswith(words)
    for words in ((), ("--dry-run",)):
        refused = sh("submit", *words, "-q", "one", "-n", "2", "--", "true")
        assert refused.code == 2
        assert "queue class one does not admit 2 processes x 1 thread (2 CPUs)" in refused.err
        assert "-q more admits it" in refused.err
    assert sh.ok("submit", "--dry-run", "--json", "-q", "one", "--", "true").json["would"]["class"] == "one"
    sh.ok("cancel", "--queue", "more")
    assert sh("wait", number).code == 130


def test_where_a_policy_chooses_the_class_a_command_of_one_process_is_placed_by_it(sh: Shell) -> None:
    before = sh.ok("config", "show", "--cluster").out
    sh.ok("policy", "set", sh.file("classes.toml", CLASSES))
    try:

        def tried(*words: str) -> tuple[str, str]:
            told = sh.ok("submit", "--dry-run", "--json", "-t", "1m", *words, "--", "true").json
            return told["queue"], told.get("would", {}).get("class", "")

        eventually(lambda: tried() == ("batch", "one"), "the leader has the classes")
        assert tried("-c", "2") == ("batch", "more")
        assert tried("-q", "default")[0] == "default"
        number = sh.submit("-t", "1m", "--", "sleep", "600")
        eventually(lambda: "class one" in sh.ok("explain", number).out, "the class is told")
        assert sh.ok("show", number, "--json").json["class"] == "one"
        sh.ok("cancel", number)
        assert sh("wait", number).code == 130
        look_at_classes(sh)
    finally:
        sh.ok("config", "apply", "--remove", sh.file("before.toml", before))
    assert sh.ok("submit", "--dry-run", "--json", "--", "true").json["queue"] == "default"
