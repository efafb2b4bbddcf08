"""Output of attempts that have ended: parts in the data store, then the rest that rode in the outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Store
from rmgr.model.tasks.gap import place

_BATCH = 16


def read_ended(
    store: Store | None, number: int, position: int, attempt: int, stream: str, *, parts: int, rest: bytes, timeout_s: float = 30.0
) -> Iterator[bytes]:
    """One stream of an attempt from its beginning. A part that is gone (retention) is left out.

    Raises: StoreUnavailable, DataLost.
    """
    names = [keys.log(number, position, attempt, stream, part) for part in range(parts)]
    if store is not None:
        for at in range(0, len(names), _BATCH):
            rows = store.get_many(names[at : at + _BATCH], timeout_s=timeout_s)
            yield from (rows[name][0] for name in names[at : at + _BATCH] if name in rows)
    if rest:
        yield rest


def read_flushed(store: Store, number: int, position: int, attempt: int, stream: str, *, timeout_s: float = 30.0) -> Iterator[bytes]:
    """What was flushed of an attempt whose end nobody told: it runs still, or died with its node."""
    prefix, after = keys.logs_of(number, position, attempt, stream), ""
    while names := store.keys(prefix, after=after, limit=_BATCH, timeout_s=timeout_s):
        rows = store.get_many(names, timeout_s=timeout_s)
        yield from (rows[name][0] for name in names if name in rows)
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
    text = b"".join(pieces)[-64 * 1024 :].decode("utf-8", "replace")
    return text.splitlines()[-lines:]
