"""Other resources than cores and memory on real Starters: lent by number to pulled and placed work, and returned by killed work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import rmgr
from rmgr import TaskQueue
from rmgr.dev.cluster import DevCluster
from rmgr.dev.zookeeper import ZooKeeperServer
from tests.harness.ended_sessions import LONG_S
from tests.harness.waiting import eventually
from tests.integration.commands import Lend, Shell

#: Says so when somebody else has the same piece at the same time.
ALONE = 'cd {dir}; mkdir $RMGR_RESOURCE_GPU || echo shared; sleep .3; rmdir $RMGR_RESOURCE_GPU; echo "$RMGR_NODELIST $CUDA_VISIBLE_DEVICES"'
RANKS = """#!/bin/sh
#RMGR -n 3 --resource licence=1 -t 5m
echo "script $RMGR_NODE $RMGR_RESOURCE_LICENCE $CUDA_VISIBLE_DEVICES"
rmgr run sh -c 'echo "rank $RMGR_NODE $RMGR_RESOURCE_LICENCE"'
"""
#: One process a node asks for one core, and has its nodes for itself.
WHOLE = """#!/bin/sh
#RMGR -N 2 --exclusive -t 5m
say='$RMGR_NODE $RMGR_CPUS_ON_NODE $RMGR_THREADS $RMGR_RESOURCE_LICENCE $CUDA_VISIBLE_DEVICES'
eval "echo \\"script $say\\""
rmgr run sh -c "echo \\"rank $say\\"; while [ ! -e $GO ]; do sleep .1; done"
"""


@pytest.fixture(scope="module")
def cluster(lend_secured: Lend) -> Iterator[DevCluster]:
    """n1 has two GPUs (virtual ones), n2 has none; both have licences."""
    with lend_secured() as lent:
        lent.start_starter("n1", cores=4, options=("--resource", "gpu=2", "--resource", "licence=2"))
        lent.start_starter("n2", cores=2, options=("--resource", "gpu=0", "--resource", "licence=1"))
        lent.wait_healthy(nodes=2, leader=True, deadline_s=60.0)
        yield lent


@pytest.fixture(scope="module")
def sh(cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(tmp_path_factory.mktemp("home"), cluster.environment())


def used(sh: Shell) -> dict[str, int]:
    nodes = sh.ok("nodes", "--json", "n1", "n2").json["nodes"]
    assert [node["resources"] for node in nodes] == [{"gpu": 2, "licence": 2}, {"licence": 1}]
    return {name: sum(node["resources_used"].get(name, 0) for node in nodes) for name in ("gpu", "licence")}


def test_what_no_node_has_is_refused_with_what_the_largest_one_has(sh: Shell) -> None:
    for where in ((), ("--dry-run",), ("--dry-run", "-q", "batch"), ("-n", "2")):
        refused = sh("submit", *where, "--gpus", "3", "--", "true")
        assert refused.code != 0, refused
        assert "3 gpu" in refused.err, refused.err
        assert "n1, has 4 cores" in refused.err, refused.err
        assert "2 gpu" in refused.err, refused.err
    assert "gpu:0/2" in sh.ok("nodes").out


def test_pieces_are_lent_to_one_at_a_time_and_come_back_from_what_is_killed(sh: Shell, tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.mktemp("pieces")
    script = ALONE.format(dir=place)
    pulled = sh.submit("--array", "1-4", "--gpus", "1", "--", "sh", "-c", script)
    placed = [sh.submit("-q", "batch", "-t", "5m", "--gpus", "1", "--", "sh", "-c", script) for _ in range(2)]
    for job in (pulled, *placed):
        assert sh("wait", job).code == 0
    told = [line for job in (pulled, *placed) for line in sh.ok("logs", job).out.splitlines()]
    assert {line.rpartition(": ")[2] for line in told} <= {"n1 0", "n1 1"}, told
    assert len(told) == 6, told

    held = sh.submit("--array", "1-2", "--gpus", "1", "--", "sleep", "300")
    eventually(lambda: used(sh)["gpu"] == 2, "both are lent")
    waits = sh.submit("--gpus", "1", "--", "true")
    waits_placed = sh.submit("-q", "batch", "-t", "5m", "--gpus", "2", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    # Cores are free: what needs no GPU is not held up, and sees none.
    assert sh.ok("submit", "--wait", "--", "sh", "-c", 'echo "<$CUDA_VISIBLE_DEVICES>$RMGR_RESOURCE_GPU"').out == "<>\n"
    assert "2 of 2 are in use" in sh.ok("explain", waits).out
    sh.ok("cancel", held)
    assert sh("wait", waits).code == 0
    assert sh("wait", waits_placed).code == 0
    assert sh.ok("logs", waits_placed).out == "0,1\n"
    eventually(lambda: used(sh) == {"gpu": 0, "licence": 0}, "all came back")


def test_each_rank_has_its_own_part_of_what_its_node_was_lent(sh: Shell) -> None:
    told = sh.ok("submit", "--wait", sh.file("ranks.sh", RANKS)).out.splitlines()
    assert sorted(told)[:3] == ["rank n1 0", "rank n1 1", "rank n2 0"], told
    assert sorted(told)[3:] in (["script n1 0,1 "], ["script n2 0 "]), told  # whichever node the leader has met first
    eventually(lambda: used(sh)["licence"] == 0, "all came back")


def test_a_job_that_is_alone_on_its_nodes_has_all_that_they_have(sh: Shell, tmp_path_factory: pytest.TempPathFactory) -> None:
    go = tmp_path_factory.mktemp("whole") / "go"
    job = sh.submit("--env", f"GO={go}", sh.file("whole.sh", WHOLE))
    eventually(lambda: len(sh.ok("logs", job).out.splitlines()) == 3, "its ranks run")
    told = sh.ok("logs", job).out.splitlines()
    ranks = {"rank n1 4 1 0,1 0,1", "rank n2 2 1 0 "}
    assert set(told[1:]) == ranks, told
    assert f"rank {told[0].removeprefix('script ')}" in ranks, told
    # Its part of a job runs on a node, too, where the script does not.
    in_use = [(1, 4, {"gpu": 2, "licence": 2}), (1, 2, {"licence": 1})]

    def found() -> list[tuple[int, int, dict[str, int]]]:
        nodes = sh.ok("nodes", "--json", "n1", "n2").json["nodes"]
        return [(node["running"], node["cores_used"], node["resources_used"]) for node in nodes]

    eventually(lambda: found() == in_use, lambda: f"both nodes are in use as a whole: {found()}")
    waits = sh.submit("--", "true")
    assert "2 fitting nodes are busy" in sh.ok("explain", waits).out
    go.touch()
    assert (sh("wait", job).code, sh("wait", waits).code) == (0, 0)
    eventually(lambda: used(sh) == {"gpu": 0, "licence": 0}, "all came back")


def test_calls_of_a_task_queue_find_theirs(cluster: DevCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(_: int) -> tuple[str, str]:
        import os

        return os.environ["CUDA_VISIBLE_DEVICES"], os.environ["RMGR_NODELIST"]

    for name, value in cluster.environment().items():
        monkeypatch.setenv(name, value)
    with rmgr.connect() as connection:
        for queue in ("default", "batch"):
            with TaskQueue(mine, queue=queue, resources={"gpu": 1}, connection=connection) as calls:
                found = {future.result(60) for future in calls.map(None, range(6))}
                assert found <= {("0", "n1"), ("1", "n1")}, found


def test_cores_kept_for_calls_get_neither_pulled_nor_placed_work(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    # 3 cores, 2 of them for a server beside the Starter: whatever comes, and however, one process has the node at a time.
    with DevCluster(tmp_path / "kept", nodes=0, watchdogs=1, guest_of=zookeeper, session_timeout_s=LONG_S) as cluster:
        cluster.start_starter("n1", cores=3, environment={"RMGR_STARTER_CALL_CORES": "2"})
        cluster.wait_healthy(nodes=1, leader=True, deadline_s=60.0)
        sh = Shell(tmp_path / "home", cluster.environment())
        (node,) = sh.ok("nodes", "--json").json["nodes"]
        assert (node["cores"], node["call_cores"]) == (1, 2)
        assert sh.ok("nodes", "-o", "node,cores,callcores").out.split()[-3:] == ["n1", "0/1", "2"]
        for words in (("-c", "2"), ("-q", "batch", "-c", "2"), ("-n", "1", "-c", "2")):
            refused = sh("submit", *words, "--", "true")
            assert refused.code == 2, refused
            assert "n1, has 1 core (and 2 that it keeps for calls)" in refused.err
        assert "one node has room for 1" in sh("submit", "-n", "2", "--", "true").err
        alone = f"mkdir {tmp_path}/lock || echo shared; sleep .2; rmdir {tmp_path}/lock"
        pulled = sh.submit("--array", "1-4", "--", "sh", "-c", alone)
        placed = [sh.submit("-q", "batch", "-t", "5m", "--", "sh", "-c", alone) for _ in range(2)]
        for job in (pulled, *placed):
            assert sh("wait", job).code == 0
            assert sh.ok("logs", job).out == ""
        refused = sh("submit", "--partition", "calls", "--", "true")
        assert (refused.code, "rmgr call" in refused.err) == (2, True), refused
