"""The client of ZooKeeper without a server: bytes on the wire, requests on their caller's thread, deadlines, pings, links."""

from __future__ import annotations

import math
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from rmgr.adapters.zookeeper.client import Outbox, Pings
from rmgr.adapters.zookeeper.session import Guard, LinkState, SessionCoordinator, allowed, gather
from rmgr.adapters.zookeeper.wire import BulkRead, Refused
from rmgr.coord.protocol.multi import Committed, Create, Gone, Multi, Stamped, Stat, Unknown, put
from rmgr.errors import CoordinationUnavailable, PermissionDenied, RmgrError
from tests.harness.memory import MemoryCoordinator
from tests.harness.waiting import eventually, stand_still


class Wire:
    """A link that only notes that it was ended."""

    session_timeout_s = 4.0
    session = (0, b"")
    last_answer_s = -math.inf
    last_error = ""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def end(self, _timeout_s: float) -> None:
        self.ended.set()

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was not to be used")


class Client(SessionCoordinator):
    """Opens links when it is let."""

    def __init__(self, *, guarded: bool = False) -> None:
        self.now_s = 0.0
        self.wires: list[Wire] = []
        self.let, self.opening = threading.Event(), threading.Event()
        self.let.set()
        self.failures = 0
        super().__init__("", clock=lambda: self.now_s, guarded=guarded)

    def _open(self, session: tuple[int, bytes] | None) -> Any:
        self.opening.set()
        assert self.let.wait(60)
        if self.failures:
            self.failures -= 1
            raise OSError("no file is left")
        self.wires.append(Wire())
        return self.wires[-1]

    def lose_link(self) -> None:
        self.link_changed(self.link, LinkState.DEAD)
        self.now_s += 60.0


def test_a_client_closed_while_its_guard_opens_another_link_leaves_none_behind() -> None:
    client = Client()
    client.opening.clear()
    client.let.clear()
    client.lose_link()
    guard = threading.Thread(target=client.guard, daemon=True)
    guard.start()
    assert client.opening.wait(60)
    closer = threading.Thread(target=client.close, daemon=True)
    closer.start()
    client.let.set()
    guard.join(60)
    closer.join(60)
    assert len(client.wires) == 2
    assert all(wire.ended.is_set() for wire in client.wires)


def test_a_closed_client_opens_no_link() -> None:
    client = Client()
    client.lose_link()
    client.close()
    client.guard()
    assert [wire.ended.is_set() for wire in client.wires] == [True]


def test_a_link_that_cannot_be_opened_is_tried_again_by_a_guard_that_lives_on() -> None:
    client = Client(guarded=True)
    first, client.failures = client.wires[0], 1
    client.lose_link()
    assert first is client.wires[0]
    end_s = time.monotonic() + 60
    while len(client.wires) < 2:
        assert time.monotonic() < end_s
        client.now_s += 60.0
        time.sleep(0.01)
    client.close()
    assert [wire.ended.is_set() for wire in client.wires] == [True, True]
    assert client.failures == 0


_DEADLINE_S = 30.0


class Looks:
    """What a guard was told to look for; each look is noted."""

    def __init__(self, again_s: float | None = None) -> None:
        self.times_s: list[float] = []
        self.lock = threading.Lock()
        self.again_s = again_s
        self.raises = 0
        self.thread: threading.Thread | None = None
        self.guard = Guard(self.lock, self.look, time.monotonic)

    def look(self) -> float | None:
        self.thread = threading.current_thread()
        self.times_s.append(time.monotonic())
        if self.raises:
            self.raises -= 1
            raise OSError("a surprise")
        return None if self.again_s is None else time.monotonic() + self.again_s

    def at(self, delay_s: float) -> float:
        due_s = time.monotonic() + delay_s
        with self.lock:
            self.guard.at(due_s)
        return due_s

    def stop(self) -> None:
        """Ends the guard and shows that its thread is gone."""
        with self.lock:
            self.guard.stop()
        assert self.thread is not None
        self.thread.join(_DEADLINE_S)
        assert not self.thread.is_alive()


def test_it_sleeps_until_what_is_due_first_and_then_until_somebody_says_more() -> None:
    looks = Looks()
    looks.guard.start()
    eventually(lambda: len(looks.times_s) == 1)
    looks.at(1000.0)
    due_s = looks.at(0.3)  # earlier than what it sleeps for
    looks.at(2000.0)
    eventually(lambda: len(looks.times_s) == 2)
    assert looks.times_s[1] >= due_s
    assert looks.guard.until_s == float("inf")
    due_s = looks.at(0.2)
    eventually(lambda: len(looks.times_s) == 3)
    assert looks.times_s[2] >= due_s
    looks.stop()


def test_many_deadlines_one_after_the_other_are_looked_at_together_and_a_look_that_raises_is_repeated() -> None:
    looks = Looks(again_s=0.0)
    looks.raises = 2
    looks.guard.start()
    eventually(lambda: len(looks.times_s) >= 5)
    looks.stop()
    assert all(later - earlier >= 0.09 for earlier, later in zip(looks.times_s, looks.times_s[1:], strict=False))


