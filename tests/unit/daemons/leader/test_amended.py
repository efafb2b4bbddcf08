"""What is changed of submitted work: a leader, or the next one, applies new terms, and ends the work of a user whose key was revoked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from rmgr.coord.decisions.changing import Change, Doer, amended
from rmgr.coord.ops import membership
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Conflict, Delete, Gone, Multi
from rmgr.coord.protocol.records import decode_block, decode_record
from rmgr.daemons.leader.submissions.sweep import CENSUS_S, Sweeper
from rmgr.errors import NotFound, PermissionDenied, UsageError
from rmgr.model.base import MIB, Request
from rmgr.model.identity import Revocation, RevokedWork, Role
from rmgr.model.node import InboxOrder, OrderKind
from rmgr.model.queue import ClusterSettings, Dispatch, PipelineSpec, QueueSpec
from rmgr.model.states import Reason, State
from rmgr.model.submission import Condition, Dependency, Phase, Rigid, Terms
from rmgr.submitter.orders import update_submission
from tests.harness.leader_bench import Bench, Starter, committed, placing


def update(bench: Bench, number: int, terms: Terms, doer: Doer = Doer(name="u", now_us=1)) -> None:  # noqa: B008
    found = bench.submitter.coordinator.get(paths.sub(number)).result(60)
    record = bench.look.sub(number)
    change = amended(record, terms, doer)
    assert isinstance(change, Change), change
    committed(bench.submitter.coordinator, ops.update(change.record, version=found.version, gate=change.gate))


def told(bench: Bench, node: str = "n1") -> list[InboxOrder]:
    return [order for _, _, order in bench.look.orders(node)]


def test_waiting_blocks_get_the_names_of_the_new_terms_and_keep_their_places(bench: Bench) -> None:
    bench.lead()
    number = bench.submitter.submit(8)
    seqs = [key.seq for key in bench.look.pending()]
    bench.advance(1.0)
    update(bench, number, Terms(priority=-3, memory_bytes=64 * MIB))
    bench.advance(1.0)
    waiting = bench.look.pending()
    assert {(key.priority, key.memory_mib) for key in waiting} == {(-3, 64)}
    assert [(key.first, key.seq) for key in waiting] == list(zip((0, 4), seqs, strict=True))
    update(bench, number, Terms(priority=-4))
    bench.advance(1.0)
    assert {(key.priority, key.memory_mib) for key in bench.look.pending()} == {(-4, 64)}


def test_what_is_held_is_renamed_where_it_is_and_comes_back_so(bench: Bench) -> None:
    bench.lead()
    number = bench.submitter.submit(8, held=True, phase=Phase.HELD, reason=Reason.USER_HOLD)
    update(bench, number, Terms(priority=-3))
    bench.advance(1.0)
    assert {key.priority for key in bench.look.held()} == {-3}
    bench.submitter.change(number, gate=True, phase=Phase.OPEN, reason="")
    bench.advance(1.0)
    assert [(key.first, key.priority) for key in bench.look.pending()] == [(0, -3), (4, -3)]


def test_nodes_that_run_it_are_told_of_time_limits_alone_and_by_the_next_leader_again(bench: Bench) -> None:
    bench.lead()
    starter = bench.starter("n1", "n2")
    number = bench.submitter.submit(4)
    starter.claim("n1", take=2)
    bench.advance(1.0)
    update(bench, number, Terms(name="other"))
    bench.advance(1.0)
    assert told(bench) == []
    update(bench, number, Terms(time_limit_us=9_000_000))
    bench.advance(1.0)
    assert told(bench) == [InboxOrder(order=OrderKind.UPDATE, submission=number)]
    assert told(bench, "n2") == []
    for name in bench.look.names(paths.inbox_node("n1")):
        committed(starter.coordinator, ops.obey("n1", starter.versions["n1"], name))
    bench.advance(30.0)
    assert told(bench) == []
    bench.lead()
    bench.advance(2.0)
    assert told(bench) == [InboxOrder(order=OrderKind.UPDATE, submission=number)], "nobody knows what the one before has told"


def test_what_comes_back_under_its_old_name_is_renamed(bench: Bench, starter: Starter) -> None:
    number = bench.submitter.submit(1, block=1)
    key = starter.claim("n1")
    bench.advance(1.0)
    update(bench, number, Terms(memory_bytes=64 * MIB))
    starter.fail("n1", key, reason=Reason.NODE_LOST)
    bench.advance(60.0)
    assert [(key.attempt, key.memory_mib) for key in bench.look.pending()] == [(2, 64)]


#: An hour on one core.
JOB: dict[str, Any] = {"queue": "batch", "rigid": Rigid(), "request": Request(time_limit_us=3_600_000_000)}


@pytest.fixture
def placed() -> Iterator[Bench]:
    one = Bench(placing("easy"))
    yield one
    one.close()


def test_policies_see_the_new_terms_and_what_is_placed_was_decided_by_them(placed: Bench) -> None:
    """Behind a head that is promised both cores, a job of two hours is backfilled once it takes no more than half of one."""
    bench = placed
    placer = bench.lead().placer
    node = bench.starter("n1")
    hour_us = 3_600_000_000
    running = bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid(), request=Request(time_limit_us=hour_us))
    bench.advance(1)
    head = bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid(processes=2), request=Request(time_limit_us=hour_us))
    behind = bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid(), request=Request(time_limit_us=2 * hour_us))
    bench.advance(5)
    assert {key.submission for key in bench.look.pending("batch")} == {head, behind}
    update(bench, behind, Terms(time_limit_us=hour_us // 2, memory_bytes=64 * MIB))
    bench.advance(5)
    (key,) = [key for key in bench.look.keys(paths.running_node("n1")) if key.submission == behind]
    found = bench.submitter.coordinator.get(paths.running_block("n1", key)).result(60)
    allocation = decode_block(found.data).allocation
    assert (key.memory_mib, allocation.memory_mib, allocation.planned_us, allocation.changes) == (64, 64, hour_us // 2, 1)
    # What runs, and gets less time: what waits for it is promised an earlier start.
    before_us = placer.view().jobs
    update(bench, running, Terms(time_limit_us=hour_us // 2))
    bench.advance(5)
    assert placer.view().jobs != before_us
    assert node.nodes


def test_a_placed_job_that_an_operator_has_raised_is_placed(placed: Bench) -> None:
    bench = placed
    bench.lead()
    number = bench.submitter.submit(1, block=1, phase=Phase.HELD, reason=Reason.USER_HOLD, **JOB)
    update(bench, number, Terms(priority=7), Doer(name="root", is_operator=True, now_us=1))
    bench.advance(2)
    assert [(key.user, key.priority) for key in bench.look.held("batch")] == [(paths.RAISED, 7)]
    bench.submitter.change(number, gate=True, phase=Phase.OPEN, reason="")
    bench.starter("n1")
    bench.advance(5)
    assert bench.look.running("n1") == [number]


@pytest.fixture
def queues() -> Iterator[Bench]:
    places = [QueueSpec(name=name, dispatch=Dispatch.PLACE, partition=name) for name in ("batch", "large")]
    spec = PipelineSpec(partition="batch", document=json.dumps({"stage": [{"policy": "easy"}]}))
    more = (replace(spec, partition="large"),)
    one = Bench(ClusterSettings(queues=(QueueSpec(name="default"), QueueSpec(name="night"), *places), pipelines=(spec, *more)))
    yield one
    one.close()


MINE = Doer(name="u", now_us=1)


def changed(bench: Bench, number: int, terms: Terms) -> str:
    """As `rmgr update` does it: why nothing was changed."""
    return update_submission(bench.submitter.coordinator, number, terms, doer=MINE).unchanged


def test_cores_change_for_all_that_waits_in_its_place_or_for_nothing(bench: Bench, starter: Starter) -> None:
    number = bench.submitter.submit(8)
    key = starter.claim("n1", take=4)
    why = "its cores can be changed while nothing of it runs, is to be tried again, or may still be added"
    assert changed(bench, number, Terms(cores=2)) == why
    starter.complete("n1", key)
    (before,) = bench.look.pending()
    assert changed(bench, number, Terms(cores=2)) == ""
    bench.advance(1.0)
    assert bench.look.pending() == [replace(before, cores=2)]


def test_a_start_in_the_same_moment_and_another_queue_are_not_both_made(bench: Bench, starter: Starter) -> None:
    number = bench.submitter.submit(8)
    found = bench.submitter.coordinator.get(paths.sub(number)).result(60)
    record = bench.look.sub(number)
    change = amended(record, Terms(queue="night", cores=2), MINE)
    assert isinstance(change, Change)
    waiting = [paths.pending_block("default", key) for key in bench.look.pending()]
    starter.claim("n1", take=1)
    multi = ops.update(change.record, version=found.version, gate=change.gate, waiting=waiting)
    assert isinstance(bench.submitter.coordinator.commit(multi).result(60), Conflict)


def test_any_number_of_blocks_goes_to_another_queue(queues: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = queues
    number = bench.submitter.submit(150, block=1)
    with monkeypatch.context() as patch:
        patch.setattr("rmgr.submitter.orders.MOST_WAITING", 149)
        assert changed(bench, number, Terms(queue="night")) == (
            f"it waits in 150 blocks, and none of so many may start meanwhile: rmgr hold {number} first"
        )
        bench.submitter.change(number, gate=False, phase=Phase.HELD, reason=Reason.USER_HOLD)
        assert changed(bench, number, Terms(queue="night", cores=2)) == "", "nothing of what is held can start"
    assert len(bench.look.pending()) == 150, "who leads moves them"
    bench.lead()
    bench.advance(2.0)
    assert (bench.look.pending(), bench.look.held(), bench.look.pending("night")) == ([], [], [])
    assert [(key.first, key.cores) for key in bench.look.held("night")] == [(first, 2) for first in range(150)]
    bench.submitter.change(number, gate=True, phase=Phase.OPEN, reason="")
    bench.advance(2.0)
    assert [key.first for key in bench.look.pending("night")] == list(range(150))


def test_who_leads_next_moves_what_the_one_before_has_not(queues: Bench) -> None:
    bench = queues
    bench.lead()
    number = bench.submitter.submit(8)
    bench.advance(1.0)
    update(bench, number, Terms(queue="night"))  # one leads that does not come to it
    bench.lead()
    bench.advance(2.0)
    assert bench.look.pending() == []
    assert [(key.first, key.count) for key in bench.look.pending("night")] == [(0, 4), (4, 4)]
    update(bench, number, Terms(queue="default"))
    bench.submitter.change(number, gate=False, phase=Phase.CANCELLED, reason=Reason.USER_CANCEL)
    bench.advance(5.0)
    assert bench.phase(number) is Phase.CLOSED, "what has not come along ends where it is"
    assert len(bench.look.outcomes(number)) == 8


def test_what_has_not_come_along_yet_is_not_taken_for_lost(queues: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = queues
    bench.lead()
    number = bench.submitter.submit(8)
    bench.advance(1.0)
    monkeypatch.setattr(Sweeper, "sweep", lambda *_: (yield Future()))
    update(bench, number, Terms(queue="night"))
    bench.advance(4 * CENSUS_S)
    assert bench.look.outcomes(number) == {}
    assert len(bench.look.pending()) == 2


def test_a_job_that_has_left_its_partition_is_not_placed_there(queues: Bench) -> None:
    bench = queues
    number = bench.submitter.submit(3, block=1, **JOB)
    update(bench, number, Terms(queue="large"))
    bench.starter("n1", partition="batch")
    bench.lead()
    bench.advance(5.0)
    assert bench.look.pending("batch") == []
    assert [key.first for key in bench.look.pending("large")] == [0, 1, 2]
    assert bench.look.keys(paths.running_node("n1")) == []
    bench.starter("n2", partition="large")
    bench.advance(5.0)
    assert len(bench.look.running("n2")) >= 1


def test_a_job_that_runs_although_its_record_names_another_partition_keeps_its_nodes(queues: Bench) -> None:
    """A client of its user's making changes the queue of what runs: that hurts nobody else."""
    bench = queues
    bench.starter("n1", partition="batch")
    bench.starter("n2", partition="large")
    bench.lead()
    number = bench.submitter.submit(1, block=1, **JOB)
    bench.advance(5.0)
    assert len(bench.look.running("n1")) == 1
    update(bench, number, Terms(queue="large"))
    bench.advance(5.0)
    bench.lead()
    others = [bench.submitter.submit(1, block=1, **(JOB | {"queue": queue})) for queue in ("batch", "large")]
    bench.advance(5.0)
    assert bench.look.running("n1") == [number, others[0]]
    assert bench.look.running("n2") == [others[1]]


