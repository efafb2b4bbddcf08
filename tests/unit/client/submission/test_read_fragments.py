"""Fragments between their reading and their delivery: none waits for another one when nobody could say at first whose key signed it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from rmgr.client.submission.read_fragments import ReadFragments
from rmgr.errors import CoordinationUnavailable, RmgrError
from rmgr.model.tasks.outcome import Fragment, Outcome
from rmgr.submitter.port import Read


class Loop:
    """Jobs and timers on this thread, when the test says so."""

    def __init__(self) -> None:
        self.jobs: deque[Callable[[], object]] = deque()
        self.timers: list[Callable[[], object]] = []

    def post(self, job: Callable[[], object]) -> None:
        self.jobs.append(job)

    def after(self, _delay_s: float, job: Callable[[], object]) -> None:
        self.timers.append(job)

    def io(self, job: Callable[[], Any]) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(job())
        except RmgrError as error:
            done.set_exception(error)
        return done

    def jitter(self, seconds: float) -> float:
        return seconds

    def run(self) -> None:
        while self.jobs:
            self.jobs.popleft()()

    def ring(self) -> None:
        timers, self.timers = self.timers, []
        for job in timers:
            job()
        self.run()


class Keys:
    """Knows whose keys they are once somebody has answered."""

    is_away = True

    def doubt(self, *_: object) -> str | None:
        return None if self.is_away else ""

    def find_doubt(self, *_: object) -> str:
        raise CoordinationUnavailable("the gateway does not answer")


def test_what_could_not_be_judged_at_once_is_delivered_when_it_can() -> None:
    loop, keys = Loop(), Keys()
    seen: list[int] = []

    def deliver(number: int, _fragment: Fragment, _outcomes: Sequence[Outcome]) -> None:
        seen.append(number)

    store: Any = None
    fragments = ReadFragments(
        1, loop, store, deliver, read_tail=Future, fail=lambda error: None, authenticity=keys  # type: ignore[arg-type]
    )  # fmt: skip
    fragments.take([Read(at, Fragment(outcomes=(Outcome(index=at),)), 5, b"data") for at in range(3)])
    loop.run()
    assert (seen, len(loop.timers)) == ([], 3)
    keys.is_away = False
    loop.ring()
    assert seen == [0, 1, 2]
