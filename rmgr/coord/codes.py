"""One byte a task of a submission, in pages: memory follows what was written, however far away an index is."""

from __future__ import annotations

#: Tasks of a page, and bytes by which a page grows.
_BITS = 12
_TASKS = 1 << _BITS
_GROWTH = 64


class Codes:
    """Codes 1..255 by index; 0 = none. Cost: 0.1 us an index; a page has at most 4 KiB, and as much as its highest index needs."""

    __slots__ = ("pages",)

    def __init__(self) -> None:
        self.pages: dict[int, bytearray] = {}

    def __getitem__(self, index: int) -> int:
        page = self.pages.get(index >> _BITS)
        low = index & (_TASKS - 1)
        return page[low] if page is not None and low < len(page) else 0

    def __setitem__(self, index: int, code: int) -> None:
        self.room(index)[index & (_TASKS - 1)] = code

    def room(self, index: int) -> bytearray:
        """The page of an index, long enough for it. Where in it: the lowest 12 bits of the index."""
        page = self.pages.get(index >> _BITS)
        if page is None:
            page = self.pages[index >> _BITS] = bytearray()
        low = index & (_TASKS - 1)
        if low >= len(page):
            page.extend(bytes(min(low + _GROWTH, _TASKS) - len(page)))
        return page

    def copy(self) -> Codes:
        """The same at this moment. Cost: O(bytes)."""
        twin = Codes()
        twin.pages = {number: bytearray(page) for number, page in self.pages.items()}
        return twin

    @property
    def count(self) -> int:
        """Indices with a code."""
        return sum(len(page) - page.count(0) for page in self.pages.values())

    def without(self, start: int, stop: int, most: int) -> list[int]:
        """The first indices from `start` to below `stop` that have no code, at most so many. Cost: O(those, and pages looked through)."""
        found: list[int] = []
        at = start
        while at < stop and len(found) < most:
            end = min(stop, ((at >> _BITS) + 1) << _BITS)
            page, base = self.pages.get(at >> _BITS, b""), at & -_TASKS
            known = min(end, base + len(page))
            low = page.find(0, at - base, known - base) if at < known else -1
            while low >= 0 and len(found) < most:
                found.append(base + low)
                low = page.find(0, low + 1, known - base)
            found += range(max(at, known), min(end, max(at, known) + most - len(found)))
            at = end
        return found
