"""Asking the leader for what one's own role may not do in ZooKeeper, or only it can: the request, and the wait for its answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from rmgr.coord.ops import request as request_ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.validity import records as validity
from rmgr.errors import (
    CoordinationUnavailable,
    DeadlineExceeded,
    Infeasible,
    NotFound,
    PermissionDenied,
    RmgrError,
    StateConflict,
    Unavailable,
)
from rmgr.model.tasks.block import MOST_TASKS
from rmgr.model.tasks.request import CancelRequest, StopRequest, TaskRanges
from rmgr.runtime import machine

_Request = TypeVar("_Request", CancelRequest, StopRequest)
_Answer = TypeVar("_Answer")
_NO_LEADER = DeadlineExceeded(
    "no leader has answered in time: it cancels the tasks as soon as one leads", hint="rmgr status shows whether a WatchDog leads"
)
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
        answer = _ask(coordinator, request, deadline_s, _NO_LEADER)
        if answer.error:
            raise RmgrError(answer.error)
        ended.extend(TaskRanges(answer.ended, MOST_TASKS).ranges())
    return ended


def ask_each_to_move(
    coordinator: Coordinator, asked: Sequence[tuple[str, StopRequest]], *, deadline_s: float
) -> list[StopRequest | RmgrError]:
    """Has the leader ask placed jobs to save their state, or to go on elsewhere; waits until it is known what came of it.

    Args: asked: (the job or node, for messages; the request). deadline_s: monotonic.
    Returns: of each its request with the answer (jobs that refused are in `left` where several were asked), or the error: what the leader
        says (NotFound, StateConflict, Infeasible, Unavailable); DeadlineExceeded when nothing is known in time (it is done as soon as
        somebody leads), CoordinationUnavailable.
    """
    sent: list[tuple[str, StopRequest, str | RmgrError]] = []
    for shown, request in asked:
        sent.append((shown, request, _tried(partial(_send, coordinator, request, deadline_s, _slow(shown, request)))))

    def answer(shown: str, request: StopRequest, path: str | RmgrError) -> StopRequest:
        if isinstance(path, RmgrError):
            raise path
        told = _wait(coordinator, request, path, deadline_s, _slow(shown, request))
        if told.error:
            raise _ERRORS.get(told.code, RmgrError)(told.error, hint=told.hint)
        if not told.done and len(told.left) == 1 and not request.node:
            raise StateConflict(told.left[0][2], hint=_look_at(request, shown))
        return told

    return [_tried(partial(answer, *one)) for one in sent]


def _tried(call: Callable[[], _Answer]) -> _Answer | RmgrError:
    try:
        return call()
    except RmgrError as error:
        return error


def _slow(shown: str, request: StopRequest) -> DeadlineExceeded:
    return DeadlineExceeded(f"{shown}: it is not known in time what came of it, and it goes on", hint=_look_at(request, shown))


def _look_at(request: StopRequest, shown: str) -> str:
    return f"rmgr nodes {request.node}; rmgr jobs" if request.node else f"rmgr show {shown}; rmgr status"


_ERRORS: dict[str, type[RmgrError]] = {kind.code: kind for kind in (Infeasible, NotFound, PermissionDenied, StateConflict, Unavailable)}


def _ask(coordinator: Coordinator, request: _Request, deadline_s: float, slow: DeadlineExceeded) -> _Request:
    return _wait(coordinator, request, _send(coordinator, request, deadline_s, slow), deadline_s, slow)


def _send(coordinator: Coordinator, request: _Request, deadline_s: float, slow: DeadlineExceeded) -> str:
    """The request stands there, under this path."""
    guid = machine.guid()
    left_s = _left_s(deadline_s, slow)
    outcome = coordinator.commit(request_ops.ask(guid, request), timeout_s=left_s).result(left_s + 1)
    if not isinstance(outcome, Committed):
        raise CoordinationUnavailable(f"the leader could not be asked: {outcome}", hint="try again")
    return paths.request(guid)


def _wait(coordinator: Coordinator, request: _Request, path: str, deadline_s: float, slow: DeadlineExceeded) -> _Request:
    """Its answer."""
    while True:
        changed = threading.Event()
        left_s = _left_s(deadline_s, slow)
        found = coordinator.get(path, watch=changed.set, timeout_s=left_s).result(left_s + 1)
        if found is None:
            raise CoordinationUnavailable("the answer of the leader is gone", hint="rmgr tasks ID shows what has happened")
        answer = validity.decode(found.data, type(request), path)
        if answer.answered:
            return answer
        changed.wait(min(1.0, _left_s(deadline_s, slow)))  # a watch is a hint


def _left_s(deadline_s: float, slow: DeadlineExceeded) -> float:
    left_s = deadline_s - machine.monotonic()
    if left_s <= 0:
        raise slow
    return left_s
