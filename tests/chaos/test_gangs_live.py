"""Gangs on real nodes under faults (policy dqt), checked by a ledger outside rmgr of when each process ran."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from breakable import TICK, Chaos, T

from rmgr.adapters.identity.credentials import from_config
from rmgr.client.taskqueue import TaskQueue
from rmgr.daemons.starter.execution.gangs import OVERRAN
from rmgr.dev.server import free_port
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.model.states import State
from rmgr.model.units import format_duration
from rmgr.runner.host.contain import state_of
from rmgr.runtime import machine
from rmgr.runtime.gang_clock import ClockReader
from tests.harness import gang_ledger, stamping, wall_clock
from tests.harness.fair_time import FairTimer
from tests.harness.gang_ledger import Stretch
from tests.harness.proxy import Proxy
from tests.harness.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.chaos

QUANTUM_S = 0.2
NODES = ("n1", "n2", "n3", "n4")
IGNORES = "trap '' TERM; while :; do sleep 0.1; done"


class Turning:
    """Work that stamps, on a healed cluster."""

    def __init__(self, chaos: Chaos, directory: Path) -> None:
        self.chaos = chaos
        self.directory = directory / "ledger"
        self.directory.mkdir()
        self._end = directory / "end"

    def submit(self, processes: int, seconds: float, *options: str) -> int:
        """A job whose ranks stamp until each has had so long, and until `let_end`."""
        spin = ("rmgr", "run", sys.executable, "-S", stamping.__file__, str(self.directory), str(seconds), str(self._end))
        return self.command(processes, *spin, options=("-t", "10m", *options))

    def command(self, processes: int, *argv: str, options: tuple[str, ...] = ()) -> int:
        done = self.chaos.rmgr("submit", "--parsable", "-q", "batch", "-n", str(processes), *options, "--", *argv)
        assert done.returncode == 0, done.stderr
        self.chaos.submissions.append(int(done.stdout))
        return int(done.stdout)

    def stretches(self, *jobs: int, since: int = 0, node: str = "") -> list[Stretch]:
        found = gang_ledger.stretches(self.directory, {str(job) for job in jobs}, since=since)
        return [one for one in found if node in ("", one.node)]

    def turned(self, *jobs: int, times: int = 3, since: int = 0, node: str = "") -> None:
        """Waits until each of these has had so many turns since then (on this node)."""

        def have() -> bool:
            return all(len(self.stretches(job, since=since, node=node)) >= times for job in jobs)

        eventually(have, f"each of {jobs} has had {times} turns")

    def view(self, job: int) -> Any:
        return self.chaos.tasks(job)[0]

    def let_end(self) -> None:
        """All that stamps ends once it has had its time."""
        self._end.touch()

    def ended(self, *jobs: int, within_s: float | None = None) -> None:
        self.let_end()
        eventually(lambda: all(self.view(job).state.is_final for job in jobs), f"{jobs} have ended", within_s=within_s)

    def completed(self, *jobs: int, attempt: int = 1) -> None:
        self.ended(*jobs)
        assert [(self.view(job).state, self.view(job).attempt) for job in jobs] == [(State.COMPLETED, attempt)] * len(jobs)

    def apart(self) -> None:
        """No two jobs ever ran on one core."""
        assert not gang_ledger.overlaps(self.stretches())

    def in_step(self, *jobs: int, ahead_ns: Mapping[str, int] | None = None) -> None:
        """Every node gives these, which are all there are, the slots of the record. ahead_ns: of boot clocks of nodes, 0 where missing."""
        self.turned(*jobs, times=1)
        (tree,) = self.trees(1000)
        since = machine.boottime_ns()
        for node in NODES:
            there = [job for job in jobs if self.stretches(job, node=node)]
            self.turned(*there, times=3, since=since + (ahead_ns or {}).get(node, 0), node=node)
        until = machine.boottime_ns()
        assert [one["generation"] for one in self.trees()] == [tree["generation"]]
        some = []
        for one in self.stretches():
            before = (ahead_ns or {}).get(one.node, 0)
            some.append(one._replace(start=one.start - before, end=one.end - before))
        for job in jobs:
            assert gang_ledger.in_its_slots(some, str(job), tree, since=since, until=until) > 2 / 3, (job, tree)

    def trees(self, slots: int = 8) -> list[dict[str, Any]]:
        done = self.chaos.rmgr("queues", "--tree", "--matrix", str(slots), "--json")
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)["trees"]
        return found

    def clock_errors_us(self, *nodes: str) -> dict[str, int]:
        """By how much each node's slots may be beside those of others, as `rmgr nodes` shows it."""

        def shown() -> dict[str, int]:
            done = self.chaos.rmgr("nodes", "--json")
            assert done.returncode == 0, done.stderr
            found = {node["id"]: node["clock_error_us"] for node in json.loads(done.stdout)["nodes"] if node["id"] in nodes}
            return found if None not in found.values() else {}

        return eventually(shown, f"{nodes} tell of their clocks")

    @contextmanager
    def another(self, node: str, **environment: str) -> Iterator[None]:
        """A Starter with these variables has the node meanwhile."""
        self.chaos.restart(node, cores=1, **environment)
        try:
            yield
        finally:
            self.chaos.restart(node, cores=1)

    def pids_of(self, node: str, module: str = "") -> list[int]:
        """Programs of a Starter whose command line names the module; all below it without."""
        starter = psutil.Process(self.chaos.cluster.process(node).pid)
        return [child.pid for child in starter.children(recursive=True) if not module or module in child.cmdline()]

    def nothing_stands(self) -> None:
        """No process below a Starter is stopped, and no control group of it frozen."""
        below = [pid for node in NODES if self.chaos.cluster.process(node).state == "running" for pid in self.pids_of(node)]
        assert [pid for pid in below if state_of(pid) in "Tt"] == []


