"""Gateways for a data store in the test's own process, which permit everything."""

from __future__ import annotations

from collections.abc import Sequence

from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.rpc.server import RpcServer
from rmgr.coord.decisions.rights import Person
from rmgr.coord.protocol.ports import Store
from rmgr.daemons.gateway.rows import Rows
from rmgr.daemons.gateway.values import GatewayContext, nobody_knows
from tests.harness.memory_store import MemoryStore


class OpenRows(Rows):
    """Rows that permit everything; counts requests by name."""

    def __init__(self, store: Store | None = None, *, bounds: Bounds | None = None) -> None:
        self.store = store if store is not None else MemoryStore()
        self.counts: dict[tuple[str, str], float] = {}
        context = GatewayContext(
            coordinator=None, store=self.store, log=None, bounds=bounds or Bounds(), owner_of=nobody_knows, count=self.counted
        )
        super().__init__(context, None)

    def permit(self, person: Person, verb: str, keys: Sequence[str]) -> None: ...
    def permit_content(self, person: Person, key: str, digest: str) -> None: ...

    def visible(self, person: Person, keys: Sequence[str]) -> list[str]:
        return list(keys)

    def counted(self, what: str, kind: str, amount: float = 1) -> None:
        self.counts[what, kind] = self.counts.get((what, kind), 0) + amount


class GatewayServer:
    """A gateway in this process."""

    def __init__(self, rows: Rows, *, listen: str = "127.0.0.1:0") -> None:
        self.rpc = RpcServer(listen, threads=64)
        self.endpoint = self.rpc.endpoint
        self.rpc.add_generic(rows.handler)
        self.rpc.start()

    def stop(self, grace_s: float = 1.0) -> None:
        """Stops the gateway in good order."""
        self.rpc.stop(grace_s)

    def kill(self) -> None:
        """Ends the gateway and all its streams at once, as a crash does."""
        self.rpc.stop(0)