def test_an_operation_given_to_an_idle_client_ends_at_its_deadline() -> None:
    client = MemoryCoordinator()
    client.get("/").result(_DEADLINE_S)
    eventually(lambda: client.deadlines.until_s > time.monotonic() + 5)  # it sleeps for long
    client.pause()
    given_s = time.monotonic()
    slow, fast = client.get("/", timeout_s=1000.0), client.get("/", timeout_s=0.3)
    error = fast.exception(_DEADLINE_S)
    assert isinstance(error, RmgrError)
    assert time.monotonic() - given_s >= 0.3
    assert not slow.done()
    client.close()
    assert isinstance(slow.exception(_DEADLINE_S), RmgrError)


def test_an_operation_whose_deadline_passed_while_the_process_stood_still_takes_the_answer_that_comes_then() -> None:
    client = MemoryCoordinator()
    client.pause()
    read = client.stat("/", timeout_s=0.3)
    stand_still(2)
    client.resume()
    assert read.result(_DEADLINE_S) is not None
    client.pause()
    assert isinstance(client.stat("/", timeout_s=0.3).exception(_DEADLINE_S), RmgrError)
    client.close()


def test_an_operation_has_as_much_time_after_a_standstill_as_it_had_before() -> None:
    """It is not refused because the process stood still until just before its deadline."""
    client = MemoryCoordinator()
    client.pause()
    begun_s = time.monotonic()
    read = client.stat("/", timeout_s=4.0)
    stand_still(3.8)
    while time.monotonic() < begun_s + 4.6:  # nobody is asked again, nothing has come
        assert not read.done()
        time.sleep(0.05)
    client.resume()
    assert read.result(_DEADLINE_S) is not None
    client.close()


@pytest.mark.parametrize("is_answered", [True, False])
def test_who_waited_for_a_change_while_the_process_stood_still_is_told_what_became_of_it(is_answered: bool) -> None:
    """Once this was a plain TimeoutError, though the change was made."""
    client = MemoryCoordinator()
    client.pause()
    change = client.commit(put("MAKE", "/made", b"", None), timeout_s=0.3)

    def turn() -> None:
        stand_still(2)
        time.sleep(0.3)  # the one that waits is awake
        if is_answered:
            client.resume()

    turner = threading.Thread(target=turn)
    turner.start()
    assert isinstance(change.result(1.3), Committed if is_answered else Unknown)
    turner.join(60)
    client.close()


def test_who_waits_longer_than_the_deadline_is_told_that_zookeeper_is_away() -> None:
    """As in a process that stood still: nobody had the time to end the request. Threads that survive an outage survive this."""
    client = MemoryCoordinator()
    client.pause()
    try:
        nothing = Multi(name="NOTHING", ops=(Create("/x"),), proof=Gone("/x"))
        for asked in (client.get("/"), client.children("/"), gather([client.get("/")]), client.commit(nothing)):
            with pytest.raises(CoordinationUnavailable):
                asked.result(0)
            with pytest.raises(TimeoutError):
                asked.result(0)
    finally:
        client.close()


def test_the_loop_sleeps_until_a_ping_is_due_whatever_kazoo_says_and_wakes_for_bytes() -> None:
    pings = Pings()
    here, there = socket.socketpair()
    wake_here, wake_there = socket.socketpair()
    with here, there, wake_here, wake_there:
        pings.begin(0.2)
        started_s = time.monotonic()
        assert pings.select([here, wake_here], [], 0.0) == ([], [], [])
        assert time.monotonic() - started_s >= 0.19
        pings.sent()
        assert list(pings.awaited_s) == [pytest.approx(time.monotonic(), abs=10)]
        pings.begin(1000.0)  # another connection: nothing is awaited on it
        assert not pings.awaited_s
        wake_there.send(b"x")
        assert pings.select([here, wake_here], [], 0.0) == ([wake_here], [], [])
        assert pings.select([here], [], 0.0) == ([], [], [])  # what is awaited within a request has its own time-out
        assert pings.select([], [here], None) == ([], [here], [])


class Request:
    """A request with a body of its own."""

    type = 4

    def __init__(self, body: bytes = b"body") -> None:
        self._body = body

    def serialize(self) -> bytes:
        return self._body


