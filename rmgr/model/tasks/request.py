"""What is asked of the leader about placed jobs that run, and ranges of tasks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class StopKind(StrEnum):
    """Kind of a request about placed jobs."""

    CHECKPOINT = "checkpoint"  #: to save its state, and go on
    MIGRATE = "migrate"  #: to save its state, and to go on elsewhere
    VACATE = "vacate"  #: the same, of every job with a part on a drained node


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """`/requests/<guid>`: something is asked of a placed job that runs (`submission`, `index`), or of all those on `node`.

    attempt: that was seen to run, 0 = whichever does; one that is over has moved already. to: node of the next start, "" = any other.
    grace_us: 0 = as the job says. detail: told by it.
    done: (submission, index, what became of it); left: (submission, index, why it goes on). error, code, hint: of the request as a whole.
    """

    format: int = 1
    kind: StopKind
    submission: int = 0
    index: int = 0
    attempt: int = 0
    to: str = ""
    node: str = ""
    grace_us: int = 0
    detail: str = ""
    answered: bool = False
    done: tuple[tuple[int, int, str], ...] = ()
    left: tuple[tuple[int, int, str], ...] = ()
    error: str = ""
    code: str = ""
    hint: str = ""


def ranges_of(indices: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """3 4 5 9 -> (3, 3), (9, 1)."""
    found: list[tuple[int, int]] = []
    for index in sorted(set(indices)):
        if found and index == found[-1][0] + found[-1][1]:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((index, 1))
    return tuple(found)


class TaskRanges:
    """Positions of tasks that are asked for: those of `ranges` (first, count) below `end`, at the cost of the ranges."""

    __slots__ = ("_firsts", "_stops", "count")

    def __init__(self, ranges: Iterable[tuple[int, int]], end: int) -> None:
        self._firsts: list[int] = []
        self._stops: list[int] = []
        at = 0
        for first, count in sorted(ranges):
            start, stop = max(first, at), min(first + count, end)
            if start >= stop:
                continue
            if self._stops and start == at:
                self._stops[-1] = stop
            else:
                self._firsts.append(start)
                self._stops.append(stop)
            at = stop
        self.count = sum(self._stops) - sum(self._firsts)

    def ranges(self) -> list[tuple[int, int]]:
        """(first, count), in order, none beside another."""
        return [(first, stop - first) for first, stop in zip(self._firsts, self._stops, strict=True)]

    def within(self, first: int, end: int) -> list[int]:
        """Those from `first` to below `end`. Cost: O(log ranges + end - first)."""
        found: list[int] = []
        at = max(0, bisect_right(self._firsts, first) - 1)
        while at < len(self._firsts) and self._firsts[at] < end:
            found += range(max(first, self._firsts[at]), min(end, self._stops[at]))
            at += 1
        return found

    def covers(self, first: int, end: int) -> bool:
        """All from `first` to below `end` are among them. Cost: O(log ranges)."""
        at = bisect_right(self._firsts, first) - 1
        return at >= 0 and end <= self._stops[at]


def indices_of(ranges: Iterable[tuple[int, int]], end: int) -> list[int]:
    """(3, 3), (9, 1) -> 3 4 5 9: those below `end`. Cost: O(ranges + end), whatever stands there."""
    found: list[int] = []
    at = 0
    for first, count in sorted(ranges):
        stop = min(first + count, end)
        found += range(max(first, at), stop)
        at = max(at, stop)
    return found
