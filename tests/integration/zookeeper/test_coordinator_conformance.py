"""Requirements for every Coordinator under faults of its connection. Runs on ZooKeeper and on the tree in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from rmgr.adapters.zookeeper.session import SessionCoordinator
from rmgr.coord.protocol.multi import (
    MAX_OPS,
    MAX_ZNODE_BYTES,
    Check,
    Committed,
    Conflict,
    ConflictKind,
    Create,
    Delete,
    Exists,
    GoneOrHolds,
    Holds,
    Multi,
    Op,
    Proof,
    Set,
    Stamped,
    Unknown,
)
from rmgr.coord.protocol.ports import SessionState
from rmgr.errors import CoordinationUnavailable, RequestTooLarge
from tests.harness.coordinators import MemoryWorld, States, World, ZkWorld
from tests.harness.ended_sessions import LONG_S
from tests.harness.fair_time import FairTimer
from tests.harness.waiting import eventually

CONNECTED, SUSPENDED, LOST = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.LOST
#: It notices a silence after little more than a second.
notices_soon = pytest.mark.parametrize("coord", [4.0], indirect=True, ids=["short session"])


@pytest.fixture(params=["memory", "zookeeper", "ensemble"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "memory":
        opened: World = MemoryWorld()
    elif request.param == "zookeeper":
        opened = ZkWorld([request.getfixturevalue("zookeeper")], request.getfixturevalue("chroot"))
    else:
        opened = ZkWorld(request.getfixturevalue("ensemble").servers, request.getfixturevalue("chroot"))
    yield opened
    opened.close()


@pytest.fixture
def coord(world: World, request: pytest.FixtureRequest) -> SessionCoordinator:
    """Parameter: its session's timeout."""
    coordinator = world.open(getattr(request, "param", LONG_S))
    coordinator.ensure(["/a", "/queue", "/names"])
    return coordinator


def multi(*ops: Op, proof: Proof | None = None, name: str = "TEST") -> Multi:
    return Multi(name=name, ops=ops, proof=proof or Exists("/never"))


def enqueue(number: int) -> Multi:
    """A block under a sequential name, and a name that only this multi creates."""
    name = f"/names/{number}"
    return multi(Create("/queue/k-", b"", sequence=True), Create(name), proof=Exists(name), name=f"M{number}")


# -- what a multi does ----------------------------------------------------------------------------------------------------


def test_a_commit_answers_with_names_and_versions(coord: SessionCoordinator) -> None:
    first = coord.commit(multi(Create("/a/x", b"1"), Create("/queue/k-", b"2", sequence=True), Check("/a"))).result(60)
    assert first == Committed(paths=("/a/x", "/queue/k-0000000000", "/a"), versions=(0, 0, -1))
    second = coord.commit(multi(Set("/a/x", b"3", 0), Check("/a/x", 1), Delete("/queue/k-0000000000", 0))).result(60)
    assert second == Committed(paths=("/a/x", "/a/x", "/queue/k-0000000000"), versions=(1, 1, -1))
    found = coord.get("/a/x").result(60)
    assert (found.data, found.version) == (b"3", 1)


CONFLICTS: list[tuple[Op, ConflictKind]] = [
    (Check("/absent"), ConflictKind.NO_NODE),
    (Check("/a/x", 7), ConflictKind.BAD_VERSION),
    (Create("/a/x"), ConflictKind.NODE_EXISTS),
    (Create("/absent/x"), ConflictKind.NO_NODE),
    (Set("/absent", b"", -1), ConflictKind.NO_NODE),
    (Set("/a/x", b"", 7), ConflictKind.BAD_VERSION),
    (Delete("/absent"), ConflictKind.NO_NODE),
    (Delete("/a/x", 7), ConflictKind.BAD_VERSION),
    (Delete("/a"), ConflictKind.NOT_EMPTY),
]


@pytest.mark.parametrize(("op", "kind"), CONFLICTS)
def test_a_conflict_names_the_operation_and_leaves_nothing_behind(coord: SessionCoordinator, op: Op, kind: ConflictKind) -> None:
    coord.commit(multi(Create("/a/x"))).result(60)
    answer = coord.commit(multi(Create("/a/new"), Create("/queue/k-", sequence=True), op, Create("/a/more"))).result(60)
    assert answer == Conflict(index=2, path=op.path, kind=kind)
    assert coord.children("/a").result(60) == ["x"]
    assert coord.children("/queue").result(60) == []


