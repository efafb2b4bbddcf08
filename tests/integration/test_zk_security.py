"""Identity, access lists and TLS pass through to ZooKeeper; refusals are typed, and large answers survive TLS records."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmgr.adapters.zk import Acl, ZkCoordinator, ZkSecurity
from rmgr.coord.multi import Committed, Create, Exists, Multi
from rmgr.dev.zookeeper import ZooKeeperServer, free_port
from rmgr.errors import NotConnected, PermissionDenied

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
        assert isinstance(owner.commit(make("/mine", b"secret")).result(5), Committed)
        with ZkCoordinator.connect(zookeeper.hosts, chroot) as stranger:
            with pytest.raises(PermissionDenied):
                stranger.get("/mine").result(5)
            with pytest.raises(PermissionDenied, match=r"MAKE: operation 0 on /theirs"):
                stranger.commit(make("/theirs")).result(5)
        owner.drop_link()  # the identity is told again on every connection
        found = owner.get("/mine").result(10)
        assert found is not None
        assert found.data == b"secret"


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, "-keyout", key, "-out", cert],
        check=True,
        capture_output=True,
        timeout=60,
    )
    (tmp_path / "both.pem").write_bytes(key.read_bytes() + cert.read_bytes())
    return cert


@pytest.fixture
def secure(zookeeper_parts: None, certificate: Path, tmp_path: Path) -> Iterator[str]:
    port = free_port()
    settings = {
        "secureClientPort": port,
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": tmp_path / "both.pem",
        "ssl.trustStore.location": certificate,
        "ssl.clientAuth": "none",
    }
    with ZooKeeperServer(tmp_path / "zk", heap_mb=96, config=settings, die_with_parent=True):
        yield f"127.0.0.1:{port}"


def test_tls_with_a_checked_certificate(secure: str, certificate: Path) -> None:
    security = ZkSecurity(tls=True, ca_file=str(certificate))
    with ZkCoordinator.connect(secure, "/t", security=security, connect_timeout_s=15) as coord:
        coord.ensure(["/names"])
        commits = [coord.commit(make(f"/names/{'n' * 200}{number}")) for number in range(300)]
        assert all(isinstance(commit.result(10), Committed) for commit in commits)
        assert len(coord.children("/names").result(5) or []) == 300  # 60 kB: several records of TLS
    with pytest.raises(NotConnected, match=r"(?i)certificate"):
        ZkCoordinator.connect(secure, "/t", security=ZkSecurity(tls=True), connect_timeout_s=2)
