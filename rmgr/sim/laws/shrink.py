"""The smallest world that still breaks a law: drop and simplify while it does."""

from __future__ import annotations

from collections.abc import Callable

from rmgr.sim.laws.world import SmallWorld, smaller


def shrunk(world: SmallWorld, breaks: Callable[[SmallWorld], bool], *, tries: int = 400) -> SmallWorld:
    """A smaller world that `breaks`, none of whose simplifications does, or the smallest one found after so many tries.

    Cost: at most `tries` calls of `breaks`.
    """
    left = tries
    while left > 0:
        for candidate in smaller(world):
            if candidate.size >= world.size:
                continue
            left -= 1
            if breaks(candidate):
                world = candidate
                break
            if left <= 0:
                return world
        else:
            return world
    return world
