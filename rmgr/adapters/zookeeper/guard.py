"""The guard of one client of ZooKeeper: a thread that sleeps until something may be past its deadline, and no shorter.

It looked ten times a second once: five daemons with nothing to do paid a quarter of what an idle cluster costs for that.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable

_LOG = logging.getLogger("rmgr.zookeeper")
#: Between two looks at least: so late may a deadline be noticed, and that is the pace when many come one after the other.
PACE_S = 0.1


class Guard:
    """Calls `look` when a time that was named by `at` has come, or the one that `look` itself has returned.

    Args:
        lock: under which `at` is called. look: called without it; returns when it wants to be called again (None: not by itself).
        clock: of all these times, monotonic seconds.
    """

    def __init__(self, lock: threading.Lock, look: Callable[[], float | None], clock: Callable[[], float]) -> None:
        self.until_s = math.inf  #: the next look; whoever adds something that is due earlier calls `at`
        self._look = look
        self._clock = clock
        self._turn = threading.Condition(lock)
        self._earliest_s = -math.inf
        self._stopped = False

    def start(self) -> None:
        """Starts the thread; it looks once by itself."""
        with self._turn:
            self.at(self._clock() + PACE_S)
        threading.Thread(target=self._run, name="zookeeper-guard", daemon=True).start()

    def at(self, due_s: float) -> None:
        """Something may be due at `due_s`. Under the lock. Cost: a switch of threads when nothing was due before that."""
        due_s = max(due_s, self._earliest_s)
        if due_s < self.until_s:
            self.until_s = due_s
            self._turn.notify()

    def stop(self) -> None:
        """Ends the thread. Under the lock. Idempotent."""
        self._stopped = True
        self._turn.notify()

    def _run(self) -> None:
        while self._sleep():
            try:
                again_s = self._look()
            except Exception:  # noqa: BLE001 - without its guard no operation of this client would have a deadline
                _LOG.exception("zookeeper_guard_raised")
                again_s = self._clock()
            if again_s is not None:
                with self._turn:
                    self.at(again_s)

    def _sleep(self) -> bool:
        """Until the next look, before which everything that is given has been seen. False: it is over."""
        with self._turn:
            while not self._stopped:
                left_s = self.until_s - self._clock()
                if left_s <= 0:
                    self.until_s = math.inf  # what is given from here on says so itself
                    self._earliest_s = self._clock() + PACE_S
                    return True
                self._turn.wait(None if left_s == math.inf else left_s)
        return False