def test_operations_of_a_multi_see_those_before_them(coord: SessionCoordinator) -> None:
    ops = (Create("/a/p"), Create("/a/p/c"), Set("/a/p", b"1", 0), Check("/a/p", 1), Delete("/a/p/c"), Delete("/a/p", 1), Create("/a/p"))
    assert isinstance(coord.commit(multi(*ops)).result(60), Committed)
    stat = coord.stat("/a/p").result(60)
    assert (stat.version, stat.children, stat.creates) == (0, 0, 0)


def test_the_sequence_counts_creations_only(coord: SessionCoordinator) -> None:
    def take() -> str:
        answer = coord.commit(multi(Create("/queue/k-", sequence=True))).result(60)
        assert isinstance(answer, Committed)
        return answer.paths[0]

    assert [take(), take()] == ["/queue/k-0000000000", "/queue/k-0000000001"]
    coord.commit(multi(Delete("/queue/k-0000000000"))).result(60)
    assert take() == "/queue/k-0000000002"  # a deletion counts nothing
    coord.commit(multi(Create("/queue/k-", sequence=True), Check("/absent"))).result(60)
    assert take() == "/queue/k-0000000003"  # nor does what was rolled back
    coord.commit(multi(Create("/queue/plain"))).result(60)
    assert take() == "/queue/k-0000000005"  # any other child does
    stat = coord.stat("/queue").result(60)
    assert (stat.creates, stat.children) == (6, 5)


def test_pipelined_commits_are_carried_out_in_order(coord: SessionCoordinator) -> None:
    answers = [future.result(60) for future in [coord.commit(enqueue(number)) for number in range(400)]]
    assert [a.paths[0] for a in answers if isinstance(a, Committed)] == [f"/queue/k-{n:010d}" for n in range(400)]


def test_reads_see_the_commits_given_before_them(coord: SessionCoordinator) -> None:
    for number in range(20):
        coord.commit(multi(Set("/a", str(number).encode(), -1)))
        found = coord.get("/a").result(60)
        assert found.data == str(number).encode()


def test_many_znodes_are_read_in_the_order_of_their_names_absent_ones_as_none(coord: SessionCoordinator) -> None:
    for first in range(0, 150, 50):
        coord.commit(multi(*(Create(f"/a/{number:03d}", b"x" * number) for number in range(first, first + 50))))
    coord.commit(multi(Set("/a/007", b"seven", 0)))
    wanted = [f"/a/{number:03d}" for number in range(150)] + ["/a/gone", "/a", "/"]
    found = coord.get_many(wanted).result(60)  # three requests
    assert found == [coord.get(path).result(60) for path in wanted]
    assert found[7] is not None
    assert (found[7].data, found[7].version, found[150]) == (b"seven", 1, None)
    assert coord.get_many([]).result(60) == []


def test_data_and_names_are_read_at_one_moment(coord: SessionCoordinator) -> None:
    coord.ensure(["/one", "/two"])
    coord.commit(multi(Create("/one/x", b"here"), Set("/a", b"data", 0)))
    stop = threading.Event()

    def move() -> None:  # one block, always in exactly one of the two places
        places = ["/one/x", "/two/x"]
        while not stop.is_set():
            coord.commit(multi(Delete(places[0]), Create(places[1], b"there"))).result(60)
            places.reverse()

    mover = threading.Thread(target=move)
    mover.start()
    try:
        found = [coord.at_one_moment(["/a", "/gone"], ["/one", "/two", "/gone"]).result(60) for _ in range(200)]
    finally:
        stop.set()
        mover.join(60)
    for data, gone, one, two, nowhere in found:
        assert isinstance(data, Stamped)
        assert (data.data, data.version, gone, nowhere) == (b"data", 1, None, None)
        assert sorted([*(one or ()), *(two or ())]) == ["x"]  # type: ignore[misc]
    assert coord.at_one_moment([], ["/one"]).result(60) in ([["x"]], [[]])


def test_many_znodes_of_the_largest_size_are_read_at_once(coord: SessionCoordinator) -> None:
    for number in range(64):
        coord.commit(multi(Create(f"/a/{number}", bytes([number]) * MAX_ZNODE_BYTES)))
    found = coord.get_many([f"/a/{number}" for number in range(64)]).result(60)
    assert [one.data for one in found if one is not None] == [bytes([number]) * MAX_ZNODE_BYTES for number in range(64)]


