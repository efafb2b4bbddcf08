"""SUBMIT, ENQUEUE and HAND of a client, built anew: how a submission comes into being and grows.

Beside what their builders say: the number is the one that is due, tasks follow one another without a gap, blocks ask for what their
submission asks for, and carry nothing that only a Starter or the leader gives.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Check, Create, Multi, Set
from rmgr.coord.rebuild.parts import Known, SubmissionFacts, fragments, guid_of, op_at, require, submission_of, unlike, waiting_block
from rmgr.coord.validity.records import decode
from rmgr.model.base.states import Reason, State
from rmgr.model.cluster.queue import Dispatch
from rmgr.model.tasks.block import MAX_TASKS, BlockData, BlockKey
from rmgr.model.tasks.outcome import Fragment, Outcome
from rmgr.model.tasks.submission import Phase, Submission, Tail

#: Characters of what makes the bytes of a tail unique.
_STAMP = 64
_ROW = re.compile(r"args/(\d{10})/\d{10}/[0-9a-f]{64}", re.ASCII)
_OUTCOME_ENDS = {(State.CANCELLED, Reason.USER_CANCEL), (State.FAILED, Reason.OUTPUT_EXISTS)}
_FRAGMENT = Fragment(attempt=0)
#: Fields of a block that its user decides; the others are at their defaults until somebody has taken it.
_OF_USER = frozenset({"function", "resubmit", "retries", "base", "payloads", "row", "keyed", "serial", "seal"})
_UNTOUCHED = tuple(
    (name, default)
    for name, default in zip(BlockData.__struct_fields__, BlockData.__struct_defaults__, strict=True)
    if name not in _OF_USER
)


def submit(multi: Multi, known: Known) -> tuple[Multi, Submission, Tail]:
    """SUBMIT, with its record and its tail. Cost: 40 us, 5 us a block, 0.1 us an argument."""
    ids = op_at(multi, 0, Set)
    require(ids.version >= 0, multi, 0, "it says when it has read the number")
    number = decode(ids.data, int, paths.IDS) - 1
    require(ids.path == paths.IDS and number == known.number(ids.version), multi, 0, "that is not the number that is due")
    at = 3 if op_at(multi, 2, Create).path.startswith(f"{paths.TOKENS}/") else 2
    make_bucket = op_at(multi, at, Create).path == paths.subs_bucket(number)
    at += make_bucket
    record = _new_record(multi, at, number)
    told = decode(op_at(multi, at + 1, Create).data, Tail, paths.tail(number))
    start = at + (5 if record.phase is Phase.OPEN else 4)
    facts = SubmissionFacts.of(record)
    blocks, aside = _blocks(multi, start, len(multi.ops), number, facts)
    if blocks:
        held = record.phase is not Phase.OPEN or facts.is_capped
        require(aside is held, multi, start, "tasks of what is held, or has a cap, wait aside, others in the queue")
    _check_indices(multi, at + 1, 0, told.next, blocks, ())
    reigns = ((0, guid_of(record.owner, multi, at)),) if record.owner else ()
    built = ops.submit(
        record,
        ids_version=ids.version,
        tail=replace(Tail(next=told.next, complete=told.complete, reigns=reigns), newer=told.newer),
        blocks=blocks,
        make_bucket=make_bucket,
        held=aside if blocks else None,
    )
    return built, record, told


def enqueue(multi: Multi, known: Known) -> tuple[Multi, int, Tail]:
    """ENQUEUE, with the submission and its new tail. Cost: 20 us, 5 us a block, 0.1 us an argument."""
    number, facts, tail, old, version = _grown(multi, known)
    stop = next((at for at in range(1, len(multi.ops)) if not multi.ops[at].path.startswith(f"{paths.QUEUES}/")), len(multi.ops))
    blocks, aside = _blocks(multi, 1, stop, number, facts)
    require(aside or not blocks or not facts.is_capped, multi, 1, "tasks of what has a cap wait aside")
    ended = fragments(multi, stop)
    for at, fragment in enumerate(ended, stop):
        _check_ended(multi, at, fragment)
    _check_indices(multi, 0, old.next, tail.next, blocks, ended)
    built = ops.enqueue(number, facts.queue, tail=tail, tail_version=version, blocks=blocks, held=aside, ended=ended)
    return built, number, tail


def hand(multi: Multi, known: Known) -> tuple[Multi, int, Tail]:
    """HAND, with the submission and its new tail. No allocation goes with it: who has one was placed, by the leader alone."""
    number, facts, tail, old, version = _grown(multi, known)
    require(not (facts.is_placed or facts.is_capped or facts.has_resources), multi, 0, "only the leader gives such tasks to a node")
    queue = known.settings().queue(facts.queue)
    require(queue is not None and queue.dispatch is Dispatch.PULL, multi, 0, "only the leader gives tasks of that queue to a node")
    require(queue is None or queue.state != "stopped", multi, 0, "its queue is stopped")
    fence, made = op_at(multi, 2, Check), op_at(multi, 4, Create)
    root, _, node = fence.path.rpartition("/")
    require(root == paths.NODES and node != "" and fence.version >= 0, multi, 2, "it names no node as it was read")
    try:
        key = paths.parse_block(made.path.rpartition("/")[2])
    except ValueError:
        raise unlike(multi, 4, "it is not the name of a block") from None
    data = decode(made.data, BlockData, made.path)
    _check_block(multi, 4, key, data, number, facts)
    _check_indices(multi, 0, old.next, tail.next, [(key, data)], ())
    built = ops.hand(number, tail=tail, tail_version=version, key=key, data=data, node=node, node_version=fence.version)
    return built, number, tail


# -- parts ------------------------------------------------------------------------------------------------------------------------


def _new_record(multi: Multi, at: int, number: int) -> Submission:
    made = op_at(multi, at, Create)
    record = decode(made.data, Submission, made.path)
    require(record.id == number, multi, at, "it is the record of another number")
    fresh = not record.closed_us and not record.reason_detail and not record.by and not record.by_us and record.nonce != ""
    match record.phase, record.reason:
        case (Phase.OPEN, ""):
            fresh = fresh and not record.after
        case (Phase.HELD, Reason.USER_HOLD):
            pass
        case (Phase.HELD, Reason.DEPENDENCY):
            fresh = fresh and bool(record.after)
        case _:
            fresh = False
    require(fresh, multi, at, "a new submission is open, held, or waits for others")
    return record


def _grown(multi: Multi, known: Known) -> tuple[int, SubmissionFacts, Tail, Tail, int]:
    """(number, facts, new tail, old tail, its version) of what begins with a change of the tail."""
    first = op_at(multi, 0, Set)
    number = submission_of(first.path, multi)
    require(first.version >= 0, multi, 0, "it says which tail it has read")
    facts = known.facts(number)
    tail = decode(first.data, Tail, first.path)
    old = known.tail(number, first.version)
    require(not old.complete, multi, 0, "that submission is complete")
    require(tail == replace(old, next=tail.next, complete=tail.complete, enqueued=tail.enqueued), multi, 0, "the tail says whose it is")
    require(len(tail.enqueued) <= _STAMP, multi, 0, "its stamp is too long")
    return number, facts, tail, old, first.version


def _blocks(multi: Multi, start: int, stop: int, number: int, facts: SubmissionFacts) -> tuple[list[ops.Block], bool]:
    """New blocks of operations start..stop - 1, all of them set aside or none."""
    found: list[ops.Block] = []
    aside: bool | None = None
    for at in range(start, stop):
        made = op_at(multi, at, Create)
        queue, held, key = waiting_block(made.path, multi, at, sequence=made.sequence)
        require(queue == facts.queue, multi, at, f"its submission is in queue {facts.queue}")
        require(aside is None or held is aside, multi, at, "some wait in the queue, and some aside")
        aside = held
        data = decode(made.data, BlockData, made.path)
        _check_block(multi, at, key, data, number, facts)
        found.append((key, data))
    return found, bool(aside)


def _check_block(multi: Multi, at: int, key: BlockKey, data: BlockData, number: int, facts: SubmissionFacts) -> None:
    """A block that nobody has claimed yet, as its submission says."""
    require(key.submission == number, multi, at, "it is a block of another submission")
    asked = (key.priority, key.cores, key.memory_mib, key.attempt)
    told = (facts.priority, facts.cores, facts.memory_mib, 1)
    require(key.user in ("", paths.user_tag(facts.user)), multi, at, "its name has the tag of another user")
    require(asked == told, multi, at, f"(priority, cores, MiB, attempt) are {asked}, its submission says {told}")
    require(1 <= key.count <= (1 if facts.is_placed else MAX_TASKS), multi, at, f"{key.count} is no number of tasks in a block")
    for name, untouched in _UNTOUCHED:
        if getattr(data, name) != untouched:
            raise unlike(multi, at, f"{name} is said by the leader and by Starters alone, and of a new block not yet")
    if data.payloads:
        require(not data.row and data.base == key.first and len(data.payloads) == key.count, multi, at, "an argument for each task")
    else:
        require(0 <= data.base <= key.first, multi, at, "it begins before its tasks")
    if data.row:
        match = _ROW.fullmatch(data.row)
        require(match is not None and int(match[1]) == number, multi, at, "its arguments are in no row of its submission")


def _check_ended(multi: Multi, at: int, fragment: Fragment) -> None:
    """Outcomes that a Submitter decides: tasks that never ran, cancelled or refused."""
    require(
        msgspec.structs.replace(fragment, outcomes=()) == _FRAGMENT and bool(fragment.outcomes),
        multi,
        at,
        "only a node tells what became of tasks that ran",
    )
    for outcome in fragment.outcomes:
        require((outcome.state, outcome.reason) in _OUTCOME_ENDS, multi, at, "only tasks that were cancelled, or refused, end unsent")
        told = Outcome(index=outcome.index, state=outcome.state, reason=outcome.reason, error=outcome.error)
        require(outcome == told and len(outcome.error) <= 200, multi, at, "they never ran")


def _check_indices(multi: Multi, at: int, start: int, end: int, blocks: Sequence[ops.Block], ended: Sequence[Fragment]) -> None:
    """Each task from `start` to `end` is in one block, or has one outcome."""
    spans = [(key.first, key.end) for key, _ in blocks]
    spans += [(outcome.index, outcome.index + 1) for fragment in ended for outcome in fragment.outcomes]
    due = start
    for first, stop in sorted(spans) if ended else spans:
        require(first == due, multi, at, f"task {due} is the next")
        due = stop
    require(due == end, multi, at, f"the tail says {end}, its tasks end at {due}")
