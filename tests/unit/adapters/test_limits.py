"""Limits of users: rates, held items, places, a gateway's counts of the cluster, audit lines; the command that shows them."""

from __future__ import annotations

import dataclasses
import threading
import tracemalloc
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import structlog

from rmgr.adapters.access.limits import BURST_S, TOTALS, Bounds, Rates, Shares
from rmgr.adapters.rpc.services import UseAnswer, UserUse
from rmgr.audit_book import FEW, MOST_OF_ALL, AuditBook
from rmgr.cli.control.settings import parse_settings, to_document, to_toml
from rmgr.coord.ops.work import Block
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Create, Delete, Exists, Gone, Multi
from rmgr.daemons.gateway.door import ASK_S, SETTLE_S, ClusterUse
from rmgr.daemons.gateway.talking import MOST, Loose
from rmgr.daemons.service.keepers import WrittenKeeper
from rmgr.errors import ConfigError, LimitReached, QueueFull, Throttled, Unavailable
from rmgr.model.block import NO_SEQ, BlockData, BlockKey
from rmgr.model.queue import BOUND, BOUNDS, ClusterSettings, UserLimits
from rmgr.model.submission import Command, Submission, Tail, Work
from rmgr.procedures.bootstrap import bootstrap
from rmgr.submitter import messages
from rmgr.submitter.port import Growth, Order
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_store import MemoryStore
from tests.harness.memory_tree import MemoryTree
from tests.harness.waiting import eventually


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def bounds(clock: Callable[[], float] | None = None, **limits: Any) -> Bounds:
    return Bounds(UserLimits(**limits), clock=clock or Clock())


# -- settings


def test_every_limit_is_described_and_every_description_is_a_limit() -> None:
    fields = [field.name for field in dataclasses.fields(UserLimits) if field.name not in {"newer", "cores_of", "jobs_of"}]
    assert [bound.name for bound in BOUNDS] == fields
    assert all(bound.what and bound.advice and bound.where for bound in BOUNDS)


def test_limits_are_settings_of_the_cluster() -> None:
    settings = parse_settings('[queues.default]\n[limits]\nsessions = 7\nheld = "2MiB"\n', "f.toml")
    assert settings.limits == UserLimits(sessions=7, held_bytes=2 << 20)
    assert parse_settings(to_toml(settings), "again") == settings
    assert to_document(settings)["limits"]["sessions"] == 7
    with pytest.raises(ConfigError, match=r"f.toml:3: unknown key 'sesions'"):
        parse_settings("[queues.default]\n[limits]\nsesions = 7\n", "f.toml")
    for text in ("limits = 3\n[queues.default]\n", "[queues.default]\n[limits]\nsessions = -1\n"):
        with pytest.raises(ConfigError):
            parse_settings(text, "f.toml")


def test_the_defaults_bear_two_million_waiting_tasks_of_one_user() -> None:
    """In submissions of 1,000 tasks, with 500 bytes of arguments each: fewer and smaller than any limit by half."""
    limits = ClusterSettings().limits
    assert limits.unfinished_tasks >= 4_000_000
    assert limits.open_submissions >= 2 * 2000
    assert limits.zookeeper_bytes >= 2 * 2_000_000 * 600
    assert limits.followed >= 2 * 2000


# -- what is held


def test_what_is_held_is_bounded_and_given_back() -> None:
    made = bounds(followed=3)
    for _ in range(3):
        made.take("followed", "ann")
    with pytest.raises(LimitReached, match="followed = 3") as refused:
        made.take("followed", "ann")
    assert not isinstance(refused.value, QueueFull)
    assert BOUND["followed"].advice in refused.value.hint
    made.take("followed", "ben", 3)
    made.give_back("followed", "ann", 2)
    made.take("followed", "ann")
    assert made.used("ann") == {"followed": 2}
    assert made.refused("ann") == {"followed": 1}


def test_all_together_hold_no_more_than_a_total_and_who_holds_little_goes_on() -> None:
    clock = Clock()
    made = bounds(clock, held_bytes=0)
    made.hold("held_bytes", "m1", TOTALS["held_bytes"])
    clock.now_s += 1
    made.spend("m1")  # now and then it is counted
    assert not made.has_room("held_bytes", "m1")
    made.hold("held_bytes", "ann", 1000)
    assert made.has_room("held_bytes", "ann")
    assert made.has_room("held_bytes", "new")


def test_what_was_written_counts_for_a_day() -> None:
    clock = Clock()
    made = bounds(clock, store_bytes=100)
    made.write("ann", 60)
    clock.now_s += 12 * 3600
    made.write("ann", 40)
    with pytest.raises(LimitReached, match="store_bytes = 100: bytes written to the store within a day"):
        made.write("ann", 1)
    clock.now_s += 13 * 3600
    made.write("ann", 60)
    assert made.used("ann")["store_bytes"] == 100


