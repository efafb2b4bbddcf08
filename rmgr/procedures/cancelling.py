"""Cancelling single tasks: waiting ones leave their block (TAKE_OUT), running ones are ordered to be killed.

A task may be waiting in `pending` or `held`, waiting for the resubmit rule in `failed`, or claimed by a Starter; it may
also move between these while one looks, so everything is looked at until nothing of it waits any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import islice

import msgspec

from rmgr.coord.decisions.changing import words_of
from rmgr.coord.ops import work as ops
from rmgr.coord.ops.leader import cancel_failed, no_outcome, order
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Multi, Outcome
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.protocol.records import decode_block, decode_failed
from rmgr.errors import DeadlineExceeded
from rmgr.model.base.states import Reason, State
from rmgr.model.cluster.node import InboxOrder, OrderKind
from rmgr.model.tasks.block import MOST_TASKS
from rmgr.model.tasks.request import TaskRanges, ranges_of
from rmgr.model.tasks.submission import Submission
from rmgr.procedures.snapshot import fetch, read_claimed, read_submission
from rmgr.runtime import machine

#: Looks at the same tasks before what still moves is left alone.
_ROUNDS = 12
#: Blocks that are read and committed at once: what is in memory of a submission of millions.
_AT_ONCE = 64


class _Ended:
    """Tasks that this call has ended: a byte for each position up to the highest, however many millions they are."""

    def __init__(self) -> None:
        self._marks = bytearray()
        self.count = 0

    def add(self, ranges: Iterable[tuple[int, int]]) -> None:
        for first, count in ranges:
            stop = first + count
            self._marks.extend(bytes(max(0, stop - len(self._marks))))
            self.count += self._marks.count(0, first, stop)
            self._marks[first:stop] = b"\1" * count

    def __contains__(self, index: int) -> bool:
        return index < len(self._marks) and self._marks[index] == 1

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """(first, count), in order."""
        found: list[tuple[int, int]] = []
        at = self._marks.find(1)
        while at >= 0:
            stop = self._marks.find(0, at)
            stop = len(self._marks) if stop < 0 else stop
            found.append((at, stop - at))
            at = self._marks.find(1, stop)
        return tuple(found)


def cancel_tasks(
    coordinator: Coordinator,
    number: int,
    ranges: Sequence[tuple[int, int]],
    *,
    detail: str = "",
    by: str = "",
    running: bool,
    deadline_s: float,
) -> tuple[tuple[int, int], ...]:
    """Cancels tasks of submission `number`. Cost: as the ranges, and as what of them still waits or runs; a byte of memory a task.

    Args:
        ranges: (first, count) of them. detail: the user's words. by: who cancels, "" = its user.
        running: also order those that run to be killed.
        deadline_s: monotonic.
    Returns: ranges of those that were waiting (they are CANCELLED now), and with `running` those that were ordered to end.
    Raises: NotFound, CoordinationUnavailable, DeadlineExceeded.
    """
    submission = read_submission(coordinator, number, timeout_s=_left(deadline_s))
    wanted, ended = TaskRanges(ranges, MOST_TASKS), _Ended()
    is_own = by in {"", submission.user}
    reason, detail = (Reason.USER_CANCEL, detail) if is_own else (Reason.OPERATOR_CANCEL, words_of(by, detail))
    detail = detail[:120]
    for _ in range(_ROUNDS):
        before = ended.count
        for queue in reversed(submission.queues):  # what comes from where it was before is not missed
            for held in (False, True):
                _take_out(coordinator, queue, number, wanted, ended, held=held, reason=reason, detail=detail, deadline_s=deadline_s)
        _drop_failed(coordinator, submission, wanted, ended, reason=reason, deadline_s=deadline_s)
        if ended.count >= wanted.count or ended.count == before:
            break
    if running and ended.count < wanted.count:
        _order(coordinator, submission, wanted, ended, reason=reason, detail=detail, deadline_s=deadline_s)
    return ended.ranges()


def _take_out(
    coordinator: Coordinator,
    queue: str,
    number: int,
    wanted: TaskRanges,
    ended: _Ended,
    *,
    held: bool,
    reason: Reason,
    detail: str,
    deadline_s: float,
) -> None:
    if ended.count >= wanted.count:
        return
    parent = paths.held(queue) if held else paths.pending(queue)
    names = coordinator.children(parent, timeout_s=_left(deadline_s)).result(_left(deadline_s) + 1) or []
    mine = (key for _, key in paths.blocks_in(names) if key.submission == number)
    while keys := list(islice(mine, _AT_ONCE)):
        open_ = [(key, indices) for key in keys if (indices := [at for at in wanted.within(key.first, key.end) if at not in ended])]
        where = [f"{parent}/{paths.block_name(key)}" for key, _ in open_]
        blocks = fetch(where, coordinator.get, timeout_s=_left(deadline_s))
        multis: list[tuple[Multi, Sequence[int]]] = []
        for (key, indices), block in zip(open_, blocks, strict=True):
            if block is None:
                continue
            try:
                data = decode_block(block.data)
            except msgspec.DecodeError:  # one that is no block keeps nobody from cancelling the others
                continue
            # What one multi and one fragment bear; the rest of the block is found under its new names in the next round.
            some = indices[: 10_000 // (40 + len(detail))] if len(indices) == key.count else indices[:60]
            fragment = no_outcome(State.CANCELLED, reason, some, detail, attempt=key.attempt)
            multi = ops.take_out(queue, key, data, block.version, indices=some, fragment=fragment, held=held)
            multis.append((multi, some))
        _commit(coordinator, multis, ended, deadline_s)


def _drop_failed(
    coordinator: Coordinator, submission: Submission, wanted: TaskRanges, ended: _Ended, *, reason: Reason, deadline_s: float
) -> None:
    if ended.count >= wanted.count:
        return
    names = coordinator.children(paths.failed(submission.id), timeout_s=_left(deadline_s)).result(_left(deadline_s) + 1) or []
    # A range goes as a whole: part of one that waits for its rule is caught when it waits in the queue again.
    mine = ((name, *numbers) for name, numbers in paths.failed_in(names) if wanted.covers(numbers[0], numbers[0] + numbers[1]))
    while some := list(islice(mine, _AT_ONCE)):
        found = fetch([f"{paths.failed(submission.id)}/{item[0]}" for item in some], coordinator.get, timeout_s=_left(deadline_s))
        multis: list[tuple[Multi, Sequence[int]]] = []
        for (_, first, count, attempt), record in zip(some, found, strict=True):
            if record is not None:
                with suppress(msgspec.MsgspecError):  # as among blocks; the leader ends such a range
                    failed = decode_failed(record.data)
                    multi = cancel_failed(submission, first, count, attempt, failed, record.version, reason=reason)
                    multis.append((multi, range(first, first + count)))
        _commit(coordinator, multis, ended, deadline_s)


def _order(
    coordinator: Coordinator,
    submission: Submission,
    wanted: TaskRanges,
    ended: _Ended,
    *,
    reason: Reason,
    detail: str,
    deadline_s: float,
) -> None:
    nodes = coordinator.children(paths.NODES, timeout_s=_left(deadline_s)).result(_left(deadline_s) + 1) or []
    multis: list[tuple[Multi, Sequence[int]]] = []
    for node, key, data in read_claimed(coordinator, nodes, submission=submission.id, timeout_s=_left(deadline_s)):
        for index in wanted.within(key.first, key.end):
            if index not in ended and not data.done >> (index - key.first) & 1:
                what = InboxOrder(order=OrderKind.CANCEL, submission=submission.id, index=index, reason=reason, detail=detail)
                multis.append((order(node, machine.guid(), what), [index]))
    _commit(coordinator, multis, ended, deadline_s)


def _commit(coordinator: Coordinator, multis: Sequence[tuple[Multi, Sequence[int]]], ended: _Ended, deadline_s: float) -> None:
    flying: list[tuple[Future[Outcome], Sequence[int]]] = [
        (coordinator.commit(multi, timeout_s=_left(deadline_s)), some) for multi, some in multis
    ]
    for future, some in flying:
        if isinstance(future.result(max(0.1, deadline_s - machine.monotonic()) + 1), Committed):
            ended.add(ranges_of(some))


def _left(deadline_s: float) -> float:
    left = deadline_s - machine.monotonic()
    if left <= 0:
        raise DeadlineExceeded("the tasks could not be cancelled in time", hint="rmgr tasks ID shows which ones were")
    return left
