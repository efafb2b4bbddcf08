"""Stories: what happens over time, written from top to bottom as a generator that yields what it waits for.

    def look(self) -> Story[None]:
        found = yield self._coordinator.get(path)
        ...
        yield Pause(0.2)

A story runs only on its owner's thread, from one `yield` to the next. After a wait it reads again what may have changed meanwhile.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from types import GeneratorType
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from rmgr.errors import RmgrError

T = TypeVar("T")
_LOG = logging.getLogger("rmgr.story")


@dataclass(frozen=True, slots=True)
class Pause:
    """Yielded by a story that goes on so many seconds later."""

    seconds: float


#: Yields futures (whose results it gets, and whose exceptions are raised in it) and pauses; returns a T.
Story: TypeAlias = Generator[Future[Any] | Pause, Any, T]


def each(answers: Iterable[Future[T]]) -> Story[list[T]]:
    """Returns the answers to questions asked together, in order, when all are there. Raises the first error among them."""
    asked = list(answers)
    for answer in reversed(asked):  # mostly the others are there when the last one is
        if not answer.done():
            with suppress(Exception):
                yield answer
    return [answer.result(0) for answer in asked]


class StoryLoop(Protocol):
    """The thread on which stories run."""

    def post(self, job: Callable[[], object]) -> None:
        """Runs `job` on that thread, soon. Any thread may call it."""
        ...

    def after(self, delay_s: float, job: Callable[[], object]) -> Any:
        """Runs `job` on that thread later."""
        ...


def insist(ask: Callable[[], Future[T]], pause_s: float, error: type[Exception] = RmgrError) -> Story[T]:
    """Returns the first answer; after each such error it asks again, `pause_s` later."""
    while True:
        try:
            return (yield ask())  # type: ignore[no-any-return]
        except error:
            yield Pause(pause_s)


class Stories:
    """The stories of one owner. All methods are called on its thread.

    Answers are posted, so no story is entered while it runs. An exception that escapes from a story ends only that one, and is logged.
    """

    def __init__(self, loop: StoryLoop, *, escaped: Callable[[Exception], object] | None = None) -> None:
        """escaped: gets a story's exception, instead of the log."""
        self._loop = loop
        self._escaped = escaped
        self._told: dict[Hashable, Story[None]] = {}
        self._unnamed = 0

    def begin(self, story: Story[None], *, key: Hashable | None = None) -> bool:
        """Runs a story up to its first wait. False: one with the same key is under way, and this one is not begun."""
        if key is None:
            self._unnamed += 1
            key = self._unnamed
        if key in self._told:
            story.close()
            return False
        self._told[key] = story
        self._go_on(key, story, None)
        return True

    def stop(self) -> None:
        """Ends all stories at their waits and drops late answers. A story that calls this itself ends at its next wait."""
        told, self._told = self._told, {}
        for story in told.values():
            if not cast("GeneratorType[Any, Any, Any]", story).gi_running:
                story.close()

    def end(self, key: Hashable) -> None:
        """Ends the story with this key at its wait, if it is under way."""
        story = self._told.pop(key, None)
        if story is not None and not cast("GeneratorType[Any, Any, Any]", story).gi_running:
            story.close()

    def __len__(self) -> int:
        return len(self._told)

    def _go_on(self, key: Hashable, story: Story[None], answer: Future[Any] | None) -> None:
        if self._told.get(key) is not story:
            return
        try:
            error = answer.exception(0) if answer is not None else None
            value = answer.result(0) if answer is not None and error is None else None
            awaited = story.send(value) if error is None else story.throw(error)
        except StopIteration:
            self._end(key, story)
        except Exception as error:  # noqa: BLE001 - the boundary of a story: a defect in one ends no other
            if self._escaped is not None:
                self._escaped(error)
            else:
                _LOG.exception("story_ended: %s", cast("GeneratorType[Any, Any, Any]", story).__qualname__)
            self._end(key, story)
        else:
            if self._told.get(key) is not story:  # stopped by itself
                story.close()
            elif isinstance(awaited, Pause):
                self._loop.after(awaited.seconds, lambda: self._go_on(key, story, None))
            else:
                awaited.add_done_callback(lambda done: self._loop.post(lambda: self._go_on(key, story, done)))

    def _end(self, key: Hashable, story: Story[None]) -> None:
        if self._told.get(key) is story:
            del self._told[key]


class Semaphore:
    """Lets so many stories at a time through, in order: `yield from acquire()`, then `release()` in a `finally`. On the owner's thread."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[Future[None]] = deque()

    def acquire(self) -> Story[None]:
        """Waits for a turn."""
        if self._free:
            self._free -= 1
            return
        turn: Future[None] = Future()
        self._waiting.append(turn)
        try:
            yield turn
        except BaseException:  # the story ends at this wait: the turn is for the next one
            if turn.done():
                self.release()
            else:
                self._waiting.remove(turn)
            raise

    def release(self) -> None:
        """Gives the turn to whoever has waited longest."""
        if self._waiting:
            self._waiting.popleft().set_result(None)
        else:
            self._free += 1


class Bell:
    """A wait without an answer: for a watch that fires, or a hint from elsewhere. Unheard rings are kept as one."""

    def __init__(self, loop: StoryLoop) -> None:
        self._loop = loop
        self._waits: Future[None] | None = None
        self._timer: Any = None
        self._rang = False

    def ring(self) -> None:
        """Rings, from any thread."""
        self._loop.post(self.ring_here)

    def ring_here(self) -> None:
        """Rings on the owner's thread, where a waiting story goes on a moment sooner."""
        if self._waits is None:
            self._rang = True
        else:
            self._end(self._waits)

    def heard(self, within_s: float | None = None) -> Future[None]:
        """Returns a future, done at the next ring, or after `within_s`. One story waits at a time; on the owner's thread."""
        waits: Future[None] = Future()
        if self._rang:
            self._rang = False
            waits.set_result(None)
            return waits
        self._waits = waits
        if within_s is not None:
            self._timer = self._loop.after(within_s, lambda: self._end(waits))
        return waits

    def _end(self, waits: Future[None]) -> None:
        if self._waits is waits:
            self._waits = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            waits.set_result(None)
