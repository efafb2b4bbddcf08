"""Terminals through a gateway: a pipe only to nodes of the cluster, with bounded buffers, which the gateway cannot read."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from rmgr.adapters.access.auth import Caller, open_channel
from rmgr.adapters.gateway.forward import Forwarder
from rmgr.adapters.rpc.channels import OPTIONS, TARGET_KEY
from rmgr.adapters.rpc.server import RpcServer
from rmgr.adapters.terminals import TerminalClient, Tunnel, Tunnels, handler_of
from rmgr.errors import NotFound, PermissionDenied, QueueFull, RmgrError, Unavailable, VersionMismatch
from rmgr.model.identity import Role
from tests.harness.bundles import session_bundles
from tests.harness.waiting import eventually

BUNDLES = session_bundles()
ANNA = BUNDLES.credentials(Role.USER, "anna")
PIECE = b"x" * 60_000


class Shown:
    """A command: repeats its keys (submission 1), shows without end (2), reads no key and is silent (3)."""

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.shown = 0
        self.closed = threading.Event()
        self._keys: list[bytes] = []
        self._news = threading.Condition()

    def send(self, data: bytes) -> bool:
        if self.kind == 3:
            self.closed.wait(60)
        with self._news:
            self._keys.append(data)
            self._news.notify()
        return not self.closed.is_set()

    def pieces(self) -> Iterator[bytes]:
        yield b"$ "
        while not self.closed.is_set():
            if self.kind == 2:
                self.shown += 1
                yield PIECE
                continue
            with self._news:
                self._news.wait_for(lambda: self._keys or self.closed.is_set(), 60)
                keys, self._keys = self._keys, []
            yield from keys

    def close(self) -> None:
        self.closed.set()
        with self._news:
            self._news.notify()


class Town:
    """A Starter, a gateway, something that listens and is no Starter; each endpoint in `named` is a node's."""

    def __init__(self, *, most: int = 4, is_older: bool = False) -> None:
        self.callers: list[Caller] = []
        self.commands: list[Shown] = []
        self.revoked: set[str] = set()
        self.starter = RpcServer("127.0.0.1:0", credentials=BUNDLES.credentials(Role.STARTER))
        self.starter.add_generic(handler_of(self))
        self.starter.start()
        self.named = {self.starter.endpoint}
        self.forwarder = Forwarder(self, credentials=BUNDLES.credentials(Role.SUBMITTER))
        self.gateway = RpcServer("127.0.0.1:0", credentials=BUNDLES.credentials(Role.SUBMITTER), is_revoked=self.revoked.__contains__)
        if not is_older:
            self.gateway.add_generic(Tunnels(self.forwarder, most=most).handler)
        self.gateway.start()

    def attach(self, submission: int, _index: int, *, caller: Caller) -> Shown:
        self.callers.append(caller)
        if submission == 9:
            raise NotFound("no job 9 here")
        self.commands.append(Shown(submission))
        return self.commands[-1]

    def leader(self, wanted: str) -> str:
        raise Unavailable(wanted)

    def node(self, wanted: str) -> str:
        if wanted not in self.named:
            raise PermissionDenied(f"{wanted} is not the endpoint of a node of this cluster")
        return wanted

    def lost(self, _endpoint: str) -> None: ...
    def count(self, what: str, kind: str, amount: float = 1) -> None: ...

    def client(self, endpoint: str = "") -> TerminalClient:
        return TerminalClient(endpoint or self.starter.endpoint, via=self.gateway.endpoint, credentials=ANNA)

    def close(self) -> None:
        self.gateway.stop(0)
        self.forwarder.close()
        self.starter.stop(0)
        for command in self.commands:
            command.close()


@pytest.fixture
def town() -> Iterator[Town]:
    made = Town()
    yield made
    made.close()


class Keys:
    """What is typed, and how much of it was taken."""

    def __init__(self, pieces: int = 0) -> None:
        self.taken = 0
        self._pieces = pieces
        self.done = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        for _ in range(self._pieces):
            self.taken += 1
            yield PIECE
        self.done.wait(60)


def sat_down(town: Town, number: int, keys: Keys | None = None) -> tuple[TerminalClient, Iterator[bytes]]:
    """At a command that has shown its prompt. As `rmgr run --pty` does: what cannot be reached in time is asked again."""

    def sits() -> tuple[TerminalClient, Iterator[bytes]] | None:
        client = town.client()
        shown = client.attach(number, 0, iter(keys or Keys()))
        try:
            assert next(shown) == b"$ "
        except (Unavailable, QueueFull):  # the place of a try that failed is given back in a moment
            client.close()
            return None
        return client, shown

    return eventually(sits, "a seat")


def refusal(town: Town, number: int = 1, endpoint: str = "") -> RmgrError:
    """Why nobody sits down there."""

    def refused() -> RmgrError | None:
        client = town.client(endpoint)
        try:
            next(client.attach(number, 0, iter(Keys())))
        except RmgrError as error:
            return error if endpoint or not isinstance(error, Unavailable) else None
        finally:
            client.close()
        raise AssertionError("it was let in")

    return eventually(refused, "a refusal")


