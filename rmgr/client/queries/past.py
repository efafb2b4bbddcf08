"""Reads summaries of submissions that have ended and left ZooKeeper, from the data store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rmgr.coord.protocol import keys
from rmgr.errors import RmgrError, UsageError
from rmgr.model.views import JobView
from rmgr.procedures.history import summaries, summary_of

if TYPE_CHECKING:
    from rmgr.client.queries.doors import HistoryHost
    from rmgr.coord.protocol.ports import Store

_PAGE = 500


def store_or_none(host: HistoryHost) -> Store | None:
    """The data store; None, with a note, where it cannot be opened: for questions that it only helps to answer."""
    try:
        return host.data_store()
    except RmgrError as error:
        host.note(f"{error.message}; what lies in the data store is missing here")
        return None


def read_past(host: HistoryHost, number: int) -> JobView | None:
    """The summary of one submission, None when there is none (or no store is configured)."""
    return past_of(host, number) if store_or_none(host) is not None else None


def past_of(host: HistoryHost, number: int) -> JobView | None:
    """The summary of one submission, None when there is none. Raises: StoreUnavailable, NotConnected, DataLost. Cost: one read."""
    return summary_of(host.data_store(), number, timeout_s=host.left_s(30.0) or 30.0)


def list_past(host: HistoryHost, *, user: str | None) -> Iterator[JobView]:
    """Summaries, newest first, 50 of them in memory. Raises StoreUnavailable. Cost: eleven reads for each 500."""
    store = host.data_store()
    try:
        prefix, after = keys.history_prefix(user), ""
    except UsageError:  # a name that no key can hold has no rows of its own: they are among everybody's
        yield from (job for job in list_past(host, user=None) if job.user == user)
        return
    while True:
        timeout_s = host.left_s(30.0) or 30.0
        names = store.keys(prefix, after=after, limit=_PAGE, timeout_s=timeout_s)
        if not names:
            return
        yield from summaries(store, names, lambda why: host.note(f"{why} (left out)"), timeout_s=timeout_s)
        after = names[-1]
