"""Links with a set rate between the gateway and each server: their measurements, and policies that leave a slow link."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from rmgr.client.calls import Caller
from rmgr.dev.cluster import DevCluster
from tests.harness.called import Called
from tests.harness.waiting import eventually


@pytest.fixture(scope="module")
def world(calls_cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Called]:
    # a probe takes 1 % of a refresh: of 3 s enough to be measured on a machine that does other work, too
    rates, servers = {"RMGR_SUBMITTER_REFRESH": "3s"}, ("quick", "slow")
    made = Called(tmp_path_factory.mktemp("called"), calls_cluster, gateway=rates, shaped=True, servers=servers, speeds={"quick": 400})
    yield made
    made.close()


@pytest.fixture
def caller(world: Called) -> Iterator[Caller]:
    with world.caller() as made:
        yield made


def use(world: Called, policy: str) -> None:
    words = [sys.executable, "-m", "rmgr.cli.main", "policy", "set", policy, "--partition", "calls"]
    subprocess.run(words, env=world.environment(), timeout=120, check=True, capture_output=True)


def test_a_link_that_slows_down_is_left_by_loth_within_two_refreshes_and_load_stays(world: Called, caller: Caller) -> None:
    sizes = json.dumps({"n": 65_536})  # 1 MiB both ways

    def picked() -> str:
        return str(caller.asked(lambda client: client.explain("twice", 0, sizes)).server)

    def rate() -> float:
        (server,) = caller.asked(lambda client: client.servers("quick")).servers
        return max((link.bytes_per_s for link in server.links), default=math.inf)  # not yet measured

    def serves() -> str:
        future = caller.call_async("twice", np.ones(65_536))
        future.result(120)
        return future.server

    use(world, "loth")
    world.shaped["quick"].bytes_per_s, world.shaped["slow"].bytes_per_s = 20e6, 6e6
    eventually(lambda: rate() < 25e6 and picked() == "quick", "the links are measured")
    assert serves() == "quick"
    eventually(lambda: rate() > 8e6 and picked() == "quick", "the link is measured as it is")
    seen = [rate()]
    world.shaped["quick"].bytes_per_s = 2e6

    def is_left() -> bool:
        now = rate()
        if now != seen[-1]:
            seen.append(now)
        return picked() == "slow"

    eventually(is_left, lambda: f"quick is left; its link: {seen}")
    assert len(seen) <= 4, f"two refreshes, and one that was under way when the link slowed down: {seen}"
    assert serves() == "slow"
    eventually(lambda: rate() < 4e6, "the measured link follows")
    use(world, "load")
    eventually(lambda: picked() == "quick", "load looks at no link")
    assert serves() == "quick"
