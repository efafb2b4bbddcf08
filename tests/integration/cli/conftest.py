"""One user's commands on two ways: directly to ZooKeeper, and through a gateway."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmgr.dev.cluster import DevCluster
from tests.harness.gateway_process import GatewayProcess
from tests.integration.commands import Shell


@pytest.fixture(scope="module")
def direct(live_cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(tmp_path_factory.mktemp("direct"), live_cluster.environment())


@pytest.fixture(scope="module")
def gated(live_cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    mine = live_cluster.environment()["RMGR_SECURITY_DIR"]
    with GatewayProcess(live_cluster.daemon_environment("submitter", "g1"), tmp_path_factory.mktemp("gate")) as gateway:
        yield Shell(tmp_path_factory.mktemp("gated"), {"RMGR_GATEWAY": gateway.endpoint, "RMGR_SECURITY_DIR": mine})


@pytest.fixture(params=["direct", "gated"])
def in_both_ways(request: pytest.FixtureRequest) -> Shell:
    found: Shell = request.getfixturevalue(request.param)
    return found
