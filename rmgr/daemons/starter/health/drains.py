"""Reasons for which the nodes of a Starter take no new work: an operator, a full disk, a data store that is away, or the Starter's end.

Each reason comes and goes by itself; a node works again when none is left.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.records import decode_record
from rmgr.model.base.units import format_size
from rmgr.model.cluster.node import Drain

if TYPE_CHECKING:
    from rmgr.coord.protocol.multi import Stamped
    from rmgr.runtime.logger import Log

#: The node is drained when inputs have waited for the store for so long.
_STARVED_S = 2.0


class DrainedNode(Protocol):
    """A node that may be drained. drains: who wants no new work there -> why."""

    name: str
    drains: dict[str, str]


class DiskState(Protocol):
    """Knows whether the disk has room."""

    def look(self, now_s: float) -> str:
        """Why no work should be taken, "" when all is well."""
        ...


class SpoolState(Protocol):
    """Knows what waits for the data store. starved_since_s, down_since_s: monotonic; None: no input waits, or it answers."""

    @property
    def pending_bytes(self) -> int: ...

    @property
    def starved_since_s(self) -> float | None: ...

    @property
    def down_since_s(self) -> float | None: ...


class Drains:
    """Drains the nodes of one Starter, and resumes them.

    Args: spool_cap: bytes of finished outputs that may wait for the store.
    """

    def __init__(self, nodes: Collection[DrainedNode], disk: DiskState, spool: SpoolState, *, spool_cap: int, log: Log) -> None:
        self._nodes = nodes
        self._disk = disk
        self._spool = spool
        self._spool_cap = spool_cap
        self._log = log

    def settle(self, now_s: float) -> None:
        """Looks at the disk and at the store."""
        self._set("disk", self._disk.look(now_s), over="there is room on the disk again")
        self._set("store", self._store_trouble(now_s), over="the data store answers again")

    def ordered(self, node: DrainedNode, found: Stamped | None) -> None:
        """An operator drains the node, or has resumed it."""
        drain = decode_record(found.data, Drain, paths.drain(node.name)) if found is not None else None
        if drain is None or drain.is_over:
            if node.drains.pop("operator", None) is not None:
                self._log.info("node_resumed", node=node.name, by=drain.user if drain is not None else "")
        elif node.drains.get("operator") != drain.reason:
            node.drains["operator"] = drain.reason
            self._log.info("node_drained", node=node.name, why=drain.reason)

    def stopping(self) -> None:
        """The Starter stops."""
        for node in self._nodes:
            node.drains["stopping"] = "the Starter stops"

    def _store_trouble(self, now_s: float) -> str:
        """A store that is away: running work goes on. Nothing new begins when inputs cannot come or outputs find no room."""
        starved_s, pending = self._spool.starved_since_s, self._spool.pending_bytes
        is_drained = any("store" in node.drains for node in self._nodes)
        if pending >= (self._spool_cap // 2 if is_drained and self._spool.down_since_s is not None else self._spool_cap):
            return f"outputs that wait for the data store fill the spool ({format_size(pending)} of {format_size(self._spool_cap)})"
        if starved_s is not None and now_s - starved_s > _STARVED_S:
            return "the data store does not answer, so inputs of work cannot be read"
        return ""

    def _set(self, who: str, why: str, *, over: str) -> None:
        for node in self._nodes:
            if why and who not in node.drains:
                self._log.error("node_drained", node=node.name, why=why)
                node.drains[who] = why
            elif not why and node.drains.pop(who, None) is not None:
                self._log.info("node_resumed", node=node.name, why=over)
