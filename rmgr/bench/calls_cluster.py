"""A cluster with gateways and servers of calls, for `bench calls`: an open one, so that it carries the same as the bare gRPC beside it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from rmgr.bench.load.live_workload import WorkloadStage
from rmgr.bench.measuring import connected
from rmgr.client.calls import Caller
from rmgr.config import ClusterConfig, Config
from rmgr.dev.cluster import DevCluster
from rmgr.errors import RmgrError, Unavailable
from rmgr.model.cluster.queue import PipelineSpec
from rmgr.model.cluster.servers import CALLS

_PATIENCE_S = 60.0
_POLL_S = 0.05


class CallsCluster:
    """One WatchDog, `nodes` Starters of two cores, and the gateways and servers that are started. Context manager.

    Args:
        directory: where it lives, and where it stays what it leaves.
    """

    def __init__(self, directory: Path, *, nodes: int) -> None:
        self.cluster = DevCluster(directory / "cluster", nodes=nodes, cores=2, watchdogs=1, secured=False)
        self._refresh_s = 0.0
        self._callers: dict[str, Caller] = {}

    def __enter__(self) -> Self:
        self.cluster.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        for caller in self._callers.values():
            caller.close()
        self.cluster.stop(at_once=True)

    def start_gateway(self, name: str, *, refresh_s: float) -> int:
        """refresh_s: how often it looks at its servers. Returns its pid."""
        self._refresh_s = max(self._refresh_s, refresh_s)
        return self.cluster.start_gateway(name, environment={"RMGR_SUBMITTER_REFRESH": f"{refresh_s:g}s"})

    def start_server(self, name: str, *options: str) -> int:
        """Returns its pid."""
        return self.cluster.start_server(name, options=options)

    def gateways(self) -> tuple[str, ...]:
        """HOST:PORT of each."""
        return tuple(self.cluster.state.gateway.split(","))

    def caller(self, gateway: str = "") -> Caller:
        """A client of its own, of the first gateway or of that one; to be closed by who asks for it."""
        return Caller(Config(cluster=ClusterConfig(gateway=gateway or self.gateways()[0])))

    def servers(self) -> Any:
        """`pb.ServersReply` of the first gateway. Raises: RmgrError."""
        if "" not in self._callers:
            self._callers[""] = self.caller()
        return self._callers[""].asked(lambda client: client.servers(""))

    def wait_for_servers(self, count: int) -> None:
        """All are open, and every link is measured. Raises: Unavailable."""
        wanted = count * len(self.gateways())

        def are_there() -> bool:
            try:
                found = self.servers().servers
            except RmgrError:
                return False
            return sum(one.state == "open" for one in found) == count and sum(len(one.links) for one in found) == wanted

        self.until(are_there, f"{count} servers are open")

    def use(self, name: str, document: Mapping[str, object]) -> None:
        """Picks by this pipeline from now on. name: what it is called while it is used. Raises: Unavailable."""
        with connected(self.cluster) as connection:
            WorkloadStage(connection).use(PipelineSpec(partition=CALLS, document=json.dumps(document, sort_keys=True), name=name))
        self.until(lambda: self.servers().policy == name, f"policy {name} picks")

    def settle(self) -> None:
        """Nothing runs, and every gateway has measured that. Raises: Unavailable."""
        idle_s = 0.0

        def is_settled() -> bool:
            nonlocal idle_s
            now_s = time.monotonic()
            found = self.servers().servers
            if any(one.running or one.waiting for one in found):
                idle_s = 0.0
                return False
            idle_s = idle_s or now_s
            return now_s - idle_s > self._refresh_s and all(one.age_s < now_s - idle_s and not one.assigned for one in found)

        self.until(is_settled, "the servers are idle")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Raises: Unavailable when that does not come within a minute."""
        end_s = time.monotonic() + _PATIENCE_S
        while not condition():
            if time.monotonic() > end_s:
                raise Unavailable(f"not within {_PATIENCE_S:g} s: {what}")
            time.sleep(_POLL_S)
