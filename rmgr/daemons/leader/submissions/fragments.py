"""Fragments as the leader reads them: whole pages from the store, and how far one reaches. Pure but for the store."""

from __future__ import annotations

from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Store
from rmgr.coord.protocol.records import decode_page
from rmgr.errors import DataLost
from rmgr.model.tasks.outcome import Fragment


def reaches(fragment: Fragment, end: int) -> bool:
    """It tells of tasks from `end` on. Cost: O(outcomes)."""
    if fragment.row:
        return any(first + count > end for _, first, count in fragment.ranges)
    return bool(fragment.outcomes) and max([outcome.index for outcome in fragment.outcomes]) >= end


def read_pages(store: Store, *, number: int, start: int, base: int) -> list[tuple[int, Fragment]]:
    """Paged fragments from `start` to below `base`; a page is named by its first fragment. On a thread that may wait."""
    found: list[tuple[int, Fragment]] = []
    at = 0
    while at < base:
        row = store.get(keys.page(number, at))
        if row is None:
            raise DataLost(f"page {at} of submission {number} is missing from the store", hint="rmgr doctor")
        fragments = decode_page(row[0])
        found += [(at + offset, fragment) for offset, fragment in enumerate(fragments) if at + offset >= start]
        at += len(fragments)
    return found
