"""A follower of one submission in memory; the test delivers its messages and fires its timers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Self

from rmgr.client.submission.handle import ReadFragments
from rmgr.coord import validity
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Create, Exists, Multi
from rmgr.coord.protocol.records import encode_fragment
from rmgr.errors import RmgrError
from rmgr.model.block import Fragment, Outcome
from rmgr.model.states import State
from rmgr.model.submission import Tail
from rmgr.submitter.follower import Follower
from tests.harness.memory import MemoryCoordinator


class Counting(MemoryCoordinator):
    """A coordinator that counts reads."""

    def __init__(self) -> None:
        super().__init__()
        self.gets = self.stats = self.bulks = 0

    def get_many(self, names: Sequence[str], **options: Any) -> Any:  # type: ignore[override]  # `paths` is a module here
        self.bulks += 1
        gets = self.gets
        found = super().get_many(names, **options)
        self.gets = gets
        return found

    def get(self, path: str, **options: Any) -> Any:
        self.gets += 1
        return super().get(path, **options)

    def stat(self, path: str, **options: Any) -> Any:
        self.stats += 1
        return super().stat(path, **options)


class World:
    """The follower's host, and what the follower has delivered: `seen` by number of fragment, `indices` of the tasks.

    authenticity: judges fragments, None = all are believed. options: of the follower.
    """

    def __init__(self, *, authenticity: Any = None, **options: Any) -> None:
        self.coordinator = Counting()
        self.coordinator.ensure([paths.done(1)])
        self.messages: deque[Callable[[], None]] = deque()
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.seen: list[int] = []
        self.outcomes: list[Outcome] = []
        self.errors: list[Exception] = []
        self.store: Any = None
        self.indices: list[tuple[int, int]] = []
        self.may_end = self.is_last = False
        self.number, self.engine = 1, SimpleNamespace(authenticity=authenticity)
        handle: Any = self
        self.loop = handle
        self.fragments = ReadFragments(handle)
        self.follower = Follower(1, handle, self.fragments.take, self.on_dead, may_end=lambda: self.may_end, **options)

    @classmethod
    @contextmanager
    def started(cls, **options: Any) -> Iterator[Self]:
        """Yields a world whose follower follows a new submission from its beginning."""
        made = cls(**options)
        made.follower.start(fresh=True)
        made.run()
        made.reads()
        try:
            yield made
            assert not made.errors
        finally:
            made.follower.stop()
            made.coordinator.close()

    def deliver(self, number: int, _fragment: Fragment, outcomes: Sequence[Outcome]) -> None:
        self.seen.append(number)
        self.outcomes += outcomes
        self.indices += [(number, outcome.index) for outcome in outcomes]
        if self.is_last:
            self.follower.stop()

    def on_dead(self, error: Exception) -> None:
        self.errors.append(error)

    def read_tail(self) -> Future[Tail]:
        return self.io(lambda: validity.tail(self.coordinator.get(paths.tail(1)).result(60), 1))

    def post(self, job: Callable[[], None]) -> None:
        self.messages.append(job)

    def after(self, delay_s: float, job: Callable[[], None]) -> Any:
        self.timers.append((delay_s, job))
        return Future()

    def ring(self, within_s: float = 0.1) -> int:
        """Fires the timers that are due within `within_s`; returns their number."""
        due = [job for delay_s, job in self.timers if delay_s <= within_s]
        self.timers = [(delay_s, job) for delay_s, job in self.timers if delay_s > within_s]
        for job in due:
            job()
        return len(due)

    def io(self, job: Callable[[], Any]) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(job())
        except RmgrError as error:
            done.set_exception(error)
        return done

    def jitter(self, seconds: float) -> float:
        return seconds

    def run(self, count: int = 1_000_000) -> None:
        """Delivers up to `count` messages."""
        while self.messages and count:
            self.messages.popleft()()
            count -= 1

    def add(self, index: int, count: int = 1) -> None:
        """Commits a fragment with `count` outcomes of a task."""
        self.write(fragment(index, count))

    def write(self, data: bytes) -> None:
        """Commits `data` as a fragment."""
        path = paths.fragment_prefix(1)
        self.coordinator.commit(Multi(name="T", ops=(Create(path, data, sequence=True),), proof=Exists(path))).result(60)

    def reads(self) -> tuple[int, int]:
        """Returns the numbers of reads and of stats since the last call."""
        found = self.coordinator.gets, self.coordinator.stats
        self.coordinator.gets = self.coordinator.stats = 0
        return found


def fragment(index: int, count: int = 1) -> bytes:
    """Returns the fragment that a Starter commits for a task that COMPLETED."""
    return encode_fragment(Fragment(attempt=1, outcomes=tuple(Outcome(index=index, state=State.COMPLETED) for _ in range(count))))
