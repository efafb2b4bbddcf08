"""Asking the leader for what one's own role may not do in ZooKeeper, or only it can: the request, and the wait for its answer."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from rmgr.coord.ops import request as request_ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, ConflictKind
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.validity import records as validity
from rmgr.errors import CoordinationUnavailable, DeadlineExceeded, RmgrError
from rmgr.model.tasks.block import MOST_TASKS
from rmgr.model.tasks.request import CancelRequest, StopRequest, TaskRanges
from rmgr.runtime import machine

#: Ranges in one request: far below what a znode holds.
_RANGES = 500


def ask_to_cancel(
    coordinator: Coordinator, submission: int, ranges: Sequence[tuple[int, int]], *, detail: str, deadline_s: float
) -> list[tuple[int, int]]:
    """Ranges (first, count) of those of the waiting tasks that the leader has taken out of their queue.

    Args: ranges: (first, count). deadline_s: monotonic.
    Raises: DeadlineExceeded when no leader has answered (it does it when one leads), CoordinationUnavailable, what went wrong there.
    """
    ended: list[tuple[int, int]] = []
    for at in range(0, len(ranges), _RANGES):
        request = CancelRequest(submission=submission, tasks=tuple(ranges[at : at + _RANGES]), detail=detail)
        answer = _ask(coordinator, request, deadline_s)
        if answer.error:
            raise RmgrError(answer.error)
        ended.extend(TaskRanges(answer.ended, MOST_TASKS).ranges())
    return ended


def send_stop(coordinator: Coordinator, guid: str, request: StopRequest, *, timeout_s: float) -> None:
    """Has the leader ask placed jobs to save their state, or to go on elsewhere.

    guid: drawn by who asks; sent again, it is the same request. `read_stop` tells what came of it, as soon as somebody leads.
    Raises: CoordinationUnavailable.
    """
    _send(coordinator, guid, request, timeout_s)


def read_stop(coordinator: Coordinator, guid: str, *, timeout_s: float) -> StopRequest | None:
    """The request as it stands, `answered` once the leader has; None: it is gone."""
    path = paths.request(guid)
    found = coordinator.get(path, timeout_s=timeout_s).result(timeout_s + 1)
    return None if found is None else validity.decode(found.data, StopRequest, path)


def _ask(coordinator: Coordinator, request: CancelRequest, deadline_s: float) -> CancelRequest:
    """The request with its answer."""
    guid = machine.guid()
    _send(coordinator, guid, request, _left_s(deadline_s))
    path = paths.request(guid)
    while True:
        changed = threading.Event()
        left_s = _left_s(deadline_s)
        found = coordinator.get(path, watch=changed.set, timeout_s=left_s).result(left_s + 1)
        if found is None:
            raise CoordinationUnavailable("the answer of the leader is gone", hint="rmgr tasks ID shows what has happened")
        answer = validity.decode(found.data, CancelRequest, path)
        if answer.answered:
            return answer
        changed.wait(min(1.0, _left_s(deadline_s)))  # a watch is a hint


def _send(coordinator: Coordinator, guid: str, request: request_ops.Request, timeout_s: float) -> None:
    outcome = coordinator.commit(request_ops.ask(guid, request), timeout_s=timeout_s).result(timeout_s + 1)
    is_there = isinstance(outcome, Conflict) and outcome.kind is ConflictKind.NODE_EXISTS  # sent again
    if not (isinstance(outcome, Committed) or is_there):
        raise CoordinationUnavailable(f"the leader could not be asked: {outcome}", hint="try again")


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - machine.monotonic()
    if left_s <= 0:
        raise DeadlineExceeded(
            "no leader has answered in time: it cancels the tasks as soon as one leads", hint="rmgr status shows whether a WatchDog leads"
        )
    return left_s
