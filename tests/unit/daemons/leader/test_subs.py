"""A leader's work for submissions: ends, the resubmit rule, hold and cancel, fail-over, caps and dependencies."""

from __future__ import annotations

from typing import Any

import pytest

from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Create, Exists, Multi
from rmgr.coord.protocol.ports import Encoding
from rmgr.coord.protocol.records import decode_block, encode_fragment, encode_keyed, encode_outcomes
from rmgr.daemons.leader.submissions import follow
from rmgr.daemons.leader.submissions.follow import Stage
from rmgr.model.block import BlockData, Fragment, KeyedPayload, Outcome
from rmgr.model.node import InboxOrder
from rmgr.model.queue import ClusterSettings
from rmgr.model.states import Reason, State
from rmgr.model.submission import Condition, Dependency, Phase, Tail
from rmgr.procedures.history import decode_summary
from tests.harness.leader_bench import Bench, Starter, committed

RETENTION_S = 3600.0
SETTINGS = ClusterSettings(retention_us=round(RETENTION_S * 1e6))


def cancel(bench: Bench, number: int) -> None:
    bench.submitter.change(number, gate=False, phase=Phase.CANCELLED, reason=Reason.USER_CANCEL)


def test_an_ended_submission_without_owner_gets_its_summary_and_is_closed(bench: Bench, starter: Starter) -> None:
    number = bench.submitter.submit(6, name="sweep")
    bench.run_all(starter, cpu_us=10, exit_code=0)
    assert bench.phase(number) is Phase.CLOSED
    assert bench.look.names(paths.sub(number)) == ["done", "failed", "tail"]
    for key in (keys.history(number), keys.history_of_user("u", number)):
        row = bench.store.get(key)
        view = decode_summary(row[0])
        assert (view.id, view.name, view.state, view.exit_code, view.cpu_us) == (number, "sweep", State.COMPLETED, 0, 60)
        assert view.counts["COMPLETED"] == 6
        assert view.nodes == ("n1",)


def test_what_has_ended_is_closed_although_its_owner_lives(bench: Bench) -> None:
    bench.submitter.enter()
    bench.lead()
    starter = bench.starter("n1")
    number = bench.submitter.submit(2, owner=bench.submitter.guid)
    bench.run_all(starter)
    bench.advance(1.0)
    assert (bench.phase(number), bench.look.sub(number).owner) == (Phase.CLOSED, "")


