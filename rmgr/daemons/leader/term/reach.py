"""Whether Starters can be reached where they say that they listen: a leader dials them now and then, so that `rmgr status` need not.

A Starter that others do not reach runs work all the same: it pulls it from ZooKeeper. But its live output, its terminals, and its ranks of
jobs on several nodes do not come about, and nothing else would say why.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeout

from rmgr.coord.views.snapshot import ClusterSnapshot
from rmgr.errors import RmgrError
from rmgr.model.cluster.node import NodeRecord
from rmgr.runtime import machine
from rmgr.runtime.logger import Log
from rmgr.runtime.secured import is_loopback

#: How often they are dialled, how long one may take to answer, how many are dialled at once.
_EVERY_S, _DIAL_S, _AT_ONCE = 10.0, 3.0, 16
#: One that did not answer so often in a row is told of: a Starter may just be starting anew.
_SURE = 2


class StarterReach:
    """Dials the Starters of living nodes, on a thread of its own. Cost: a connection to each every 10 s, ended at once.

    Args: living: the nodes whose Starters are there, none while this WatchDog does not lead; may wait.
    """

    def __init__(self, living: Callable[[], Sequence[NodeRecord]], log: Log) -> None:
        self._living = living
        self._log = log
        self._host = socket.gethostname()
        self._failed: dict[tuple[str, str], int] = {}  # (node, endpoint) -> how often in a row
        self._stopped = threading.Event()
        self._thread = machine.Thread(target=self._run, name="reach", daemon=True)

    def start(self) -> StarterReach:
        """Begins; the first look is 10 s later."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ends soon."""
        self._stopped.set()

    def unreached(self, snapshot: ClusterSnapshot) -> dict[str, str]:
        """Node -> endpoint, of those whose Starters are there and could not be reached lately. Never waits. From any thread."""
        sure = [known for known, count in self._failed.items() if count >= _SURE]
        records = [snapshot.nodes[node] for node, endpoint in sure if node in snapshot.nodes and snapshot.nodes[node].endpoint == endpoint]
        return {record.node: record.endpoint for record in records if record.guid in snapshot.alive}

    def look(self) -> None:
        """Dials them all once. Raises: what `living` does."""
        living = [record for record in self._living() if record.endpoint]
        several = len({self._host, *(record.host for record in living)}) > 1
        alone = {record.endpoint for record in living if several and is_loopback(record.endpoint)}
        dialled = sorted({record.endpoint for record in living} - alone)
        if dialled:
            with machine.pool(min(_AT_ONCE, len(dialled)), "reach") as pool:
                alone |= {endpoint for endpoint, answers in zip(dialled, pool.map(_answers, dialled), strict=True) if not answers}
        failed = {}
        for record in living:
            if record.endpoint in alone:
                failed[record.node, record.endpoint] = count = self._failed.get((record.node, record.endpoint), 0) + 1
                if count == _SURE:
                    self._log.warning("starter_unreached", node=record.node, endpoint=record.endpoint)
        self._failed = failed

    def _run(self) -> None:
        while not self._stopped.wait(_EVERY_S):
            try:
                self.look()
            except (RmgrError, FutureTimeout):  # its loop is busy, or it leads no more
                continue


def _answers(endpoint: str) -> bool:
    host, _, port = endpoint.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _DIAL_S):
            return True
    except (OSError, ValueError):
        return False