def test_keys_and_output_pass_and_the_starter_sees_the_person(town: Town) -> None:
    keys = Keys(20)
    client, shown = sat_down(town, 1, keys)
    assert sum(len(next(shown)) for _ in range(20)) == 20 * len(PIECE)
    assert {caller.identity for caller in town.callers} == {ANNA.identity}  # not the gateway's, who would speak for her
    client.close()
    keys.done.set()
    assert all(command.closed.wait(60) for command in town.commands)  # whoever goes takes the command with him
    refused = refusal(town, 9)
    assert isinstance(refused, NotFound)
    assert refused.message == "no job 9 here"


def test_a_terminal_ends_with_the_key_of_who_sits_there(town: Town) -> None:
    """Nothing is typed and nothing shown meanwhile; whoever sits down again is told."""
    keys = Keys()
    client, shown = sat_down(town, 4, keys)
    town.revoked.add(ANNA.identity.key_id)
    with pytest.raises(RmgrError):
        list(shown)
    assert all(command.closed.wait(60) for command in town.commands)
    keys.done.set()
    client.close()
    refused = refusal(town)
    assert isinstance(refused, PermissionDenied)
    assert "revoked" in refused.message


def test_a_tunnel_whose_bytes_cannot_be_read_ends_with_its_connection(town: Town, caplog: pytest.LogCaptureFixture) -> None:
    with open_channel(town.gateway.endpoint, ANNA, Role.SUBMITTER, OPTIONS) as channel:
        opened = channel.stream_stream("/rmgr.v1.Tunnel/Open")
        with pytest.raises(grpc.RpcError) as failed:
            list(opened(iter([b"\xff\xff\xff"]), timeout=60, metadata=((TARGET_KEY, town.starter.endpoint),)))
    assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
    assert not [record for record in caplog.records if record.name.startswith("grpc")]


def test_what_is_not_taken_is_not_kept(town: Town) -> None:
    keys = Keys(5000)
    reader, typist = sat_down(town, 2), sat_down(town, 3, keys)
    assert settled(lambda: max(command.shown for command in town.commands)) < 500  # what sockets and gRPC hold, not a gateway
    assert settled(lambda: keys.taken) < 500
    for client, _ in (reader, typist):
        client.close()
    assert all(command.closed.wait(60) for command in town.commands)
    keys.done.set()


def settled(count: object) -> int:
    """A count that has stood still for half a second."""
    last, since_s, end_s = -1, time.monotonic(), time.monotonic() + 60
    while time.monotonic() < end_s:
        now = count()  # type: ignore[operator]
        if now != last:
            last, since_s = now, time.monotonic()
        elif now and time.monotonic() - since_s > 0.5:
            return int(now)
        time.sleep(0.02)
    raise AssertionError(f"it goes on and on: {last}")


def test_nothing_but_a_starter_of_the_cluster_is_called(town: Town) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        assert "not the endpoint of a node" in refusal_of_a_stranger(town, address)
        threading.Thread(target=hang_up, args=(other,), daemon=True).start()
        town.named.add(address)  # a node's record says so, and it is not true
        assert isinstance(refusal(town, endpoint=address), Unavailable | PermissionDenied)
    assert town.callers == []


def refusal_of_a_stranger(town: Town, address: str) -> str:
    return eventually(lambda: None if isinstance(told := refusal(town, endpoint=address), Unavailable) else told).message


def hang_up(door: socket.socket) -> None:
    """Answers as who does not know TLS."""
    while True:
        try:
            link, _ = door.accept()
        except OSError:
            return
        link.sendall(b"220 hello\r\n")
        link.close()


def test_revoked_full_and_older_gateways_say_so(town: Town) -> None:
    town.revoked.add(ANNA.identity.key_id)
    revoked = refusal(town)
    assert isinstance(revoked, PermissionDenied)
    assert "revoked" in revoked.message
    small, older = Town(most=1), Town(is_older=True)
    try:
        first, _ = sat_down(small, 2)
        full = refusal(small)
        assert isinstance(full, QueueFull)
        assert full.message == "1 terminals are open through this gateway already"
        first.close()
        eventually(lambda: has_room(small))
        assert isinstance(refusal(older), VersionMismatch)
    finally:
        small.close()
        older.close()


def has_room(town: Town) -> bool:
    client = town.client()
    try:
        return bool(next(client.attach(2, 0, iter(Keys()))))
    except (QueueFull, Unavailable):
        return False
    finally:
        client.close()


def test_a_starter_or_gateway_that_goes_ends_the_terminal(town: Town) -> None:
    for server in (town.starter, town.gateway):
        client, shown = sat_down(town, 2)
        server.stop(0)
        with pytest.raises(Unavailable):
            for _ in shown:
                pass
        client.close()
        if server is town.starter:
            town.starter = RpcServer("127.0.0.1:0", credentials=BUNDLES.credentials(Role.STARTER))
            town.starter.add_generic(handler_of(town))
            town.starter.start()
            town.named.add(town.starter.endpoint)


def test_a_tunnel_that_nobody_uses_leaves_nothing(town: Town) -> None:
    tunnel = Tunnel(town.gateway.endpoint, town.starter.endpoint, credentials=ANNA)
    place = Path(tunnel.target.removeprefix("unix:")).parent
    assert place.stat().st_mode & 0o777 == 0o700
    tunnel.close()
    assert not place.exists()
