"""A leader on a tree in memory, with the SETTINGS of the test's file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.leader_bench import Bench, Starter


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(getattr(request.module, "SETTINGS", None))
    yield made
    made.close()


@pytest.fixture
def starter(bench: Bench) -> Starter:
    """The Starter of node n1, under a leader that has taken over."""
    bench.lead()
    return bench.starter("n1")