@pytest.fixture
def asked(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the leader reads below a submission, each request a line."""
    lines: list[str] = []

    def noting(name: str, read: Any) -> Any:
        def note(what: str | list[str], **options: Any) -> Any:
            wanted = [what] if isinstance(what, str) else what
            parts = [path.removeprefix(paths.sub(1)).removeprefix("/") or "record" for path in wanted if path.startswith(paths.sub(1))]
            if parts:
                lines.append(" ".join(parts) + (" watched" if options.get("watch") else ""))
            return read(what, **options)

        return note

    for name in ("get", "get_many", "stat", "children"):
        monkeypatch.setattr(bench.leader_coordinator, name, noting(name, getattr(bench.leader_coordinator, name)))
    return lines


def test_what_is_over_in_a_moment_is_read_once_and_then_closed(bench: Bench, asked: list[str]) -> None:
    # SUBMIT .. the record is read .. CLAIM, COMPLETE .. half a second: how far it is, and its end .. CLOSE
    bench.submitter.enter()
    bench.lead()
    starter = bench.starter("n1")
    number = bench.submitter.submit(2, owner=bench.submitter.guid)
    bench.advance(0.1)
    starter.complete("n1", starter.claim("n1"))
    bench.advance(1.0)
    assert bench.phase(number) is Phase.CLOSED
    assert asked == ["record watched", "tail done", "done/r-0000000000"]


def test_what_lasts_longer_is_followed_and_what_is_asked_for_is_read_at_once(bench: Bench, asked: list[str]) -> None:
    bench.submitter.enter()
    leader = bench.lead()
    starter = bench.starter("n1")
    number = bench.submitter.submit(4, owner=bench.submitter.guid)
    bench.advance(0.1)
    assert asked == ["record watched"]
    while not leader.hurry():
        bench.run()
    assert leader.snapshot().submissions[number][1].total == 4
    assert asked[1:] == ["tail done", "failed watched", "done/r-0000000000 watched"]
    starter.complete("n1", starter.claim("n1", take=2))
    bench.advance(1.0)
    assert asked[4:] == ["done/r-0000000000", "done/r-0000000001 watched"]
    starter.complete("n1", starter.claim("n1"))
    bench.advance(1.0)
    assert bench.phase(number) is Phase.CLOSED
    assert asked[6:] == ["done/r-0000000001"]


def test_a_submission_that_is_cancelled_in_its_first_moment_ends(bench: Bench) -> None:
    bench.submitter.enter()
    bench.lead()
    number = bench.submitter.submit(4, owner=bench.submitter.guid)
    bench.advance(0.1)
    cancel(bench, number)
    bench.advance(5.0)
    assert bench.phase(number) is Phase.CLOSED
    assert {outcome.state for outcome in bench.look.outcomes(number).values()} == {State.CANCELLED}


def test_the_death_of_an_owner_is_noticed(bench: Bench) -> None:
    owner = bench.submitter.__class__(bench.connect())
    owner.enter()
    bench.lead()
    starter = bench.starter("n1")
    number = owner.submit(2, owner=owner.guid, complete=False)
    bench.run_all(starter)
    bench.advance(RETENTION_S + 10)
    assert bench.phase(number) is Phase.OPEN
    owner.coordinator.close()
    bench.advance(1.0)
    assert bench.phase(number) is Phase.CLOSED


@pytest.mark.parametrize("is_there_first", [False, True])
def test_an_entry_in_another_users_name_is_not_that_of_the_owner(bench: Bench, is_there_first: bool) -> None:
    """mallory has read in the list which Submitter of u's has died, and lets its guid live on."""
    owner, mallory = (bench.submitter.__class__(bench.connect()) for _ in range(2))
    owner.enter("u")
    bench.lead()
    starter = bench.starter("n1")
    number = owner.submit(2, owner=owner.guid, complete=False)
    bench.run_all(starter)
    mallory.guid = owner.guid
    if is_there_first:
        mallory.enter("mallory")
    bench.advance(RETENTION_S + 10)
    assert bench.phase(number) is Phase.OPEN  # owned, and u lives
    owner.coordinator.close()
    mallory.enter("mallory")
    bench.advance(1.0)
    assert bench.phase(number) is Phase.CLOSED


def test_entries_that_no_submission_names_are_not_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    get = bench.leader_coordinator.get
    monkeypatch.setattr(bench.leader_coordinator, "get", lambda path, **options: read.append(path) or get(path, **options))
    bench.lead()
    bench.submitter.submit(1, owner="", complete=False)
    for name in (f"{paths.SUBMITTERS}/junk", f"{paths.submitter('e' * 32)}0000000001", f"{paths.SUBMITTERS}/s--0000000002"):
        committed(bench.outside, Multi(name="ATTACK", ops=(Create(name, bytes(15_000)),), proof=Exists(name)))
    bench.advance(5.0)
    assert not [path for path in read if path.startswith(f"{paths.SUBMITTERS}/")]


def test_a_queue_that_nobody_owns_is_ended_after_retention(bench: Bench, starter: Starter) -> None:
    number = bench.submitter.submit(2, complete=False)
    bench.run_all(starter)
    bench.advance(RETENTION_S - 10)
    assert bench.phase(number) is Phase.OPEN
    bench.advance(20.0)
    assert bench.phase(number) is Phase.CLOSED
    assert bench.look.read(paths.tail(number), Tail).complete


def test_outcomes_in_a_row_are_counted_at_once_and_accounted_at_the_end(bench: Bench) -> None:
    leader = bench.lead()
    number = bench.submitter.submit(2, complete=False)
    outcomes = (
        Outcome(index=0, cpu_us=7, exit_code=0),
        Outcome(index=1, state=State.FAILED, reason=Reason.EXIT_CODE, exit_code=3, cpu_us=9),
    )
    bench.store.put(keys.fragment(number, "x"), encode_outcomes(outcomes))
    fragment = Fragment(node="n1", row=keys.fragment(number, "x"), ranges=((State.COMPLETED, 0, 1), (State.FAILED, 1, 1)))
    path = paths.fragment_prefix(number)
    committed(bench.outside, Multi(name="X", ops=(Create(path, encode_fragment(fragment), sequence=True),), proof=Exists(path)))
    bench.advance(1.0)
    progress = leader.submissions.followed[number].progress
    assert (progress.final, progress.cpu_us, progress.exit_code) == (2, 0, None)
    bench.advance(RETENTION_S + 10)
    view = decode_summary(bench.store.get(keys.history(number))[0])
    assert (view.state, view.reason, view.exit_code, view.cpu_us) == (State.FAILED, Reason.EXIT_CODE, 3, 16)


def test_costly_fragments_leave_others_their_turn(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user may make each as costly as can be: the loop that takes them in has other work, and a guard that ends a process that stands."""
    leader = bench.lead()
    number = bench.submitter.submit(40, complete=False)
    done: list[str] = []
    take_in = follow.apply

    def costly(*given: Any) -> None:
        if not done:
            bench.mailbox.put(lambda: done.append("another"))
        bench.now_s += 0.03
        done.append("fragment")
        take_in(*given)

    monkeypatch.setattr(follow, "apply", costly)
    fragments = [Fragment(node="n1", outcomes=(Outcome(index=index),)) for index in range(40)]
    path = paths.fragment_prefix(number)
    made = tuple(Create(path, encode_fragment(fragment), sequence=True) for fragment in fragments)
    committed(bench.outside, Multi(name="X", ops=made, proof=Exists(path)))
    bench.advance(5.0)
    assert leader.submissions.followed[number].progress.final == 40
    assert done == ["fragment", "fragment", "another", *["fragment"] * 38]


def test_retries_wait_for_their_back_off_and_then_end(bench: Bench, starter: Starter) -> None:
    number = bench.submitter.submit(1, retries=1, backoff_us=5_000_000)
    starter.fail("n1", starter.claim("n1"), reason=Reason.EXIT_CODE, exit_code=9)
    bench.advance(4.9)
    assert bench.look.pending() == []
    bench.advance(0.2)
    assert [key.attempt for key in bench.look.pending()] == [2]
    starter.fail("n1", starter.claim("n1"), reason=Reason.EXIT_CODE, exit_code=9)
    bench.advance(0.2)
    outcome = bench.look.outcomes(number)[0]
    assert (outcome.state, outcome.reason, outcome.exit_code) == (State.FAILED, Reason.EXIT_CODE, 9)
    assert [past.attempt for past in outcome.past] == [1]
    bench.advance(1.0)
    assert bench.phase(number) is Phase.CLOSED


def test_a_task_that_is_lost_five_times_alone_is_poison(bench: Bench) -> None:
    bench.lead()
    number = bench.submitter.submit(1)
    for _ in range(5):
        starter = bench.starter("n1")
        starter.claim("n1")
        starter.close()
        bench.advance(3.0)
    assert {i: (o.state, o.reason) for i, o in bench.look.outcomes(number).items()} == {0: (State.FAILED, Reason.POISON)}


def test_a_loss_of_work_that_may_not_run_again_is_final_and_its_outputs_are_deleted(bench: Bench, starter: Starter) -> None:
    payload = encode_keyed(KeyedPayload(outputs=("res",)))
    number = bench.submitter.submit(1, resubmit=False, data=BlockData(resubmit=False, keyed=True, payloads=(payload,)))
    bench.store.put(keys.output(number, 0, 1), b"half")
    bench.store.put(keys.named("res"), keys.encode_pointer(keys.Pointer(sub=number, index=0)), encoding=Encoding.POINTER)
    starter.claim("n1")
    starter.close()
    bench.advance(3.0)
    outcome = bench.look.outcomes(number)[0]
    assert (outcome.state, outcome.reason) == (State.FAILED, Reason.NODE_LOST)
    assert bench.store.get(keys.output(number, 0, 1)) is None
    assert bench.store.get(keys.named("res")) is None


@pytest.mark.parametrize("keyed", [True, False])
def test_values_of_a_lost_attempt_are_deleted_when_its_task_waits_again(bench: Bench, starter: Starter, *, keyed: bool) -> None:
    """The pointer stays: it leads to whichever attempt is committed."""
    payloads = tuple(encode_keyed(KeyedPayload(outputs=(f"a{n}", f"b{n}"))) for n in range(3)) if keyed else ()
    number = bench.submitter.submit(3, data=BlockData(keyed=keyed, payloads=payloads))
    lost = [keys.output(number, index, 1, n) for index in range(3) for n in range(2 if keyed else 1)]
    bench.store.put_many([(row, b"half") for row in lost])
    bench.store.put(keys.output(number, 0, 2), b"of the next attempt")
    bench.store.put(keys.named("a0"), keys.encode_pointer(keys.Pointer(sub=number, index=0)), encoding=Encoding.POINTER)
    starter.claim("n1")
    starter.close()
    bench.advance(3.0)
    assert bench.look.outcomes(number) == {}
    assert bench.store.keys("out/") == [keys.output(number, 0, 2)]
    assert bench.store.get(keys.named("a0")) is not None


def test_hold_sets_waiting_blocks_aside_and_release_puts_them_back_in_their_places(bench: Bench) -> None:
    bench.lead()
    first = bench.submitter.submit(8)
    second = bench.submitter.submit(4)
    before = bench.look.pending()
    bench.submitter.change(first, gate=False, phase=Phase.HELD, reason=Reason.USER_HOLD)
    bench.advance(1.0)
    assert {key.submission for key in bench.look.pending()} == {second}
    assert [key.first for key in bench.look.held()] == [0, 4]
    bench.submitter.change(first, gate=True, phase=Phase.OPEN, reason="")
    bench.advance(1.0)
    assert bench.look.pending() == before
    assert bench.look.held() == []


def test_a_block_that_a_starter_returns_to_a_held_submission_is_set_aside_by_the_resync(bench: Bench, starter: Starter) -> None:
    number = bench.submitter.submit(4)
    key = starter.claim("n1")
    bench.submitter.change(number, gate=False, phase=Phase.HELD, reason=Reason.USER_HOLD)
    bench.advance(1.0)
    found = starter.coordinator.get(paths.running_block("n1", key)).result(60)
    multi, _ = ops.give_back("n1", starter.versions["n1"], "default", key, decode_block(found.data), found.version, first=0)
    committed(starter.coordinator, multi)
    assert len(bench.look.pending()) == 1
    bench.advance(100.0)
    assert bench.look.pending() == []
    assert len(bench.look.held()) == 1


def test_cancel_ends_what_waits_orders_what_runs_and_closes(bench: Bench, starter: Starter) -> None:
    number = bench.submitter.submit(12)
    key = starter.claim("n1")
    bench.submitter.change(number, gate=False, phase=Phase.CANCELLED, reason=Reason.USER_CANCEL, reason_detail="enough")
    bench.advance(0.3)
    assert bench.look.pending() == []
    outcomes = bench.look.outcomes(number)
    assert {i: (o.state, o.reason) for i, o in outcomes.items()} == dict.fromkeys(range(4, 12), (State.CANCELLED, Reason.USER_CANCEL))
    orders = bench.look.names(paths.inbox_node("n1"))
    assert orders == [f"cancel-{number}"]
    told = bench.look.read(paths.inbox("n1", orders[0]), InboxOrder)
    assert (told.submission, told.index, told.reason, told.detail) == (number, -1, "USER_CANCEL", "enough")
    bench.advance(60.0)
    assert bench.look.names(paths.inbox_node("n1")) == orders, "one order a node, however long it takes"
    starter.complete("n1", key, state=State.CANCELLED, reason=Reason.USER_CANCEL)
    bench.advance(1.0)
    assert bench.phase(number) is Phase.CLOSED
    assert decode_summary(bench.store.get(keys.history(number))[0]).state is State.CANCELLED


def test_cancel_ends_failed_ranges_that_wait_for_their_back_off(bench: Bench, starter: Starter) -> None:
    number = bench.submitter.submit(1, retries=3, backoff_us=60_000_000)
    starter.fail("n1", starter.claim("n1"), reason=Reason.EXIT_CODE)
    bench.advance(1.0)
    cancel(bench, number)
    bench.advance(1.0)
    assert bench.look.failed(number) == {}
    assert bench.look.outcomes(number)[0].state is State.CANCELLED
    assert bench.phase(number) is Phase.CLOSED


def test_values_of_a_lost_attempt_go_when_its_task_is_cancelled_instead(bench: Bench, starter: Starter) -> None:
    number = bench.submitter.submit(1, backoff_us=60_000_000)
    starter.fail("n1", starter.claim("n1"), reason=Reason.NODE_LOST, backoff_us=60_000_000)
    cancel(bench, number)
    bench.store.put(keys.output(number, 0, 1), b"half")
    bench.advance(1.0)
    assert bench.look.outcomes(number)[0].state is State.CANCELLED
    assert bench.store.keys("out/") == []


def test_a_cancelled_queue_that_was_still_growing_is_ended(bench: Bench) -> None:
    bench.lead()
    number = bench.submitter.submit(4, complete=False)
    cancel(bench, number)
    bench.advance(1.0)
    assert bench.phase(number) is Phase.CLOSED
    assert len(bench.look.outcomes(number)) == 4


def test_a_successor_goes_on_with_everything(bench: Bench, starter: Starter) -> None:
    open_, held, done = bench.submitter.submit(8), bench.submitter.submit(4), bench.submitter.submit(1)
    bench.submitter.change(held, gate=False, phase=Phase.HELD, reason=Reason.USER_HOLD)
    bench.advance(1.0)
    key = starter.claim("n1")
    bench.leader_coordinator.close()
    bench.submitter.change(held, gate=True, phase=Phase.OPEN, reason="")
    starter.fail("n1", key, reason=Reason.NODE_LOST)
    successor = bench.lead(bench.connect())
    bench.advance(1.0)
    assert successor.submissions.is_loaded
    assert sorted(successor.submissions.followed) == [open_, held, done]
    assert bench.look.held() == []
    assert bench.look.failed(open_) == {}
    bench.run_all(starter)
    assert {bench.phase(number) for number in (open_, held, done)} == {Phase.CLOSED}


def test_two_leaders_at_once_do_nothing_twice(bench: Bench, starter: Starter) -> None:
    """The old one does not know yet; every one of its writes is refused."""
    numbers = [bench.submitter.submit(8) for _ in range(3)]
    bench.run()
    bench.lead(bench.connect())
    for number in numbers:
        cancel(bench, number)
    bench.advance(5.0)
    assert all(len(bench.look.outcomes(number)) == 8 for number in numbers)
    assert bench.count(bench.metrics.fenced_writes) >= 1
    assert bench.look.node("n1").guid == starter.guid


def test_a_submission_is_followed_until_it_is_stopped(bench: Bench) -> None:
    leader = bench.lead()
    number = bench.submitter.submit(4)
    bench.advance(1.0)
    followed = leader.submissions.followed[number]
    assert followed.stage is Stage.FOLLOWED
    followed.stop()
    followed.stop()
    assert followed.stage is Stage.STOPPED


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
            cancel(bench, number)
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
    cancel(bench, first)
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
    cancel(bench, chain[0])
    for _ in range(len(chain)):
        bench.advance(3.0)
        bench.run_all(starter)
    bench.advance(3.0)
    ended = [{outcome.state for outcome in bench.look.outcomes(number).values()} for number in chain[1:]]
    assert ended == [{State.COMPLETED if ran else State.CANCELLED} for ran in runs]