@pytest.fixture
def turning(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Turning]:
    """On four nodes of one core, whose partition is shared in time. Parameter: another cluster than `cluster_of_run`."""
    broken: Chaos = request.getfixturevalue(getattr(request, "param", "cluster_of_run"))
    broken.heal(n1=1, n2=1, n3=1, n4=1)
    done = broken.with_two_watchdogs().rmgr("policy", "set", "dqt", "--param", f"quantum={QUANTUM_S}s")
    assert done.returncode == 0, done.stderr
    made = Turning(broken, tmp_path)
    yield made
    for job in broken.submissions:
        if not made.view(job).state.is_final:
            broken.rmgr("cancel", str(job))
    eventually(lambda: all(made.view(job).state.is_final for job in broken.submissions), "all have ended")
    broken.rmgr("policy", "set", "easy")
    made.nothing_stands()


def test_jobs_have_their_nodes_in_turn_and_all_nodes_of_a_job_at_once(turning: Turning):
    wide, pair, other = turning.submit(4, 0.5), turning.submit(2, 0.5), turning.submit(4, 0.5)
    small = [turning.submit(1, 0.5) for _ in range(2)]
    turning.turned(wide, pair, other, *small, times=2)
    tree = turning.trees()[0]
    assert (tree["partition"], tree["policy"], tree["quantum_seconds"]) == ("default", "dqt", QUANTUM_S)
    jobs = {entry["id"] for queue in tree["queues"] for entry in queue["jobs"]}
    assert jobs == {str(job) for job in (wide, pair, other, *small)}
    rows = [row["cores"] for row in tree["matrix"]]
    assert all(row.count(str(job)) in (0, 4) for row in rows for job in (wide, other))
    assert {job for row in rows for job in row if job} == jobs, "each has a turn in two rounds"
    turning.in_step(wide, pair, other, *small)
    turning.completed(wide, pair, other, *small)
    turning.apart()


def test_turns_go_on_without_a_leader_and_the_next_one_takes_over(turning: Turning):
    wide, other = turning.submit(4, 0.5), turning.submit(4, 0.5)
    turning.turned(wide, other)
    for leader in turning.chaos.watchdogs():
        turning.chaos.cluster.kill(leader)
    since = machine.boottime_ns()
    turning.turned(wide, other, times=12, since=since)
    turning.chaos.cluster.start_watchdog(f"w{time.monotonic_ns()}")
    turning.chaos.cluster.start_watchdog(f"v{time.monotonic_ns()}")
    eventually(turning.chaos.leader, "somebody leads")
    late = turning.submit(2, 0.5)
    turning.completed(wide, other, late)
    turning.apart()


def test_a_turner_and_a_spawner_that_die_cost_their_own_node_at_most(turning: Turning):
    wide, other = turning.submit(4, 0.5), turning.submit(4, 0.5)
    turning.turned(wide, other)
    (turner,) = turning.pids_of("n2", "rmgr.runner.turner")
    os.kill(turner, signal.SIGKILL)
    eventually(lambda: turning.pids_of("n2", "rmgr.runner.turner") not in ([], [turner]), "another turner")
    # The ledger sees no gap below its `GAP_NS`, as the rest of a slot may leave at first.
    turning.turned(wide, other, times=2, since=machine.boottime_ns(), node="n2")
    settled = machine.boottime_ns()
    turning.turned(wide, other, times=4, since=settled, node="n2")
    turning.completed(wide, other)
    assert not gang_ledger.overlaps(turning.stretches(since=settled))


