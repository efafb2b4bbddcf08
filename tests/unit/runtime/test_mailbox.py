"""One queue, one owner: order, deadlines, hints that arrive once, timers from the wait itself."""

from __future__ import annotations

import threading
import time

import pytest

from rmgr.runtime.mailbox import Closed, Mailbox
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
