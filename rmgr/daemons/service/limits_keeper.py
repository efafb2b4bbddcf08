"""The limits of users as the cluster's settings have them just now, for what a daemon answers to users."""

from __future__ import annotations

from concurrent.futures import Future

from rmgr import log as logs
from rmgr.adapters.access.limits import Bounds
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import RmgrError
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.runtime import machine
from rmgr.runtime.logger import Log

_TIMEOUT_S, _AGAIN_S = 10.0, 2.0


class LimitsKeeper:
    """Reads /config, watches it, and puts the limits into `bounds` and the book of audit lines. Never blocks, never ends."""

    def __init__(self, coordinator: Coordinator, bounds: Bounds, log: Log) -> None:
        self._coordinator = coordinator
        self._bounds = bounds
        self._log = log

    def start(self) -> LimitsKeeper:
        """Begins to read."""
        self._read()
        return self

    def _read(self) -> None:
        asked = self._coordinator.get(paths.CONFIG, watch=self._read, timeout_s=_TIMEOUT_S)
        asked.add_done_callback(self._answered)

    def _answered(self, asked: Future[Stamped | None]) -> None:
        try:
            found = asked.result()
            settings = decode_record(found.data, ClusterSettings, paths.CONFIG) if found is not None and found.data else ClusterSettings()
        except RmgrError as error:
            self._log.warning("limits_unreadable", error=error.message)
            again = machine.Timer(_AGAIN_S, self._read)
            again.daemon = True
            again.start()
            return
        if settings.limits != self._bounds.limits:
            self._log.info("limits_changed")
        self._bounds.limits = settings.limits
        logs.BOOK.lines = settings.limits.audit_lines
