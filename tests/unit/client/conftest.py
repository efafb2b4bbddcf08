"""A cluster in memory for the client, with the SETTINGS of the test's file; `map` adds all that it was given at once, on any machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmgr.client import tasks
from tests.harness.client_cluster import Cluster


@pytest.fixture(autouse=True)
def whole_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "MAP_S", 600.0)


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    made = Cluster(getattr(request.module, "SETTINGS", None))
    yield made
    made.stop()
