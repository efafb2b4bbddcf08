"""One queue, one owner: order, deadlines, hints that arrive once, timers; and stories, which wait on it and end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from rmgr.errors import Unavailable
from rmgr.runtime.mailbox import Closed, Mailbox
from rmgr.runtime.story import Bell, Pause, Semaphore, Stories, Story, each
from tests.harness.fair_time import FairTimer


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def box(clock: Clock) -> Mailbox[str]:
    return Mailbox(clock)


def test_letters_come_in_the_order_in_which_they_were_put(box: Mailbox[str]) -> None:
    for letter in "abc":
        box.put(letter)
    assert list(box.drain()) == ["a", "b", "c"]
    assert box.get(0) is None


def test_a_hint_raised_often_arrives_once_and_can_be_raised_again(box: Mailbox[str]) -> None:
    box.wake("look")
    box.put("a")
    box.wake("look")
    assert list(box.drain()) == ["look", "a"]
    box.wake("look")
    assert box.get(0) == "look"


def test_hints_are_told_apart_by_their_key(box: Mailbox[str]) -> None:
    box.wake("first", key=1)
    box.wake("second", key=2)
    box.wake("dropped", key=1)
    assert list(box.drain()) == ["first", "second"]


def test_timers_come_when_they_are_due_in_their_order(box: Mailbox[str], clock: Clock) -> None:
    box.after(2.0, "late")
    box.after(1.0, "early")
    box.after(1.0, "early too")
    assert box.get(0) is None
    clock.now = 1.0
    assert list(box.drain()) == ["early", "early too"]
    clock.now = 2.0
    assert box.get(0) == "late"


def test_a_cancelled_timer_never_comes(box: Mailbox[str], clock: Clock) -> None:
    timer = box.after(1.0, "no")
    timer.cancel()
    timer.cancel()
    clock.now = 5.0
    assert box.get(0) is None


def test_a_flood_of_letters_delays_no_deadline(box: Mailbox[str], clock: Clock) -> None:
    for _ in range(5):
        box.put("flood")
    box.after(0.0, "deadline")
    assert box.get(0) == "deadline"


def test_a_closed_mailbox_gives_what_is_inside_then_ends(box: Mailbox[str]) -> None:
    box.put("a")
    box.after(1.0, "never")
    box.close()
    box.put("dropped")
    box.wake("dropped")
    assert box.get() == "a"
    with pytest.raises(Closed):
        box.get()
    assert list(box.drain()) == []


def test_the_owner_sleeps_until_a_letter_comes_from_another_thread() -> None:
    box: Mailbox[int] = Mailbox()
    senders = [threading.Thread(target=lambda start=start: [box.put(start + n) for n in range(500)]) for start in (0, 1000, 2000)]
    for sender in senders:
        sender.start()
    got = [box.get(60.0) for _ in range(1500)]
    for sender in senders:
        sender.join()
    assert sorted(x for x in got if x is not None) == [start + n for start in (0, 1000, 2000) for n in range(500)]
    for start in (0, 1000, 2000):
        own = [x for x in got if x is not None and start <= x < start + 500]
        assert own == sorted(own)


def test_a_wait_ends_at_its_deadline_or_at_the_next_timer() -> None:
    box: Mailbox[str] = Mailbox()
    started = time.monotonic()
    assert box.get(0.05) is None
    box.after(0.05, "timer")
    with FairTimer() as timer:
        assert box.get(60.0) == "timer"
    assert time.monotonic() - started > 0.09
    assert timer.elapsed_s < 2.0


def test_an_earlier_timer_set_by_another_thread_shortens_the_wait() -> None:
    box: Mailbox[str] = Mailbox()
    box.after(1000.0, "far")
    other = threading.Timer(0.05, lambda: box.after(0.01, "near"))
    other.start()
    assert box.get(60.0) == "near"
    other.join()


class Loop:
    """A loop that the test turns, and its clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.mailbox: Mailbox[Callable[[], object]] = Mailbox(lambda: self.now_s)

    def post(self, job: Callable[[], object]) -> None:
        self.mailbox.put(job)

    def after(self, delay_s: float, job: Callable[[], object]) -> Any:
        return self.mailbox.after(delay_s, job)

    def run(self, seconds: float = 0.0) -> None:
        self.now_s += seconds
        while (job := self.mailbox.get(0)) is not None:
            job()


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_it_goes_on_with_what_it_waited_for_and_one_of_a_key_is_told_at_a_time(loop: Loop) -> None:
    stories, told, answer = Stories(loop), [], Future[int]()

    def story() -> Story[None]:
        told.append("begun")
        told.append((yield answer))
        yield Pause(2.0)
        told.append("over")

    assert stories.begin(story(), key="one")
    assert not stories.begin(story(), key="one")
    answer.set_result(7)
    assert told == ["begun"], "not in the middle of who answers"
    loop.run(1.0)
    assert told == ["begun", 7]
    loop.run(2.0)
    assert (told, len(stories)) == (["begun", 7, "over"], 0)


