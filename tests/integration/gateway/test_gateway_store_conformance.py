"""A store behind a gateway passes the conformance suite of the Store port (SQLite behind a gateway)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmgr.adapters.gateway.store import GatewayStore
from rmgr.coord.protocol.ports import Store
from tests.harness.gateways import GatewayServer, OpenRows
from tests.harness.store_adapters import ADAPTERS, Adapter, open_adapter, ready
from tests.integration.store.test_store_conformance import *  # noqa: F403 - the tests themselves


@pytest.fixture
def adapter(request: pytest.FixtureRequest) -> Adapter:
    """Behind the gateway: SQLite, unless a test asks for another."""
    return ready(request) if hasattr(request, "param") else ADAPTERS["sqlite"]


@pytest.fixture
def store(adapter: Adapter, tmp_path: Path) -> Iterator[Store]:
    behind = open_adapter(adapter, tmp_path)
    server = GatewayServer(OpenRows(store=behind))
    opened = GatewayStore(server.endpoint)
    opened.sweep = behind.sweep  # type: ignore[method-assign] - the leader sweeps, beside all gateways
    yield opened
    opened.close()
    server.stop()
    behind.close()
