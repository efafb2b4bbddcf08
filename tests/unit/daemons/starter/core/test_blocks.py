"""A claimed block: tasks move from ready to live to arrived to done, and every commit carries the right bytes."""

from __future__ import annotations

import hashlib
import math
import pickle
import random
from dataclasses import replace

import msgspec
import pytest

from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import MAX_ZNODE_BYTES, Check, Create, Delete
from rmgr.coord.protocol.records import decode_block, decode_failed, decode_fragment, decode_outcomes, encode_block, encode_failed
from rmgr.coord.seal import block_statement, seal_blocks
from rmgr.daemons.starter.core.blocks import GATHER_S, VERDICT_CHANGES, BlockVerdict, ClaimedBlock, CompletePart, failed_record, split_share
from rmgr.model.block import MAX_INLINE_OUTCOMES, BlockData, BlockKey, Outcome
from rmgr.model.states import Reason, State


def a_block(count: int = 4, *, first: int = 10, data: BlockData | None = None, **changes: object) -> ClaimedBlock:
    key = BlockKey(priority=0, seq=5, submission=42, first=first, count=count, attempt=1, cores=1, memory_mib=0)
    payloads = tuple(b"p%d" % index for index in range(first, first + count))
    given = data or BlockData(function="f", payloads=payloads, base=first, claimed_us=1000)
    return ClaimedBlock.claimed("n1", "default", key, msgspec.structs.replace(given, **changes))


def ended(index: int, **more: object) -> Outcome:
    return Outcome(index=index, elapsed_us=5, **more)


def begun(count: int, *finished: int, **more: object) -> ClaimedBlock:
    """A block whose tasks all run, or are at their end."""
    block = a_block(count, **more)
    block.hand_out(count)
    finish(block, list(finished))
    return block


def key_of(create: object) -> BlockKey:
    return paths.parse_block(create.path.rpartition("/")[2])


def finish(block: ClaimedBlock, indices: list[int], **more: object) -> None:
    block.live -= len(indices)
    block.settle([ended(index, **more) for index in indices], 1.0)


def test_tasks_are_handed_out_in_order_and_come_back_first() -> None:
    block = a_block()
    assert block.hand_out(3) == [10, 11, 12]
    block.put_back([12, 11])
    assert list(block.ready) == [11, 12, 13]
    assert block.live == 1
    assert block.payload(12) == b"p12"


def test_a_part_sets_the_mask_and_drops_arguments_that_nobody_needs() -> None:
    block = a_block()
    block.hand_out(3)
    finish(block, [10, 12])
    part = block.take_part()
    multi = block.complete(part, 7, "stamp")
    assert multi.ops[0].path == paths.node("n1")
    data = decode_block(multi.ops[1].data)
    assert data.done == 0b0101
    assert (data.base, data.payloads) == (11, (b"p11", b"p12", b"p13"))
    assert data.started == 3
    assert [outcome.index for outcome in decode_fragment(multi.ops[2].data).outcomes] == [10, 12]


def test_the_last_part_deletes_the_block() -> None:
    block = begun(2, 10)
    block.complete(block.take_part(), 7, "s1")
    finish(block, [11])
    assert block.due_s(task_s=None, slots=2) is None, "one multi of a block at a time"
    assert isinstance(block.committed(), CompletePart)
    assert not block.is_over
    assert block.due_s(task_s=None, slots=2) == -math.inf
    multi = block.complete(block.take_part(), 7, "s2")
    assert multi.ops[1] == Delete(paths.running_block("n1", block.key), 1)
    block.committed()
    assert block.is_over


def test_what_a_refused_commit_carried_goes_with_the_next_one() -> None:
    block = begun(3, 10)
    block.complete(block.take_part(), 7, "s1")
    finish(block, [11])
    block.refused(2.0)
    part = block.take_part()
    assert part.indices == [10, 11]
    assert block.version == 0


