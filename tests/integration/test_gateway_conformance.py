"""A client behind a gateway sees what one at ZooKeeper sees: the conformance suite of the Coordinator port, once more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.coordinators import World
from tests.harness.gateways import GatewayWorld
from tests.integration import test_coordinator_conformance as suite
from tests.integration.test_coordinator_conformance import *  # noqa: F403 - the tests themselves


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    opened = GatewayWorld(request.getfixturevalue("zookeeper"), request.getfixturevalue("chroot"))
    yield opened
    opened.close()


coord = suite.coord
