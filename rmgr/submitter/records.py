"""The cluster's settings and node records, as the Submitter has read them lately."""

from __future__ import annotations

import contextlib
import math

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.validity import records as validity
from rmgr.errors import NotFound, RmgrError
from rmgr.model.cluster.node import NodeRecord
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.procedures.snapshot import fetch
from rmgr.runtime import machine
from rmgr.submitter.port import Stored

#: How old what is known may be.
FRESH_S = 5.0


class ClusterRecords:
    """Reads settings and node records, and keeps them for 5 s. Thread-safe.

    Args: cap_blocks: overrides the queues' `max_pending_blocks`; None: as recorded.
    """

    def __init__(self, coordinator: Coordinator, *, cap_blocks: int | None = None) -> None:
        self.known_settings = ClusterSettings()
        self._coordinator = coordinator
        self._cap_blocks = cap_blocks
        self._settings = -math.inf, self.known_settings
        self._nodes: tuple[float, list[NodeRecord]] = (-math.inf, [])

    def settings(self, *, timeout_s: float = 10.0) -> ClusterSettings:
        """See `port.WorkPort`."""
        if _is_old(self._settings):
            self._settings = machine.monotonic(), self._read_settings(timeout_s)
        return self._settings[1]

    def nodes(self, *, timeout_s: float = 10.0) -> list[NodeRecord]:
        """See `port.WorkPort`."""
        if _is_old(self._nodes):
            self._nodes = machine.monotonic(), self._read_nodes(timeout_s)
        return self._nodes[1]

    def stored(self, number: int, *, timeout_s: float) -> Stored:
        """See `port.WorkPort.read`."""
        coordinator = self._coordinator
        record, tail = fetch(
            [paths.sub(number), paths.tail(number)], lambda path: coordinator.get(path, timeout_s=timeout_s), timeout_s=timeout_s + 1
        )  # fmt: skip
        if record is None or tail is None:
            raise no_submission(number)
        return Stored(
            submission=validity.submission(record.data, number),
            version=record.version,
            tail=validity.tail(tail, number),
            tail_version=tail.version,
        )

    def most_pending(self, queue: str) -> int:
        """Blocks that may wait in a queue, 0 = no limit, by the settings as they were read last. Never waits."""
        if self._cap_blocks is not None:
            return self._cap_blocks
        spec = self.known_settings.queue(queue)
        return spec.max_pending_blocks if spec is not None else 0

    def _read_settings(self, timeout_s: float) -> ClusterSettings:
        found = self._coordinator.get(paths.CONFIG, timeout_s=timeout_s).result(timeout_s + 1)
        if found is not None:
            self.known_settings = validity.decode(found.data, ClusterSettings, paths.CONFIG)
        return self.known_settings

    def _read_nodes(self, timeout_s: float) -> list[NodeRecord]:
        names = self._coordinator.children(paths.NODES, timeout_s=timeout_s).result(timeout_s + 1) or []
        found = fetch([paths.node(name) for name in sorted(names)], self._coordinator.get, timeout_s=timeout_s)
        records = []
        for item in found:
            if item is not None:
                with contextlib.suppress(RmgrError):  # a record of a newer release says nothing to this one
                    records.append(validity.decode(item.data, NodeRecord, paths.NODES))
        return records


def no_submission(number: int) -> NotFound:
    """ZooKeeper does not hold it."""
    return NotFound(f"there is no submission {number}", hint="rmgr jobs -a lists those in memory, rmgr history the older ones")


def _is_old(known: tuple[float, object]) -> bool:
    return machine.monotonic() - known[0] >= FRESH_S
