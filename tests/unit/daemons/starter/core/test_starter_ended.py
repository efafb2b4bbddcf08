"""What a Starter knows of ended submissions: never older than what it has read beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from rmgr.coord.decisions import ended
from rmgr.coord.decisions.ended import Ended
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Multi
from rmgr.daemons.starter.core.ended import Endings
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_tree import MemoryTree


class World:
    """A tree, one Starter's view of it, and its mailbox, which is emptied by hand."""

    def __init__(self) -> None:
        tree = MemoryTree()
        self.leader, self.mine = (MemoryCoordinator(tree, session_timeout_s=10.0, guarded=False) for _ in range(2))
        self.leader.ensure(["/", paths.ENDED])
        self.messages: list[Callable[[], None]] = []
        self.endings = Endings(self.mine, post=self.messages.append, wake=lambda: None)

    def run(self) -> None:
        while self.messages:
            self.messages.pop(0)()

    def known(self, number: int) -> bool | None:
        self.endings.ask(number)
        self.run()
        return self.endings.look(number)

    def commit(self, multi: Multi) -> None:
        assert isinstance(self.leader.commit(multi).result(60), Committed)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    for coordinator in (made.leader, made.mine):
        coordinator.close()


def test_what_has_not_ended_is_known_and_then_its_end(world: World) -> None:
    assert world.endings.look(42) is None
    assert world.known(42) is False
    world.commit(ended.mark(0, ended.with_bits(b"", (42,)), None))
    assert world.endings.look(42) is None, "the watch has fired: nothing is believed although no message was opened"
    world.run()
    assert world.endings.look(42) is True
    assert world.endings.look(43) is False
    assert world.endings.last(42)
    assert not world.endings.last(43)


def test_each_change_counts(world: World) -> None:
    world.known(42)
    before = world.endings.generation
    world.commit(ended.mark(0, ended.with_bits(b"", (42,)), None))
    world.run()
    assert world.endings.generation == before + 1
    world.commit(ended.mark(0, ended.with_bits(b"", (42, 43)), 0))
    world.run()
    assert (world.endings.generation, world.endings.look(43)) == (before + 2, True)


def test_bits_that_have_gone_are_found_in_the_mark_for_ever(world: World) -> None:
    world.known(42)
    world.commit(ended.mark(0, ended.with_bits(b"", range(1000)), None))
    world.commit(ended.raise_mark(Ended(below=1), 0, (0,)))
    assert world.endings.look(42) is not False
    world.run()
    assert world.endings.look(42) is True
    assert world.known(1042) is False


def test_a_change_while_the_bits_are_read_makes_them_be_read_again(world: World) -> None:
    world.endings.ask(42)
    world.commit(ended.mark(0, ended.with_bits(b"", (42,)), None))
    assert world.endings.look(42) is None
    world.run()
    assert world.endings.look(42) is True


def test_a_lost_connection_ends_what_is_believed(world: World) -> None:
    assert world.known(42) is False
    world.mine.drop_link()
    assert world.endings.look(42) is None


def test_directories_are_forgotten_and_found_again(world: World) -> None:
    world.commit(ended.mark(0, ended.with_bits(b"", (42,)), None))
    assert world.known(42) is True
    for number in range(1000, 200_000, 1000):
        assert world.known(number) is False
    assert world.endings.look(42) is None
    assert world.known(42) is True
