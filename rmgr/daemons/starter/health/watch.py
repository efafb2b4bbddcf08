"""Znodes that a Starter keeps an eye on: read, watched, read again; a watch is only a hint, so everything is also read now and then."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from concurrent.futures import Future
from functools import partial
from typing import Generic, TypeVar

from rmgr.coord.protocol.multi import Stat
from rmgr.errors import RmgrError
from rmgr.runtime import machine
from rmgr.runtime.mailbox import Timer

V = TypeVar("V")

#: Read again this often without a hint (jittered).
_RESYNC_S = 20.0
_FAILED_PAUSE_S = 0.5

Ask = Callable[[Callable[[], None]], "Future[V]"]


class WatchedZnode(Generic[V]):
    """One thing to watch.

    Args:
        ask: reads it with a watch, e.g. `lambda watch: coordinator.get(path, watch=watch)`.
        tell: gets what was read, in the owner's thread, also when nothing has changed.
        post, after: into the owner's mailbox, at once and later.
        resync_s: how often it is read without a hint; inf: never, its owner calls `look` when a change was missed.
    """

    def __init__(
        self,
        ask: Ask[V],
        tell: Callable[[V], None],
        *,
        post: Callable[[Callable[[], None]], None],
        after: Callable[[float, Callable[[], None]], Timer],
        resync_s: float = _RESYNC_S,
    ) -> None:
        self._ask = ask
        self._tell = tell
        self._post = post
        self._after = after
        self._resync_s = resync_s
        self._generation = 0
        self._watched = False
        self._reading = False
        self._again = False
        self._timer: Timer | None = None

    @property
    def is_on(self) -> bool:
        """It is being watched."""
        return self._generation % 2 == 1

    def start(self) -> None:
        """Begins, or begins anew (watches of a lost session are forgotten)."""
        self.stop()
        self._generation += 1
        self._read()

    def look(self) -> None:
        """Reads it now: something may have changed."""
        if self.is_on:
            self._read()

    def stop(self) -> None:
        """Looks no more."""
        if self.is_on:
            self._generation += 1
        self._watched = self._reading = self._again = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _read(self) -> None:
        if self._reading:
            self._again = True
            return
        self._reading, self._again = True, False
        generation = self._generation
        fired = partial(self._post, partial(self._fired, generation))
        self._watched = True
        future = self._ask(fired)
        future.add_done_callback(lambda done: self._post(partial(self._arrived, generation, done)))

    def _fired(self, generation: int) -> None:
        if generation == self._generation:
            self._watched = False
            self._read()

    def _resync(self, generation: int) -> None:
        if generation == self._generation:
            self._read()

    def _arrived(self, generation: int, done: Future[V]) -> None:
        if generation != self._generation:
            return
        self._reading = False
        try:
            value = done.result()
        except RmgrError:
            pause_s = _FAILED_PAUSE_S
        else:
            pause_s = self._resync_s * machine.uniform(0.7, 1.3)
            self._tell(value)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._after(pause_s, partial(self._resync, generation)) if pause_s < math.inf else None
        if self._again:
            self._read()


class CountedChildren:
    """Children that are made and deleted, never changed: whether their list has missed one, by what their parent has counted.

    A name that went and came between two lists is missed, too. Cost: O(children) a list.
    """

    def __init__(self) -> None:
        self._made = 0  #: how many there ever were, up to the list
        self._names: frozenset[str] | None = None  #: None: they are being listed

    def list_from(self, parent: Stat) -> None:
        """They are about to be listed, after the parent was read so."""
        self._made, self._names = parent.creates, None

    def listed(self, names: Collection[str]) -> None:
        """Their list."""
        standing = frozenset(names)
        self._made += len(standing - self._names) if self._names is not None else 0
        self._names = standing

    def has_missed(self, parent: Stat) -> bool:
        """By the parent as it was read now, something is not as it was listed; of one under way nothing is said."""
        return self._names is not None and (self._made, len(self._names)) != (parent.creates, parent.children)
