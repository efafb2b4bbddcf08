"""Ends a session of ZooKeeper as an expiry would."""

from __future__ import annotations

import socket
import struct
import time

from rmgr.errors import Unavailable

_INT = struct.Struct("!i")


def end_session(host: str, port: int, session_id: int, passwd: bytes, *, timeout_s: float = 5.0) -> None:
    """Ends somebody's session as an expiry would: connects as its owner, and closes.

    Raises: Unavailable when the server did not confirm within `timeout_s`.
    """
    connect = struct.pack("!iqiqi", 0, 0, 10_000, session_id, len(passwd)) + passwd + b"\x00"
    close = struct.pack("!ii", 1, -11)
    deadline = time.monotonic() + timeout_s
    received = b""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as link:
            # Both in one write: the owner reconnects within a tenth of a second and would take the session back.
            link.sendall(_INT.pack(len(connect)) + connect + _INT.pack(len(close)) + close)
            while len(received) < 4 or len(received) < 8 + _INT.unpack_from(received)[0]:
                link.settimeout(max(0.001, deadline - time.monotonic()))
                part = link.recv(65536)
                if not part:
                    break
                received += part
    except OSError as error:
        msg = f"ZooKeeper at {host}:{port} did not end session 0x{session_id:x}: {error}"
        raise Unavailable(msg) from error
