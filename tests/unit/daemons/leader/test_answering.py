"""A leader's answers beside its loop: health, Starters that it does not reach, the metaserver, and the event log of calls to the store."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from rmgr.coord.protocol import keys
from rmgr.coord.views.health import unreached
from rmgr.coord.views.snapshot import ClusterSnapshot
from rmgr.daemons.leader import answering as place
from rmgr.daemons.leader.answering import CallAnswering, LeaderAnswering, StarterReach
from rmgr.daemons.leader.leader import MOST_BYTES, CallLog, LeaderCalls
from rmgr.daemons.leader.placement.event_log import EVERY_S, MOST_PIECES, PIECE_BYTES
from rmgr.daemons.leader.term import LeaderMetrics
from rmgr.errors import CoordinationUnavailable, Unavailable
from rmgr.model.base import Capacity
from rmgr.model.node import NodeRecord, NodeState
from rmgr.model.queue import ClusterSettings, PipelineSpec
from rmgr.model.servers import CALLS, GatewayReport, PickRequest, ServerLoad, ServerReport
from rmgr.model.views import LeaderView, Level, StatusView
from rmgr.runtime import machine
from rmgr.runtime.story import Stories, Story
from tests.harness.fair_time import FairTimer
from tests.harness.metric_rows import value_of


def call(_what: object) -> Any:
    raise AssertionError("nothing is asked of the loop")


def seen(*, healthy: bool, epoch: int = 3, uptime_s: float = 0.0) -> StatusView:
    leader = LeaderView(id="w1", host="h1", pid=1, epoch=epoch, since_us=epoch * 1000)
    return StatusView(healthy=healthy, leader=leader, zookeeper={}, store={}, counts={}, nodes={}, uptime_s=uptime_s)


class Hour(Exception):
    """It is over."""


def test_a_look_follows_each_change_of_the_nodes_within_two_seconds_and_an_idle_cluster_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader = SimpleNamespace(node_changes=0)
    clock, looks, fails = [0.0], list[float](), [1000.0]

    def sleep(pause_s: float) -> None:
        for change_s in (100.4, 100.9, 1000.0, 2000.0):
            leader.node_changes += clock[0] < change_s <= clock[0] + pause_s
        clock[0] += pause_s
        if clock[0] > 3600:
            raise Hour

    class Answering(LeaderAnswering):
        def status(self, **_: Any) -> Any:
            looks.append(clock[0])
            if clock[0] == 2000.0:
                clock[0] += 0.5  # a large cluster
            if fails and clock[0] >= fails[0]:
                fails.clear()
                raise CoordinationUnavailable("not now")

    monkeypatch.setattr(place, "machine", SimpleNamespace(sleep=sleep, monotonic=lambda: clock[0], wall_us=machine.wall_us))
    answering: Any = Answering(SimpleNamespace(coordinator=None, leader=leader), dict)
    with pytest.raises(Hour):
        answering.watch_health(SimpleNamespace())
    for change_s in (100.4, 1000.0, 2000.0):
        assert any(0 <= at - change_s <= 1.0 for at in looks), looks
    assert any(1000.0 < at <= 1002.0 for at in looks), "what has failed is looked at again soon"
    assert not any(2000.5 < at < 2010 for at in looks), "one that takes long is not made again at once"
    assert len(looks) <= 3600 / place.LOOK_S + 6, looks


def test_it_changes_when_health_does_and_begins_with_the_leader() -> None:
    answering = LeaderAnswering(SimpleNamespace(coordinator=None, leader=None), dict)

    def since_us(view: StatusView) -> int:
        return answering.since(view).healthy_since_us

    assert since_us(seen(healthy=True)) == 3000
    assert since_us(seen(healthy=False, uptime_s=7.0)) == 7_003_000
    assert since_us(seen(healthy=False, uptime_s=8.0)) == 7_003_000, "it is as it was"
    assert since_us(seen(healthy=True, uptime_s=9.0)) == 9_003_000
    assert since_us(seen(healthy=True, uptime_s=10.0)) == 9_003_000
    assert since_us(seen(healthy=True, epoch=4)) == 4000, "another leader has seen nothing of that"
    nobody = StatusView(healthy=False, leader=None, zookeeper={}, store={}, counts={}, nodes={})
    assert since_us(nobody) == 0


@pytest.mark.parametrize(("took_s", "anew"), [(0.01, [True, True, True]), (0.1, [True, False, True])])
def test_claimed_blocks_are_as_new_as_the_question_where_reading_them_is_quick(
    took_s: float, anew: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, readings = [0.0], list[float]()

    def claimed_blocks(*_: object, **__: object) -> tuple[()]:
        readings.append(clock[0])
        clock[0] += took_s
        return ()

    monkeypatch.setattr(place, "machine", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(place, "claimed_blocks", claimed_blocks)
    leader: Any = SimpleNamespace(nodes=SimpleNamespace(records={}))
    answering: Any = LeaderAnswering(SimpleNamespace(coordinator=None, leader=leader), dict)
    found = list[bool]()
    for at_s in (10.0, 10.2, 10.6):
        clock[0], before = at_s, len(readings)
        answering.read_claimed()
        found.append(len(readings) > before)
    assert found == anew


HERE = socket.gethostname()


def record(name: str, endpoint: str, host: str = HERE) -> NodeRecord:
    capacity = Capacity(cores=2, memory_bytes=0)
    return NodeRecord(node=name, incarnation=1, state=NodeState.UP, guid=f"g-{name}", capacity=capacity, endpoint=endpoint, host=host)


def snapshot(*records: NodeRecord, without: str = "") -> ClusterSnapshot:
    alive = frozenset(one.guid for one in records if one.node != without)
    return ClusterSnapshot(settings=ClusterSettings(), nodes={one.node: one for one in records}, alive=alive)


@pytest.fixture
def door() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=200) as server:
        yield server


def test_of_a_hundred_nodes_the_dead_one_is_told(door: socket.socket) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        dead = f"127.0.0.1:{other.getsockname()[1]}"
    nodes = [record(f"n{number}", f"127.0.0.1:{door.getsockname()[1]}") for number in range(99)] + [record("n99", dead)]
    reach = StarterReach(lambda: nodes, structlog.get_logger())
    reach.look()
    assert reach.unreached(snapshot(*nodes)) == {}  # it may be starting anew
    reach.look()
    with FairTimer() as timer:
        assert reach.unreached(snapshot(*nodes)) == {"n99": dead}
    assert timer.elapsed_s < 0.5
    assert reach.unreached(snapshot(*nodes, without="n99")) == {}  # it is lost: told otherwise
    nodes[-1] = record("n99", f"127.0.0.1:{door.getsockname()[1]}")
    assert reach.unreached(snapshot(*nodes)) == {}
    reach.look()
    assert reach.unreached(snapshot(*nodes)) == {}


def test_loopback_is_no_address_where_there_are_several_machines(door: socket.socket) -> None:
    endpoint = f"127.0.0.1:{door.getsockname()[1]}"  # something else listens there, on the leader's machine
    nodes = [record("n1", endpoint, "elsewhere")]
    reach = StarterReach(lambda: nodes, structlog.get_logger())
    for _ in range(2):
        reach.look()
    assert reach.unreached(snapshot(*nodes)) == {"n1": endpoint}
    nodes[:] = []
    reach.look()
    assert reach.unreached(snapshot()) == {}


def test_one_sentence_says_it_of_all() -> None:
    assert unreached({}) == ()
    (part,) = unreached({f"n{number}": f"10.0.0.{number}:7072" for number in range(1, 10)})
    assert part.level == Level.WARNING
    assert part.reason.startswith("the leader does not reach nodes n1 at 10.0.0.1:7072, n2 at 10.0.0.2:7072, ")
    assert ", and 1 more: their output comes late" in part.reason
    assert "[starter] listen" in part.fix


STATUS = StatusView(healthy=True, leader=None, zookeeper={}, store={}, counts={}, nodes={})


class Log:
    def __init__(self) -> None:
        self.events: list[str] = []

    def info(self, event: str, **_fields: object) -> None:
        self.events.append(event)

    error = warning = info


class IdleTerm:
    """Nothing of it comes about."""

    epoch = 9

    def __init__(self, settings: ClusterSettings) -> None:
        self.log, self.metrics, self.settings = Log(), LeaderMetrics(), settings

    def wall_us(self) -> int:
        return 10**15

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
    return LeaderCalls(IdleTerm(settings()))


SERVERS = (ServerReport(name="s1", life=1, load=ServerLoad()), ServerReport(name="s2", life=1, state="away"))
REPORT = GatewayReport(gateway="g:1", servers=SERVERS)


def test_who_does_not_lead_or_does_not_know_its_settings_yet_refuses(calls: LeaderCalls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmgr.daemons.leader.answering.BEGINS_S", 0.01)

    class Leading:
        server_calls = calls

    metrics = LeaderMetrics()
    with pytest.raises(Unavailable, match="does not lead"):
        CallAnswering(SimpleNamespace(leader=None), metrics).servers("")
    answering = CallAnswering(SimpleNamespace(leader=Leading), metrics)
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


class Loop(IdleTerm):
    """A loop that the test turns."""

    def __init__(self) -> None:
        super().__init__(SimpleNamespace(log_ttl_s=7.0))
        self.soon_: list[Callable[[], None]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []

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
    loop.in_store = store.store
    return CallLog(loop)


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
    assert store.rows == {keys.events(9, 0, 0, family=keys.PICKS): (b"a\nb\n", 7.0), keys.events(9, 1, 0, family=keys.PICKS): (b"c\n", 7.0)}
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
