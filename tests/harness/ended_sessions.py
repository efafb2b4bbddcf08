"""Sessions of ZooKeeper, ended from outside as an expiry would end them: a test that has killed a process need not wait for T.

A server makes a session's password from its id with java.util.Random and a constant (`ZooKeeperServer.generatePasswd`), so a test can name
it without asking the process.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.ports import Coordinator
from rmgr.errors import Unavailable

_INT = struct.Struct("!i")
_SECRET = 0xB3415C00
_MULTIPLIER, _ADDEND, _MASK = 0x5DEECE66D, 0xB, (1 << 48) - 1


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


def password_of(session_id: int) -> bytes:
    """The 16 bytes that the server has given to this session."""
    state = ((session_id ^ _SECRET) ^ _MULTIPLIER) & _MASK
    made = b""
    while len(made) < 16:
        state = (state * _MULTIPLIER + _ADDEND) & _MASK
        made += (state >> 16).to_bytes(4, "little")
    return made


def sessions(coordinator: Coordinator) -> dict[str, int]:
    """Session ids of all Starters, WatchDogs and Submitters, by the path of their entry."""
    found = {}
    for parent in (paths.STARTERS, paths.WATCHDOGS, paths.SUBMITTERS):
        for name in coordinator.children(parent).result(60) or ():
            stat = coordinator.stat(f"{parent}/{name}").result(60)
            if stat is not None and stat.ephemeral_owner:
                found[f"{parent}/{name}"] = stat.ephemeral_owner
    return found


def expire(hosts: str, session_id: int) -> None:
    """Ends a session of somebody else, as an expiry does."""
    host, _, port = hosts.partition(":")
    end_session(host, int(port), session_id, password_of(session_id))


def expire_all(hosts: str, coordinator: Coordinator, known: Iterable[str] = ()) -> None:
    """Ends the sessions of all Starters, WatchDogs and Submitters but those of these entries: of the processes that a test has killed."""
    for path, session_id in sessions(coordinator).items():
        if path not in known:
            expire(hosts, session_id)
