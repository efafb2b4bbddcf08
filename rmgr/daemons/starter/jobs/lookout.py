"""Other nodes of the jobs whose script runs here: one that was fenced, or where all that ran was killed, is lost to its job.

The leader tells of nodes that it fences. A Starter that died and is back before that is none of them: its record says that it
has begun another life, and nobody else looks. So whoever runs the script watches the records of the job's other nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.records import decode_record
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.health.watch import WatchedZnode
from rmgr.errors import RmgrError
from rmgr.model.cluster.node import NodeRecord, NodeState
from rmgr.runtime.logger import Log

if TYPE_CHECKING:
    from rmgr.adapters.rpc.ranks import Peers
    from rmgr.daemons.starter.core.doors import TreeAccess
    from rmgr.model.cluster.queue import ClusterSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """Answer of a node that was ready: the life in which it has the job's cores, and its incarnation then (0: it did not say).

    endpoint: of its Starter, which keeps it for as long as it lives: another endpoint is another life.
    """

    life: str
    incarnation: int
    endpoint: str = ""

    def is_broken(self, record: NodeRecord | None) -> bool:
        """By this record (None: there is none). One that is older than the promise, from a server that lags, says nothing."""
        if record is None:
            return True
        if record.incarnation < self.incarnation:
            return False
        is_another = bool(record.life) and record.life != self.life and record.incarnation > self.incarnation
        return record.state is NodeState.FENCED or is_another


class PeerServices(Protocol):
    """Asks other Starters (peers; None: nobody can be asked), and knows how long that may take."""

    peers: Peers | None

    def settings(self) -> ClusterSettings:
        """Of the cluster, as they are now."""
        ...


class Lookouts:
    """Watches on records of nodes. Cost: one a node, however many jobs have a part there.

    Args:
        tell: gets (job, node, its record or None) in the owner's thread, whenever the record was read.
    """

    def __init__(self, shared: TreeAccess, log: Log, tell: Callable[[ClaimedBlock, str, NodeRecord | None], None]) -> None:
        self._shared = shared
        self._log = log
        self._tell = tell
        self._watches: dict[str, WatchedZnode[Stamped | None]] = {}
        self._jobs: dict[str, list[ClaimedBlock]] = {}

    def begin(self, block: ClaimedBlock) -> None:
        """Looks at the other nodes of this job."""
        allocation = block.data.allocation
        for node, _ in allocation.helpers if allocation is not None else ():
            self._jobs.setdefault(node, []).append(block)
            if node not in self._watches:
                self._watches[node] = WatchedZnode(
                    partial(self._ask, node),
                    partial(self._seen, node),
                    post=self._shared.post,
                    after=self._shared.after,
                )
                self._watches[node].start()

    def end(self, block: ClaimedBlock) -> None:
        """Looks no more."""
        allocation = block.data.allocation
        for node, _ in allocation.helpers if allocation is not None else ():
            left = [other for other in self._jobs.get(node, ()) if other is not block]
            if left:
                self._jobs[node] = left
            elif node in self._jobs:
                del self._jobs[node]
                self._watches.pop(node).stop()

    def _ask(self, node: str, watch: Callable[[], None]) -> Any:
        return self._shared.coordinator.get(paths.node(node), watch=watch)

    def _seen(self, node: str, found: Stamped | None) -> None:
        try:
            record = decode_record(found.data, NodeRecord, node) if found is not None else None
        except RmgrError as error:
            self._log.warning("node_record_unreadable", target=node, error=error.message)
            return
        for block in list(self._jobs.get(node, ())):
            self._tell(block, node, record)
