"""Work with the data store and with files on a few threads; what came of it arrives as a letter of the mailbox.

While the store is away its jobs are tried again until it answers: nothing is dropped, `pending_bytes` tells how much
waits. Everything else that goes wrong (missing rows, a full disk) is handed to the caller as the exception it is.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from rmgr.coord.ports import Store
from rmgr.errors import StoreUnavailable

T = TypeVar("T")

#: Pause between two attempts while the store is away, doubled up to the second value.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0


class StoreIO:
    """Runs `job(store)` on a thread and posts `done(result or exception)`.

    Args:
        post: puts a call into the mailbox of the thread that owns the state.
    """

    def __init__(self, store: Store, post: Callable[[Callable[[], None]], None], *, threads: int = 4) -> None:
        self.store = store
        self.down_since_s = 0.0  #: monotonic time since which the store does not answer, 0.0 = it does
        self._post = post
        self._jobs: deque[tuple[Callable[[Store], Any], Callable[[Any], None], int]] = deque()
        self._arrived = threading.Condition()
        self._closing = threading.Event()
        self._pending_bytes = 0
        self._busy = 0
        self._threads = [threading.Thread(target=self._work, name=f"store-{n}", daemon=True) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    @property
    def pending_bytes(self) -> int:
        """Bytes of values that are not in the store yet."""
        return self._pending_bytes

    @property
    def is_idle(self) -> bool:
        """Nothing waits and nothing runs."""
        return not self._jobs and not self._busy

    def run(self, job: Callable[[Store], T], done: Callable[[T | Exception], None], *, size: int = 0) -> None:
        """Runs `job` soon; `size`: bytes that wait with it. Jobs start in order and end in any. From any thread."""
        with self._arrived:
            self._pending_bytes += size
            self._jobs.append((job, done, size))
            self._arrived.notify()

    def close(self, timeout_s: float = 2.0) -> None:
        """Ends the threads; jobs that wait are dropped (nothing was promised for them)."""
        self._closing.set()
        with self._arrived:
            self._jobs.clear()
            self._arrived.notify_all()
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _work(self) -> None:
        while True:
            with self._arrived:
                while not self._jobs:
                    if self._closing.is_set():
                        return
                    self._arrived.wait()
                job, done, size = self._jobs.popleft()
                self._busy += 1
            result = self._run(job)
            with self._arrived:
                self._busy -= 1
                self._pending_bytes -= size
            if not self._closing.is_set():
                self._post(lambda done=done, result=result: done(result))  # type: ignore[misc]
            del job, done, result

    def _run(self, job: Callable[[Store], Any]) -> Any:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                result = job(self.store)
            except StoreUnavailable as error:
                if not self.down_since_s:
                    self.down_since_s = time.monotonic()
                if self._closing.wait(pause_s * random.uniform(0.7, 1.3)):
                    return error
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            except Exception as error:  # noqa: BLE001 - loop boundary of the thread: whatever it is, the caller is told
                return error
            else:
                self.down_since_s = 0.0
                return result