def test_all_that_waits_goes_to_another_queue_while_nothing_of_it_runs() -> None:
    queues = (QueueSpec(name="default"), QueueSpec(name="night"), QueueSpec(name="batch", dispatch=Dispatch.PLACE))
    bench = Bench(ClusterSettings(queues=queues))
    try:
        bench.lead()
        starter = bench.starter("n1")
        number = bench.submitter.submit(8)
        bench.advance(1.0)
        reach, mine = bench.submitter.coordinator, Doer(name="u", now_us=1)
        key = starter.claim("n1", take=2)
        told = update_submission(reach, number, Terms(queue="night"), doer=mine).unchanged
        assert told == "its queue can be changed while nothing of it runs, is to be tried again, or may still be added"
        starter.complete("n1", key)
        with pytest.raises(UsageError, match="the leader places the jobs of queue batch"):
            update_submission(reach, number, Terms(queue="batch"), doer=mine)
        with pytest.raises(NotFound, match="no queue 'day'"):
            update_submission(reach, number, Terms(queue="day"), doer=mine)
        assert update_submission(reach, number, Terms(queue="night", priority=-2), doer=mine).unchanged == ""
        bench.advance(1.0)
        assert bench.look.pending() == []
        assert [(key.first, key.count, key.priority) for key in bench.look.pending("night")] == [(2, 2, -2), (4, 4, -2)]
        bench.submitter.change(number, gate=False, phase=Phase.CANCELLED, reason=Reason.USER_CANCEL)
        bench.advance(5.0)
        assert bench.phase(number) is Phase.CLOSED
        assert len(bench.look.outcomes(number)) == 8
    finally:
        bench.close()


