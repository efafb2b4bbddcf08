"""Gateways for a data store in the test's own process, which permit everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rmgr.adapters.access.auth import Caller
from rmgr.adapters.gateway.rows import Rows
from rmgr.adapters.rpc.server import RpcServer
from rmgr.coord.protocol.ports import Store
from tests.harness.memory_store import MemoryStore


class OpenGate:
    """A gate that permits everything, and counts requests by name."""

    def __init__(self, store: Store | None = None) -> None:
        self.store = store if store is not None else MemoryStore("")
        self.counts: dict[tuple[str, str], float] = {}

    def permit_store(self, caller: Caller, verb: str, keys: Sequence[str]) -> None: ...
    def permit_content(self, caller: Caller, key: str, sha256: str) -> None: ...

    def store_of(self, caller: Caller) -> Store:
        return self.store

    def visible(self, caller: Caller, keys: Sequence[str]) -> list[str]:
        return list(keys)

    def count(self, what: str, kind: str, amount: float = 1) -> None:
        self.counts[what, kind] = self.counts.get((what, kind), 0) + amount


class GatewayServer:
    """A gateway in this process."""

    def __init__(self, gate: Any, *, listen: str = "127.0.0.1:0") -> None:
        self.gate = gate
        self.rpc = RpcServer(listen, threads=64)
        self.endpoint = self.rpc.endpoint
        self.rpc.add_generic(Rows(gate).handler)
        self.rpc.start()

    def stop(self, grace_s: float = 1.0) -> None:
        """Stops the gateway in good order."""
        self.rpc.stop(grace_s)

    def kill(self) -> None:
        """Ends the gateway and all its streams at once, as a crash does."""
        self.rpc.stop(0)
