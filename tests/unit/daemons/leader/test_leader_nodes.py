"""Liveness: vanished Starters are fenced, and their claimed blocks are marked FAILED; others are left alone."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from rmgr.coord.ops import membership
from rmgr.coord.ops.leader import fence, order, stand, take_over
from rmgr.coord.ops.work import mark_idle
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Conflict, Create, Delete, Gone, Holds, Multi, Outcome, Set, Unknown
from rmgr.coord.protocol.records import encode_record
from rmgr.model.identity import Revocation, Role
from rmgr.model.node import EpochRecord, InboxOrder, NodeState, OrderKind
from rmgr.model.queue import ClusterSettings
from rmgr.model.states import Reason
from tests.harness.leader_bench import Bench, Starter, committed

GRACE_S = 1.0
SETTINGS = ClusterSettings(grace_us=round(GRACE_S * 1e6))


def test_a_dead_starter_is_fenced_after_the_grace_and_its_tasks_wait_again(bench: Bench, starter: Starter) -> None:
    number = bench.submitter.submit(4)
    key = starter.claim("n1")
    starter.close()
    bench.advance(GRACE_S - 0.01)
    assert bench.look.node("n1").state is NodeState.UP
    bench.advance(0.02)
    assert bench.look.node("n1").state is NodeState.FENCED
    assert bench.look.names(paths.running_node("n1")) == []
    # the leader stands in for the absent owner: ones after a loss, in the old place
    assert [(k.first, k.count, k.attempt, k.seq) for k in bench.look.pending()] == [(i, 1, 2, key.seq) for i in range(4)]
    assert bench.look.failed(number) == {}


def test_the_owner_is_left_to_resubmit_itself(bench: Bench) -> None:
    bench.submitter.enter()
    bench.lead()
    starter = bench.starter("n1")
    number = bench.submitter.submit(4, owner=bench.submitter.guid)
    starter.claim("n1")
    starter.close()
    bench.advance(2 * GRACE_S)
    failed = bench.look.failed(number)
    assert list(failed) == ["0.4.1"]
    assert failed["0.4.1"].reason is Reason.NODE_LOST
    assert failed["0.4.1"].node == "n1"
    assert bench.look.pending() == []
    bench.advance(31.0)
    assert bench.look.failed(number) == {}
    assert len(bench.look.pending()) == 4


def test_what_was_committed_before_the_end_stays_and_only_the_rest_fails(bench: Bench, starter: Starter) -> None:
    number = bench.submitter.submit(4)
    key = starter.claim("n1")
    starter.complete("n1", key, [1, 2])
    starter.close()
    bench.advance(2 * GRACE_S)
    assert sorted(bench.look.outcomes(number)) == [1, 2]
    assert [(k.first, k.count) for k in bench.look.pending()] == [(0, 1), (3, 1)]


def test_a_node_whose_key_is_revoked_is_fenced_however_often_it_registers(bench: Bench) -> None:
    bench.lead()
    starter, other = bench.starter("n1", key_id="k1"), bench.starter("n2", key_id="k2")
    number = bench.submitter.submit(4)
    starter.claim("n1")
    revocation = Revocation(key_id="k1", name="n1", role=Role.STARTER, by="ann", since_us=1)
    committed(bench.outside, membership.revoke(revocation))
    bench.advance(2 * GRACE_S)
    record = bench.look.node("n1")
    assert (record.state, record.reason) == (NodeState.FENCED, "its Starter's key was revoked")
    assert sum(key.count for key in bench.look.pending()) == 4
    assert bench.look.failed(number) == {}
    starter.register()
    bench.advance(2 * GRACE_S)
    assert (bench.look.node("n1").state, bench.look.node("n1").incarnation) == (NodeState.FENCED, 2)
    assert (bench.look.node("n2").state, bench.look.node("n2").guid) == (NodeState.UP, other.guid)


def test_a_starter_that_ended_with_nothing_claimed_is_down_at_once(bench: Bench) -> None:
    bench.lead()
    bench.starter("n1").close()
    bench.advance(0.01)
    record = bench.look.node("n1")
    assert (record.state, record.reason) == (NodeState.FENCED, "stopped")


def test_a_node_that_returns_within_the_grace_is_left_alone(bench: Bench, starter: Starter) -> None:
    bench.submitter.submit(4)
    starter.claim("n1")
    starter.close()
    bench.advance(GRACE_S / 2)
    again = bench.starter("n1")
    bench.advance(5 * GRACE_S)
    record = bench.look.node("n1")
    assert (record.state, record.guid, record.incarnation) == (NodeState.UP, again.guid, 2)
    assert len(bench.look.names(paths.running_node("n1"))) == 1, "what its older incarnation left is its own to clear"
    assert bench.events("node_fenced") == []


def test_all_virtual_nodes_of_a_starter_go_together_and_others_stay(bench: Bench) -> None:
    bench.lead()
    rack, other = bench.starter("r1", "r2", "r3"), bench.starter("n1")
    bench.submitter.submit(3, block=1)
    for node in rack.nodes:
        rack.claim(node)
    rack.close()
    bench.advance(2 * GRACE_S)
    assert {bench.look.node(name).state for name in rack.nodes} == {NodeState.FENCED}
    assert bench.look.node("n1").guid == other.guid
    assert bench.look.node("n1").state is NodeState.UP
    assert len(bench.look.pending()) == 3


def test_a_zombie_cannot_commit_after_the_fence(bench: Bench, starter: Starter) -> None:
    number = bench.submitter.submit(1)
    key = starter.claim("n1")
    bench.tree.end_session(starter.coordinator.session_id)
    starter.coordinator.expire()  # it comes back with a new session and does not know
    bench.advance(GRACE_S / 2)
    assert bench.look.node("n1").state is NodeState.UP
    bench.advance(GRACE_S)
    assert bench.look.node("n1").state is NodeState.FENCED
    assert [k.attempt for k in bench.look.pending()] == [2]
    with pytest.raises(AssertionError):  # its block is gone
        starter.complete("n1", key)
    assert bench.look.outcomes(number) == {}


def test_a_new_leader_finishes_what_the_old_one_fenced(bench: Bench) -> None:
    starter = bench.starter("n1")
    bench.submitter.submit(4)
    starter.claim("n1")
    starter.close()
    # fenced by a leader that died before its first FAIL

    dead = bench.connect()
    committed(dead, stand("dead", EpochRecord()))
    name = bench.look.names(paths.WATCHDOGS)[0]
    committed(dead, take_over(name, EpochRecord(epoch=1), None))
    committed(dead, fence(0, bench.look.node("n1"), 0, "lost"))
    dead.close()
    assert len(bench.look.names(paths.running_node("n1"))) == 1
    bench.lead()
    assert bench.look.names(paths.running_node("n1")) == []
    assert len(bench.look.pending()) == 4


def test_a_deposed_leader_commits_nothing_more(bench: Bench, starter: Starter) -> None:
    bench.submitter.submit(1)
    starter.claim("n1")
    bench.run()
    successor = bench.connect()
    # the successor takes over while the old one sleeps: only its fence tells

    committed(successor, stand("next", EpochRecord()))
    name = bench.look.names(paths.WATCHDOGS)[-1]
    committed(successor, take_over(name, EpochRecord(epoch=2), 0))
    starter.close()
    bench.advance(2 * GRACE_S)
    assert bench.look.node("n1").state is NodeState.UP
    assert bench.count(bench.metrics.fenced_writes) == 1
    assert bench.deposed == ["FENCE was refused by the leader fence"]
    bench.advance(100.0)
    assert bench.count(bench.metrics.fenced_writes) == 1


def test_orders_and_idle_marker_of_a_fenced_node_are_tidied_away(bench: Bench, starter: Starter) -> None:
    committed(bench.outside, order("n1", "x", InboxOrder(order=OrderKind.CANCEL, submission=1)))

    committed(starter.coordinator, mark_idle("n1", starter.versions["n1"], idle=True))
    starter.close()
    bench.advance(2 * GRACE_S)
    assert bench.look.names(paths.inbox_node("n1")) == []
    assert bench.look.names(paths.IDLE) == []


def test_more_orders_than_one_commit_takes_are_tidied_away_whatever_becomes_of_one_of_them(bench: Bench, starter: Starter) -> None:
    for number in range(400):
        committed(bench.outside, order("n1", f"{number:03d}", InboxOrder(order=OrderKind.CANCEL, submission=1)))
    stuck = f"{paths.inbox('n1', '007')}/below"
    committed(bench.outside, Multi(name="X", ops=(Create(stuck, b""),), proof=Holds(stuck, b"")))
    coordinator, tidied = bench.leader_coordinator, []
    commit = coordinator.commit

    def committing(multi: Multi, **options: Any) -> Any:
        if multi.name != "TIDY":
            return commit(multi, **options)
        tidied.append(multi)
        if len(tidied) == 1:  # it is not made, and nobody knows
            answer: Future[Outcome] = Future()
            answer.set_result(Unknown("the link fell"))
            return answer
        return commit(multi, **options)

    coordinator.commit = committing
    starter.close()
    bench.advance(GRACE_S + 5.0)
    assert bench.look.names(paths.inbox_node("n1")) == ["007"]
    sent = len(tidied)
    bench.advance(60.0)
    assert (sent, len(tidied)) == (5, 5), "lost, refused for one, 190, 190, the rest; then nothing more"


def test_work_of_a_submission_that_is_gone_is_discarded(bench: Bench, starter: Starter) -> None:
    number = bench.submitter.submit(1)
    starter.claim("n1")
    for path in (paths.gate, paths.tail, paths.done, paths.failed, paths.sub):
        committed(bench.outside, Multi(name="X", ops=(Delete(path(number)),), proof=Gone(path(number))))
    starter.close()
    bench.advance(2 * GRACE_S)
    assert bench.look.names(paths.running_node("n1")) == []


def test_losing_most_starters_at_once_is_requeued_slowly_and_told(bench: Bench) -> None:
    bench = Bench(ClusterSettings(grace_us=0, mass_requeue_per_s=2.0))
    leader = bench.lead()
    starters = [bench.starter(f"n{i}") for i in range(6)]
    bench.submitter.submit(6, block=1)
    for i, starter in enumerate(starters):
        starter.claim(f"n{i}")
    bench.run()
    for starter in starters[:5]:
        starter.close()
    bench.advance(0.4)
    fenced = sum(bench.look.node(f"n{i}").state is NodeState.FENCED for i in range(6))
    assert 1 <= fenced <= 4
    assert (leader.nodes.mass.lost, leader.nodes.mass.known) == (5, 6)
    assert len(bench.events("mass_loss_began")) == 1
    bench.advance(10.0)
    assert sum(bench.look.node(f"n{i}").state is NodeState.FENCED for i in range(6)) == 5
    assert len(bench.look.pending()) == 5
    bench.advance(20.0)  # nothing is left to requeue: still it ends, and `rmgr status` is healthy again
    assert (leader.nodes.mass, len(bench.events("mass_loss_ended"))) == (None, 1)


def test_starters_lost_together_are_fenced_together_except_the_one_that_comes_back_in_between() -> None:
    # 80 are gone; n7 registers again when the first FENCE is on its way: that multi loses, the others of it are fenced singly
    bench = Bench(ClusterSettings(grace_us=0, mass_loss_share=1.0))
    leader = bench.lead()
    doomed = [bench.starter(f"n{i}") for i in range(80)]
    others = [bench.starter(f"other{i}") for i in range(3)]
    bench.run()
    coordinator, fences, lists = leader.term.coordinator, [], []
    commit, children = coordinator.commit, coordinator.children

    def committing(multi: Multi, **options: Any) -> Any:
        if multi.name == "FENCE":
            fences.append(len(multi.ops) - 1)
            if len(fences) == 1:
                others.append(bench.starter("n7"))
        return commit(multi, **options)

    def listing(path: str, **options: Any) -> Any:
        lists.append(path)
        return children(path, **options)

    coordinator.commit, coordinator.children = committing, listing
    for starter in doomed:
        starter.close()
    bench.advance(5.0)
    assert [name for i in range(80) if bench.look.node(name := f"n{i}").state is NodeState.UP] == ["n7"]
    assert fences[:2] == [50, 30]
    assert fences[2:] == [1] * 30
    assert lists.count(paths.STARTERS) < 10, "not one for each loss"
    assert leader.nodes.alive == {starter.guid for starter in others}
    bench.close()


def test_records_that_are_too_large_for_one_commit_are_fenced_one_by_one() -> None:
    # 40 lost together, each with 12 KiB of features: one FENCE of all of them is more than a multi may be
    bench = Bench(ClusterSettings(grace_us=0, mass_loss_share=1.0))
    bench.lead()
    features = tuple(f"feature-{number}-{'x' * 180}" for number in range(60))
    doomed = []
    for i in range(40):
        starter = bench.starter(f"n{i}")
        found, record = bench.outside.get(paths.node(f"n{i}")).result(60), bench.look.node(f"n{i}")
        large = encode_record(replace(record, attributes=replace(record.attributes, features=features)))
        path = paths.node(f"n{i}")
        committed(bench.outside, Multi(name="LARGE", ops=(Set(path, large, found.version),), proof=Holds(path, large)))
        doomed.append(starter)
    bench.advance(1.0)
    for starter in doomed:
        starter.close()
    bench.advance(30.0)
    assert [f"n{i}" for i in range(40) if bench.look.node(f"n{i}").state is not NodeState.FENCED] == []
    bench.close()


def test_a_registration_under_a_new_name_is_seen(bench: Bench) -> None:
    leader = bench.lead()
    starter = bench.starter("n1")
    bench.run()
    assert list(leader.nodes.records) == ["n1"]
    assert leader.nodes.alive == {starter.guid}
    assert bench.count(bench.metrics.nodes_up) == 1


def test_lost_watches_are_made_up_for_by_the_resync_and_counted(bench: Bench) -> None:
    leader = bench.lead()
    starter = bench.starter("n1")
    bench.run()
    leader.term.coordinator.lose_watches()
    again = bench.starter("n1")
    starter.close()
    bench.advance(1.0)
    assert leader.nodes.records["n1"].guid == starter.guid
    bench.advance(31.0)
    assert leader.nodes.records["n1"].guid == again.guid
    assert leader.nodes.alive == {again.guid}
    assert bench.count(bench.metrics.resync_drift) >= 1


def test_a_fence_that_meets_a_registration_loses(bench: Bench, starter: Starter) -> None:
    bench.submitter.submit(1)
    starter.claim("n1")
    bench.run()

    version = starter.versions["n1"]
    record = bench.look.node("n1")
    bench.starter("n1")
    outcome = bench.leader_coordinator.commit(fence(0, record, version, "late")).result(60)
    assert isinstance(outcome, Conflict)
    assert replace(bench.look.node("n1"), guid="").state is NodeState.UP
