"""Notices that ZooKeeper's data were wiped or restored: its servers refuse for ever who has seen later changes (kazoo#42).

A client shows the number of the last change it has seen, and a server that knows less closes the connection. Right for a
follower that lags; after a wipe nobody would ever connect again. Only who leads can tell the difference.
"""

from __future__ import annotations

import logging
import math
import time
from typing import Protocol

from rmgr.adapters.zookeeper.link import ZkSecurity
from rmgr.adapters.zookeeper.probe import look

_LOG = logging.getLogger("rmgr.zookeeper")
_PAUSE_S = 1.0
_LOOK_S = 0.5


class Seer(Protocol):
    """A client of ZooKeeper. last_zxid: number of the last change it has seen; it shows it when it connects."""

    last_zxid: int
    security: ZkSecurity


class SeenHistory:
    """Watches one client's history. When two looks at a leading server agree, what the client has seen is forgotten: then it connects, its
    session turns out to be gone, and its daemon finds another cluster, or none, in the tree.
    """

    def __init__(self, client: Seer) -> None:
        self._client = client
        self._suspected = False
        self._looked_s = -math.inf

    def refused(self, host: str, port: int) -> None:
        """A server has ended the handshake: looks at it, at most once a second. Cost: up to 0.5 s of the link's thread."""
        now, seen = time.monotonic(), self._client.last_zxid
        if not seen or now - self._looked_s < _PAUSE_S:
            return
        self._looked_s = now
        found = look(f"{host}:{port}", self._client.security, timeout_s=_LOOK_S)
        if found.mode not in {"leader", "standalone"}:
            return
        is_behind = found.zxid < seen
        if is_behind and self._suspected:
            _LOG.error("zookeeper_history_lost: %s:%d is at zxid 0x%x, it was at 0x%x", host, port, found.zxid, seen)
            self._client.last_zxid = 0
        self._suspected = is_behind

    def taken(self) -> None:
        """A server has let us in."""
        self._suspected = False
