"""Makes a view of each task of one submission from outcome fragments, claimed blocks and failed ranges. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from rmgr.coord.decisions.progress import EndFold, claimed_state
from rmgr.model.base.states import GIVEN_UP, Reason, State
from rmgr.model.tasks.array import parse_array
from rmgr.model.tasks.block import BlockData, BlockKey, FailedRange, Fragment, Outcome, PastAttempt
from rmgr.model.tasks.submission import Phase, Submission, Tail
from rmgr.model.views import AttemptView, MovingView, TaskView

#: (fragment, its outcomes: its own or those of its row)
Applied = tuple[Fragment, Sequence[Outcome]]
#: (node, key, data) of a claimed block
Claimed = tuple[str, BlockKey, BlockData]
#: (first, count, attempt, record)
Waiting = tuple[int, int, int, FailedRange]


def task_views(
    submission: Submission,
    tail: Tail,
    *,
    fragments: Iterable[Applied],
    claimed: Iterable[Claimed] = (),
    starting: Collection[tuple[str, BlockKey]] = (),
    waiting: Iterable[Waiting] = (),
    pending: Iterable[tuple[BlockKey, BlockData]] = (),
    first: int = 0,
    limit: int = 0,
) -> list[TaskView]:
    """Returns tasks from `first` on (dense positions; at most `limit`, 0 = all) in order of position.

    starting: (node, block) of claimed blocks that have not begun.
    The final outcome of a task is the first one committed for it. Cost: O(tasks + outcomes).
    """
    last = min(tail.next, first + limit) if limit else tail.next
    shown = range(first, last)
    array = parse_array(submission.array) if submission.array else None

    def number(position: int) -> int:
        return array.index_at(position) if array else position

    views: dict[int, TaskView] = {}
    ends = EndFold()
    for fragment, outcomes in fragments:
        for outcome in ends.fold(outcomes, tail.next):
            if outcome.index in shown:
                views[outcome.index] = _ended_view(submission, fragment, outcome, number(outcome.index))
    for node, key, data in claimed:
        for position in _within(key, shown):
            if position not in views and not data.done >> (position - key.first) & 1:
                views[position] = _running(submission, node, key, data, position, number(position), is_starting=(node, key) in starting)
    for start, count, attempt, record in waiting:
        for position in range(max(start, first), min(start + count, last)):
            if position not in views:
                views[position] = _backing_off(submission, record, attempt, position, number(position))
    for key, data in pending:
        for position in _within(key, shown):
            if position not in views and data.past:
                views[position] = _retry_view(submission, key, data, position, number(position))
    state, reason = _waiting_state(submission)
    return [
        views.get(position) or TaskView(submission=submission.id, index=number(position), position=position, state=state, reason=reason)
        for position in shown
    ]


def _within(key: BlockKey, shown: range) -> range:
    return range(max(key.first, shown.start), min(key.end, shown.stop))


def _waiting_state(submission: Submission) -> tuple[State, str]:
    if submission.phase is Phase.HELD:
        return State.HELD, submission.reason
    return State.INITIAL, ""


def _past(past: Sequence[PastAttempt]) -> tuple[AttemptView, ...]:
    return tuple(
        AttemptView(
            attempt=item.attempt,
            node=item.node,
            state=State.INITIAL if item.reason in GIVEN_UP else State.FAILED,
            reason=item.reason,
            started_us=item.started_us,
            ended_us=item.ended_us,
            exit_code=item.exit_code,
            error=item.error,
        )
        for item in past
    )


def _ended_view(submission: Submission, fragment: Fragment, outcome: Outcome, number: int) -> TaskView:
    attempt = outcome.attempt or fragment.attempt
    started_us = fragment.base_us + outcome.started_us if fragment.base_us else 0
    ended_us = started_us + outcome.elapsed_us if started_us else 0
    attempts = _past(outcome.past)
    if attempt:
        last = AttemptView(
            attempt=attempt,
            node=fragment.node,
            state=outcome.state,
            reason=outcome.reason,
            started_us=started_us,
            ended_us=ended_us,
            exit_code=outcome.exit_code,
            error=outcome.error,
        )
        attempts = (*attempts, last)
    return TaskView(
        submission=submission.id,
        index=number,
        position=outcome.index,
        state=outcome.state,
        reason=outcome.reason,
        attempt=attempt,
        node=fragment.node,
        started_us=started_us,
        ended_us=ended_us,
        exit_code=outcome.exit_code,
        error=outcome.error,
        cpu_us=outcome.cpu_us,
        max_rss_kib=outcome.max_rss_kib,
        served_us=outcome.served_us,
        turns=outcome.turns,
        attempts=attempts,
        story=outcome.story,
    )


def _running(
    submission: Submission, node: str, key: BlockKey, data: BlockData, position: int, number: int, *, is_starting: bool = False
) -> TaskView:
    state = claimed_state(is_starting=is_starting, is_stopping=bool(data.stopping))
    current = AttemptView(attempt=key.attempt, node=node, state=state)
    if state is not State.STARTING:
        current = msgspec.structs.replace(current, started_us=data.claimed_us)
    return TaskView(
        submission=submission.id,
        index=number,
        position=position,
        state=state,
        story=data.story,
        saving=data.saving,
        moving=_moving(submission, data),
        attempt=key.attempt,
        node=node,
        started_us=current.started_us,
        attempts=(*_past(data.past), current),
    )


def _backing_off(submission: Submission, record: FailedRange, attempt: int, position: int, number: int) -> TaskView:
    failed = PastAttempt(
        attempt=attempt,
        node=record.node,
        reason=record.reason,
        exit_code=record.exit_code,
        started_us=record.started_us,
        ended_us=record.ended_us,
        error=record.error,
    )
    state, _ = _waiting_state(submission)
    return TaskView(
        submission=submission.id,
        index=number,
        position=position,
        state=state,
        reason=Reason.BACKOFF,
        attempt=attempt,
        node=record.node,
        exit_code=record.exit_code,
        error=record.error,
        attempts=_past([failed]),
    )


def _retry_view(submission: Submission, key: BlockKey, data: BlockData, position: int, number: int) -> TaskView:
    state, reason = _waiting_state(submission)
    return TaskView(
        submission=submission.id,
        index=number,
        position=position,
        state=state,
        reason=reason,
        attempt=key.attempt - 1,
        node=data.past[-1].node,
        attempts=_past(data.past),
        story=data.story,
        moving=_moving(submission, data),
    )


def _moving(submission: Submission, data: BlockData) -> MovingView | None:
    """Returns the moves of a placed job, None for other work."""
    rigid = submission.rigid
    return None if rigid is None else MovingView(saves=rigid.saves(data.answered), moves=data.moves, most=rigid.max_moves)
