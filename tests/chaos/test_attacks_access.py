"""Strangers, a stolen gateway and holders of tokens attack ZooKeeper and the door of a real secured cluster.

mallory has ZooKeeper's secret of role submitter; a stranger has nothing but the address.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rmgr.adapters.identity.invitation import decode, tls_pair
from rmgr.adapters.rpc import services
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.adapters.zookeeper.server import four_letter
from rmgr.adapters.zookeeper.wire import Acl
from rmgr.client.taskqueue import TaskQueue
from rmgr.coord.protocol import acl, paths
from rmgr.coord.protocol.multi import Committed, Create, Delete, Exists, Multi, Op, Set
from rmgr.dev.cluster import CHROOT
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.errors import PermissionDenied, QuotaReached
from rmgr.model.identity import Role
from rmgr.model.states import State
from rmgr.procedures import securing
from tests.harness.attacker import HEAP_MIB, Person, Scene, unique
from tests.harness.live_files import below
from tests.harness.waiting import eventually


@pytest.fixture
def stranger(scene: Scene) -> Iterator[ZkCoordinator]:
    """Somebody without credentials, at ZooKeeper's own `/`."""
    with ZkCoordinator.connect(scene.cluster.zookeeper.hosts, "") as client:
        yield client


def attempt(*ops: Op) -> Multi:
    return Multi(name="ATTACK", ops=ops, proof=Exists("/never"))


# -- without credentials -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["", "/rmgr", CHROOT, f"{CHROOT}/subs", "/zookeeper", "/zookeeper/quota", f"/zookeeper/quota{CHROOT}"])
def test_a_stranger_makes_nothing_anywhere(stranger: ZkCoordinator, place: str) -> None:
    with pytest.raises(PermissionDenied):
        stranger.commit(attempt(Create(f"{place}/{unique()}", bytes(15_000)))).result(60)
    with pytest.raises(PermissionDenied):
        stranger.set_access(place or "/", (Acl(),)).result(60)


def test_nobody_but_the_admin_and_watchdogs_changes_a_quota(scene: Scene, stranger: ZkCoordinator) -> None:
    assert scene.mallory.credentials.zookeeper_auth is not None
    scheme, secret = scene.mallory.credentials.zookeeper_auth
    limit = f"/zookeeper/quota{CHROOT}{paths.SUBS}/zookeeper_limits"
    with ZkCoordinator.connect(scene.cluster.zookeeper.hosts, "", security=_as(scheme, secret)) as mallory:
        for client in (stranger, mallory):
            for op in (Set(limit, b"count=-1,bytes=-1", -1), Delete(limit)):
                with pytest.raises(PermissionDenied):
                    client.commit(attempt(op)).result(60)
            found = client.get(limit).result(60)
            assert found is not None
            assert found.data == acl.encode(acl.limits(HEAP_MIB)[paths.SUBS])


@pytest.mark.parametrize("word", ["conf", "cons", "crst", "dump", "envi", "mntr", "stat", "srst", "wchs", "wchc", "wchp", "dirs"])
def test_a_server_tells_strangers_nothing_of_its_clients_and_disk(scene: Scene, word: str) -> None:
    server = _server(scene)
    assert "not in the whitelist" in four_letter(server.host, server.port, word)
    assert server.mode() == "standalone"


def test_a_server_listens_where_clients_come_and_nowhere_else(scene: Scene) -> None:
    server = _server(scene)
    listening = {one.laddr.port for one in psutil.Process(server.pid).net_connections() if one.status == psutil.CONN_LISTEN}
    assert listening == {server.port}  # no server for administration


def test_znodes_transactions_and_logs_are_nobody_elses_to_read(scene: Scene) -> None:
    where = _server(scene).data_dir
    for place in (where, where / "data", scene.cluster.log_file("w1").parent):
        assert place.stat().st_mode & 0o077 == 0, place
    kept = [path for path in below(where) if path.name.startswith(("log.", "snapshot."))]
    assert all(where in path.parents for path in (_server(scene).log_file, *kept))


# -- by a stolen gateway -------------------------------------------------------------------------------------------------------


