"""Turns of users: the least served user goes first, no user gets more than a fair part, and the most demanding one makes room."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.access.turns import CROWD, HALF_S, Breath, Had, Turns
from rmgr.errors import LimitReached, QueueFull, Throttled
from rmgr.model.queue import UserLimits
from tests.harness.waiting import eventually


def turns(had: Had | None = None, *, at_once: int = 1, of_one: int = 1, most: int = 100, **more: Any) -> Turns:
    return Turns(had or Had(), at_once=at_once, of_one=of_one, most=most, **more)


class Line:
    """Users who wait for a turn, each in a thread; they are noted in the order in which they had it."""

    def __init__(self, made: Turns) -> None:
        self.turns = made
        self.served: list[str] = []
        self._threads = ThreadPoolExecutor(64)

    def ask(self, user: str, *, is_operator: bool = False) -> Future[None]:
        """Returns once he waits, or was refused."""
        before = self.turns.taken(user)
        asked = self._threads.submit(self._ask, user, is_operator)
        eventually(lambda: self.turns.taken(user) > before or asked.done())
        return asked

    def _ask(self, user: str, is_operator: bool) -> None:
        with self.turns.turn(user, 60.0, is_operator=is_operator):
            self.served.append(user)

    def close(self) -> None:
        self._threads.shutdown()


def test_who_asks_seldom_goes_before_those_who_have_asked_for_much() -> None:
    had = Had()
    line = Line(turns(had))
    for at in range(10):
        had.add(f"m{at}", 1.0 + at)
    with line.turns.turn("somebody", 1.0):
        for at in reversed(range(10)):
            for _ in range(3):
                line.ask(f"m{at}")
        line.ask("ann")
    line.close()
    assert line.served[0] == "ann"
    assert line.served[1:4] == ["m0", "m0", "m0"], "what they have had now is nothing beside what they had before"
    assert Counter(line.served) == Counter({f"m{at}": 3 for at in range(10)} | {"ann": 1})


def test_what_somebody_has_had_is_forgotten_by_halves() -> None:
    clock = [0.0]
    had = Had(lambda: clock[0])
    had.add("ann", 8.0)
    for _ in range(3):
        clock[0] += HALF_S
    had.add("ben", 1.0)
    assert had.of("ann") == pytest.approx(had.of("ben"))
    clock[0] += 1000 * HALF_S
    had.add("ben", 1.0)
    had.add("eve", 2.0)
    assert 0.0 == had.of("ann") < had.of("ben") < had.of("eve")


def test_one_has_so_many_at_once_and_a_quarter_is_for_who_has_none() -> None:
    made = turns(at_once=4, of_one=4)
    with made.turn("eve", 1.0), made.turn("eve", 1.0), made.turn("eve", 1.0):
        with pytest.raises(Throttled, match="eve: not within"), made.turn("eve", 0.05):
            pass
        with made.turn("ann", 0.0):
            assert (made.taken("eve"), made.taken("ann")) == (3, 1)
    assert (made.taken("eve"), len(made)) == (0, 0)
    small = turns(at_once=8, of_one=2)
    with small.turn("eve", 1.0), small.turn("eve", 1.0), pytest.raises(Throttled), small.turn("eve", 0.05):
        pass


def test_where_all_places_are_taken_the_last_of_the_greediest_makes_room() -> None:
    line = Line(turns(most=8))
    with line.turns.turn("somebody", 1.0):
        greedy = [line.ask("eve") for _ in range(6)]
        others = [line.ask("mia") for _ in range(2)]
        honest = line.ask("ann")
        assert isinstance(greedy[-1].exception(60), Throttled)
        assert isinstance(line.ask("eve").exception(60), QueueFull)
        operator = line.ask("olga", is_operator=True)
        assert isinstance(greedy[-2].exception(60), Throttled)
    line.close()
    assert line.served[0] == "olga"
    assert [one.exception(60) for one in (*greedy[:4], *others, honest, operator)] == [None] * 8


def test_where_everybody_waits_with_one_whoever_has_had_most_makes_room() -> None:
    had = Had()
    line = Line(turns(had, most=3))
    with line.turns.turn("somebody", 1.0):
        for user, seconds in (("m1", 1.0), ("m2", 3.0), ("m3", 2.0), ("m4", 9.0)):
            had.add(user, seconds)
        waiting = {user: line.ask(user) for user in ("m1", "m2", "m3")}
        assert isinstance(line.ask("m4").exception(60), QueueFull)
        ann = line.ask("ann")
        assert isinstance(waiting["m2"].exception(60), Throttled)
    line.close()
    assert line.served == ["ann", "m1", "m3"]
    assert ann.exception(60) is None


def test_a_user_has_as_many_as_the_settings_say_and_that_is_counted() -> None:
    bounds = Bounds(UserLimits(calls=2))
    line = Line(bounds.turns("calls", at_once=1, of_one=1, most=100))
    with line.turns.turn("ann", 1.0):
        line.ask("ann")
        assert bounds.used("ann")["calls"] == 2
        refused = line.ask("ann").exception(60)
        assert isinstance(refused, LimitReached)
        assert "ann has reached the limit calls = 2" in str(refused)
    line.close()
    assert bounds.refused("ann") == {"calls": 1}
    assert bounds.used("ann")["calls"] == 0


def test_a_turn_that_garbage_collection_ends_while_another_is_given_is_given_back() -> None:
    """A call that nobody ends is a generator: it may be collected anywhere, so on a thread that looks at the line just then."""
    kept: list[Iterator[None]] = []

    class Collecting(Had):
        def of(self, user: str) -> float:
            while kept:
                kept.pop().close()  # type: ignore[attr-defined]
            return super().of(user)

    line = Line(turns(Collecting(), at_once=2, of_one=2))

    def call() -> Iterator[None]:
        with line.turns.turn("lost", 1.0):
            yield

    lost = call()
    next(lost)
    kept.append(lost)
    del lost
    with line.turns.turn("somebody", 1.0):
        asked = [line.ask(user) for user in ("ann", "ben")]
    assert [one.result(60) for one in asked] == [None, None]
    line.close()
    assert not kept
    assert line.turns.taken("lost") == 0


@settings(max_examples=15, deadline=None)
@given(
    asked=st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from((0.0, 0.001, 0.003)), st.booleans()), min_size=1, max_size=60),
    at_once=st.integers(1, 5), of_one=st.integers(1, 5), most=st.integers(1, 20),
)
def test_whatever_is_asked_no_more_are_let_through_and_nothing_is_left(
    asked: list[tuple[str, float, bool]], at_once: int, of_one: int, most: int
) -> None:
    made = turns(at_once=at_once, of_one=of_one, most=most)
    lock, under_way, ends = threading.Lock(), Counter[str](), Counter[str]()

    def ask(user: str, seconds: float, is_operator: bool) -> None:
        try:
            with made.turn(user, 0.002 if seconds else 5.0, is_operator=is_operator):
                with lock:
                    under_way[user] += 1
                    assert under_way.total() <= at_once
                    assert under_way[user] <= of_one
                time.sleep(seconds)
                with lock:
                    under_way[user] -= 1
            ends["served"] += 1
        except (Throttled, QueueFull) as error:
            ends[type(error).__name__] += 1

    with ThreadPoolExecutor(16) as threads:
        calls: list[Callable[[], None]] = [threads.submit(ask, *one).result for one in asked]
    for call in calls:
        call()
    assert ends.total() == len(asked)
    assert (len(made), [made.taken(user) for user in "abcd"]) == (0, [0] * 4)


@pytest.mark.parametrize("users", [CROWD, CROWD + 1])
def test_a_crowd_that_has_used_its_part_rests_while_somebody_else_asks(users: int) -> None:
    now_s = 100.0
    had = Had(lambda: now_s)
    for at in range(users):
        had.add(f"m{at}", 1.0)
        had.wait(f"m{at}", 5)
    had.add("ann", 0.5)
    breath, line = Breath(had), Line(turns(had, at_once=4))
    breath.look(100.0, 1.0)
    breath.look(100.1, 1.1)  # a whole processor
    with had.waiting("m0", 1):  # one of the crowd
        breath.look(100.2, 1.2)
    assert not had.must_rest("m0")
    with had.waiting("ann", 1):
        pass
    breath.look(100.3, 1.3)
    assert had.must_rest("m0") is (users > CROWD)
    assert not had.must_rest("ann")
    asked = [line.ask("m0"), line.ask("ann"), line.ask("root", is_operator=True)]
    eventually(asked[1].done)
    eventually(asked[2].done)
    assert asked[0].done() or users > CROWD
    breath.look(100.6, 1.3)
    assert asked[0].result(60) is None
    line.close()
    now_s += 10.0  # nobody else asks any more
    breath.look(101.0, 2.0)
    assert not had.must_rest("m0")


def test_a_crowd_goes_on_although_somebody_else_keeps_the_process_busy() -> None:
    """Handshakes and bytes passed on are nobody's turn: whoever floods a gateway with these must not make a crowd wait for ever."""
    had = Had()
    for at in range(CROWD + 1):
        had.add(f"m{at}", 1.0)
        had.wait(f"m{at}", 5)
    breath = Breath(had)
    breath.look(99.0, 0.0)
    breath.look(99.5, 1.0)
    had.wait("ann", 1)
    rested = []
    for at in range(200):  # 1 s, in which the process uses a whole processor
        breath.look(100.0 + at * 0.005, 1.0 + at * 0.005)
        rested.append(had.must_rest("m0"))
    assert any(rested)
    assert not any(all(rested[at : at + 50]) for at in range(150)), "it rests for less than a quarter of a second at a stretch"
