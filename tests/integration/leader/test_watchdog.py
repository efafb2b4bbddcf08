"""WatchDogs as processes on a real ZooKeeper: election, fail-over by every kind of death, fences, failpoints at every boundary."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rmgr.adapters.rpc.services import LeaderClient
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.records import decode_record
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.errors import Unavailable
from rmgr.model.node import EpochRecord, NodeState
from rmgr.model.states import Reason, State
from rmgr.model.submission import Condition, Dependency, Phase
from tests.harness import wall_clock
from tests.harness.ended_sessions import LONG_S, expire, expire_all, sessions
from tests.harness.fair_time import FairTimer
from tests.harness.leader_bench import Starter, Submitter, Tree
from tests.harness.waiting import PATIENCE_S, eventually

T_S = 3.0
TICK_S = 0.5
GRACE_S = 1.0

expires_by_itself = pytest.mark.parametrize("watchdogs", [T_S], indirect=True, ids=["short sessions"])


class WatchdogProcess:
    """A WatchDog process, with a log of JSON lines."""

    def __init__(
        self, directory: Path, name: str, *, zk: str, store: str, session_timeout_s: float, failpoint: str = "", ahead_s: float = 0.0
    ) -> None:
        self.name = name
        self.session_timeout_s = session_timeout_s
        self.log_file = directory / f"{name}.log"
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RMGR_")}
        environment |= {
            "RMGR_ZK": zk,
            "RMGR_STORE": store,
            "RMGR_CLUSTER_SESSION_TIMEOUT_S": str(session_timeout_s),
            "RMGR_LOG_FORMAT": "json",
            "RMGR_STRICT_LOG": "1",
        }
        if failpoint:
            environment["RMGR_FAILPOINT"] = failpoint
        python = [sys.executable, wall_clock.__file__, str(ahead_s)] if ahead_s else [sys.executable]
        with self.log_file.open("ab") as sink:
            self._child = subprocess.Popen(
                [*python, "-m", "rmgr.cli.main", "watchdog"], stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=environment,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._child.poll()

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self, deadline_s: float) -> int:
        return self._child.wait(deadline_s)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Returns the lines of the log with this event."""
        found = []
        for line in self.log_file.read_text().split("\n"):
            with contextlib.suppress(ValueError):
                document = json.loads(line)
                if document.get("event") == name:
                    found.append(document)
        return found

    def metric(self, name: str) -> float:
        """Returns a value from the metrics page."""
        address = self.events("watchdog_listens")[-1]["address"]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as page:
            for line in page.read().decode().splitlines():
                if line.startswith(f"{name} "):
                    return float(line.split()[1])
        raise AssertionError(f"no metric {name}")

    def end(self) -> None:
        """Kills the process in any state."""
        self._child.kill()
        self._child.wait(PATIENCE_S)