def test_reading_many_outlives_a_lost_connection(world: World) -> None:
    coord = world.open()
    coord.ensure(["/a"])
    coord.commit(multi(*(Create(f"/a/{number}", b"") for number in range(100)))).result(60)
    world.silence(coord, True)
    reading = coord.get_many([f"/a/{number}" for number in range(100)], timeout_s=60)
    world.cut(coord)
    world.silence(coord, False)
    assert [one.version for one in reading.result(60) if one is not None] == [0] * 100


@pytest.mark.parametrize(
    "too_large",
    [
        multi(*(Check("/a") for _ in range(MAX_OPS + 1))),
        multi(Create("/a/x", b"x" * (MAX_ZNODE_BYTES + 1))),
        multi(*(Create(f"/a/{n}", b"x" * MAX_ZNODE_BYTES) for n in range(17))),
    ],
    ids=["operations", "znode", "bytes"],
)
def test_an_oversized_request_is_refused_at_once_and_costs_no_connection(coord: SessionCoordinator, too_large: Multi) -> None:
    states = States(coord)
    with pytest.raises(RequestTooLarge):
        coord.commit(too_large)
    assert isinstance(coord.commit(multi(Create("/a/ok", b"x" * MAX_ZNODE_BYTES))).result(60), Committed)
    assert states.seen == [CONNECTED]


def test_two_clients_compare_and_set(world: World, coord: SessionCoordinator) -> None:
    other = world.open()
    assert isinstance(coord.commit(multi(Set("/a", b"mine", 0))).result(60), Committed)
    answer = other.commit(multi(Set("/a", b"theirs", 0))).result(60)
    assert answer == Conflict(index=0, path="/a", kind=ConflictKind.BAD_VERSION)


def test_ensure_makes_what_is_missing_and_keeps_what_is_there(coord: SessionCoordinator) -> None:
    coord.commit(multi(Set("/a", b"kept", 0))).result(60)
    coord.ensure(["/a/b/c", "/z", "/a"])
    coord.ensure(["/a/b/c"])
    found = coord.get("/a").result(60)
    assert found.data == b"kept"
    assert coord.children("/a/b").result(60) == ["c"]


# -- reads and watches ----------------------------------------------------------------------------------------------------


def test_what_is_absent_reads_as_none(coord: SessionCoordinator) -> None:
    assert coord.get("/absent").result(60) is None
    assert coord.stat("/absent").result(60) is None
    assert coord.children("/absent").result(60) is None
    assert coord.sync().result(60) is None


@pytest.mark.parametrize("read", ["get", "stat", "children"])
@pytest.mark.parametrize("there", [True, False])
def test_a_watch_fires_once_on_the_next_change(coord: SessionCoordinator, read: str, there: bool) -> None:
    path = "/a/w"
    if there:
        coord.ensure([path])
    fired = []
    found = getattr(coord, read)(path, watch=lambda: fired.append(1)).result(60)
    assert (found is not None) == there
    assert fired == []
    if not there:
        coord.ensure([path])
    elif read == "children":
        coord.ensure([f"{path}/child"])
    else:
        coord.commit(multi(Set(path, b"1", -1))).result(60)
    eventually(lambda: fired == [1])
    coord.commit(multi(Set(path, b"2", -1), Create(f"{path}/another"))).result(60)
    assert coord.sync().result(60) is None
    assert fired == [1]


def test_a_watch_fires_on_deletion(coord: SessionCoordinator) -> None:
    coord.ensure(["/a/w"])
    fired = []
    coord.get("/a/w", watch=lambda: fired.append("get")).result(60)
    coord.children("/a/w", watch=lambda: fired.append("children")).result(60)
    coord.children("/a", watch=lambda: fired.append("parent")).result(60)
    coord.commit(multi(Delete("/a/w"))).result(60)
    eventually(lambda: sorted(fired) == ["children", "get", "parent"])


def test_watches_fire_when_the_connection_is_lost(world: World, coord: SessionCoordinator) -> None:
    fired = []
    coord.get("/a", watch=lambda: fired.append("get")).result(60)
    coord.get("/absent", watch=lambda: fired.append("absent")).result(60)
    coord.children("/a", watch=lambda: fired.append("children")).result(60)
    world.cut(coord)
    eventually(lambda: sorted(fired) == ["absent", "children", "get"])