EVES = Revocation(key_id="e" * 32, name="eve", role=Role.USER, by="admin", since_us=1, reason="left", work=RevokedWork.KEEP)
BARRED = (Phase.HELD, Reason.REVOKED)


def revoke(bench: Bench, record: Revocation = EVES) -> None:
    committed(bench.outside, membership.revoke(record))
    bench.advance(1.0)


def change(bench: Bench, work: RevokedWork) -> None:
    found = bench.outside.get(paths.revoked(EVES.key_id)).result(60)
    old = decode_record(found.data, Revocation)
    committed(bench.outside, membership.change_revoked(replace(old, work=work, before=old.work), found.version))
    bench.advance(1.0)


def shown(bench: Bench, number: int) -> tuple[Phase, str]:
    record = bench.look.sub(number)
    return record.phase, record.reason


def orders_of(bench: Bench, node: str = "n1") -> list[tuple[OrderKind, int]]:
    return [(order.order, order.submission) for order in told(bench, node)]


def test_what_he_had_submitted_is_held_and_others_work_is_not(bench: Bench) -> None:
    bench.lead()
    mine, others = bench.submitter.submit(4, user="eve"), bench.submitter.submit(4, user="ann")
    revoke(bench)
    assert (shown(bench, mine), shown(bench, others)) == (BARRED, (Phase.OPEN, ""))
    assert {key.submission for key in bench.look.held()} == {mine}
    assert {key.submission for key in bench.look.pending()} == {others}
    assert orders_of(bench) == []


