"""One question to the leader over plain HTTP/2, for commands that ask once: gRPC's library costs them 90 ms before its first byte.

Implements the part of HTTP/2 that a unary call of gRPC needs: the connection preface, SETTINGS, one HEADERS and one DATA frame out;
HEADERS, DATA and trailers back (RFC 9113; PROTOCOL-HTTP2.md of gRPC). Anything but a plain success raises `ThinFailed`: the caller then
asks again through `rpc.LeaderClient`, whose errors explain. Questions only read, so asking twice does no harm.

With `glance` of `zookeeper/server.py`, `rmgr status` of a secured `rmgr dev` takes 0.15 s of processor and 30 MiB; with gRPC and kazoo,
0.26 s and 60 MiB (medians of 10 alternating runs); the budget of a command that asks is 0.25 s. The standard library's HTTP and JSON
would be as fast, but need a second server that authenticates people, checks rights and limits requests.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from rmgr.adapters.rpc.convert import from_message
from rmgr.errors import Unavailable
from rmgr.model.views import ExplainView, JobView, NodeView, QueueView, StatusView
from rmgr.v1 import leader_pb2, views_pb2

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST, _SETTINGS, _PUSH, _PING, _GOAWAY, _WINDOW, _CONTINUATION = 0, 1, 3, 4, 5, 6, 7, 8, 9
_ACK, _END_STREAM, _END_HEADERS, _PADDED, _PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
_WHOLE = (1 << 31) - 1
_HEADER_TABLE_SIZE, _ENABLE_PUSH, _INITIAL_WINDOW = 1, 2, 4
_MOST_REQUEST_BYTES = 16_000  # one frame
_MOST_ANSWER_BYTES = 64 << 20
_READ_BYTES = 1 << 18
#: Seconds by which a time-out comes late only if this process stood still: that is no silence of the leader.
_STOOD_S = 0.3
_STATUS_NAME = b"grpc-status"
_REPLIES: dict[str, type[Any]] = {
    "Jobs": leader_pb2.JobsReply,
    "Nodes": leader_pb2.NodesReply,
    "Queues": leader_pb2.QueuesReply,
    "Status": views_pb2.StatusView,
    "Explain": views_pb2.ExplainView,
}


class ThinFailed(Exception):
    """The answer needs the full client: this one reads only the simplest answers."""


class LeaderQuestions:
    """Questions to the leading WatchDog, however they are asked."""

    def _ask(self, method: str, request: Any) -> Any:
        """Returns the reply to a request of `rmgr.v1.Leader`."""
        raise NotImplementedError

    def jobs(self, ids: tuple[int, ...] = (), *, ended: bool = False, user: str = "") -> list[JobView]:
        """Returns submissions, oldest first."""
        return [from_message(JobView, job) for job in self._ask("Jobs", leader_pb2.JobsRequest(ids=ids, ended=ended, user=user)).jobs]

    def nodes(self) -> list[NodeView]:
        """Returns all nodes, by name."""
        return [from_message(NodeView, node) for node in self._ask("Nodes", leader_pb2.NodesRequest()).nodes]

    def queues(self) -> list[QueueView]:
        """Returns all queues, by name."""
        return [from_message(QueueView, queue) for queue in self._ask("Queues", leader_pb2.QueuesRequest()).queues]

    def status(self) -> StatusView:
        """Returns health and counts."""
        return from_message(StatusView, self._ask("Status", leader_pb2.StatusRequest()))

    def explain(self, submission: int, index: int | None = None) -> ExplainView:
        """Returns why the submission is in its state. Raises NotFound."""
        return from_message(ExplainView, self._ask("Explain", leader_pb2.ExplainRequest(submission=submission, index=index)))


class ThinLeader(LeaderQuestions):
    """Questions over plain HTTP/2. Not thread-safe.

    Args:
        endpoint: HOST:PORT. bundle: directory of our credentials, None in an open cluster. timeout_s: of one question.
    Every method raises ThinFailed, or Unavailable if there is no answer within `timeout_s`.
    """

    def __init__(self, endpoint: str, *, timeout_s: float, bundle: Path | None) -> None:
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._bundle = bundle
        self._link: socket.socket | None = None
        self._buffer = bytearray()
        self._stream = -1

    def close(self) -> None:
        """Ends the connection. Idempotent."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    # -- one call

    def _ask(self, method: str, request: Any) -> Any:
        begun_s = time.monotonic()
        try:
            answer = _REPLIES[method]()
            answer.ParseFromString(self._call(f"/rmgr.v1.Leader/{method}", request.SerializeToString()))
            return answer
        except TimeoutError:
            self.close()
            if time.monotonic() - begun_s > self._timeout_s + _STOOD_S:
                raise ThinFailed("this process stood still meanwhile") from None
            raise Unavailable(f"{self._endpoint} did not answer in time", hint="rmgr doctor") from None
        except (OSError, struct.error, IndexError, ValueError, DecodeError) as error:  # ssl.SSLError, refused, cut off; not HTTP/2
            self.close()
            raise ThinFailed(str(error)) from error
        except ThinFailed:
            self.close()
            raise

    def _call(self, path: str, request: bytes) -> bytes:
        end = time.monotonic() + self._timeout_s
        if len(request) > _MOST_REQUEST_BYTES:
            raise ThinFailed("the question is too long")
        out = b""
        if self._link is None:
            self._link = self._open(end)
            self._buffer.clear()
            self._stream = -1
            # No header table, so that no header refers to an earlier one; windows that never need an update.
            settings = struct.pack("!HIHIHI", _HEADER_TABLE_SIZE, 0, _ENABLE_PUSH, 0, _INITIAL_WINDOW, _WHOLE)
            out = _PREFACE + _frame(_SETTINGS, 0, 0, settings) + _frame(_WINDOW, 0, 0, struct.pack("!I", _WHOLE - 65_535))
        self._stream += 2
        headers = {
            ":method": "POST",
            ":scheme": "https" if self._bundle else "http",
            ":path": path,
            ":authority": self._endpoint,
            "content-type": "application/grpc",
            "te": "trailers",
            "grpc-timeout": f"{max(1, int(self._timeout_s * 1000))}m",
            "user-agent": "rmgr",
        }
        block = b"".join(b"\0" + _text(name) + _text(value) for name, value in headers.items())
        out += _frame(_HEADERS, _END_HEADERS, self._stream, block)
        out += _frame(_DATA, _END_STREAM, self._stream, struct.pack("!BI", 0, len(request)) + request)
        self._link.sendall(out)
        return self._receive(end)

    def _receive(self, end: float) -> bytes:
        body = bytearray()
        while True:
            kind, flags, stream, data = self._next(end)
            if kind == _SETTINGS and not flags & _ACK:
                self._send(_frame(_SETTINGS, _ACK, 0, b""))
            elif kind == _PING and not flags & _ACK:
                self._send(_frame(_PING, _ACK, 0, data))
            elif kind in {_GOAWAY, _PUSH, _CONTINUATION} or (kind == _RST and stream == self._stream):
                raise ThinFailed(f"frame of type {kind}")
            elif stream == self._stream and kind in {_DATA, _HEADERS}:
                data = _unpadded(kind, flags, data)
                if kind == _DATA:
                    body += data
                elif flags & _END_STREAM:  # the trailers
                    if _status(data) != b"0":
                        raise ThinFailed("the call failed")
                    return _message(body)
                if flags & _END_STREAM:
                    raise ThinFailed("an answer without trailers")

    def _next(self, end: float) -> tuple[int, int, int, bytes]:
        while True:
            if len(self._buffer) >= 9:
                length = int.from_bytes(self._buffer[:3], "big")
                if length > _MOST_ANSWER_BYTES:
                    raise ThinFailed("this is not HTTP/2")
                if len(self._buffer) >= 9 + length:
                    kind, flags, stream = struct.unpack_from("!BBI", self._buffer, 3)
                    data = bytes(self._buffer[9 : 9 + length])
                    del self._buffer[: 9 + length]
                    return kind, flags, stream & _WHOLE, data
            assert self._link is not None
            self._link.settimeout(max(0.001, end - time.monotonic()))  # what is there already counts, however late it is
            chunk = self._link.recv(_READ_BYTES)
            if not chunk:
                raise ConnectionError("the leader hung up")
            self._buffer += chunk

    def _send(self, frame: bytes) -> None:
        assert self._link is not None
        self._link.sendall(frame)

    def _open(self, end: float) -> socket.socket:
        host, _, port = self._endpoint.rpartition(":")
        link = socket.create_connection((host.strip("[]"), int(port)), max(0.001, end - time.monotonic()))
        try:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._bundle is None:
                return link
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies a certificate of the authority below, in the role's name
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.load_verify_locations(self._bundle / "ca.crt")
            context.load_cert_chain(self._bundle / "tls.crt", self._bundle / "tls.key")
            context.set_alpn_protocols(["h2"])
            return context.wrap_socket(link, server_hostname="watchdog.rmgr")
        except BaseException:
            link.close()
            raise


