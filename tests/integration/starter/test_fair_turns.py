"""Users take turns on a real node: its processes run their tasks, ZooKeeper has their blocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.dev.zookeeper import ZooKeeperServer
from tests.harness.starter_rig import Rig, call
from tests.harness.waiting import eventually


@pytest.fixture
def rig(coordinator: ZkCoordinator, zookeeper: ZooKeeperServer, chroot: str, tmp_path: Path) -> Iterator[Rig]:
    with Rig(coordinator, zookeeper.hosts, chroot, tmp_path) as made:
        yield made


def test_users_with_long_arrays_share_a_node(rig: Rig, tmp_path: Path) -> None:
    """Of one of them the blocks' names do not say whose they are, as releases before wrote them."""

    def nap(path: str) -> None:
        import time

        time.sleep(0.05)
        with open(path, "a") as file:
            file.write("x")

    users = [f"u{at}" for at in range(5)]

    def had() -> dict[str, int]:
        return {user: path.stat().st_size if (path := tmp_path / user).exists() else 0 for user in users}

    def come(user: str) -> None:
        rig.submit(nap, [call(str(tmp_path / user))] * 2000, blocks=20, user=user, tagged=user != "u3")

    rig.start(cores=2)
    rig.wait_registered()
    come("u0")
    eventually(lambda: had()["u0"] > 20, "the first of them has the node")
    for user in users[1:]:
        come(user)
    eventually(lambda: all(had().values()), "each of the others has had a task", within_s=30)
    before = had()
    eventually(lambda: sum(had().values()) > sum(before.values()) + 400, "the node turns among them", within_s=90)
    shares = {user: count - before[user] for user, count in had().items()}
    equal = sum(shares.values()) / len(users)
    assert all(abs(count - equal) <= 0.2 * equal for count in shares.values()), shares
