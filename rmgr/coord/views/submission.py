"""One submission as people see it: each of its tasks, what it asks for beside cores, memory, processes and resources, its changes. Pure.

Views of tasks are made from outcome fragments, claimed blocks and failed ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from rmgr.coord.decisions.progress import EndFold, claimed_state
from rmgr.model.block import BlockData, BlockKey, FailedRange, Fragment, Outcome, PastAttempt
from rmgr.model.states import GIVEN_UP, Reason, State
from rmgr.model.submission import FROM_CHECKPOINT, Command, OnDisconnect, Phase, Rigid, Submission, Tail, history_of, parse_array, terms_of
from rmgr.model.units import format_duration, format_size
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


# -- what it asks for ----------------------------------------------------------------------------------------------------------

#: Name in `show --json` -> (usual value, unusual ones in words), in the order shown. Durations in seconds, times in us since the epoch.
_TERMS: Mapping[str, tuple[Any, Callable[[Any], str] | None]] = {
    "time_limit": (None, lambda value: f"at most {format_duration(value)}"),
    "features": ([], lambda value: f"nodes with {', '.join(value)}"),
    "nodes_asked": (None, lambda value: f"on {value} node{'s' if value != 1 else ''}"),
    "exclusive": (False, lambda _: "alone on its nodes"),
    "nodelist": ([], lambda value: f"only on {', '.join(value)}"),
    "exclude": ([], lambda value: f"not on {', '.join(value)}"),
    "begin": (None, lambda value: f"not before {value}"),
    "array": ("", lambda value: f"array {value}"),
    "cap": (None, lambda value: f"{value} at once"),
    "max_fails": (None, lambda value: f"the rest cancelled after more than {value} failure{'s' if value != 1 else ''}"),
    "retries": (0, lambda value: f"{value} retr{'ies' if value != 1 else 'y'}"),
    "backoff": (0.0, lambda value: f"back-off {format_duration(value)}"),
    "resubmit": (True, lambda _: "never again after a loss"),
    "on_disconnect": (str(OnDisconnect.KEEP), lambda value: f"on disconnect {value}"),
    "kill_on_bad_exit": (False, lambda _: "killed when one process fails"),
    "checkpoint_every": (None, lambda value: f"a checkpoint every {format_duration(value)}"),
    "restart_from": (FROM_CHECKPOINT, lambda value: f"begins again from the {value}"),
    "cwd": ("", lambda value: f"in {value}"),
    "env": ([], lambda value: f"with the variables {', '.join(value)}"),
    "uploads": ([], lambda value: f"with {', '.join(value)} uploaded"),
    "inputs": ([], lambda value: f"inputs {', '.join(value)}"),
    "outputs": ([], lambda value: f"outputs {', '.join(value)}"),
    "out": ("", lambda value: f"stdout to {value}"),
    "err": ("", lambda value: f"stderr to {value}"),
    "python": ("", lambda value: f"with {value}"),
    "changes": ([], None),
}
USUAL = {name: usual for name, (usual, _) in _TERMS.items()}
_NONE = Rigid()
_NO_COMMAND = Command()


def asked(submission: Submission) -> dict[str, Any]:
    """Returns a submission's unusual values. Of variables only the names, because values may be secrets of the user. Cost: 3 us."""
    request, rigid, command = submission.request, submission.rigid or _NONE, submission.command or _NO_COMMAND
    told = {
        "time_limit": request.time_limit_us / 1e6 or None,
        "features": list(request.features),
        "nodes_asked": rigid.nodes or None,
        "exclusive": rigid.exclusive,
        "nodelist": list(rigid.nodelist),
        "exclude": list(rigid.exclude),
        "begin": rigid.begin_us or None,
        "array": submission.array,
        "cap": submission.max_running or None,
        "max_fails": submission.max_fails if submission.max_fails >= 0 else None,
        "retries": submission.retries,
        "backoff": submission.backoff_us / 1e6,
        "resubmit": submission.resubmit,
        "on_disconnect": str(submission.on_disconnect),
        "kill_on_bad_exit": rigid.kill_on_bad_exit,
        "checkpoint_every": rigid.checkpoint_every_us / 1e6 or None,
        "restart_from": rigid.restart,
        "cwd": command.cwd,
        "env": sorted(command.env.keys() - {"RMGR_PYTHON"}),
        "uploads": [upload.name for upload in command.uploads],
        "inputs": [f"{key}={name}" for key, name in command.input_files],
        "outputs": [f"{key}={name}" for key, name in command.output_files],
        "out": command.out,
        "err": command.err,
        "python": command.env.get("RMGR_PYTHON", "") or (submission.python.python if submission.python is not None else ""),
        "changes": changes_of(submission) if submission.changes else [],
    }
    return {name: value for name, value in told.items() if value != USUAL[name]}


def in_words(told: Mapping[str, Any], clock: Callable[[int], str]) -> str:
    """Returns the same as words, "" if all is usual. clock: formats a time."""
    found = []
    for name, (_, words) in _TERMS.items():
        if name in told and words is not None:
            found.append(words(clock(told[name]) if name == "begin" else told[name]))
    return ", ".join(found)


# -- changes -------------------------------------------------------------------------------------------------------------------

#: Terms: their names in `show --json`, and in a sentence.
_NAMES = {
    "priority": ("priority", "priority"),
    "time_limit_us": ("time_limit", "time limit"),
    "memory_bytes": ("mem_bytes", "memory"),
    "name": ("name", "name"),
    "begin_us": ("begin", "begin"),
    "after": ("after", "after"),
    "features": ("features", "features"),
    "queue": ("queue", "queue"),
    "cores": ("cores", "cores"),
}


def changes_of(record: Submission) -> list[dict[str, Any]]:
    """Returns the amendments, oldest first: {by, at, operator, changed}. at: us since the epoch. Cost: 10 us each."""
    return [
        {"by": one.by, "at": one.by_us, "operator": one.is_operators, "changed": differences(before, after)}
        for one, before, after in history_of(record)
    ]


def differences(before: Submission, after: Submission) -> dict[str, dict[str, Any]]:
    """Returns term -> {old, new} of terms that differ. Durations in seconds, times in us since the epoch, None = no limit, or at once."""
    old, new = terms_of(before), terms_of(after)
    return {
        name: {"old": _plain(term, getattr(old, term)), "new": _plain(term, getattr(new, term))}
        for term, (name, _) in _NAMES.items()
        if getattr(old, term) != getattr(new, term)
    }


def _plain(term: str, value: Any) -> Any:
    match term:
        case "time_limit_us":
            return value / 1e6 or None
        case "memory_bytes" | "begin_us":
            return value or None
        case "after":
            return [f"{item.condition}:{item.submission}" for item in value]
        case "features":
            return list(value)
    return value


def changes_in_words(changed: Mapping[str, Mapping[str, Any]], clock: Callable[[int], str]) -> str:
    """Returns `priority 0 -> 5, time limit 1h -> 2h`. clock: formats a time."""
    say: dict[str, Callable[[Any], str]] = {
        "time_limit": lambda value: format_duration(value) if value else "none",
        "mem_bytes": lambda value: format_size(value) if value else "none",
        "begin": lambda value: clock(value) if value else "at once",
        "after": lambda value: ",".join(value) or "nothing",
        "features": lambda value: ",".join(value) or "none",
    }
    told = [
        f"{word} {say.get(name, str)(changed[name]['old'])} -> {say.get(name, str)(changed[name]['new'])}"
        for name, word in _NAMES.values()
        if name in changed
    ]
    return ", ".join(told)
