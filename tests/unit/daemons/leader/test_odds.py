"""A record that the leader cannot read, a refused write or an unknown question affects only the work it belongs to."""

from __future__ import annotations

import time
import tracemalloc
from concurrent.futures import Future
from typing import Any

import pytest

from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import MAX_ZNODE_BYTES, Create, Delete, Exists, Gone, Multi, Set
from rmgr.coord.protocol.multi import Outcome as Answer
from rmgr.coord.protocol.records import decode_record, encode_fragment, encode_record
from rmgr.daemons.leader.placement.requests import UserRequest, answer_of
from rmgr.errors import PermissionDenied, RmgrError
from rmgr.model.base.states import Reason, State
from rmgr.model.cluster.node import NodeState
from rmgr.model.cluster.queue import ClusterSettings, Dispatch, QueueSpec
from rmgr.model.tasks.block import MAX_INDEX, NO_SEQ, BlockData, BlockKey, Fragment, Outcome, StopKind, StopRequest, TaskRanges, indices_of
from rmgr.model.tasks.submission import Phase, Rigid
from rmgr.procedures.control import cancel_tasks
from tests.harness.leader_bench import Bench, committed

SETTINGS = ClusterSettings(queues=(QueueSpec(name="default"), QueueSpec(name="batch", dispatch=Dispatch.PLACE)))


def spoil(bench: Bench, number: int) -> None:
    """Its record is none any more."""
    path = paths.sub(number)
    committed(bench.outside, Multi(name="SPOIL", ops=(Set(path, b"{]", -1),), proof=Exists(path)))


def orphan(bench: Bench, path: str) -> None:
    committed(bench.outside, Multi(name="ORPHAN", ops=(Create(path, ops.encode_block(BlockData())),), proof=Exists(path)))


def test_a_commit_that_zookeeper_refuses_to_the_leader_is_tried_again(bench: Bench) -> None:
    """While its secrets are rotated, say: it had waited for that answer until the next leader."""
    refusals, commit = [2], bench.leader_coordinator.commit

    def refusing(multi: Multi, **options: Any) -> Future[Answer]:
        if multi.name in {"CLOSE", "FENCE"} and refusals[0]:
            refusals[0] -= 1
            future: Future[Answer] = Future()
            future.set_exception(PermissionDenied(f"{multi.name} is not allowed to this role"))
            return future
        return commit(multi, **options)

    bench.leader_coordinator.commit = refusing  # type: ignore[method-assign]
    bench.lead()
    number = bench.submitter.submit(2)
    bench.run_all(bench.starter("n1"))
    bench.advance(10)
    assert refusals == [0]
    assert bench.phase(number) is Phase.CLOSED


@pytest.mark.parametrize("what", ["no record", "no record of what runs", "a spoilt record"])
def test_jobs_are_placed_beside_what_belongs_to_nobody(bench: Bench, what: str) -> None:
    starter = bench.starter("n1")
    key = BlockKey(priority=0, seq=NO_SEQ, submission=999, first=0, count=1, attempt=1, cores=1, memory_mib=0)
    if what == "no record":
        orphan(bench, f"{paths.pending('batch')}/{paths.block_name(key)}")
    elif what == "no record of what runs":
        orphan(bench, paths.running_block("n1", key))
    else:
        spoil(bench, bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid()))
    number = bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid())
    bench.lead()
    bench.advance(3)
    assert number in [key.submission for key in bench.look.keys(paths.running_node("n1"))]
    starter.close()


def test_answers_do_not_wait_for_a_record_that_cannot_be_read(bench: Bench) -> None:
    bench.lead()
    numbers = [bench.submitter.submit(2) for _ in range(3)]
    bench.advance(1)
    spoil(bench, numbers[0])
    assert bench.leader is not None
    bench.leader.close()
    leader = bench.lead(bench.connect())
    bench.advance(5)
    assert leader.hurry()
    assert sorted(leader.snapshot().submissions) == numbers[1:]


