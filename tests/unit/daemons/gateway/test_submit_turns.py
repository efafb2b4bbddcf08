"""Who is too late for a number has a turn: at a gateway nobody who submits in a loop keeps others from submitting."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from rmgr.daemons.gateway import submit_turns as subject
from rmgr.daemons.gateway.submit_turns import LAPSE_S, PAUSE_S, TURN_S, TURNS, WAIT_S, SubmitTurns
from tests.harness.waiting import eventually

LOOPS = [f"loop{at}" for at in range(TURNS)]


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Place:
    """SubmitTurns by a clock that the test turns, and SUBMITs that wait for them, each on a thread of its own."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.turns = SubmitTurns(clock=self.clock)
        self._threads: list[threading.Thread] = []

    def loops(self) -> None:
        """Users who want a number as soon as they have one have all turns."""
        for user in LOOPS:
            assert self.turns.enter(user)
            self.turns.made(user)
            self.clock.now_s += PAUSE_S / 100
            assert self.turns.enter(user)
            self.turns.lost(user)

    def enters(self, user: str) -> list[bool]:
        """He tries, and waits. Returns: what he was told, empty as long as he waits."""
        told: list[bool] = []
        thread = threading.Thread(target=lambda: told.append(self.turns.enter(user)), daemon=True)
        before = len(self.turns._waiting)
        thread.start()
        self._threads.append(thread)
        eventually(lambda: told or len(self.turns._waiting) > before, "he neither waits nor has gone on")
        return told

    def later(self, seconds: float) -> None:
        """Whoever waits looks at the clock."""
        self.clock.now_s += seconds
        with self.turns._lock:
            for waiter in self.turns._waiting:
                waiter.woken.set()

    def close(self) -> None:
        self.later(3600.0)
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.close()


def test_nobody_waits_while_nobody_is_too_late(place: Place) -> None:
    for _ in range(100):
        for user in ("ann", "ben", "loop"):
            assert place.turns.enter(user)
            place.turns.made(user)


def test_a_loop_waits_while_all_turns_are_taken_and_goes_on_when_one_is_over(place: Place) -> None:
    place.loops()
    place.turns.enter("late")
    place.turns.made("late")
    told = place.enters("late")
    assert told == []
    place.turns.made(LOOPS[0])
    eventually(lambda: told, "it is not his turn")
    assert told == [True]


def test_who_has_paused_does_not_wait_for_loops_and_has_the_turn_when_he_was_too_late(place: Place) -> None:
    place.turns.enter("ann")
    place.turns.made("ann")
    place.clock.now_s += PAUSE_S
    place.loops()
    assert place.turns.enter("ann", waits=False)
    place.turns.lost("ann")
    assert place.turns.enter("ann", waits=False)
    *others, last = LOOPS  # who came last of the loops has none any more
    assert all(place.turns.enter(user, waits=False) for user in others)
    assert not place.turns.enter(last, waits=False)


def test_of_those_who_paused_who_came_first_goes_first(place: Place) -> None:
    people = [f"p{at}" for at in range(TURNS + 2)]
    for user in people:
        assert place.turns.enter(user)  # nobody has a turn yet
        place.clock.now_s += 0.001
    for user in people:
        place.turns.lost(user)
    *first, before, last = people
    waiting = [place.enters(last), place.enters(before)]
    assert waiting == [[], []]
    place.turns.made(first[0])
    eventually(lambda: waiting[1], "the one who came before the other does not go on")
    assert waiting == [[], [True]]


def test_who_waits_in_vain_is_too_late(place: Place) -> None:
    place.loops()
    place.turns.enter("late")
    place.turns.made("late")
    told = place.enters("late")
    for _ in range(round(WAIT_S / TURN_S) * 2 + 1):
        for user in LOOPS:
            place.turns.lost(user)  # they go on trying
        place.later(TURN_S / 2)
    eventually(lambda: told, "he is not told")
    assert told == [False]
    assert not place.turns.enter("late", waits=False)


def test_who_lets_a_turn_go_by_has_none_for_longer_and_longer(place: Place) -> None:
    assert place.turns.enter("slow")
    place.turns.lost("slow")
    for lapse_s in (LAPSE_S, 2 * LAPSE_S, 4 * LAPSE_S):
        place.clock.now_s += TURN_S
        place.turns.enter("ann")
        place.turns.lost("ann")
        assert not place.turns.enter("slow", waits=False)  # while anybody else has a turn
        place.turns.lost("slow")
        place.turns.made("ann")
        assert place.turns.enter("slow", waits=False)
        place.clock.now_s += lapse_s - 0.01
        place.turns.lost("slow")
        place.turns.enter("ann")
        place.turns.lost("ann")
        assert not place.turns.enter("slow", waits=False)
        place.turns.made("ann")
        place.clock.now_s += 0.02
        assert place.turns.enter("slow")
        place.turns.lost("slow")
        for other in range(TURNS - 1):
            place.turns.enter(f"other{other}")
            place.turns.lost(f"other{other}")
        assert place.turns.enter("slow", waits=False)
        for other in range(TURNS - 1):
            place.turns.made(f"other{other}")


def test_of_many_users_those_are_forgotten_who_have_not_submitted_for_long(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_MOST_USERS", 100)
    for at in range(1000):
        place.turns.enter(f"u{at}")
        place.turns.made(f"u{at}")
        place.clock.now_s += 10.0
    assert len(place.turns._users) <= 101
