"""A leader applies changed terms of a submission: names of blocks, orders to nodes, jobs that are placed anew."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from rmgr.coord.decisions.changing import Change, Doer, amended
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Conflict
from rmgr.coord.protocol.records import decode_block, decode_record
from rmgr.daemons.leader.submissions.sweep import CENSUS_S, Sweeper
from rmgr.errors import NotFound, UsageError
from rmgr.model.base.resources import MIB, Request
from rmgr.model.base.states import Reason
from rmgr.model.cluster.node import InboxOrder, OrderKind
from rmgr.model.cluster.queue import ClusterSettings, Dispatch, PipelineSpec, QueueSpec
from rmgr.model.tasks.submission import Phase, Rigid, Terms
from rmgr.procedures.control import update_submission
from tests.harness.leader_bench import Bench, Starter, committed


def update(bench: Bench, number: int, terms: Terms, doer: Doer = Doer(name="u", now_us=1)) -> None:  # noqa: B008
    found = bench.submitter.coordinator.get(paths.sub(number)).result(60)
    record = bench.look.sub(number)
    assert found is not None
    assert record is not None
    change = amended(record, terms, doer)
    assert isinstance(change, Change), change
    committed(bench.submitter.coordinator, ops.update(change.record, version=found.version, gate=change.gate))


def told(bench: Bench, node: str = "n1") -> list[InboxOrder]:
    orders = []
    for name in bench.look.names(paths.inbox_node(node)):
        found = bench.submitter.coordinator.get(paths.inbox(node, name)).result(60)
        orders.append(decode_record(found.data, InboxOrder))
    return orders


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


# -- placed jobs -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def placing() -> Iterator[Bench]:
    spec = PipelineSpec(partition="default", document=json.dumps({"stage": [{"policy": "easy"}]}))
    one = Bench(ClusterSettings(queues=(QueueSpec(name="default"), QueueSpec(name="batch", dispatch=Dispatch.PLACE)), pipelines=(spec,)))
    yield one
    one.close()


def test_policies_see_the_new_terms_and_what_is_placed_was_decided_by_them(placing: Bench) -> None:
    """Behind a head that is promised both cores, a job of two hours is backfilled once it takes no more than half of one."""
    bench = placing
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
    assert placer.state is not None
    # What runs, and gets less time: what waits for it is promised an earlier start.
    before_us = placer.view().jobs
    update(bench, running, Terms(time_limit_us=hour_us // 2))
    bench.advance(5)
    assert placer.view().jobs != before_us
    assert node.nodes


def test_a_placed_job_that_an_operator_has_raised_is_placed(placing: Bench) -> None:
    bench = placing
    bench.lead()
    fields: dict[str, Any] = {"queue": "batch", "rigid": Rigid(), "request": Request(time_limit_us=3_600_000_000)}
    number = bench.submitter.submit(1, block=1, phase=Phase.HELD, reason=Reason.USER_HOLD, **fields)
    update(bench, number, Terms(priority=7), Doer(name="root", is_operator=True, now_us=1))
    bench.advance(2)
    assert [(key.user, key.priority) for key in bench.look.held("batch")] == [(paths.RAISED, 7)]
    bench.submitter.change(number, gate=True, phase=Phase.OPEN, reason="")
    bench.starter("n1")
    bench.advance(5)
    assert [key.submission for key in bench.look.keys(paths.running_node("n1"))] == [number]


# -- other cores, another queue ----------------------------------------------------------------------------------------------------


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
    assert found is not None
    assert record is not None
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
        patch.setattr("rmgr.procedures.control._MOST_WAITING", 149)
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
    fields: dict[str, Any] = {"queue": "batch", "rigid": Rigid(), "request": Request(time_limit_us=3_600_000_000)}
    number = bench.submitter.submit(3, block=1, **fields)
    update(bench, number, Terms(queue="large"))
    bench.starter("n1", partition="batch")
    bench.lead()
    bench.advance(5.0)
    assert bench.look.pending("batch") == []
    assert [key.first for key in bench.look.pending("large")] == [0, 1, 2]
    assert bench.look.keys(paths.running_node("n1")) == []
    bench.starter("n2", partition="large")
    bench.advance(5.0)
    assert len(bench.look.keys(paths.running_node("n2"))) >= 1


def test_a_job_that_runs_although_its_record_names_another_partition_keeps_its_nodes(queues: Bench) -> None:
    """A client of its user's making changes the queue of what runs: that hurts nobody else."""
    bench = queues
    fields: dict[str, Any] = {"queue": "batch", "rigid": Rigid(), "request": Request(time_limit_us=3_600_000_000)}
    bench.starter("n1", partition="batch")
    bench.starter("n2", partition="large")
    bench.lead()
    number = bench.submitter.submit(1, block=1, **fields)
    bench.advance(5.0)
    assert len(bench.look.keys(paths.running_node("n1"))) == 1
    update(bench, number, Terms(queue="large"))
    bench.advance(5.0)
    bench.lead()
    others = [bench.submitter.submit(1, block=1, **(fields | {"queue": queue})) for queue in ("batch", "large")]
    bench.advance(5.0)
    assert [key.submission for key in bench.look.keys(paths.running_node("n1"))] == [number, others[0]]
    assert [key.submission for key in bench.look.keys(paths.running_node("n2"))] == [others[1]]


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
