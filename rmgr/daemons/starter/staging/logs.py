"""Rows of the output of one attempt: written while it runs, so that they outlive the node, and completed at its end.

One rule for a stream of more than the cap: its first and its last half are kept, and a line between them counts what is missing. While
the work runs this is about so, in whole rows. A reader that falls behind a fast writer finds another gap, which has its own line. If the
store would have more than that at the end, what follows the first half is written anew, as the runner kept it.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from rmgr.adapters.host.accounts import Account, open_regular
from rmgr.coord.protocol.ports import Store
from rmgr.model.block import gap_line, place
from rmgr.model.frames import MAX_INLINE_OUTPUT, Output

#: Size of one row of a log; longer output has several.
LOG_PART_BYTES = 256 * 1024


@dataclass(slots=True, kw_only=True)
class StoredStream:
    """What the store has of one stream of an attempt.

    size: how far it goes, in bytes as written. parts: number of the next row. head: bytes before the first gap, or before what may become
    one. tail: (row, its bytes as written, its bytes in the store) after that. gap: the row whose line counts missing bytes, -1 if there is
    none; dropped: so many bytes.
    """

    size: int = 0
    parts: int = 0
    head: int = 0
    tail: deque[tuple[int, int, int]] = field(default_factory=deque)
    tail_bytes: int = 0
    gap: int = -1
    dropped: int = 0

    def add(self, following: int, stored: int, cap: int) -> None:
        """Adds the next row: `stored` bytes, which go up to `following` in the output as written; more than these if it tells a gap."""
        written = following - self.size
        if written == stored and not self.tail and self.head < cap // 2:
            self.head = following
        else:
            self.tail.append((self.parts, written, stored))
            self.tail_bytes += stored
        self.size = following
        self.parts += 1

    def cut(self, store: Store, row: Callable[[int], str], cap: int, ttl_s: float | None) -> None:
        """Deletes the oldest rows of a tail that has grown too long. A repetition after a failure does the same."""
        left, surplus = self.tail_bytes, 0
        while left > cap - cap // 2 and surplus < len(self.tail) - 1:
            left -= self.tail[surplus][2]
            surplus += 1
        if not surplus:
            return
        gone = [self.tail[at] for at in range(surplus)]
        gap = gone[0][0] if self.gap < 0 else self.gap
        dropped = self.dropped + sum(written for _, written, _ in gone)
        store.put(row(gap), gap_line(dropped, cap), ttl_s=ttl_s)
        store.delete_many([row(part) for part, _, _ in gone if part != gap])
        self.gap, self.dropped, self.tail_bytes = gap, dropped, left
        for _ in gone:
            self.tail.popleft()

    def end(
        self, store: Store, row: Callable[[int], str], output: Output, account: Account | None, *, ttl_s: float | None, most: int = 0
    ) -> tuple[bytes, int]:
        """Stores the rest of the whole output; returns its last bytes, for the outcome, and the number of rows. Idempotent.

        most: about how many bytes of a file are stored, 0 = all.
        """
        if not output.path:
            return output.data[self.size :], self.parts
        replaced: list[int] = []
        if output.dropped and self.head + self.tail_bytes + output.size - self.size > output.size - output.dropped + LOG_PART_BYTES:
            # The file has a last half of its own: it takes the place of the rows that were to be the last half.
            replaced = [part for part, _, _ in self.tail] + ([self.gap] if self.gap >= 0 else [])
        rest, part = b"", self.parts
        pieces = _read_from(output, self.head if replaced else self.size, account, most)
        data = next(pieces, b"")
        while data:
            following = next(pieces, b"")
            if not following and len(data) <= MAX_INLINE_OUTPUT:
                rest = data
                break
            store.put(row(part), data, ttl_s=ttl_s)
            part += 1
            data = following
        if replaced:
            store.delete_many([row(number) for number in replaced])
        return rest, part


def _read_from(output: Output, offset: int, account: Account | None, most: int) -> Iterator[bytes]:
    """Yields an output file beyond its first `offset` bytes as written, in pieces of LOG_PART_BYTES except the last."""
    with open(open_regular(output.path, account), "rb") as file:
        # A growing file, or one with terabytes of holes, would keep its thread for ever. A line replaces the gap above `most`.
        pieces = islice(iter(partial(file.read, LOG_PART_BYTES), b""), most // LOG_PART_BYTES + 2 if most else None)
        if not output.dropped:
            file.seek(offset)
            yield from pieces
            return
        rest = b""
        for placed in place(pieces):
            rest += placed.fresh(offset)
            while len(rest) >= LOG_PART_BYTES:
                yield rest[:LOG_PART_BYTES]
                rest = rest[LOG_PART_BYTES:]
        if rest:
            yield rest


@dataclass(slots=True, kw_only=True)
class Flushed:
    """Stored output of a running attempt, by stream (stdout, stderr)."""

    streams: tuple[StoredStream, StoredStream] = field(default_factory=lambda: (StoredStream(), StoredStream()))
    lock: threading.Lock = field(default_factory=threading.Lock)  #: held while rows are written
    next_s: float = -math.inf  #: monotonic time of the next flush
    every_s: float = 2.0
    is_flushing: bool = False
