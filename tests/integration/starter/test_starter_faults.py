"""A Starter under faults: lost answers, lost sessions, fences, kills at each step, an absent store, a full disk."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rmgr.coord.ops.leader import fence
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Create, Exists, Multi
from rmgr.model import frames, stream
from rmgr.model.block import BlockKey
from rmgr.model.node import EpochRecord, NodeRecord
from rmgr.model.states import Reason, State
from rmgr.model.submission import Command, OnDisconnect, PythonEnvironment
from rmgr.runtime import machine
from tests.harness import ended_sessions
from tests.harness.fair_time import FairTimer
from tests.harness.hanging import hanging
from tests.harness.metric_rows import value_of
from tests.harness.proxy import Proxy
from tests.harness.starter_rig import Rig, Running, call
from tests.harness.waiting import eventually


@pytest.fixture
def proxy(rig: Rig) -> Iterator[Proxy]:
    """Between ZooKeeper and the test's Starter."""
    made = Proxy(rig.hosts)
    rig.hosts = made.hosts
    yield made
    made.refuse(False)
    rig.stop()  # through it: without it they would try for 7 s to say that they end
    made.close()


def ledgered(ledger: Path, go: Path) -> Command:
    """Writes its attempt into the ledger, waits for the file, writes again."""
    line = "$RMGR_TASK_ID.$RMGR_ATTEMPT"
    script = f'echo "start {line} $$" >> "{ledger}"; while [ ! -e "{go}" ]; do sleep 0.02; done; echo "end {line}" >> "{ledger}"'
    return Command(argv=("sh", "-c", script))


def at_work(rig: Rig, directory: Path, tasks: int = 1) -> tuple[int, Path, Path]:
    """Tasks that run. Returns their submission, their ledger, and the file that they wait for."""
    ledger, go = directory / "ledger", directory / "go"
    number = rig.submit(ledgered(ledger, go), [b""] * tasks)
    eventually(lambda: len(lines(ledger)) == tasks, "all to run")
    return number, ledger, go


def fence_out(rig: Rig, record: NodeRecord) -> None:
    """As a leader does it that has lost the node."""
    rig.write(paths.EPOCH, EpochRecord(epoch=1))
    found = rig.zk.get(paths.node("n1")).result(60)
    assert isinstance(rig.zk.commit(fence(0, record, found.version, "test")).result(60), Committed)


def expire(rig: Rig, running: Running) -> None:
    """Ends the session of a Starter behind its back."""
    ended_sessions.expire(rig.hosts, running.coordinator.session_id)


def bytes_maker() -> Callable[[int], bytes]:
    """A function that travels by value."""

    def make(size: int) -> bytes:
        return b"v" * size

    return make


def lines(ledger: Path) -> list[str]:
    return ledger.read_text().splitlines() if ledger.exists() else []


def pids(ledger: Path) -> list[int]:
    return [int(line.split()[2]) for line in lines(ledger) if line.startswith("start")]


def no_orphans(ledger: Path) -> None:
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids(ledger)), f"orphans of {pids(ledger)}")


def test_after_a_lost_session_running_work_is_adopted_and_its_result_committed(rig: Rig, tmp_path: Path) -> None:
    running = rig.ready()
    number, ledger, go = at_work(rig, tmp_path, 2)
    odd = BlockKey(priority=0, seq=1, submission=number, first=0, count=1, attempt=7, cores=1, memory_mib=0)
    for path in (f"{paths.running_node('n1')}/noise", paths.running_block("n1", odd)):  # no blocks: submitters may create there
        rig.zk.commit(Multi(name="ODD", ops=(Create(path, b"\xc1"),), proof=Exists(path))).result(60)
    expire(rig, running)
    rig.wait_registered(incarnation=2)
    eventually(lambda: running.agent().incarnation == 2, "registered")
    go.touch()
    found = rig.outcomes(number, 2)
    assert {outcome.state for outcome in found.values()} == {State.COMPLETED}
    assert len(lines(ledger)) == 4, "each ran once"
    assert rig.failed(number) == {}
    assert len(rig.zk.children(paths.STARTERS).result(60) or []) == 1


def test_a_lost_session_under_load_loses_and_doubles_nothing(rig: Rig, tmp_path: Path) -> None:
    """Of the tasks one waits for the first loss, one for the second: however quick the machine is, something runs then."""
    gates = str(tmp_path)

    def work(x: int) -> int:
        import os
        import time

        while x in (1000, 2999) and not os.path.exists(f"{gates}/{x}"):
            time.sleep(0.01)
        return x

    running = rig.start()
    number = rig.submit(work, [call(x) for x in range(3000)], blocks=12)
    for incarnation, gate in ((2, 1000), (3, 2999)):
        eventually(rig.running, "work claimed")
        expire(rig, running)
        rig.wait_registered(incarnation=incarnation)
        (tmp_path / str(gate)).touch()
    found = rig.outcomes(number, 3000)
    assert all(pickle.loads(found[x].value) == x for x in range(3000))
    assert rig.failed(number) == {}
    eventually(lambda: not rig.running() and not rig.pending(), "nothing left")


