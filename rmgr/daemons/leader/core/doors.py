"""Protocols through which the parts of a leader reach its loop and ZooKeeper. A part that needs more declares its own beside itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, TypeVar

from rmgr.coord.protocol.multi import Multi, Outcome, Stamped, Stat
from rmgr.coord.protocol.ports import Store
from rmgr.errors import RmgrError
from rmgr.runtime.mailbox import Timer

T = TypeVar("T")
Thunk: TypeAlias = Callable[[], None]
#: What happens when an answer does not come; what it returns is of no interest.
Failed: TypeAlias = Callable[[], object]


class LoopTimers(Protocol):
    """Comes back into the leader's loop."""

    def clock(self) -> float:
        """Monotonic seconds."""
        ...

    def soon(self, what: Thunk, /) -> None:
        """`what` happens in the loop, after what is there already. From any thread."""
        ...

    def after(self, delay_s: float, what: Thunk, /) -> Timer:
        """`what` happens in the loop in `delay_s` seconds."""
        ...


class LeaderReads(LoopTimers, Protocol):
    """Reads ZooKeeper; answers come into the loop, `failed` when there is none in time."""

    def get(self, path: str, then: Callable[[Stamped | None], None], *, watch: Thunk | None = None, failed: Failed | None = None) -> None:
        """Data and stat of a znode."""
        ...

    def get_all(self, wanted: Sequence[str], then: Callable[[list[Stamped | None]], None], *, failed: Failed | None = None) -> None:
        """Data and stat of several znodes, in this order."""
        ...

    def stat(self, path: str, then: Callable[[Stat | None], None], *, watch: Thunk | None = None, failed: Failed | None = None) -> None:
        """Stat of a znode."""
        ...

    def children(
        self, path: str, then: Callable[[list[str] | None], None], *, watch: Thunk | None = None, failed: Failed | None = None
    ) -> None:
        """Names of the children of a znode."""
        ...


class LeaderCommits(LeaderReads, Protocol):
    """Reads ZooKeeper, and commits under the leader fence."""

    def commit(self, multi: Multi, then: Callable[[Outcome], None] | None = None, *, urgent: bool = False) -> None:
        """`then` gets the outcome. Urgent ones (liveness) go before all others."""
        ...


class StoreCalls(Protocol):
    """Calls the data store, on threads that may wait."""

    def store(self, call: Callable[[Store], T], then: Callable[[T], None], failed: Callable[[RmgrError], None]) -> None:
        """The result goes into `then`, an error into `failed`, both in the loop."""
        ...
