"""Which lives of servers are heard, silent, or over: gateways and leader keep one register each.

A life is over when it says so, when its successor says hello, or after 60 s in which no gateway has heard it. Over stays over: who hears
it all the same tells it to begin another. Times are microseconds of one monotonic clock.
"""

from __future__ import annotations

from enum import StrEnum

from rmgr.coord.calls.ledger import Life

SILENT_US, OVER_US = 10_000_000, 60_000_000
#: Lives that are over are remembered for so long, so many of them.
REMEMBERED_US, REMEMBERED = 3_600_000_000, 10_000


class Standing(StrEnum):
    """Of a life."""

    HEARD = "heard"
    SILENT = "silent"  #: for 10 s: calls that are idempotent may go elsewhere
    OVER = "over"


class Lives:
    """Cost: O(1), `standing` of many lives that are over O(those) now and then."""

    def __init__(self) -> None:
        self._heard: dict[Life, int] = {}
        self._current: dict[str, Life] = {}
        self._over: dict[Life, int] = {}

    def hello(self, life: Life, now_us: int) -> bool:
        """A server's process opens its stream. What the server was before is over. False: this life itself is."""
        if life in self._over:
            return False
        before = self._current.get(life.server)
        if before is not None and before != life:
            self.over(before, now_us)
        self._current[life.server] = life
        return self.heard(life, now_us)

    def heard(self, life: Life, at_us: int) -> bool:
        """This gateway, or another that tells it every few seconds, heard the life then. False: it is over."""
        if life in self._over:
            return False
        self._heard[life] = max(at_us, self._heard.get(life, at_us))
        return True

    def over(self, life: Life, now_us: int) -> None:
        """It says so, or another gateway knows."""
        self._heard.pop(life, None)
        self._over.setdefault(life, now_us)
        if self._current.get(life.server) == life:
            del self._current[life.server]
        if len(self._over) > REMEMBERED:
            del self._over[next(iter(self._over))]

    def standing(self, life: Life, now_us: int) -> Standing:
        """One that nobody has told of counts as heard now: who begins late must not declare others over."""
        if life in self._over:
            return Standing.OVER
        silent_us = now_us - self._heard.setdefault(life, now_us)
        if silent_us >= OVER_US:
            self.over(life, now_us)
            return Standing.OVER
        return Standing.SILENT if silent_us >= SILENT_US else Standing.HEARD

    def forget(self, now_us: int) -> None:
        """Lives that are over for an hour; once a minute."""
        for life in [life for life, at_us in self._over.items() if now_us - at_us >= REMEMBERED_US]:
            del self._over[life]
        for life in list(self._heard):
            self.standing(life, now_us)