def test_a_record_that_can_be_read_again_is_followed_again(bench: Bench) -> None:
    number = bench.submitter.submit(2)
    found = bench.outside.get(paths.sub(number)).result(60)
    assert found is not None
    spoil(bench, number)
    bench.lead()
    bench.advance(2)
    committed(bench.outside, Multi(name="MEND", ops=(Set(paths.sub(number), found.data, -1),), proof=Exists("/ids")))
    bench.run_all(bench.starter("n1"))
    bench.advance(5)
    assert bench.phase(number) is Phase.CLOSED


def test_names_that_are_none_stop_nothing(bench: Bench) -> None:
    """Submitters may create there: whoever hands work to a node, and who submits."""
    starter = bench.starter("n1")
    number = bench.submitter.submit(4)
    starter.claim("n1")
    odd = BlockKey(priority=0, seq=1, submission=number, first=0, count=1, attempt=7, cores=1, memory_mib=0)
    for path in (f"{paths.running_node('n1')}/garbage", f"{paths.SUBS}/garbage", f"{paths.subs_bucket(number)}/garbage"):
        committed(bench.outside, Multi(name="ODD", ops=(Create(path),), proof=Exists(path)))
    path = paths.running_block("n1", odd)
    committed(bench.outside, Multi(name="ODD", ops=(Create(path, b"\xc1"),), proof=Exists(path)))
    bench.lead()
    starter.close()
    bench.advance(30)
    assert bench.look.node("n1").state is NodeState.FENCED
    other = bench.starter("n2")
    bench.run_all(other, "n2")
    bench.advance(5)
    assert len(bench.look.outcomes(number)) == 4
    assert bench.phase(number) is Phase.CLOSED


def test_a_block_that_is_none_is_no_job(bench: Bench) -> None:
    starter = bench.starter("n1")
    bad = bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid())
    path = f"{paths.pending('batch')}/{bench.look.names(paths.pending('batch'))[0]}"
    committed(bench.outside, Multi(name="ODD", ops=(Set(path, b"\xc1", -1),), proof=Exists(path)))
    numbers = [bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid()) for _ in range(2)]
    bench.lead()
    bench.advance(3)
    assert [key.submission for key in bench.look.keys(paths.running_node("n1"))] == numbers
    assert [key.submission for key in bench.look.pending("batch")] == [bad]
    starter.close()


def test_a_block_that_comes_back_in_order_under_its_name_is_a_job_again(bench: Bench) -> None:
    starter = bench.starter("n1")
    number = bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid())
    path = f"{paths.pending('batch')}/{bench.look.names(paths.pending('batch'))[0]}"
    good = bench.outside.get(path).result(60)
    assert good is not None
    committed(bench.outside, Multi(name="ODD", ops=(Set(path, b"\xc1", -1),), proof=Exists(path)))
    bench.lead()
    bench.advance(3)
    assert bench.look.keys(paths.running_node("n1")) == []
    committed(bench.outside, Multi(name="HELD", ops=(Delete(path),), proof=Gone(path)))
    bench.advance(3)
    committed(bench.outside, Multi(name="BACK", ops=(Create(path, good.data),), proof=Exists(path)))
    bench.advance(3)
    assert [key.submission for key in bench.look.keys(paths.running_node("n1"))] == [number]
    starter.close()


def test_an_answer_to_a_commit_that_is_late_does_not_undo_what_was_read_meanwhile(bench: Bench) -> None:
    # the leader breaks it off; before the answer comes (the link was away), its user changes it once more
    commit, late = bench.leader_coordinator.commit, []

    def slow(multi: Multi, **options: Any) -> Future[Answer]:
        answer = commit(multi, **options)
        if multi.name != "MAX_FAILS":
            return answer
        late.append((Future[Answer](), answer))
        return late[0][0]

    bench.leader_coordinator.commit = slow  # type: ignore[method-assign]
    bench.lead()
    starter = bench.starter("n1")
    number = bench.submitter.submit(2, block=1, max_fails=0)
    failing, running = starter.claim("n1"), starter.claim("n1")
    starter.complete("n1", failing, state=State.FAILED, reason=Reason.EXIT_CODE)
    bench.advance(1)
    bench.submitter.change(number, gate=None, name="other")
    bench.advance(1)
    (held, answer), *others = late
    assert not others
    held.set_result(answer.result(60))
    bench.advance(1)
    starter.complete("n1", running, state=State.CANCELLED, reason=Reason.MAX_FAILS)
    bench.advance(60)
    assert bench.phase(number) is Phase.CLOSED


