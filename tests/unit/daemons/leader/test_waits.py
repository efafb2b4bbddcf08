"""Causes that keep work waiting, and their end: caps and dependencies."""

from __future__ import annotations

import pytest

from rmgr.coord.protocol import paths
from rmgr.model.base.states import Reason, State
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.model.tasks.submission import Condition, Dependency, Phase
from tests.harness.leader_bench import Bench, Starter

RETENTION_S = 3600.0
SETTINGS = ClusterSettings(retention_us=round(RETENTION_S * 1e6))


# -- caps --------------------------------------------------------------------------------------------------------------------


def on_the_way(bench: Bench, *nodes: str) -> int:
    running = [key for node in nodes for key in bench.look.keys(paths.running_node(node))]
    return sum(key.count for key in (*bench.look.pending(), *running))


def test_a_cap_is_never_exceeded_and_never_left_unused(bench: Bench, starter: Starter) -> None:
    number = bench.submitter.submit(20, held=True, max_running=3)
    bench.advance(1.0)
    seen: list[int] = []
    for _ in range(40):
        assert on_the_way(bench, "n1") <= 3
        if not bench.look.pending():
            break
        seen.append(on_the_way(bench, "n1"))
        starter.complete("n1", starter.claim("n1", take=1))
        bench.advance(0.5)
    assert set(seen[:-3]) == {3}
    assert len(bench.look.outcomes(number)) == 20
    assert bench.phase(number) is Phase.CLOSED


def test_a_capped_task_that_failed_waits_aside_and_comes_back_within_the_cap(bench: Bench, starter: Starter) -> None:
    number = bench.submitter.submit(6, held=True, max_running=2, retries=1)
    bench.advance(1.0)
    key = starter.claim("n1", take=1)
    starter.fail("n1", key, reason=Reason.EXIT_CODE)
    bench.advance(1.0)
    assert on_the_way(bench, "n1") == 2
    while bench.look.pending():
        starter.complete("n1", starter.claim("n1", take=1))
        bench.advance(0.5)
        assert on_the_way(bench, "n1") <= 2
    assert len(bench.look.outcomes(number)) == 6


# -- failures ------------------------------------------------------------------------------------------------------------------


def fail_one(starter: Starter) -> None:
    key = starter.claim("n1", take=1)
    starter.complete("n1", key, state=State.FAILED, reason=Reason.EXIT_CODE)


@pytest.mark.parametrize("capped", [False, True])
def test_once_more_have_failed_than_allowed_the_rest_is_cancelled(bench: Bench, starter: Starter, capped: bool) -> None:
    number = bench.submitter.submit(12, max_fails=1, held=capped, max_running=4 if capped else 0)
    bench.advance(1.0)
    fail_one(starter)
    bench.advance(2.0)
    assert bench.phase(number) is Phase.OPEN
    running = starter.claim("n1", take=2)
    fail_one(starter)
    bench.advance(1.0)
    record = bench.look.sub(number)
    assert (record.phase, record.reason) == (Phase.CANCELLED, Reason.MAX_FAILS)
    assert record.reason_detail == "2 tasks failed, --max-fails is 1"
    assert bench.look.names(paths.inbox_node("n1")) == [f"cancel-{number}"]  # what runs is told to end
    starter.complete("n1", running, state=State.CANCELLED, reason=Reason.MAX_FAILS)
    bench.advance(2.0)
    ended = bench.look.outcomes(number)
    assert len(ended) == 12
    assert {outcome.reason for outcome in ended.values() if outcome.state is State.CANCELLED} == {Reason.MAX_FAILS}
    assert sum(outcome.state is State.FAILED for outcome in ended.values()) == 2
    assert bench.phase(number) is Phase.CLOSED


def test_what_failed_while_nobody_led_counts(bench: Bench) -> None:
    leader = bench.lead()
    starter = bench.starter("n1")
    number = bench.submitter.submit(12, max_fails=0)
    bench.advance(1.0)
    leader.close()
    fail_one(starter)
    bench.lead(bench.connect())
    bench.advance(5.0)
    assert {outcome.state for outcome in bench.look.outcomes(number).values()} == {State.FAILED, State.CANCELLED}
    assert bench.phase(number) is Phase.CLOSED


def test_attempts_that_are_tried_again_are_no_failures(bench: Bench, starter: Starter) -> None:
    number = bench.submitter.submit(4, max_fails=0, retries=1)
    bench.advance(1.0)
    starter.fail("n1", starter.claim("n1", take=1), reason=Reason.EXIT_CODE)
    bench.advance(1.0)
    assert bench.phase(number) is Phase.OPEN
    bench.run_all(starter)
    bench.advance(1.0)
    assert {outcome.state for outcome in bench.look.outcomes(number).values()} == {State.COMPLETED}


