"""Asking the leader for what one's own role may not do in ZooKeeper: the request, and the wait for its answer."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Sequence

from rmgr.coord import paths, request_ops
from rmgr.coord.multi import Committed
from rmgr.coord.ports import Coordinator
from rmgr.coord.records import decode_record
from rmgr.errors import CoordinationUnavailable, DeadlineExceeded, RmgrError
from rmgr.model.request import CancelRequest, indices_of, ranges_of

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
        ended |= indices_of(_ask(coordinator, request, deadline_s).ended)
    return ended


def _ask(coordinator: Coordinator, request: CancelRequest, deadline_s: float) -> CancelRequest:
    guid = uuid.uuid4().hex
    path = paths.request(guid)
    outcome = coordinator.commit(request_ops.ask(guid, request), timeout_s=_left(deadline_s)).result(_left(deadline_s) + 1)
    if not isinstance(outcome, Committed):
        raise CoordinationUnavailable(f"the leader could not be asked: {outcome}", hint="try again")
    while True:
        changed = threading.Event()
        found = coordinator.get(path, watch=changed.set, timeout_s=_left(deadline_s)).result(_left(deadline_s) + 1)
        if found is None:
            raise CoordinationUnavailable("the answer of the leader is gone", hint="rmgr tasks ID tells what was cancelled")
        answer = decode_record(found.data, CancelRequest, path)
        if answer.answered:
            if answer.error:
                raise RmgrError(answer.error)
            return answer
        changed.wait(min(1.0, _left(deadline_s)))  # a watch is a hint


def _left(deadline_s: float) -> float:
    left = deadline_s - time.monotonic()
    if left <= 0:
        raise DeadlineExceeded(
            "no leader has answered in time: it cancels the tasks as soon as one leads", hint="rmgr status tells whether a WatchDog leads"
        )
    return left
