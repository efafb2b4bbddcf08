"""Old rows of the history in the data store: which submissions ended before a moment, and their removal.

Rows are named by the number of their submission, not by when it ended. Numbers grow with time, so all but the submissions
that lived long are found from the oldest end (`oldest_end`); each row is looked at before it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from rmgr.coord.decisions.keeping import SubmissionEnd
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Store
from rmgr.coord.views.closing import decode_ending, decode_summary
from rmgr.errors import DataLost, UsageError
from rmgr.model.views import JobView
from rmgr.procedures.bounded import MOST_SUMMARY_BYTES, row_of

#: Keys listed at once, their rows in memory at a time, and rows that one probe of `oldest_end` looks at.
_PAGE, _TOGETHER, _PROBE = 500, 50, 20


def summary_of(store: Store, number: int, *, timeout_s: float = 30.0) -> JobView | None:
    """What the history keeps of a submission, None when there is nothing. Raises DataLost."""
    data = row_of(store, keys.history(number), MOST_SUMMARY_BYTES, timeout_s=timeout_s)
    return None if data is None else decode_summary(data)


def ending_of(store: Store, number: int, *, timeout_s: float = 30.0) -> SubmissionEnd:
    """What the history tells those that wait for a submission. Raises DataLost."""
    data = row_of(store, keys.history(number), MOST_SUMMARY_BYTES, timeout_s=timeout_s)
    return SubmissionEnd(known=False) if data is None else decode_ending(data)


def ended_before(
    store: Store, before_us: int, *, after: str = "", on_unreadable: Callable[[str], None] = lambda _: None, timeout_s: float = 30.0
) -> Iterator[JobView]:
    """Summaries of submissions that ended before `before_us` (wall clock), newest number first.

    Args:
        after: only rows behind this key. on_unreadable: gets a sentence about each row that cannot be read; it is left out.
    Raises: StoreUnavailable. Cost: eleven reads for each 500 rows, 50 of them in memory.
    """
    while names := store.keys(keys.history_prefix(), after=after, limit=_PAGE, timeout_s=timeout_s):
        after = names[-1]
        yield from _ended(summaries(store, names, on_unreadable, timeout_s=timeout_s), before_us)


def oldest_end(store: Store, before_us: int, *, timeout_s: float = 30.0) -> str:
    """The key behind which `ended_before` finds what is old, without reading what is recent.

    A submission that ended long before others of lower numbers may be missed, until the moment has moved on past those.
    Cost: two reads for each doubling of the number of submissions (about 20 for a million).
    """
    newest = store.keys(keys.history_prefix(), limit=1, timeout_s=timeout_s)
    low, high = 0, keys.parse_history(newest[0]) + 2 if newest else 1  # below `low` all is old, below `high` something is not
    while high - low > 1:
        middle = (low + high) // 2
        names = store.keys(keys.history_prefix(), after=keys.history(middle), limit=_PROBE, timeout_s=timeout_s)
        found = list(summaries(store, names, lambda _: None, timeout_s=timeout_s))
        if not found or any(True for _ in _ended(found, before_us)):
            low = middle
        else:
            high = middle
    return keys.history(low)


def forget(store: Store, view: JobView, *, timeout_s: float = 30.0) -> None:
    """Removes a submission from the history. Repeatable: the row that is found again goes last."""
    with suppress(UsageError):  # the name of a user that no key can hold
        store.delete(keys.history_of_user(view.user, view.id), timeout_s=timeout_s)
    store.delete(keys.history(view.id), timeout_s=timeout_s)


def summaries(
    store: Store, names: Sequence[str], on_unreadable: Callable[[str], None], *, timeout_s: float = 30.0
) -> Iterator[JobView]:
    """The summaries in some rows, 50 of them in memory. on_unreadable: see `ended_before`. Raises: StoreUnavailable."""
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
