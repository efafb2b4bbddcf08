"""Runs a WatchDog's loop on a thread of the test, which can break its session and read its metrics and log directly."""

from __future__ import annotations

import threading
from typing import Any

import structlog

from rmgr.adapters.rpc.server import RpcServer
from rmgr.adapters.rpc.services import LeaderClient, leader_handler
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.records import decode_record
from rmgr.daemons.leader.answering import LeaderAnswering
from rmgr.daemons.leader.term import LeaderMetrics
from rmgr.daemons.leader.watchdog import Watchdog
from rmgr.model.node import EpochRecord
from rmgr.model.queue import ClusterSettings
from rmgr.procedures.bootstrap import bootstrap
from tests.harness.ended_sessions import LONG_S
from tests.harness.memory_store import MemoryStore
from tests.harness.waiting import PATIENCE_S, eventually


class WatchdogThread:
    """A WatchDog with its gRPC server."""

    def __init__(
        self,
        hosts: str,
        chroot: str,
        *,
        session_timeout_s: float = LONG_S,
        store: MemoryStore | None = None,
        settings: ClusterSettings | None = None,
    ) -> None:
        self.coordinator = ZkCoordinator.connect(hosts, chroot, session_timeout_s=session_timeout_s)
        self.store = store or MemoryStore(f"watchdog-{chroot}")
        self.metrics = LeaderMetrics()
        self.log: list[dict[str, Any]] = []
        self.meta = bootstrap(self.coordinator, settings=settings)
        self.server = RpcServer("127.0.0.1:0", threads=8)
        self.watchdog = Watchdog(
            self.coordinator, self.store, self.meta, endpoint=self.server.endpoint, resync_s=20.0,
            log=structlog.wrap_logger(None, processors=[self._logged]), metrics=self.metrics,
        )
        self.server.add_generic(leader_handler(LeaderAnswering(self.watchdog, lambda: {"ok": True})))
        self.server.start()
        self.client = LeaderClient(self.server.endpoint)
        self._thread = threading.Thread(target=self.watchdog.serve, name="watchdog")
        self._thread.start()

    def _logged(self, _logger: Any, level: str, event: dict[str, Any]) -> Any:
        self.log.append({"level": level, **event})
        raise structlog.DropEvent

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.log if line["event"] == name]

    def wait_event(self, name: str, *, count: int = 1) -> dict[str, Any]:
        eventually(lambda: len(self.events(name)) >= count, f"{name} in {self.log}")
        return self.events(name)[count - 1]

    def epoch(self) -> EpochRecord:
        found = self.coordinator.get(paths.EPOCH).result(60)
        return EpochRecord() if found is None else decode_record(found.data, EpochRecord)

    def wait_ended(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def close(self) -> None:
        self.watchdog.stop()
        self._thread.join(PATIENCE_S)
        self.watchdog.close()
        self.client.close()
        self.server.stop(0.1)
        assert not self._thread.is_alive()
        assert [line for line in self.log if line["event"] == "set_aside"] == []
