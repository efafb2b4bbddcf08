"""Requests that no client of ours would write: the leader answers them, keeps its memory, and does everybody else's work."""

from __future__ import annotations

import time
import tracemalloc
from concurrent.futures import Future
from typing import Any

import pytest

from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import MAX_ZNODE_BYTES, Create, Exists, Multi
from rmgr.coord.protocol.records import decode_record, encode_record
from rmgr.daemons.leader.placement.requests import UserRequest, answer_of
from rmgr.errors import PermissionDenied, RmgrError
from rmgr.model.cluster.queue import ClusterSettings, Dispatch, QueueSpec
from rmgr.model.tasks.block import MAX_INDEX, StopKind, StopRequest, TaskRanges, indices_of
from rmgr.model.tasks.submission import Rigid
from rmgr.procedures.control import cancel_tasks
from tests.harness.leader_bench import Bench, committed

SETTINGS = ClusterSettings(queues=(QueueSpec(name="default"), QueueSpec(name="batch", dispatch=Dispatch.PLACE)))


@pytest.fixture
def bench(bench: Bench) -> Bench:
    bench.lead()
    bench.starter("n1")
    bench.advance(1)
    return bench


@pytest.mark.parametrize("index", [-1, MAX_INDEX, 1 << 62])
def test_a_task_that_cannot_be_is_refused_and_jobs_are_placed(bench: Bench, index: int) -> None:
    committed(bench.outside, leader_ops.ask_leader("odd", StopRequest(kind=StopKind.MIGRATE, submission=7, index=index)))
    number = bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid())
    bench.advance(1)
    assert [key.submission for key in bench.look.keys(paths.running_node("n1"))] == [number]
    found = bench.outside.get(paths.request("odd")).result(60)
    answer = decode_record(found.data, StopRequest)
    assert answer.answered
    assert answer.error


def test_an_answer_of_which_zookeeper_does_not_say_whether_it_stands_is_written_again(bench: Bench) -> None:
    commit, left = bench.leader_coordinator.commit, [2]

    def committing(multi: Multi, **options: Any) -> Future[Any]:
        if multi.name != "ANSWER" or not left[0]:
            return commit(multi, **options)
        left[0] -= 1
        answer: Future[Any] = Future()
        answer.set_exception(PermissionDenied("not now"))
        return answer

    bench.leader_coordinator.commit = committing  # type: ignore[method-assign]
    committed(bench.outside, leader_ops.ask_leader("mine", StopRequest(kind=StopKind.MIGRATE, submission=7, index=0)))
    bench.advance(5)
    found = bench.outside.get(paths.request("mine")).result(60)
    assert found is not None
    assert decode_record(found.data, StopRequest).answered


def test_ranges_become_indices() -> None:
    assert indices_of([(3, 3), (9, 1)], 100) == [3, 4, 5, 9]
    assert indices_of([(9, 5), (3, 3), (4, 2)], 11) == [3, 4, 5, 9, 10]
    assert indices_of([(-2, 4), (7, 0), (5, -3)], 9) == [0, 1]


@pytest.mark.parametrize("end", [3, 9, 11, 100])
def test_ranges_are_looked_up_without_their_tasks(end: int) -> None:
    ranges = [(9, 5), (3, 3), (4, 2), (6, 1), (-2, 3), (20, 1), (7, 0), (5, -3)]
    found, told = TaskRanges(ranges, end), indices_of(ranges, end)
    assert found.count == len(told)
    for first in range(22):
        for stop in range(first + 1, 23):
            assert found.within(first, stop) == [index for index in told if first <= index < stop]
            assert found.covers(first, stop) == set(told).issuperset(range(first, stop))


def test_who_asks_for_millions_of_tasks_of_which_few_wait_costs_little(bench: Bench) -> None:
    number = bench.submitter.submit(8, block=8)
    tracemalloc.start()
    try:
        end_s = time.monotonic() + 60
        ranges = [(2, 1 << 26), *((at, 1 << 25) for at in range(2, 200)), (-5, 3), (2, -7)]
        ended = cancel_tasks(bench.outside, number, ranges, running=False, deadline_s=end_s)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert ended == ((2, 6),)


def test_what_is_no_request_is_cleared_away(bench: Bench) -> None:
    path = paths.request("noise")
    committed(bench.outside, Multi(name="ASK", ops=(Create(path, b"{"),), proof=Exists(path)))
    bench.advance(120)
    assert bench.look.names(paths.REQUESTS) == []


def test_an_answer_about_hundreds_of_jobs_fits_its_znode() -> None:
    parts = [UserRequest(guid="p", request=StopRequest(kind=StopKind.MIGRATE, submission=12345, index=at), end_s=0) for at in range(500)]
    for at, part in enumerate(parts):
        part.told, part.error = "it waits for its next start, " * 5, RmgrError("it goes on. " * 9) if at % 3 else None
    answer = answer_of(UserRequest(guid="all", request=StopRequest(kind=StopKind.VACATE, node="n1"), end_s=0, parts=parts))
    assert (len(answer.done), len(answer.left)) == (167, 333)
    assert len(encode_record(answer)) <= MAX_ZNODE_BYTES - 1024