def test_a_stopped_job_that_ignores_sigterm_is_gone_when_it_is_cancelled(turning: Turning):
    stubborn = turning.command(4, "rmgr", "run", "sh", "-c", IGNORES, options=("-t", "10m"))
    wide = turning.submit(4, 0.5)
    turning.turned(wide)
    assert turning.chaos.rmgr("cancel", str(stubborn)).returncode == 0
    eventually(lambda: turning.view(stubborn).state is State.CANCELLED, "it is gone")
    turning.completed(wide)


def test_who_computes_on_after_its_turn_is_killed_and_told_so(turning: Turning):
    """Somebody outside continues it at once, again and again."""
    chaos = turning.chaos
    with turning.another("n1", RMGR_STARTER_FREEZER="signals"):
        spins = turning.command(1, "sh", "-c", "while :; do :; done", "spinning", options=("-t", "10m", "--nodelist", "n1"))
        other = turning.submit(1, 0.5, "--nodelist", "n1")
        turning.turned(other)
        pids = [pid for pid in turning.pids_of("n1") if psutil.Process(pid).cmdline()[-1:] == ["spinning"]]
        assert pids
        helper = psutil.Popen([sys.executable, "-c", gang_ledger.CONTINUE, *map(str, pids)], stderr=-3)
        try:

            def is_quick() -> bool:
                return helper.poll() is not None or os.sched_getscheduler(helper.pid) == os.SCHED_RR

            eventually(is_quick, "it has begun")
            if helper.poll() is not None and not turning.view(spins).state.is_final:
                pytest.skip("no process may go before others here")
            eventually(lambda: turning.view(spins).state.is_final, "it is killed")
        finally:
            helper.kill()
            helper.wait(60)
        view = turning.view(spins)
        assert (view.state, view.reason, view.error) == (State.FAILED, "SIGNAL", OVERRAN)
        for command in ("show", "explain"):
            done = chaos.rmgr(command, str(spins))
            assert OVERRAN in done.stdout, done
        turning.completed(other)


def test_limits_count_served_time(turning: Turning):
    busy = [turning.submit(4, 0.5) for _ in range(3)]
    short = turning.submit(4, 0.5, "-t", "12s")
    over = turning.submit(1, 0.5, "-t", "2s")  # nothing ends before all may
    turning.turned(short, over)
    turned_us = machine.wall_us()  # not since it was placed: the machine may have stood still before it began
    eventually(lambda: turning.view(over).state.is_final, "it is over its limit")
    view = turning.view(over)
    assert (view.state, view.reason) == (State.FAILED, "TIME_LIMIT")
    assert 2_000_000 <= view.served_us < view.ended_us - view.started_us
    assert 0.0 < gang_ledger.served_s(turning.stretches(), str(over)) < view.served_us / 1e6 + QUANTUM_S
    eventually(lambda: machine.wall_us() - turned_us > 12_000_000, "its limit is over by the clock on the wall")
    turning.completed(short)  # it was served a quarter of that
    view = turning.view(short)
    assert view.served_us < 12_000_000 < view.ended_us - view.started_us
    turning.completed(*busy)


def test_other_policies_take_over_and_give_back_without_a_new_attempt(turning: Turning):
    chaos = turning.chaos
    wide, other = turning.submit(4, 0.5), turning.submit(2, 0.5)
    turning.turned(wide, other)
    assert chaos.rmgr("policy", "set", "easy").returncode == 0
    since = machine.boottime_ns()
    turning.turned(wide, other, since=since)
    chaos.cluster.kill(chaos.leader())
    after = turning.submit(1, 0.3)
    turning.turned(wide, other, times=2, since=machine.boottime_ns())
    assert chaos.rmgr("policy", "set", "dqt", "--param", f"quantum={QUANTUM_S}s").returncode == 0
    late = turning.submit(4, 0.5)
    turning.completed(wide, other, after, late)
    turning.apart()


