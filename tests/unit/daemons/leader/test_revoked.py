"""A leader, or its successor, ends the work of a user whose key was revoked."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from rmgr.coord.ops import membership
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Delete, Gone, Multi
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import PermissionDenied
from rmgr.model.base.states import Reason, State
from rmgr.model.cluster.identity import Revocation, RevokedWork, Role
from rmgr.model.cluster.node import InboxOrder, OrderKind
from rmgr.model.tasks.submission import Condition, Dependency, Phase
from tests.harness.leader_bench import Bench, Starter, committed

EVES = Revocation(key_id="e" * 32, name="eve", role=Role.USER, by="admin", since_us=1, reason="left", work=RevokedWork.KEEP)


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


def orders(bench: Bench, node: str = "n1") -> list[tuple[OrderKind, int]]:
    found = []
    for name in bench.look.names(paths.inbox_node(node)):
        stamped = bench.outside.get(paths.inbox(node, name)).result(60)
        order = decode_record(stamped.data, InboxOrder)
        found.append((order.order, order.submission))
    return found

BARRED = (Phase.HELD, Reason.REVOKED)


def test_what_he_had_submitted_is_held_and_others_work_is_not(bench: Bench) -> None:
    bench.lead()
    mine, others = bench.submitter.submit(4, user="eve"), bench.submitter.submit(4, user="ann")
    revoke(bench)
    assert (shown(bench, mine), shown(bench, others)) == (BARRED, (Phase.OPEN, ""))
    assert {key.submission for key in bench.look.held()} == {mine}
    assert {key.submission for key in bench.look.pending()} == {others}
    assert orders(bench) == []


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


def test_one_of_several_keys_holds_nothing(bench: Bench) -> None:
    bench.lead()
    number = bench.submitter.submit(4, user="eve")
    revoke(bench, replace(EVES, others=True))
    assert shown(bench, number) == (Phase.OPEN, "")


def test_a_node_of_that_name_is_no_user(bench: Bench) -> None:
    bench.lead()
    number = bench.submitter.submit(4, user="eve")
    revoke(bench, replace(EVES, role=Role.STARTER, work=""))
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
    assert orders(bench) == [(OrderKind.CANCEL, number)]


def test_held_what_runs_stands_still_until_something_else_is_said(bench: Bench, starter: Starter) -> None:
    others = bench.submitter.submit(4, user="ann")
    starter.claim("n1")
    number = bench.submitter.submit(8, user="eve")
    starter.claim("n1")
    revoke(bench, replace(EVES, work=RevokedWork.HOLD))
    assert orders(bench) == [(OrderKind.SUSPEND, number)]
    for name in bench.look.names(paths.inbox_node("n1")):
        committed(starter.coordinator, crossed_off(name))
    bench.advance(20.0)
    for name in bench.look.names(paths.inbox_node("n1")):
        committed(starter.coordinator, crossed_off(name))
    change(bench, RevokedWork.KEEP)
    assert orders(bench) == [(OrderKind.RESUME, number)]
    assert shown(bench, others) == (Phase.OPEN, "")


@pytest.mark.parametrize("away", ["the lists", "the answers"])
def test_what_stood_goes_on_although_zookeeper_did_not_answer_when_that_was_said(bench: Bench, starter: Starter, away: str) -> None:
    number = bench.submitter.submit(8, user="eve")
    starter.claim("n1")
    revoke(bench, replace(EVES, work=RevokedWork.HOLD))
    bench.advance(20.0)
    for name in bench.look.names(paths.inbox_node("n1")):
        committed(starter.coordinator, crossed_off(name))
    children, commit, left = bench.leader_coordinator.children, bench.leader_coordinator.commit, [2]

    def refused() -> Future[Any]:
        left[0] -= 1
        answer: Future[Any] = Future()
        answer.set_exception(PermissionDenied("not now"))
        return answer

    def listing(path: str, **options: Any) -> Future[Any]:
        return refused() if away == "the lists" and left[0] and path == paths.running_node("n1") else children(path, **options)

    def committing(multi: Multi, **options: Any) -> Future[Any]:
        return refused() if away == "the answers" and left[0] and multi.name == "ORDER" else commit(multi, **options)

    bench.leader_coordinator.children, bench.leader_coordinator.commit = listing, committing  # type: ignore[method-assign]
    change(bench, RevokedWork.KEEP)
    bench.advance(10.0)
    assert left == [0]
    assert orders(bench) == [(OrderKind.RESUME, number)]


def crossed_off(name: str) -> Multi:
    path = paths.inbox("n1", name)
    return Multi(name="X", ops=(Delete(path),), proof=Gone(path))
