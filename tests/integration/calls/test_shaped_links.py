"""Links with a set rate between the gateway and each server: their measurements, and policies that leave a slow link."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from rmgr.client.calls import Caller
from rmgr.dev.zookeeper import ZooKeeperServer
from tests.harness.called import Called
from tests.harness.waiting import eventually


@pytest.fixture(scope="module")
def world(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Called]:
    # a probe takes 1 % of a refresh: of 3 s enough to be measured on a machine that does other work, too
    rates = {"RMGR_SUBMITTER_REFRESH": "3s"}
    made = Called(tmp_path_factory.mktemp("called"), zookeeper, gateway=rates, shaped=True, speeds={"s1": 400})
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
        return float(caller.asked(lambda client: client.servers("s1")).servers[0].links[0].bytes_per_s)

    def serves() -> str:
        future = caller.call_async("twice", np.ones(65_536))
        future.result(120)
        return future.server

    use(world, "loth")
    world.shaped["s1"].bytes_per_s, world.shaped["s2"].bytes_per_s = 20e6, 6e6
    eventually(lambda: rate() < 25e6 and picked() == "s1", "the links are measured")
    assert serves() == "s1"
    eventually(lambda: rate() > 8e6 and picked() == "s1", "the link is measured as it is")
    seen = [rate()]
    world.shaped["s1"].bytes_per_s = 2e6

    def is_left() -> bool:
        now = rate()
        if now != seen[-1]:
            seen.append(now)
        return picked() == "s2"

    eventually(is_left, lambda: f"s1 is left; its link: {seen}")
    assert len(seen) <= 4, f"two refreshes, and one that was under way when the link slowed down: {seen}"
    assert serves() == "s2"
    eventually(lambda: rate() < 4e6, "the measured link follows")
    use(world, "load")
    eventually(lambda: picked() == "s1", "load looks at no link")
    assert serves() == "s1"
