"""Cancelling single tasks: waiting ones leave their block (TAKE_OUT), running ones are ordered to be killed.

A task may be waiting in `pending` or `held`, waiting for the resubmit rule in `failed`, or claimed by a Starter; it may
also move between these while one looks, so everything is looked at until nothing of it waits any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress

import msgspec

from rmgr.coord.ops import work as ops
from rmgr.coord.ops.leader import cancel_failed, no_outcome, order
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Multi, Outcome
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.protocol.records import decode_block, decode_failed
from rmgr.errors import DeadlineExceeded, PermissionDenied
from rmgr.model.base.states import Reason, State
from rmgr.model.cluster.node import InboxOrder, OrderKind
from rmgr.model.tasks.block import MOST_TASKS, BlockKey
from rmgr.model.tasks.request import TaskRanges
from rmgr.model.tasks.submission import Submission
from rmgr.procedures.asking import ask_to_cancel
from rmgr.procedures.snapshot import fetch, read_claimed, read_submission
from rmgr.runtime import machine

#: Looks at the same tasks before what still moves is left alone.
_ROUNDS = 12


def cancel_tasks(
    coordinator: Coordinator,
    number: int,
    ranges: Sequence[tuple[int, int]],
    *,
    detail: str = "",
    running: bool,
    deadline_s: float,
    may_ask: bool = True,
) -> list[int]:
    """Cancels tasks of submission `number`. Cost: as the ranges, and as what of them still waits or runs.

    Args:
        ranges: (first, count) of them. detail: the user's words. running: also order those that run to be killed.
        deadline_s: monotonic. may_ask: the leader does what this role may not.
    Returns: those that were waiting (they are CANCELLED now), and with `running` those that were ordered to end.
    Raises: NotFound, CoordinationUnavailable, DeadlineExceeded.
    """
    submission = read_submission(coordinator, number, timeout_s=_left(deadline_s))
    wanted, ended = TaskRanges(ranges, MOST_TASKS), set[int]()
    detail = detail[:120]
    for _ in range(_ROUNDS):
        before = len(ended)
        try:
            for held in (False, True):
                ended |= _take_out(coordinator, submission, wanted, ended, held=held, detail=detail, deadline_s=deadline_s)
        except PermissionDenied:  # what waits in a queue may be taken out by the leader, operators and gateways
            if not may_ask:
                raise
            ended |= ask_to_cancel(coordinator, number, ranges, detail=detail, deadline_s=deadline_s)
            break
        ended |= _drop_failed(coordinator, submission, wanted, ended, deadline_s=deadline_s)
        if len(ended) >= wanted.count or len(ended) == before:
            break
    if running and len(ended) < wanted.count:
        ended |= _order(coordinator, submission, wanted, ended, detail=detail, deadline_s=deadline_s)
    return sorted(ended)


def _take_out(
    coordinator: Coordinator, submission: Submission, wanted: TaskRanges, ended: set[int], *, held: bool, detail: str, deadline_s: float
) -> set[int]:
    if len(ended) >= wanted.count:
        return set()
    parent = paths.held(submission.queue) if held else paths.pending(submission.queue)
    names = coordinator.children(parent, timeout_s=_left(deadline_s)).result(_left(deadline_s) + 1) or []
    found: list[tuple[BlockKey, list[int]]] = []
    for _, key in paths.blocks_in(names):
        if key.submission == submission.id:
            mine = [index for index in wanted.within(key.first, key.end) if index not in ended]
            if mine:
                found.append((key, mine))
    where = [f"{parent}/{paths.block_name(key)}" for key, _ in found]
    blocks = fetch(where, coordinator.get, timeout_s=_left(deadline_s))
    multis: list[tuple[Multi, list[int]]] = []
    for (key, mine), block in zip(found, blocks, strict=True):
        if block is None:
            continue
        try:
            data = decode_block(block.data)
        except msgspec.DecodeError:  # one that is no block keeps nobody from cancelling the others
            continue
        # What one multi and one fragment bear; the rest of the block is found under its new names in the next round.
        some = mine[: 10_000 // (40 + len(detail))] if len(mine) == key.count else mine[:60]
        fragment = no_outcome(State.CANCELLED, Reason.USER_CANCEL, some, detail, attempt=key.attempt)
        multi = ops.take_out(submission.queue, key, data, block.version, indices=some, fragment=fragment, held=held)
        multis.append((multi, some))
    return _committed(coordinator, multis, deadline_s)


def _drop_failed(coordinator: Coordinator, submission: Submission, wanted: TaskRanges, ended: set[int], *, deadline_s: float) -> set[int]:
    if len(ended) >= wanted.count:
        return set()
    names = coordinator.children(paths.failed(submission.id), timeout_s=_left(deadline_s)).result(_left(deadline_s) + 1) or []
    ranges = [(name, *numbers) for name, numbers in paths.failed_in(names)]
    # A range goes as a whole: part of one that waits for its rule is caught when it waits in the queue again.
    mine = [item for item in ranges if wanted.covers(item[1], item[1] + item[2])]
    found = fetch([f"{paths.failed(submission.id)}/{item[0]}" for item in mine], coordinator.get, timeout_s=_left(deadline_s))
    multis: list[tuple[Multi, list[int]]] = []
    for (_, first, count, attempt), record in zip(mine, found, strict=True):
        if record is not None:
            with suppress(msgspec.MsgspecError):  # as among blocks; the leader ends such a range
                failed = decode_failed(record.data)
                multi = cancel_failed(submission, first, count, attempt, failed, record.version, reason=Reason.USER_CANCEL)
                multis.append((multi, list(range(first, first + count))))
    return _committed(coordinator, multis, deadline_s)


def _order(
    coordinator: Coordinator, submission: Submission, wanted: TaskRanges, ended: set[int], *, detail: str, deadline_s: float
) -> set[int]:
    nodes = coordinator.children(paths.NODES, timeout_s=_left(deadline_s)).result(_left(deadline_s) + 1) or []
    multis: list[tuple[Multi, list[int]]] = []
    for node, key, data in read_claimed(coordinator, nodes, submission=submission.id, timeout_s=_left(deadline_s)):
        for index in wanted.within(key.first, key.end):
            if index not in ended and not data.done >> (index - key.first) & 1:
                what = InboxOrder(order=OrderKind.CANCEL, submission=submission.id, index=index, reason=Reason.USER_CANCEL, detail=detail)
                multis.append((order(node, machine.guid(), what), [index]))
    return _committed(coordinator, multis, deadline_s)


def _committed(coordinator: Coordinator, multis: list[tuple[Multi, list[int]]], deadline_s: float) -> set[int]:
    flying: list[tuple[Future[Outcome], list[int]]] = [
        (coordinator.commit(multi, timeout_s=_left(deadline_s)), some) for multi, some in multis
    ]
    done: set[int] = set()
    for future, some in flying:
        if isinstance(future.result(max(0.1, deadline_s - machine.monotonic()) + 1), Committed):
            done.update(some)
    return done


def _left(deadline_s: float) -> float:
    left = deadline_s - machine.monotonic()
    if left <= 0:
        raise DeadlineExceeded("the tasks could not be cancelled in time", hint="rmgr tasks ID shows which ones were")
    return left
