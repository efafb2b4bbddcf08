"""What following costs: a fragment is asked for when it is there, and delivered before anything behind it is known."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from rmgr.adapters.memory import MemoryCoordinator
from rmgr.client.follower import Follower
from rmgr.coord import paths
from rmgr.coord.multi import Create, Exists, Multi
from rmgr.coord.records import encode_fragment
from rmgr.model.outcome import Fragment, Outcome
from rmgr.model.states import State


class Counting(MemoryCoordinator):
    """Counts what is read."""

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
    """A follower whose letters are delivered by hand; its timers never ring."""

    store: Any = None

    def __init__(self) -> None:
        self.coordinator = Counting()
        self.coordinator.ensure([paths.done(1)])
        self.letters: deque[Callable[[], None]] = deque()
        self.seen: list[int] = []
        self.follower = Follower(1, self, self._deliver, self._gone)

    def _deliver(self, number: int, _fragment: Fragment, _outcomes: Sequence[Outcome]) -> None:
        self.seen.append(number)

    def _gone(self, error: Exception) -> None:
        raise error

    def post(self, job: Callable[[], None]) -> None:
        self.letters.append(job)

    def after(self, _delay_s: float, _job: Callable[[], None]) -> Any:
        return Future()

    def io(self, job: Callable[[], Any]) -> Future[Any]:
        raise NotImplementedError

    def jitter(self, seconds: float) -> float:
        return seconds

    def run(self) -> None:
        while self.letters:
            self.letters.popleft()()

    def add(self, index: int) -> None:
        data = encode_fragment(Fragment(attempt=1, outcomes=(Outcome(index=index, state=State.COMPLETED),)))
        path = paths.fragment_prefix(1)
        self.coordinator.commit(Multi(name="T", ops=(Create(path, data, sequence=True),), proof=Exists(path))).result(60)

    def reads(self) -> tuple[int, int]:
        found = self.coordinator.gets, self.coordinator.stats
        self.coordinator.gets = self.coordinator.stats = 0
        return found


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    made.follower.start(fresh=True)
    made.run()
    made.reads()
    yield made
    made.follower.stop()
    made.coordinator.close()


def test_fragments_that_come_one_by_one_cost_a_reading_and_a_look_each(world: World) -> None:
    for number in range(10):
        world.add(number)
        world.run()
    assert world.seen == list(range(10))
    assert world.reads() == (10, 10)


def test_fragments_that_come_in_pairs_cost_no_more(world: World) -> None:
    for number in range(0, 20, 2):
        world.add(number)
        world.add(number + 1)
        world.run()
    assert world.seen == list(range(20))
    assert world.reads() == (20, 20)


def test_many_at_once_are_counted_and_then_read_together(world: World) -> None:
    for number in range(100):
        world.add(number)
    world.run()
    assert world.seen == list(range(100))
    gets, stats = world.reads()
    assert gets <= 106
    assert stats <= 12


def test_a_result_is_delivered_before_the_look_behind_it_is_answered(world: World) -> None:
    other = MemoryCoordinator(world.coordinator.tree)
    world.coordinator.auto = False
    data = encode_fragment(Fragment(attempt=1, outcomes=(Outcome(index=0, state=State.COMPLETED),)))
    path = paths.fragment_prefix(1)
    other.commit(Multi(name="T", ops=(Create(path, data, sequence=True),), proof=Exists(path))).result(60)
    assert world.coordinator.client_step()  # the watch: its thread asks at once
    world.run()
    assert world.coordinator.server_step()
    assert world.coordinator.client_step()
    world.run()
    assert world.seen == [0]
    world.coordinator.run()  # the look behind it
    world.run()
    assert world.seen == [0]
    other.close()