# -- lost answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nth", [1, 7, 30])
def test_lost_answers_are_read_back_and_nothing_happens_twice(world: World, coord: SessionCoordinator, nth: int) -> None:
    world.lose_reply(coord, nth)
    answers = [future.result(60) for future in [coord.commit(enqueue(number)) for number in range(30)]]
    assert all(isinstance(answer, Committed) for answer in answers), answers
    assert any(isinstance(answer, Committed) and answer.resolved for answer in answers)
    assert sorted(coord.children("/queue").result(60) or []) == [f"k-{n:010d}" for n in range(30)]


@pytest.mark.parametrize("nth", [1, 7, 30])
def test_lost_requests_are_sent_again_in_order(world: World, coord: SessionCoordinator, nth: int) -> None:
    world.lose_request(coord, nth)
    answers = [future.result(60) for future in [coord.commit(enqueue(number)) for number in range(30)]]
    names = [answer.paths[0] for answer in answers if isinstance(answer, Committed) and not answer.resolved]
    assert names == sorted(names)
    assert all(isinstance(answer, Committed) for answer in answers), answers
    assert sorted(coord.children("/queue").result(60) or []) == [f"k-{n:010d}" for n in range(30)]


def test_a_chain_of_changes_of_one_znode_survives_a_lost_answer(world: World, coord: SessionCoordinator) -> None:
    coord.commit(multi(Create("/a/own", b"0"))).result(60)
    world.lose_reply(coord, 3)
    sets = [multi(Set("/a/own", str(n).encode(), n - 1), proof=GoneOrHolds("/a/own", str(n).encode())) for n in range(1, 11)]
    answers = [future.result(60) for future in [coord.commit(each) for each in sets]]
    assert [a.versions for a in answers if isinstance(a, Committed)] == [(n,) for n in range(1, 11)]


def test_a_conflict_whose_answer_was_lost_is_still_a_conflict(world: World, coord: SessionCoordinator) -> None:
    coord.commit(multi(Create("/a/x", b"other"))).result(60)
    world.lose_reply(coord, 1)
    answer = coord.commit(multi(Set("/a/x", b"mine", 3), proof=Holds("/a/x", b"mine"))).result(60)
    assert answer == Conflict(index=0, path="/a/x", kind=ConflictKind.BAD_VERSION)


@notices_soon
def test_a_guard_that_fell_makes_the_proof_worthless(world: World, coord: SessionCoordinator) -> None:
    coord.commit(multi(Create("/a/fence"), Create("/a/own", b"0"))).result(60)
    other = world.open()
    fence = Check("/a/fence", 0)
    complete = Multi(name="COMPLETE", ops=(fence, Set("/a/own", b"1", 0)), proof=GoneOrHolds("/a/own", b"1"), guard=fence)
    world.silence(coord, silent=True)
    future = coord.commit(complete, timeout_s=20)
    assert isinstance(other.commit(multi(Set("/a/fence", b"", 0), Delete("/a/own"))).result(60), Committed)
    world.silence(coord, silent=False)
    assert future.result(60) == Conflict(index=0, path="/a/fence", kind=ConflictKind.BAD_VERSION)


# -- deadlines ------------------------------------------------------------------------------------------------------------


@notices_soon
def test_nothing_outlives_its_deadline_when_no_server_answers(world: World, coord: SessionCoordinator) -> None:
    world.silence(coord, silent=True)
    started = time.monotonic()
    with FairTimer() as timer:
        commit, read = coord.commit(enqueue(1), timeout_s=0.5), coord.get("/a", timeout_s=0.5)
        assert isinstance(commit.result(60), Unknown)
        with pytest.raises(CoordinationUnavailable):
            read.result(60)
    assert time.monotonic() - started > 0.4
    assert timer.elapsed_s < 1.5
    with pytest.raises(CoordinationUnavailable):
        coord.ensure(["/a/q"], timeout_s=0.2)
    world.silence(coord, silent=False)
    assert isinstance(coord.commit(enqueue(2)).result(60), Committed)