# -- dependencies ------------------------------------------------------------------------------------------------------------


def dependent(bench: Bench, *conditions: str) -> int:
    after = tuple(Dependency(condition=Condition(text.split(":")[0]), submission=int(text.split(":")[1])) for text in conditions)
    return bench.submitter.submit(4, phase=Phase.HELD, reason=Reason.DEPENDENCY, after=after)


def test_a_dependent_runs_once_all_it_waits_for_has_ended_well(bench: Bench, starter: Starter) -> None:
    one, two = bench.submitter.submit(2), bench.submitter.submit(2)
    number = dependent(bench, f"ok:{one}", f"any:{two}")
    bench.advance(60.0)
    assert bench.phase(number) is Phase.HELD
    starter.complete("n1", starter.claim("n1"))
    bench.advance(1.0)
    assert bench.phase(number) is Phase.HELD
    starter.complete("n1", starter.claim("n1"))
    bench.advance(1.0)
    assert bench.phase(number) is Phase.OPEN
    assert [(key.submission, key.first) for key in bench.look.pending()] == [(number, 0)]


def test_a_failed_dependency_cancels_with_the_reason_and_the_chain_follows(bench: Bench, starter: Starter) -> None:
    one = bench.submitter.submit(1)
    number = dependent(bench, f"ok:{one}")
    last = dependent(bench, f"ok:{number}")
    starter.complete("n1", starter.claim("n1"), state=State.FAILED, reason=Reason.EXIT_CODE)
    bench.advance(3.0)
    for waiting, before in ((number, one), (last, number)):
        outcomes = bench.look.outcomes(waiting)
        assert {(o.state, o.reason) for o in outcomes.values()} == {(State.CANCELLED, Reason.DEPENDENCY_FAILED)}
        assert len(outcomes) == 4
        record = bench.look.sub(waiting)
        assert (record.phase, record.reason) == (Phase.CLOSED, Reason.DEPENDENCY_FAILED)
        assert record.reason_detail.startswith(f"ok:{before}: ")


def test_a_dependency_on_a_failure_is_met_by_one_and_broken_by_success(bench: Bench, starter: Starter) -> None:
    good, bad = bench.submitter.submit(1), bench.submitter.submit(1)
    on_good, on_bad = dependent(bench, f"fail:{good}"), dependent(bench, f"fail:{bad}")
    starter.complete("n1", starter.claim("n1"))
    starter.complete("n1", starter.claim("n1"), state=State.FAILED, reason=Reason.EXIT_CODE)
    bench.advance(2.0)
    assert bench.phase(on_good) is Phase.CLOSED
    assert bench.phase(on_bad) is Phase.OPEN


def test_a_collected_dependency_is_found_in_the_history_and_an_unknown_one_breaks(bench: Bench, starter: Starter) -> None:
    one = bench.submitter.submit(1)
    bench.run_all(starter)
    bench.advance(RETENTION_S + 60)
    assert bench.look.sub(one) is None
    known, unknown = dependent(bench, f"ok:{one}"), dependent(bench, "any:999")
    bench.advance(5.0)
    assert bench.phase(known) is Phase.OPEN
    record = bench.look.sub(unknown)
    assert record.reason == Reason.DEPENDENCY_FAILED
    assert "neither in the cluster nor in the history" in record.reason_detail


def test_a_user_hold_is_not_released_by_dependencies(bench: Bench, starter: Starter) -> None:
    one = bench.submitter.submit(1)
    number = dependent(bench, f"ok:{one}")
    bench.submitter.change(number, gate=None, reason=Reason.USER_HOLD)
    bench.run_all(starter)
    bench.advance(60.0)
    assert bench.phase(number) is Phase.HELD


# How the first ended -> (its ok:, any: and fail: follower runs); the table of cli.md, "Dependencies".
TABLE = {
    "completed": (True, True, False),
    "failed": (False, True, True),
    "never startable": (False, True, True),
    "lost": (False, True, True),
    "cancelled while it waited": (False, True, False),
    "cancelled while held": (False, True, False),
    "cancelled in its node's hands, before it began": (False, True, False),
    "cancelled while it ran": (False, True, True),
    "cancelled between two attempts": (False, True, True),
    "cancelled while it waited for its second attempt": (False, True, True),
    "cancelled while it waited after a lost attempt": (False, True, True),
    "cancelled because what it waited for can never happen": (False, True, False),
}