def test_after_an_unknown_fate_the_mask_tells_what_was_committed() -> None:
    block = begun(3, 10)
    block.complete(block.take_part(), 7, "s1")
    block.reread(msgspec.structs.replace(block.data, done=1, incarnation=9), 4, 2.0)
    assert (block.sending, block.version, block.arrived) == (None, 4, [])
    finish(block, [11])
    block.complete(block.take_part(), 7, "s1")
    block.reread(block.data, 5, 2.0)
    assert [outcome.index for outcome in block.arrived] == [11]


def test_outcomes_wait_only_for_a_block_that_ends_within_the_gathering_time() -> None:
    block = begun(100, 10)
    assert block.due_s(task_s=None, slots=2) == -math.inf
    assert block.due_s(task_s=1.0, slots=2) == -math.inf
    assert block.due_s(task_s=0.0001, slots=2) == pytest.approx(1.0 + GATHER_S)
    finish(block, list(range(11, 110)))
    assert block.due_s(task_s=0.0001, slots=2) == -math.inf


def test_a_tail_is_given_back_once_and_another_one_later() -> None:
    block = a_block(8)
    block.hand_out(2)
    assert block.tail(100) == 6
    multi = block.give_back(3, 7, "s1")
    kept, rest = multi.ops[1], multi.ops[2]
    assert decode_block(kept.data).done == 0b11100000
    key = key_of(rest)
    assert (key.first, key.count, key.seq) == (15, 3, 5)
    assert decode_block(rest.data).payloads == (b"p15", b"p16", b"p17")
    block.committed()
    again = block.give_back(2, 7, "s2")
    key = key_of(again.ops[2])
    assert (key.first, key.count) == (13, 2)
    block.refused(1.0)
    assert list(block.ready) == [12, 13, 14]
    finish(block, [10, 11])
    assert block.complete(block.take_part(), 7, "s3").ops[1].data == encode_block(
        msgspec.structs.replace(block.data, done=0b11100011, started=2, stamp="s3", base=12, payloads=block.data.payloads[2:])
    )


def test_a_block_given_back_whole_is_over() -> None:
    block = a_block(3)
    multi = block.give_back(3, 7, "s", name="RETURN")
    assert isinstance(multi.ops[1], Delete)
    block.committed()
    assert block.is_over


def test_only_the_last_run_of_waiting_tasks_can_be_given_back() -> None:
    block = begun(6)
    block.put_back([11, 13, 14])
    assert block.tail(10) == 2
    multi = block.give_back(2, 7, "s")
    key = key_of(multi.ops[2])
    assert (key.first, key.count) == (13, 2)
    block.committed()
    assert block.tail(10) == 1
    block.give_back(1, 7, "s")
    block.refused(1.0)
    block.put_back([12])
    assert (list(block.ready), block.tail(10), block.tail(1)) == ([11, 12], 2, 1)


def test_a_little_too_much_for_one_fragment_goes_in_several() -> None:
    block = begun(100)
    finish(block, list(range(10, 110)), value=b"x" * 200)
    carried = []
    while block.arrived:
        part = block.take_part()
        assert not part.row
        multi = block.complete(part, 7, "s")
        assert all(len(getattr(op, "data", b"")) <= MAX_ZNODE_BYTES for op in multi.ops)
        carried += part.indices
        block.committed()
    assert carried == list(range(10, 110))


def test_far_too_much_for_a_fragment_becomes_a_row_that_says_what_is_in_it() -> None:
    block = begun(100)
    finish(block, list(range(10, 109)), value=b"x" * 1000)
    finish(block, [109], state=State.FAILED, reason=Reason.EXIT_CODE)
    part = block.take_part()
    assert len(decode_outcomes(part.row_bytes)) == 100
    fragment = block.complete(part, 7, "s").ops[2]
    decoded = decode_fragment(fragment.data)
    assert (decoded.row, decoded.outcomes) == (keys.fragment(42, hashlib.sha256(part.row_bytes).hexdigest()), ())
    assert decoded.ranges == ((State.COMPLETED, 10, 99), (State.FAILED, 109, 1))
    assert len(part.row_bytes) > MAX_INLINE_OUTCOMES