# -- frames and headers ------------------------------------------------------------------------------------------------------


def _frame(kind: int, flags: int, stream: int, data: bytes) -> bytes:
    return len(data).to_bytes(3, "big") + struct.pack("!BBI", kind, flags, stream) + data


def _text(text: str) -> bytes:
    """Encodes a string for HPACK without Huffman coding; fewer than 127 bytes."""
    data = text.encode()
    if len(data) > 126:
        raise ThinFailed("a header is too long")
    return bytes((len(data),)) + data


def _unpadded(kind: int, flags: int, data: bytes) -> bytes:
    if flags & _PADDED:
        data = data[1 : len(data) - data[0]]
    if kind == _HEADERS and not flags & _END_HEADERS:
        raise ThinFailed("headers in several frames")
    return data[5:] if kind == _HEADERS and flags & _PRIORITY else data


def _message(body: bytearray) -> bytes:
    compressed, length = struct.unpack_from("!BI", body)
    if compressed or len(body) != 5 + length:
        raise ThinFailed("not one plain message")
    return bytes(body[5:])


def _status(block: bytes) -> bytes:
    """Returns `grpc-status` from trailers (HPACK, RFC 7541 section 6); names from a table cannot be it."""
    at, status = 0, b""
    while at < len(block):
        first = block[at]
        if first & 0x80:  # an indexed field
            _, at = _number(block, at, 7)
            continue
        if first & 0xE0 == 0x20:  # a change of the table's size
            _, at = _number(block, at, 5)
            continue
        index, at = _number(block, at, 6 if first & 0x40 else 4)
        name = b""
        if not index:
            name, at = _string(block, at)
        value, at = _string(block, at)
        if name == _STATUS_NAME:
            status = value
    return status


def _number(block: bytes, at: int, bits: int) -> tuple[int, int]:
    most = (1 << bits) - 1
    value = block[at] & most
    at += 1
    if value < most:
        return value, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, at


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    """Reads a string; returns b"" for one in Huffman coding."""
    is_coded = bool(block[at] & 0x80)
    length, at = _number(block, at, 7)
    return (b"" if is_coded else block[at : at + length]), at + length
