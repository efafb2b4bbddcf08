"""Protocols of checkpoints: what they need of their node and Starter, and what their own parts need of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from rmgr.adapters.rpc.ranks import Peers
    from rmgr.daemons.starter.checkpoint.case import OpenCheckpoint
    from rmgr.daemons.starter.checkpoint.parts import JobDirectory, LocalPart
    from rmgr.daemons.starter.checkpoint.seal import Seals
    from rmgr.daemons.starter.checkpoint.way import CheckpointEvent
    from rmgr.daemons.starter.core.blocks import ClaimedBlock
    from rmgr.daemons.starter.core.doors import NodeOrders
    from rmgr.daemons.starter.core.home import Home
    from rmgr.daemons.starter.core.io import StoreIO
    from rmgr.daemons.starter.core.metrics import StarterMetrics
    from rmgr.daemons.starter.execution.lanes import Lanes, WorkerLane
    from rmgr.daemons.starter.staging.charged import Charge
    from rmgr.model.base.states import Reason
    from rmgr.model.cluster.queue import ClusterSettings


T = TypeVar("T")


class CheckpointNode(Protocol):
    """The node that runs the jobs' scripts."""

    name: str
    lanes: Lanes

    @property
    def orders(self) -> NodeOrders: ...

    def return_unstarted(self, block: ClaimedBlock) -> None:
        """Gives back to its queue what of it has not begun."""
        ...

    def stop_tasks(self, block: ClaimedBlock, indices: frozenset[int] | None, reason: Reason, grace_us: int) -> None:
        """Ends live tasks of a block (None: all)."""
        ...


class CheckpointServices(Protocol):
    """Files, the store, other Starters, seals and settings, as checkpoints need them. checkpoint_max_bytes: of one job."""

    checkpoint_max_bytes: int
    home: Home
    io: StoreIO
    metrics: StarterMetrics
    peers: Peers | None
    seals: Seals

    def charge_of(self, user: str) -> Charge:
        """For something that `user`'s work is about to write into the store."""
        ...

    def settings(self) -> ClusterSettings:
        """Of the cluster, as they are now."""
        ...


class JobParts(Protocol):
    """Gives the directories of a job, and works on them on threads."""

    def own_part(self, block: ClaimedBlock) -> LocalPart:
        """Its directory on this node."""
        ...

    def parts(self, block: ClaimedBlock, is_over: Callable[[], bool]) -> list[JobDirectory]:
        """Its directories, this node's first."""
        ...

    def background(self, job: Callable[[], T], done: Callable[[T | Exception], None], *, copies: bool = False) -> None:
        """Runs `job` on a thread; `done` gets its result, or what it raised, on the loop's thread."""
        ...


class AskedCheckpoints(Protocol):
    """Goes on with a checkpoint when its program has answered, or has not.

    let_go: of a gang, for so many us: it runs whoever's turn it is.
    """

    let_go: Callable[[ClaimedBlock, int], None]

    def lane_of(self, block: ClaimedBlock) -> WorkerLane | None:
        """Where its script runs, or None if it does not."""
        ...

    def next_number(self, block: ClaimedBlock) -> int:
        """The number of its next checkpoint."""
        ...

    def happened(self, case: OpenCheckpoint, event: CheckpointEvent, detail: str | Exception = "") -> bool:
        """Goes on with it, as the table of `way.py` says. False: it came too late."""
        ...
