"""Asks placed jobs to save their state or to move elsewhere, many at once, and waits until the result of each is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from rmgr.errors import DeadlineExceeded, Infeasible, NotFound, PermissionDenied, RmgrError, StateConflict, Unavailable
from rmgr.model.tasks.block import StopRequest
from rmgr.runtime import machine
from rmgr.runtime.machine import Backoff
from rmgr.submitter.questions import Asks, MoveTask, ReadMoved, ReadVacated, VacateNode

_Answer = TypeVar("_Answer")
_ERRORS: dict[str, type[RmgrError]] = {kind.code: kind for kind in (Infeasible, NotFound, PermissionDenied, StateConflict, Unavailable)}
#: Time limit of one question, and the first and the longest pause between two looks at an answer (s).
_ASK_S, _SOON_S, _SELDOM_S = 10.0, 0.02, 1.0


def move_each(asks: Asks, asked: Sequence[tuple[str, MoveTask | VacateNode]], *, deadline_s: float) -> list[StopRequest | RmgrError]:
    """Sends all orders, then waits for each answer.

    Args: asked: (the job or node, for messages; the order). deadline_s: monotonic.
    Returns: for each order the leader's answer (jobs that refused are in `left` if several were asked), or an error: the leader's
        (NotFound, StateConflict, Infeasible, Unavailable); DeadlineExceeded if nothing is known in time (the order stands until a
        leader carries it out); CoordinationUnavailable.
    """
    sent = [(shown, order, _result_or_error(partial(_send, asks, shown, order, deadline_s))) for shown, order in asked]

    def answer(shown: str, order: MoveTask | VacateNode, error: RmgrError | None) -> StopRequest:
        if error is not None:
            raise error
        result = _wait(asks, shown, order, deadline_s)
        if result.error:
            raise _ERRORS.get(result.code, RmgrError)(result.error, hint=result.hint)
        if not result.done and len(result.left) == 1 and isinstance(order, MoveTask):
            raise StateConflict(result.left[0][2], hint=_look_at(order, shown))
        return result

    return [_result_or_error(partial(answer, *one)) for one in sent]


def _result_or_error(call: Callable[[], _Answer]) -> _Answer | RmgrError:
    try:
        return call()
    except RmgrError as error:
        return error


def _send(asks: Asks, shown: str, order: MoveTask | VacateNode, deadline_s: float) -> None:
    asks.ask(order, timeout_s=_left_s(shown, order, deadline_s))


def _wait(asks: Asks, shown: str, order: MoveTask | VacateNode, deadline_s: float) -> StopRequest:
    """Waits for the answer to one order."""
    pauses = Backoff(_SOON_S, _SELDOM_S, factor=1.5)
    look = ReadMoved(number=order.number, guid=order.guid) if isinstance(order, MoveTask) else ReadVacated(node=order.node, guid=order.guid)
    while True:
        found = asks.ask(look, timeout_s=_left_s(shown, order, deadline_s))
        if found.answered:
            return found
        machine.sleep(min(pauses.next_s(), _left_s(shown, order, deadline_s)))


def _left_s(shown: str, order: MoveTask | VacateNode, deadline_s: float) -> float:
    left_s = deadline_s - machine.monotonic()
    if left_s <= 0:
        raise DeadlineExceeded(f"{shown}: it is not known in time what came of it, and it goes on", hint=_look_at(order, shown))
    return min(_ASK_S, left_s)


def _look_at(order: MoveTask | VacateNode, shown: str) -> str:
    return f"rmgr nodes {order.node}; rmgr jobs" if isinstance(order, VacateNode) else f"rmgr show {shown}; rmgr status"
