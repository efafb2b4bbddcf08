"""Calls whose request never comes, and silent streams: the client with most of them gives way, and all others are served."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from rmgr.adapters.access import server_threads
from rmgr.adapters.access.auth import USER_KEY, Caller
from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.access.server_threads import Requests, WaitingRoom
from rmgr.adapters.gateway import talk
from rmgr.adapters.gateway.talk import Talks
from rmgr.adapters.rpc.channels import OPTIONS
from rmgr.adapters.rpc.server import RpcServer
from rmgr.daemons.gateway import rows as gateway_rows
from rmgr.errors import Throttled
from rmgr.model.queue import UserLimits
from rmgr.v1 import gateway_pb2 as pb
from rmgr.v1 import work_pb2 as talk_pb
from rmgr.v1 import work_pb2_grpc
from tests.harness.gateways import OpenRows
from tests.harness.waiting import eventually

CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"


class Call:
    """Stands for a call: it was ended, or not."""

    def __init__(self) -> None:
        self.is_ended = False

    def cancel(self) -> None:
        self.is_ended = True


def entered(room: WaitingRoom, who: str, count: int = 1) -> list[Call]:
    calls = [Call() for _ in range(count)]
    for call in calls:
        room.enter(who, call)  # type: ignore[arg-type]
    return calls


def test_the_oldest_call_of_whoever_has_the_most_gives_way() -> None:
    room = WaitingRoom(4)
    his = entered(room, "user mallory", 4)
    hers = entered(room, "user ann")
    assert [call.is_ended for call in his + hers] == [True, False, False, False, False]
    with pytest.raises(Throttled, match="3 calls of user mallory wait"):
        entered(room, "user mallory")
    assert len(room) == 4


def test_where_everybody_has_one_the_oldest_goes_and_what_came_just_now_stays() -> None:
    now_s = 0.0
    room = WaitingRoom(2, clock=lambda: now_s)
    first = entered(room, "a")[0]
    now_s = 1.0
    rest = [entered(room, name)[0] for name in "bcde"]
    assert first.is_ended
    with pytest.raises(Throttled, match="try again in a moment"):
        entered(room, "f")
    assert not any(call.is_ended for call in rest)
    now_s = 2.0
    entered(room, "g")
    assert rest[0].is_ended


def test_who_has_come_leaves_room_and_leaves_once() -> None:
    room = WaitingRoom(1)
    numbers = [room.enter("a", Call()) for _ in range(1)]  # type: ignore[arg-type]
    room.leave(numbers[0])
    room.leave(numbers[0])
    assert len(room) == 0
    entered(room, "a")
    assert len(room) == 1


def test_a_call_may_be_finalized_while_room_is_made() -> None:
    ended: list[int] = []

    class Name(str):
        __slots__ = ()

        def __hash__(self) -> int:
            while ended:
                room.leave(ended.pop())  # as a garbage collection may at any allocation
            return super().__hash__()

    room = WaitingRoom(3)
    left = room.enter(Name("a"), Call())  # type: ignore[arg-type]
    theirs = entered(room, "b", 2)
    ended.append(left)
    entered(room, "c")
    assert [call.is_ended for call in theirs] == [True, False]
    assert len(room) == 2


def test_nobody_waits_for_ever() -> None:
    before = set(threading.enumerate())
    room = WaitingRoom(4, 0.1)
    [call] = entered(room, "a")
    eventually(lambda: call.is_ended)
    eventually(lambda: {one for one in threading.enumerate() if one.name == "stalls"} <= before)
    assert len(room) == 0


@pytest.fixture
def server() -> Iterator[RpcServer]:
    made = RpcServer("127.0.0.1:0", threads=16)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> list[WaitingRoom]:
    """Those that are made from now on."""
    made: list[WaitingRoom] = []

    def make(*arguments: Any) -> WaitingRoom:
        made.append(WaitingRoom(*arguments))
        return made[-1]

    for module in (server_threads, gateway_rows):
        monkeypatch.setattr(module, "WaitingRoom", make)
    return made


def _open(endpoint: str) -> grpc.Channel:
    return grpc.insecure_channel(endpoint, (("grpc.use_local_subchannel_pool", 1),))


def _silent(channel: grpc.Channel, over: threading.Event, make: Callable[[grpc.Channel], Any]) -> Any:
    def never() -> Iterator[bytes]:
        over.wait(60)
        yield from ()

    return make(channel)(never())


def test_calls_without_a_request_leave_threads_to_others(server: RpcServer) -> None:
    over = threading.Event()
    with _open(server.endpoint) as channel, _open(server.endpoint) as other:
        calls = [_silent(channel, over, lambda one: one.stream_unary(CHECK).future) for _ in range(64)]
        calls += [_silent(channel, over, lambda one: one.stream_stream(WATCH)) for _ in range(64)]
        asked = other.unary_unary(CHECK)
        for _ in range(20):
            reply = asked(health_pb2.HealthCheckRequest().SerializeToString(), timeout=20)
            assert health_pb2.HealthCheckResponse.FromString(reply).status == health_pb2.HealthCheckResponse.SERVING
        eventually(lambda: sum(call.done() for call in calls) >= 126)
        told = [call.details() for call in calls if call.done() and call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED]
        assert any("wait for what they ask" in words for words in told)
        over.set()


@pytest.mark.parametrize(
    ("sent", "told"), [([], "the call has ended without a request"), ([b"\xff\xff\xff"], "the request cannot be read")]
)
def test_a_call_without_a_request_that_can_be_read_is_told_so(server: RpcServer, sent: list[bytes], told: str) -> None:
    with _open(server.endpoint) as channel:
        watch = channel.stream_stream(WATCH)
        for ask in (channel.stream_unary(CHECK), lambda all_: list(watch(all_, timeout=20))):
            with pytest.raises(grpc.RpcError) as failed:
                ask(iter(sent))
            assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
            assert told in failed.value.details()  # type: ignore[attr-defined]


def test_a_call_that_waits_too_long_is_ended_and_one_that_is_cut_off_leaves(rooms: list[WaitingRoom]) -> None:
    made = grpc.server(ThreadPoolExecutor(4), interceptors=[Requests(32, 0.2)])
    method = grpc.unary_unary_rpc_method_handler(lambda request, _context: request)
    made.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t", {"Echo": method}),))
    port = made.add_insecure_port("127.0.0.1:0")
    made.start()
    over = threading.Event()
    try:
        with _open(f"127.0.0.1:{port}") as channel:
            late = _silent(channel, over, lambda some: some.stream_unary("/t/Echo").future)
            assert late.code() is grpc.StatusCode.CANCELLED
            assert channel.unary_unary("/t/Echo")(b"", timeout=20) == b""
            gone = _silent(channel, over, lambda some: some.stream_unary("/t/Echo").future)
            eventually(lambda: len(rooms[0]) == 1)
            gone.cancel()
            eventually(lambda: len(rooms[0]) == 0)
    finally:
        over.set()
        made.stop(0)


def test_a_flood_of_one_method_keeps_no_call_of_another_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    begun, may_go_on = threading.Event(), threading.Event()

    def take(_self: Requests, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        taken.append(details.method)
        begun.set()
        may_go_on.wait(60)
        return continuation(details)

    monkeypatch.setattr(Requests, "intercept_service", take)
    method = grpc.unary_unary_rpc_method_handler(lambda request, _context: request)
    server = RpcServer("127.0.0.1:0", threads=8)
    for service, name in (("rmgr.v1.Store", "Put"), ("rmgr.v1.Limits", "Use")):
        server.add_generic(grpc.method_handlers_generic_handler(service, {name: method}))
    server.start()
    try:
        with _open(server.endpoint) as his, _open(server.endpoint) as hers:
            put, use = his.unary_unary("/rmgr.v1.Store/Put"), hers.unary_unary("/rmgr.v1.Limits/Use")
            flood = [put.future(b"") for _ in range(50)]
            assert begun.wait(60)
            one = use.future(b"x")
            threading.Event().wait(0.5)  # its headers have come by then; if not, it is served sooner than it should be
            may_go_on.set()
            assert (one.result(60), {call.result(60) for call in flood}) == (b"x", {b""})
    finally:
        may_go_on.set()
        server.stop(0)
    assert taken.index("/rmgr.v1.Limits/Use") < 10


def test_values_that_are_begun_and_never_ended_leave_places_to_others(rooms: list[WaitingRoom]) -> None:
    server = RpcServer("127.0.0.1:0", threads=64)
    bounds = Bounds()
    rows = OpenRows(bounds=bounds)
    server.add_generic(rows.handler)
    server.start()
    over = threading.Event()

    def begun(key: str) -> Iterator[bytes]:
        yield pb.ValuePart(key=key, encoding="raw", data=b"x").SerializeToString()
        over.wait(60)

    try:
        with _open(server.endpoint) as one, _open(server.endpoint) as two, _open(server.endpoint) as hers:
            calls = []
            for channel, user in ((one, "mallory"), (two, "eve")):
                write = channel.stream_unary("/rmgr.v1.Store/Write")
                for at in range(24):  # one by one: of calls that come together without their first message, the server refuses some
                    calls.append(write.future(begun(f"{user}/{at}"), metadata=((USER_KEY, user),)))
                    eventually(lambda: bounds.used(user)["calls"] > at)  # noqa: B023 - called here
            eventually(lambda: sum(call.done() for call in calls) >= 19)  # the others have places
            usage = hers.unary_unary("/rmgr.v1.Store/Usage")
            for _ in range(10):
                usage(pb.ListRequest(prefix="a").SerializeToString(), timeout=20, metadata=((USER_KEY, "ann"),))
            eventually(lambda: len(rooms[-1]) <= 24)
            over.set()
    finally:
        over.set()
        server.stop()


#: A window of HTTP/2 that does not grow: what a client does not take stays with the gateway.
_NARROW = (*OPTIONS, ("grpc.http2.lookahead_bytes", 1 << 16), ("grpc.http2.bdp_probe", 0))
ANSWER = b"x" * 100_000


class Echo:
    """Answers each word with a long one."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.words = 0

    def heard(self, words: Sequence[bytes]) -> Sequence[Callable[[], None]]:
        for _ in words:
            self.words += 1
            self.stream.say(ANSWER)
        return ()

    def taken(self) -> None: ...
    def over(self) -> None: ...