def test_what_was_written_is_recalled_by_the_gateway_that_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, store, wall = Clock(), MemoryStore("use"), [1_800_000_000.0]
    log = structlog.get_logger()

    def gateway(name: str = "g:1") -> tuple[Bounds, WrittenKeeper]:
        made = bounds(clock, store_bytes=100)
        return made, WrittenKeeper(store, name, made, log, wall=lambda: wall[0]).start()

    first, keeper = gateway()
    first.write("ann", 60)
    keeper.close()
    clock.now_s, wall[0] = 17.0, wall[0] + 12 * 3600  # the machine was started anew: its clock says nothing of before
    second, keeper = gateway()
    assert second.used("ann")["store_bytes"] == 60
    with pytest.raises(LimitReached):
        second.write("ann", 41)
    second.write("ann", 40)
    assert gateway("g:2")[0].used("ann") == {}
    keeper.close()
    wall[0] += 13 * 3600
    third, keeper = gateway()
    assert third.used("ann")["store_bytes"] == 40  # the rest is of yesterday
    keeper.close()
    monkeypatch.setattr("rmgr.daemons.service.keepers.MOST_ROW_BYTES", 10_000)
    good = store.get("use/g:1")
    assert good is not None
    for junk in (
        b"",
        b"\xff",
        b'{"format":1,"by_user":{"ann":{"x":1}}}',
        b'{"format":1,"by_user":{"ann":{"1":-5}}}',
        b"[" * 9000,
        good[0] + b" " * 10_000,
    ):
        store.put("use/g:1", junk)
        made, keeper = gateway()
        assert made.used("ann").get("store_bytes", 0) == 0
        made.write("ann", 100)
        keeper.close()
    assert b'"ann"' in store.get("use/g:1")[0]  # type: ignore[index]


@pytest.mark.parametrize("name", ["ASK", "ORDER"])
def test_what_a_user_leaves_beside_his_submissions_is_bounded(name: str) -> None:
    clock, tree = Clock(), MemoryCoordinator(MemoryTree())
    bootstrap(tree)
    tree.ensure([paths.inbox_node("n1")])
    loose = Loose(tree, clock=lambda: clock.now_s)

    def made(size: int = 10) -> Multi:
        guid = uuid.uuid4().hex
        path = {"ASK": paths.request(guid), "ORDER": paths.inbox("n1", guid)}[name]
        return Multi(name=name, ops=(Create(path, bytes(size)),), proof=Exists(path))

    most, most_bytes = MOST[{"ASK": paths.REQUESTS, "ORDER": paths.INBOX}[name]]
    for _ in range(most):
        multi = made()
        loose.check("mallory", multi)
        tree.commit(multi).result(60)
    clock.now_s += 10
    for _ in range(2):
        with pytest.raises(LimitReached, match=f"mallory has {most}, "):
            loose.check("mallory", made())
    loose.check("ann", made())
    parent = multi.ops[0].path.rpartition("/")[0]
    gone = [f"{parent}/{name}" for name in (tree.children(parent).result(60) or [])[:5]]
    tree.commit(Multi(name="OBEY", ops=tuple(Delete(path) for path in gone), proof=Gone(gone[0]))).result(60)
    clock.now_s += 10
    for _ in range(5):
        loose.check("mallory", made())
    with pytest.raises(LimitReached):
        loose.check("mallory", made())
    loose.check("bob", made(most_bytes))
    with pytest.raises(LimitReached):
        loose.check("bob", made(1))


def test_handshakes_have_a_rate_for_each_address_and_one_for_all() -> None:
    clock = Clock()
    pace = Rates(10, 20, all_=2, clock=lambda: clock.now_s)
    assert [pace.may("a") for _ in range(30)].count(True) == 20
    assert [pace.may("b") for _ in range(30)].count(True) == 20
    assert not pace.may("c")  # two that flood from everywhere have what all may have
    clock.now_s += 1
    assert [pace.may("a") for _ in range(30)].count(True) == 10
    assert pace.may("c")
    for number in range(5000):
        pace.may(f"x{number}")
    assert len(pace.left) <= 1024
    clock.now_s += 1000
    assert [pace.may("a") for _ in range(30)].count(True) == 20


def test_who_has_nothing_is_forgotten() -> None:
    clock = Clock()
    made = bounds(clock)
    for at in range(1000):
        made.spend(f"u{at}")
    made.hold("followed", "u1", 1)
    clock.now_s += 100
    made.spend("u0")
    assert made.users() == ["u0", "u1"]


# -- places


