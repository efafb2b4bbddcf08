"""The event log of calls: what the metaserver was told and has picked, on its way from the threads of RPCs into the store."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rmgr.coord.protocol import keys
from rmgr.daemons.leader.core.doors import LoopTimers, StoreCalls
from rmgr.daemons.leader.core.term import Term
from rmgr.daemons.leader.records.record import EVERY_S, PIECE_BYTES, LogPieces

#: Text that waits for the loop; what comes while there is more is in no log.
MOST_BYTES = 16 * PIECE_BYTES


class CallLog:
    """`service.metaserver.LogLines`. From any thread; pieces are put into the store by the leader's loop, a few times a second at most."""

    def __init__(self, loop: LoopTimers, term: Term, calls: StoreCalls, ttl_s: Callable[[], float | None]) -> None:
        self._loop = loop
        self._pieces = LogPieces(loop, term, calls, keys.PICKS, ttl_s)
        self._lock = threading.Lock()
        self._lines: list[str | None] = []  # None: another log begins
        self._bytes = 0
        self._is_due = False  # the loop will come
        self._is_hurried = False

    @property
    def has_room(self) -> bool:
        """See `LogLines`."""
        return self._bytes < MOST_BYTES and self._pieces.has_room

    def begin(self) -> None:
        """See `LogLines`."""
        with self._lock:
            self._lines.append(None)

    def write(self, line: str, /) -> None:
        """See `LogLines`. Cost: 1 us."""
        with self._lock:
            self._lines.append(line)
            self._bytes += len(line)
            hurry = self._bytes >= PIECE_BYTES and not self._is_hurried
            first = not self._is_due
            self._is_due, self._is_hurried = True, self._is_hurried or hurry
        if hurry:
            self._loop.soon(self.flush)
        elif first:
            self._loop.soon(self._later)

    def _later(self) -> None:
        self._loop.after(EVERY_S, self.flush)

    def flush(self) -> None:
        """What was written goes to the store. In the loop."""
        with self._lock:
            lines, self._lines, self._bytes = self._lines, [], 0
            self._is_due = self._is_hurried = False
        for line in lines:
            if line is None:
                self._pieces.begin()
            else:
                self._pieces.write(line)
        self._pieces.flush()
