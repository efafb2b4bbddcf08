"""The store while its Cassandra is away, comes back, refuses the user or is read-only: on this file's own node, with passwords."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from uuid import uuid4

import pytest

from rmgr.adapters.cassandra.store import CassandraStore
from rmgr.adapters.cassandra.url import parse_url
from rmgr.adapters.stores import open_store
from rmgr.coord.protocol.ports import Encoding, Store
from rmgr.dev.cassandra import CassandraNode
from rmgr.errors import ConfigError, PermissionDenied, StoreUnavailable
from tests.harness.fair_time import FairTimer
from tests.harness.proxy import Proxy
from tests.harness.store_adapters import pattern
from tests.harness.waiting import eventually

_SETTINGS = {"authenticator": "PasswordAuthenticator", "authorizer": "CassandraAuthorizer"}
#: How fast a call is refused while the store is known to be away (s); the network is not asked.
_FAST_S = 0.2


class Certificates:
    """What the node serves TLS with, beside plain text on the same port: an expired certificate, and from `renew` on a good one."""

    def __init__(self, folder: Path) -> None:
        from rmgr.adapters.identity.pki import make_ca

        self.folder = folder
        self.is_renewed = False
        self._authority = make_ca("tls-test")
        self.ca = self._file("ca.pem", self._authority.cert_pem)
        self.other_ca = self._file("other.pem", make_ca("another").cert_pem)
        self.keystore = folder / "keystore.p12"
        self._serve_with(now_s=time.time() - 20 * 86_400, days=10)

    def renew(self) -> None:
        """The node takes the good one at its next start."""
        self._serve_with(now_s=None, days=10)
        self.is_renewed = True

    @property
    def settings(self) -> dict[str, object]:
        store = {"keystore": str(self.keystore), "keystore_password": "rmgr", "store_type": "PKCS12"}
        return {"client_encryption_options": {"enabled": True, "optional": True, **store}}

    def _serve_with(self, *, now_s: float | None, days: int) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12

        from rmgr.adapters.identity.pki import issue_server

        certificate, key = issue_server(self._authority, "cassandra", ["127.0.0.1"], days=days, now_s=now_s)
        parts = load_pem_private_key(key, None), x509.load_pem_x509_certificate(certificate)
        packed = pkcs12.serialize_key_and_certificates(b"node", *parts, None, BestAvailableEncryption(b"rmgr"))  # type: ignore[arg-type]
        self.keystore.write_bytes(packed)

    def _file(self, name: str, content: bytes) -> Path:
        (self.folder / name).write_bytes(content)
        return self.folder / name


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def node(cassandra_parts: None, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CassandraNode]:
    """One node that asks for passwords, speaks TLS to those who wish, and can be stopped."""
    server = CassandraNode(tmp_path_factory.mktemp("cassandra"), settings=_SETTINGS | certificates.settings, die_with_parent=True)
    server.start(wait_s=90)
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="module")
def as_user(node: CassandraNode, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """The URL of the keyspace for a user with a password."""
    folder = tmp_path_factory.mktemp("passwords")

    def url(user: str, password: str, keyspace: str = "outage") -> str:
        file = folder / f"{user}-{password}"
        file.touch(mode=0o600)
        file.write_text(password + "\n")
        options = f"replication_factor=1&user={user}&password_file={file}"
        return f"cassandra://{node.address}:{node.port}/{keyspace}?{options}"

    return url


@pytest.fixture(scope="module")
def root(as_user: Callable[..., str]) -> str:
    """The superuser's URL of a keyspace that is ready."""
    from rmgr.adapters.cassandra.setup import init_store

    url = as_user("cassandra", "cassandra")

    assert init_store(parse_url(url)).advice, "a single copy is worth a word"
    return url


@contextlib.contextmanager
def opened(url: str) -> Iterator[Store]:
    store = open_store(url)
    try:
        yield store
    finally:
        store.close()


@contextlib.contextmanager
def reached(url: str) -> Iterator[Store]:
    """A store that has reached its node: the first call ends if the machine stands still while the link is made."""
    with opened(url) as store:
        eventually(lambda: works(store), "it works")
        yield store


def works(store: Store) -> bool:
    """Leaves the key "back" in the store."""
    with contextlib.suppress(StoreUnavailable):
        store.put("back", b"again", timeout_s=5)
        return store.get("back", timeout_s=5) == (b"again", Encoding.RAW)
    return False