def test_a_fenced_node_kills_its_work_and_registers_anew(rig: Rig, tmp_path: Path) -> None:
    running = rig.start()
    record = rig.wait_registered()
    number, ledger, _ = at_work(rig, tmp_path)
    fence_out(rig, record)
    again = rig.wait_registered(incarnation=2)
    assert again.guid != record.guid
    no_orphans(ledger)
    eventually(lambda: rig.failed(number), "its block failed")
    assert [one.reason for one in rig.failed(number).values()] == [Reason.NODE_LOST]
    assert rig.running() == []
    eventually(lambda: value_of(running.starter.shared.metrics.registrations) == 2, "the second registration to be counted")
    other = rig.submit(lambda: 1)
    rig.outcomes(other, 1)


def test_answers_lost_on_the_way_are_read_back(rig: Rig, proxy: Proxy) -> None:
    rig.ready()
    for nth in range(1, 8):
        proxy.lose_reply(nth)
        number = rig.submit(lambda x: x, [call(x) for x in range(200)], blocks=2)
        found = rig.outcomes(number, 200)
        assert all(pickle.loads(found[x].value) == x for x in range(200))
        eventually(lambda: not rig.running() and not rig.pending(), "nothing left")
        assert rig.failed(number) == {}
    assert proxy.cuts > 0


def test_zookeeper_away_keep_work_runs_on_exclusive_work_is_dead(rig: Rig, proxy: Proxy, tmp_path: Path) -> None:
    rig.ready(session_timeout_s=6.0)
    kept, killed, go = tmp_path / "kept", tmp_path / "killed", tmp_path / "go"
    keep = rig.submit(ledgered(kept, go))
    exclusive = rig.submit(ledgered(killed, go), on_disconnect=OnDisconnect.EXCLUSIVE)
    eventually(lambda: lines(kept) and lines(killed), "both to run")
    with FairTimer() as timer:
        proxy.refuse(True)
        proxy.cut()
        no_orphans(killed)
    assert timer.elapsed_s < 0.95 * 6.0 - 0.5
    assert psutil.pid_exists(pids(kept)[0])
    go.touch()
    eventually(lambda: "end" in kept.read_text(), "the kept one to finish")
    proxy.refuse(False)
    assert rig.outcomes(keep, 1)[0].state is State.COMPLETED
    failed = eventually(lambda: rig.failed(exclusive), "the loss told")
    assert [one.reason for one in failed.values()] == [Reason.LEASE_LOST]


def test_a_second_starter_of_the_same_name_is_refused(rig: Rig) -> None:
    first = rig.spawn()
    rig.wait_registered()
    second = rig.spawn(options=["--work-dir", str(rig.directory / "other")])
    assert second.wait(60) != 0
    assert f"node n1 is already served by pid {first.pid}" in rig.log_of("n1")
    number = rig.submit(lambda: 5)
    rig.outcomes(number, 1)
    assert rig.record().incarnation == 1


