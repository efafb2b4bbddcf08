"""Identity, access lists and TLS reach ZooKeeper; refusals are typed, and large answers survive TLS records."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmgr.adapters.identity.pki import issue_server
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.adapters.zookeeper.server import ZkSecurity
from rmgr.adapters.zookeeper.wire import Acl
from rmgr.coord.protocol.multi import Committed, Create, Exists, Multi
from rmgr.dev.zookeeper import ServerTls, ZooKeeperEnsemble, ZooKeeperServer
from rmgr.errors import ConfigError, NotConnected, PermissionDenied, Unavailable
from rmgr.model.identity import Role
from tests.conftest import need_zookeeper
from tests.harness.bundles import session_bundles
from tests.harness.fair_time import undisturbed

USER, PASSWORD = "rmgr", "not for production"


def digest(user: str, password: str) -> str:
    return f"{user}:{base64.b64encode(hashlib.sha1(f'{user}:{password}'.encode()).digest()).decode()}"


def make(path: str, data: bytes = b"") -> Multi:
    return Multi(name="MAKE", ops=(Create(path, data),), proof=Exists(path))


def test_an_access_list_keeps_strangers_out_and_says_so(zookeeper: ZooKeeperServer, chroot: str) -> None:
    acl = (Acl(scheme="digest", id=digest(USER, PASSWORD)),)
    security = ZkSecurity(auth_scheme="digest", auth_credential=f"{USER}:{PASSWORD}")
    assert PASSWORD not in repr(security)
    with ZkCoordinator.connect(zookeeper.hosts, chroot, security=security, acl=acl) as owner:
        owner.ensure(["/"])
        assert isinstance(owner.commit(make("/mine", b"secret")).result(60), Committed)
        with ZkCoordinator.connect(zookeeper.hosts, chroot) as stranger:
            with pytest.raises(PermissionDenied):
                stranger.get("/mine").result(60)
            with pytest.raises(PermissionDenied, match=r"MAKE: operation 0 on /theirs"):
                stranger.commit(make("/theirs")).result(60)
        owner.drop_link()  # the identity is told again on every connection
        found = owner.get("/mine").result(60)
        assert found.data == b"secret"


def server_tls(
    hosts: tuple[str, ...] = ("127.0.0.1",), *, days: int = 2, now_s: float | None = None, needs_client: bool = True
) -> ServerTls:
    ca = session_bundles("").ca
    certificate, key = issue_server(ca, "zk", hosts, days=days, now_s=now_s)
    return ServerTls(certificate=certificate, key=key, ca=ca.cert_pem, needs_client=needs_client)


def secure_client(role: Role = Role.USER, cluster: str = "") -> ZkSecurity:
    bundle = session_bundles(cluster).dir(role)
    return ZkSecurity(tls=True, ca_file=f"{bundle}/ca.crt", cert_file=f"{bundle}/tls.crt", key_file=f"{bundle}/tls.key")


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """Three servers that speak TLS only, with clients that the cluster's authority knows."""
    need_zookeeper("3.9")
    where = tmp_path_factory.mktemp("secure")
    with ZooKeeperEnsemble(where, heap_mb=96, tick_ms=500, release="3.9", tls=server_tls(), die_with_parent=True) as ensemble:
        yield ensemble


def test_an_ensemble_is_reached_by_tls_both_sides_checked(secure: ZooKeeperEnsemble, chroot: str) -> None:
    with ZkCoordinator.connect(secure.hosts, chroot, security=secure_client(), connect_timeout_s=15, session_timeout_s=20.0) as coord:
        coord.ensure(["/names"])
        commits = [coord.commit(make(f"/names/{'n' * 200}{number}")) for number in range(300)]
        assert all(isinstance(commit.result(60), Committed) for commit in commits)
        assert len(coord.children("/names").result(60) or []) == 300  # 60 kB: several records of TLS
        session = coord.session_id
        for server in secure.servers:  # wherever the session is, it goes on elsewhere
            server.pause()
            assert isinstance(coord.commit(make(f"/names/{server.port}"), timeout_s=60).result(70), Committed)
            server.resume()
            server.wait_ready(60)
        assert coord.session_id == session


@undisturbed
def test_who_shows_no_certificate_of_the_cluster_is_turned_away(secure: ZooKeeperEnsemble) -> None:
    ca_file = secure_client().ca_file
    with pytest.raises(NotConnected, match="alert bad certificate"):
        ZkCoordinator.connect(secure.hosts, "/t", security=ZkSecurity(tls=True, ca_file=ca_file), connect_timeout_s=1)
    with pytest.raises(NotConnected, match=r"fails the TLS handshake \(unable to get local issuer") as foreign:
        ZkCoordinator.connect(secure.hosts, "/t", security=secure_client(cluster="other-cluster"), connect_timeout_s=1)
    assert "ca.crt" in foreign.value.hint
    with pytest.raises(Unavailable) as plain:
        ZkCoordinator.connect(secure.hosts, "/t", connect_timeout_s=1)
    assert "is TLS on at both ends" in plain.value.hint
    with pytest.raises(NotConnected):  # the authorities of the operating system do not count beside the cluster's
        ZkCoordinator.connect(secure.hosts, "/t", security=ZkSecurity(tls=True), connect_timeout_s=1)


@undisturbed
def test_tls_towards_a_port_without_it_is_told(zookeeper: ZooKeeperServer) -> None:
    with pytest.raises(Unavailable, match="TLS"):
        ZkCoordinator.connect(zookeeper.hosts, "/t", security=secure_client(), connect_timeout_s=1)


@pytest.mark.parametrize(
    ("tls", "said"),
    [
        ({"hosts": ("zk.elsewhere", "10.9.8.7")}, "IP address mismatch"),
        ({"days": 1, "now_s": time.time() - 5 * 86400}, "certificate has expired"),
    ],
)
def test_a_server_with_a_wrong_or_old_certificate_is_told_by_what_is_wrong(
    zookeeper_parts: None, tmp_path: Path, tls: dict[str, object], said: str
) -> None:
    with ZooKeeperServer(tmp_path / "zk", heap_mb=64, tls=server_tls(**tls, needs_client=False), die_with_parent=True) as server:

        @undisturbed
        def is_told() -> None:
            with pytest.raises(NotConnected, match=said) as told:
                ZkCoordinator.connect(server.hosts, "/t", security=secure_client(), connect_timeout_s=1)
            assert server.hosts in told.value.message
            assert "name the host" in told.value.hint

        is_told()


def test_a_bundle_without_its_files_is_named(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="gone"):
        ZkSecurity(tls=True, ca_file=str(tmp_path / "gone.crt")).context()
