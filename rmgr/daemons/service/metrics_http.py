"""Answers one HTTP request for a daemon's measurements or its health; imported with the first request (2 MiB)."""

from __future__ import annotations

import socket
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics import disable_created_metrics
from prometheus_client.registry import CollectorRegistry

from rmgr.runtime import machine

disable_created_metrics()  # type: ignore[no-untyped-call]  # second rows with when a counter was made: nobody needs them

#: Largest request, in bytes: a scraper's headers have some hundred.
_MOST_BYTES = 8192
_CHUNK = 64 * 1024
_WORDS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
_PLAIN = "text/plain; charset=utf-8"
_HELP = "GET /metrics: measurements, for Prometheus\nGET /healthz: 200 while this daemon can work, 503 and the reason while it cannot\n"


def answer(sock: socket.socket, registry: CollectorRegistry, health: Callable[[], str], end_s: float) -> None:
    """Reads one request from `sock`, answers it, and announces the end of the connection.

    Args: health: returns why the daemon cannot work, "" while it can. end_s: monotonic time by which everything must be done.
    Raises: OSError (TimeoutError) if the other end is too slow, or has gone.
    """
    head = _read_head(sock, end_s)
    try:
        method, target, _ = head.split(b"\r\n", 1)[0].decode("ascii").split(" ")
        where = urlsplit(target)
    except ValueError:
        _send(sock, end_s, 400, _PLAIN, _HELP.encode())
        return
    if method not in {"GET", "HEAD"}:
        status, kind, body = 405, _PLAIN, _HELP.encode()
    elif where.path == "/healthz":
        why = health()
        status, kind, body = (503 if why else 200), _PLAIN, f"{why or 'ok'}\n".encode()
    elif where.path in {"/metrics", "/"}:
        status, (kind, body) = 200, _measurements(registry, head, where.query)
    else:
        status, kind, body = 404, _PLAIN, _HELP.encode()
    _send(sock, end_s, status, kind, body, is_shown=method == "GET")


def _measurements(registry: CollectorRegistry, head: bytes, query: str) -> tuple[str, bytes]:
    """Answers as Prometheus' own exposition does: in the accepted format, all measurements or those of `?name[]=`."""
    fields = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    accept = next((value.strip().decode("latin-1") for name, _, value in fields if name.strip().lower() == b"accept"), "")
    encoder, kind = choose_encoder(accept)
    names = parse_qs(query).get("name[]")
    return kind, encoder(registry.restricted_registry(names) if names else registry)


def _read_head(sock: socket.socket, end_s: float) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head:
        sock.settimeout(_left_s(end_s))
        chunk = sock.recv(4096)
        if not chunk or len(head) > _MOST_BYTES:
            raise ConnectionError("no request came")
        head += chunk
    return head


def _send(sock: socket.socket, end_s: float, status: int, kind: str, body: bytes, *, is_shown: bool = True) -> None:
    head = f"HTTP/1.1 {status} {_WORDS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    data = memoryview(head.encode() + (body if is_shown else b""))
    while data:
        sock.settimeout(_left_s(end_s))
        data = data[sock.send(data[:_CHUNK]) :]


def _left_s(end_s: float) -> float:
    left_s = end_s - machine.monotonic()
    if left_s <= 0:
        raise TimeoutError("too slow")
    return left_s
