"""The history: what is kept of an ended submission in rows of the data store, and which rows are deleted.

The order is always: rows first, then the commit that makes them true; for deletion, znodes first, rows after. Rows are named by the
number of their submission, not by its end. Numbers grow with time, so the old rows of all but long-lived submissions are found from the
oldest end (`oldest_end`); each row is read before it is deleted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from rmgr.coord.decisions.keeping import SubmissionEnd
from rmgr.coord.decisions.progress import EndFold, Progress
from rmgr.coord.ops.membership import reign_of
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Store
from rmgr.coord.protocol.records import UNREADABLE, encode_record
from rmgr.coord.views.answers import job_view
from rmgr.errors import DataLost, UsageError
from rmgr.model.block import Fragment, Outcome
from rmgr.model.states import State
from rmgr.model.stream import json_decoder
from rmgr.model.submission import Paged, Submission, Tail
from rmgr.model.views import JobView
from rmgr.procedures.bounded import MOST_SUMMARY_BYTES, row_of

V = TypeVar("V")
#: Keys listed at once, their rows in memory at once, and rows read by one probe of `oldest_end`.
_PAGE, _TOGETHER, _PROBE = 500, 50, 20


# -- a summary ----------------------------------------------------------------------------------------------------------------


def summary(submission: Submission, progress: Progress, *, now_us: int) -> JobView:
    """Returns the history's summary of an ended submission: all that `rmgr history` and `rmgr show` show."""
    view = job_view(submission, progress, [])
    return view if view.ended_us else msgspec.structs.replace(view, ended_us=now_us)


class _Kept(JobView, frozen=True, kw_only=True):
    """A row of the history. began: as `Progress.began`; the view does not show it for attempts with unknown times."""

    began: bool = False


def history_rows(view: JobView, *, began: bool = False) -> list[tuple[str, bytes]]:
    """Returns store rows of a summary: for everyone, and by user (if a key can contain the user's name)."""
    data = encode_record(_Kept(**msgspec.structs.asdict(view), began=began))
    rows = [(keys.history(view.id), data)]
    with suppress(UsageError):
        rows.append((keys.history_of_user(view.user, view.id), data))
    return rows


def decode_summary(data: bytes) -> JobView:
    """Decodes a history row. Raises DataLost."""
    return _read(data, JobView)


def decode_ending(data: bytes) -> SubmissionEnd:
    """Returns what a history row says to submissions that depend on this one. Raises DataLost."""
    kept = _read(data, _Kept)
    began = kept.began or kept.started_us or kept.counts.get(State.COMPLETED) or kept.counts.get(State.FAILED)
    return SubmissionEnd(state=kept.state, began=bool(began))


def _read(data: bytes, kind: type[V]) -> V:
    try:
        return json_decoder(kind).decode(data)
    except UNREADABLE as error:
        hint = "was it written by a newer rmgr? rmgr version; else an operator asks: rmgr doctor"
        raise DataLost(f"a row of the history cannot be read: {error}", hint=hint) from None


# -- pages --------------------------------------------------------------------------------------------------------------------


def paged_with(paged: Paged, fragments: Sequence[Fragment]) -> Paged:
    """Returns `paged` extended by `fragments`, which follow its base and were written to a page."""
    ends = EndFold()
    for fragment in fragments:
        ends.fold(fragment.outcomes)
        for state, _, count in fragment.ranges if fragment.row else ():  # counts a row's tasks by their ranges: a page may have millions
            if state in ends.counts:
                ends.counts[state] += count
    counts = Counter(paged.counts) + Counter({str(state): count for state, count in ends.counts.items()})
    return Paged(base=paged.base + len(fragments), counts=dict(counts))


# -- collection ---------------------------------------------------------------------------------------------------------------


