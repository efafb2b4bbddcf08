"""Opens a data store directly or through a gateway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rmgr.adapters.gateway.store import GatewayStore
from rmgr.coord.protocol.ports import Store
from tests.harness.gateways import GatewayServer, OpenRows
from tests.harness.store_adapters import Adapter, open_adapter

WAYS = ["directly", "through a gateway"]


@contextmanager
def opened(adapter: Adapter, way: str, folder: Path) -> Iterator[Store]:
    """Yields a store of this kind. way: one of `WAYS`."""
    with ExitStack() as stack:
        made: Store = open_adapter(adapter, folder)
        stack.callback(made.close)
        if way != WAYS[0]:
            server = GatewayServer(OpenRows(store=made))
            stack.callback(server.stop)
            made = GatewayStore(server.endpoint)
            stack.callback(made.close)
        yield made