class Watchdogs:
    """The WatchDogs of a cluster without Starters, which the tests of a file share one after another."""

    def __init__(self, directory: Path, hosts: str) -> None:
        self._session_timeout_s = LONG_S
        self._directory, self._hosts = directory, hosts
        self._processes: list[WatchdogProcess] = []
        self._move()

    def _move(self) -> None:
        """Begins with an empty tree."""
        self._chroot = f"/test/{uuid.uuid4().hex[:12]}"
        self.coordinator = self.visitor()

    def visitor(self) -> ZkCoordinator:
        """Returns another session, for a Starter that dies when it is closed."""
        return ZkCoordinator.connect(self._hosts, self._chroot, session_timeout_s=LONG_S)

    def start(self, failpoint: str = "", *, ahead_s: float = 0.0, session_timeout_s: float = 0.0) -> WatchdogProcess:
        """Starts a WatchDog and waits until it stands for election.

        ahead_s: how wrong its machine's clock is. session_timeout_s: 0 = that of the test.
        """
        name, store = f"w{len(self._processes) + 1}", f"sqlite:{self._directory / self._chroot.rpartition('/')[2]}.db"
        process = WatchdogProcess(
            self._directory, name, zk=f"{self._hosts}{self._chroot}", store=store,
            session_timeout_s=session_timeout_s or self._session_timeout_s, failpoint=failpoint, ahead_s=ahead_s,
        )  # fmt: skip
        self._processes.append(process)
        eventually(lambda: process.pid in self.standing() or not process.is_running, f"{process.name} stands for election")
        return process

    def lead(self) -> WatchdogProcess:
        """Returns the only WatchDog, which leads: the one that the test before has left, or a new one."""
        left = [process for process in self._processes if process.is_running]
        if [process.session_timeout_s for process in left] != [LONG_S] or self._is_busy():
            self.clear()
            left = [self.start()]
        self.wait_leader(left[0])
        return left[0]

    def depose(self) -> None:
        """Ends the session of the leader, which then stands again, behind all others."""
        expire(self._hosts, sessions(self.coordinator)[f"{paths.WATCHDOGS}/{self.epoch().candidate}"])

    def expire_when_dead(self, process: WatchdogProcess) -> None:
        """Ends the session of a WatchDog as soon as its process has died, so that the next one need not wait for an expiry."""
        entries = {f"{paths.WATCHDOGS}/{name}" for name in self.line()}
        pids = {path: decode_record(found.data, EpochRecord).pid for path in entries if (found := self.coordinator.get(path).result(60))}
        owners = [owner for path, owner in sessions(self.coordinator).items() if pids.get(path) == process.pid]

        def run() -> None:
            with contextlib.suppress(subprocess.TimeoutExpired, Unavailable):  # the session then expires by itself
                process.wait(PATIENCE_S)
                for owner in owners:
                    expire(self._hosts, owner)

        threading.Thread(target=run, name="expires", daemon=True).start()

    def line(self) -> list[str]:
        return sorted(self.coordinator.children(paths.WATCHDOGS).result(60) or [], key=paths.entry_sequence)

    def standing(self) -> set[int]:
        """Returns the pids of the candidates; candidates may leave the line while another enters it."""
        found = [self.coordinator.get(f"{paths.WATCHDOGS}/{name}").result(60) for name in self.line()]
        return {decode_record(entry.data, EpochRecord).pid for entry in found if entry is not None}

    def epoch(self) -> EpochRecord:
        """Returns the record of the epoch, which names the leader."""
        found = self.coordinator.get(paths.EPOCH).result(60)
        return EpochRecord() if found is None else decode_record(found.data, EpochRecord)

    def leads(self, process: WatchdogProcess) -> bool:
        """Whether a process leads, by the record."""
        return self.epoch().pid == process.pid

    def wait_leader(self, process: WatchdogProcess) -> float:
        """Waits until a process leads; returns how long that took (fair s)."""
        with FairTimer() as timer:
            eventually(lambda: self.leads(process), f"{process.name} leads\n{process.log_file.read_text()[-3000:]}")
        return timer.elapsed_s

    def clear(self, session_timeout_s: float = LONG_S) -> None:
        """Ends every process and its session. If work is left, by a test that failed, the next test has another tree.

        session_timeout_s: of WatchDogs to come.
        """
        self._session_timeout_s = session_timeout_s
        for process in self._processes:
            process.end()
        expire_all(self._hosts, self.coordinator)
        eventually(lambda: not self.line(), "nobody is in line")
        if self._is_busy():
            self.coordinator.close()
            self._move()

    def _is_busy(self) -> bool:
        look = Tree(self.coordinator)
        return bool(look.pending() or look.held() or any(look.names(paths.running_node(node)) for node in look.names(paths.NODES)))

    def close(self) -> None:
        self.clear()
        self.coordinator.close()


@pytest.fixture(scope="module")
def shared(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watchdogs]:
    with closing(Watchdogs(tmp_path_factory.mktemp("watchdogs"), zookeeper.hosts)) as made:
        yield made


@pytest.fixture
def watchdogs(shared: Watchdogs, request: pytest.FixtureRequest) -> Watchdogs:
    """The file's cluster, without a WatchDog and without work. Parameter: T, where a session ends by itself."""
    shared.clear(getattr(request, "param", LONG_S))
    return shared


@expires_by_itself
def test_kill_9_of_the_leader_is_followed_by_the_next_in_line_within_the_session_timeout(watchdogs: Watchdogs) -> None:
    first, second = watchdogs.start(), watchdogs.start(session_timeout_s=LONG_S)  # it outlives a machine that stands still
    watchdogs.wait_leader(first)
    epoch = watchdogs.epoch().epoch
    first.send(signal.SIGKILL)
    seconds = watchdogs.wait_leader(second)
    assert seconds <= T_S + TICK_S + 2.0
    assert watchdogs.epoch().epoch == epoch + 1
    assert len(watchdogs.line()) == 1