def test_a_second_starter_of_the_same_name_is_refused_whatever_became_of_the_clock(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    wall_us = machine.wall_us
    with monkeypatch.context() as patch:
        patch.setattr(machine, "wall_us", lambda: wall_us() - 30 * 86_400_000_000)
        rig.start()
        rig.wait_registered()
    second = rig.spawn(options=["--work-dir", str(rig.directory / "other")])
    assert second.wait(60) != 0
    assert f"node n1 is already served by pid {os.getpid()}" in rig.log_of("n1")
    assert rig.record().incarnation == 1


def test_a_starter_killed_and_restarted_takes_over_its_own_name_at_once(rig: Rig, tmp_path: Path) -> None:
    first = rig.spawn()
    rig.wait_registered()
    number, ledger, _ = at_work(rig, tmp_path, 2)
    first.kill()
    first.wait(60)
    with FairTimer() as timer:
        rig.spawn()
        record = rig.wait_registered(incarnation=2)
    assert timer.elapsed_s < ended_sessions.LONG_S / 2, "no waiting for the old session, which has said something a third of that ago"
    no_orphans(ledger)
    assert record.incarnation == 2
    failed = eventually(lambda: (found := rig.failed(number)) and sum(count for _, count, _ in found) == 2 and found, "its block failed")
    assert list(failed) == [(0, 2, 1)] or sorted(failed) == [(0, 1, 1), (1, 1, 1)]
    assert {one.reason for one in failed.values()} == {Reason.NODE_LOST}


MOMENTS = ("before_register", "after_register", "before_claim", "after_claim", "before_complete", "output_written", "after_complete")


@pytest.mark.parametrize("moment", [f"starter.{moment}" for moment in MOMENTS])
def test_killed_at_any_moment_nothing_is_lost_or_doubled(rig: Rig, moment: str) -> None:
    size = 20_000 if moment == "starter.output_written" else 10
    first = rig.spawn(env={"RMGR_FAILPOINT": f"{moment}:1=kill"})
    if "register" not in moment:
        rig.wait_registered()
    number = rig.submit(lambda n: b"x" * n, [call(size)] * 4)
    assert first.wait(60) == -signal.SIGKILL
    rig.spawn()

    def ended() -> bool:
        for where, record in rig.failed(number).items():
            assert record.reason is Reason.NODE_LOST
            rig.resubmit(number, where, record)
        return len(rig.outcomes(number, 0)) == 4

    eventually(ended, lambda: f"4 outcomes, there are {rig.outcomes(number, 0)}")
    found = rig.outcomes(number, 4)
    assert {outcome.state for outcome in found.values()} == {State.COMPLETED}
    eventually(lambda: not rig.running() and not rig.pending() and not rig.failed(number), "nothing left")


def test_a_paused_starter_wakes_up_fenced_and_commits_nothing(rig: Rig, tmp_path: Path) -> None:
    process = rig.spawn()
    record = rig.wait_registered()
    number, ledger, go = at_work(rig, tmp_path)
    process.send_signal(signal.SIGSTOP)
    fence_out(rig, record)
    go.touch()
    eventually(lambda: "end" in ledger.read_text(), "the work to finish meanwhile")
    process.send_signal(signal.SIGCONT)
    rig.wait_registered(incarnation=2)
    failed = eventually(lambda: rig.failed(number), "failed, not committed")
    assert [one.reason for one in failed.values()] == [Reason.NODE_LOST]
    assert rig.outcomes(number, 0) == {}


def test_tasks_that_wait_for_tasks_give_their_slots_back(rig: Rig, tmp_path: Path) -> None:
    rig.ready(cores=1)

    def outer(path: str) -> str:
        import pathlib
        import time

        from rmgr.runner.current import blocking

        with blocking():
            while not pathlib.Path(path).exists():
                time.sleep(0.01)
        return "outer"

    def inner(path: str) -> str:
        import pathlib

        pathlib.Path(path).touch()
        return "inner"

    go = tmp_path / "go"
    first = rig.submit(outer, [call(str(go))] * 3)
    eventually(lambda: len([lane for lane in list(rig.starters[0].agent().lanes) if lane.blocked_seq]) == 3, "three blocked on one core")
    second = rig.submit(inner, [call(str(go))])
    assert pickle.loads(rig.outcomes(second, 1)[0].value) == "inner"
    assert {pickle.loads(outcome.value) for outcome in rig.outcomes(first, 3).values()} == {"outer"}
    eventually(lambda: rig.starters[0].agent().lanes.free_cores == 1, "its core free")


@pytest.mark.parametrize("of_nobody", [False, True])
def test_a_task_that_says_it_waits_and_computes_has_its_core_counted_again(rig: Rig, tmp_path: Path, of_nobody: bool) -> None:
    """of_nobody: what computes is its child no more, in a session of its own."""

    def liar(path: str, started: str) -> None:
        import pathlib
        import subprocess
        import sys
        import time

        from rmgr.runner.current import blocking

        with blocking():
            with open(started, "a") as file:
                file.write("x")
            program = "import pathlib, sys\nwhile not pathlib.Path(sys.argv[1]).exists(): sum(range(100_000))"
            if of_nobody:
                subprocess.run(["sh", "-c", 'setsid "$@" & exit', "sh", sys.executable, "-c", program, path], check=True)
                while not pathlib.Path(path).exists():
                    time.sleep(1.0)
            if len(pathlib.Path(started).read_text()) % 2:
                subprocess.run([sys.executable, "-c", program, path], check=True)
            while not pathlib.Path(path).exists():
                sum(range(100_000))

    agent = rig.ready(cores=2, has_groups=of_nobody).agent()
    go, started = tmp_path / "go", tmp_path / "started"
    number = rig.submit(liar, [call(str(go), str(started))] * 30)
    eventually(started.exists, "the first of them")
    if of_nobody and not any(slot._cgroup is not None and slot._cgroup.unified for slot in agent.lanes.slots()):
        pytest.skip("no control groups of version 2 here: what leaves its parent is not counted (SECURITY.md)")
    try:
        eventually(lambda: agent.lanes.overdrawn, "cores counted again")
        seen, until_s = len(started.read_text()), time.monotonic() + 2.5
        while time.monotonic() < until_s:  # nothing comes to pass: that is what is to be seen
            time.sleep(0.1)
        assert len(started.read_text()) <= max(seen + 2, 6), "of so many nothing need be known: twice the cores, and who holds those"
        assert seen < 20
        eventually(lambda: agent.lanes.free_cores == 0, "no core free: on a busy machine who computes may for a moment look idle")
    finally:
        go.touch()  # else they take both processors of the machine from later tests
    assert {outcome.state for outcome in rig.outcomes(number, 30).values()} == {State.COMPLETED}
    eventually(lambda: agent.lanes.free_cores == agent.lanes.cores, "all cores free")


def test_a_store_that_is_away_delays_results_and_loses_none(rig: Rig) -> None:
    running = rig.ready()
    make, broken = bytes_maker(), BrokenStore(rig.store)
    running.starter.shared.io.store = broken
    warm = rig.submit(make, [call(20_000)] * 2)
    assert rig.outcomes(warm, 2)[0].state is State.COMPLETED
    broken.is_away = True
    small = rig.submit(make, [call(20_000)] * 10)
    eventually(lambda: running.starter.shared.io.down_since_s is not None, "the store missed")
    eventually(lambda: sum(block.writing for block in list(running.agent().blocks.values())) >= 2, "results that wait")
    assert rig.outcomes(small, 0) == {}
    broken.is_away = False
    found = rig.outcomes(small, 10)
    assert {outcome.value_size == 20_000 for outcome in found.values()} == {True}


def test_a_node_whose_spool_is_full_takes_nothing_new(rig: Rig) -> None:
    running = rig.ready(spool_cap_bytes=50_000)
    make, broken = bytes_maker(), BrokenStore(rig.store)
    running.starter.shared.io.store = broken
    warm = rig.submit(make, [call(20_000)])
    rig.outcomes(warm, 1)
    broken.is_away = True
    number = rig.submit(make, [call(20_000)] * 100, blocks=50)
    eventually(lambda: running.starter.shared.io.pending_bytes >= 50_000, "the bound reached")
    eventually(lambda: running.agent().lanes.is_idle, "nothing runs")
    assert len(rig.pending()) > 10
    broken.is_away = False
    rig.outcomes(number, 100)


def test_a_full_disk_drains_the_node_and_space_brings_it_back(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    running = rig.ready()
    disk = running.starter.shared.disk
    monkeypatch.setattr(disk, "_check", lambda _factor: "the work directory is full")
    eventually(lambda: running.agent().is_draining, "drained")
    number = rig.submit(lambda: 1)
    with pytest.raises(AssertionError):
        rig.outcomes(number, 1, 0.5)
    monkeypatch.undo()
    rig.outcomes(number, 1)


def test_an_interpreter_on_a_file_server_that_hangs_holds_up_its_own_work_only(rig: Rig, tmp_path: Path) -> None:
    rig.start()
    rig.wait_registered()
    with hanging(tmp_path / "server"):
        stuck = rig.submit(lambda: 1, [call()], python=PythonEnvironment(python=str(tmp_path / "server/bin/python")))
        eventually(lambda: not rig.pending(), "it was claimed")
        for _ in range(3):
            rig.outcomes(rig.submit(lambda: 2, [call()]), 1)
        with pytest.raises(AssertionError):
            rig.outcomes(stuck, 1, 0.5)
    (outcome,) = rig.outcomes(stuck, 1).values()
    assert outcome.reason is Reason.START_FAILED


def test_what_cannot_be_handed_to_a_worker_ends_alone_and_says_why(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.ready()
    before = stream.encode
    poison = b"a payload that no frame bears"

    def encode(message: Any) -> bytes:
        if isinstance(message, frames.TaskBatch) and any(item.payload == poison for item in message.items):
            raise stream.FrameError("a frame of 70 MiB is longer than 64 MiB")
        return before(message)

    monkeypatch.setattr(stream, "encode", encode)
    refused = rig.submit(lambda _: 1, [poison])
    outcome = rig.outcomes(refused, 1)[0]
    assert (outcome.state, outcome.reason) == (State.FAILED, Reason.START_FAILED)
    assert "a frame of 70 MiB is longer than 64 MiB" in outcome.error
    assert {one.state for one in rig.outcomes(rig.submit(bytes_maker(), [call(10)] * 20), 20).values()} == {State.COMPLETED}


class BrokenStore:
    """A store that can be away."""

    def __init__(self, store: object) -> None:
        self.store = store
        self.is_away = False

    def __getattr__(self, name: str) -> object:
        from rmgr.errors import StoreUnavailable

        if self.is_away:
            raise StoreUnavailable("the store is away")
        return getattr(self.store, name)