def test_a_whole_block_of_small_results_is_one_fragment_and_reads_back_as_it_ended() -> None:
    count = 256
    block = a_block(count, first=100_000)
    block.hand_out(count)
    block.live -= count
    small = [
        Outcome(index, State.COMPLETED, 150_000, 1_000, pickle.dumps(index, 5), True, 1_000) for index in range(100_000, 100_000 + count)
    ]
    unusual = msgspec.structs.replace(small[7], log=(b"it spoke", b""), attempt=3)
    ends = [*small[:7], unusual, *small[8:]]
    block.settle(ends, 1.0)
    part = block.take_part()
    assert not block.arrived, "nothing is left for a second commit"
    fragment = block.complete(part, 7, "s").ops[2]
    assert list(decode_fragment(fragment.data).outcomes) == ends
    assert list(part.outcomes) == ends


def test_failed_attempts_carry_their_own_arguments_and_counters() -> None:
    block = begun(3, retries=2)
    record = failed_record(block, 11, reason=Reason.EXIT_CODE, node="n1")
    data = decode_block(record.block)
    assert (data.payloads, data.base, data.done, data.retries) == ((b"p11",), 11, 0, 2)
    assert (record.seq, record.alone) == (5, False)
    assert len(encode_failed(record)) < MAX_ZNODE_BYTES
    block.live -= 1
    block.settle_failed(11, record, 1.0)
    multi = block.complete(block.take_part(), 7, "s")
    created = multi.ops[2]
    assert created.path == paths.failed_range(42, 11, 1, 1)
    assert decode_failed(created.data) == record


def test_arguments_in_a_row_stay_named_when_the_attempt_failed() -> None:
    block = a_block(3, data=BlockData(row="args/1", base=8, claimed_us=1))
    assert block.payloads is None
    block.payloads = (b"8", b"9", b"10", b"11", b"12")
    assert block.payload(10) == b"10"
    data = decode_block(failed_record(block, 11, reason=Reason.EXIT_CODE).block)
    assert (data.row, data.base, data.payloads) == ("args/1", 8, ())


def test_an_adopted_block_runs_only_what_has_no_outcome() -> None:
    block = a_block(6, done=0b110011)
    assert list(block.ready) == [12, 13]
    assert block.tail(9) == 2


def test_half_of_what_waits_goes_to_the_hungry_never_below_one() -> None:
    assert [split_share(ready, 1) for ready in (0, 1, 2, 3, 10)] == [0, 1, 1, 1, 5]
    assert split_share(10, 0) == 0


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_order_each_task_is_committed_or_given_back_exactly_once(seed: int) -> None:
    rng = random.Random(seed)
    block = a_block(rng.choice([1, 3, 17, 64, 256]), first=rng.choice([0, 100]))
    settled: list[int] = []
    returned: list[int] = []
    live: list[int] = []
    while not block.is_over:
        act = rng.randrange(7)
        if act == 0:
            live += block.hand_out(rng.randint(1, 9))
        elif act == 1 and live:
            rng.shuffle(live)
            back, live = live[:2], live[2:]
            block.put_back(back)
        elif act == 2 and live:
            finish(block, [live.pop()])
        elif act == 3 and block.sending is None and (block.arrived or block.failed):
            part = block.take_part()
            block.complete(part, 1, "s")
        elif act == 4 and block.sending is None and block.tail(5) and rng.random() < 0.6:
            block.give_back(block.tail(5), 1, "s")
        elif act == 5 and block.sending is not None:
            sent = block.committed()
            if isinstance(sent, CompletePart):
                settled += sent.indices
            else:
                returned += range(sent.first, sent.end)
        elif act == 6 and block.sending is not None:
            block.refused(1.0)
    assert sorted(settled + returned) == list(range(block.key.first, block.key.end))
    assert (block.unfinished, block.arrived) == (0, [])


