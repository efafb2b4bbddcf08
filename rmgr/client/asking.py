"""Asking the leader for what one's own role may not do in ZooKeeper, or only it can: the request, and the wait for its answer."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Sequence
from typing import TypeVar

from rmgr.coord import paths, request_ops
from rmgr.coord.multi import Committed
from rmgr.coord.ports import Coordinator
from rmgr.coord.records import decode_record
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
from rmgr.model.request import CancelRequest, StopRequest, indices_of, ranges_of

_Request = TypeVar("_Request", CancelRequest, StopRequest)
_NO_LEADER = DeadlineExceeded(
    "no leader has answered in time: it cancels the tasks as soon as one leads", hint="rmgr status tells whether a WatchDog leads"
)
#: Ranges in one request: far below what a znode holds.
_RANGES = 500


def ask_to_cancel(coordinator: Coordinator, submission: int, indices: Sequence[int], *, detail: str, deadline_s: float) -> set[int]:
    """Those of the waiting tasks that the leader has taken out of their queue.

    Args: deadline_s: monotonic.
    Raises: DeadlineExceeded when no leader has answered (it does it when one leads), CoordinationUnavailable, what went wrong there.
    """
    ended: set[int] = set()
    ranges = ranges_of(indices)
    for at in range(0, len(ranges), _RANGES):
        request = CancelRequest(submission=submission, tasks=ranges[at : at + _RANGES], detail=detail)
        answer = _ask(coordinator, request, deadline_s, _NO_LEADER)
        if answer.error:
            raise RmgrError(answer.error)
        ended |= indices_of(answer.ended)
    return ended


def ask_to_move(coordinator: Coordinator, request: StopRequest, *, shown: str, deadline_s: float) -> StopRequest:
    """Has the leader ask placed jobs to save their state, or to go on elsewhere; waits until it is known what came of it.

    Args: shown: the job or node, for messages. deadline_s: monotonic.
    Returns: the request with its answer; jobs that refused are in `left` where several were asked.
    Raises: what the leader says (NotFound, StateConflict, Infeasible, Unavailable); DeadlineExceeded when nothing is known in time (it is
        done as soon as somebody leads), CoordinationUnavailable.
    """
    slow = DeadlineExceeded(f"{shown}: it is not known in time what came of it, and it goes on", hint=_look_at(request, shown))
    answer = _ask(coordinator, request, deadline_s, slow)
    if answer.error:
        raise _ERRORS.get(answer.code, RmgrError)(answer.error, hint=answer.hint)
    if not answer.done and len(answer.left) == 1 and not request.node:
        raise StateConflict(answer.left[0][2], hint=_look_at(request, shown))
    return answer


def _look_at(request: StopRequest, shown: str) -> str:
    return f"rmgr nodes {request.node}; rmgr jobs" if request.node else f"rmgr show {shown}; rmgr status"


_ERRORS: dict[str, type[RmgrError]] = {
    kind.code: kind for kind in (Infeasible, NotFound, PermissionDenied, StateConflict, Unavailable)
}


def _ask(coordinator: Coordinator, request: _Request, deadline_s: float, slow: DeadlineExceeded) -> _Request:
    guid = uuid.uuid4().hex

    def left_s() -> float:
        left = deadline_s - time.monotonic()
        if left <= 0:
            raise slow
        return left

    path = paths.request(guid)
    outcome = coordinator.commit(request_ops.ask(guid, request), timeout_s=left_s()).result(left_s() + 1)
    if not isinstance(outcome, Committed):
        raise CoordinationUnavailable(f"the leader could not be asked: {outcome}", hint="try again")
    while True:
        changed = threading.Event()
        found = coordinator.get(path, watch=changed.set, timeout_s=left_s()).result(left_s() + 1)
        if found is None:
            raise CoordinationUnavailable("the answer of the leader is gone", hint="rmgr tasks ID tells what has happened")
        answer = decode_record(found.data, type(request), path)
        if answer.answered:
            return answer
        changed.wait(min(1.0, left_s()))  # a watch is a hint
