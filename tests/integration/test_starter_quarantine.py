"""A slot that dies under work is that work's failure; a node that cannot open slots any more is quarantined, and everybody can see it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmgr.adapters.zk import ZkCoordinator
from rmgr.coord import paths
from rmgr.coord.records import decode_record
from rmgr.daemons.starter_strikes import OWN
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.model.node import Trouble
from tests.harness.starter_rig import Rig, wait_for


@pytest.fixture
def rig(coordinator: ZkCoordinator, zookeeper: ZooKeeperServer, chroot: str, tmp_path: Path) -> Iterator[Rig]:
    with Rig(coordinator, zookeeper.hosts, chroot, tmp_path) as made:
        yield made


def trouble(rig: Rig, node: str = "n1") -> Trouble | None:
    found = rig.zk.get(paths.trouble(node)).result(60)
    return None if found is None else decode_record(found.data, Trouble)


def test_a_quarantine_is_published_until_it_is_over_and_one_of_an_older_life_is_removed(rig: Rig) -> None:
    rig.write(paths.trouble("n1"), Trouble(node="n1", incarnation=0, kind="disk", reason="of an older life", since_us=1))
    running = rig.start()
    rig.wait_registered()
    wait_for(lambda: trouble(rig) is None, "the old record to go")
    agent = running.agent()

    def strike() -> None:
        for number in range(OWN):
            agent.strikes.add("slot_not_opened", f"no memory {number}", time.monotonic())

    running.parts.starter.ask(strike)
    told = wait_for(lambda: trouble(rig), "the quarantine to be published")
    assert (told.kind, told.incarnation) == ("quarantine", agent.incarnation)
    assert "slot_not_opened: no memory 4" in told.reason
    assert 50 < told.until_us / 1e6 - time.time() < 61
    running.parts.starter.ask(lambda: setattr(agent.strikes, "out_until_s", time.monotonic()))
    wait_for(lambda: trouble(rig) is None, "its end to be published")
    assert not agent.is_draining
