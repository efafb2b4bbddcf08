"""Gateways in the test's own process: on a real ZooKeeper through a proxy, or on a store; anything is permitted there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rmgr.adapters.access.auth import Caller
from rmgr.adapters.gateway.answers import RequestedCommit
from rmgr.adapters.gateway.coordinator import GatewayCoordinator
from rmgr.adapters.gateway.rows import Rows
from rmgr.adapters.gateway.server import Sessions
from rmgr.adapters.rpc.server import RpcServer
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.adapters.zookeeper.session import SessionCoordinator
from rmgr.coord.protocol.multi import Multi, Stamped
from rmgr.coord.protocol.ports import Store
from rmgr.dev.zookeeper import ZooKeeperServer
from tests.harness.coordinators import ZkWorld
from tests.harness.ended_sessions import end_session
from tests.harness.memory_store import MemoryStore
from tests.harness.proxy import Proxy


class OpenGate:
    """Permits everything, counts by name, and remembers the sessions that it opened."""

    def __init__(self, connect: Callable[[float], SessionCoordinator] | None = None, store: Store | None = None) -> None:
        self.endpoint = ""
        self.store = store if store is not None else MemoryStore("")
        self.opened: list[SessionCoordinator] = []
        self.counts: dict[tuple[str, str], float] = {}
        self._connect = connect

    def open(self, caller: Caller, session_timeout_s: float) -> SessionCoordinator:
        assert self._connect is not None
        self.opened.append(self._connect(session_timeout_s))
        return self.opened[-1]


    def permit_commit(self, caller: Caller, multi: Multi) -> RequestedCommit:
        return RequestedCommit(multi)

    def permit_create(self, caller: Caller, path: str) -> None: ...
    def permit_read(self, caller: Caller, kind: str, path: str) -> None: ...
    def permit_answer(self, caller: Caller, path: str, found: Stamped) -> None: ...
    def permit_store(self, caller: Caller, verb: str, keys: Sequence[str]) -> None: ...
    def permit_content(self, caller: Caller, key: str, sha256: str) -> None: ...

    def store_of(self, caller: Caller) -> Store:
        return self.store

    def visible(self, caller: Caller, keys: Sequence[str]) -> list[str]:
        return list(keys)

    def count(self, what: str, kind: str, amount: float = 1) -> None:
        self.counts[what, kind] = self.counts.get((what, kind), 0) + amount


class GatewayServer:
    """A gateway in this process. `kill` ends its streams without a word."""

    def __init__(self, gate: Any, *, listen: str = "127.0.0.1:0", most: int = 200) -> None:
        self.gate = gate
        self.rpc = RpcServer(listen, threads=64)
        gate.endpoint = self.endpoint = self.rpc.endpoint
        self.sessions = Sessions(gate, most=most)
        self.rpc.add_generic(self.sessions.handler)
        self.rpc.add_generic(Rows(gate).handler)
        self.rpc.start()

    def stop(self, grace_s: float = 1.0) -> None:
        """In good order."""
        self.sessions.stop(grace_s, abandon=False)
        self.rpc.stop(grace_s)

    def kill(self) -> None:
        """At once."""
        self.rpc.stop(0)


class GatewayWorld(ZkWorld):
    """Clients of a real server, each behind a gateway of its own, each gateway behind a proxy: faults hit the gateway's link."""

    def __init__(self, server: ZooKeeperServer, chroot: str) -> None:
        super().__init__([server], chroot)
        self.server = server
        self.gateways: dict[int, GatewayServer] = {}

    def _open(self, session_timeout_s: float) -> Any:
        proxy = Proxy(self.server.hosts)
        gate = OpenGate(lambda timeout_s: ZkCoordinator(proxy.hosts, self.chroot, session_timeout_s=timeout_s))
        with ZkCoordinator.connect(self.server.hosts, self.chroot) as maker:
            maker.ensure(["/"])
        gateway = GatewayServer(gate)
        coordinator = GatewayCoordinator.connect(gateway.endpoint, session_timeout_s=session_timeout_s)
        self.proxies[id(coordinator)] = proxy
        self.gateways[id(coordinator)] = gateway
        return coordinator

    def inner(self, coordinator: Any) -> SessionCoordinator:
        """The gateway's own coordinator for a client."""
        return self.gateways[id(coordinator)].gate.opened[-1]

    def expire(self, coordinator: Any) -> None:
        end_session(self.server.host, self.server.port, *self.inner(coordinator)._session)

    def close(self) -> None:
        for coordinator in self.opened:
            coordinator.close()
        for gateway in self.gateways.values():
            gateway.stop()
        super().close()
