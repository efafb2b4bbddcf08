"""Calls while servers, gateways and leaders die or stop: each call ends with its own answer, and no id runs twice in a life."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from rmgr.adapters.calls.links import STALLED_S
from rmgr.adapters.rpc.services import UseClient
from rmgr.client import calls
from rmgr.client.calls import Caller, CallFuture
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.errors import CallLost, CallTimeout
from rmgr.model.identity import Role
from tests.harness.called import Called, cluster_for_calls
from tests.harness.fair_time import FairTimer, undisturbed
from tests.harness.waiting import PATIENCE_S, eventually
from tests.places import ROOT

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def world(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Called]:
    where = tmp_path_factory.mktemp("faulty")
    alone = cluster_for_calls(where / "cluster", zookeeper, watchdogs=2)
    with alone as cluster, closing(Called(where, cluster, gateways=2, linked=True)) as made:
        yield made


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


def test_calls_that_begin_while_all_gateways_restart_wait_for_them(world: Called, caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_FRESH_S", 0.0)
    monkeypatch.setattr(calls, "_NOBODY_S", PATIENCE_S)
    assert caller.call("nap", 0.01) == 0.01
    for name in ("g1", "g2"):
        world.cluster.kill(name)
    known = caller.call_async("nap", 0.02)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(caller.call, "again", 0.03)
        for name in ("g1", "g2"):
            world.cluster.start_gateway(name, environment=world.gateway_variables)
        assert (known.result(PATIENCE_S), other.result(PATIENCE_S)) == (0.02, 0.03)


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


def test_clients_that_read_nothing_of_their_answers_hold_their_gateway_for_half_a_minute_and_nobody_else_up(
    world: Called, caller: Caller, tmp_path: Path
) -> None:
    before = sum(world.executions("doubled_after").values())
    command = [sys.executable, "-m", "tests.harness.stopped_caller", str(tmp_path / "go"), str(8 << 20)]  # 64 MiB both ways
    environment = {**world.environment(), "RMGR_GATEWAY": world.gateways["g1"], "PYTHONPATH": str(ROOT)}
    use = UseClient(world.gateways["g1"], role=Role.SUBMITTER, credentials=None, user=caller.user)

    def held() -> float:
        """Calls that have a thread of the gateway."""
        return use.use(fresh=True).users[caller.user].used.get("remote_calls", 0)

    clients = [subprocess.Popen([*command, *words], env=environment, stdout=subprocess.PIPE, text=True) for words in ([], ["deaf"])]
    try:
        eventually(lambda: sum(world.executions("doubled_after").values()) == before + 2, "both run, and have their arguments")
        clients[0].send_signal(signal.SIGSTOP)
        (tmp_path / "go").touch()
        began_s, slowest_s = time.monotonic(), 0.0
        with world.caller(gateway="g1") as other, FairTimer() as timer:
            other.user = "another"  # whose calls do not count
            while held():
                assert time.monotonic() - began_s < STALLED_S + PATIENCE_S, "places of clients that take nothing are not given back"
                asked_s = timer.elapsed_s
                assert other.call("nap", 0.0, timeout=60) == 0.0
                slowest_s = max(slowest_s, timer.elapsed_s - asked_s)
                time.sleep(0.2)
        assert time.monotonic() - began_s > STALLED_S - 5, "one that lives is not cut off for a slow link"
        assert slowest_s < 15, "others' calls go on meanwhile"
        clients[0].send_signal(signal.SIGCONT)
        assert clients[0].communicate(timeout=120)[0] == "right\n"  # its server has kept the answer
    finally:
        for client in clients:
            client.kill()
            client.wait(60)
        use.close()
    assert sum(world.executions("doubled_after").values()) == before + 2


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


# -- each moment of a call --------------------------------------------------------------------------------------------------------


def alone(world: Called, caller: Caller, name: str, **variables: str) -> None:
    """This server is there alone, started with these variables."""
    before = set(lives(caller).values())
    for one in ("s1", "s2"):
        if world.cluster.process(one).find() is not None:
            world.cluster.kill(one)
    world.start_server(name, **variables)
    eventually(lambda: set(now := lives(caller)) == {name} and not before & set(now.values()), "it alone is open, in its new life")


def lives(caller: Caller) -> dict[str, int]:
    """Of servers that are open."""
    return {one.name: one.life for one in caller.asked(lambda client: client.servers("")).servers if one.state == "open"}


@pytest.mark.parametrize(
    ("moment", "executed", "once"),
    [
        ("server.offered", 1, "result"),  # before it accepts: nothing was sent, so another life gets it
        pytest.param("server.accepted", 0, "lost", marks=pytest.mark.long),
        ("server.running", 1, "lost"),  # at most
    ],
)
def test_a_server_that_is_killed_at_any_moment_of_a_call_executes_it_at_most_once(
    world: Called, caller: Caller, moment: str, executed: int, once: str
) -> None:
    alone(world, caller, "s1", RMGR_FAILPOINT=f"{moment}:1=kill")
    before = world.executions("nap")
    future = caller.call_async("nap", 0.2)
    eventually(lambda: world.cluster.process("s1").find() is None, "it is dead")
    world.start_server("s1")
    if once == "lost":
        with pytest.raises(CallLost, match="may have run"):
            future.result(60)
    else:
        assert future.result(60) == 0.2
    assert sum((world.executions("nap") - before).values()) <= executed
    assert caller.call("again", 0.0, timeout=60) == 0.0


def test_a_server_that_is_killed_with_half_of_an_answer_sent_has_lost_it(world: Called, caller: Caller) -> None:
    alone(world, caller, "s1")
    before, values = world.executions("twice"), np.ones(8_000_000)
    sent = sum(link.sent_bytes for link in world.links.values())
    for link in world.links.values():
        link.swallow_after(8_000_000)
    future = caller.call_async("twice", values)
    eventually(lambda: sum(link.sent_bytes for link in world.links.values()) >= sent + 8_000_000, "an eighth of it is sent")
    assert not future.done()
    world.cluster.kill("s1")
    for link in world.links.values():
        link.black_hole(to_client=False, to_server=False)
    world.start_server("s1")
    with pytest.raises(CallLost, match="may have run"):
        future.result(60)
    assert list((world.executions("twice") - before).values()) == [1]


@pytest.mark.parametrize("moment", ["calls.picked:1", "calls.forward:2"])
@pytest.mark.usefixtures("caller")
def test_a_gateway_that_is_killed_at_any_moment_of_a_call_costs_nothing(world: Called, moment: str) -> None:
    before, values = world.executions("twice"), np.arange(1_000_000.0)  # 8 pieces
    world.cluster.kill("g1")
    world.cluster.start_gateway("g1", environment={**world.gateway_variables, "RMGR_FAILPOINT": f"{moment}=kill"})
    with world.caller(gateway="g1") as first:
        eventually(lambda: world.open_servers(first) == 2, "it has both servers")

    def is_dead_after_a_call() -> bool:
        with world.caller() as fresh:  # one that has not seen the gateway die begins with it, and leaves it early where it is slow
            assert np.array_equal(fresh.call_async("twice", values).result(120), values * 2)
        return world.cluster.process("g1").find() is None

    eventually(is_dead_after_a_call, "it was killed")
    assert set((world.executions("twice") - before).values()) == {1}


# -- links and silence ----------------------------------------------------------------------------------------------------------------


def test_links_to_gateways_that_are_cut_cost_no_call_and_no_second_execution(world: Called, caller: Caller, tmp_path: Path) -> None:
    before = world.executions("wait_for")
    futures = [caller.call_async("wait_for", str(tmp_path / "go")) for _ in range(2)]
    eventually(lambda: sum((world.executions("wait_for") - before).values()) == 2, "both run")
    for link in world.links.values():
        link.cut()
    (tmp_path / "go").touch()
    assert [future.result(120) for future in futures] == [1] * 2
    assert list((world.executions("wait_for") - before).values()) == [1, 1]


@pytest.mark.long
def test_links_that_swallow_everything_for_longer_than_streams_live_cost_no_call(world: Called, caller: Caller, tmp_path: Path) -> None:
    before = world.executions("wait_for")
    futures = [caller.call_async("wait_for", str(tmp_path / "go")) for _ in range(2)]
    eventually(lambda: sum((world.executions("wait_for") - before).values()) == 2, "both run")
    for link in world.links.values():
        link.black_hole()
    eventually(lambda: world.open_servers(caller) == 0, "no gateway hears them")
    (tmp_path / "go").touch()
    for link in world.links.values():
        link.black_hole(to_client=False, to_server=False)
    assert [future.result(120) for future in futures] == [1] * 2
    assert list((world.executions("wait_for") - before).values()) == [1, 1]


@pytest.mark.long
def test_servers_that_no_gateway_hears_for_a_minute_are_given_up_and_begin_anew(world: Called, caller: Caller, tmp_path: Path) -> None:
    before = world.executions("wait_for")
    future = caller.call_async("wait_for", str(tmp_path / "never"))
    server = running(world, future, "wait_for", sum(before.values()))
    first = lives(caller)
    for link in world.links.values():
        link.refuse()
    began_s = time.monotonic()
    with pytest.raises(CallLost, match="may have run"):
        future.result(180)
    assert time.monotonic() - began_s > 50
    for link in world.links.values():
        link.refuse(False)
    eventually(lambda: world.open_servers(caller) == 2, "they are there again")
    assert lives(caller)[server] != first[server]
    assert caller.call("nap", 0.0, timeout=60) == 0.0
    assert list((world.executions("wait_for") - before).values()) == [1]


@pytest.mark.parametrize("stopped_for_s", [11, pytest.param(15, marks=pytest.mark.long)])
def test_a_gateway_that_stands_still_for_longer_than_its_silence_costs_no_call(
    world: Called, caller: Caller, tmp_path: Path, stopped_for_s: float
) -> None:
    before = world.executions("wait_for")
    futures = [caller.call_async("wait_for", str(tmp_path / "go")) for _ in range(2)]
    eventually(lambda: sum((world.executions("wait_for") - before).values()) == 2, "both run")
    world.cluster.kill("g1", signal.SIGSTOP)
    stopped_s = time.monotonic()
    try:
        naps = [caller.call_async("nap", 0.0) for _ in range(4)]  # they wait for slots
        (tmp_path / "go").touch()
        assert [future.result(120) for future in futures] == [1] * 2
        assert [nap.result(120) for nap in naps] == [0.0] * 4
        time.sleep(max(0.0, stopped_s + stopped_for_s - time.monotonic()))
    finally:
        world.cluster.kill("g1", signal.SIGCONT)
    assert caller.call("nap", 0.0, timeout=60) == 0.0
    assert list((world.executions("wait_for") - before).values()) == [1, 1]


# -- leaders, functions -----------------------------------------------------------------------------------------------------------------


def test_calls_go_on_while_both_watchdogs_are_away(world: Called, caller: Caller) -> None:
    away_s = time.monotonic()
    for process in [one for one in world.cluster.state.processes if one.role == "watchdog" and one.find() is not None]:
        world.cluster.kill(process.id)
    while time.monotonic() < away_s + 5:
        assert caller.call("nap", 0.0, timeout=60) == 0.0
    assert caller.asked(lambda client: client.servers("")).degraded
    for number in range(2):
        world.cluster.start_watchdog(f"w{number}of{time.monotonic_ns()}")
    eventually(lambda: not caller.asked(lambda client: client.servers("")).degraded, "a leader picks")
    assert caller.call("nap", 0.0, timeout=60) == 0.0


def test_64_calls_that_hang_end_at_their_deadline_and_leave_the_slots_to_others(world: Called, caller: Caller) -> None:
    def ended() -> Counter[str]:
        """How servers have ended such calls."""
        lines = (line for name in ("s1", "s2") for line in world.cluster.log_file(name).read_text().splitlines())
        return Counter(json.loads(line)["kind"] for line in lines if '"call_ended"' in line and '"hangs@1"' in line)

    @undisturbed
    def end_at_their_deadline() -> None:
        before = ended()
        futures = [caller.call_async("hangs", number, timeout=8) for number in range(64)]
        for future in futures:
            with pytest.raises((CallTimeout, CallLost)):  # lost: what its server has told came late
                future.result(60)
        untold = sum(isinstance(future.exception(), CallLost) for future in futures)
        eventually(lambda: (ended() - before).total() >= max(untold, 4), "servers have ended what they had")
        assert set(ended() - before) == {"TIMEOUT"}, "at their deadline, before their client gave them up; the rest was never sent"

    end_at_their_deadline()
    assert set(world.executions("hangs").values()) == {1}
    assert [caller.call_async("nap", 0.0).result(60) for _ in range(4)] == [0.0] * 4


# -- the six steps ------------------------------------------------------------------------------------------------------------------------


Trace = tuple[dict[str, float], float]


def traced(caller: Caller) -> Trace:
    """(seconds of each step of a call, what the machine withheld from it)."""
    with FairTimer() as timer:
        future = caller.call_async("twice", [1.0])
        assert future.result(60).tolist() == [2.0]
    return {name: took_s for _, name, took_s, _ in future.timing.trace}, timer.withheld_s


def slowest(trace: Trace, delay_s: float) -> str:
    """The only step that took so long; all others took less than half of it."""
    steps, withheld_s = trace
    found, second, *_ = sorted(steps, key=lambda name: steps[name], reverse=True)
    assert steps[found] >= delay_s, trace
    assert steps[second] < delay_s / 2 + withheld_s, trace
    return found


def test_a_step_that_is_delayed_is_the_only_line_of_the_trace_that_grows(world: Called, caller: Caller) -> None:
    delay_s, scheduler_s = 2.0, 0.7  # a leader that takes a second is asked no more

    def again(name: str, points: str, **variables: str) -> None:
        world.cluster.kill(name)
        world.cluster.start_gateway(name, environment={**world.gateway_variables, "RMGR_FAILPOINT": points, **variables})

    again("g1", f"calls.monitor:1=delay:{delay_s}", RMGR_SUBMITTER_REFRESH="1h")  # its first look at servers is its last
    again("g2", f"calls.links:1=delay:{delay_s}", RMGR_SUBMITTER_REFRESH="1h")
    leads = [one.id for one in world.cluster.state.processes if one.role == "watchdog" and one.find() is not None]
    late = ",".join(f"calls.scheduler:{nth}=delay:{scheduler_s}" for nth in range(1, 100))  # on a busy machine the first may take a second
    world.cluster.start_watchdog("slow", environment={"RMGR_FAILPOINT": late})
    for name, step in (("g1", "monitor"), ("g2", "links")):
        with world.caller(gateway=name) as asks:
            eventually(lambda asks=asks: world.open_servers(asks) == 2, "it has both servers")
            trace = eventually(lambda asks=asks, step=step: (found := traced(asks))[0][step] >= delay_s and found, "its first look is over")
            assert slowest(trace, delay_s) == step
    again("g1", ",".join(f"calls.{name}:{at}=delay:{delay_s}" for at, name in enumerate(("request", "proxy", "forward"), 1)))
    with world.caller(gateway="g1") as asks:
        eventually(lambda: world.open_servers(asks) == 2, "it has both servers")
        assert [slowest(traced(asks), delay_s) for _ in range(3)] == ["request", "proxy", "forward"]
        for name in leads:
            world.cluster.kill(name, signal.SIGTERM)
        slow = world.cluster.process("slow").pid
        eventually(lambda: world.cluster.snapshot().epoch.pid == slow, "the slow one leads")
        eventually(lambda: not asks.asked(lambda client: client.servers("")).degraded and world.open_servers(asks) == 2, "it is asked")
        trace = eventually(lambda: (found := traced(asks))[0].get("scheduler", 0.0) >= scheduler_s and found, "it has picked")
        assert slowest(trace, scheduler_s) == "scheduler"
    for name in ("g1", "g2"):
        world.cluster.kill(name)  # the next test has usual ones
    world.cluster.start_watchdog(f"w{time.monotonic_ns()}")