def test_a_leader_that_comes_later_does_it_too(bench: Bench) -> None:
    number = bench.submitter.submit(4, user="eve")
    committed(bench.outside, membership.revoke(EVES))
    bench.lead()
    bench.advance(1.0)
    assert shown(bench, number) == BARRED


def test_what_is_submitted_with_new_credentials_is_not_touched(bench: Bench) -> None:
    bench.lead()
    revoke(bench)
    number = bench.submitter.submit(4, user="eve")
    bench.advance(5.0)
    assert shown(bench, number) == (Phase.OPEN, "")


OTHERS = {"one of several keys": replace(EVES, others=True), "a node of that name": replace(EVES, role=Role.STARTER, work="")}


@pytest.mark.parametrize("whose", OTHERS)
def test_what_is_not_the_users_last_key_holds_nothing(bench: Bench, whose: str) -> None:
    bench.lead()
    number = bench.submitter.submit(4, user="eve")
    revoke(bench, OTHERS[whose])
    assert shown(bench, number) == (Phase.OPEN, "")


@pytest.mark.parametrize("reason", [Reason.USER_HOLD, Reason.DEPENDENCY])
def test_what_was_held_for_another_reason_is_held_for_this_one_and_stays_so(bench: Bench, reason: Reason) -> None:
    bench.lead()
    first = bench.submitter.submit(1, user="ann")
    after = (Dependency(condition=Condition.OK, submission=first),)
    number = bench.submitter.submit(4, user="eve", held=True, phase=Phase.HELD, reason=reason, after=after)
    revoke(bench)
    assert shown(bench, number) == BARRED
    bench.run_all(bench.starter("n1"))
    bench.advance(5.0)
    assert shown(bench, number) == BARRED