def test_jobs_of_a_lost_node_run_again_while_others_turn_on(turning: Turning):
    chaos = turning.chaos
    wide = turning.submit(4, 0.5)
    turning.turned(wide)
    record = turning.trees()[0]["clock"]["node"]
    pair = turning.submit(1, 0.5, "--nodelist", "n4" if record != "n4" else "n3")
    turning.turned(pair)
    chaos.cluster.kill(record)  # the reference of the clock dies, and with it a quarter of the wide job
    turning.turned(pair, since=machine.boottime_ns())
    chaos.add_node(record, cores=1)
    eventually(lambda: turning.view(wide).attempt == 2, "the wide job runs again")
    turning.completed(pair)
    turning.completed(wide, attempt=2)
    turning.apart()


def test_a_starter_that_stands_still_for_long_stops_nobody_else(turning: Turning):
    chaos = turning.chaos
    single = turning.submit(1, 0.5, "--nodelist", "n1")
    other = turning.submit(1, 0.5, "--nodelist", "n1")
    away = turning.submit(1, 0.5, "--nodelist", "n2")
    turning.turned(single, other)
    turning.turned(away, times=1)
    chaos.cluster.kill("n1", signal.SIGSTOP)
    since = machine.boottime_ns()
    turning.turned(single, other, times=6, since=since)
    turning.turned(away, times=1, since=since)
    eventually(lambda: "n1" not in chaos.up(), "its session has ended")
    chaos.cluster.kill("n1", signal.SIGCONT)
    turning.completed(away)
    for job in (single, other):
        eventually(lambda job=job: turning.view(job).state.is_final, "it has ended")  # type: ignore[misc]
        assert turning.view(job).state is State.COMPLETED
    turning.apart()


def test_a_starter_that_ends_in_good_order_leaves_nothing_stopped(turning: Turning):
    chaos = turning.chaos
    wide, other = turning.submit(4, 0.5), turning.submit(4, 0.5)  # on all nodes: two halves would run side by side, without a turn
    turning.turned(wide, other)
    node = chaos.nodes_of(wide)[0]
    below = turning.pids_of(node)
    chaos.cluster.kill(node, signal.SIGTERM)
    for job in (wide, other):
        chaos.rmgr("cancel", str(job))
    eventually(lambda: chaos.cluster.process(node).state == "dead", "it has ended")
    eventually(lambda: all(state_of(pid) in "ZX" for pid in below), "all of it is gone")
    chaos.add_node(node, cores=1)


@pytest.mark.parametrize("turning", ["brief_of_run"], indirect=True, ids=["short sessions"])
@pytest.mark.parametrize("away_s", [T + TICK + 2.0, pytest.param(60.0, marks=pytest.mark.long)])
def test_turns_go_on_while_zookeeper_is_away(turning: Turning, breakable_zookeeper: ZooKeeperServer, away_s: float):
    wide, other = turning.submit(4, 0.5), turning.submit(4, 0.5)
    turning.turned(wide, other)
    with FairTimer() as timer:
        breakable_zookeeper.kill()
        since = machine.boottime_ns()
        time.sleep(away_s)
        turning.turned(wide, other, times=round(away_s / QUANTUM_S / 4), since=since)
        breakable_zookeeper.start()
        turning.ended(wide, other, within_s=4 * away_s + PATIENCE_S)
        views = [turning.view(job) for job in (wide, other)]
        assert {view.state for view in views} == {State.COMPLETED}
        assert {view.attempt for view in views} == {1} or timer.stood_still  # then sessions have ended
    turning.apart()


