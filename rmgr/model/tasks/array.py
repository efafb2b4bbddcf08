"""Array expressions: `1-100:2%8` and `1,3,5-9`; dense positions inside, the expression's numbers for people."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from math import gcd

from rmgr.errors import UsageError
from rmgr.model.base.ids import MAX_NUMBER
from rmgr.model.base.units import counted

#: Most tasks of one array.
MAX_TASKS = 10_000_000

_RANGE = re.compile(r"^(\d{1,18})(?:-(\d{1,18})(?::(\d{1,18}))?)?$")
#: Most pairs of ranges whose bounds overlap.
_MOST_PAIRS = 50_000
_HINT = "arrays look like 1-100, 0-99:2, 1,3,5-9, with %8 at the end for at most 8 at a time"


@dataclass(frozen=True, slots=True)
class Array:
    """Parts of an array expression as ranges, in the order written, without repeated numbers.

    max_running: most slots in use (`%8`), 0 = no cap.
    """

    parts: tuple[range, ...]
    starts: tuple[int, ...]  #: position of the first number of each part
    max_running: int = 0

    def __len__(self) -> int:
        return self.starts[-1] + len(self.parts[-1])

    def __iter__(self) -> Iterator[int]:
        """Yields the numbers, in the order written."""
        return chain.from_iterable(self.parts)

    def index_at(self, position: int) -> int:
        """Returns the number of the task at dense `position`. Raises IndexError. Cost: O(log parts)."""
        if not 0 <= position < len(self):
            raise IndexError(f"position {position} of an array of {len(self)}")
        part = bisect_right(self.starts, position) - 1
        return self.parts[part][position - self.starts[part]]

    def position_of(self, index: int) -> int | None:
        """Returns the dense position of task number `index`, None if the array lacks it. Cost: O(parts)."""
        for start, part in zip(self.starts, self.parts, strict=True):
            if index in part:
                return start + part.index(index)
        return None


def parse_array(text: str) -> Array:
    """Parses an array expression. Raises UsageError for a malformed, empty or too large one, or one with a repeated number."""
    body, percent, cap = text.strip().partition("%")
    if percent and (not cap.isascii() or not cap.isdigit() or int(cap) < 1):
        raise UsageError(f"{text!r} is not an array: {cap!r} after % is not a number from 1", hint=_HINT)
    parts = tuple(_part(text, piece.strip()) for piece in body.split(","))
    starts, total = [], 0
    for part in parts:
        starts.append(total)
        total += len(part)
    if total > MAX_TASKS:
        raise UsageError(f"{text!r} has {counted(total, 'task')}; the limit is {MAX_TASKS:,}", hint="submit it in parts")
    _refuse_repeats(text, parts)
    return Array(parts, tuple(starts), int(cap) if percent else 0)


def shown_index(array: str, position: int) -> int:
    """Returns the number that people see for the task at `position` of a submission with this array expression ("" = none)."""
    return parse_array(array).index_at(position) if array else position


def _part(text: str, piece: str) -> range:
    match = _RANGE.match(piece) if piece.isascii() else None
    if match is None:
        raise UsageError(f"{text!r} is not an array: {piece!r} is not a number or a range", hint=_HINT)
    first, last = int(match[1]), int(match[2] or match[1])
    step = int(match[3] or 1)
    if last < first:
        raise UsageError(f"{text!r} is not an array: the range {piece!r} runs backwards", hint=_HINT)
    if step < 1:
        raise UsageError(f"{text!r} is not an array: the step of {piece!r} is 0", hint=_HINT)
    if last > MAX_NUMBER:
        raise UsageError(f"{text!r} is not an array: {last} is larger than {MAX_NUMBER}", hint=_HINT)
    return range(first, last + 1, step)


def _refuse_repeats(text: str, parts: tuple[range, ...]) -> None:
    """Raises UsageError for repeated numbers. Cost: O(parts log parts), plus 1 us per overlapping pair: anybody may send an array."""
    ordered = sorted(parts, key=lambda part: (part[0], part[-1]))
    pairs = 0
    for at, part in enumerate(ordered):
        for behind in range(at + 1, len(ordered)):
            other = ordered[behind]
            if other[0] > part[-1]:
                break
            pairs += 1
            if pairs > _MOST_PAIRS:
                raise UsageError(f"{text[:80]!r} is not an array: too many of its ranges overlap", hint="submit it in parts")
            twice = _common(part, other)
            if twice is not None:
                raise UsageError(f"{text!r} is not an array: {twice} stands in it twice", hint=_HINT)


def _common(one: range, other: range) -> int | None:
    """Returns the first number in both ranges, None if there is none."""
    shared = gcd(one.step, other.step)
    if (other[0] - one[0]) % shared:
        return None
    turns = other.step // shared
    steps = (other[0] - one[0]) // shared * pow(one.step // shared, -1, turns) % turns if turns > 1 else 0
    found, every = one[0] + steps * one.step, one.step * turns
    if found < other[0]:
        found += -(-(other[0] - found) // every) * every
    return found if found <= min(one[-1], other[-1]) else None
