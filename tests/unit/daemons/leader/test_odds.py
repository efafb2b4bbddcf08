"""What is odd affects only its own work: unreadable records, refused writes, unknown questions, tasks without a znode."""

from __future__ import annotations

import re
import time
import tracemalloc
import uuid
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest

from rmgr.coord.decisions import keeping
from rmgr.coord.decisions.progress import Codes
from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import MAX_ZNODE_BYTES, Committed, Conflict, Create, Delete, Exists, Gone, Multi, Set
from rmgr.coord.protocol.multi import Outcome as Answer
from rmgr.coord.protocol.records import decode_block, encode_fragment, encode_record
from rmgr.coord.views import answers
from rmgr.daemons.leader.placement.requests import UserRequest, answer_of
from rmgr.daemons.leader.submissions.sweep import CENSUS_S
from rmgr.errors import PermissionDenied, RmgrError
from rmgr.model.block import MAX_INDEX, NO_SEQ, BlockData, BlockKey, Fragment, Outcome, StopKind, StopRequest, TaskRanges, indices_of
from rmgr.model.node import NodeState
from rmgr.model.states import Reason, State
from rmgr.model.submission import Phase, Rigid
from rmgr.submitter.orders import cancel_tasks
from tests.harness.leader_bench import Bench, Starter, committed, placing

SETTINGS = placing()


def by_hand(bench: Bench, op: Create | Set) -> None:
    committed(bench.outside, Multi(name="ODD", ops=(op,), proof=Exists(op.path)))


def spoil(bench: Bench, number: int) -> None:
    """Its record is none any more."""
    by_hand(bench, Set(paths.sub(number), b"{]", -1))


def test_a_commit_that_zookeeper_refuses_to_the_leader_is_tried_again(bench: Bench) -> None:
    """While its secrets are rotated, say: it had waited for that answer until the next leader."""
    left = bench.refuse("commit", PermissionDenied("not allowed to this role"), lambda multi: multi.name in {"CLOSE", "FENCE"})
    bench.lead()
    number = bench.submitter.submit(2)
    bench.run_all(bench.starter("n1"))
    bench.advance(10)
    assert left == [0]
    assert bench.phase(number) is Phase.CLOSED


@pytest.mark.parametrize("what", ["no record", "no record of what runs", "a spoilt record"])
def test_jobs_are_placed_beside_what_belongs_to_nobody(bench: Bench, what: str) -> None:
    starter = bench.starter("n1")
    key = BlockKey(priority=0, seq=NO_SEQ, submission=999, first=0, count=1, attempt=1, cores=1, memory_mib=0)
    if what == "no record":
        by_hand(bench, Create(f"{paths.pending('batch')}/{paths.block_name(key)}", ops.encode_block(BlockData())))
    elif what == "no record of what runs":
        by_hand(bench, Create(paths.running_block("n1", key), ops.encode_block(BlockData())))
    else:
        spoil(bench, bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid()))
    number = bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid())
    bench.lead()
    bench.advance(3)
    assert number in bench.look.running("n1")
    starter.close()


def test_answers_do_not_wait_for_a_record_that_cannot_be_read(bench: Bench) -> None:
    bench.lead()
    numbers = [bench.submitter.submit(2) for _ in range(3)]
    bench.advance(1)
    spoil(bench, numbers[0])
    bench.leader.close()
    leader = bench.lead(bench.connect())
    bench.advance(5)
    assert leader.hurry()
    assert sorted(leader.snapshot().submissions) == numbers[1:]


def test_a_record_that_can_be_read_again_is_followed_again(bench: Bench) -> None:
    number = bench.submitter.submit(2)
    found = bench.outside.get(paths.sub(number)).result(60)
    spoil(bench, number)
    bench.lead()
    bench.advance(2)
    by_hand(bench, Set(paths.sub(number), found.data, -1))
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
        by_hand(bench, Create(path))
    by_hand(bench, Create(paths.running_block("n1", odd), b"\xc1"))
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
    by_hand(bench, Set(path, b"\xc1", -1))
    numbers = [bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid()) for _ in range(2)]
    bench.lead()
    bench.advance(3)
    assert bench.look.running("n1") == numbers
    assert [key.submission for key in bench.look.pending("batch")] == [bad]
    starter.close()


