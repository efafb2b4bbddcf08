"""A user who has used up the processes of a node gets no work there, and other users' work goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rmgr.adapters.host import process
from rmgr.adapters.host.accounts import Account
from rmgr.adapters.host.cgroup import SlotCgroup
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.records import decode_record
from rmgr.daemons.starter.node import node as node_module
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.model.node import Trouble
from tests.harness.local_accounts import LocalAccounts
from tests.harness.reachable import open_place
from tests.harness.starter_rig import Rig, Running, own_rig, sh
from tests.harness.waiting import eventually
from tests.integration.users.test_run_as_user import told

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux") or os.geteuid() != 0, reason="users' rights take root")
_PROCESSES = 40


@pytest.fixture
def rig(zookeeper: ZooKeeperServer) -> Iterator[Rig]:
    with open_place() as place, own_rig(zookeeper, place) as made:
        yield made


@pytest.fixture
def node(accounts: LocalAccounts, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Running:
    """A Starter where users have few processes, and who is out is out for seconds."""
    monkeypatch.setattr(process, "_pids_of_user", lambda _limit: _PROCESSES)
    monkeypatch.setattr(process.NodeRunner, "slot_cgroup", _no_cgroup)
    monkeypatch.setattr(node_module, "OUT_S", 5.0)
    return rig.ready("n1", as_users=True)


def _no_cgroup(_runner: object, _name: str) -> SlotCgroup | None:
    return None


def test_a_user_without_processes_is_refused_and_the_node_works_for_others(rig: Rig, node: Running, accounts: LocalAccounts) -> None:
    anna, ben = accounts.make("a"), accounts.make("b")
    sleepers = [sleeper(anna) for _ in range(_PROCESSES + 5)]
    try:
        number = rig.submit(sh("true"), user=anna.name, resubmit=True)
        eventually(lambda: anna.name in node.agent().accounts.refused, "she is refused")
        assert node.agent().drains == {}
        published = eventually(lambda: rig.zk.get(paths.trouble("n1")).result(60), "it is published")
        assert decode_record(published.data, Trouble, "").barred == (anna.name,)  # her own doing: no reason to call the node ill
        assert told(rig, sh("id -u"), ben).strip() == str(ben.uid)
        assert node.agent().drains == {}
    finally:
        for one in sleepers:
            one.kill()
        for one in sleepers:
            one.wait()
    assert told(rig, sh("id -u"), anna).strip() == str(anna.uid), "seconds after she has processes again"
    assert number


def sleeper(account: Account) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["/bin/sleep", "600"], user=account.uid, group=account.gid, extra_groups=[], cwd="/")
