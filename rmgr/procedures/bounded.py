"""Rows that users can write, read within bounds: outcomes, pages of fragments, summaries, parts of logs.

Whoever reads for many users, a leader or a Starter, must neither hold what one of them has left there nor go round in it for ever.
Nor must a client that follows the work of others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Store
from rmgr.coord.protocol.records import UNREADABLE, decode_outcomes, decode_page, split_page
from rmgr.errors import DataLost
from rmgr.model.tasks.block import Fragment, Outcome

T = TypeVar("T", bound=Sequence[object])

#: 256 outcomes with the longest results, errors and pieces of output are a third of it.
MOST_OUTCOMES_BYTES = 16 * 2**20
#: 180 fragments as large as a znode can be.
MOST_PAGE_BYTES = 64 * 2**20
#: What the history keeps of a submission: with the names of 10,000 nodes.
MOST_SUMMARY_BYTES = 2**20
#: A part of a log has a quarter of it.
MOST_LOG_PART_BYTES = 2**20
#: Rows of outcomes in memory at a time.
_TOGETHER = 8


def row_of(store: Store, row: str, most: int, *, timeout_s: float = 30.0) -> bytes | None:
    """A row of at most so many bytes, None when it is absent. Raises DataLost: it is larger."""
    found = store.get_noted_many([row], largest=most, timeout_s=timeout_s).get(row)
    if found is None:
        return None
    data, about = found
    if data is None:
        raise DataLost(f"row {row} has {about.size:,} bytes, more than rmgr ever writes there", hint="rmgr doctor")
    return data


def rows_within(store: Store, rows: Sequence[str], most: int, *, timeout_s: float = 30.0) -> dict[str, bytes]:
    """Those of some rows that are there and have at most so many bytes."""
    found = store.get_noted_many(rows, largest=most, timeout_s=timeout_s) if rows else {}
    return {row: data for row, (data, _) in found.items() if data is not None}


def outcomes_in(store: Store, row: str) -> tuple[Outcome, ...]:
    """The outcomes of one row. Raises DataLost: it is absent, or none."""
    data = row_of(store, row, MOST_OUTCOMES_BYTES)
    if data is None:
        raise DataLost(f"outcomes in row {row} are missing from the store", hint="rmgr doctor")
    return _decoded(row, data)


def outcomes_of_rows(store: Store, rows: Sequence[str]) -> Iterator[tuple[str, tuple[Outcome, ...]]]:
    """The outcomes of several rows, in their order, a few rows in memory at a time; those that are absent, or none, are left out."""
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


def page_at(store: Store, number: int, at: int, *, timeout_s: float = 30.0) -> tuple[Fragment, ...]:
    """The page of a submission that begins with fragment `at`: at least one. Raises DataLost: it is absent, or none."""
    return _page_at(store, number, at, decode_page, timeout_s)


def raw_page_at(store: Store, number: int, at: int, *, timeout_s: float = 30.0) -> list[bytes]:
    """The same, each fragment as it was written: with what a newer release has said, or signed. Raises DataLost."""
    return _page_at(store, number, at, split_page, timeout_s)


def _page_at(store: Store, number: int, at: int, decode: Callable[[bytes], T], timeout_s: float) -> T:
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
