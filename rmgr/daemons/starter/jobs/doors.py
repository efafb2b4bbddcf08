"""Protocols of placed jobs: what they need of their node and of its Starter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from rmgr.adapters.rpc.ranks import Peers
    from rmgr.daemons.starter.core.blocks import ClaimedBlock
    from rmgr.daemons.starter.core.doors import NodeOrders
    from rmgr.daemons.starter.core.home import Home
    from rmgr.daemons.starter.core.io import StoreIO
    from rmgr.daemons.starter.core.metrics import StarterMetrics
    from rmgr.daemons.starter.core.records import RecordCache
    from rmgr.daemons.starter.execution.lanes import Lanes
    from rmgr.model.base.states import Reason
    from rmgr.model.cluster.queue import ClusterSettings
    from rmgr.model.tasks.block import BlockKey
    from rmgr.runtime.gang_clock import ClockReader


class JobsNode(Protocol):
    """The node that runs the jobs' scripts."""

    name: str
    incarnation: int
    blocks: dict[BlockKey, ClaimedBlock]
    lanes: Lanes

    @property
    def orders(self) -> NodeOrders: ...

    def claimed(self, block: ClaimedBlock) -> None:
        """A block is the node's own now."""
        ...

    def return_unstarted(self, block: ClaimedBlock) -> None:
        """Gives back to its queue what of it has not begun."""
        ...

    def stop_tasks(self, block: ClaimedBlock, indices: frozenset[int] | None, reason: Reason, grace_us: int) -> None:
        """Ends live tasks of a block (None: all)."""
        ...


class JobServices(Protocol):
    """Directories, the store, records, other Starters and settings, as jobs need them."""

    home: Home
    io: StoreIO
    metrics: StarterMetrics
    peers: Peers | None
    records: RecordCache

    def open_clock(self, told: Callable[[], None]) -> ClockReader:
        """Reads the clock of another machine; `told` is called on a thread of its own."""
        ...

    def settings(self) -> ClusterSettings:
        """Of the cluster, as they are now."""
        ...
