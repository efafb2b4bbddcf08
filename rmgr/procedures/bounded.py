"""Rows of outcomes, pages of fragments and summaries, read within bounds: a user can write there whatever the store takes.

Whoever reads for many users, a leader or a Starter, must neither hold what one of them has left there nor go round in it for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Store
from rmgr.coord.protocol.records import decode_outcomes, decode_page
from rmgr.errors import DataLost
from rmgr.model.tasks.outcome import Fragment, Outcome

#: 256 outcomes with the longest results, errors and pieces of output are a third of it.
MOST_OUTCOMES_BYTES = 16 * 2**20
#: 180 fragments as large as a znode can be.
MOST_PAGE_BYTES = 64 * 2**20
#: What the history keeps of a submission: with the names of 10,000 nodes.
MOST_SUMMARY_BYTES = 2**20
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


def outcomes_in(store: Store, row: str, *, timeout_s: float = 30.0) -> tuple[Outcome, ...]:
    """The outcomes of one row. Raises DataLost: it is absent, or none."""
    data = row_of(store, row, MOST_OUTCOMES_BYTES, timeout_s=timeout_s)
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
    row = keys.page(number, at)
    data = row_of(store, row, MOST_PAGE_BYTES, timeout_s=timeout_s)
    if data is None:
        raise DataLost(f"page {at} of submission {number} is missing from the store", hint="rmgr doctor")
    try:
        page = decode_page(data)
    except msgspec.DecodeError as error:
        raise DataLost(f"row {row} is no page of fragments: {error}", hint="rmgr doctor") from None
    if not page:
        raise DataLost(f"page {at} of submission {number} is empty", hint="rmgr doctor")
    return page


def _decoded(row: str, data: bytes) -> tuple[Outcome, ...]:
    try:
        return tuple(decode_outcomes(data))
    except msgspec.DecodeError as error:
        raise DataLost(f"row {row} does not hold outcomes: {error}", hint="rmgr doctor") from None
