"""What a user asks of the leader, because his own role may not do it: so far, to take single waiting tasks out of a queue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequest:
    """`/requests/<guid>`: cancel tasks of a submission that still wait.

    tasks: ranges (first, count) of positions. answered: the leader has done what it could; ended: which of them are
    CANCELLED now. error: why it could not, "" = nothing went wrong.
    """

    format: int = 1
    submission: int
    tasks: tuple[tuple[int, int], ...]
    detail: str = ""
    answered: bool = False
    ended: tuple[tuple[int, int], ...] = ()
    error: str = ""


def ranges_of(indices: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """3 4 5 9 -> (3, 3), (9, 1)."""
    found: list[tuple[int, int]] = []
    for index in sorted(set(indices)):
        if found and index == found[-1][0] + found[-1][1]:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((index, 1))
    return tuple(found)


def indices_of(ranges: Iterable[tuple[int, int]]) -> set[int]:
    """(3, 3), (9, 1) -> 3 4 5 9."""
    return {index for first, count in ranges for index in range(first, first + count)}