class Pair:
    """An outbox on a real socket, and the other end."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.queue: deque[tuple[Any, Any]] = deque()
        self.pending: deque[tuple[Any, Any, int]] = deque()
        self.outbox = Outbox()
        self.outbox.reset(self.queue, self.pending)

    def send(self, body: bytes = b"body") -> bool | None:
        return self.outbox.send(self.ours, Request(body), object())

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += self.theirs.recv(size - len(data))
        return data

    def frames(self, data: bytes) -> list[tuple[int, bytes]]:
        found, at = [], 0
        while at < len(data):
            length, xid, _ = struct.unpack_from("!iii", data, at)
            found.append((xid, data[at + 12 : at + 4 + length]))
            at += 4 + length
        return found


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.ours.close()
    made.theirs.close()


def test_a_request_leaves_at_once_and_its_answer_is_awaited(pair: Pair) -> None:
    assert pair.send(b"one") is True
    assert pair.frames(pair.read(15)) == [(1, b"one")]
    assert [xid for _, _, xid in pair.pending] == [1]
    assert len(pair.outbox.sent_s) == 1


@pytest.mark.parametrize("why", ["queued", "many", "writing", "closed"])
def test_it_is_queued_behind_what_waits_or_is_awaited_and_while_somebody_writes(pair: Pair, why: str) -> None:
    if why == "queued":
        pair.queue.append((Request(), object()))
    elif why == "many":
        for _ in range(4):
            assert pair.send() is True
    elif why == "writing":
        pair.outbox.lock.acquire()
    before = len(pair.pending)
    sock = None if why == "closed" else pair.ours
    assert pair.outbox.send(sock, Request(), object()) is False
    assert len(pair.pending) == before


def test_what_the_socket_does_not_take_goes_before_anything_else(pair: Pair) -> None:
    large = bytes(4_000_000)
    assert pair.send(large) is None
    assert pair.send(b"next") is False
    pair.queue.append((Request(b"next"), object()))
    with pair.outbox.lock:
        rest = pair.outbox.take_unsent() + pair.outbox.take_queued(1 << 18, 0.0)
    received = b""
    pair.theirs.setblocking(False)
    while len(received) < len(large) + 12 + 16:
        try:
            received += pair.theirs.recv(1 << 20)
        except BlockingIOError:
            rest = rest[pair.ours.send(rest) :]
    assert [(xid, len(body)) for xid, body in pair.frames(received)] == [(1, len(large)), (2, 4)]


def test_a_socket_that_has_fallen_is_the_links_to_find(pair: Pair) -> None:
    pair.theirs.close()
    assert pair.send() is True
    assert len(pair.pending) == 1  # told with everything else that was on the way


def test_another_connection_starts_empty(pair: Pair) -> None:
    assert pair.send(bytes(4_000_000)) is None
    pair.outbox.reset(deque(), deque())
    with pair.outbox.lock:
        assert pair.outbox.take_unsent() == b""
    assert not pair.outbox.sent_s


END = bytes.fromhex("ffffffff01ffffffff")


def result(data: bytes | None, **stat: int) -> bytes:
    """One GetDataResponse in a multi response."""
    names = ("czxid", "mzxid", "ctime", "mtime", "version", "cversion", "aversion", "owner", "length", "children", "pzxid")
    fields = [stat.get(name, 0) for name in names]
    body = struct.pack("!i", -1) if data is None else struct.pack("!i", len(data)) + data
    return struct.pack("!iBi", 4, 0, 0) + body + struct.pack("!qqqqiiiqiiq", *fields)


def error(code: int) -> bytes:
    return struct.pack("!iBii", -1, 0, code, code)


def test_a_request_is_a_getdata_without_watch_for_each_path() -> None:
    # type 4, not done, no error; the path; no watch. Then the end.
    assert BulkRead.type == 22
    assert BulkRead(["/a", "/b/ü"]).serialize() == bytes.fromhex(
        "0000000400ffffffff" "00000002" "2f61" "00" "0000000400ffffffff" "00000005" "2f622fc3bc" "00"
    ) + END  # fmt: skip


def test_an_answer_is_data_and_stat_or_none_each() -> None:
    answer = result(b"abc", mzxid=1 << 40, mtime=5, version=3, cversion=7, owner=9, children=1) + error(-101) + result(None) + result(b"")
    found = BulkRead(["/a", "/b", "/c", "/d"]).deserialize(b"head" + answer + END, 4)
    nothing = Stat(version=0, mzxid=0, children=0, creates=0, ephemeral_owner=0, mtime_ms=0)
    assert found == [
        Stamped(b"abc", Stat(version=3, mzxid=1 << 40, children=1, creates=4, ephemeral_owner=9, mtime_ms=5)),
        None,
        Stamped(b"", nothing),
        Stamped(b"", nothing),
    ]


@pytest.mark.parametrize(("code", "kind"), [(-102, PermissionDenied), (-4, RmgrError)])
def test_one_that_may_not_be_read_is_named(code: int, kind: type[RmgrError]) -> None:
    found = BulkRead(["/a", "/b"]).deserialize(result(b"abc") + error(code) + END, 0)
    assert found == Refused(1, code)
    told: Any = allowed(["/a", "/b"], found)
    assert type(told) is kind
    assert "/b" in told.message


def test_parts_are_one_list_when_the_last_has_come_and_one_error_is_the_answer() -> None:
    parts: list[Future[Any]] = [Future(), Future(), Future()]
    whole = gather(parts)
    parts[2].set_result([3])
    parts[0].set_result([1, None])
    assert not whole.done()
    parts[1].set_result([2])
    assert whole.result(0) == [1, None, 2, 3]
    parts = [Future(), Future()]
    whole = gather(parts)
    parts[0].set_exception(RmgrError("it was lost"))
    parts[1].set_result([1])
    with pytest.raises(RmgrError, match="it was lost"):
        whole.result(0)
