"""Strangers who flood a daemon's gRPC port with TLS handshakes get only a few, and legitimate users are served."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.rpc import port_guard
from rmgr.adapters.rpc.port_guard import connections, listening, program
from rmgr.adapters.rpc.server import RpcServer
from rmgr.adapters.rpc.services import LeaderClient
from rmgr.model.identity import Role
from tests.harness.bundles import session_bundles
from tests.harness.waiting import eventually

pytestmark = pytest.mark.xdist_group("port_guard")

#: A program: shakes hands from an address, again and again, without a certificate, and says how often it came through.
_STRANGER = """
import socket, ssl, sys, threading
where, port = sys.argv[1], int(sys.argv[2])
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
context.set_alpn_protocols(["h2"])
def shake():
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), 20, (where, 0)) as plain, context.wrap_socket(plain) as guarded:
                guarded.recv(1)
        except OSError:
            pass
        print(flush=True)
for _ in range(8):
    threading.Thread(target=shake).start()
"""


class Stranger:
    """Counts what he gets, from an address of his own."""

    def __init__(self, where: str, port: int) -> None:
        words = [sys.executable, "-c", _STRANGER, where, str(port)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.tries = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for _ in self.process.stdout:
            self.tries += 1

    def end(self) -> None:
        self.process.kill()
        self.process.wait(60)
        self._reader.join(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RpcServer]:
    monkeypatch.setattr(port_guard, "PER_S", 5.0)  # reached by a machine however slow
    monkeypatch.setattr(port_guard, "BUSY_PART", 0.01)
    made = RpcServer("127.0.0.1:0", credentials=session_bundles().credentials(Role.WATCHDOG))
    made.start()
    yield made
    made.stop()


def _asks(server: RpcServer, ann: Credentials) -> None:
    with LeaderClient(server.endpoint, credentials=ann, timeout_s=30) as client:
        assert client.is_serving()


def test_a_stranger_gets_few_handshakes_and_people_get_theirs(server: RpcServer) -> None:
    ann = session_bundles().credentials(Role.USER, "ann")
    _asks(server, ann)
    stranger = Stranger("127.0.0.2", int(server.endpoint.rpartition(":")[2]))
    try:
        eventually(lambda: server.refused_connections > 20)
        for _ in range(10):
            _asks(server, ann)
        before, began_s = stranger.tries, time.monotonic()
        refused = server.refused_connections
        eventually(lambda: server.refused_connections > refused + 20)
        assert stranger.tries - before <= 5.0 * (time.monotonic() - began_s) + 60  # what comes while its bound has an end for a moment
    finally:
        stranger.end()


def test_nobody_is_bounded_while_the_daemon_has_time(server: RpcServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_guard, "BUSY_PART", 100.0)
    stranger = Stranger("127.0.0.2", int(server.endpoint.rpartition(":")[2]))
    try:
        eventually(lambda: stranger.tries > 100)
        assert server.refused_connections == 0
    finally:
        stranger.end()


def test_a_daemon_without_descriptors_for_a_while_bounds_strangers_afterwards_and_lets_them_go(monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = ipaddress.ip_address("127.0.0.2")
    there: set[tuple[ipaddress.IPv4Address, int]] = set()
    looks = {"fail": 3, "begin": 500}
    done: list[str] = []

    def found(_port: int) -> list[tuple[ipaddress.IPv4Address, int]]:
        if looks["fail"]:
            looks["fail"] -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        there.update((stranger, len(there) + number) for number in range(looks["begin"]))
        return list(there)

    monkeypatch.setattr(port_guard, "connections", found)
    monkeypatch.setattr(port_guard, "BUSY_PART", -1.0)
    monkeypatch.setattr(port_guard, "_attach", lambda *_: done.append("bounded"))
    monkeypatch.setattr(port_guard, "_detach", lambda *_: done.append("free"))
    for name, seconds in (("_QUIET_S", 0.05), ("_LOOK_S", 0.05), ("_HOLD_S", 0.2)):
        monkeypatch.setattr(port_guard, name, seconds)
    with socket.create_server(("127.0.0.1", 0)) as door:
        guard = port_guard.PortGuard(door.getsockname()[1], per_s=5.0).start()
        eventually(lambda: done[:1] == ["bounded"], "bounded although the first looks failed")
        looks.update(fail=3, begin=0)
        eventually(lambda: done[-1] == "free", "let go although looks failed while it was bounded")
        guard.stop()


@pytest.mark.parametrize("host", ["127.0.0.1", "::", "::1"])
def test_requests_for_a_connection_are_refused_by_address_and_nothing_else_is(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as door:
        if host == "::":
            door.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        door.bind((host, 0))
        door.listen(100)
        port = door.getsockname()[1]
        ours = [("::1", "::1")] if host == "::1" else [("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "127.0.0.2")]

        def come(to: str, source: str, within_s: float = 20.0) -> socket.socket | None:
            one = socket.socket(socket.AF_INET6 if ":" in to else socket.AF_INET)
            one.bind((source, 0))
            one.settimeout(within_s)
            try:
                one.connect((to, port))
            except OSError:
                one.close()
                return None
            return one

        there = [come(*way) for way in ours]
        assert None not in there
        known = {(str(address), number) for address, number in connections(port)}
        last: port_guard.Address = ipaddress.ip_network("::/64") if host == "::1" else ipaddress.ip_address("127.0.0.2")
        assert any(address == str(last) for address, _ in known)
        [own] = listening(port)
        with own:
            port_guard._attach(own, program({last: 0.0}))
            before = port_guard._drops(own)
            assert come(*ours[-1], within_s=0.3) is None
            assert port_guard._drops(own) > before
            if host != "::1":
                first = come(*ours[0])
                first.close()
            port_guard._detach(own)
            again = come(*ours[-1])
            again.close()
        for one in there:
            assert one is not None
            with door.accept()[0] as mine:
                mine.sendall(b"x")
                assert one.recv(1) == b"x"
                one.close()
