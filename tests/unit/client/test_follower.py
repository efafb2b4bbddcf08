"""What following costs: a fragment is asked for when it is there, and delivered before anything behind it is known."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Create, Delete, Exists, Holds, Multi, Set
from rmgr.coord.protocol.records import encode_fragment, encode_record, join_page
from rmgr.model.tasks.outcome import Fragment
from rmgr.model.tasks.submission import Paged
from tests.harness.following import World, fragment
from tests.harness.memory import MemoryCoordinator


@pytest.fixture
def world() -> Iterator[World]:
    with World.started() as made:
        yield made


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
    path = paths.fragment_prefix(1)
    other.commit(Multi(name="T", ops=(Create(path, fragment(0), sequence=True),), proof=Exists(path))).result(60)
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
    with World.started(unfinished=lambda: 1000 - len(made.seen)) as made:
        yield made


def ring(world: World) -> int:
    """Timers that are due soon, and what comes of them."""
    rung = world.ring()
    world.run()
    return rung


def test_of_a_dense_stream_several_are_read_by_one_request(crowd: World) -> None:
    crowd.add(0)
    crowd.run()  # how large they are is not known yet
    assert crowd.seen == [0]
    crowd.reads()
    for number in range(1, 100):
        crowd.add(number)
        crowd.run()
        if not number % 4:
            ring(crowd)
    while ring(crowd):
        pass
    assert crowd.seen == list(range(100))
    gets, stats = crowd.reads()
    assert gets + stats + crowd.coordinator.bulks <= 60  # two each when they are read as they come
    crowd.add(100)  # the stream has dried up, and the next one is watched again
    crowd.run()
    ring(crowd)
    assert crowd.seen[-1] == 100


def test_of_a_thin_stream_each_costs_a_reading_and_a_look(crowd: World) -> None:
    for number in range(10):
        crowd.add(number)
        crowd.run()
        while ring(crowd):
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
    ring(crowd)
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
    ring(crowd)
    assert crowd.seen == [0, 1]
