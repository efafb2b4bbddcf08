"""The leader's metaserver beside its loop, and the writing of its event log of calls to the store."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from rmgr.coord.protocol import keys
from rmgr.daemons.leader.answering import CallAnswering
from rmgr.daemons.leader.leader import MOST_BYTES, CallLog, LeaderCalls
from rmgr.daemons.leader.metrics import LeaderMetrics
from rmgr.daemons.leader.placement.event_log import EVERY_S, MOST_PIECES, PIECE_BYTES
from rmgr.errors import Unavailable
from rmgr.model.cluster.queue import ClusterSettings, PipelineSpec
from rmgr.model.cluster.servers import CALLS, GatewayReport, PickRequest, ServerLoad, ServerReport
from rmgr.model.views import StatusView
from rmgr.runtime.story import Stories, Story
from tests.harness.metric_rows import value_of

STATUS = StatusView(healthy=True, leader=None, zookeeper={}, store={}, counts={}, nodes={})


class Log:
    def __init__(self) -> None:
        self.events: list[str] = []

    def info(self, event: str, **_fields: object) -> None:
        self.events.append(event)

    error = warning = info


class Term:
    epoch = 9

    def __init__(self) -> None:
        self.log, self.metrics = Log(), LeaderMetrics()

    def wall_us(self) -> int:
        return 10**15


class IdleLoop:
    """Nothing of it comes about."""

    def clock(self) -> float:
        return 0.0

    def soon(self, what: Callable[[], None], /) -> None:
        pass

    def after(self, delay_s: float, what: Callable[[], None], /) -> Any:
        pass

    def tell(self, *_: object) -> None:
        pass


def settings(policy: str = "") -> ClusterSettings:
    spec = PipelineSpec(partition=CALLS, name=policy, document=f'{{"stage": [{{"policy": "{policy}"}}]}}')
    return ClusterSettings(pipelines=(spec,) if policy else ())


@pytest.fixture
def calls() -> LeaderCalls:
    context = SimpleNamespace(tree=IdleLoop(), term=Term(), calls=IdleLoop(), settings=settings())
    return LeaderCalls(context)  # type: ignore[arg-type]


SERVERS = (ServerReport(name="s1", life=1, load=ServerLoad()), ServerReport(name="s2", life=1, state="away"))
REPORT = GatewayReport(gateway="g:1", servers=SERVERS)


def test_who_does_not_lead_or_does_not_know_its_settings_yet_refuses(calls: LeaderCalls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmgr.daemons.leader.answering.BEGINS_S", 0.01)

    class Leading:
        server_calls = calls

    metrics = LeaderMetrics()
    with pytest.raises(Unavailable, match="does not lead"):
        CallAnswering(lambda: None, metrics).servers("")
    answering = CallAnswering(Leading, metrics)
    with pytest.raises(Unavailable, match="has just begun to lead"):
        answering.pick(PickRequest(gateway="g:1", function="", operations=1, bytes=1))
    calls.settings_read(settings())
    assert answering.pick(PickRequest(gateway="g:1", function="", operations=1, bytes=1)).why == "no server offers it"
    assert value_of(metrics.call_picks.labels("none")) == 1


def test_the_policy_of_the_settings_picks_and_one_that_cannot_be_used_changes_nothing(calls: LeaderCalls) -> None:
    calls.settings_read(settings())
    assert calls.shown_in(STATUS) == STATUS
    calls.settings_read(settings("loth"))
    calls.metaserver.report(REPORT)
    view = calls.shown_in(STATUS)
    assert [(one.partition, one.policy, one.servers, one.problem) for one in view.policies] == [(CALLS, "loth", 1, "")]
    calls.settings_read(settings("easy"))
    view = calls.shown_in(STATUS)
    assert view.policies[0].policy == "loth"
    assert view.healthy
    assert "easy places jobs, it chooses no servers for calls" in view.warnings[0]
    calls.settings_read(settings())
    assert [(one.policy, one.problem) for one in calls.shown_in(STATUS).policies] == [("loth+l", "")]


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
