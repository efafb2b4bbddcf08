"""Bounds the lines that refusals of one user, one event or one place of a library, and all of them, cause a minute: the rest is counted."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from typing import Any

#: A window of counting (s), and how many users are told apart; all others share one window.
WINDOW_S = 60.0
_MOST_USERS = 2000
_OTHERS = "(others)"
#: So many lines of all users in a window; beyond it each has so few: a line holds up every thread that has something to write.
MOST_OF_ALL, FEW = 600, 5


class _Window:
    __slots__ = ("lines", "more", "since_s", "tell")

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.lines = 0
        self.more = 0
        self.tell: Callable[[int], Any] = int


class AuditBook:
    """Thread-safe.

    Args: lines: of one user in `window_s`, fewer while all together have many; may be changed, 0 = all are written.
        clock: monotonic seconds.
    """

    def __init__(self, lines: int, *, window_s: float = WINDOW_S, clock: Callable[[], float] = time.monotonic) -> None:
        self.lines = lines
        self._window_s = window_s
        self._clock = clock
        self._lock = threading.Lock()
        self._windows: dict[str, _Window] = {}
        self._all = _Window(clock())
        self._thread: threading.Thread | None = None
        self._is_registered = False

    def admits(self, who: str, tell: Callable[[int], Any]) -> bool:
        """Whether a line about `who` is written now. tell: writes that so many more were not. Cost: 1 us."""
        now_s = self._clock()
        ended: list[tuple[Callable[[int], Any], int]] = []
        with self._lock:
            name = who if who in self._windows or len(self._windows) < _MOST_USERS else _OTHERS
            window = self._windows.get(name)
            if window is None or now_s - window.since_s >= self._window_s:
                if window is not None and window.more:
                    ended.append((window.tell, window.more))
                window = self._windows[name] = _Window(now_s)
            window.lines += 1
            if now_s - self._all.since_s >= self._window_s:
                self._all = _Window(now_s)
            admitted = not self.lines or window.lines <= (self.lines if self._all.lines < MOST_OF_ALL else min(FEW, self.lines))
            self._all.lines += admitted
            if not admitted:
                window.more += 1
                window.tell = tell
                self._watch()
        for told, more in ended:
            told(more)
        return admitted

    def flush(self, *, all_of_them: bool = True) -> bool:
        """Tells what was counted and not told, of windows that are over or of all. Returns: something is still counted."""
        now_s = self._clock()
        ended = []
        with self._lock:
            for name, window in list(self._windows.items()):
                if all_of_them or now_s - window.since_s >= self._window_s:
                    del self._windows[name]
                    if window.more:
                        ended.append((window.tell, window.more))
            is_left = any(window.more for window in self._windows.values())
            if not is_left:
                self._thread = None
        for tell, more in ended:
            tell(more)
        return is_left

    def _watch(self) -> None:
        """A thread lives while something is counted. Under the lock."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
            self._thread.start()
        if not self._is_registered:
            self._is_registered = True
            atexit.register(self.flush)

    def _run(self) -> None:
        while True:
            time.sleep(min(1.0, self._window_s / 4))
            if not self.flush(all_of_them=False):
                return
