"""A leader's work for submissions: the resubmit rule, hold and cancel, ends, fail-over."""

from __future__ import annotations

from typing import Any

import pytest

from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Create, Exists, Multi
from rmgr.coord.protocol.ports import Encoding
from rmgr.coord.protocol.records import decode_block, decode_record, encode_fragment, encode_keyed, encode_outcomes
from rmgr.daemons.leader.submissions import follow
from rmgr.daemons.leader.submissions.follow import Stage
from rmgr.model.base.states import Reason, State
from rmgr.model.cluster.node import InboxOrder
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.model.tasks.block import BlockData, Fragment, KeyedPayload, Outcome
from rmgr.model.tasks.submission import Phase, Tail
from rmgr.procedures.history import decode_summary
from tests.harness.leader_bench import Bench, Starter, committed

RETENTION_S = 3600.0
SETTINGS = ClusterSettings(retention_us=round(RETENTION_S * 1e6))


# -- ends --------------------------------------------------------------------------------------------------------------------


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
    bench.submitter.change(number, gate=False, phase=Phase.CANCELLED, reason=Reason.USER_CANCEL)
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
    found = bench.outside.get(paths.tail(number)).result(60)
    assert decode_record(found.data, Tail).complete


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
    row = bench.store.get(keys.history(number))
    view = decode_summary(row[0])
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


# -- the resubmit rule -------------------------------------------------------------------------------------------------------


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


# -- hold, cancel, release ---------------------------------------------------------------------------------------------------


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
    found = bench.outside.get(paths.inbox("n1", orders[0])).result(60)
    told = decode_record(found.data, InboxOrder)
    assert (told.submission, told.index, told.reason, told.detail) == (number, -1, "USER_CANCEL", "enough")
    bench.advance(60.0)
    assert bench.look.names(paths.inbox_node("n1")) == orders, "one order a node, however long it takes"
    starter.complete("n1", key, state=State.CANCELLED, reason=Reason.USER_CANCEL)
    bench.advance(1.0)
    assert bench.phase(number) is Phase.CLOSED
    row = bench.store.get(keys.history(number))
    assert decode_summary(row[0]).state is State.CANCELLED


def test_cancel_ends_failed_ranges_that_wait_for_their_back_off(bench: Bench, starter: Starter) -> None:
    number = bench.submitter.submit(1, retries=3, backoff_us=60_000_000)
    starter.fail("n1", starter.claim("n1"), reason=Reason.EXIT_CODE)
    bench.advance(1.0)
    bench.submitter.change(number, gate=False, phase=Phase.CANCELLED, reason=Reason.USER_CANCEL)
    bench.advance(1.0)
    assert bench.look.failed(number) == {}
    assert bench.look.outcomes(number)[0].state is State.CANCELLED
    assert bench.phase(number) is Phase.CLOSED


def test_values_of_a_lost_attempt_go_when_its_task_is_cancelled_instead(bench: Bench, starter: Starter) -> None:
    number = bench.submitter.submit(1, backoff_us=60_000_000)
    starter.fail("n1", starter.claim("n1"), reason=Reason.NODE_LOST, backoff_us=60_000_000)
    bench.submitter.change(number, gate=False, phase=Phase.CANCELLED, reason=Reason.USER_CANCEL)
    bench.store.put(keys.output(number, 0, 1), b"half")
    bench.advance(1.0)
    assert bench.look.outcomes(number)[0].state is State.CANCELLED
    assert bench.store.keys("out/") == []


def test_a_cancelled_queue_that_was_still_growing_is_ended(bench: Bench) -> None:
    bench.lead()
    number = bench.submitter.submit(4, complete=False)
    bench.submitter.change(number, gate=False, phase=Phase.CANCELLED, reason=Reason.USER_CANCEL)
    bench.advance(1.0)
    assert bench.phase(number) is Phase.CLOSED
    assert len(bench.look.outcomes(number)) == 4


# -- fail-over ---------------------------------------------------------------------------------------------------------------


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
        bench.submitter.change(number, gate=False, phase=Phase.CANCELLED, reason=Reason.USER_CANCEL)
    bench.advance(5.0)
    assert all(len(bench.look.outcomes(number)) == 8 for number in numbers)
    assert bench.count(bench.metrics.fenced_writes) >= 1
    assert bench.look.node("n1").guid == starter.guid


# -- stages ----------------------------------------------------------------------------------------------------------------------------


def test_a_submission_goes_through_its_stages_and_no_other_way(bench: Bench) -> None:
    leader = bench.lead()
    number = bench.submitter.submit(4)
    bench.advance(1.0)
    followed = leader.submissions.followed[number]
    assert followed.stage is Stage.FOLLOWED
    with pytest.raises(ValueError, match="is FOLLOWED, and cannot become YOUNG"):
        followed.become(Stage.YOUNG)
    followed.stop()
    followed.stop()
    assert followed.stage is Stage.STOPPED
    followed.load()
    assert list(leader.aside.told().values()) == [f"ValueError: submission {number} is STOPPED, and cannot become READING"]
