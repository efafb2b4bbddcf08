"""The forwarder with a rate passes all bytes at most at that rate, both ways and over all connections together."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from rmgr.bench.load.call_load import ShapedLink

MIB = 1 << 20


@pytest.fixture
def target() -> Iterator[str]:
    """HOST:PORT of what sends back all that comes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                one, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=back, args=(one,), daemon=True).start()

    def back(one: socket.socket) -> None:
        with one:
            while data := one.recv(1 << 16):
                one.sendall(data)

    threading.Thread(target=accept, daemon=True).start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def exchange(link: ShapedLink, data: bytes) -> bytes:
    host, _, port = link.endpoint.partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as one:
        threading.Thread(target=one.sendall, args=(data,), daemon=True).start()
        found = bytearray()
        while len(found) < len(data):
            piece = one.recv(1 << 16)
            assert piece
            found += piece
        return bytes(found)


def test_all_bytes_pass_and_no_faster_than_the_link(target: str) -> None:
    data = bytes(range(256)) * (MIB // 256)
    with ShapedLink(target, 8 * MIB) as link:
        began_s = time.monotonic()
        assert exchange(link, data) == data
        assert time.monotonic() - began_s >= 0.2, "2 MiB over 8 MiB/s"
        assert link.passed_bytes == 2 * MIB


def test_connections_share_the_rate_and_it_can_be_changed(target: str) -> None:
    data = bytes(MIB)
    with ShapedLink(target, 16 * MIB) as link, ThreadPoolExecutor(4) as pool:
        began_s = time.monotonic()
        assert all(found == data for found in pool.map(lambda _: exchange(link, data), range(4)))
        assert time.monotonic() - began_s >= 0.45, "8 MiB over 16 MiB/s"
        link.bytes_per_s = 4 * MIB
        began_s = time.monotonic()
        assert exchange(link, data) == data
        assert time.monotonic() - began_s >= 0.4


def test_who_cannot_be_reached_is_hung_up_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"127.0.0.1:{taken.getsockname()[1]}"
    with ShapedLink(endpoint) as link:
        host, _, port = link.endpoint.partition(":")
        with socket.create_connection((host, int(port)), timeout=60) as one:
            assert one.recv(1) == b""