def test_a_block_that_comes_back_in_order_under_its_name_is_a_job_again(bench: Bench) -> None:
    starter = bench.starter("n1")
    number = bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid())
    path = f"{paths.pending('batch')}/{bench.look.names(paths.pending('batch'))[0]}"
    good = bench.outside.get(path).result(60)
    by_hand(bench, Set(path, b"\xc1", -1))
    bench.lead()
    bench.advance(3)
    assert bench.look.keys(paths.running_node("n1")) == []
    committed(bench.outside, Multi(name="HELD", ops=(Delete(path),), proof=Gone(path)))
    bench.advance(3)
    by_hand(bench, Create(path, good.data))
    bench.advance(3)
    assert bench.look.running("n1") == [number]
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

    bench.leader_coordinator.commit = slow
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
        by_hand(bench, Create(paths.fragment_prefix(odd), encode_fragment(fragment), sequence=True))
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
    assert led.look.running("n1") == [number]
    answer = led.look.read(paths.request("odd"), StopRequest)
    assert answer.answered
    assert answer.error


def test_an_answer_of_which_zookeeper_does_not_say_whether_it_stands_is_written_again(led: Bench) -> None:
    left = led.refuse("commit", PermissionDenied("not now"), lambda multi: multi.name == "ANSWER")
    committed(led.outside, leader_ops.ask_leader("mine", StopRequest(kind=StopKind.MIGRATE, submission=7, index=0)))
    led.advance(5)
    assert left == [0]
    assert led.look.read(paths.request("mine"), StopRequest).answered


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
    by_hand(led, Create(paths.request("noise"), b"{"))
    led.advance(120)
    assert led.look.names(paths.REQUESTS) == []


def test_an_answer_about_hundreds_of_jobs_fits_its_znode() -> None:
    parts = [UserRequest(guid="p", request=StopRequest(kind=StopKind.MIGRATE, submission=12345, index=at), end_s=0) for at in range(500)]
    for at, part in enumerate(parts):
        part.told, part.error = "it waits for its next start, " * 5, RmgrError("it goes on. " * 9) if at % 3 else None
    answer = answer_of(UserRequest(guid="all", request=StopRequest(kind=StopKind.VACATE, node="n1"), end_s=0, parts=parts))
    assert (len(answer.done), len(answer.left)) == (167, 333)
    assert len(encode_record(answer)) <= MAX_ZNODE_BYTES - 1024


def vanish(bench: Bench, path: str) -> None:
    """Somebody deletes a znode by hand."""
    committed(bench.outside, Multi(name="BY_HAND", ops=(Delete(path),), proof=Gone(path)))


def outcomes(bench: Bench, number: int) -> dict[int, tuple[State, Reason]]:
    return {index: (outcome.state, outcome.reason) for index, outcome in bench.look.outcomes(number).items()}


def test_missing_is_what_no_end_and_no_range_covers() -> None:
    assert keeping.missing_tasks(10, codes(1, 3), [(4, 2), (8, 100)]) == [0, 2, 6, 7]
    assert keeping.missing_tasks(3, codes(0, 1, 2), []) == []
    assert keeping.missing_tasks(2, codes(), [(0, 1)]) == [1]
    assert keeping.missing_tasks(9000, codes(*range(4096), 8191, 8193), [(4096, 4094), (8190, 1)]) == [8192, *range(8194, 9000)]


def test_what_is_missing_is_found_quickly_however_many_tasks_are_claimed_to_be_there():
    found = keeping.missing_tasks(1 << 26, codes((1 << 26) - 1), [(5, 1)])
    assert found[:6] == [0, 1, 2, 3, 4, 6]
    assert len(found) == keeping.MOST_MISSING


def codes(*indices: int) -> Codes:
    made = Codes()
    for index in indices:
        made[index] = 1
    return made


def test_a_waiting_block_that_was_deleted_is_found_explained_and_ended(bench: Bench) -> None:
    leader = bench.lead()
    number = bench.submitter.submit(12, block=4)
    bench.advance(1.0)
    _, gone, _ = bench.look.pending()
    vanish(bench, paths.pending_block("default", gone))
    bench.advance(CENSUS_S + 0.5)
    assert outcomes(bench, number) == {}, "one look is not enough"
    (why,) = answers.explain(leader.snapshot(), number, 5).why
    assert (why.what, why.detail.startswith("it is nowhere in ZooKeeper")) == ("nowhere", True)
    assert any(why.what == "nowhere" for why in answers.explain(leader.snapshot(), number, None).why)
    assert all(why.what != "nowhere" for why in answers.explain(leader.snapshot(), number, 0).why)
    bench.advance(CENSUS_S)
    lost = (State.FAILED, Reason.DATA_LOST)
    assert outcomes(bench, number) == dict.fromkeys(range(4, 8), lost)
    assert re.search("it was nowhere in ZooKeeper", bench.look.outcomes(number)[4].error)
    bench.advance(5 * CENSUS_S)
    assert outcomes(bench, number) == dict.fromkeys(range(4, 8), lost), "once"
    starter = bench.starter("n1")
    for _ in range(2):
        starter.complete("n1", starter.claim("n1"))
    bench.advance(1.0)
    assert bench.phase(number) is Phase.CLOSED


