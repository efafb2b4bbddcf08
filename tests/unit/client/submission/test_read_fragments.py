"""Fragments between their reading and their delivery: none waits for another one when nobody could say at first whose key signed it."""

from __future__ import annotations

from rmgr.errors import CoordinationUnavailable
from rmgr.model.tasks.block import Fragment, Outcome
from rmgr.submitter.port import Read
from tests.harness.following import World


class Keys:
    """Knows whose keys they are once somebody has answered."""

    is_away = True

    def doubt(self, *_: object) -> str | None:
        return None if self.is_away else ""

    def find_doubt(self, *_: object) -> str:
        raise CoordinationUnavailable("the gateway does not answer")


def test_what_could_not_be_judged_at_once_is_delivered_when_it_can() -> None:
    keys = Keys()
    world = World(authenticity=keys)
    world.fragments.take([Read(at, Fragment(outcomes=(Outcome(index=at),)), 5, b"data") for at in range(3)])
    world.run()
    assert (world.seen, len(world.timers)) == ([], 3)
    keys.is_away = False
    world.ring()
    world.run()
    assert world.seen == [0, 1, 2]
    world.coordinator.close()