class Place:
    """A server of streams in this process, and one client of them."""

    def __init__(self, stack: ExitStack) -> None:
        self.bounds = Bounds(UserLimits(held_bytes=1 << 20, requests_per_s=0))
        self.echoes: list[Echo] = []
        self.cuts: list[str] = []
        self.rpc = RpcServer("127.0.0.1:0", threads=16)
        self.talks = Talks(
            self._talker, most=8, is_revoked=lambda _: False, bounds=self.bounds,
            count=lambda what, kind: self.cuts.append(kind) if what == "cut" else None,
        )
        self.rpc.add_generic(self.talks.handler)
        self.rpc.start()
        stack.callback(self.rpc.stop, 0)
        stack.callback(self.talks.stop, 0)
        self.channel = stack.enter_context(grpc.insecure_channel(self.rpc.endpoint, _NARROW))
        self.said = 0
        self.over = threading.Event()
        stack.callback(self.over.set)

    def _talker(self, _caller: Any, stream: Any) -> Echo:
        self.echoes.append(Echo(stream))
        return self.echoes[-1]

    def talk(self, messages: Iterator[Any]) -> Any:
        return work_pb2_grpc.WorkStub(self.channel).Talk(messages, timeout=120)

    def words(self, count: int) -> Iterator[Any]:
        for _ in range(count):
            self.said += 1
            yield talk_pb.Words(words=[b"word"])
        self.over.wait(120)

    def pings(self) -> Iterator[Any]:
        while not self.over.is_set():
            self.said += 1
            yield talk_pb.Words(ping=self.said)


