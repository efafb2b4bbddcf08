"""Calls while servers, gateways and leaders die or stand still: each ends, no id runs twice in a life, and an answer is its own."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmgr.client.calls import Caller, CallFuture
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.errors import CallLost
from tests.harness.called import Called
from tests.harness.waiting import eventually

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def world(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Called]:
    made = Called(tmp_path_factory.mktemp("faulty"), zookeeper, watchdogs=2, gateways=2)
    yield made
    made.close()


@pytest.fixture
def caller(world: Called) -> Iterator[Caller]:
    """Two servers are open when the test begins."""
    for name in ("g1", "g2"):
        if world.cluster.process(name).find() is None:
            world.cluster.start_gateway(name, environment=world.gateway_variables)
    for name in ("s1", "s2"):
        if world.cluster.process(name).find() is None:
            world.start_server(name)
    with world.caller() as made:
        eventually(lambda: world.open_servers(made) == 2, "both servers are open")
        yield made


def running(world: Called, future: CallFuture, name: str, before: int) -> str:
    """The server on which the call has begun."""
    eventually(lambda: sum(world.executions(name).values()) > before and future.server, "it runs")
    return future.server


def test_a_server_that_is_killed_loses_what_must_not_run_twice_and_nothing_else(world: Called, caller: Caller, tmp_path: Path) -> None:
    before = sum(world.executions("wait_for").values())
    once = caller.call_async("wait_for", str(tmp_path / "go"))
    server = running(world, once, "wait_for", before)
    repeats = [caller.call_async("again", 1.0) for _ in range(6)]
    eventually(lambda: sum(world.executions("again").values()) >= 2, "some run")
    world.cluster.kill(server)
    began_s = time.monotonic()
    world.start_server(server)  # its next life says that the old one is over
    with pytest.raises(CallLost, match="may have run"):
        once.result(60)
    assert time.monotonic() - began_s < 50, "at once, not at the deadline"
    assert [future.result(120) for future in repeats] == [1.0] * 6
    assert sum(world.executions("wait_for").values()) == before + 1


def test_a_gateway_that_is_killed_costs_no_call_and_no_second_execution(world: Called, caller: Caller, tmp_path: Path) -> None:
    before = world.executions("wait_for")
    futures = [caller.call_async("wait_for", str(tmp_path / "go")) for _ in range(2)]
    eventually(lambda: sum((world.executions("wait_for") - before).values()) == 2, "both run")
    world.cluster.kill("g1")
    (tmp_path / "go").touch()
    assert [future.result(120) for future in futures] == [1] * 2
    assert set((world.executions("wait_for") - before).values()) == {1}


def test_without_a_leader_gateways_pick_and_the_next_leader_takes_over(world: Called, caller: Caller) -> None:
    leader = next(p.id for p in world.cluster.state.processes if p.role == "watchdog" and p.pid == world.cluster.snapshot().epoch.pid)
    futures = [caller.call_async("nap", 0.05) for _ in range(10)]
    world.cluster.kill(leader)
    futures += [caller.call_async("nap", 0.05) for _ in range(30)]
    assert [future.result(120) for future in futures] == [0.05] * 40
    world.cluster.start_watchdog(f"w{time.monotonic_ns()}")
    eventually(lambda: not caller.asked(lambda client: client.servers("")).degraded, "the next leader picks")


def test_a_server_that_stands_still_for_longer_than_its_silence_ends_its_calls_once(world: Called, caller: Caller) -> None:
    before = world.executions("nap")
    futures = [caller.call_async("nap", 0.5) for _ in range(4)]
    eventually(lambda: sum((world.executions("nap") - before).values()) >= 2, "some run")
    world.cluster.kill("s1", signal.SIGSTOP)
    time.sleep(12)  # longer than its stream lives
    world.cluster.kill("s1", signal.SIGCONT)
    assert [future.result(120) for future in futures] == [0.5] * 4
    assert set((world.executions("nap") - before).values()) == {1}


def test_a_server_that_is_asked_to_end_finishes_what_it_has(world: Called, caller: Caller, tmp_path: Path) -> None:
    before = sum(world.executions("wait_for").values())
    future = caller.call_async("wait_for", str(tmp_path / "go"))
    server = running(world, future, "wait_for", before)
    world.cluster.kill(server, signal.SIGTERM)
    other = next(name for name in ("s1", "s2") if name != server)
    eventually(lambda: world.open_servers(caller) == 1, "it takes nothing new")
    assert caller.call_async("nap", 0.0).result(60) == 0.0
    later = caller.call_async("nap", 0.0)
    assert (later.result(60), later.server) == (0.0, other)
    (tmp_path / "go").touch()
    assert future.result(60) == 1
    eventually(lambda: world.cluster.process(server).find() is None, "it has ended")
