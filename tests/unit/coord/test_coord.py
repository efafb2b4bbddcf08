"""The protocol as data: names, multis, the resubmit rule, the view. Cited sections are of the protocol's specification."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from rmgr.coord.decisions.progress import Progress, overall_state, running_count, state_counts
from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.ops import place as place_ops
from rmgr.coord.ops import work as ops
from rmgr.coord.ops.leader import MAX_PAST, Again, GiveUp, pieces, rule
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import MAX_MULTI_BYTES, MAX_OPS, MAX_ZNODE_BYTES, Check, Create, Delete, Gone, Set
from rmgr.coord.protocol.records import decode_block, decode_failed, decode_fragment, decode_record, encode_block, encode_record
from rmgr.errors import WrongCluster
from rmgr.model.base import Capacity
from rmgr.model.block import MAX_TASKS, NO_SEQ, Allocation, BlockData, BlockKey, FailedRange, Fragment, Outcome, PastAttempt
from rmgr.model.node import NodeRecord, NodeState
from rmgr.model.states import Reason, State
from rmgr.model.submission import Command, Paged, Phase, Submission, Tail, Work

KEY = BlockKey(priority=5, seq=3, submission=42, first=10, count=6, attempt=1, cores=2, memory_mib=512)
DATA = BlockData(function="f" * 64, base=10, payloads=tuple(bytes([i]) for i in range(6)), stamp="s")
SUB = Submission(id=42, name="x", user="u", queue="default", work=Work.COMMAND, command=Command(argv=("true",)), submitted_us=1)


def created(multi, prefix):
    return {op.path: op.data for op in multi.ops if isinstance(op, Create) and op.path.startswith(prefix)}


# -- names ---------------------------------------------------------------------------------------------------------------


def test_block_names_say_everything_and_sort_by_priority():
    name = paths.block_name(KEY)
    assert paths.parse_block(name) == KEY
    assert name < paths.block_name(replace(KEY, priority=4))
    with pytest.raises(ValueError, match="not the name of a block"):
        paths.parse_block("nonsense")


def test_entries_carry_guid_and_sequence():
    name = "s-0123-abc-0000000042"
    assert (paths.entry_guid(name), paths.entry_sequence(name)) == ("0123-abc", 42)


# -- multis (section 3) -----------------------------------------------------------------------------------------------------


def test_submit_is_one_multi_with_the_nonce_as_its_proof():
    multi = ops.submit(SUB, ids_version=7, tail=Tail(next=6, complete=True), blocks=[(KEY, DATA)], make_bucket=True)
    assert multi.ops[0] == Set(paths.IDS, b"43", 7)
    assert (multi.proof.path, multi.proof.data) == (paths.nonce(SUB.user, SUB.nonce, SUB.signed_s), b"42")
    assert created(multi, "/nonces") == {multi.proof.path: b"42"}
    assert created(multi, "/tokens") == {}
    assert paths.gate(42) in created(multi, "/subs")
    (block,) = created(multi, "/queues/default/pending")
    assert block.endswith("-")
    assert next(op for op in multi.ops if op.path == block).sequence


def test_a_token_stands_for_the_submission_beside_its_nonce():
    multi = ops.submit(replace(SUB, token="t"), ids_version=7, tail=Tail(), blocks=[], make_bucket=False)
    assert created(multi, "/tokens") == {paths.token(ops.token_digest(SUB.user, "t")): b"42"}
    assert multi.proof.path.startswith("/nonces/")


def test_a_held_submission_has_no_gate_and_no_place_in_the_queue():
    record = replace(SUB, phase=Phase.HELD)
    multi = ops.submit(record, ids_version=0, tail=Tail(next=6), blocks=[(KEY, DATA)], make_bucket=False)
    assert paths.gate(42) not in created(multi, "/subs")
    (path,) = created(multi, "/queues/default/held")
    assert paths.parse_block(path.rpartition("/")[2]).seq == NO_SEQ


def test_a_claim_takes_the_head_and_leaves_the_rest_in_its_place():
    multi, mine = ops.claim("n1", 4, "default", KEY, DATA, 0, take=2, was_idle=True)
    assert multi.ops[:3] == (Check("/nodes/n1", 4), Check(paths.gate(42), 0), Delete(paths.pending_block("default", KEY), 0))
    running = created(multi, "/running/n1")
    rest = created(multi, "/queues/default/pending")
    assert [paths.parse_block(path.rpartition("/")[2]) for path in running] == [mine]
    (left,) = [paths.parse_block(path.rpartition("/")[2]) for path in rest]
    assert (mine.first, mine.count, left.first, left.count, left.seq) == (10, 2, 12, 4, KEY.seq)
    assert decode_block(next(iter(running.values()))).payloads == DATA.payloads[:2]
    assert decode_block(next(iter(rest.values()))).payloads == DATA.payloads[2:]
    assert multi.ops[-1] == Delete("/idle/n1")
    assert multi.guard == Check("/nodes/n1", 4)


def test_a_complete_of_a_part_marks_it_and_of_all_removes_the_block():
    fragment = Fragment(node="n1", outcomes=(Outcome(index=10),))
    part = ops.complete("n1", 4, KEY, msgspec.structs.replace(DATA, done=1), 2, fragment=fragment)
    assert isinstance(part.ops[1], Set)
    assert part.ops[1].version == 2
    whole = ops.complete("n1", 4, KEY, msgspec.structs.replace(DATA, done=0b111111), 2, fragment=fragment, go_idle=True)
    assert whole.ops[1] == Delete(paths.running_block("n1", KEY), 2)
    assert whole.ops[-1] == Create("/idle/n1")
    (done,) = created(whole, paths.fragment_prefix(42)).values()
    assert decode_fragment(done) == fragment


def test_a_split_gives_the_tail_back_under_the_same_seq():
    multi, rest = ops.give_back("n1", 4, "default", KEY, msgspec.structs.replace(DATA, done=0b1), 1, first=13)
    assert (rest.first, rest.count, rest.seq) == (13, 3, KEY.seq)
    kept = decode_block(multi.ops[1].data)
    assert kept.done == 0b111001, "the tail's bits are set: it is not this node's any more"
    assert decode_block(multi.ops[2].data).payloads == DATA.payloads[3:]
    nothing_left, _ = ops.give_back("n1", 4, "default", KEY, msgspec.structs.replace(DATA, done=0b111), 1, first=13)
    assert isinstance(nothing_left.ops[1], Delete)


def test_a_lost_block_leaves_a_failed_range_for_each_hole():
    block = msgspec.structs.replace(DATA, done=0b010010, incarnation=9)
    multi = leader_ops.fail(leader_ops.epoch_check(3), "n1", "default", KEY, encode_block(block), 5, reason=Reason.NODE_LOST, now_us=8)
    assert multi.ops[:2] == (Check("/epoch", 3), Delete(paths.running_block("n1", KEY), 5))
    failed = {path.rpartition("/")[2]: decode_failed(data) for path, data in created(multi, paths.failed(42)).items()}
    assert set(failed) == {"10.1.1", "12.2.1", "15.1.1"}
    assert decode_block(failed["12.2.1"].block).payloads == DATA.payloads[2:4]
    assert not failed["10.1.1"].alone


def failed_range(**changes):
    values = {
        "queue": "default", "seq": 3, "priority": 5, "cores": 2, "memory_mib": 512, "reason": Reason.NODE_LOST,
        "block": encode_block(DATA), "node": "n1", "alone": False,
    } | changes  # fmt: skip
    return FailedRange(**values)


def test_a_lost_range_waits_again_as_blocks_of_one_with_the_next_attempt():
    multi, final = leader_ops.resubmit(SUB, 10, 6, 1, failed_range(), 0, gate=True, max_losses=5)
    assert final is None
    blocks = {
        paths.parse_block(path.rpartition("/")[2]): decode_block(data) for path, data in created(multi, "/queues/default/pending").items()
    }
    assert [(key.first, key.count, key.attempt, key.seq) for key in blocks] == [(index, 1, 2, 3) for index in range(10, 16)]
    assert [data.payloads for data in blocks.values()] == [(payload,) for payload in DATA.payloads]
    assert all(data.past[0].node == "n1" and data.losses == 0 for data in blocks.values())


def test_a_range_whose_rule_says_no_ends_failed():
    record = failed_range(block=encode_block(msgspec.structs.replace(DATA, resubmit=False)))
    multi, final = leader_ops.resubmit(SUB, 10, 6, 1, record, 0, gate=True, max_losses=5)
    assert final.reason is Reason.NODE_LOST
    outcomes = [o for op in multi.ops if isinstance(op, Create) for o in decode_fragment(op.data).outcomes]
    assert [(o.index, o.state) for o in outcomes] == [(index, State.FAILED) for index in range(10, 16)]


def test_no_multi_of_a_full_block_is_over_the_caps():
    key = BlockKey(priority=0, seq=1, submission=42, first=0, count=MAX_TASKS, attempt=1, cores=1, memory_mib=0)
    data = BlockData(function="f" * 64, payloads=(b"x" * 45,) * MAX_TASKS, resubmit=False, done=int("01" * (MAX_TASKS // 2), 2))
    encoded = encode_block(data)
    multis = [
        ops.claim("n1", 1, "default", key, data, 0, take=100)[0],
        leader_ops.fail(leader_ops.epoch_check(1), "n1", "default", key, encoded, 0, reason=Reason.NODE_LOST, now_us=1),
        leader_ops.resubmit(SUB, 0, MAX_TASKS, 1, failed_range(block=encoded), 0, gate=True, max_losses=5)[0],
        leader_ops.resubmit(
            SUB, 0, 64, 1, failed_range(block=encode_block(msgspec.structs.replace(data, resubmit=True))), 0, gate=True, max_losses=5
        )[0],
    ]
    assert decode_block(encoded) == data
    for multi in multis:
        assert len(multi.ops) <= MAX_OPS, multi.name
        assert multi.size_bytes() <= MAX_MULTI_BYTES, multi.name
        assert max(len(getattr(op, "data", b"")) for op in multi.ops) <= MAX_ZNODE_BYTES, multi.name


def test_release_in_parts_keeps_the_rest_aside():
    multi = ops.bring_back("default", replace(KEY, seq=NO_SEQ), DATA, 0, take=1)
    (pending,) = created(multi, "/queues/default/pending")
    assert pending.endswith("-")
    (rest,) = created(multi, "/queues/default/held")
    assert paths.parse_block(rest.rpartition("/")[2]).first == 11


def test_taking_a_task_out_replaces_the_block_by_its_remainders():
    fragment = leader_ops.no_outcome(State.CANCELLED, Reason.USER_CANCEL, [12])
    multi = ops.take_out("default", KEY, DATA, 0, indices=[12], fragment=fragment)
    left = [paths.parse_block(path.rpartition("/")[2]) for path in created(multi, "/queues/default/pending")]
    assert [(key.first, key.count) for key in left] == [(10, 2), (13, 3)]


def test_a_fence_keeps_the_record_and_says_why():
    record = NodeRecord(node="n1", incarnation=3, state=NodeState.UP, guid="g", capacity=Capacity(cores=2, memory_bytes=0))
    multi = leader_ops.fence(9, record, 4, "no contact")
    fenced = decode_record(multi.ops[1].data, NodeRecord)
    assert (fenced.state, fenced.reason, fenced.incarnation) == (NodeState.FENCED, "no contact", 3)


def test_a_record_of_a_newer_release_is_refused():
    newer = encode_record(SUB).replace(b'"format":1', b'"format":2')
    with pytest.raises(WrongCluster, match="newer release"):
        decode_record(newer, Submission, "/subs/0/42")
    with pytest.raises(WrongCluster, match="cannot be read"):
        decode_record(b"{", Submission, "/subs/0/42")


# -- the rule (section 1) ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "block", "alone", "expected"),
    [
        (Reason.NODE_LOST, {}, False, Again),
        (Reason.NODE_LOST, {"losses": 3}, True, Again),
        (Reason.NODE_LOST, {"losses": 4}, True, Reason.POISON),
        (Reason.NODE_LOST, {"losses": 4}, False, Again),
        (Reason.NODE_LOST, {"resubmit": False}, True, Reason.NODE_LOST),
        (Reason.EXIT_CODE, {}, True, Reason.EXIT_CODE),
        (Reason.EXIT_CODE, {"retries": 2, "failures": 1}, True, Again),
        (Reason.EXIT_CODE, {"retries": 2, "failures": 2}, True, Reason.EXIT_CODE),
        (Reason.TIME_LIMIT, {"retries": 1, "resubmit": False}, True, Again),
        (Reason.BAD_OUTPUT, {"retries": 9}, True, Reason.BAD_OUTPUT),
        (Reason.USER_CANCEL, {"retries": 9}, True, Reason.USER_CANCEL),
    ],
)
def test_the_rule(reason, block, alone, expected):
    ruling = rule(reason, BlockData(**block), alone=alone, backoff_us=0, max_losses=5)
    assert ruling == GiveUp(expected) if isinstance(expected, Reason) else isinstance(ruling, expected)


def test_back_off_doubles_and_stops_doubling():
    delays = [
        rule(Reason.EXIT_CODE, BlockData(retries=99, failures=n), alone=True, backoff_us=5, max_losses=5).backoff_us
        for n in (0, 1, 2, 6, 50)
    ]
    assert delays == [5, 10, 20, 320, 320]


def test_a_task_that_loses_its_slot_again_and_again_waits_longer_each_time():
    def delays(backoff_us):
        blocks = [BlockData(losses=n) for n in range(4)]
        return [rule(Reason.WORKER_LOST, block, alone=True, backoff_us=backoff_us, max_losses=5).backoff_us for block in blocks]

    assert delays(0) == [0, 500_000, 1_000_000, 2_000_000]
    assert delays(7) == [7, 14, 28, 56]
    lost = rule(Reason.NODE_LOST, BlockData(losses=3), alone=True, backoff_us=7, max_losses=5)
    assert lost.backoff_us == 0, "its node is the one that failed"


def test_ranges_come_back_in_pieces_only_after_a_loss():
    assert pieces(0, 3, Reason.NODE_LOST) == [(0, 1), (1, 1), (2, 1)]
    assert pieces(0, 101, Reason.NODE_LOST) == [(0, 50), (50, 51)]
    assert pieces(0, 3, Reason.EXCEPTION) == [(0, 3)]


# -- the view (section 4) ----------------------------------------------------------------------------------------------------------


def progress_of(total, *fragments, complete=True):
    progress = Progress()
    progress.tail = Tail(next=total, complete=complete)
    for number, fragment in enumerate(fragments):
        progress.apply(number, fragment, fragment.outcomes)
    return progress


def test_the_first_outcome_of_a_task_is_the_one():
    progress = progress_of(
        2, Fragment(outcomes=(Outcome(index=1),)), Fragment(outcomes=(Outcome(index=1, state=State.FAILED), Outcome(index=0)))
    )
    assert progress.state_of(1) is State.COMPLETED
    assert (progress.ends.duplicates, progress.final, progress.is_ended) == (1, 2, True)


def test_fragments_are_applied_in_order_each_once():
    progress = progress_of(2, Fragment())
    with pytest.raises(ValueError, match="fragment 0 applied, 1 expected"):
        progress.apply(0, Fragment(), ())


def test_one_word_for_a_submission():
    failed = Fragment(outcomes=(Outcome(index=0, state=State.FAILED, exit_code=3), Outcome(index=1, exit_code=0)))
    assert overall_state(SUB, progress_of(2, failed), 0) is State.FAILED
    assert progress_of(2, failed).exit_code == 3
    assert overall_state(SUB, progress_of(3, failed), 0) is State.RUNNING
    assert overall_state(SUB, progress_of(2), 1) is State.RUNNING
    assert overall_state(SUB, progress_of(2), 0) is State.INITIAL
    assert overall_state(SUB, progress_of(2, failed, complete=False), 0) is State.RUNNING
    held = replace(SUB, phase=Phase.HELD)
    assert overall_state(held, progress_of(2), 0) is State.HELD
    assert state_counts(held, progress_of(5), 2)[State.HELD] == 3


def test_a_cancel_that_came_too_late_changes_nothing():
    cancelled = replace(SUB, phase=Phase.CANCELLED)
    assert overall_state(cancelled, progress_of(1, Fragment(outcomes=(Outcome(index=0),))), 0) is State.COMPLETED
    assert overall_state(cancelled, progress_of(0), 0) is State.CANCELLED


def test_paged_fragments_count_without_being_read():
    progress = Progress()
    progress.tail = Tail(next=10, complete=True)
    progress.skip_to(Paged(base=4, counts={"COMPLETED": 8}))
    progress.apply(4, Fragment(), (Outcome(index=8), Outcome(index=9)))
    assert progress.is_ended


def test_running_tasks_are_those_without_an_outcome():
    assert running_count([(KEY, 0b11), (KEY, 0)]) == 10


def test_a_promise_of_cores_names_the_running_block_and_changes_only_where_it_does() -> None:
    key = BlockKey(priority=0, seq=3, submission=5, first=0, count=1, attempt=1, cores=2, memory_mib=0)
    one, two = (place_ops.reserved([("5.0.1", cores)], 0) for cores in (1, 2))
    made = place_ops.reserve_ops(9, 0, {}, {"n1": two}, [("n1", key)])
    path = paths.reserved_of("n1", 9, 0)
    assert made == [Check(paths.running_block("n1", key)), Create(path, two)]
    assert place_ops.reserve_ops(9, 0, {"n1": two}, {"n1": two}, [("n1", key)]) == []
    assert place_ops.reserve_ops(9, 0, {"n1": two}, {"n1": one}) == [Delete(path), Create(path, one)]
    gone = place_ops.reserve(place_ops.reserve_ops(9, 0, {"n1": one}, {}))
    assert (gone.ops, gone.proof) == ((Delete(path),), Gone(path))
    assert paths.reserved_in(["r-9.0", "9.0.1", "r-09.0", "r-9", "r-9.0.1", "r-9.99999999999"]) == [("r-9.0", (9, 0))]
    assert paths.holds_in(["r-9.0", "9.0.1"]) == [("9.0.1", (9, 0, 1))], "which no release takes for a part of a job"


STOPPED = BlockKey(priority=5, seq=7, submission=42, first=3, count=1, attempt=2, cores=4, memory_mib=0)
PAST = PastAttempt(attempt=2, node="n1", reason=Reason.MIGRATED, error="drained")


def test_a_given_up_attempt_waits_again_in_its_place_as_the_next_one_and_nothing_is_counted() -> None:
    data = BlockData(
        function="f", retries=2, failures=1, losses=1, incarnation=9, started=1, claimed_us=5, stamp="old",
        past=(PastAttempt(1, "n9", Reason.NODE_LOST),), allocation=Allocation(shares=(("n1", 4),), threads=1),
    )  # fmt: skip
    multi, waiting = place_ops.stop("n1", 3, "batch", STOPPED, data, 6, past=PAST, stamp="new", orders=("g1",))
    fence, gone, made, order = multi.ops
    assert fence == Check(paths.node("n1"), 3) == multi.guard
    assert gone == Delete(paths.running_block("n1", STOPPED), 6)
    assert multi.proof == Gone(paths.running_block("n1", STOPPED))
    assert isinstance(made, Create)
    assert made.path == paths.pending_block("batch", waiting)
    assert (waiting.attempt, waiting.seq, waiting.priority, waiting.first) == (3, 7, 5, 3)
    again = decode_block(made.data)
    assert again == BlockData(function="f", retries=2, failures=1, losses=1, stamp="new", past=(*data.past, PAST))
    assert order == Delete(paths.inbox("n1", "g1"))


def test_the_past_stays_short_and_a_held_submission_is_set_aside() -> None:
    data = BlockData(past=tuple(PastAttempt(n, "n1", Reason.MIGRATED) for n in range(1, MAX_PAST + 1)))
    multi, waiting = place_ops.stop("n1", 3, "batch", STOPPED, data, 6, past=PAST, stamp="s", held=True)
    made = multi.ops[2]
    assert isinstance(made, Create)
    assert made.path == paths.held_block("batch", waiting)
    assert len(decode_block(made.data).past) == MAX_PAST
    assert decode_block(made.data).past[-1] == PAST


def test_what_is_done_is_not_given_up() -> None:
    with pytest.raises(ValueError, match="done"):
        place_ops.stop("n1", 3, "batch", STOPPED, BlockData(done=1), 6, past=PAST, stamp="s")
