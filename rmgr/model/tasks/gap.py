"""The line in place of the middle of an output over its cap: how it is made and found, and which positions it stands for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

#: A program may print such a line itself, so its numbers are bounded by a file's size.
_LINE = re.compile(rb"\n\[rmgr: (\d{1,15}) bytes of output dropped here, the limit is (\d{1,15})\]\n")
_LONGEST = 100  #: most bytes of the line


def gap_line(dropped: int, cap: int) -> bytes:
    """Returns the line in place of `dropped` bytes of an output that may keep `cap` bytes."""
    return f"\n[rmgr: {dropped} bytes of output dropped here, the limit is {cap}]\n".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A piece of output and its place in the output as written: bytes `start` to `end`; a gap (`dropped` > 0) has a line for them."""

    data: bytes
    start: int
    end: int
    dropped: int = 0
    cap: int = 0

    def fresh(self, shown: int) -> bytes:
        """Returns what is new to a reader of the first `shown` bytes as written; for a gap, a line that counts the missing bytes."""
        if shown <= self.start:
            return self.data
        if self.dropped:
            return gap_line(self.end - shown, self.cap) if shown < self.end else b""
        return self.data[shown - self.start :]


def place(pieces: Iterable[bytes]) -> Iterator[Placed]:
    """Yields pieces of a stored output, in order, with their places. Cost: holds one piece and 100 bytes."""
    at, data = 0, b""
    for piece in pieces:
        data += piece
        while (found := _LINE.search(data)) is not None:
            if found.start():
                yield Placed(data=data[: found.start()], start=at, end=at + found.start())
            at += found.start()
            dropped = int(found[1])
            yield Placed(data=found[0], start=at, end=at + dropped, dropped=dropped, cap=int(found[2]))
            at += dropped
            data = data[found.end() :]
        if len(data) > _LONGEST:
            yield Placed(data=data[:-_LONGEST], start=at, end=at + len(data) - _LONGEST)
            at += len(data) - _LONGEST
            data = data[-_LONGEST:]
    if data:
        yield Placed(data=data, start=at, end=at + len(data))
