"""Reads rows that users can write within bounds: outcomes, pages of fragments, summaries, parts of logs.

A process that reads for many users, such as a leader or a Starter, must neither hold everything that one of them left there nor loop over
it for ever. The same goes for a client that follows others' work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import TIMEOUT_S, Store
from rmgr.coord.protocol.records import UNREADABLE, decode_outcomes, decode_page, split_page
from rmgr.errors import DataLost
from rmgr.model.block import Fragment, Outcome

T = TypeVar("T", bound=Sequence[object])
V = TypeVar("V")

#: 256 outcomes with the longest results, errors and pieces of output take a third of it.
MOST_OUTCOMES_BYTES = 16 * 2**20
#: 180 fragments as large as a znode can be.
MOST_PAGE_BYTES = 64 * 2**20
#: The history's summary of a submission, with the names of 10,000 nodes.
MOST_SUMMARY_BYTES = 2**20
#: A part of a log takes a quarter of it.
MOST_LOG_PART_BYTES = 2**20
#: Rows of outcomes in memory at once.
_TOGETHER = 8


def row_of(store: Store, row: str, most: int, *, timeout_s: float = TIMEOUT_S) -> bytes | None:
    """Returns a row of at most `most` bytes, None if absent. Raises DataLost if it is larger."""
    found = store.get_noted_many([row], largest=most, timeout_s=timeout_s).get(row)
    if found is None:
        return None
    data, about = found
    if data is None:
        raise DataLost(f"row {row} has {about.size:,} bytes, more than rmgr ever writes there", hint="rmgr doctor")
    return data


def rows_within(store: Store, rows: Sequence[str], most: int, *, timeout_s: float = TIMEOUT_S) -> dict[str, bytes]:
    """Returns those rows that exist and have at most `most` bytes."""
    found = store.get_noted_many(rows, largest=most, timeout_s=timeout_s) if rows else {}
    return {row: data for row, (data, _) in found.items() if data is not None}


def outcomes_in(store: Store, row: str) -> tuple[Outcome, ...]:
    """Returns the outcomes of one row. Raises DataLost if it is absent or invalid."""
    data = row_of(store, row, MOST_OUTCOMES_BYTES)
    if data is None:
        raise DataLost(f"outcomes in row {row} are missing from the store", hint="rmgr doctor")
    return _decoded(row, data)


def outcomes_of_rows(store: Store, rows: Sequence[str]) -> Iterator[tuple[str, tuple[Outcome, ...]]]:
    """Yields the outcomes of several rows, in order, a few rows in memory at a time; skips absent and invalid rows."""
    for at in range(0, len(rows), _TOGETHER):
        some = rows[at : at + _TOGETHER]
        found = store.get_noted_many(some, largest=MOST_OUTCOMES_BYTES)
        for row in some:
            data = found[row][0] if row in found else None
            if data is not None:
                try:
                    yield row, _decoded(row, data)
                except DataLost:
                    continue


def page_at(store: Store, number: int, at: int, *, timeout_s: float = TIMEOUT_S) -> tuple[Fragment, ...]:
    """Returns the page of a submission that begins with fragment `at`, never empty. Raises DataLost if it is absent or invalid."""
    return _page_at(store, number, at, decode_page, timeout_s)


def pages(
    store: Store, number: int, at: int, base: int, read: Callable[[Store, int, int], Sequence[V]]
) -> Iterator[tuple[int, Sequence[V]]]:
    """Yields (number of its first fragment, page) of the pages of a submission from the one at `at` on, below `base`. Raises DataLost."""
    while at < base:
        page = read(store, number, at)
        yield at, page
        at += len(page)


def raw_page_at(store: Store, number: int, at: int) -> list[bytes]:
    """Returns the same page with each fragment as written, including what a newer release added or signed. Raises DataLost."""
    return _page_at(store, number, at, split_page)


def _page_at(store: Store, number: int, at: int, decode: Callable[[bytes], T], timeout_s: float = TIMEOUT_S) -> T:
    row = keys.page(number, at)
    data = row_of(store, row, MOST_PAGE_BYTES, timeout_s=timeout_s)
    if data is None:
        raise DataLost(f"page {at} of submission {number} is missing from the store", hint="rmgr doctor")
    try:
        page = decode(data)
    except UNREADABLE as error:
        raise DataLost(f"row {row} is no page of fragments: {error}", hint="rmgr doctor") from None
    if not page:
        raise DataLost(f"page {at} of submission {number} is empty", hint="rmgr doctor")
    return page


def _decoded(row: str, data: bytes) -> tuple[Outcome, ...]:
    try:
        return tuple(decode_outcomes(data))
    except UNREADABLE as error:
        raise DataLost(f"row {row} does not hold outcomes: {error}", hint="rmgr doctor") from None
