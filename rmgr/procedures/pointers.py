"""From an output key to the row that holds its value: the committed attempt of the task it points to (protocol.md section 4).

For those who hold no submission in memory (`rmgr store get`, `connect().store.get`): one look costs the fragments of
the submission, at most 1,000 znodes and its pages.
"""

from __future__ import annotations

from collections.abc import Iterator

from rmgr.coord import validity
from rmgr.coord.decisions.progress import EndFold
from rmgr.coord.ops.membership import reign_of
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.ports import Coordinator, Store
from rmgr.errors import NotFound
from rmgr.model.base.states import State
from rmgr.model.tasks.outcome import Fragment
from rmgr.procedures.snapshot import fetch, outcomes_of, read_pages, read_whole


def locate(coordinator: Coordinator, store: Store, user_key: str, pointer: keys.Pointer, *, timeout_s: float) -> str:
    """Key of the row that holds the value of `pointer`, found under `user_key`.

    Raises: NotFound when the task has not completed, failed, was never submitted, or is gone without a value.
    """
    task = f"{pointer.sub}_{pointer.index}"
    tail, done = fetch([paths.tail(pointer.sub), paths.done(pointer.sub)], coordinator.get, timeout_s=timeout_s)
    if tail is None or done is None:
        final = keys.final(pointer)
        if store.head(final, timeout_s=timeout_s) is not None:
            return final
        raise NotFound(
            f"{user_key!r} was an output of task {task}, whose submission is gone without a value", hint=f"rmgr history {pointer.sub}"
        )
    record = validity.tail(tail, pointer.sub)
    if pointer.index >= record.next or (pointer.by and reign_of(record, pointer.index) not in ("", pointer.by)):
        raise NotFound(f"{user_key!r} is the output of a task that was never submitted", hint="submit it again")
    paged, fragments = read_whole(coordinator, pointer.sub, done, timeout_s=timeout_s)
    recent = [fragment for _, fragment in fragments]
    for state, attempt in _ends(store, [*read_pages(store, pointer.sub, paged), *recent], pointer.index):
        if state is State.COMPLETED:
            return keys.output(pointer.sub, pointer.index, attempt, pointer.n)
        raise NotFound(f"{user_key!r} has no value: task {task} ended {state}", hint=f"rmgr show {task}")
    raise NotFound(f"{user_key!r} is not there yet: task {task} has not ended", hint=f"rmgr wait {pointer.sub}")


def _ends(store: Store, fragments: list[Fragment], index: int) -> Iterator[tuple[State, int]]:
    """How a task ended, with its attempt; rows without the task are not read."""
    ends = EndFold()
    for fragment in fragments:
        if fragment.row and fragment.ranges and not any(first <= index < first + count for _, first, count in fragment.ranges):
            continue
        its = (outcome for outcome in outcomes_of(fragment, store) if outcome.index == index)
        for outcome in ends.fold(its):
            yield outcome.state, outcome.attempt or fragment.attempt
