"""Stories: what they wait for, in which order they go on, and how they end."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from rmgr.errors import Unavailable
from rmgr.runtime.mailbox import Mailbox
from rmgr.runtime.story import Bell, Pause, Stories, Story, each


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
