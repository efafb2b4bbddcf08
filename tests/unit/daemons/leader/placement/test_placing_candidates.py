"""Migration moves only jobs that lose nothing by it.

A candidate that does not save its state in its grace goes on, and what the head was given of its nodes is taken back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from rmgr.coord.ops import place as place_ops
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Delete, Gone, Multi
from rmgr.coord.protocol.records import decode_block
from rmgr.model.block import BlockData, BlockKey, PastAttempt, StopKind, job_id
from rmgr.model.queue import ClusterSettings, Dispatch, PipelineSpec, QueueSpec
from rmgr.model.states import Reason
from rmgr.model.submission import FROM_START, Rigid
from rmgr.model.views import PlacedView
from rmgr.sched.job import Job
from tests.harness.leader_bench import committed
from tests.unit.daemons.leader.placement.test_moves import Cluster


class Grid(Cluster):
    """Three nodes of two cores under migration."""

    def __init__(self, **parameters: object) -> None:
        stage = {"policy": "migration", "parameters": {"suspend": "minimal", **parameters}}
        pipeline = PipelineSpec(partition="default", document=json.dumps({"stage": [stage]}))
        queues = (QueueSpec(name="default"), QueueSpec(name="batch", dispatch=Dispatch.PLACE))
        super().__init__(settings=ClusterSettings(queues=queues, pipelines=(pipeline,)))

    def job(self, processes: int, **rigid: Any) -> int:
        return self.submit(rigid=Rigid(processes=processes, **rigid))

    def starved(self, *followers: dict[str, Any]) -> tuple[int, list[int]]:
        """A head of five processes, and jobs of one that have passed it; two cores are free again, so that three of four must go."""
        first = self.job(2)
        head = self.job(5)
        passed = [self.job(1, **one) for one in followers]
        assert all(self.where(one) for one in passed)
        assert self.where(head) == {}
        self.end(first)
        return head, passed

    def asked(self) -> list[int]:
        """Jobs that were asked to save their state and to go."""
        return sorted(order.submission for _, _, order in self.orders() if "unbegun" not in order.extra)

    def give_up(self, *numbers: int) -> None:
        """They have saved their state: STOP, as Starters commit it of a job that a policy moves."""
        for node, guid, order in self.orders():
            if order.submission in numbers:
                key, data, version = self.block_of(node, order.submission)
                past = PastAttempt(attempt=key.attempt, node=node, reason=Reason.MIGRATED)
                fence = self.nodes.versions[node]
                moved = order.extra["why"] == "policy"
                multi, _ = place_ops.stop(node, fence, "batch", key, data, version, past=past, stamp=guid, moved=moved, orders=(guid,))
                committed(self.nodes.coordinator, multi)
        self.rest()

    def decline(self, number: int, **fields: object) -> None:
        """It has not saved its state in its grace, or has begun: NOTE."""
        for node, guid, order in self.orders():
            if order.submission == number:
                key, data, version = self.block_of(node, number)
                data = msgspec.structs.replace(data, story=("it has not saved its state within 30 s",), stamp=guid, **fields)
                committed(self.nodes.coordinator, place_ops.note(node, self.nodes.versions[node], key, data, version, orders=(guid,)))
        self.rest()

    def take_back(self) -> list[int]:
        """Jobs that were asked to give back what they had not begun on do so: RETURN. Which."""
        found: list[int] = []
        for node, guid, order in self.orders():
            if order.extra.get("unbegun") == "1" and order.submission in found:  # of a leader before: crossed off, its block is gone
                self._cross_off(node, guid)
            elif order.extra.get("unbegun") == "1":
                key, data, version = self.block_of(node, order.submission)
                multi, _ = ops.give_back(node, self.nodes.versions[node], "batch", key, data, version, first=key.first, name="RETURN")
                committed(self.nodes.coordinator, multi)
                self._cross_off(node, guid)
                found.append(order.submission)
        self.rest()
        return found

    def _cross_off(self, node: str, guid: str) -> None:
        path = paths.inbox(node, guid)
        committed(self.nodes.coordinator, Multi(name="CROSSED", ops=(Delete(path),), proof=Gone(path)))

    def block_of(self, node: str, number: int) -> tuple[BlockKey, BlockData, int]:
        key = self.key_of(node, number)
        found = self.bench.outside.get(paths.running_block(node, key)).result(60)
        return key, decode_block(found.data), found.version

    def scheduled(self, number: int) -> Job:
        """As the scheduler has it."""
        state = self.bench.leader.placer.state
        part, job = state.partitions["default"], job_id(number, 0)
        return part.jobs[job] if job in part.jobs else part.running[job].job

    def view(self, number: int) -> PlacedView:
        return self.bench.leader.placer.view().jobs[(number, 0)]


@pytest.fixture
def grid() -> Iterator[Grid]:
    made = Grid()
    try:
        yield made
    finally:
        made.bench.close()


SAVER = {"checkpoint": True}


def test_jobs_that_do_not_save_their_state_are_never_asked_and_the_head_says_so(grid: Grid) -> None:
    head, passed = grid.starved({}, {}, {"checkpoint": True, "restart": FROM_START}, SAVER)
    assert grid.asked() == []
    reason = grid.view(head).reason
    assert reason.startswith(f"first in the queue; jobs {', '.join(map(str, passed[:3]))} passed it and go on"), reason
    assert "nothing says that it saves its state" in grid.view(passed[0]).reason
    assert grid.view(passed[3]).reason == ""
    for number in passed[:2]:
        grid.end(number)
    assert grid.asked() == [passed[3]], "what is free and what it has are enough by now"
    grid.give_up(passed[3])
    assert sum(grid.where(head).values()) == 5


@pytest.mark.parametrize("one", [SAVER, {"checkpoint_every_us": 600_000_000}])
def test_who_says_that_it_saves_is_asked_and_goes_on_if_it_does_not_answer(grid: Grid, one: dict[str, Any]) -> None:
    head, passed = grid.starved(one, one, one, one)
    assert grid.asked() == passed[1:]
    assert {order.extra["unsaved"] for _, _, order in grid.orders()} == {"go-on"}
    assert sum(grid.where(head).values()) == 5


def test_one_answer_to_a_request_is_enough_whatever_it_was_submitted_with(grid: Grid) -> None:
    head, passed = grid.starved({}, {}, {}, {})
    for at, number in enumerate(passed):
        grid.ask(f"g{at}", StopKind.CHECKPOINT, number, attempt=1)
        grid.decline(number, answered=True)  # its state is stored, and it goes on
        grid.bench.advance(1)
        assert grid.asked() == (passed[:3] if at == 2 else []), "as soon as they are enough"
        if at == 2:
            break
    grid.give_up(*passed)
    assert sum(grid.where(head).values()) == 5
    assert [grid.scheduled(number).moves for number in passed] == [1, 1, 1, 0]
    assert [grid.scheduled(number).saves for number in passed] == [True, True, True, False]


@pytest.mark.parametrize("candidates", ["savers", "all"])
@pytest.mark.parametrize("fails_over", [False, True])
def test_a_candidate_that_does_not_save_goes_on_and_the_head_takes_another(candidates: str, fails_over: bool) -> None:
    grid = Grid(candidates=candidates)
    try:
        one = SAVER if candidates == "savers" else {}
        head, passed = grid.starved(one, one, one, one)
        assert grid.asked() == passed[1:], "the latest start first"
        grid.give_up(passed[1], passed[2])
        if fails_over:
            grid.another_leader()  # between the request and its answer
            assert grid.asked() == [passed[3]]
        grid.decline(passed[3])
        if fails_over:
            grid.another_leader()
        assert grid.take_back() == [head]
        assert grid.where(passed[3]), "it runs where it was"
        assert grid.asked() == [passed[0]], "the head takes another, and not the same again"
        assert sum(grid.where(head).values()) == 5
        grid.give_up(passed[0])
        assert grid.take_back() == []
        assert grid.scheduled(head).restarts == 0
        assert [grid.scheduled(number).moves for number in passed] == [1, 1, 1, 0]
        grid.end(head)
        assert all(grid.where(number) for number in passed)
    finally:
        grid.bench.close()


def test_a_job_that_has_begun_keeps_what_it_was_given(grid: Grid) -> None:
    """Its order to give it back comes too late: both go on, and the one that could not leave is counted when there is room."""
    head, passed = grid.starved({}, SAVER, SAVER, SAVER)
    grid.give_up(passed[1], passed[2])
    grid.decline(passed[3])
    grid.decline(head)  # it has begun, of all things
    assert sum(grid.where(head).values()) == 5
    assert grid.take_back() == []
    grid.end(passed[3])
    grid.end(head)
    assert [bool(grid.where(number)) for number in passed] == [True, True, True, False]


@pytest.mark.parametrize("fails_over", [False, True])
@pytest.mark.parametrize("own", [False, True], ids=["policy", "job"])
def test_a_job_is_moved_so_often_and_not_again(fails_over: bool, own: bool) -> None:
    grid = Grid(**({} if own else {"max_moves": 1}))
    try:
        saver = SAVER | ({"max_moves": 1} if own else {})
        head, (_, *passed) = grid.starved({}, saver, saver, saver)
        grid.give_up(*passed)
        if fails_over:
            grid.another_leader()
        assert [grid.scheduled(number).moves for number in passed] == [1, 1, 1]
        assert [grid.view(number).moves for number in passed] == [1, 1, 1]
        grid.end(head)
        assert all(grid.where(number) for number in passed)
        last = grid.job(6)
        grid.ask("g1", StopKind.MIGRATE, passed[0], attempt=2)  # people may
        grid.give_up(passed[0])
        assert grid.scheduled(passed[0]).moves == 1, "moves of policies are counted"
        if fails_over:
            grid.another_leader()
        assert grid.asked() == []
        assert grid.where(last) == {}
        told = [grid.view(number).reason for number in passed]
        assert all("it is not moved again: that was done 1 time, and 1 is the most" in reason for reason in told), told
    finally:
        grid.bench.close()