def test_some_places_are_for_operators_and_the_greediest_makes_room() -> None:
    places = Shares(10, reserved=1)
    for user in ("ann",) * 4 + ("ben",) * 5:
        assert places.take(user)
    assert not places.take("eve")
    assert places.take("op", is_operator=True)
    assert places.greediest("eve") == "ben"
    assert places.greediest("ben") is None
    assert places.greediest("ann") is None  # she would have as many as he
    assert Shares(10, of_one=lambda: 2).of_one == 2


def test_it_is_said_whether_he_has_all_his_places_or_all_are_taken() -> None:
    made = bounds(sessions=2)
    places = made.places("sessions", 10)
    assert [places.take("ann") for _ in range(3)] == [True, True, False]
    assert "sessions = 2" in str(made.no_place("sessions", "ann", places))
    for at in range(7):
        assert places.take(f"u{at}")
    told = made.no_place("sessions", "eve", places, "full")
    assert isinstance(told, QueueFull)
    assert told.message == "full"
    assert made.used("ann") == {"sessions": 2}


# -- the cluster, as a gateway knows it


def block(count: int, data: int = 100) -> Block:
    key = BlockKey(priority=0, seq=NO_SEQ, submission=0, first=0, count=count, attempt=1, cores=1, memory_mib=0)
    return key, BlockData(payloads=(b"x" * (data // count),) * count)


def submit(*blocks: Block) -> tuple[messages.Place, Order]:
    """As it came, and what it says."""
    record = Submission(id=0, name="n", user="ann", queue="default", work=Work.COMMAND, command=Command(argv=("true",)))
    order = Order(draft=record, blocks=list(blocks), tasks=sum(key.count for key, _ in blocks))
    return messages.place_of(1, order, 1.0), order


def enqueue(*blocks: Block) -> tuple[messages.Grow, Growth]:
    """As `submit`."""
    growth = Growth(tail=Tail(), blocks=list(blocks))
    return messages.grow_of(1, growth), growth


class Cluster:
    """A leader that says what it is told to say."""

    def __init__(self, **limits: Any) -> None:
        self.clock = Clock()
        self.asked = 0
        self.used: dict[str, int] = {}
        self.is_away = False
        self.bounds = bounds(self.clock, **limits)
        self.use = ClusterUse(self.bounds, self.ask, clock=self.clock)

    def ask(self, fresh: bool) -> UseAnswer:
        self.asked += 1
        if self.is_away:
            raise Unavailable("nobody leads")
        return UseAnswer(users={"ann": UserUse(used=self.used)} if self.used else {})


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        ({"open_submissions": 3}, "open_submissions"),
        ({"unfinished_tasks": 35}, "unfinished_tasks"),
        ({"max_jobs_per_user": 1, "jobs_of": {"ann": 3}}, "max_jobs_per_user"),
    ],
)
def test_a_user_is_refused_beyond_a_limit_of_the_cluster_and_goes_on_when_work_has_ended(limits: dict[str, Any], name: str) -> None:
    world = Cluster(**limits)
    for _ in range(3):
        world.use.check_order("ann", *submit(block(10)))
    with pytest.raises(LimitReached, match=f"ann has reached the limit {name} = "):
        world.use.check_order("ann", *submit(block(10)))
    assert world.asked == 1  # before anybody is refused
    world.use.check_order("ben", *submit(block(10)))
    used = world.used = {"max_jobs_per_user": 3, "open_submissions": 3, "unfinished_tasks": 30}
    world.clock.now_s += SETTLE_S + 1
    with pytest.raises(LimitReached):
        world.use.check_order("ann", *submit(block(10)))
    assert world.use.used("ann")[name] == used[name]  # counted once
    world.used = {"max_jobs_per_user": 1, "open_submissions": 1, "unfinished_tasks": 10}
    world.clock.now_s += 1
    world.use.check_order("ann", *submit(block(10)))
    world.use.check_growth("ann", *enqueue(block(1)))
    assert world.bounds.refused("ann")[name] == 2


def test_bytes_that_wait_are_never_thought_fewer_than_they_are() -> None:
    world = Cluster(zookeeper_bytes=100_000)
    world.use.check_order("ann", *submit(*(block(10, 30_000) for _ in range(2)), block(250, 500)))
    with pytest.raises(LimitReached, match="zookeeper_bytes = 100000"):
        world.use.check_growth("ann", *enqueue(block(10, 40_000)))
    # 20 tasks are left: perhaps the small ones, perhaps the large ones
    world.used = {"open_submissions": 1, "unfinished_tasks": 20, "zookeeper_bytes": 500}
    world.clock.now_s += SETTLE_S + 1
    world.use.refresh()
    assert 60_000 < world.use.used("ann")["zookeeper_bytes"] < 62_000
    world.used = {"open_submissions": 1, "unfinished_tasks": 10, "zookeeper_bytes": 500}
    world.clock.now_s += ASK_S
    world.use.refresh()
    assert 30_000 < world.use.used("ann")["zookeeper_bytes"] < 32_000
    world.use.check_growth("ann", *enqueue(block(10, 40_000)))
    world.used = {}
    world.clock.now_s += SETTLE_S + 1
    world.use.refresh()
    assert world.use.used("ann")["zookeeper_bytes"] == 0
    assert not world.use.users()


def test_without_a_leader_what_is_known_decides() -> None:
    world = Cluster(open_submissions=2)
    world.is_away = True
    world.use.check_order("ann", *submit())
    world.use.check_order("ann", *submit())
    with pytest.raises(LimitReached):
        world.use.check_order("ann", *submit())
    assert "nobody leads" in world.use.problem


def test_many_commits_while_nobody_leads_are_counted_but_not_remembered_one_by_one() -> None:
    world = Cluster(open_submissions=1_000_000)
    world.is_away = True
    asked = submit(block(10))
    world.use.check_order("ann", *asked)
    tracemalloc.start()
    for _ in range(5000):  # half a second
        world.clock.now_s += 0.0001
        world.use.check_order("ann", *asked)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert world.use.used("ann")["unfinished_tasks"] == 5001 * 10
    assert grown < 100_000
    world.is_away = False
    world.clock.now_s += SETTLE_S + 1
    world.use.refresh()
    assert world.use.used("ann")["unfinished_tasks"] == 0


# -- lines of audit


def test_refusals_are_written_so_many_times_a_minute_and_then_counted() -> None:
    clock, told = Clock(), []
    book = AuditBook(3, window_s=60, clock=clock)
    assert [book.admits("mallory", told.append) for _ in range(20_000)] == [True] * 3 + [False] * 19_997
    assert book.admits("ann", told.append)
    clock.now_s += 61
    assert book.admits("mallory", told.append)
    assert told == [19_997]
    for _ in range(10):
        book.admits("mallory", told.append)
    book.flush()
    assert told == [19_997, 8]


def test_many_who_are_refused_fill_no_log_together() -> None:
    clock = Clock()
    book = AuditBook(120, window_s=60, clock=clock)
    users = [f"m{at}" for at in range(100)]
    written = sum(book.admits(user, int) for _ in range(200) for user in users)
    assert written == MOST_OF_ALL
    assert sum(book.admits("ann", int) for _ in range(50)) == FEW
    clock.now_s += 61
    assert sum(book.admits("ann", int) for _ in range(200)) == 120


def test_the_book_does_not_grow_with_names(monkeypatch: pytest.MonkeyPatch) -> None:
    book = AuditBook(1, clock=Clock())
    written = sum(book.admits(f"u{at}", int) for at in range(10_000))
    assert written == 2001


def test_a_counting_thread_tells_when_the_minute_is_over_and_ends() -> None:
    told: list[Any] = []
    before = set(threading.enumerate())
    book = AuditBook(1, window_s=0.05)
    for _ in range(5):
        book.admits("mallory", told.append)
    eventually(lambda: sum(told) == 4)
    eventually(lambda: {one for one in threading.enumerate() if one.name == "audit"} <= before)


def test_a_user_alone_has_the_rate_of_the_settings_and_waits_beyond_it() -> None:
    clock = Clock()
    made = bounds(clock, requests_per_s=100)
    assert [made.wait_s("ann") for _ in range(int(100 * BURST_S))] == [0.0] * int(100 * BURST_S)
    assert made.wait_s("ann") == pytest.approx(0.01)
    assert made.wait_s("ann") == pytest.approx(0.02)
    with pytest.raises(Throttled, match="ann has reached the limit requests_per_s = 100: requests a second") as refused:
        for _ in range(200):
            made.wait_s("ann")
    assert "rmgr limits" in refused.value.hint
    assert isinstance(refused.value, QueueFull)  # clients try again
    with pytest.raises(Throttled):
        made.spend("ann")
    assert made.wait_s("ben") == 0.0
    clock.now_s += 2.5
    made.spend("ann")
    assert made.refused("ann")["requests_per_s"] == 2


def test_a_request_of_many_bytes_counts_for_more_and_is_never_impossible() -> None:
    clock = Clock()
    made = bounds(clock, requests_per_s=10)
    assert made.wait_s("ann", 4 << 20) > 0
    with pytest.raises(Throttled):
        made.wait_s("ann", 4 << 20)
    clock.now_s += 60
    assert made.wait_s("ann", 4 << 20) > 0


def test_no_limit_is_no_limit() -> None:
    made = bounds(requests_per_s=0, followed=0)
    for _ in range(20_000):
        made.wait_s("ann")
    made.take("followed", "ann", 300_000)
