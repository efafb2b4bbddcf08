"""Streams at a gateway: a client that takes nothing, or says nothing, holds little and is cut off; whoever made it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.gateway import talk
from rmgr.adapters.gateway.talk import Talks
from rmgr.adapters.rpc.channels import OPTIONS
from rmgr.adapters.rpc.server import RpcServer
from rmgr.model.cluster.queue import UserLimits
from rmgr.v1 import work_pb2 as pb
from rmgr.v1 import work_pb2_grpc
from tests.harness.waiting import eventually

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
            self._talker,
            most=8,
            is_revoked=lambda _: False,
            bounds=self.bounds,
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
            yield pb.Words(words=[b"word"])
        self.over.wait(120)

    def pings(self) -> Iterator[Any]:
        while not self.over.is_set():
            self.said += 1
            yield pb.Words(ping=self.said)


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
    [live] = place.talks._live
    assert live._out.qsize() <= 1
    assert next(call).ping
    call.cancel()


def test_who_says_nothing_is_cut_off(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talk, "GONE_S", 1.0)
    call = place.talk(place.words(1))
    next(call)
    eventually(lambda: place.cuts == ["silent"], "it is cut off", within_s=30)
    eventually(lambda: not len(place.talks), "its place is free", within_s=30)
    call.cancel()
