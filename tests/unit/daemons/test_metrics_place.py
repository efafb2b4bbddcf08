"""Metrics and health over HTTP: answered while the daemon lives, to permitted clients, without delays; metrics of calls."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest

from rmgr.adapters.identity.credentials import Credentials, context_of
from rmgr.daemons.gateway.calls import GatewayMetrics
from rmgr.daemons.leader.term import LeaderMetrics
from rmgr.daemons.server.owner import ServerMetrics
from rmgr.daemons.service import metrics_place
from rmgr.daemons.service.metrics_place import HANDSHAKES_AT_ONCE, HANDSHAKES_PER_S, MOST, PORTS, MetricsPlace
from rmgr.daemons.service.serving import why_unable
from rmgr.errors import ConfigError, Unavailable
from rmgr.model.identity import Role
from rmgr.runtime.secured import advertised_metrics
from rmgr.runtime.supervision import StallGuard
from rmgr.v1 import calls_pb2 as pb
from tests.harness.bundles import Bundles, session_bundles
from tests.places import ROOT


@contextmanager
def served(
    place: str = "127.0.0.1:0", registry: CollectorRegistry | None = None, health: Callable[[], str] = str, **options: Any
) -> Iterator[str]:
    taken = MetricsPlace(place, Role.STARTER)
    end = taken.serve(registry or CollectorRegistry(), health, **options)
    try:
        yield taken.address
    finally:
        end()


def asked(address: str, path: str = "/metrics", **options: Any) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http{'s' if options else ''}://{address}{path}", timeout=30, **options) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize("place", ["127.0.0.1:0", "localhost:0", "127.0.0.1"])
def test_measurements_are_read_often_and_the_port_is_given_back(place: str) -> None:
    registry = CollectorRegistry()
    counter = Counter("rounds", "of the test", registry=registry)
    taken = MetricsPlace(place, Role.STARTER)
    end = taken.serve(registry)
    for number in range(1, 4):
        counter.inc()
        assert f"rounds_total {number}.0" in asked(taken.address)[1]
    assert "rounds" not in asked(taken.address, "/metrics?name[]=others")[1]
    assert asked(taken.address, "/else")[0] == 404
    end()
    end()
    with (
        pytest.raises(OSError, match=r"."),
        socket.create_connection((taken.address.rpartition(":")[0], int(taken.address.rpartition(":")[2])), 30),
    ):
        pass


@pytest.mark.parametrize("place", ["nowhere", "127.0.0.1:x", "", "::1", "256.0.0.1"])
def test_what_is_no_place_is_refused(place: str) -> None:
    with pytest.raises(ConfigError, match="metrics"):
        MetricsPlace(place, Role.STARTER)


def test_daemons_of_one_machine_take_the_ports_of_their_role_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as first:
        base = first.getsockname()[1]
        monkeypatch.setitem(PORTS, Role.STARTER, base)
        with served("127.0.0.1") as one, served("127.0.0.1") as other:
            ports = [int(address.rpartition(":")[2]) for address in (one, other)]
            assert base not in ports
            assert len(set(ports)) == 2
        with pytest.raises(Unavailable, match="another process listens"):  # who names a port means this one
            MetricsPlace(f"127.0.0.1:{base}", Role.STARTER)


def test_health_is_503_with_the_reason_while_the_daemon_cannot_work() -> None:
    now_s, store = [0.0], SimpleNamespace(trouble="")
    zookeeper = SimpleNamespace(session_timeout_s=6.0, last_answer_s=time.monotonic)
    guard = StallGuard(15.0, clock=lambda: now_s[0])
    unable = [""]
    with served(health=lambda: why_unable(zookeeper, store, guard, lambda: unable[0])) as address:
        assert asked(address, "/healthz") == (200, "ok\n")
        store.trouble = "it does not answer"
        assert asked(address, "/healthz") == (503, "data store: it does not answer\n")
        store.trouble, unable[0] = "", "not registered"
        assert asked(address, "/healthz") == (503, "not registered\n")
        unable[0], now_s[0] = "", 6.0
        assert asked(address, "/healthz") == (503, "its loop has not come round for 6s\n")
        guard.progress()
        zookeeper.last_answer_s = lambda: time.monotonic() - 4.1
        assert asked(address, "/healthz") == (503, "the lease is over: ZooKeeper does not answer\n")
        zookeeper.last_answer_s = time.monotonic
        assert asked(address, "/healthz")[0] == 200


def test_slow_readers_and_silent_callers_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_place, "CONNECTION_S", 1.5)
    monkeypatch.setattr(metrics_place, "YOUNG_S", 0.0)
    registry = CollectorRegistry()
    for number in range(3000):  # more than what lies in the buffers of two sockets
        Counter(f"c{number}", "x" * 500, registry=registry)
    before = threading.active_count()
    with served(registry=registry) as address:
        where = (address.rpartition(":")[0], int(address.rpartition(":")[2]))
        slow = [socket.create_connection(where, 30) for _ in range(3 * MOST)]
        for number, sock in enumerate(slow):
            if number % 2:
                sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")  # and reads nothing
        assert asked(address, "/healthz") == (200, "ok\n")
        assert "c2999_total" in asked(address)[1]
        assert threading.active_count() - before <= MOST + 1
        end_s = time.monotonic() + 30
        for sock in slow:
            sock.settimeout(max(0.1, end_s - time.monotonic()))
            try:
                while sock.recv(1 << 16):
                    pass  # what was sent before it was cut off
            except ConnectionError:
                pass
            sock.close()
    assert time.monotonic() < end_s


def test_a_request_that_is_none_is_answered_or_cut_off() -> None:
    with served() as address:
        where = (address.rpartition(":")[0], int(address.rpartition(":")[2]))
        for sent, answer in ((b"\0\xff\r\n\r\n", b"400"), (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"), (b"x" * 100_000, b"")):
            with socket.create_connection(where, 30) as sock:
                try:
                    sock.sendall(sent)
                    got = sock.recv(4096)
                except ConnectionError:
                    got = b""
                assert answer in got[:20]
        assert asked(address, "/healthz")[0] == 200


def test_from_other_hosts_tls_and_a_certificate_of_the_cluster_are_asked_for(tmp_path: Any) -> None:
    bundles = session_bundles()
    mine, ann = bundles.credentials(Role.STARTER), bundles.credentials(Role.USER, "ann")
    stranger = Bundles(tmp_path / "other").credentials(Role.USER, "eve")
    revoked: set[str] = set()
    trust = SimpleNamespace(is_revoked=revoked.__contains__)
    with served("0.0.0.0", credentials=mine, trust=trust) as address:
        here = f"localhost:{address.rpartition(':')[2]}"

        def context(who: Credentials, authority: bytes) -> ssl.SSLContext:
            made = context_of(who, ssl.PROTOCOL_TLS_CLIENT)
            made.check_hostname = False
            made.load_verify_locations(cadata=authority.decode())
            return made

        assert asked(here, "/healthz", context=context(ann, ann.ca_pem)) == (200, "ok\n")
        with pytest.raises(OSError, match=r"."):
            asked(here, "/healthz")  # plain HTTP
        with pytest.raises(OSError, match=r"."):
            asked(here, "/healthz", context=context(stranger, mine.ca_pem))
        nobody = ssl.create_default_context(cadata=mine.ca_pem.decode())
        nobody.check_hostname = False
        with pytest.raises(OSError, match=r"."):
            asked(here, "/healthz", context=nobody)
        revoked.add(ann.identity.key_id)
        with pytest.raises(OSError, match=r"."):
            asked(here, "/healthz", context=context(ann, ann.ca_pem))


def test_handshakes_have_a_rate() -> None:
    mine = session_bundles().credentials(Role.STARTER)
    hello, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context_of(mine, ssl.PROTOCOL_TLS_CLIENT).wrap_bio(hello, out, server_hostname="starter.rmgr").do_handshake()
    first = out.read()
    with served("0.0.0.0", credentials=mine, trust=None) as address:
        begun_s, answered = time.monotonic(), 0
        for _ in range(200):
            with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), 10) as sock, contextlib.suppress(OSError):
                sock.settimeout(10)
                sock.sendall(first)
                answered += bool(sock.recv(10))
        assert 0 < answered <= HANDSHAKES_AT_ONCE + HANDSHAKES_PER_S * (time.monotonic() - begun_s) + 1


def test_others_are_told_an_address_that_they_can_dial() -> None:
    assert advertised_metrics("127.0.0.1:9720", "gate:7070") == "127.0.0.1:9720"
    assert advertised_metrics("0.0.0.0:9720", "gate:7070") == "gate:9720"
    assert advertised_metrics("0.0.0.0:9720", "gate") == "gate:9720"
    assert advertised_metrics("0.0.0.0:9720") == f"{socket.gethostname()}:9720"


def test_of_a_server_that_has_gone_nothing_is_shown() -> None:
    metrics = GatewayMetrics()
    for name in ("s1", "s2"):
        metrics.server(name, pb.Load(running=2, waiting=1), 1e6, 3.0)
    metrics.only_servers(["s2"])
    text = generate_latest(metrics.registry).decode()
    assert re.findall(r'^rmgr_call_server_\w+{server="(\w+)"} \S+$', text, re.MULTILINE) == ["s2", "s2"]
    assert 'rmgr_call_server_load{server="s2"} 3.0' in text


def test_the_metrics_that_the_deployment_names_are_there() -> None:
    told = (ROOT / "deploy" / "README.md").read_text()
    named = set(re.findall(r"`(rmgr_[a-z_]*call[a-z_]*)", told))
    assert len(named) > 7
    registries = (GatewayMetrics().registry, LeaderMetrics().registry, ServerMetrics().registry)
    there = {name for registry in registries for metric in registry.collect() for name in (metric.name, f"{metric.name}_total")}
    assert named <= there, named - there