def assert_refused_fast(store: Store) -> None:
    for call in (lambda: store.get("k"), lambda: store.put("k", b"1"), store.keys, lambda: store.delete("k")):
        with FairTimer() as timer, pytest.raises(StoreUnavailable, match="cannot"):
            call()
        assert timer.elapsed_s < _FAST_S


def freeze(pid: int) -> None:
    """SIGSTOP; on a busy machine it takes a moment until the last thread has stopped."""
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in Path(f"/proc/{pid}/task").glob("*/stat")))


def test_a_password_that_is_wrong_is_told_apart_from_a_store_that_is_away(root: str, as_user: Callable[..., str]) -> None:
    with opened(as_user("cassandra", "wrong")) as store:
        with pytest.raises(PermissionDenied, match="does not admit user 'cassandra'") as caught:
            store.get("k")
        assert "password_file" not in caught.value.message
        assert "wrong-" not in str(caught.value.hint)
        assert "does not admit" in (store.health() or "")
    with opened(root.partition("&user=")[0]) as store, pytest.raises(PermissionDenied, match="asks for a user"):
        store.get("k")


def test_a_user_without_the_right_to_write_reads_and_health_says_so(root: str, as_user: Callable[..., str]) -> None:
    from tests.harness.cassandra_keyspaces import behind

    with behind(root) as run, reached(root) as owner:
        run("CREATE ROLE IF NOT EXISTS reader WITH PASSWORD = 'r' AND LOGIN = true")
        run("GRANT SELECT ON KEYSPACE {ks} TO reader")
        owner.put("k", b"1")
        with opened(as_user("reader", "r")) as store:
            assert store.get("k") == (b"1", Encoding.RAW)
            with pytest.raises(PermissionDenied, match="user 'reader' may not") as caught:
                store.put("k", b"2")
            assert "GRANT" in caught.value.hint
            assert "reads work, writes do not" in (store.health() or "")
            assert store.get("k") == (b"1", Encoding.RAW)


def test_the_keyspace_of_somebody_else_is_left_alone(root: str, as_user: Callable[..., str]) -> None:
    from rmgr.adapters.cassandra.setup import init_store
    from tests.harness.cassandra_keyspaces import behind

    with behind(root) as run:
        run("CREATE KEYSPACE IF NOT EXISTS shop WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}")
        run("CREATE TABLE IF NOT EXISTS shop.orders (id int PRIMARY KEY)")
    with pytest.raises(Exception, match=r"belongs to something else: it has tables \(orders\)"):
        init_store(parse_url(as_user("cassandra", "cassandra", "shop")))


def test_a_certificate_that_has_expired_is_named(root: str, certificates: Certificates) -> None:
    with opened(f"{root}&ca={certificates.ca}") as store:
        with pytest.raises(ConfigError, match="certificate is not accepted: certificate has expired"):
            store.get("k")
        assert "expired" in (store.health() or "")


def test_a_store_works_again_when_its_node_was_killed_and_started(root: str, node: CassandraNode, certificates: Certificates) -> None:
    big = pattern(3_000_000)
    with reached(root) as store:
        store.put("kept", b"1")
        store.put("big", big)
        node.kill()
        with pytest.raises(StoreUnavailable):
            store.put("k", b"1", timeout_s=5)
        assert_refused_fast(store)
        assert "no node can be reached" in (store.health() or "")
        with FairTimer() as timer:
            late = open_store(root)  # opening neither waits nor fails
        assert timer.elapsed_s < _FAST_S
        with pytest.raises(StoreUnavailable, match="is away"):
            late.get("kept", timeout_s=10)
        assert_refused_fast(late)
        assert "is away" in (late.health() or "")
        certificates.renew()
        node.start(wait_s=90)
        with FairTimer() as timer:
            eventually(lambda: works(store))
            eventually(lambda: works(late))
        assert timer.elapsed_s < 10
        for one in (store, late):
            assert one.health() is None
            assert one.get("kept") == (b"1", Encoding.RAW)
            assert one.get("big") == (big, Encoding.RAW)
        late.close()


def test_tls_checks_the_authority_and_the_address(root: str, node: CassandraNode, certificates: Certificates) -> None:
    if not certificates.is_renewed:
        certificates.renew()
        node.restart(wait_s=90)
    with opened(f"{root}&ca={certificates.ca}") as store:
        eventually(lambda: works(store))
    with opened(f"{root}&ca={certificates.other_ca}") as store, pytest.raises(ConfigError, match="certificate is not accepted"):
        store.get("k")


