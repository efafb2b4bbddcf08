"""Sessions of other processes, ended from outside: how a test forces an expiry (row 24 of the fault matrix).

A ZooKeeper server makes a session's password from its id with java.util.Random and a constant
(`ZooKeeperServer.generatePasswd`), so a test can name it without asking the process.
"""

from __future__ import annotations

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.ports import Coordinator
from tests.harness.ended_sessions import end_session

_SECRET = 0xB3415C00
_MULTIPLIER, _ADDEND, _MASK = 0x5DEECE66D, 0xB, (1 << 48) - 1


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
