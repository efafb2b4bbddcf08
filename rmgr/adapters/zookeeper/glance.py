"""One look at a few znodes without a client library: a session of two round trips, for commands that only ask who leads.

kazoo with its threads costs such a command more time than everything else that it does. Whatever is not as usual (no server
answers at once, no right to read, an unknown reply) raises `GlanceFailed`, and the caller takes the long way, which waits and explains.
The session is closed in the same write as the reads: nothing is waited for but the answers. No watches, no writes but the session's own.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Sequence
from typing import NamedTuple

from rmgr.adapters.zookeeper.server import ZkSecurity, open_socket
from rmgr.errors import ConfigError

_CONNECT = struct.Struct("!iqiqi16sB")  # protocol version, last zxid, timeout (ms), session, password, read only
_INT, _REPLY, _REQUEST = struct.Struct("!i"), struct.Struct("!iqi"), struct.Struct("!ii")
_DATA, _ACL, _CHILDREN, _SYNC, _CLOSE, _AUTH = 4, 6, 8, 9, -11, 100
_AUTH_XID = -4
_NO_NODE = -101
_READ_BYTES = 1 << 16
_MOST_BYTES = 1 << 22
#: A server that has not answered by then (s) is left for the next one.
_SERVER_S = 0.5


class GlanceFailed(Exception):
    """The look needs the full client: this one knows only the simplest answers."""


class Glance(NamedTuple):
    """Result of a look. data: path -> content, None = absent. children: path -> names. schemes: path -> schemes of its access list."""

    server: str
    data: dict[str, bytes | None]
    children: dict[str, list[str]]
    schemes: dict[str, tuple[str, ...]]


def glance(
    hosts: str,
    root: str,
    *,
    data: Sequence[str] = (),
    children: Sequence[str] = (),
    access: Sequence[str] = (),
    security: ZkSecurity | None = None,
    timeout_s: float = 1.0,
) -> Glance:
    """Reads what no other client has written later than now (it begins with a sync).

    Args: hosts: "h1:2181,h2:2181". root: chroot, "" or "/a/b". data, children, access: paths below it. timeout_s: for all servers together.
    Raises: GlanceFailed.
    """
    end = time.monotonic() + timeout_s
    servers = [server.strip() for server in hosts.split(",")]
    random.shuffle(servers)
    why = "no server"
    for server in servers:
        left_s = min(_SERVER_S, end - time.monotonic())
        if left_s <= 0:
            break
        try:
            return _look(server, root, data, children, access, security or ZkSecurity(), left_s)
        except (OSError, ConfigError, ValueError, struct.error) as error:  # ssl.SSLError is an OSError
            why = f"{server}: {error}"
    raise GlanceFailed(why)


def _look(
    server: str, root: str, data: Sequence[str], children: Sequence[str], access: Sequence[str], security: ZkSecurity, timeout_s: float
) -> Glance:
    host, _, port = server.rpartition(":")
    end = time.monotonic() + timeout_s
    with open_socket((host.strip("[]"), int(port)), host.strip("[]"), timeout_s, security) as link:
        frames = _Frames(link, end)
        frames.send(_CONNECT.pack(0, 0, 10_000, 0, 16, b"", 0))
        greeting = frames.next()
        if int.from_bytes(greeting[8:16], "big") == 0:
            raise ConnectionError("it gives no session")
        asked = [(_SYNC, "/")]
        asked += [(kind, path) for kind, paths in ((_DATA, data), (_CHILDREN, children), (_ACL, access)) for path in paths]
        out = []
        if security.auth_scheme:
            out.append(_REQUEST.pack(_AUTH_XID, _AUTH) + _INT.pack(0) + _text(security.auth_scheme) + _text(security.auth_credential))
        for xid, (kind, path) in enumerate(asked, start=1):
            flag = b"\0" if kind in {_DATA, _CHILDREN} else b""  # no watch
            out.append(_REQUEST.pack(xid, kind) + _text((root if path == "/" else root + path) or "/") + flag)
        out.append(_REQUEST.pack(len(asked) + 1, _CLOSE))
        frames.send(*out)
        seen = Glance(server, {}, {}, {})
        if security.auth_scheme:
            frames.answer(_AUTH_XID)
        for xid, (kind, path) in enumerate(asked, start=1):
            body = frames.answer(xid)
            if kind == _DATA:
                seen.data[path] = None if body is None else body[4 : 4 + max(0, _INT.unpack_from(body)[0])]
            elif kind == _CHILDREN:
                seen.children[path] = [] if body is None else _texts(body, 1)
            elif kind == _ACL:
                seen.schemes[path] = () if body is None else tuple(_texts(body, 2, skip=4)[::2])
        return seen


class _Frames:
    """Frames of one connection, until `end` (monotonic)."""

    def __init__(self, link: socket.socket, end: float) -> None:
        self._link = link
        self._end = end
        self._buffer = bytearray()

    def send(self, *frames: bytes) -> None:
        self._link.sendall(b"".join(_INT.pack(len(frame)) + frame for frame in frames))

    def next(self) -> bytes:
        while True:
            if len(self._buffer) >= 4:
                (length,) = _INT.unpack_from(self._buffer)
                if not 0 <= length <= _MOST_BYTES:
                    raise ValueError("this is not ZooKeeper's protocol")
                if len(self._buffer) >= 4 + length:
                    frame = bytes(self._buffer[4 : 4 + length])
                    del self._buffer[: 4 + length]
                    return frame
            self._link.settimeout(max(0.001, self._end - time.monotonic()))
            chunk = self._link.recv(_READ_BYTES)
            if not chunk:
                raise ConnectionError("the server hung up")
            self._buffer += chunk

    def answer(self, xid: int) -> bytes | None:
        """The body of the reply to `xid`; None: there is no such znode."""
        frame = self.next()
        found, _, code = _REPLY.unpack_from(frame)
        if found != xid or code not in {0, _NO_NODE}:
            raise GlanceFailed(f"reply {found} to request {xid}, error {code}")
        return frame[_REPLY.size :] if code == 0 else None


def _text(text: str) -> bytes:
    data = text.encode()
    return _INT.pack(len(data)) + data


def _texts(body: bytes, each: int, *, skip: int = 0) -> list[str]:
    """Strings of a vector whose elements have `skip` bytes and then `each` strings."""
    (count,) = _INT.unpack_from(body)
    at, found = 4, []
    for _ in range(max(0, count)):
        at += skip
        for _ in range(each):
            (length,) = _INT.unpack_from(body, at)
            found.append(body[at + 4 : at + 4 + length].decode())
            at += 4 + length
    return found
