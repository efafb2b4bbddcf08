"""Futures in the order in which they end."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from queue import Empty, SimpleQueue

from rmgr.client.futures import Future, Source
from rmgr.client.waiting import Deadline, giving_slot_back
from rmgr.errors import DeadlineExceeded


def as_completed(futures: Iterable[Future], timeout_s: float | None) -> Iterator[Future]:
    """Yields futures as they end, each once, and first those that have ended. Raises DeadlineExceeded."""
    deadline = Deadline(timeout_s)
    arrived: SimpleQueue[Future] = SimpleQueue()
    hook = _Arrivals(arrived)
    seen: set[Future] = set()
    source: Source | None = None
    for future in futures:
        if future not in seen:
            seen.add(future)
            if not future.hook(hook):
                arrived.put(future)
            elif future.source is not source:
                source = future.source
                source.connection.check_waitable()
    total = left = len(seen)
    seen.clear()
    return _drain(arrived, left, total, deadline, source)


class _Arrivals:
    """Takes futures that have ended, for one `as_completed`.

    It is void when nobody iterates that any more. So a caller that asks again and again for the next one that ends leaves
    nothing behind in the others.
    """

    __slots__ = ("_queue",)

    def __init__(self, queue: SimpleQueue[Future]) -> None:
        self._queue = weakref.ref(queue)

    @property
    def is_void(self) -> bool:
        return self._queue() is None

    def __call__(self, future: Future) -> None:
        queue = self._queue()
        if queue is not None:
            queue.put(future)


def _drain(arrived: SimpleQueue[Future], left: int, total: int, deadline: Deadline, source: Source | None) -> Iterator[Future]:
    while left:
        try:
            ended = arrived.get_nowait()
        except Empty:
            with giving_slot_back():
                try:
                    ended = arrived.get(timeout=deadline.left())
                except Empty:
                    story = source.connection.trouble() if source is not None else ""
                    raise DeadlineExceeded(f"{left} (of {total}) futures unfinished" + (f"; {story}" if story else "")) from None
        left -= 1
        yield ended
        del ended
