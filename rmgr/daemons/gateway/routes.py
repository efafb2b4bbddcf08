"""Destinations of a gateway's calls: the leader that `/epoch` names, and the endpoints that nodes have registered."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import suppress

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import NotFound, PermissionDenied, RmgrError, Unavailable
from rmgr.model.cluster.node import EpochRecord, NodeRecord
from rmgr.procedures.snapshot import fetch
from rmgr.runtime import machine

#: Greatest age of the list of endpoints if it contains the wanted one; least age before another read if it does not.
FRESH_S = 5.0
LOOK_AGAIN_S = 0.5
_TIMEOUT_S = 3.0


class ClusterRoutes:
    """Implements `adapters.gateway.forward.Routes` for one cluster. Thread-safe."""

    def __init__(self, coordinator: Coordinator, count: Callable[[str, str, float], None]) -> None:
        self._coordinator = coordinator
        self._count = count
        self._lock = threading.Lock()
        self._leader = ""
        self._leader_is_known = False
        self._nodes: frozenset[str] = frozenset()
        self._nodes_read_s = -math.inf

    def leader(self, wanted: str) -> str:
        """See `Routes`. Cost: nothing while `/epoch` does not change."""
        with self._lock:
            leader, known = self._leader, self._leader_is_known
        if not known or (wanted and wanted != leader):
            leader = self._read_leader()
        if not leader:
            raise Unavailable("no WatchDog leads just now", hint="rmgr doctor")
        if wanted and wanted != leader:
            raise Unavailable(f"{wanted} does not lead any more", hint="ask again")
        return leader

    def node(self, wanted: str) -> str:
        """See `Routes`. Cost: a read of every node's record, at most once in 0.5 s."""
        if not wanted:
            raise NotFound("which node is to answer? the call names no endpoint")
        with self._lock:
            age_s = machine.monotonic() - self._nodes_read_s
            found = wanted in self._nodes
        if age_s > (FRESH_S if found else LOOK_AGAIN_S):
            found = wanted in self._read_nodes()
        if not found:
            raise PermissionDenied(f"{wanted} is not the endpoint of a node of this cluster", hint="rmgr nodes -o NODE,ENDPOINT")
        return wanted

    def lost(self, endpoint: str) -> None:
        """See `Routes`."""
        with self._lock:
            if endpoint == self._leader:
                self._leader_is_known = False

    def count(self, what: str, kind: str, amount: float = 1) -> None:
        """See `Routes`."""
        self._count(what, kind, amount)

    def _forget_leader(self) -> None:
        with self._lock:
            self._leader_is_known = False

    def _read_leader(self) -> str:
        found = self._coordinator.get(paths.EPOCH, watch=self._forget_leader, timeout_s=_TIMEOUT_S).result(_TIMEOUT_S + 1)
        leader = "" if found is None else decode_record(found.data, EpochRecord, paths.EPOCH).endpoint
        with self._lock:
            self._leader, self._leader_is_known = leader, True
        return leader

    def _read_nodes(self) -> frozenset[str]:
        names = self._coordinator.children(paths.NODES, timeout_s=_TIMEOUT_S).result(_TIMEOUT_S + 1) or []
        records = fetch([paths.node(name) for name in names], self._coordinator.get, timeout_s=_TIMEOUT_S + 1)
        endpoints = set()
        for name, record in zip(names, records, strict=True):
            if record is not None:
                with suppress(RmgrError):  # a record of another release may be unreadable
                    endpoints.add(decode_record(record.data, NodeRecord, paths.node(name)).endpoint)
        with self._lock:
            self._nodes, self._nodes_read_s = frozenset(endpoints - {""}), machine.monotonic()
            return self._nodes