def test_work_that_moves_between_the_looks_is_left_alone(bench: Bench) -> None:
    bench.lead()
    starter = bench.starter("n1", "n2")
    number = bench.submitter.submit(40, block=4, retries=9, backoff_us=1)
    for at in range(30):
        node = ("n1", "n2")[at % 2]
        key = starter.claim(node, take=2)
        if at % 3:
            starter.fail(node, key, reason=Reason.EXIT_CODE, exit_code=1)
        else:
            starter.complete(node, key, [key.first])
            bench.advance(CENSUS_S / 3)
            starter.complete(node, key)
        bench.advance(CENSUS_S / 3)
    assert {state for state, _ in outcomes(bench, number).values()} == {State.COMPLETED}


def test_a_late_complete_of_a_claim_that_was_deleted_conflicts_and_one_result_is_committed(bench: Bench, starter: Starter) -> None:
    number = bench.submitter.submit(2, block=2)
    key = starter.claim("n1")
    path = paths.running_block("n1", key)
    found = bench.outside.get(path).result(60)
    late = late_complete(bench, starter, key)
    vanish(bench, path)
    bench.advance(2 * CENSUS_S + 1)
    assert outcomes(bench, number) == dict.fromkeys(range(2), (State.FAILED, Reason.DATA_LOST))
    assert isinstance(bench.outside.commit(late).result(60), Conflict)
    back = ops.put_back("n1", starter.versions["n1"], key, decode_block(found.data))
    assert isinstance(bench.outside.commit(back).result(60), Conflict), "what was ended stays ended"


def test_a_claim_that_was_put_back_in_time_goes_on(bench: Bench, starter: Starter) -> None:
    number = bench.submitter.submit(2, block=2)
    key = starter.claim("n1")
    path = paths.running_block("n1", key)
    found = bench.outside.get(path).result(60)
    vanish(bench, path)
    bench.advance(CENSUS_S + 0.5)
    back = ops.put_back("n1", starter.versions["n1"], key, decode_block(found.data))
    assert isinstance(bench.outside.commit(back).result(60), Committed)
    bench.advance(3 * CENSUS_S)
    assert outcomes(bench, number) == {}
    starter.complete("n1", key)
    bench.advance(1.0)
    assert {state for state, _ in outcomes(bench, number).values()} == {State.COMPLETED}


def test_an_end_conflicts_with_whatever_changed_since_the_moment_it_was_decided_at(bench: Bench) -> None:
    bench.lead()
    number = bench.submitter.submit(1)
    bench.advance(0.1)
    found = bench.outside.get(paths.sub(number)).result(60)
    epoch = bench.outside.get(paths.EPOCH).result(60)
    followed = bench.leader.submissions.followed[number].submission
    right = {"epoch_version": epoch.version, "version": found.version, "tail_version": 0, "failed_version": 0}
    for name in right:
        wrong = right | {name: right[name] + 1}
        multi = leader_ops.end_missing(followed, [0], stamp=uuid.uuid4().hex, **wrong)
        assert isinstance(bench.outside.commit(multi).result(60), Conflict), name
    assert isinstance(bench.outside.commit(leader_ops.end_missing(followed, [0], stamp="s", **right)).result(60), Committed)
    assert isinstance(bench.outside.commit(leader_ops.end_missing(followed, [0], stamp="t", **right)).result(60), Conflict), "a second doer"


def late_complete(bench: Bench, starter: Starter, key: BlockKey) -> Multi:
    """The COMPLETE of everything in a claimed block, built while it stands."""
    found = bench.outside.get(paths.running_block("n1", key)).result(60)
    data = msgspec.structs.replace(decode_block(found.data), done=(1 << key.count) - 1)
    fragment = Fragment(node="n1", attempt=1, outcomes=tuple(Outcome(index=index) for index in range(key.first, key.end)))
    return ops.complete("n1", starter.versions["n1"], key, data, found.version, fragment=fragment)