def fill(person: Person, root: str, *, size: int) -> list[str]:
    """Makes znodes of `size` bytes below `root` until ZooKeeper refuses; returns them. Fails when it never does."""
    quota = acl.limits(HEAP_MIB)[root]
    most = 2 * min(quota.znodes, quota.data_bytes // max(1, size)) + 1000
    made: list[str] = []
    batch = max(1, min(100, 200_000 // (size + 200)))
    while len(made) < most:
        names = [f"{root}/x{unique()}{number}" for number in range(batch)]
        asked = person.zk.commit(attempt(*(Create(name, bytes(size)) for name in names)))
        full = asked.exception(60)
        if isinstance(full, QuotaReached):
            assert f"quota of {root}" in full.message
            assert "rmgr admin" in full.hint
            return made
        assert isinstance(asked.result(), Committed)
        made += names
    pytest.fail(f"{len(made)} znodes of {size} bytes below {root}, and no end")


def remove(scene: Scene, made: list[str]) -> None:
    """As the admin."""
    for at in range(0, len(made), 100):
        assert isinstance(scene.cluster.coordinator.commit(attempt(*map(Delete, made[at : at + 100]))).result(60), Committed)


@pytest.mark.parametrize(
    ("root", "size"), [(paths.IDENTITIES, 0), (paths.IDENTITIES, 15_000), (paths.REQUESTS, 15_000), (paths.SUBMITTERS, 15_000)]
)
def test_who_fills_a_subtree_is_refused_and_others_work_goes_on(scene: Scene, root: str, size: int) -> None:
    made = fill(scene.mallory, root, size=size)
    try:
        [outcome] = scene.outcomes(scene.submit())
        assert outcome.state is State.COMPLETED
        assert len(made) * size <= acl.limits(HEAP_MIB)[root].data_bytes + 300_000
    finally:
        remove(scene, made)


def test_what_ends_while_submissions_are_full_is_kept_and_told_afterwards(scene: Scene, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    with scene.ann.connection() as connection, TaskQueue(_after, connection=connection) as queue:
        future = queue.submit_call(str(gate))
        eventually(lambda: scene.ann.zk.children(f"{paths.RUNNING}/n1").result(60), "it runs")
        made = fill(scene.mallory, paths.SUBS, size=15_000) + fill(scene.mallory, paths.SUBS, size=0)
        try:
            with pytest.raises(QuotaReached):  # a submission too many is told so, and nothing tries again for ever
                scene.submit()
            gate.unlink()
            eventually(lambda: "commit_over_quota" in scene.cluster.log_file("n1").read_text(), "the outcome is refused")
            assert scene.cluster.process("n1").find() is not None
            trouble = paths.trouble("n1")
            told = eventually(lambda: scene.cluster.coordinator.get(trouble).result(60), "the node says why it takes nothing more")
            assert b"ZooKeeper's quota of /subs is used up" in told.data
        finally:
            remove(scene, made)
        assert future.result(60) == "done"
    [outcome] = scene.outcomes(scene.submit())
    assert outcome.state is State.COMPLETED


# -- with a token -------------------------------------------------------------------------------------------------------------


def test_a_token_without_a_nonce_opens_nothing_and_every_use_is_on_record(scene: Scene) -> None:
    admin = Person(scene.cluster, Role.ADMIN, "admin")
    try:
        from rmgr.adapters.identity.credentials import load_ca
        from rmgr.adapters.identity.invitation import Token

        assert scene.cluster.security is not None
        endpoints = securing.watchdogs(admin.zk)
        draft = Token(ca=b"", certificate=b"", key=b"", invitation="", name="n8", role="starter", endpoints=endpoints)
        told = decode(securing.invite(admin.zk, load_ca(scene.cluster.security.admin), draft, lasts_s=600.0))
        pair = tls_pair(told)
        for nonce in ("", "5e" * 15):
            with pytest.raises(PermissionDenied, match="nonce of 16 random bytes"):
                services.redeem(endpoints, pair, nonce)
        assert services.redeem(endpoints, pair, "5e" * 16)[0] == "n8"
        with pytest.raises(PermissionDenied, match="used already"):
            services.redeem(endpoints, pair, "00" * 16)
        said = [line["allowed"] for line in _audited(scene, "join") if line["who"] in {"n8", told.invitation}]
        assert said == [False, False, True, False]
    finally:
        admin.zk.close()


# -- inside ------------------------------------------------------------------------------------------------------------------


def _after(gate: str) -> str:
    import time
    from pathlib import Path

    while Path(gate).exists():
        time.sleep(0.05)
    return "done"


def _server(scene: Scene) -> ZooKeeperServer:
    assert isinstance(scene.cluster.zookeeper, ZooKeeperServer)
    return scene.cluster.zookeeper


def _as(scheme: str, secret: str) -> Any:
    from rmgr.adapters.zookeeper.server import ZkSecurity

    return ZkSecurity(auth_scheme=scheme, auth_credential=secret)


def _audited(scene: Scene, what: str) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in scene.cluster.log_file("w1").read_text().splitlines() if line.startswith("{"))
    return [line for line in lines if line["event"] == "audit" and line["what"] == what]
