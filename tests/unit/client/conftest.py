"""A cluster in memory for the client, with the SETTINGS of the test's file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.client_cluster import Cluster


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    made = Cluster(getattr(request.module, "SETTINGS", None))
    yield made
    made.stop()
