"""The command line for operators on a real cluster: health, nodes, settings, doctor; without a leader; with ZooKeeper away."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rmgr.dev.cluster import DevCluster
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.model.identity import Role
from tests.harness.gateway_process import GatewayProcess
from tests.harness.waiting import eventually
from tests.integration.commands import Shell, cluster_and_shell, wait_line


@pytest.fixture(scope="module")
def both(zookeeper_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DevCluster, Shell]]:
    with cluster_and_shell(tmp_path_factory.mktemp("operator")) as made:
        yield made


@pytest.fixture
def sh(both: tuple[DevCluster, Shell]) -> Shell:
    return both[1]


@pytest.fixture
def cluster(both: tuple[DevCluster, Shell]) -> DevCluster:
    return both[0]


# -- a healthy cluster --------------------------------------------------------------------------------------------------------


def test_status_of_a_healthy_cluster(sh: Shell, cluster: DevCluster) -> None:
    view = sh.ok("status", "--json").json
    assert view["healthy"] is True
    assert view["leader"]["pid"] == cluster.process("w1").pid
    assert set(view["leader"]) >= {"id", "host", "pid", "epoch", "since"}
    assert view["nodes"] == {"up": 2, "draining": 0, "quarantined": 0, "fenced": 0, "down": 0}
    shown = sh.ok("status").out
    for words in ("healthy", f"ok  sqlite:{cluster.directory}/store.db", f"{view['leader']['metrics']} (of nodes: rmgr nodes -o +metrics)"):
        assert words in shown
    assert (view["store"]["kind"], view["store"]["url"]) == ("sqlite", cluster.state.store)


def test_every_daemon_says_where_its_measurements_are_and_that_it_can_work(sh: Shell) -> None:
    nodes = sh.ok("nodes", "--json").json["nodes"]
    places = [sh.ok("status", "--json").json["leader"]["metrics"], *(node["metrics"] for node in nodes)]
    assert len(set(places)) == 3
    assert all(place in sh.ok("nodes", "-o", "+metrics").out for place in places[1:])
    for place in places:
        with urllib.request.urlopen(f"http://{place}/healthz", timeout=60) as answer:
            assert (answer.status, answer.read()) == (200, b"ok\n")


def modules_of(sh: Shell, *words: str) -> set[str]:
    """What a command has loaded when it ends well; what it has only deferred (`rmgr/runtime/interpreter.py`) is not loaded."""
    program = (
        "import sys; from rmgr.cli.main import run; code = run(sys.argv[1:]); "
        "loaded = [name for name, module in sys.modules.items() if type(module).__name__ != '_Deferred']; "
        "print(*loaded, sep='\\n', file=sys.stderr); exit(code)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, *words],
        env=sh.environment,
        cwd=sh.directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(ended.stderr.split())


def test_commands_load_only_what_they_need(sh: Shell) -> None:
    # Where a machine stands still for a second a command takes the long way, with the whole libraries: so it may try again.
    never = {"cassandra", "rich", "structlog", "prometheus_client", "psutil", "grpc", "asyncio", "cloudpickle", "tarfile", "email"}
    for words in (["status"], ["jobs", "-a", "-A", "--json"], ["queues"]):
        unneeded = never | {"kazoo", "cryptography", "sqlite3", "concurrent.futures"}
        eventually(
            lambda words=words, unneeded=unneeded: not unneeded & modules_of(sh, *words), f"rmgr {words[0]} loads no more than it needs"
        )
    assert {"asyncio", "cryptography.x509", "prometheus_client"} & modules_of(sh, "nodes") == set()
    eventually(lambda: "grpc" not in modules_of(sh, "cancel", "all"), "rmgr cancel asks without it")
    tab = Shell(sh.home, {**sh.environment, "_RMGR_COMPLETE": "bash_complete", "COMP_WORDS": "rmgr drain n", "COMP_CWORD": "2"})
    eventually(lambda: not {"grpc", "kazoo"} & modules_of(tab), "a tab, which has a second, asks without them")
    submitted = modules_of(sh, "submit", "--parsable", "--", "true")
    sh.ok("wait", "last")  # else a node may be busy when the next test drains it
    assert (never | {"cryptography.x509", "google"}) & submitted == set()
    assert "kazoo" in submitted  # else this test sees nothing


def test_nodes_tell_what_they_are(sh: Shell, cluster: DevCluster) -> None:
    nodes = {node["id"]: node for node in sh.ok("nodes", "--json").json["nodes"]}
    assert set(nodes) == {"n1", "n2"}
    assert (nodes["n1"]["state"], nodes["n1"]["cores"], nodes["n1"]["incarnation"]) == ("up", 2, 1)
    assert nodes["n1"]["pid"] == cluster.process("n1").pid
    measured = lambda: {node["id"]: node["load"] is not None for node in sh.ok("nodes", "--json").json["nodes"]}  # noqa: E731
    eventually(lambda: measured() == {"n1": True, "n2": True}, "both tell their load, within the second that they are given")
    assert sh.ok("nodes", "n2", "-o", "node,state", "--no-header").out.split() == ["n2", "up"]
    assert [node["id"] for node in sh.ok("nodes", "n[1-2]", "n1", "--json").json["nodes"]] == ["n1", "n2"]
    wrong = sh("nodes", "n[1-3]", "--json")
    assert (wrong.code, wrong.error["message"]) == (3, "there is no node 'n3'")
    assert sh("nodes", "n[1-").code == 2


def test_a_drained_node_takes_nothing_until_it_is_resumed(sh: Shell) -> None:
    assert sh.ok("drain", "n1", "--reason", "new fan", "--json").json == {
        "schema": "rmgr/1",
        "node": "n1",
        "state": "drained",
        "reason": "new fan",
    }
    try:
        number = sh.submit("--array", "1-6", "--", "true")
        sh.ok("wait", number)
        assert {task["node"] for task in sh.ok("tasks", number, "--json").json["tasks"]} == {"n2"}
        assert "new fan" in sh.ok("nodes").out
    finally:
        assert sh.ok("resume", "n1", "--json").json["state"] == "up"
    assert "was not drained" in sh.ok("resume", "n1").out


def test_several_nodes_are_drained_at_once_or_none(sh: Shell) -> None:
    names = [node["id"] for node in sh.ok("nodes", "--json").json["nodes"]]
    wrong = sh("drain", *names, "n99")
    assert (wrong.code, "no node 'n99'" in wrong.err) == (3, True), wrong
    assert {node["state"] for node in sh.ok("nodes", "--json").json["nodes"]} == {"up"}
    answer = sh.ok("drain", ",".join(names), "--json").json
    try:
        assert [(node["node"], node["state"]) for node in answer["nodes"]] == [(name, "drained") for name in names]
    finally:
        told = sh.ok("resume", f"n[1-{len(names)}]").out
    assert told.splitlines() == [f"{name} takes work again" for name in names]


def test_words_that_everybody_types(sh: Shell) -> None:
    for words in (("-h",), ("help",), ("help", "submit"), ("--version",), ("submit", "-h")):
        assert sh.ok(*words).out, words
    assert "Usage: rmgr store put" in sh.ok("help", "store", "put").out
    nothing = sh.ok("cancel", "-u", "somebody-else")  # scripts that clean up
    assert "nothing is there" in nothing.err
    assert sh("show", "9" * 20).code == 3
    assert "rmgr nodes n1" in sh("show", "n1").err


def test_settings_are_applied_to_everyone(sh: Shell) -> None:
    before = sh.ok("config", "show", "--cluster").out
    sh.file("c.toml", before + '\n[queues.fast]\nmax_cores = 1\nmax_time = "10m"\n')
    assert "queues.fast: added" in sh.ok("config", "apply", "--dry-run", "c.toml").out
    assert "fast" not in sh.ok("queues").out
    changes = sh.ok("config", "apply", "--json", "c.toml").json["changes"]
    assert {"key": "queues.fast.max_cores", "from": None, "to": 1} in changes
    eventually(lambda: "fast" in sh.ok("queues").out, "the leader takes the queue up")
    assert sh.ok("submit", "--wait", "-q", "fast", "--", "echo", "quick").out == "quick\n"
    refused = sh("submit", "-q", "fast", "-c", "2", "--json", "--", "true")
    assert (refused.code, refused.error["code"]) == (2, "INFEASIBLE")
    held = sh.submit("-q", "fast", "--hold", "--", "true")
    sh.file("old.toml", before)
    refused = sh("config", "apply", "--remove", "old.toml")
    assert (refused.code, "still holds work" in refused.err) == (1, True)
    sh.ok("cancel", held)
    assert sh("wait", held).code == 130
    sh.ok("config", "apply", "--remove", "old.toml")
    assert sh.ok("config", "show", "--cluster").out == before
    bad = sh("config", "apply", sh.file("bad.toml", before.replace("max_cores", "max_core")))
    assert bad.code == 2
    assert "bad.toml:" in bad.err
    assert "did you mean 'max_cores'?" in bad.err


def test_a_user_has_caps_of_cores_and_jobs_and_is_told(sh: Shell) -> None:
    me = sh.ok("limits", "--json").json["user"]
    assert sh.ok("admin", "limit", me, "--cores", "1").out == f"{me}: cores none -> 1\n"
    try:
        first = sh.submit("--array", "1-2000", "--", "sleep", "0.5")
        rows = lambda: {row["name"]: row for row in sh.ok("limits", "--json").json["limits"]}  # noqa: E731
        eventually(lambda: rows()["max_cores_per_user"]["used"] == 1, "the leader has counted one core", within_s=60)
        told = f"{me} has 1 of the 1 cores that {me} may have at once; rmgr limits {me}"
        eventually(lambda: told in sh.ok("explain", first).out, "it says why the rest waits")

        def used() -> int:
            return sum(node["cores_used"] for node in sh.ok("nodes", "--json").json["nodes"])

        # The nodes are looked at one after the other, and meanwhile the one core may have gone from here to there.
        eventually(lambda: sum(used() for _ in range(5)) <= 5 + 1, "one core of four, at each look")
        shown = [line.split() for line in sh.ok("limits").out.splitlines()]
        assert [line[0] for line in shown] == ["LIMIT", "max_cores_per_user", "max_jobs_per_user"]
        assert len(sh.ok("limits", "--all").out.splitlines()) > 10
        sh.ok("admin", "limit", me, "--jobs", "1")
        eventually(lambda: rows()["max_jobs_per_user"]["limit"] == 1, "the leader knows it")
        refused = eventually(lambda: (done := sh("submit", "--json", "--", "true")).code and done, "a second job is refused")
        assert (refused.code, refused.error["code"]) == (7, "RESOURCE_EXHAUSTED")
        # One that came before the Submitter had heard of the limit is open too.
        assert re.search(rf"{me} has \d+ of the 1 open jobs that {me} may have at once", refused.error["message"])
        assert "rmgr admin limit USER --jobs N" in refused.error["hint"]
        sh.ok("admin", "limit", me, "--cores", "none", "--jobs", "default")
        eventually(lambda: used() == 4, "all cores are used again")
    finally:
        sh("cancel", "all")
        sh.ok("admin", "limit", me, "--cores", "default", "--jobs", "default")


def test_an_older_file_of_settings_does_not_undo_what_was_set_since(sh: Shell) -> None:
    before = sh.ok("config", "show", "--cluster").out
    short = before[: before.index("retention")] + before[before.index("\n", before.index("retention")) + 1 :]
    assert "\nretention" not in short
    sh.file("old.toml", short)
    sh.ok("config", "apply", "old.toml")  # what it leaves out is the default, as it is
    longer = before.replace('retention = "1h"', 'retention = "2h"', 1) + "\n[queues.fast]\nmax_cores = 1\n"
    sh.ok("config", "apply", sh.file("new.toml", longer))
    try:
        refused = sh("config", "apply", "old.toml")
        assert refused.code == 2
        assert "leaves out what is set: queues.fast, retention_s (7200.0 -> 3600.0) (changed last by" in refused.err
        assert "rmgr config apply --remove old.toml" in refused.err
        assert "needs --remove: queues.fast, retention_s" in sh.ok("config", "apply", "--dry-run", "old.toml").err
        shown = sh.ok("config", "show", "--cluster", "--json").json
        assert shown["by"]
        assert shown["since"]
        assert sh.ok("policy", "show", "--json").json["by"] == shown["by"]
    finally:
        sh.ok("config", "apply", "--remove", "old.toml")
    assert sh.ok("config", "show", "--cluster").out == before


def test_screens_say_who_drains_a_node_and_what_runs_there(sh: Shell) -> None:
    number = sh.submit("-c", "1", "--", "sleep", "120")
    try:
        eventually(lambda: sh.ok("jobs", "--json", number).json["jobs"][0]["nodes"], "it runs")
        (node,) = sh.ok("jobs", "--json", number).json["jobs"][0]["nodes"]
        sh.ok("drain", node)
        try:
            me = sh.ok("show", number, "--json").json["user"]
            found = next(item for item in sh.ok("nodes", "--json").json["nodes"] if item["id"] == node)
            assert found["by"] == me
            assert found["since"]
            assert f"drained by {me}, " in sh.ok("nodes").out
            assert number in sh.ok("nodes", node).out
            assert [job["id"] for job in sh.ok("jobs", "-A", "--node", node, "--json").json["jobs"]] == [number]
            assert [task["id"] for task in sh.ok("tasks", "--node", node, "--json").json["tasks"]] == [f"{number}_0"]
            assert [job["id"] for job in sh.ok("jobs", "-A", "--node", "n[1-2]", "--json").json["jobs"]] == [number]
            assert [task["id"] for task in sh.ok("tasks", "--node", "n1,n2", "--json").json["tasks"]] == [f"{number}_0"]
            other = "n1" if node != "n1" else "n2"
            assert not sh.ok("jobs", "-A", "--node", other, "--json").json["jobs"]
            assert not sh.ok("tasks", number, "--node", other, "--json").json["tasks"]
            wrong = sh("tasks", "--node", "n77")
            assert (wrong.code, "no node 'n77'" in wrong.err) == (3, True)
            assert "--node" in sh("tasks").err
        finally:
            sh.ok("resume", node)
        eventually(lambda: f"resumed by {me}, " in sh.ok("nodes").out, "the screen says who has resumed it")
        again = next(item for item in sh.ok("nodes", "--json").json["nodes"] if item["id"] == node)
        assert (again["by"], again["state"], again["since"] > found["since"]) == (me, "up", True)
    finally:
        sh.ok("cancel", number)


def test_a_node_that_is_stopped_and_revoked_is_forgotten_by_the_admin(sh: Shell, cluster: DevCluster, tmp_path: Path) -> None:
    assert cluster.security is not None
    admin = Shell(tmp_path, cluster.environment() | {"RMGR_SECURITY_DIR": str(cluster.security.admin)})
    cluster.start_starter("n9")

    def state() -> str:
        return next((node["state"] for node in sh.ok("nodes", "--json").json["nodes"] if node["id"] == "n9"), "none")

    eventually(lambda: state() == "up", "n9 is up")
    early = admin("nodes", "--forget", "n9")
    assert (early.code, "n9 is not stopped" in early.err, "stop its Starter" in early.err) == (1, True, True), early
    cluster.kill("n9", signal.SIGTERM)
    eventually(lambda: state() == "down", "n9 is down")
    believed = admin("nodes", "--forget", "n9")
    assert (believed.code, "rmgr admin revoke n9 --role starter" in believed.err) == (1, True), believed
    admin.ok("admin", "revoke", "n9", "--role", "starter", "--grace", "3s")
    refused = sh("nodes", "--forget", "n9")
    assert (refused.code, "is for the admin" in refused.err) == (4, True), refused
    assert admin.ok("nodes", "--forget", "n9").out == "n9 is forgotten\n"
    eventually(lambda: state() == "none", "no screen shows it")
    gone = admin("nodes", "--forget", "n9")
    assert (gone.code, "no node 'n9'" in gone.err) == (3, True), gone
    assert sh("nodes", "--forget").code == 2


def test_policies_are_told_honestly(sh: Shell) -> None:
    assert [policy["dispatch"] for policy in sh.ok("policy", "list", "--json").json["policies"] if policy["name"] == "fifo"] == ["pull"]
    assert sh.ok("policy", "show", "--json").json["queues"] == {
        "default": {"policy": "fair", "parameters": {}},
        "batch": {"policy": "easy", "parameters": {}},
    }
    assert sh.ok("policy", "check").out == "default: fair\nbatch: easy\n"
    sh.ok("policy", "set", "conservative", "--param", "order=sjf")
    try:
        eventually(lambda: "conservative" in sh.ok("queues").out, "the leader takes the policy up")
        set_now = sh.ok("policy", "show", "batch", "--json").json["queues"]["batch"]
        assert set_now == {"policy": "conservative", "parameters": {"order": "sjf"}}
        refused = sh("policy", "set", "esay")
        assert (refused.code, "did you mean easy" in refused.err) == (2, True)
        assert sh("policy", "set", "easy", "--partition", "x").code == 3
    finally:
        sh.ok("policy", "set", "easy")


def test_doctor_finds_nothing_wrong(sh: Shell) -> None:
    document = eventually(  # what it measures on the way (how long ZooKeeper takes to answer) may be too much once
        lambda: (told := sh("doctor", "--json").json)["healthy"] and told, lambda: f"it finds nothing wrong: {sh('doctor').out}"
    )
    names = " ".join(check["name"] for check in document["checks"])
    for what in (
        "python",
        "packages",
        "configuration",
        "zookeeper",
        "session",
        "cluster id",
        "store",
        "leader",
        "nodes",
        "clocks",
    ):
        assert what in names
    assert all(set(check) == {"name", "ok", "detail", "fix"} for check in document["checks"])


def test_the_wrong_place_is_recognised(sh: Shell, cluster: DevCluster, tmp_path: Path) -> None:
    hosts = cluster.zookeeper.hosts
    elsewhere = sh("jobs", "--zk", f"{hosts}/rmgr/other", "--json")
    assert (elsewhere.code, elsewhere.error["code"]) == (5, "UNAVAILABLE")
    assert "no rmgr cluster" in elsewhere.error["message"]
    nobody = sh("jobs", "--zk", "127.0.0.1:1", "--timeout", "2", "--json")
    assert (nobody.code, nobody.error["code"]) == (6, "UNAVAILABLE")
    assert "does not answer" in nobody.err
    sick = sh("doctor", "--zk", "127.0.0.1:1", "--timeout", "3", "--json")
    assert (sick.code, sick.json["healthy"]) == (1, False)
    bad = tmp_path / "c.toml"
    bad.write_text("[cluster]\nzkk = 'x'\n")
    wrong = sh("jobs", "--config", str(bad))
    assert wrong.code == 2
    assert "c.toml:2: unknown key 'zkk'" in wrong.err


# -- parts that are away ------------------------------------------------------------------------------------------------------


def test_without_a_leader_commands_read_znodes_and_say_so(sh: Shell, cluster: DevCluster) -> None:
    cluster.kill("w1")
    try:
        number = sh.submit("--array", "1-4", "--", "true")
        assert sh.ok("wait", number).code == 0
        listed = sh.ok("jobs", "-a", "--json", number)
        assert listed.json["jobs"][0]["state"] == "COMPLETED"
        assert "read from ZooKeeper" in listed.err
        assert len(sh.ok("tasks", number, "--json").json["tasks"]) == 4
        assert sh("status").code == 1
        sh.ok("admin", "limit", "--jobs", "9000")
        told = sh.ok("limits", "--json").json
        assert told["problem"]
        assert [row["used"] is None for row in told["limits"]][:3] == [True, False, True], "who has a cap is told what was counted last"
        slow = sh.submit("--", "sleep", "600")
        eventually(lambda: "RUNNING" in sh.ok("tasks", slow).out, "it runs")
        sh.ok("cancel", slow)
        assert sh("wait", slow, "--timeout", "30").code == 130  # the Starters are told directly
    finally:
        sh.ok("admin", "limit", "--jobs", "none")
        cluster.start_watchdog("w1")
    eventually(lambda: sh("status").code == 0, "a new leader")


def test_without_a_leader_a_gateway_reads_znodes_for_its_clients(sh: Shell, cluster: DevCluster, tmp_path: Path) -> None:
    environment = cluster.daemon_environment("submitter", "g-alone")
    with GatewayProcess(environment, tmp_path) as gateway:
        kept = {name: sh.environment[name] for name in ("RMGR_SECURITY_DIR",) if name in sh.environment}
        gated = Shell(tmp_path / "home", {"RMGR_GATEWAY": gateway.endpoint, **kept})
        cluster.kill("w1")
        try:
            number = gated.submit("--array", "1-4", "--", "true")
            assert gated.ok("wait", number).code == 0
            listed = gated.ok("jobs", "-a", "--json", number)
            assert listed.json["jobs"][0]["state"] == "COMPLETED"
            assert len(gated.ok("tasks", number, "--json").json["tasks"]) == 4
            assert {queue["id"] for queue in gated.ok("queues", "--json").json["queues"]} >= {"default", "batch"}
            assert len(gated.ok("nodes", "--json").json["nodes"]) == 2
            assert gated.ok("explain", number).out
            told = gated("status", "--json")
            assert (told.code, told.json["zookeeper"]["hosts"]) == (1, gateway.endpoint)
            slow = gated.submit("--", "sleep", "600")
            eventually(lambda: "RUNNING" in gated.ok("tasks", slow).out, "it runs")
            gated.ok("cancel", slow)
            assert gated("wait", slow, "--timeout", "30").code == 130
            assert gated.ok("drain", "n1", "--reason", "dust", "--json").json["state"] == "drained"
            assert gated.ok("resume", "n1", "--json").json["state"] == "up"
        finally:
            cluster.start_watchdog("w1")
    eventually(lambda: sh("status").code == 0, "a new leader")


def settled(server: ZooKeeperServer) -> tuple[int, int] | None:
    """The connections there, and their watches, once nobody comes, goes or reads for two seconds."""
    now = server.clients()
    time.sleep(2.0)
    return now if server.clients() == now else None


def test_waiting_goes_on_while_zookeeper_restarts(sh: Shell, cluster: DevCluster) -> None:
    gate = sh.directory / sh.file("gate", "")
    number = sh.submit("--", "sh", "-c", f"while [ -e {gate} ]; do sleep 0.1; done; exit 3")
    eventually(lambda: "RUNNING" in sh.ok("jobs", number).out, "it runs")
    server = cluster.zookeeper
    assert server is not None
    before = eventually(lambda: settled(server), "all who asked have gone")
    with sh.running("wait", number) as process:
        # One more connection, with watches; and it has read what it wanted: a command that still begins gives up sooner.
        eventually(lambda: all(here > then for here, then in zip(settled(server) or (0, 0), before, strict=True)), "it follows")
        server.pause()
        try:
            wait_line(process, "ZooKeeper does not answer", stream="stderr")
        finally:
            server.resume()
        gate.unlink()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "the cluster answers again" in err


# -- rmgr dev -----------------------------------------------------------------------------------------------------------------


def living(directory: Path) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if process.pid != os.getpid() and any(str(directory) in word for word in process.info["cmdline"] or ())
    ]


def test_dev_in_the_foreground_ends_with_its_terminal_and_leaves_nothing(zookeeper_parts: None, tmp_path: Path) -> None:
    sh = Shell(tmp_path / "home")
    directory = tmp_path / "cluster"
    with sh.running("dev", "--dir", str(directory), "--nodes", "1", "--watchdogs", "1", "--cores", "1") as process:
        lines = []
        assert process.stdout is not None
        while "Ctrl-C stops it" not in (line := process.stdout.readline()):
            assert line, process.stderr.read() if process.stderr else ""
            lines.append(line)
        assert any("rmgr submit --wait -- echo hello" in line for line in lines)
        assert sh.ok("submit", "--wait", "--", "echo", "found").out == "found\n"  # no option needed
        status = sh.ok("dev", "status", "--json").json
        assert status["running"] is True
        assert sorted(p["role"] for p in status["processes"]) == ["starter", "watchdog", "zookeeper"]
        second = sh("dev")
        assert (second.code, "--dir" in second.err) == (1, True)
        assert process.stderr is not None
        process.stdout.close()
        process.stderr.close()  # the terminal is closed: nobody reads any more
        process.send_signal(signal.SIGHUP)
        assert process.wait(timeout=60) in {0, 141}  # as for every command whose output nobody reads
    eventually(lambda: not living(directory), "no process is left")
    assert sh("dev", "status").code == 1
    assert sh("jobs").code == 5
    assert not (tmp_path / "home" / ".rmgr" / "dev.toml").exists()


def test_dev_detached_is_stopped_from_another_shell(zookeeper_parts: None, tmp_path: Path) -> None:
    sh = Shell(tmp_path / "home")
    first, second = tmp_path / "a", tmp_path / "b"
    options = ("--nodes", "1", "--watchdogs", "1", "--detach")
    try:
        sh.ok("dev", "--dir", str(first), *options)
        beside = sh.ok("dev", "--dir", str(second), *options)
        assert f"rmgr dev stop --dir {second}" in beside.out
        found = sh.ok("status", "--json").json["cluster_id"]
        sh.ok("dev", "stop", "--dir", str(second))
        assert sh.ok("status", "--json").json["cluster_id"] == found  # the first one is the one that commands find
        assert living(second) == []
        assert "stopped" in sh.ok("dev", "stop").out
        assert living(first) == []
        assert "no cluster of yours runs" in sh.ok("dev", "stop").out
        assert sh("dev", "stop", "--dir", str(tmp_path / "never")).code == 3
        sh.ok("dev", "--dir", str(first), *options)  # its data are still there
        assert sh.ok("status", "--json").json["cluster_id"] == found
    finally:
        for directory in (first, second):
            sh("dev", "stop", "--dir", str(directory))


def test_a_daemon_with_a_bad_option_says_so(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "rmgr.cli.main", "starter", "--cores", "-1", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    assert ended.returncode == 2
    assert "--cores" in json.loads(ended.stdout)["error"]["message"]


def test_a_store_of_another_cluster_or_none_at_all_is_refused(sh: Shell, tmp_path: Path) -> None:
    from rmgr.adapters.stores import open_store

    other = f"sqlite:{tmp_path / 'other.db'}"
    store = open_store(other)
    store.bind_cluster("some-other-cluster")
    store.close()

    def known() -> set[str]:
        return {job["id"] for job in sh.ok("jobs", "-a", "--json").json["jobs"]}

    before = known()
    for url, told in ((other, "some-other-cluster"), (f"sqlite:{tmp_path / 'absent' / 'x.db'}", "absent")):
        refused = sh("run", "--store", url, "--json", "--", "true")
        assert (refused.code, refused.error["code"]) == (5, "UNAVAILABLE")
        assert told in refused.error["message"]
    sh.file("job.sh", "#!/bin/sh\n")
    for words in (("run", "--", "true"), ("submit", "--", "true"), ("submit", "--wait", "./job.sh")):
        refused = sh(words[0], "--store", f"sqlite:{tmp_path / 'absent.db'}", *words[1:])
        assert refused.code == 5
        assert "nothing was submitted, for the data store is away: there is no store" in refused.err
        assert "it comes from --store" in refused.err
    assert known() == before  # what could not be waited for was not submitted


def test_an_empty_store_is_refused_by_a_cluster_that_has_used_one_until_the_loss_is_accepted(
    cluster: DevCluster, sh: Shell, tmp_path: Path
) -> None:
    from rmgr.adapters.stores import open_store

    url = f"sqlite:{tmp_path / 'emptied.db'}"
    open_store(url).close()
    refused = sh("run", "--store", url, "--json", "--", "true")
    assert (refused.code, refused.error["code"]) == (5, "UNAVAILABLE")
    assert "the data store is empty, but cluster" in refused.error["message"]
    assert "rmgr admin init-store --accept-loss" in refused.error["hint"]
    for role in (Role.WATCHDOG, Role.STARTER, Role.SUBMITTER):
        assert cluster.security is not None
        bundle = str(cluster.security.bundle(role, "another"))
        ended = Shell(sh.home, {**sh.environment, "RMGR_SECURITY_DIR": bundle})(role, "--store", url)
        assert (ended.code, "the data store is empty, but cluster" in ended.err) == (5, True), ended
    told = sh("doctor", "--store", url)
    assert told.code != 0
    assert "--accept-loss" in told.out
    accepted = sh.ok("admin", "init-store", "--store", url, "--accept-loss")
    assert "is the empty store of cluster" in accepted.err
    assert "was not emptied" in sh.ok("admin", "init-store", "--store", url, "--accept-loss").err
    assert sh("store", "ls", "--store", url).code == 0


def test_names_of_the_cluster_are_completed(sh: Shell) -> None:
    def completed(words: str, at: int) -> list[str]:
        asked = Shell(sh.home, {**sh.environment, "_RMGR_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(at)})
        return asked.ok().out.split()

    number = sh.submit("-J", "tabbed", "--", "true")
    # A tab gives up after a second, and a busy machine may need longer.
    eventually(lambda: f"plain,{number}" in completed("rmgr show ", 2), "the submission is offered")
    eventually(lambda: completed("rmgr drain n", 2) == ["plain,n1", "plain,n2"], "nodes are offered")
    eventually(lambda: completed("rmgr submit -q d", 3) == ["plain,default"], "queues are offered")


def collect(sh: Shell, *numbers: str) -> None:
    """Until nothing but the history tells of these."""
    before = sh.ok("config", "show", "--cluster").out
    lines = ['retention = "1s"' if line.startswith("retention") else line for line in before.splitlines()]
    sh.ok("config", "apply", sh.file("short.toml", "\n".join(lines)))
    try:
        eventually(lambda: not {job["id"] for job in sh.ok("jobs", "-a", "--json").json["jobs"]} & set(numbers), "they are collected")
    finally:
        sh.ok("config", "apply", sh.file("long.toml", before))


def test_ended_work_is_history_once_it_is_collected(sh: Shell) -> None:
    number = sh.submit("-J", "bygone", "--account", "physics", "--", "sh", "-c", "exit 9")
    assert sh("wait", number).code == 9
    collect(sh, number)
    assert sh.ok("show", number, "--json").json["exit_code"] == 9
    explained = sh.ok("explain", number).out
    assert "it is history" in explained
    assert ("exit code 9 on n" in explained, "rmgr rerun" in explained) == (True, False)
    late = sh("rerun", number)
    assert (late.code, "is kept for `retention`, and that is over" in late.err) == (3, True), late
    assert sh("wait", number).code == 9
    listed = sh.ok("history", "--name", "bygone", "--json").json["history"]
    assert [(item["id"], item["state"], item["reason"], item["account"]) for item in listed] == [(number, "FAILED", "EXIT_CODE", "physics")]
    used = sh.ok("report", "--account", "physics", "--by", "account,queue", "--json").json
    row, waits = used["rows"][0], used["waits"][0]
    assert [row[name] for name in ("account", "queue", "jobs", "tasks", "failed", "lost")] == ["physics", "default", 1, 1, 1, 0]
    assert (used["cluster"]["cores"] > 0, len(used["rows"]), waits["queue"], waits["jobs"]) == (True, 1, "default", 1)
    assert 0 < row["core_seconds"] < 60
    assert 0 < row["utilisation"] < 1
    assert sh.ok("report").out.startswith("USER")
    gone = sh("logs", number, "--json")
    assert (gone.code, gone.error["code"]) == (3, "NOT_FOUND")
    assert f"rmgr history {number}" in gone.error["hint"]


def test_followers_of_work_that_ended_long_ago_do_as_the_table_of_dependencies_says(sh: Shell) -> None:
    """By the history; and once that is gone, too, whatever they wait for."""
    retried = sh.submit("--retries", "1", "--backoff", "1h", "--", "false")
    eventually(lambda: "BACKOFF" in sh("tasks", retried, "--json").out, "its first attempt has failed")
    sh.ok("cancel", retried)
    held = sh.submit("--hold", "--", "true")
    sh.ok("cancel", held)
    ended = {"completed": sh.submit("--", "true"), "failed": sh.submit("--", "false"), "began": retried, "never began": held}
    for number in ended.values():
        sh("wait", number)
    forgotten = {kind: sh.submit("--hold", "-d", f"{kind}:{ended['completed']}", "--", "true") for kind in ("ok", "any", "fail")}
    collect(sh, *ended.values())

    def ran(follower: str) -> bool:
        sh("wait", follower)
        return sh.ok("show", follower, "--json").json["state"] == "COMPLETED"

    runs = {
        how: [ran(follower) for follower in [sh.submit("-d", f"{kind}:{number}", "--", "true") for kind in forgotten]]
        for how, number in ended.items()
    }
    assert runs == {
        "completed": [True, True, False],
        "failed": [False, True, True],
        "began": [False, True, True],
        "never began": [False, True, False],
    }
    sh.ok("history", "purge", "--older-than", "0")
    assert sh("submit", "-d", f"any:{ended['completed']}", "--", "true").code == 3
    for follower in forgotten.values():
        sh.ok("release", follower)
        assert sh("wait", follower).code == 130
        assert "neither in the cluster nor in the history" in sh.ok("show", follower).out
