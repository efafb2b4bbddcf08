"""Calls whose other ends read nothing, or send nothing: found and ended, so that they hold neither a thread nor what was to be sent."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

_LOOK_S = 0.5


class Cancellable(Protocol):
    """A call, at either end."""

    def cancel(self) -> object:
        """Ends it."""


class Stalls:
    """Args: most_s: how long one message may wait to be taken, or to come. cut: told of every call that is ended for it. Thread-safe."""

    def __init__(self, most_s: float, cut: Callable[[], None] = lambda: None) -> None:
        self.most_s = most_s
        self._cut = cut
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, tuple[float, Cancellable]] = {}  # since when
        self._looks = False

    def watched(self, context: Cancellable, messages: Iterable[Any]) -> Iterator[Any]:
        """The same messages; the call ends when one of them waits too long. Cost: 1 us a message."""
        for message in messages:
            with self.waited(context):
                yield message

    @contextlib.contextmanager
    def waited(self, context: Cancellable) -> Iterator[None]:
        """The body waits for this call's other end; the call ends when that takes too long. Cost: 2 us."""
        number = next(self._numbers)
        with self._lock:
            self._waiting[number] = time.monotonic(), context
            if not self._looks:
                with contextlib.suppress(RuntimeError):  # no thread to be had: the next one tries again
                    threading.Thread(target=self._look, name="stalls", daemon=True).start()
                    self._looks = True
        try:
            yield
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def _look(self) -> None:
        """Runs while anything is waited for."""
        while True:
            time.sleep(_LOOK_S)
            now_s = time.monotonic()
            with self._lock:
                if not self._waiting:
                    self._looks = False
                    return
                late = [(number, context) for number, (since_s, context) in self._waiting.items() if since_s < now_s - self.most_s]
                for number, _ in late:
                    del self._waiting[number]
            for _, context in late:
                self._cut()
                context.cancel()
