"""Znodes of work deleted by hand on a real cluster: claims are put back, and work without any copy is ended and explained."""

from __future__ import annotations

from pathlib import Path

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Delete, Gone, Multi
from rmgr.dev.cluster import DevCluster
from tests.harness.waiting import eventually
from tests.integration.commands import Shell


def vanish(cluster: DevCluster, path: str) -> None:
    """Deletes a znode behind everybody's back."""
    multi = Multi(name="BY_HAND", ops=(Delete(path),), proof=Gone(path))
    assert isinstance(cluster.coordinator.commit(multi).result(60), Committed)


def test_claims_that_were_deleted_are_put_back_and_waiting_work_is_ended(live_cluster: DevCluster, sh: Shell, tmp_path: Path) -> None:
    coordinator, go = live_cluster.coordinator, tmp_path / "go"
    runs = int(sh.submit("-a", "0-1", "--", "sh", "-c", f"while ! [ -e {go} ]; do sleep 0.05; done; echo done $RMGR_ATTEMPT"))
    waits = int(sh.submit("--hold", "--", "true"))

    def claims() -> list[str]:
        snapshot = live_cluster.snapshot()
        return [paths.running_block(block.node, block.key) for block in snapshot.claimed if block.key.submission == runs]

    eventually(lambda: sh.ok("tasks", str(runs), "--json").out.count("RUNNING") == 2, "both run")
    before = claims()
    for path in before:
        vanish(live_cluster, path)
    (held,) = [name for name in coordinator.children(paths.held("default")).result(60) or () if paths.parse_block(name).submission == waits]
    vanish(live_cluster, f"{paths.held('default')}/{held}")
    eventually(lambda: sorted(claims()) == sorted(before), "the claims are back")
    eventually(lambda: "it is nowhere in ZooKeeper" in sh("explain", f"{waits}_0").out, "explain says that the other is nowhere")
    eventually(lambda: sh("jobs", str(waits), "--json").json["jobs"][0]["state"] == "FAILED", "it has ended")
    told = sh.ok("explain", str(waits)).out
    assert "data were lost" in told
    assert "it was nowhere in ZooKeeper" in told
    assert "its claim was nowhere in ZooKeeper" in sh.ok("explain", f"{runs}_0").out
    go.touch()
    assert sh("wait", str(runs)).code == 0
    tasks = sh.ok("tasks", str(runs), "--json").json["tasks"]
    assert [(task["state"], task["attempt"]) for task in tasks] == [("COMPLETED", 1)] * 2
    assert "its claim was nowhere in ZooKeeper" in sh.ok("show", f"{runs}_0").out