def kept_outputs(number: int, tail: Tail, ends: Iterable[tuple[Fragment, Outcome]]) -> list[tuple[str, str]]:
    """Returns (row of an output, row in which it is kept) for every keyed output of a COMPLETED task."""
    kept: list[tuple[str, str]] = []
    for fragment, outcome in ends:
        if outcome.state is not State.COMPLETED:
            continue
        by = reign_of(tail, outcome.index) if outcome.outputs else ""
        for n in range(outcome.outputs):
            pointer = keys.Pointer(sub=number, index=outcome.index, n=n, by=by)
            kept.append((keys.output(number, outcome.index, outcome.attempt or fragment.attempt, n), keys.final(pointer)))
    return kept


# -- rows in the store -------------------------------------------------------------------------------------------------------


def summary_of(store: Store, number: int, *, timeout_s: float = 30.0) -> JobView | None:
    """Returns the summary of a submission, None if there is none. Raises DataLost."""
    data = row_of(store, keys.history(number), MOST_SUMMARY_BYTES, timeout_s=timeout_s)
    return None if data is None else decode_summary(data)


def ending_of(store: Store, number: int) -> SubmissionEnd:
    """Returns the end of a submission for those that depend on it, from the history. Raises DataLost."""
    data = row_of(store, keys.history(number), MOST_SUMMARY_BYTES)
    return SubmissionEnd(known=False) if data is None else decode_ending(data)


def ended_before(
    store: Store, before_us: int, *, after: str = "", on_unreadable: Callable[[str], None] = lambda _: None, timeout_s: float = 30.0
) -> Iterator[JobView]:
    """Yields summaries of submissions that ended before `before_us` (wall clock), newest number first.

    Args:
        after: only rows behind this key. on_unreadable: called with a sentence about each unreadable row, which is skipped.
    Raises: StoreUnavailable. Cost: eleven reads for each 500 rows, 50 of them in memory.
    """
    while names := store.keys(keys.history_prefix(), after=after, limit=_PAGE, timeout_s=timeout_s):
        after = names[-1]
        yield from _ended(summaries(store, names, on_unreadable, timeout_s=timeout_s), before_us)


def oldest_end(store: Store, before_us: int) -> str:
    """Returns the key behind which `ended_before` finds what is old, without reading what is recent.

    A submission that ended long before others of lower numbers may be missed until those are old, too.
    Cost: two reads for each doubling of the number of submissions (about 20 for a million).
    """
    newest = store.keys(keys.history_prefix(), limit=1)
    low, high = 0, keys.parse_history(newest[0]) + 2 if newest else 1  # below `low` all is old, below `high` something is not
    while high - low > 1:
        middle = (low + high) // 2
        names = store.keys(keys.history_prefix(), after=keys.history(middle), limit=_PROBE)
        found = list(summaries(store, names, lambda _: None))
        if not found or any(True for _ in _ended(found, before_us)):
            low = middle
        else:
            high = middle
    return keys.history(low)


def forget(store: Store, view: JobView, *, timeout_s: float = 30.0) -> None:
    """Removes a submission from the history. Repeatable: the row by which it is found is deleted last."""
    with suppress(UsageError):  # no key can contain this user's name
        store.delete(keys.history_of_user(view.user, view.id), timeout_s=timeout_s)
    store.delete(keys.history(view.id), timeout_s=timeout_s)


def summaries(
    store: Store, names: Sequence[str], on_unreadable: Callable[[str], None], *, timeout_s: float = 30.0
) -> Iterator[JobView]:
    """Yields the summaries in some rows, 50 of them in memory. on_unreadable: see `ended_before`. Raises: StoreUnavailable."""
    for at in range(0, len(names), _TOGETHER):
        some = names[at : at + _TOGETHER]
        rows = store.get_noted_many(some, largest=MOST_SUMMARY_BYTES, timeout_s=timeout_s)
        for name in some:
            if name in rows:
                try:
                    yield decode_summary(rows[name][0] or b"")
                except DataLost as error:
                    on_unreadable(f"{name}: {error.message}")


def _ended(views: Iterable[JobView], before_us: int) -> Iterator[JobView]:
    return (view for view in views if view.ended_us and view.ended_us < before_us)
