"""Fragments that a Starter tells on a direct line: not read, never twice, never out of order, whatever is lost or comes late."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmgr.adapters.memory import MemoryCoordinator
from rmgr.client.follower import Follower
from rmgr.coord import paths
from rmgr.coord.multi import Create, Exists, Multi
from rmgr.coord.records import encode_fragment
from rmgr.errors import NotFound
from rmgr.model.line import Ahead, Told
from rmgr.model.outcome import Fragment, Outcome
from rmgr.model.states import State


class Counting(MemoryCoordinator):
    """Counts what is asked of single fragments."""

    def __init__(self) -> None:
        super().__init__()
        self.gets = self.stats = 0

    def get(self, path: str, **options: Any) -> Any:
        self.gets += 1
        return super().get(path, **options)

    def stat(self, path: str, **options: Any) -> Any:
        self.stats += 1
        return super().stat(path, **options)


class World:
    """A follower, its letters and its timers, all delivered by hand; and the Starters' side of a submission."""

    store: Any = None

    def __init__(self, authenticity: Any = None) -> None:
        self.coordinator = Counting()
        self.coordinator.ensure([paths.done(1)])
        self.letters: deque[Callable[[], None]] = deque()
        self.timers: list[Callable[[], None]] = []
        self.seen: list[tuple[int, int]] = []  # number, index of its task
        self.follower = Follower(1, self, self._deliver, self._gone, authenticity=authenticity)
        self.follower.start(fresh=True)
        self.run()
        self.made = 0
        self.serial = 0

    def _deliver(self, number: int, _fragment: Fragment, outcomes: Sequence[Outcome]) -> None:
        self.seen += [(number, outcome.index) for outcome in outcomes]

    def _gone(self, error: Exception) -> None:
        raise error

    def post(self, job: Callable[[], None]) -> None:
        self.letters.append(job)

    def after(self, delay_s: float, job: Callable[[], None]) -> Any:
        if delay_s < 1.0:
            self.timers.append(job)  # the slow resync never rings: nothing here may need it
        return Future()

    def io(self, job: Callable[[], Any]) -> Future[Any]:
        raise NotImplementedError

    def jitter(self, seconds: float) -> float:
        return seconds

    def run(self, count: int = 1000) -> None:
        while self.letters and count:
            self.letters.popleft()()
            count -= 1

    def ring(self) -> None:
        timers, self.timers = self.timers, []
        for job in timers:
            job()

    def settle(self) -> None:
        for _ in range(50):
            self.run()
            if not self.timers:
                return
            self.follower._told_s = 0.0  # the pause is over
            self.ring()
        raise AssertionError("it never comes to rest")

    def ahead(self, index: int) -> Told:
        """What a Starter says before it commits; the answer is what it says after."""
        self.serial += 1
        self.follower.heard(Ahead(self.serial, 1, self._data(index)))
        return Told(self.serial, 1, self.made)

    def commit(self, index: int) -> None:
        path = paths.fragment_prefix(1)
        self.coordinator.commit(Multi(name="T", ops=(Create(path, self._data(index), sequence=True),), proof=Exists(path))).result(60)
        self.made += 1

    @staticmethod
    def _data(index: int) -> bytes:
        return encode_fragment(Fragment(attempt=1, outcomes=(Outcome(index=index, state=State.COMPLETED),)))

    def close(self) -> None:
        self.follower.stop()
        self.coordinator.close()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def test_what_is_told_is_neither_read_nor_watched(world: World) -> None:
    told = world.ahead(0)
    world.commit(0)
    world.run()  # the first watch tells of it
    world.follower.heard(told)
    world.coordinator.gets = world.coordinator.stats = 0
    for index in range(1, 20):
        told = world.ahead(index)
        world.commit(index)
        world.follower.heard(told)
        world.run()
    assert world.seen == [(number, number) for number in range(20)]
    assert (world.coordinator.gets, world.coordinator.stats) == (0, 0)


def test_after_a_pause_the_next_one_is_watched_again(world: World) -> None:
    for index in range(3):
        told = world.ahead(index)
        world.commit(index)
        world.follower.heard(told)
    world.settle()
    world.commit(3)
    world.run()
    assert world.seen == [(number, number) for number in range(4)]


def test_what_was_announced_and_never_told_is_read(world: World) -> None:
    world.ahead(0)
    world.commit(0)
    world.settle()
    assert world.seen == [(0, 0)]


def test_what_was_announced_and_not_committed_is_not_delivered(world: World) -> None:
    world.ahead(7)
    world.settle()
    assert world.seen == []
    world.commit(8)
    world.settle()
    assert world.seen == [(0, 8)]


def test_one_that_comes_from_elsewhere_in_between_is_read_first(world: World) -> None:
    told = world.ahead(1)
    world.commit(9)  # another Starter's, which has no line
    late = Told(told.serial, 1, world.made)
    world.commit(1)
    world.follower.heard(late)
    world.settle()
    assert world.seen == [(0, 9), (1, 1)]


class Doubtful:
    """Believes nothing that it is shown early."""

    def doubt(self, _number: int, _fragment: Fragment, zxid: int, _data: bytes = b"") -> str:
        return "" if zxid else "the key was revoked"


def test_what_would_not_be_believed_is_read_and_judged_as_ever() -> None:
    world = World(Doubtful())
    told = world.ahead(0)
    world.commit(0)
    world.follower.heard(told)
    world.settle()
    assert world.seen == [(0, 0)]
    assert world.coordinator.gets
    world.close()


STEPS = st.sampled_from(["ahead", "told", "told twice", "commit", "commit other", "letter", "letters", "ring", "drop", "wrong"])


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_whatever_is_lost_or_late_every_fragment_comes_once_and_in_order(steps: list[str]) -> None:
    world = World()
    expected: list[int] = []
    index = 0
    told: Told | None = None
    state = ""
    try:
        for step in steps:
            match step:
                case "ahead" if state == "":
                    index += 1
                    told, state = world.ahead(index), "announced"
                case "commit" if state == "announced":
                    assert told is not None
                    told = Told(told.serial, 1, world.made)
                    world.commit(index)
                    expected.append(index)
                    state = "committed"
                case "commit other":
                    world.commit(1000 + len(expected))
                    expected.append(1000 + len(expected))
                case "told" | "told twice" if state == "committed" and told is not None:
                    world.follower.heard(told)
                    if step == "told twice":
                        world.follower.heard(told)
                    state = ""
                case "drop":  # neither its commit nor its news come
                    state = ""
                case "wrong" if told is not None:
                    world.follower.heard(Told(told.serial + 1, 1, told.number))
                case "letter":
                    world.run(1)
                case "letters":
                    world.run()
                case "ring":
                    world.ring()
                case _:
                    pass
        world.settle()
        assert world.seen == list(enumerate(expected))
    except NotFound:
        raise AssertionError("it took the submission for gone") from None
    finally:
        world.close()