def test_sigterm_hands_over_within_a_second(watchdogs: Watchdogs) -> None:
    first, second, third = watchdogs.start(), watchdogs.start(), watchdogs.start()
    watchdogs.wait_leader(first)
    first.send(signal.SIGTERM)
    assert watchdogs.wait_leader(second) < 1.0
    assert first.wait(60) == 0
    assert third.events("leadership_began") == []
    second.send(signal.SIGTERM)
    assert watchdogs.wait_leader(third) < 1.0


@expires_by_itself
def test_a_leader_that_was_stopped_for_long_wakes_up_deposed_and_commits_nothing(watchdogs: Watchdogs) -> None:
    first, second = watchdogs.start(), watchdogs.start(session_timeout_s=LONG_S)  # it outlives a machine that stands still
    watchdogs.wait_leader(first)
    submitter = Submitter(watchdogs.coordinator)
    first.send(signal.SIGSTOP)
    # Work for whoever leads: the old one would find it when it wakes up.
    coordinator = watchdogs.visitor()
    starter = Starter(coordinator, "n1")
    number = submitter.submit(4)
    starter.claim("n1")
    coordinator.close()
    watchdogs.wait_leader(second)
    epoch = watchdogs.epoch()
    look = Tree(watchdogs.coordinator)
    eventually(lambda: len(look.pending()) == 4)
    before = {path: watchdogs.coordinator.stat(path).result(60) for path in (paths.EPOCH, paths.node("n1"), paths.sub(number))}
    stopped_s = time.monotonic()
    eventually(lambda: time.monotonic() - stopped_s > 2 * T_S)
    first.send(signal.SIGCONT)
    eventually(lambda: first.events("leadership_ended"))
    eventually(lambda: len(watchdogs.line()) == 2, "it stands for election again, last")
    assert {path: watchdogs.coordinator.stat(path).result(60) for path in before} == before
    assert watchdogs.epoch() == epoch
    assert first.metric("rmgr_leader") == 0
    second.send(signal.SIGTERM)
    assert watchdogs.wait_leader(first) < 1.0
    finish(watchdogs, [number], 4)


def test_a_dead_starter_is_fenced_and_its_work_waits_again(watchdogs: Watchdogs) -> None:
    watchdogs.wait_leader(watchdogs.start())
    look = Tree(watchdogs.coordinator)
    with watchdogs.visitor() as coordinator:
        starter = Starter(coordinator, "n1")
        number = Submitter(watchdogs.coordinator).submit(4)
        starter.claim("n1")
    with FairTimer() as timer:
        eventually(lambda: len(look.pending()) == 4)
    assert timer.elapsed_s <= GRACE_S + 1.0
    assert look.node("n1").state is NodeState.FENCED
    assert look.failed(number) == {}
    finish(watchdogs, [number], 4)


@pytest.mark.parametrize(("ahead_s", "told"), [(86_400.0, "1d ahead of"), (-86_400.0, "1d behind")])
def test_a_leader_whose_clock_is_wrong_keeps_ended_work_as_long_as_any_other_and_says_so(
    watchdogs: Watchdogs, ahead_s: float, told: str
) -> None:
    right = watchdogs.start()
    watchdogs.wait_leader(right)
    submitter, look = Submitter(watchdogs.coordinator), Tree(watchdogs.coordinator)
    first = submitter.submit(2)
    finish(watchdogs, [first], 2)
    wrong = watchdogs.start(ahead_s=ahead_s)
    right.send(signal.SIGTERM)
    watchdogs.wait_leader(wrong)
    second = submitter.submit(2)
    finish(watchdogs, [second], 2)  # it has seen all work that was there
    ends = [look.sub(number).closed_us / 1e6 for number in (first, second)]  # type: ignore[union-attr]
    assert wrong.events("submission_collected") == []
    assert 0 <= ends[1] - ends[0] < 600
    assert f"{told} ZooKeeper's" in wrong.events("clock_is_wrong")[0]["why"]
    with LeaderClient(watchdogs.epoch().endpoint) as leader:
        view = leader.status()
    [part] = [part for part in view.parts if (part.kind, part.state) == ("leader", "clock")]
    assert f"{told} ZooKeeper's" in part.reason
    assert part.fix
    assert 0 <= view.uptime_s < 600


