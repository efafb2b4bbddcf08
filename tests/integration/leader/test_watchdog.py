"""WatchDogs as processes on a real ZooKeeper: election, fail-over by every kind of death, fences, failpoints at every boundary."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from rmgr.adapters.rpc.services import LeaderClient
from rmgr.coord.protocol import paths
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.model.node import NodeState
from rmgr.model.states import Reason, State
from rmgr.model.submission import Condition, Dependency, Phase
from tests.harness.ended_sessions import LONG_S
from tests.harness.fair_time import FairTimer
from tests.harness.leader_bench import Starter, Submitter, Tree
from tests.harness.waiting import eventually
from tests.harness.watchdogs import Watchdogs

T_S = 3.0
TICK_S = 0.5
GRACE_S = 1.0

expires_by_itself = pytest.mark.parametrize("watchdogs", [T_S], indirect=True, ids=["short sessions"])


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