def test_a_node_that_hangs_is_refused_soon_and_used_again(root: str, node: CassandraNode) -> None:
    assert node.pid is not None
    with reached(root) as store:
        freeze(node.pid)
        try:
            with FairTimer() as timer, pytest.raises(StoreUnavailable):
                store.get("back")
            assert timer.elapsed_s < 8
            assert_refused_fast(store)
        finally:
            os.kill(node.pid, signal.SIGCONT)
        eventually(lambda: works(store))


def test_a_process_that_meets_a_node_that_hangs_is_refused_and_over_soon(root: str, node: CassandraNode) -> None:
    assert node.pid is not None
    code = f"from rmgr.adapters.stores import open_store; store = open_store({root!r}); store.get('kept')"
    freeze(node.pid)
    try:
        with FairTimer() as timer:
            ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        took_s = timer.elapsed_s
    finally:
        os.kill(node.pid, signal.SIGCONT)
    assert "no answer in 2.5s" in ended.stderr
    assert took_s < 7, f"{took_s:.1f} s"  # 2.5 s and the start of an interpreter, on a busy machine; its exit waits for nothing


@contextlib.contextmanager
def as_three(root: str, node: CassandraNode) -> Iterator[tuple[str, list[Proxy]]]:
    """The node behind three proxies, which it takes for itself and two peers: a client finds three nodes that may go one by one."""
    from tests.harness.cassandra_keyspaces import behind

    columns = "peer, peer_port, host_id, native_address, native_port, data_center, rack, release_version, schema_version, tokens"
    peers = {"127.0.0.2": -(2**62), "127.0.0.3": 2**62}
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(behind(root))
        proxies = [stack.enter_context(Proxy(node.contact, framed=False)) for _ in range(3)]
        [own] = run("SELECT data_center, rack, release_version, schema_version FROM system.local")
        for (peer, token), proxy in zip(peers.items(), proxies[1:], strict=True):
            stack.callback(run, "DELETE FROM system.peers_v2 WHERE peer = %s", peer)
            values = peer, 7000, uuid4(), "127.0.0.1", int(proxy.hosts.rpartition(":")[2]), *own, {str(token)}
            run(f"INSERT INTO system.peers_v2 ({columns}) VALUES ({', '.join(['%s'] * len(values))})", *values)
        yield root.replace(node.contact, proxies[0].hosts), proxies


def test_one_of_three_nodes_killed_and_another_that_hangs_are_seen_by_no_caller(root: str, node: CassandraNode) -> None:
    names = (f"round/{number}" for number in count())

    def go_on() -> None:
        """Of so many keys, each node is asked for some first."""
        for name in islice(names, 30):
            store.put(name, name.encode())
            assert store.get(name) == (name.encode(), Encoding.RAW)

    with as_three(root, node) as (url, proxies), reached(url) as store:
        go_on()
        eventually(lambda: all(proxy.sent_bytes for proxy in proxies), "all three are connected to")
        proxies[2].refuse()
        go_on()
        proxies[2].refuse(False)
        before = proxies[2].sent_bytes
        eventually(lambda: proxies[2].sent_bytes > before, "it is connected to again")
        go_on()
        proxies[1].black_hole()
        go_on()
        proxies[1].black_hole(to_client=False, to_server=False)
        go_on()


def test_a_call_ends_at_its_own_deadline(root: str, node: CassandraNode) -> None:
    assert node.pid is not None
    with reached(root) as store:
        freeze(node.pid)
        try:
            with FairTimer() as timer, pytest.raises(StoreUnavailable, match=r"within 500ms"):
                store.get("back", timeout_s=0.5)
            assert timer.elapsed_s < 1.5
        finally:
            os.kill(node.pid, signal.SIGCONT)
        eventually(lambda: works(store))


def test_a_store_is_closed_while_its_cluster_is_away(tmp_path: Path) -> None:
    store = CassandraStore(parse_url("cassandra://127.0.0.1:1/rmgr?replication_factor=1"))
    with FairTimer() as timer:
        with pytest.raises(StoreUnavailable, match=r"Cassandra at 127\.0\.0\.1 \(port 1\) is away"):
            store.get("k")
        store.close()
    assert timer.elapsed_s < 3
    assert store.health() == "the store is closed"
