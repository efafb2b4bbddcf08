"""The event log of calls on its way into the store: batches, their keys, and what happens while the store is away."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from rmgr.coord.protocol import keys
from rmgr.daemons.leader.calls import MOST_BYTES, CallLog
from rmgr.daemons.leader.placement.event_log import EVERY_S, MOST_PIECES, PIECE_BYTES
from rmgr.runtime.story import Stories, Story


class Loop:
    """A loop that the test turns."""

    def __init__(self) -> None:
        self.soon_: list[Callable[[], None]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def clock(self) -> float:
        return 0.0

    def soon(self, what: Callable[[], None], /) -> None:
        self.soon_.append(what)

    def after(self, delay_s: float, what: Callable[[], None], /) -> Any:
        self.timers.append((delay_s, what))
        return self

    def cancel(self) -> None:
        self.timers.clear()

    post = soon

    def tell(self, story: Story[None], _about: str) -> None:
        Stories(self).begin(story)

    def turn(self) -> None:
        waiting, self.soon_ = self.soon_, []
        for what in waiting:
            what()


class Term:
    epoch = 9


class Store:
    """Also the calls of the store, which are carried out when the test says so."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[bytes, float | None]] = {}
        self.waiting: list[tuple[Callable[[Any], object], Future[object]]] = []

    def put(self, key: str, value: bytes, *, ttl_s: float | None) -> None:
        self.rows[key] = value, ttl_s

    def store(self, call: Callable[[Any], object]) -> Future[object]:
        answer: Future[object] = Future()
        self.waiting.append((call, answer))
        return answer

    def carry_out(self) -> None:
        waiting, self.waiting = self.waiting, []
        for call, answer in waiting:
            answer.set_result(call(self))


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def log(loop: Loop, store: Store) -> CallLog:
    return CallLog(SimpleNamespace(tree=loop, term=Term(), calls=store, settings=SimpleNamespace(log_ttl_s=7.0)))  # type: ignore[arg-type]


def test_lines_are_written_in_batches_under_keys_of_their_own_with_an_expiry(log: CallLog, loop: Loop, store: Store) -> None:
    log.begin()
    log.write("a\n")
    log.write("b\n")
    assert len(loop.soon_) == 1  # however many lines
    loop.turn()
    assert (store.waiting, [delay for delay, _ in loop.timers]) == ([], [EVERY_S])
    loop.timers.pop()[1]()
    log.begin()
    log.write("c\n")
    log.flush()
    store.carry_out()
    assert store.rows == {
        keys.events(9, 0, 0, family=keys.PICKS): (b"a\nb\n", 7.0),
        keys.events(9, 1, 0, family=keys.PICKS): (b"c\n", 7.0),
    }
    assert keys.parse_events(next(iter(store.rows)), family=keys.PICKS) == (9, 0, 0)


def test_a_full_piece_is_not_waited_for(log: CallLog, loop: Loop, store: Store) -> None:
    log.begin()
    log.write("x" * PIECE_BYTES)
    loop.turn()
    store.carry_out()
    assert list(store.rows.values()) == [(b"x" * PIECE_BYTES, 7.0)]


def test_there_is_no_room_while_the_loop_or_the_store_stand_still(log: CallLog, loop: Loop, store: Store) -> None:
    log.begin()
    log.write("x" * MOST_BYTES)
    assert not log.has_room
    loop.turn()
    assert log.has_room
    for _ in range(MOST_PIECES):
        log.write("y")
        log.flush()
    assert not log.has_room
    store.carry_out()
    loop.turn()
    assert log.has_room
