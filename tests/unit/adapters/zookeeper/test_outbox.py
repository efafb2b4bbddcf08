"""Requests that leave on their caller's thread: in order, whole, and never with a wait."""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from rmgr.adapters.zookeeper.client import Outbox


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