@pytest.mark.parametrize("seed", range(10))
def test_whatever_a_node_commits_of_a_signed_block_is_recognised_again(seed: int) -> None:
    """Outcomes in any order, failures, tails given back: what others may have to run later is still what was signed."""
    rng = random.Random(seed)
    key = BlockKey(priority=0, seq=5, submission=42, first=10, count=60, attempt=1, cores=1, memory_mib=0)
    told = {"cluster_id": "c", "user": "ann", "spec": b"s"}
    payloads = tuple(bytes([index]) * rng.choice((1, 40)) for index in range(60))
    bare = BlockData(function="f", payloads=payloads, base=10)
    [(_, data)] = seal_blocks([(key, bare)], key_id="k", not_after_s=9, sign=bytes, **told)
    block = ClaimedBlock.claimed("n1", "q", key, data)

    def recognised(part_key: BlockKey, part: BlockData) -> None:
        statement = block_statement(part_key, part, seal=part.seal, payloads=part.payloads, base=part.base, **told)
        assert statement == part.seal.signature
        for index in range(part_key.first, part_key.end):
            assert part.payloads[index - part.base] == payloads[index - 10]

    while not block.is_over:
        live = block.hand_out(rng.randint(1, 9)) if block.ready else []
        block.live -= len(live)
        for index in live:
            if rng.random() < 0.2:
                record = failed_record(block, index, reason=Reason.EXIT_CODE)
                recognised(replace(key, first=index, count=1), decode_block(record.block))
                block.settle_failed(index, record, 0.0)
            else:
                block.settle([Outcome(index=index)], 0.0)
        count = block.tail(rng.randint(1, 4)) if rng.random() < 0.4 else 0
        if count:
            multi = block.give_back(count, 7, "s")
            created = next(op for op in multi.ops if isinstance(op, Create))
            recognised(key_of(created), decode_block(created.data))
        elif block.arrived or block.failed:
            multi = block.complete(block.take_part(), 7, "s")
        else:
            continue
        block.committed()
        if not block.is_over:  # the leader may have to fail what is left
            failed = leader_ops.fail(Check("/e", 1), "n1", "q", key, encode_block(block.data), 1, reason=Reason.NODE_LOST, now_us=1)
            for op in failed.ops:
                if isinstance(op, Create):
                    first, count, _ = paths.parse_failed_range(op.path.rpartition("/")[2])
                    recognised(replace(key, first=first, count=count), decode_block(decode_failed(op.data).block))


@pytest.mark.parametrize("before", BlockVerdict)
@pytest.mark.parametrize("after", BlockVerdict)
def test_a_verdict_changes_as_its_table_says_and_else_stays_with_its_reason(before: BlockVerdict, after: BlockVerdict) -> None:
    block = a_block()
    block.verdict, block.why = before, "as before"
    is_legal = after in VERDICT_CHANGES[before]
    assert block.judge(after, "now") is is_legal
    assert (block.verdict, block.why) == ((after, "now") if is_legal else (before, "as before"))


def test_no_block_that_may_not_run_ever_may_again() -> None:
    assert not any(BlockVerdict.MAY_RUN in changes for changes in VERDICT_CHANGES.values())


def test_what_was_turned_away_and_cannot_go_back_is_refused_and_all_else_tries_again() -> None:
    for verdict in (BlockVerdict.TURNED_AWAY, BlockVerdict.REVOKED, BlockVerdict.BARRED):
        block = a_block()
        assert block.judge(verdict, "it does not fit")
        assert block.goes_back
        block.give_back(4, 7, "stamp", name="RETURN")
        block.way_back_barred(5.0)
        block.refused(5.0)
        assert block.goes_back is (verdict is not BlockVerdict.TURNED_AWAY)
        assert not block.may_return(5.1)
        assert block.may_return(7.0)
        if verdict is BlockVerdict.TURNED_AWAY:
            assert (block.verdict, block.why) == (BlockVerdict.REFUSED, "it does not fit")
