"""A code for each task of a submission, in pages: memory follows what was told of the tasks, however many there are and far away they lie.

A page is written as it is, a byte a task. Of many such pages those that say little are folded: kept as their runs of equal codes, three
bytes each. So 4,096 tasks that all ended alike weigh 3 bytes, and so does one outcome that lies far from all others (and some 140 for the
page): what a user writes costs the leader no more than about seven times what it weighs in ZooKeeper.
"""

from __future__ import annotations

#: Tasks of a page, and bytes by which a page grows.
_BITS = 12
_TASKS = 1 << _BITS
_GROWTH = 64
#: Open pages before some are folded, and runs of a folded one at most.
_OPEN, _RUNS = 4, 64
#: One task with each code.
_ONE = tuple(bytes((code,)) for code in range(256))


class Codes:
    """Codes 1..255 by index; 0 = none. Cost: 0.1 us an index; a page is folded or opened in 5 us."""

    __slots__ = ("_most_open", "_open", "pages")

    def __init__(self) -> None:
        self.pages: dict[int, bytearray | bytes] = {}  #: open, or folded: (start, code) of each run
        self._open = 0
        self._most_open = _OPEN

    def __getitem__(self, index: int) -> int:
        page = self.pages.get(index >> _BITS)
        low = index & (_TASKS - 1)
        if type(page) is bytes:
            return _code_at(page, low)
        return page[low] if page is not None and low < len(page) else 0

    def __setitem__(self, index: int, code: int) -> None:
        self.room(index)[index & (_TASKS - 1)] = code

    def room(self, index: int) -> bytearray:
        """The page of an index, long enough for it, until the next call. Where in it: the lowest 12 bits of the index."""
        number = index >> _BITS
        page = self.pages.get(number)
        if type(page) is not bytearray:
            if self._open >= self._most_open:
                self._fold()
            page = self.pages[number] = bytearray() if page is None else bytearray(_unfolded(page))
            self._open += 1
        low = index & (_TASKS - 1)
        if low >= len(page):
            page.extend(bytes(min(low + _GROWTH, _TASKS) - len(page)))
        return page

    def copy(self) -> Codes:
        """The same at this moment. Cost: O(bytes)."""
        twin = Codes()
        twin.pages = {number: page[:] for number, page in self.pages.items()}
        twin._open, twin._most_open = self._open, self._most_open
        return twin

    @property
    def count(self) -> int:
        """Indices with a code. Cost: O(bytes)."""
        pages = (_unfolded(page) for page in self.pages.values())
        return sum(len(page) - page.count(0) for page in pages)

    def without(self, start: int, stop: int, most: int) -> list[int]:
        """The first indices from `start` to below `stop` that have no code, at most so many. Cost: O(those, and pages looked through)."""
        found: list[int] = []
        at = start
        while at < stop and len(found) < most:
            end = min(stop, ((at >> _BITS) + 1) << _BITS)
            page, base = _unfolded(self.pages.get(at >> _BITS, b"")), at & -_TASKS
            known = min(end, base + len(page))
            low = page.find(0, at - base, known - base) if at < known else -1
            while low >= 0 and len(found) < most:
                found.append(base + low)
                low = page.find(0, low + 1, known - base)
            found += range(max(at, known), min(end, max(at, known) + most - len(found)))
            at = end
        return found

    def _fold(self) -> None:
        """Open pages that say little; twice as many as then are left may be open before the next time."""
        left = 0
        for number, page in self.pages.items():
            if type(page) is bytearray:
                folded = _folded(page)
                if folded is None:
                    left += 1
                else:
                    self.pages[number] = folded  # a value only: the table stays as it is
        self._open, self._most_open = left, max(_OPEN, 2 * left)


def _folded(page: bytearray) -> bytes | None:
    """Its runs, None where there are too many."""
    runs = bytearray()
    left, at = bytes(page), 0
    while left:
        if len(runs) >= 3 * _RUNS:
            return None
        code = left[0]
        runs += at.to_bytes(2, "big")
        runs.append(code)
        rest = left.lstrip(_ONE[code])
        at += len(left) - len(rest)
        left = rest
    if at < _TASKS:
        runs += at.to_bytes(2, "big") + b"\0"
    return bytes(runs)


def _unfolded(page: bytearray | bytes) -> bytearray | bytes:
    """As it was before, without what has no code at its end."""
    if type(page) is bytearray or not page:
        return page
    starts = [int.from_bytes(page[at : at + 2], "big") for at in range(0, len(page), 3)]
    ends = [*starts[1:], _TASKS if page[-1] else starts[-1]]
    return b"".join([_ONE[code] * (end - start) for start, end, code in zip(starts, ends, page[2::3], strict=True)])


def _code_at(page: bytes, low: int) -> int:
    low_, high = 0, len(page) // 3
    while high - low_ > 1:
        middle = (low_ + high) >> 1
        if int.from_bytes(page[3 * middle : 3 * middle + 2], "big") <= low:
            low_ = middle
        else:
            high = middle
    return page[3 * low_ + 2]