def test_what_was_asked_together_is_answered_in_that_order_and_an_error_is_raised_where_it_is_waited_for(loop: Loop) -> None:
    stories, told = Stories(loop), []
    asked = [Future[int]() for _ in range(3)]

    def story() -> Story[None]:
        told.append((yield from each(asked)))
        try:
            yield from each([lost])
        except Unavailable:
            told.append("lost")

    lost = Future[int]()
    stories.begin(story())
    for at in (2, 0, 1):
        asked[at].set_result(at)
        loop.run()
    lost.set_exception(Unavailable("away"))
    loop.run()
    assert told == [[0, 1, 2], "lost"]


def test_one_that_was_ended_hears_of_nothing_more_and_others_go_on(loop: Loop) -> None:
    stories, told, answer = Stories(loop), [], Future[int]()

    def story(name: str) -> Story[None]:
        try:
            yield answer
            told.append(name)
        finally:
            told.append(f"end of {name}")

    stories.begin(story("a"), key="a")
    stories.begin(story("b"), key="b")
    stories.end("a")
    stories.end("nobody")
    assert told == ["end of a"]
    answer.set_result(1)
    loop.run()
    assert told == ["end of a", "b", "end of b"]


def test_one_that_ends_itself_is_closed_where_it_waits_next(loop: Loop) -> None:
    stories, told = Stories(loop), []

    def story() -> Story[None]:
        stories.end("mine")
        told.append("goes on")
        yield Pause(0.0)
        told.append("never")

    stories.begin(story(), key="mine")
    loop.run(1.0)
    assert (told, len(stories)) == (["goes on"], 0)


def test_a_bell_that_rang_before_somebody_waits_is_heard_once(loop: Loop) -> None:
    stories, told, bell = Stories(loop), [], Bell(loop)

    def story() -> Story[None]:
        while True:
            yield bell.heard(5.0)
            told.append(loop.now_s)

    bell.ring()
    bell.ring()
    loop.run()
    stories.begin(story())
    loop.run()
    loop.run(3.0)
    assert told == [0.0]
    loop.run(2.0)
    assert told == [0.0, 5.0]
    stories.stop()


def test_so_many_stories_go_on_at_a_time_in_order_and_a_turn_of_one_that_was_ended_is_the_next_ones(loop: Loop) -> None:
    stories, told, turns = Stories(loop), [], Semaphore(1)

    def story(number: int) -> Story[None]:
        yield from turns.acquire()
        try:
            told.append(number)
            yield Pause(1.0)
        finally:
            turns.release()

    for number in range(5):
        stories.begin(story(number), key=number)
    loop.run()
    assert told == [0]
    stories.end(1)  # it waits
    stories.end(0)  # its turn is given to 2, who does not know it yet
    stories.end(2)
    loop.run()
    assert told == [0, 3]
    loop.run(1.0)
    assert told == [0, 3, 4]
    loop.run(1.0)
    stories.begin(story(5))
    loop.run()
    assert told == [0, 3, 4, 5]
    stories.stop()
