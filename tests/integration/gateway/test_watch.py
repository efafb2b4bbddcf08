"""A gateway's own session: the answers of its health service, and a ZooKeeper that belongs to another cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from rmgr.adapters.rpc.server import RpcServer
from rmgr.adapters.rpc.services import NodeClient
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Delete, Gone, Multi, Set
from rmgr.coord.protocol.records import encode_record
from rmgr.daemons.gateway.main import SessionWatch
from rmgr.daemons.gateway.metrics import GatewayMetrics
from rmgr.errors import WrongCluster
from rmgr.model.cluster.node import Meta
from rmgr.procedures.bootstrap import bootstrap
from tests.harness.memory import MemoryCoordinator


@pytest.fixture
def server() -> Iterator[RpcServer]:
    made = RpcServer("127.0.0.1:0")
    made.start()
    yield made
    made.stop(0)


@pytest.fixture
def coordinator() -> Iterator[MemoryCoordinator]:
    with MemoryCoordinator() as made:
        yield made


def watch(coordinator: MemoryCoordinator, server: RpcServer) -> SessionWatch:
    log: Any = structlog.get_logger()
    return SessionWatch(coordinator, bootstrap(coordinator), server, GatewayMetrics(), log)


def test_without_zookeeper_it_is_not_healthy(coordinator: MemoryCoordinator, server: RpcServer) -> None:
    watch(coordinator, server)
    with NodeClient(server.endpoint) as client:
        assert client.is_serving()
        coordinator.auto = False
        coordinator.cut()
        assert not client.is_serving()
        coordinator.auto = True
        coordinator.reconnect()
        assert client.is_serving()


def test_a_new_session_with_the_same_cluster_is_fine(coordinator: MemoryCoordinator, server: RpcServer) -> None:
    own = watch(coordinator, server)
    coordinator.expire()
    own.look()
    own.look()


@pytest.mark.parametrize("wiped", [True, False])
def test_another_cluster_ends_the_gateway(coordinator: MemoryCoordinator, server: RpcServer, wiped: bool) -> None:
    own = watch(coordinator, server)
    op = Delete(paths.META) if wiped else Set(paths.META, encode_record(Meta(cluster_id="other", created_us=1)), -1)
    coordinator.commit(Multi(name="T", ops=(op,), proof=Gone("/x"))).result(60)
    own.look()  # the same session: nothing has happened to the ensemble
    coordinator.expire()
    with pytest.raises(WrongCluster, match="was wiped" if wiped else "cluster other"):
        own.look()
