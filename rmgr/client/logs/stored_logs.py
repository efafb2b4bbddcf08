"""Output of attempts that have ended: parts in the data store, then the rest that rode in the outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Store
from rmgr.model.tasks.gap import place
from rmgr.procedures.bounded import MOST_LOG_PART_BYTES, rows_within

_BATCH = 16


def read_ended(
    store: Store | None, number: int, position: int, attempt: int, stream: str, *, parts: int, rest: bytes, timeout_s: float = 30.0
) -> Iterator[bytes]:
    """One stream of an attempt from its beginning. A part that is gone (retention), or is none, is left out.

    Raises: StoreUnavailable, DataLost. Cost: a read for each 16 parts, and a listing where none of these is there.
    """
    prefix, at = keys.logs_of(number, position, attempt, stream), 0
    while store is not None and at < parts:
        names = [keys.log(number, position, attempt, stream, part) for part in range(at, min(at + _BATCH, parts))]
        rows = rows_within(store, names, MOST_LOG_PART_BYTES, timeout_s=timeout_s)
        yield from (rows[name] for name in names if name in rows)
        at += _BATCH
        if not rows:  # who says that there are billions of parts sends nobody through all of them
            at = _next_part(store, prefix, names[-1], timeout_s, none=parts)
    if rest:
        yield rest


def read_part(store: Store, number: int, position: int, attempt: int, stream: str, part: int, *, timeout_s: float = 30.0) -> bytes:
    """One part of a stream, b"" where it is gone, or is none. Raises: StoreUnavailable. Cost: one read."""
    row = keys.log(number, position, attempt, stream, part)
    return rows_within(store, [row], MOST_LOG_PART_BYTES, timeout_s=timeout_s).get(row, b"")


def _next_part(store: Store, prefix: str, after: str, timeout_s: float, *, none: int) -> int:
    """The number of the first part behind this key; `none`: there is no other."""
    length = len(after)
    while names := store.keys(prefix, after=after, limit=_BATCH, timeout_s=timeout_s):
        for name in names:
            digits = name.removeprefix(prefix)
            if len(name) == length and digits.isascii() and digits.isdigit():
                return int(digits)
        after = names[-1]
    return none


def read_flushed(store: Store, number: int, position: int, attempt: int, stream: str, *, timeout_s: float = 30.0) -> Iterator[bytes]:
    """What was flushed of an attempt whose end nobody told: it runs still, or died with its node."""
    prefix, after = keys.logs_of(number, position, attempt, stream), ""
    while names := store.keys(prefix, after=after, limit=_BATCH, timeout_s=timeout_s):
        rows = rows_within(store, names, MOST_LOG_PART_BYTES, timeout_s=timeout_s)
        yield from (rows[name] for name in names if name in rows)
        after = names[-1]


def unseen(pieces: Iterable[bytes], shown: int, *, on_drop: Callable[[int, int], None] = lambda _count, _cap: None) -> Iterator[bytes]:
    """What of a stored stream is news to someone who was shown its first `shown` bytes while it grew.

    Where the middle of an output over the cap was dropped, a line says so in what is stored: `on_drop` is told how many
    bytes are missing, and the cap; the line itself is shown to who has not got past it.
    """
    for placed in place(pieces):
        if placed.dropped:
            on_drop(placed.dropped, placed.cap)
        yield placed.fresh(shown)


def tail_of(pieces: Sequence[bytes], lines: int) -> list[str]:
    """The last lines of some output, for a message."""
    rows = b"".join(pieces)[-64 * 1024 :].splitlines()  # of bytes: at \n and \r alone, so that of a progress bar the last state is shown
    return [row.decode("utf-8", "replace") for row in rows[-lines:]]
