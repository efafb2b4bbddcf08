"""What following costs: a fragment is asked for when it is there, and delivered before anything behind it is known."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from rmgr.adapters.memory import MemoryCoordinator
from rmgr.client.follower import Follower
from rmgr.coord import paths
from rmgr.coord.multi import Create, Delete, Exists, Holds, Multi, Set
from rmgr.coord.records import encode_fragment, encode_record, join_page
from rmgr.model.outcome import Fragment, Outcome
from rmgr.model.states import State
from rmgr.model.submission import Paged


class Counting(MemoryCoordinator):
    """Counts what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.gets = self.stats = self.bulks = 0

    def get_many(self, wanted: Sequence[str], **options: Any) -> Any:
        self.bulks += 1
        gets = self.gets
        found = super().get_many(wanted, **options)
        self.gets = gets
        return found

    def get(self, path: str, **options: Any) -> Any:
        self.gets += 1
        return super().get(path, **options)

    def stat(self, path: str, **options: Any) -> Any:
        self.stats += 1
        return super().stat(path, **options)


class World:
    """A follower whose letters are delivered by hand, and whose timers ring by hand."""

    store: Any = None

    def __init__(self, unfinished: Callable[[], int] = int) -> None:
        self.coordinator = Counting()
        self.coordinator.ensure([paths.done(1)])
        self.letters: deque[Callable[[], None]] = deque()
        self.seen: list[int] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.may_end = self.is_last = False
        self.follower = Follower(1, self, self._deliver, self._gone, unfinished=unfinished, may_end=lambda: self.may_end)

    def _deliver(self, number: int, _fragment: Fragment, _outcomes: Sequence[Outcome]) -> None:
        self.seen.append(number)
        if self.is_last:
            self.follower.stop()

    def _gone(self, error: Exception) -> None:
        raise error

    def post(self, job: Callable[[], None]) -> None:
        self.letters.append(job)

    def after(self, delay_s: float, job: Callable[[], None]) -> Any:
        self.timers.append((delay_s, job))
        return Future()

    def ring(self, within_s: float = 0.1) -> int:
        """Rings what is due so soon; returns how many timers these were."""
        due = [job for delay_s, job in self.timers if delay_s <= within_s]
        self.timers = [(delay_s, job) for delay_s, job in self.timers if delay_s > within_s]
        for job in due:
            job()
        self.run()
        return len(due)

    def io(self, job: Callable[[], Any]) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(job())
        return done

    def jitter(self, seconds: float) -> float:
        return seconds

    def run(self) -> None:
        while self.letters:
            self.letters.popleft()()

    def add(self, index: int, count: int = 1) -> None:
        data = encode_fragment(Fragment(attempt=1, outcomes=tuple(Outcome(index=index, state=State.COMPLETED) for _ in range(count))))
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


def test_behind_one_that_may_be_the_last_is_looked_only_when_it_was_not(world: World) -> None:
    world.may_end = True
    for number in range(4):
        world.add(number)
        world.run()
    assert (world.seen, world.reads()) == ([0, 1, 2, 3], (4, 4))
    world.is_last = True
    world.add(4)
    world.run()
    assert (world.seen[4:], world.reads()) == ([4], (1, 0))


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


@pytest.fixture
def crowd() -> Iterator[World]:
    """1,000 tasks are out."""
    made = World(lambda: 1000 - len(made.seen))
    made.follower.start(fresh=True)
    made.run()
    made.reads()
    yield made
    made.follower.stop()
    made.coordinator.close()


def test_of_a_dense_stream_several_are_read_by_one_request(crowd: World) -> None:
    crowd.add(0)
    crowd.run()  # how large they are is not known yet
    assert crowd.seen == [0]
    crowd.reads()
    for number in range(1, 100):
        crowd.add(number)
        crowd.run()
        if not number % 4:
            crowd.ring()
    while crowd.ring():
        pass
    assert crowd.seen == list(range(100))
    gets, stats = crowd.reads()
    assert gets + stats + crowd.coordinator.bulks <= 60  # two each when they are read as they come
    crowd.add(100)  # the stream has dried up, and the next one is watched again
    crowd.run()
    crowd.ring()
    assert crowd.seen[-1] == 100


def test_of_a_thin_stream_each_costs_a_reading_and_a_look(crowd: World) -> None:
    for number in range(10):
        crowd.add(number)
        crowd.run()
        while crowd.ring():
            pass
        assert crowd.seen == list(range(number + 1))
    gets, stats = crowd.reads()
    assert gets + crowd.coordinator.bulks <= 11
    assert stats == 10


def test_nothing_is_late_where_few_tasks_are_out_or_fragments_are_large(crowd: World) -> None:
    crowd.seen += [-1] * 970
    for number in range(5):
        crowd.add(number)
        crowd.run()
    assert crowd.seen[970:] == list(range(5))
    del crowd.seen[:970]
    crowd.add(5, count=50)
    crowd.run()
    crowd.ring()
    for number in range(6, 10):
        crowd.add(number, count=50)
        crowd.run()
    assert crowd.seen == list(range(10))
    assert crowd.coordinator.bulks <= 1


def test_what_was_paged_out_while_it_gathered_is_read_from_its_page(crowd: World) -> None:
    crowd.add(0)
    crowd.run()
    crowd.add(1)
    crowd.run()
    data = crowd.coordinator.get(paths.fragment(1, 1)).result(60)
    assert data is not None
    pages = {0: [encode_fragment(Fragment(attempt=1)), data.data]}
    crowd.store = SimpleNamespace(get=lambda key: (join_page(pages[0]), ""))
    paged = encode_record(Paged(base=2))
    ops = (*(Delete(paths.fragment(1, number)) for number in (0, 1)), Set(paths.done(1), paged, 0))
    crowd.coordinator.commit(Multi(name="T", ops=ops, proof=Holds(paths.done(1), paged))).result(60)
    crowd.run()
    crowd.ring()
    assert crowd.seen == [0, 1]