def test_outcomes_of_tasks_that_cannot_be_fill_no_memory(bench: Bench) -> None:
    """Submitters may write outcomes of what never ran."""
    bench.lead()
    odd, number = bench.submitter.submit(2), bench.submitter.submit(2)
    for fragment in (
        Fragment(node="", outcomes=(Outcome(index=1 << 42, state=State.CANCELLED),)),
        Fragment(node="", row="out/1/x", ranges=((State.CANCELLED, 0, 1 << 60), (State.CANCELLED, 1 << 61, 1 << 62))),
    ):
        path = paths.fragment_prefix(odd)
        committed(bench.outside, Multi(name="ODD", ops=(Create(path, encode_fragment(fragment), sequence=True),), proof=Exists(path)))
    bench.run_all(bench.starter("n1"))
    bench.advance(5)
    assert bench.phase(number) is Phase.CLOSED


@pytest.fixture
def led(bench: Bench) -> Bench:
    bench.lead()
    bench.starter("n1")
    bench.advance(1)
    return bench


@pytest.mark.parametrize("index", [-1, MAX_INDEX, 1 << 62])
def test_a_task_that_cannot_be_is_refused_and_jobs_are_placed(led: Bench, index: int) -> None:
    committed(led.outside, leader_ops.ask_leader("odd", StopRequest(kind=StopKind.MIGRATE, submission=7, index=index)))
    number = led.submitter.submit(1, block=1, queue="batch", rigid=Rigid())
    led.advance(1)
    assert [key.submission for key in led.look.keys(paths.running_node("n1"))] == [number]
    found = led.outside.get(paths.request("odd")).result(60)
    answer = decode_record(found.data, StopRequest)
    assert answer.answered
    assert answer.error


def test_an_answer_of_which_zookeeper_does_not_say_whether_it_stands_is_written_again(led: Bench) -> None:
    commit, left = led.leader_coordinator.commit, [2]

    def committing(multi: Multi, **options: Any) -> Future[Any]:
        if multi.name != "ANSWER" or not left[0]:
            return commit(multi, **options)
        left[0] -= 1
        answer: Future[Any] = Future()
        answer.set_exception(PermissionDenied("not now"))
        return answer

    led.leader_coordinator.commit = committing  # type: ignore[method-assign]
    committed(led.outside, leader_ops.ask_leader("mine", StopRequest(kind=StopKind.MIGRATE, submission=7, index=0)))
    led.advance(5)
    found = led.outside.get(paths.request("mine")).result(60)
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


def test_who_asks_for_millions_of_tasks_of_which_few_wait_costs_little(led: Bench) -> None:
    number = led.submitter.submit(8, block=8)
    tracemalloc.start()
    try:
        end_s = time.monotonic() + 60
        ranges = [(2, 1 << 26), *((at, 1 << 25) for at in range(2, 200)), (-5, 3), (2, -7)]
        ended = cancel_tasks(led.outside, number, ranges, running=False, deadline_s=end_s)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert ended == ((2, 6),)


def test_what_is_no_request_is_cleared_away(led: Bench) -> None:
    path = paths.request("noise")
    committed(led.outside, Multi(name="ASK", ops=(Create(path, b"{"),), proof=Exists(path)))
    led.advance(120)
    assert led.look.names(paths.REQUESTS) == []


def test_an_answer_about_hundreds_of_jobs_fits_its_znode() -> None:
    parts = [UserRequest(guid="p", request=StopRequest(kind=StopKind.MIGRATE, submission=12345, index=at), end_s=0) for at in range(500)]
    for at, part in enumerate(parts):
        part.told, part.error = "it waits for its next start, " * 5, RmgrError("it goes on. " * 9) if at % 3 else None
    answer = answer_of(UserRequest(guid="all", request=StopRequest(kind=StopKind.VACATE, node="n1"), end_s=0, parts=parts))
    assert (len(answer.done), len(answer.left)) == (167, 333)
    assert len(encode_record(answer)) <= MAX_ZNODE_BYTES - 1024
