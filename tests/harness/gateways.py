"""Gateways in the test's own process, on a store; anything is permitted there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rmgr.adapters.gateway.answers import RequestedCommit
from rmgr.adapters.gateway.server import Sessions

from rmgr.adapters.access.auth import Caller
from rmgr.adapters.gateway.rows import Rows
from rmgr.adapters.rpc.server import RpcServer
from rmgr.adapters.zookeeper.session import SessionCoordinator
from rmgr.coord.protocol.multi import Multi, Stamped
from rmgr.coord.protocol.ports import Store
from tests.harness.memory_store import MemoryStore


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
