"""Programs around the calls that `bench calls` measures: hops of bare gRPC, servers that only live, and a client that only transfers.

    python -m rmgr.bench.load.call_load "hop [TARGET]"                says {"endpoint": HOST:PORT}; with TARGET it passes everything on
    python -m rmgr.bench.load.call_load "servers GATEWAY COUNT"       says {"ready": n} when the gateway has welcomed all of them
    python -m rmgr.bench.load.call_load "transfers GATEWAY BYTES"     echoes so many bytes over and over; says {"ready": 1} after the first

All end with their standard input. Two hops, like a call through a gateway to a server and nothing else, are the baseline: `Small` returns a
message; `Bulk` passes pieces on, and the far end keeps them until the last has come, as a server does with arguments, and sends them back.
The servers are streams of one process: they answer what a gateway asks, and get no calls.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import grpc

from rmgr.adapters.calls.serving import Asked, Hello, Joined, LineEvent, Lines
from rmgr.adapters.rpc.channels import OPTIONS
from rmgr.bench.load.processes import say
from rmgr.client.calls import Caller
from rmgr.config import ClusterConfig, Config
from rmgr.model.interface import encode_interface, read_functions
from rmgr.model.servers import ServerLoad
from rmgr.runner.host import home

_SERVICE = "Hops"
_THREADS = 16
_IDLE = ServerLoad()
_GOODBYE_S = 5.0
_READY_S = 120.0


class Hops:
    """A client of the hop in between."""

    def __init__(self, endpoint: str) -> None:
        self._channel = grpc.insecure_channel(endpoint, OPTIONS)
        self.small: Any = self._channel.unary_unary(f"/{_SERVICE}/Small")
        self._bulk: Any = self._channel.stream_stream(f"/{_SERVICE}/Bulk")

    def bulk(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Sends the pieces; yields what comes back, piece by piece."""
        found: Iterator[bytes] = self._bulk(iter(pieces))
        return found

    def close(self) -> None:
        """Idempotent."""
        self._channel.close()


def hop(target: str = "") -> None:
    """Runs one hop: the far end, or with `target` the hop in between."""
    there = Hops(target) if target else None
    small = (lambda piece, _: piece) if there is None else (lambda piece, _: there.small(piece))
    bulk = _send_back if there is None else (lambda pieces, _: there.bulk(pieces))
    server = grpc.server(ThreadPoolExecutor(_THREADS), options=OPTIONS)
    handlers = {"Small": grpc.unary_unary_rpc_method_handler(small), "Bulk": grpc.stream_stream_rpc_method_handler(bulk)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    say({"endpoint": f"127.0.0.1:{port}"})
    sys.stdin.read()
    server.stop(0).wait(5.0)


def _send_back(pieces: Iterator[Any], _context: Any) -> Iterator[Any]:
    yield from list(pieces)


def servers(gateway: str, how_many: str) -> None:
    """Runs so many servers, q1, q2, ..., that offer the shipped functions."""
    count = int(how_many)
    file = home.source("rmgr.runner.python.shipped").with_suffix(".toml")
    functions = tuple(encode_interface(one.interface) for one in read_functions(file.read_text("utf-8"), str(file)))
    welcomed: set[int] = set()
    all_there = threading.Event()

    def tell(number: int, event: LineEvent) -> None:
        if isinstance(event, Asked):
            event.line.load(event.number, _IDLE)
        elif isinstance(event, Joined):
            welcomed.add(number)
            if len(welcomed) == count:
                all_there.set()

    lines = []
    for number in range(1, count + 1):
        hello = Hello(
            name=f"q{number}",
            site="",
            life=secrets.randbits(63) or 1,
            slots=2,
            mops=100.0,
            mops_declared=True,
            functions=functions,
            most_waiting=100,
        )
        lines.append(Lines([gateway], hello, None, lambda event, number=number: tell(number, event), takes=4))  # type: ignore[misc]
    for one in lines:
        one.start()
    all_there.wait(_READY_S)
    say({"ready": len(welcomed)})
    sys.stdin.read()
    for one in lines:
        one.close(_GOODBYE_S)


def transfers(gateway: str, size_bytes: str) -> None:
    """Makes one call after the other, until this process ends."""
    caller = Caller(Config(cluster=ClusterConfig(gateway=gateway)))
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    data = bytes(int(size_bytes))
    caller.call("echo", data)
    say({"ready": 1})
    while True:
        caller.call("echo", data)


# -- a link with a rate --------------------------------------------------------------------------------------------------------


_CHUNK_BYTES, _BUFFER_BYTES = 8 * 1024, 64 * 1024
#: How much lateness a thread may catch up on (s); more would be a burst.
_LATE_S = 0.002
_CONNECT_S = 5.0


class ShapedLink:
    """A running link. Context manager: it has a thread for each connection and direction, all gone afterwards.

    Args:
        target: HOST:PORT where it leads. bytes_per_s: may be changed at any time; inf: as fast as this machine copies.
    Attributes:
        endpoint: HOST:PORT on loopback, to connect to in place of `target`. passed_bytes: both ways, until now.
    """

    def __init__(self, target: str, bytes_per_s: float = math.inf) -> None:
        self.bytes_per_s = bytes_per_s
        self.passed_bytes = 0
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listener = _small(socket.socket())
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(64)
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._free_s = 0.0
        self._open: set[socket.socket] = set()
        self._is_closed = False
        threading.Thread(target=self._accept, name="shaped-link", daemon=True).start()

    def close(self) -> None:
        """Ends the link and its connections. Idempotent."""
        with self._lock:
            self._is_closed = True
            mine = [self._listener, *self._open]
        for one in mine:
            _end(one)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = _small(socket.socket())
            far.settimeout(_CONNECT_S)
            with self._lock:
                self._open |= {near, far}
                is_closed = self._is_closed
            try:
                if is_closed:
                    raise OSError
                far.connect(self._target)
            except OSError:
                self._drop(near, far)
                continue
            far.settimeout(None)
            for one, other in ((near, far), (far, near)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._copy, args=(one, other), name="shaped-link", daemon=True).start()

    def _copy(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(_CHUNK_BYTES):
                self._wait(len(data))
                other.sendall(data)
        self._drop(one, other)

    def _wait(self, count: int) -> None:
        """Waits until `count` bytes have had their time on the line."""
        with self._lock:
            self.passed_bytes += count
            now_s = time.monotonic()
            self._free_s = max(self._free_s, now_s - _LATE_S) + count / self.bytes_per_s
            wait_s = self._free_s - now_s
        if wait_s > 0:
            time.sleep(wait_s)

    def _drop(self, *sockets: socket.socket) -> None:
        with self._lock:
            self._open -= set(sockets)
        for one in sockets:
            _end(one)


def _small(one: socket.socket) -> socket.socket:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    return one


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


if __name__ == "__main__":
    what, *arguments = sys.argv[1].split()
    programs: dict[str, Callable[..., None]] = {"hop": hop, "servers": servers, "transfers": transfers}
    programs[what](*arguments)