def finish(watchdogs: Watchdogs, numbers: list[int], tasks: int) -> None:
    """A fresh Starter runs whatever waits until every submission is closed; then nothing was done twice and nothing is left."""
    look = Tree(watchdogs.coordinator)
    with watchdogs.visitor() as coordinator:
        starter = Starter(coordinator, "n2")

        def closed() -> bool:
            while (key := starter.claim_any("n2")) is not None:
                starter.complete("n2", key)
            return all(look.sub(number).phase is Phase.CLOSED for number in numbers)  # type: ignore[union-attr]

        eventually(closed, "all submissions are closed")
        starter.leave()
    for number in numbers:
        assert sorted(look.outcomes(number)) == list(range(tasks)), "every task has exactly one outcome"
        assert look.failed(number) == {}
    assert look.pending() == []
    assert look.held() == []
    assert look.names(paths.running_node("n1")) == []


@pytest.mark.parametrize(
    "boundary",
    [
        "leader.before_take_over",
        "leader.after_take_over",
        "leader.before_fence",
        "leader.after_fence",
        "leader.before_fail",
        "leader.after_fail",
        "leader.after_fail:2",
        "leader.before_resubmit",
        "leader.after_resubmit",
        "leader.before_close",
        "leader.after_close",
        "leader.before_end_block",
        "leader.before_set_aside",
        "leader.before_bring_back",
        "leader.before_met",
        "leader.before_unmet",
    ],
)
def test_a_leader_may_die_between_any_two_multis(shared: Watchdogs, boundary: str) -> None:
    # n1 claims two blocks of three submissions and dies; one is held and released, one cancelled, two depend on others.
    watchdogs = shared
    watchdogs.lead()
    doomed = watchdogs.start(failpoint=f"{boundary}=kill")
    watchdogs.expire_when_dead(doomed)
    epoch = watchdogs.epoch().epoch
    watchdogs.depose()  # it stands by for the doomed one
    eventually(lambda: watchdogs.epoch().epoch > epoch)
    submitter, look = Submitter(watchdogs.coordinator), Tree(watchdogs.coordinator)
    plain, cancelled, held = submitter.submit(8), submitter.submit(8), submitter.submit(8)
    met = submitter.submit(
        8, phase=Phase.HELD, reason=Reason.DEPENDENCY, after=(Dependency(condition=Condition.ANY, submission=cancelled),)
    )
    unmet = submitter.submit(
        8, phase=Phase.HELD, reason=Reason.DEPENDENCY, after=(Dependency(condition=Condition.OK, submission=cancelled),)
    )
    with watchdogs.visitor() as coordinator:
        starter = Starter(coordinator, "n1")
        starter.claim("n1")
        starter.claim("n1")
    submitter.change(held, gate=False, phase=Phase.HELD, reason=Reason.USER_HOLD)
    submitter.change(cancelled, gate=False, phase=Phase.CANCELLED, reason=Reason.USER_CANCEL)
    eventually(lambda: [key.submission for key in look.held()].count(held) == 2, "set aside")
    submitter.change(held, gate=True, phase=Phase.OPEN, reason="")
    finish(watchdogs, [plain, cancelled, held, met, unmet], 8)
    states = {number: {outcome.state for outcome in look.outcomes(number).values()} for number in (plain, cancelled, held, met, unmet)}
    assert states == {
        plain: {State.COMPLETED},
        cancelled: {State.CANCELLED},
        held: {State.COMPLETED},
        met: {State.COMPLETED},
        unmet: {State.CANCELLED},
    }
    assert doomed.exit_code == -signal.SIGKILL, f"{boundary} was never passed"
    assert len(watchdogs.line()) == 1


@expires_by_itself
def test_after_both_have_died_a_restarted_one_leads_and_finishes(watchdogs: Watchdogs) -> None:
    first, second = watchdogs.start(), watchdogs.start()
    watchdogs.wait_leader(first)
    submitter = Submitter(watchdogs.coordinator)
    number = submitter.submit(8)
    with watchdogs.visitor() as coordinator:
        Starter(coordinator, "n1").claim("n1")
        first.send(signal.SIGKILL)
        second.send(signal.SIGKILL)
    with FairTimer() as timer:
        third = watchdogs.start()
        started_s = timer.elapsed_s
        watchdogs.wait_leader(third)
    assert timer.elapsed_s - max(started_s, T_S + TICK_S) < 2.0
    finish(watchdogs, [number], 8)
