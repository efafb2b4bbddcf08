"""Fragments that a Starter tells on a direct line: not read, never twice, never out of order, whatever is lost or comes late."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmgr.model.wire.line import Ahead, Told
from tests.harness.following import World, fragment


class Starters(World):
    """And the Starters' side of the submission."""

    made = 0
    serial = 0

    def settle(self) -> None:
        """Delivers everything and rings what is not the slow resync, which nothing here may need."""
        for _ in range(50):
            self.run()
            self.follower._heard_s = 0.0  # the pause is over
            if not self.ring(within_s=0.9):
                return
        raise AssertionError("it never comes to rest")

    def ahead(self, index: int) -> Told:
        """What a Starter says before it commits; the answer is what it says after."""
        self.serial += 1
        self.follower.heard(Ahead(self.serial, 1, fragment(index)))
        return Told(self.serial, 1, self.made)

    def commit(self, index: int) -> None:
        self.add(index)
        self.made += 1


@pytest.fixture
def world() -> Iterator[Starters]:
    with Starters.started() as made:
        yield made


def test_what_is_told_is_neither_read_nor_watched(world: Starters) -> None:
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
    assert world.indices == [(number, number) for number in range(20)]
    assert (world.coordinator.gets, world.coordinator.stats) == (0, 0)


def test_after_a_pause_the_next_one_is_watched_again(world: Starters) -> None:
    for index in range(3):
        told = world.ahead(index)
        world.commit(index)
        world.follower.heard(told)
    world.settle()
    world.commit(3)
    world.run()
    assert world.indices == [(number, number) for number in range(4)]


def test_what_was_announced_and_never_told_is_read(world: Starters) -> None:
    world.ahead(0)
    world.commit(0)
    world.settle()
    assert world.indices == [(0, 0)]


def test_what_was_announced_and_not_committed_is_not_delivered(world: Starters) -> None:
    world.ahead(7)
    world.settle()
    assert world.indices == []
    world.commit(8)
    world.settle()
    assert world.indices == [(0, 8)]


def test_one_that_comes_from_elsewhere_in_between_is_read_first(world: Starters) -> None:
    told = world.ahead(1)
    world.commit(9)  # another Starter's, which has no line
    late = Told(told.serial, 1, world.made)
    world.commit(1)
    world.follower.heard(late)
    world.settle()
    assert world.indices == [(0, 9), (1, 1)]


def test_what_would_not_be_believed_is_read_and_judged_as_ever() -> None:
    with Starters.started(believes=lambda *_: False) as world:
        told = world.ahead(0)
        world.commit(0)
        world.follower.heard(told)
        world.settle()
        assert world.indices == [(0, 0)]
        assert world.coordinator.gets


STEPS = st.sampled_from(["ahead", "told", "told twice", "commit", "commit other", "message", "messages", "ring", "drop", "wrong"])


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_whatever_is_lost_or_late_every_fragment_comes_once_and_in_order(steps: list[str]) -> None:
    expected: list[int] = []
    index = 0
    told: Told | None = None
    state = ""
    with Starters.started() as world:
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
                case "message":
                    world.run(1)
                case "messages":
                    world.run()
                case "ring":
                    world.ring()
                case _:
                    pass
        world.settle()
        assert world.indices == list(enumerate(expected))
