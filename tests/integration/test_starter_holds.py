"""Holds of jobs with another head: cores go out of a node's lanes, nothing is pulled meanwhile, and come back when a hold goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmgr.adapters.zk import ZkCoordinator
from rmgr.coord import paths
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.model.placing import NodeHold
from rmgr.model.submission import Command
from tests.harness.hand_leader import BOTH
from tests.harness.starter_rig import Rig, wait_for
from tests.integration.test_starter_orders import delete, waiter


@pytest.fixture
def rig(coordinator: ZkCoordinator, zookeeper: ZooKeeperServer, chroot: str, tmp_path: Path) -> Iterator[Rig]:
    with Rig(coordinator, zookeeper.hosts, chroot, tmp_path, **BOTH) as made:
        yield made


def test_a_hold_takes_its_cores_when_they_are_free_and_gives_them_back_when_it_goes(rig: Rig, tmp_path: Path) -> None:
    agent = rig.start(cores=3).agent()
    rig.wait_registered()
    job = rig.submit(Command(argv=("true",)), queue="batch")
    go = tmp_path / "go"
    first = rig.submit(waiter(go, tmp_path / "s"), [b""] * 2)
    wait_for(lambda: (tmp_path / "s-0").exists() and (tmp_path / "s-1").exists(), "two cores in use")
    rig.zk.ensure([paths.hold("n1")])  # by the leader, with the first hold: the node has run for long then
    path = paths.hold_of("n1", job, 0, 1)
    rig.write(path, NodeHold(head="elsewhere", key="its block there", cores=2, memory_mib=64, processes=2))
    wait_for(lambda: agent.lanes.is_owed, "the hold to wait for room")
    later = rig.submit(Command(argv=("true",)), [b""] * 3)
    with pytest.raises(AssertionError):
        rig.outcomes(later, 1, 0.3)  # though a core is free
    go.touch()
    rig.outcomes(first, 2)
    wait_for(lambda: agent.jobs.holds.get(f"{job}.0.1"), "the hold to have its cores")
    rig.outcomes(later, 3)  # on the third core
    assert (agent.lanes.free_cores, agent.lanes.memory_mib - agent.lanes.free_memory_mib) == (1, 64)
    wide = rig.submit(Command(argv=("true",)), cores=3)
    delete(rig, path)
    rig.outcomes(wide, 1)
    wait_for(lambda: agent.lanes.free_cores == 3 and not agent.jobs.holds, "all cores free")
