"""A client behind a gateway sees what one at ZooKeeper sees: the conformance suite of the Coordinator port, once more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmgr.adapters.gateway.coordinator import GatewayCoordinator
from rmgr.errors import CoordinationUnavailable
from tests.harness.coordinators import World
from tests.harness.gateways import GatewayWorld
from tests.integration.zookeeper import test_coordinator_conformance as suite
from tests.integration.zookeeper.test_coordinator_conformance import *  # noqa: F403 - the tests themselves


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    opened = GatewayWorld(request.getfixturevalue("zookeeper"), request.getfixturevalue("chroot"))
    yield opened
    opened.close()


coord = suite.coord

del test_data_and_names_are_read_at_one_moment  # noqa: F821 - a client of a gateway is refused this one:


def test_a_read_at_one_moment_is_refused_and_the_session_goes_on(coord: GatewayCoordinator) -> None:
    with pytest.raises(CoordinationUnavailable, match="a gateway reads no znodes at one moment"):
        coord.at_one_moment(["/a"], ["/"])
    assert coord.get("/a").result(60) is not None
