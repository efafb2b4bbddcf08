"""Protocols through which more than one room reaches its node and ZooKeeper. A part that needs more declares its own beside itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rmgr.coord.protocol.ports import Coordinator
    from rmgr.daemons.starter.core.blocks import ClaimedBlock
    from rmgr.daemons.starter.core.commits import Committer
    from rmgr.model.tasks.block import BlockKey
    from rmgr.runtime.mailbox import Timer


class TreeAccess(Protocol):
    """Reads ZooKeeper and returns to the loop's thread. post: runs there. after: runs there in so many seconds. wake: asks for `settle`."""

    coordinator: Coordinator

    def post(self, call: Callable[[], None], /) -> None: ...

    def after(self, delay_s: float, call: Callable[[], None], /) -> Timer: ...

    def wake(self) -> None: ...


class TreeCommits(TreeAccess, Protocol):
    """Reads ZooKeeper, and commits with the fences of this Starter's nodes."""

    committer: Committer


class NamedNode(Protocol):
    """Names one node and its present registration."""

    name: str
    incarnation: int


class NodeOrders(Protocol):
    """Answers for the orders in one node's inbox. They are named by their guids."""

    @property
    def is_settled(self) -> bool:
        """The inbox was read, and its START orders are being carried out."""
        ...

    def left(self, key: BlockKey) -> None:
        """The block is not the node's own any more."""
        ...

    def obeyed_by(self, block: ClaimedBlock, indices: Sequence[int]) -> tuple[str, ...]:
        """Orders that a commit of these ends may delete; they are taken until `settled` or `released`."""
        ...

    def settled(self, block: ClaimedBlock, indices: Sequence[int], orders: Sequence[str]) -> None:
        """A commit has deleted them."""
        ...

    def released(self, orders: Sequence[str]) -> None:
        """A commit that would have deleted them was refused."""
        ...

    def gone(self, guid: str) -> None:
        """Somebody else has deleted it."""
        ...