def test_clocks_of_machines_differ_and_slots_do_not(turning: Turning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One Starter's boot clock is 1,000 s ahead: in its own slots it runs what all others run."""
    chaos = turning.chaos
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nexec unshare --time --boottime 1000 {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    first = turning.command(4, "true")  # gives the clock to another node
    eventually(lambda: turning.view(first).state.is_final, "it has ended")
    chaos.cluster.kill("n4")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(wrapper))
        chaos.add_node("n4", cores=1)
    eventually(lambda: "n4" in chaos.up(), "n4 is back")
    wide, other = turning.submit(4, 0.5), turning.submit(4, 0.5)
    ahead_ns = 1000 * 10**9
    turning.turned(wide, other, since=ahead_ns + machine.boottime_ns(), node="n4")
    turning.in_step(wide, other, ahead_ns={"n4": ahead_ns})
    turning.completed(wide, other)
    turning.apart()
    chaos.restart("n4", cores=1)


def test_answers_that_are_late_leave_the_true_difference_within_the_error_that_is_shown(turning: Turning):
    """All machines here are one, so the true difference of their boot clocks is none."""
    chaos, behind = turning.chaos, ("n1", "n2")
    with ExitStack() as stack:
        for node in behind:  # the first one that is up has the clock
            at = f"127.0.0.1:{free_port()}"
            proxy = stack.enter_context(Proxy(at, framed=False))
            proxy.delay(0.05)
            stack.enter_context(turning.another(node, RMGR_STARTER_LISTEN=at, RMGR_STARTER_ADVERTISE=proxy.hosts))
        wide, other = turning.submit(4, 0.5), turning.submit(4, 0.5)
        turning.turned(wide, other)
        reference = turning.trees()[0]["clock"]["node"]
        assert reference in behind
        errors = turning.clock_errors_us("n3", "n4")
        assert min(errors.values()) >= 25_000, errors
        told, record = threading.Event(), chaos.snapshot().nodes[reference]
        reader = ClockReader(from_config(chaos.config().security), told.set)
        reader.follow(reference, record.incarnation, record.endpoint)
        assert told.wait(PATIENCE_S)
        reader.close()
        assert reader.reading is not None
        assert abs(reader.reading.offset_us) <= reader.reading.error_us + 1
        assert reader.reading.error_us >= 25_000
        turning.in_step(wide, other)
        turning.completed(wide, other)
        turning.apart()


def test_a_gang_clock_that_is_half_a_second_off_runs_no_two_jobs_on_a_core_and_is_seen(turning: Turning):
    chaos = turning.chaos
    late = ",".join(f"gang_clock.answered:{nth}=delay:1.0" for nth in range(1, 1_000))  # half of a second at each question, one way
    with turning.another("n3", RMGR_FAILPOINT=late):
        wide, other, small = turning.submit(4, 0.5), turning.submit(4, 0.5), turning.submit(1, 0.5, "--nodelist", "n3")
        turning.turned(wide, other, small, times=6)

        def is_seen() -> bool:
            """A busy machine asks late, too, and each question has an error of its own."""
            errors = turning.clock_errors_us(*NODES)
            told.append((errors, chaos.rmgr("nodes", "-o", "+clock").stdout))
            others = max(errors[node] for node in ("n1", "n2", "n4"))
            return errors["n3"] >= 500_000 > others and format_duration(errors["n3"] / 1e6) in told[-1][1]

        told: list[tuple[dict[str, int], str]] = []
        eventually(is_seen, "the error is shown, of this node alone")
        assert all(errors["n3"] >= 500_000 for errors, _ in told), told
        turning.completed(wide, other, small)
        turning.apart()


@pytest.mark.long
def test_wall_clocks_that_are_a_minute_apart_change_nobodys_turns(turning: Turning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A node is a minute ahead, and so is the leader; then one leads who is a minute behind."""
    chaos = turning.chaos

    def wrong(seconds: int) -> str:
        wrapper = tmp_path / f"python{seconds}"
        wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} {wall_clock.__file__} {seconds} "$@"\n')
        wrapper.chmod(0o755)
        return str(wrapper)

    right, ahead, behind = sys.executable, wrong(60), wrong(-60)
    monkeypatch.setattr(sys, "executable", ahead)
    with turning.another("n2"):
        chaos.succeed(**{f"w{time.monotonic_ns()}": {}})
        monkeypatch.setattr(sys, "executable", right)
        wide, other = turning.submit(4, 0.5), turning.submit(4, 0.5)
        turning.in_step(wide, other)
        monkeypatch.setattr(sys, "executable", behind)
        chaos.succeed(**{f"w{time.monotonic_ns()}": {}})
        monkeypatch.setattr(sys, "executable", right)
        pair = turning.submit(2, 0.5)
        turning.in_step(wide, other, pair)
        turning.completed(wide, other, pair)
        turning.apart()
        chaos.succeed(**{f"w{time.monotonic_ns()}": {}, f"v{time.monotonic_ns()}": {}})


def test_functions_take_turns_as_scripts_do(turning: Turning):
    wide = turning.submit(4, 0.5)
    turning.turned(wide, times=1)

    def spins(number: int) -> int:
        import time

        end = time.process_time() + 0.6
        while time.process_time() < end:
            pass
        return number * number

    with turning.chaos.connection() as connection, TaskQueue(spins, processes=2, nodes=2, connection=connection) as queue:
        turning.chaos.submissions.append(queue.id)
        assert queue.submit_call(3).result(120) == 9
    turning.turned(wide, times=3)
    turning.completed(wide)
