"""A pool of threads that outlives a moment in which the machine has no thread left."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

#: Started with the pool: whatever happens on the machine later, somebody works.
_FIRST = 4


class SteadyThreads(ThreadPoolExecutor):
    """Runs calls; one for which no thread can be started waits for one of those that there are.

    gRPC's Python server takes calls on one thread and ends that thread when `submit` raises: from then on a daemon is mute
    for good while its process lives on and looks well. A daemon's own loop would lose what it was about to do.
    Raises: RuntimeError from the constructor when there is no thread at all.
    """

    def __init__(self, most: int, name: str) -> None:
        super().__init__(most, thread_name_prefix=name)
        for _ in range(min(_FIRST, most)):
            super()._adjust_thread_count()

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError:  # "can't start new thread": the call is in the queue already, and the next one tries again
            if not self._threads:
                raise