def test_released_by_whomever_it_is_held_again(bench: Bench) -> None:
    bench.lead()
    number = bench.submitter.submit(4, user="eve")
    revoke(bench)
    bench.submitter.change(number, gate=True, phase=Phase.OPEN, reason="")
    bench.advance(1.0)
    assert shown(bench, number) == BARRED
    assert bench.outside.stat(paths.gate(number)).result(60) is None


def test_what_fails_waits_aside(bench: Bench, starter: Starter) -> None:
    number = bench.submitter.submit(1, user="eve", retries=3)
    key = starter.claim("n1")
    revoke(bench)
    starter.fail("n1", key, reason=Reason.EXIT_CODE, exit_code=1)
    bench.advance(60.0)
    assert [key.submission for key in bench.look.held()] == [number]
    assert bench.look.pending() == []


def test_cancelled_all_of_it_ends_also_when_that_is_said_later(bench: Bench, starter: Starter) -> None:
    number = bench.submitter.submit(8, user="eve")
    starter.claim("n1")
    revoke(bench)
    assert shown(bench, number) == BARRED
    change(bench, RevokedWork.CANCEL)
    assert shown(bench, number) == (Phase.CANCELLED, Reason.REVOKED)
    assert {outcome.state for outcome in bench.look.outcomes(number).values()} == {State.CANCELLED}
    assert orders_of(bench) == [(OrderKind.CANCEL, number)]


def test_held_what_runs_stands_still_until_something_else_is_said(bench: Bench, starter: Starter) -> None:
    others = bench.submitter.submit(4, user="ann")
    starter.claim("n1")
    number = bench.submitter.submit(8, user="eve")
    starter.claim("n1")
    revoke(bench, replace(EVES, work=RevokedWork.HOLD))
    assert orders_of(bench) == [(OrderKind.SUSPEND, number)]
    cross_off(bench, starter)
    bench.advance(20.0)
    cross_off(bench, starter)
    change(bench, RevokedWork.KEEP)
    assert orders_of(bench) == [(OrderKind.RESUME, number)]
    assert shown(bench, others) == (Phase.OPEN, "")


@pytest.mark.parametrize("away", ["the lists", "the answers"])
def test_what_stood_goes_on_although_zookeeper_did_not_answer_when_that_was_said(bench: Bench, starter: Starter, away: str) -> None:
    number = bench.submitter.submit(8, user="eve")
    starter.claim("n1")
    revoke(bench, replace(EVES, work=RevokedWork.HOLD))
    bench.advance(20.0)
    cross_off(bench, starter)
    if away == "the lists":
        left = bench.refuse("children", PermissionDenied("not now"), lambda path: path == paths.running_node("n1"))
    else:
        left = bench.refuse("commit", PermissionDenied("not now"), lambda multi: multi.name == "ORDER")
    change(bench, RevokedWork.KEEP)
    bench.advance(10.0)
    assert left == [0]
    assert orders_of(bench) == [(OrderKind.RESUME, number)]


def cross_off(bench: Bench, starter: Starter) -> None:
    """All that the node was asked is done."""
    for name in bench.look.names(paths.inbox_node("n1")):
        path = paths.inbox("n1", name)
        committed(starter.coordinator, Multi(name="X", ops=(Delete(path),), proof=Gone(path)))
