"""Lets small fragments gather for a follower: several are then read by one request, and none of them is watched.

Jobs that end one by one make a fragment for every two or three of them. To watch and read each alone costs two requests,
a watch and three switches of threads, here and again at ZooKeeper. Gathering delays results by a fiftieth of the time that the
unfinished tasks take (at 400 tasks a second), and by at most 20 ms. Where few tasks are unfinished nothing is delayed.
"""

from __future__ import annotations

from collections.abc import Callable

from rmgr.model.tasks.outcome import Fragment

#: Waited for each task that has not ended; in all at most, and at least: less is not worth a timer.
_TASK_S, _MOST_S, _LEAST_S = 50e-6, 0.02, 0.002
#: Outcomes of a small fragment.
_SMALL = 8
#: Fragments asked for together: so many more than came the last time.
_MORE, _MOST = 3, 64


class Pace:
    """Args:
    unfinished: how many tasks that were submitted have not ended.
    """

    def __init__(self, unfinished: Callable[[], int]) -> None:
        self.window = _MORE
        self._unfinished = unfinished
        self._is_small = False

    def note(self, fragment: Fragment) -> None:
        """Notes a fragment that was read."""
        self._is_small = not fragment.row and len(fragment.outcomes) <= _SMALL

    def wait_s(self) -> float:
        """How long to let fragments gather before the next are read (s); 0: each is read as it comes."""
        if not self._is_small:
            return 0.0
        wait_s = min(_MOST_S, self._unfinished() * _TASK_S)
        return wait_s if wait_s >= _LEAST_S else 0.0

    def came(self, count: int) -> None:
        """Notes that so many of `window` were there."""
        self.window = min(_MOST, max(count + _MORE, self.window - 1) if count < self.window else 2 * self.window)