@pytest.fixture
def place() -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(stack)


def test_who_takes_nothing_is_not_read_from_and_cut_off_in_the_end(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talk, "STALLED_S", 3.0)
    call = place.talk(place.words(2000))
    next(call)  # and nothing more
    eventually(lambda: place.bounds.used("").get("held_bytes", 0) > 1 << 20, lambda: f"much waits: {place.bounds.used('')}", within_s=30)
    heard = place.echoes[0].words
    time.sleep(0.5)
    assert place.echoes[0].words <= heard + 1
    assert place.echoes[0].words < 200
    eventually(lambda: not len(place.talks), "it is cut off", within_s=30)
    assert place.cuts == ["stalled"]
    assert not place.bounds.used("").get("held_bytes")
    call.cancel()


def test_who_takes_what_was_said_hears_all_of_it(place: Place) -> None:
    call = place.talk(place.words(300))
    heard = 0
    for message in call:
        heard += len(message.words)
        if heard == 300:
            break
    assert place.echoes[0].words == 300
    call.cancel()


def test_pings_without_end_are_answered_one_at_a_time(place: Place) -> None:
    call = place.talk(place.pings())
    assert next(call).ping
    eventually(lambda: place.said > 20_000, "many are sent", within_s=60)
    assert next(call).ping
    call.cancel()


def test_pings_that_come_while_an_answer_waits_have_one_answer(place: Place) -> None:
    heard, talker = threading.Event(), SimpleNamespace(heard=lambda _words: (), over=lambda: None)
    context: Any = SimpleNamespace(add_callback=lambda _: True)

    def pings() -> Iterator[Any]:
        yield from (talk_pb.Words(ping=number) for number in range(1, 1001))
        heard.set()

    stream = talk.Stream(place.talks, Caller(claimed="ann"), context)
    stream.begin(talker, pings())  # type: ignore[arg-type]
    assert heard.wait(60)
    assert [message.ping for message in stream.told()] == [1000]


def test_who_says_nothing_is_cut_off(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talk, "GONE_S", 1.0)
    call = place.talk(place.words(1))
    next(call)
    eventually(lambda: place.cuts == ["silent"], "it is cut off", within_s=30)
    eventually(lambda: not len(place.talks), "its place is free", within_s=30)
    call.cancel()