@notices_soon
def test_what_was_given_up_before_it_was_sent_is_never_sent(world: World, coord: SessionCoordinator) -> None:
    states = States(coord)
    world.silence(coord, silent=True)
    if isinstance(world, ZkWorld):
        states.wait(SUSPENDED)  # noticed: from here on nothing is sent at all
    assert isinstance(coord.commit(enqueue(1), timeout_s=0.3).result(60), Unknown)
    world.silence(coord, silent=False)
    later = coord.commit(enqueue(2)).result(60)
    if isinstance(later, Unknown):  # a stall may outlive the short session, which ends what waits with it
        assert LOST in states.seen
    else:
        assert isinstance(later, Committed)
    if isinstance(world, ZkWorld):
        names = world.open().children("/names").result(60)
        assert names == ["2"] or (names == [] and isinstance(later, Unknown))


# -- sessions -------------------------------------------------------------------------------------------------------------


def test_a_cut_connection_keeps_the_session(world: World, coord: SessionCoordinator) -> None:
    states, session = States(coord), coord.session_id
    assert session
    coord.commit(multi(Create("/a/e", ephemeral=True))).result(60)
    world.cut(coord)
    states.wait(CONNECTED, SUSPENDED, CONNECTED)
    assert coord.session_id == session
    stat = coord.stat("/a/e").result(60)
    assert stat.ephemeral_owner == session


def test_an_expired_session_is_lost_and_followed_by_a_new_one(world: World, coord: SessionCoordinator) -> None:
    states, session = States(coord), coord.session_id
    coord.commit(multi(Create("/a/e", ephemeral=True))).result(60)
    world.expire(coord)
    states.wait(SUSPENDED, LOST, CONNECTED)
    assert coord.session_id not in {0, session}
    assert coord.stat("/a/e").result(60) is None
    assert isinstance(coord.commit(multi(Create("/a/e", ephemeral=True))).result(60), Committed)


@notices_soon
def test_what_was_under_way_when_the_session_ended_is_not_repeated_in_the_next(world: World, coord: SessionCoordinator) -> None:
    states = States(coord)
    world.silence(coord, silent=True)
    commits, read = [coord.commit(enqueue(number), timeout_s=20) for number in range(3)], coord.get("/a", timeout_s=20)
    world.expire(coord)
    world.silence(coord, silent=False)
    states.wait(LOST, CONNECTED)
    assert [type(commit.result(60)) for commit in commits] == [Unknown] * 3
    with pytest.raises(CoordinationUnavailable):
        read.result(60)
    assert coord.children("/names").result(60) == []


def test_what_was_committed_before_the_session_ended_is_found(world: World, coord: SessionCoordinator) -> None:
    other = world.open()
    world.lose_reply(coord, 1)
    if isinstance(world, ZkWorld):
        world.proxy(coord).black_hole(to_client=True, to_server=False)
        commit = coord.commit(enqueue(1), timeout_s=20)
        eventually(lambda: other.stat("/names/1").result(60))
        world.expire(coord)
        world.silence(coord, silent=False)
    else:
        commit = coord.commit(enqueue(1), timeout_s=20)
        world.expire(coord)
    answer = commit.result(60)
    assert isinstance(answer, Committed)
    assert answer.resolved


@notices_soon
def test_closing_ends_the_session_and_everything_under_way(world: World, coord: SessionCoordinator) -> None:
    other = world.open()
    coord.commit(multi(Create("/a/e", ephemeral=True))).result(60)
    gone = threading.Event()
    eventually(lambda: other.stat("/a/e").result(60))  # it may talk to another server, which hears of it later
    assert other.stat("/a/e", watch=gone.set).result(60) is not None
    world.silence(coord, silent=True)
    commit, read = coord.commit(enqueue(1), timeout_s=20), coord.get("/a", timeout_s=20)
    world.silence(coord, silent=False)
    if isinstance(world, ZkWorld):
        assert isinstance(commit.result(60), Committed)
        read.result(60)
    coord.close()
    coord.close()
    assert gone.wait(60)
    assert isinstance(coord.commit(enqueue(2)).result(60), Unknown)
    with pytest.raises(CoordinationUnavailable):
        coord.get("/a").result(60)


def test_the_lease_counts_from_a_send_and_goes_on_while_answers_come(coord: SessionCoordinator) -> None:
    before = time.monotonic()
    coord.get("/a").result(60)
    after = time.monotonic()
    assert before <= coord.last_answer_s() <= after
    assert coord.session_timeout_s == pytest.approx(LONG_S)
