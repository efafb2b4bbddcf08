"""What a client of a gateway may submit, and how a submission may grow: the one place for every rule, for any client.

Records and blocks were checked field by field when they were decoded (`coord/validity`). This file checks them together: a new
submission belongs to its sender, its tasks follow one another without a gap, its blocks request what the submission requests, and contain
nothing that only a Starter or the leader writes. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from rmgr.coord.decisions.rights import Person
from rmgr.coord.ops.work import Block
from rmgr.coord.protocol import paths
from rmgr.errors import InvalidRecord, PermissionDenied
from rmgr.model.base.resources import MIB
from rmgr.model.base.states import Reason, State
from rmgr.model.tasks.block import MAX_TASKS, BlockData, Fragment, Outcome
from rmgr.model.tasks.submission import Phase, Submission, Tail, as_signed
from rmgr.submitter.port import Growth, Order

#: Most characters of the stamp that makes a tail unique.
_STAMP = 64
_ROW = re.compile(r"args/(\d{10})/\d{10}/[0-9a-f]{64}", re.ASCII)
_OUTCOME_ENDS = {(State.CANCELLED, Reason.USER_CANCEL), (State.FAILED, Reason.OUTPUT_EXISTS)}
_FRAGMENT = Fragment(attempt=0)
_WHY_CHARACTERS = 300
#: Fields of a block that its user decides; the others have their defaults until a Starter or the leader has handled the block.
_OF_USER = frozenset({"function", "resubmit", "retries", "base", "payloads", "row", "keyed", "serial", "seal"})
_UNTOUCHED = tuple(
    (name, default)
    for name, default in zip(BlockData.__struct_fields__, BlockData.__struct_defaults__, strict=True)
    if name not in _OF_USER
)


def check_order(order: Order, person: Person) -> None:
    """Checks a new submission. Raises: PermissionDenied for another user's name; InvalidRecord with the fault. Cost: 5 us, 2 us a block."""
    record = order.draft
    if not person.is_open and record.user != person.name:
        raise PermissionDenied(f"{person.name} cannot submit for {record.user}", hint="work belongs to whoever submits it")
    _require(bool(record.nonce), "a nonce is drawn for each submission")
    fresh = not (record.closed_us or record.reason_detail or record.by or record.by_us or record.changes or record.was or record.owner)
    match record.phase, record.reason:
        case (Phase.OPEN, ""):
            fresh = fresh and not record.after
        case (Phase.HELD, Reason.USER_HOLD):
            pass
        case (Phase.HELD, Reason.DEPENDENCY):
            fresh = fresh and bool(record.after)
        case _:
            fresh = False
    _require(fresh, "a new submission is open, held, or waits for others")
    held = record.phase is not Phase.OPEN or bool(record.max_running)
    _require(order.held in (None, held), "tasks of what is held, or has a cap, wait aside, others in the queue")
    _check_blocks(order.blocks, 0, record)
    _check_indices(0, order.tasks if order.blocks else 0, order.blocks, ())


def check_growth(growth: Growth, submission: Submission, tail: Tail) -> None:
    """Checks the growth of a kept submission. tail: the current one. Raises InvalidRecord. Cost: as `check_order`."""
    new = growth.tail
    if new == tail:
        return
    _require(len(new.enqueued) <= _STAMP, "its stamp is too long")
    _require(not tail.complete, f"submission {submission.id} is complete")
    _require(new == replace(tail, next=new.next, complete=new.complete, enqueued=new.enqueued), "the tail says whose it is")
    _check_blocks(growth.blocks, submission.id, submission)
    for fragment in growth.ended:
        _check_ended(fragment)
    _check_indices(tail.next, new.next, growth.blocks, growth.ended)


def _check_blocks(blocks: Sequence[Block], number: int, record: Submission) -> None:
    """Checks new, unclaimed blocks against their submission. Their names say what the user signed; only the leader renames blocks."""
    record = as_signed(record)
    expected = (record.priority, record.request.cores, -(-record.request.memory_bytes // MIB), 1)
    most = 1 if record.rigid is not None else MAX_TASKS
    for key, data in blocks:
        _require(key.submission == number, "it is a block of another submission")
        in_name = (key.priority, key.cores, key.memory_mib, key.attempt)
        _require(key.user in ("", paths.user_tag(record.user)), "its name has the tag of another user")
        _require(in_name == expected, f"(priority, cores, MiB, attempt) are {in_name}, its submission says {expected}")
        _require(1 <= key.count <= most, f"{key.count} is no number of tasks in a block")
        for name, untouched in _UNTOUCHED:
            _require(getattr(data, name) == untouched, f"{name} is said by the leader and by Starters alone, and of a new block not yet")
        if data.payloads:
            _require(not data.row and data.base == key.first and len(data.payloads) == key.count, "an argument for each task")
        else:
            _require(0 <= data.base <= key.first, "it begins before its tasks")
        if data.row:
            match = _ROW.fullmatch(data.row)
            _require(match is not None and int(match[1]) == number, "its arguments are in no row of its submission")


def _check_ended(fragment: Fragment) -> None:
    """Checks outcomes that a client decides: of tasks that never ran, cancelled or refused."""
    is_bare = msgspec.structs.replace(fragment, outcomes=()) == _FRAGMENT and bool(fragment.outcomes)
    _require(is_bare, "only a node tells what became of tasks that ran")
    for outcome in fragment.outcomes:
        _require((outcome.state, outcome.reason) in _OUTCOME_ENDS, "only tasks that were cancelled, or refused, end unsent")
        plain = Outcome(index=outcome.index, state=outcome.state, reason=outcome.reason, error=outcome.error)
        _require(outcome == plain and len(outcome.error) <= _WHY_CHARACTERS, "they never ran")


def _check_indices(start: int, end: int, blocks: Sequence[Block], ended: Sequence[Fragment]) -> None:
    """Checks that each task from `start` to `end` is in one block, or has one outcome."""
    spans = [(key.first, key.end) for key, _ in blocks]
    spans += [(outcome.index, outcome.index + 1) for fragment in ended for outcome in fragment.outcomes]
    due = start
    for first, stop in sorted(spans) if ended else spans:
        _require(first == due, f"task {due} is the next")
        due = stop
    _require(due == end, f"the tail says {end}, its tasks end at {due}")


def _require(is_so: bool, why: str) -> None:
    if not is_so:
        raise InvalidRecord(f"a gateway takes no such work: {why}", hint="is the client of the cluster's release? rmgr version")