def end_so(bench: Bench, starter: Starter, how: str, tasks: int) -> int:
    """A submission of some tasks, all of which come to this end."""
    if how == "cancelled because what it waited for can never happen":
        return dependent(bench, "any:999")
    held = how == "cancelled while held"
    number = bench.submitter.submit(tasks, held=held, retries=1 if "attempt" in how else 0, resubmit=how != "lost")
    if how in {"cancelled while it waited", "cancelled while held"}:
        bench.submitter.change(number, gate=None if held else False, phase=Phase.CANCELLED, reason=Reason.USER_CANCEL)
        return number
    key = starter.claim("n1")
    match how:
        case "completed":
            starter.complete("n1", key)
        case "failed":
            starter.complete("n1", key, state=State.FAILED, reason=Reason.EXIT_CODE)
        case "never startable":
            starter.complete("n1", key, state=State.FAILED, reason=Reason.START_FAILED)
        case "lost":
            starter.fail("n1", key, reason=Reason.WORKER_LOST)
        case "cancelled in its node's hands, before it began":
            starter.complete("n1", key, base_us=0, elapsed_us=0, state=State.CANCELLED, reason=Reason.USER_CANCEL)
        case "cancelled while it ran":
            starter.complete("n1", key, state=State.CANCELLED, reason=Reason.USER_CANCEL)
        case _:
            ran = {} if "lost" in how else {"started_us": 1_000_000, "ended_us": 1_000_005}
            starter.fail("n1", key, reason=Reason.WORKER_LOST if "lost" in how else Reason.EXIT_CODE, **ran)
            if how.startswith("cancelled while it waited"):
                bench.advance(1.0)
                assert {key.attempt for key in bench.look.pending()} == {2}
            bench.submitter.change(number, gate=False, phase=Phase.CANCELLED, reason=Reason.USER_CANCEL)
    return number


@pytest.mark.parametrize("tasks", [1, 4], ids=["job", "array"])
@pytest.mark.parametrize("how", TABLE)
def test_what_becomes_of_each_follower_of_each_end(bench: Bench, how: str, tasks: int) -> None:
    bench.lead()
    first = end_so(bench, bench.starter("n1"), how, tasks)
    followers = [dependent(bench, f"{condition}:{first}") for condition in ("ok", "any", "fail")]
    bench.advance(5.0)
    assert bench.phase(first) is Phase.CLOSED
    assert tuple(bench.phase(number) is Phase.OPEN for number in followers) == TABLE[how]
    assert {bench.phase(number) for number in followers} <= {Phase.OPEN, Phase.CLOSED}


@pytest.mark.parametrize("tasks", [1, 4], ids=["job", "array"])
@pytest.mark.parametrize("how", TABLE)
def test_each_end_is_told_alike_by_the_history(bench: Bench, how: str, tasks: int) -> None:
    """Also of work whose attempts had all ended, or were lost, before it was cancelled."""
    bench.lead()
    first = end_so(bench, bench.starter("n1"), how, tasks)
    bench.advance(RETENTION_S + 60)
    assert bench.look.sub(first) is None
    followers = [dependent(bench, f"{condition}:{first}") for condition in ("ok", "any", "fail")]
    bench.advance(5.0)
    assert tuple(bench.phase(number) is Phase.OPEN for number in followers) == TABLE[how]


def test_one_task_of_an_array_that_began_is_enough(bench: Bench, starter: Starter) -> None:
    first = bench.submitter.submit(4)
    follower = dependent(bench, f"fail:{first}")
    starter.complete("n1", starter.claim("n1", take=1))
    bench.submitter.change(first, gate=False, phase=Phase.CANCELLED, reason=Reason.USER_CANCEL)
    bench.advance(3.0)
    assert {outcome.state for outcome in bench.look.outcomes(first).values()} == {State.COMPLETED, State.CANCELLED}
    assert bench.phase(follower) is Phase.OPEN


@pytest.mark.parametrize(
    ("conditions", "runs"),
    [
        (("ok", "ok", "ok"), (False, False, False)),
        (("fail", "fail", "fail"), (False, False, False)),
        (("fail", "fail", "any"), (False, False, True)),
        (("any", "ok", "fail"), (True, True, False)),
        (("fail", "any", "ok"), (False, True, True)),
    ],
)
def test_a_chain_of_four_whose_first_never_ran(bench: Bench, starter: Starter, conditions: tuple[str, ...], runs: tuple[bool, ...]) -> None:
    chain = [bench.submitter.submit(2)]
    for condition in conditions:
        chain.append(dependent(bench, f"{condition}:{chain[-1]}"))
    bench.submitter.change(chain[0], gate=False, phase=Phase.CANCELLED, reason=Reason.USER_CANCEL)
    for _ in range(len(chain)):
        bench.advance(3.0)
        bench.run_all(starter)
    bench.advance(3.0)
    ended = [{outcome.state for outcome in bench.look.outcomes(number).values()} for number in chain[1:]]
    assert ended == [{State.COMPLETED if ran else State.CANCELLED} for ran in runs]
