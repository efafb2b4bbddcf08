"""GATE: holding, releasing and cancelling whole submissions; what it commits is the decision, the leader sweeps up behind it.

Used by the command line and by TaskQueue. Each call reads the record, decides, and commits on the version that it read (`settle`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import eq
from typing import Protocol

from rmgr.coord import validity
from rmgr.coord.decisions import changing
from rmgr.coord.decisions.changing import ITS_USER, Doer
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Multi, Unknown
from rmgr.coord.protocol.ports import Coordinator
from rmgr.errors import CoordinationUnavailable, NotFound
from rmgr.model.tasks.submission import Submission
from rmgr.runtime import machine


class HasCoordinator(Protocol):
    """A connection, or anything else that leads to ZooKeeper."""

    @property
    def coordinator(self) -> Coordinator | None: ...


@dataclass(frozen=True, slots=True)
class Changed:
    """Result of a call: the record before it, and after it. unchanged: why it did nothing, "" when it did something."""

    before: Submission
    after: Submission
    unchanged: str = ""


#: (coordinator, record, its version, seconds left) -> the record as it is to be, and what commits it; or why there is nothing to do.
Decide = Callable[[Coordinator, Submission, int, float], tuple[Submission, Multi] | str]


def cancel_submission(
    connection: HasCoordinator, number: int, *, detail: str = "", doer: Doer = ITS_USER, timeout_s: float = 30.0
) -> Changed:
    """CANCEL: from its commit on nothing of the submission starts; what waits ends CANCELLED, what runs is killed.

    Raises: NotFound, CoordinationUnavailable.
    """
    return _change(connection, number, lambda record: changing.cancelled(record, detail, doer), timeout_s)


def hold_submission(
    connection: HasCoordinator, number: int, *, detail: str = "", doer: Doer = ITS_USER, timeout_s: float = 30.0
) -> Changed:
    """HOLD: nothing more of it starts until it is released; what runs goes on. Raises as `cancel_submission`."""
    return _change(connection, number, lambda record: changing.held(record, detail, doer), timeout_s)


def release_submission(connection: HasCoordinator, number: int, *, doer: Doer = ITS_USER, timeout_s: float = 30.0) -> Changed:
    """RELEASE: after a hold; operators alone release an operator's. One that waited for others before waits for them again."""
    return _change(connection, number, lambda record: changing.released(record, doer), timeout_s)


def _change(connection: HasCoordinator, number: int, decide: Callable[[Submission], changing.Change | str], timeout_s: float) -> Changed:
    def gated(_: Coordinator, record: Submission, version: int, _left_s: float) -> tuple[Submission, Multi] | str:
        change = decide(record)
        if isinstance(change, str):
            return change
        return change.record, ops.set_record(change.record, version=version, gate=change.gate)

    return settle(connection, number, gated, timeout_s=timeout_s)


def settle(
    connection: HasCoordinator,
    number: int,
    decide: Decide,
    *,
    timeout_s: float,
    has_come: Callable[[Submission, Submission], bool] = eq,
) -> Changed:
    """Reads a record, decides, and commits on the version that it read; again where somebody was faster.

    Args:
        has_come: of a record that was committed with an unknown outcome, and the one that stands there: that is in it.
    Raises: NotFound, CoordinationUnavailable; what `decide` raises.
    """
    coordinator = connection.coordinator
    if coordinator is None:
        raise CoordinationUnavailable("this needs a connection to ZooKeeper, a gateway does not do it", hint="--zk HOSTS")
    end_s = machine.monotonic() + timeout_s
    mine: tuple[Submission, Submission] | None = None
    while True:
        left_s = end_s - machine.monotonic()
        if left_s <= 0:
            raise CoordinationUnavailable(f"submission {number} could not be changed in time", hint="rmgr doctor; then try again")
        found = coordinator.get(paths.sub(number), timeout_s=left_s).result(left_s + 1)
        if found is None:
            raise NotFound(f"there is no submission {number}", hint="rmgr jobs -a lists those in memory, rmgr history the older ones")
        record = validity.submission(found.data, number)
        if mine is not None and has_come(mine[1], record):
            return Changed(mine[0], record)
        decided = decide(coordinator, record, found.version, left_s)
        if isinstance(decided, str):
            return Changed(record, record, decided)
        made, multi = decided
        match coordinator.commit(multi, timeout_s=left_s).result(left_s + 1):
            case Committed():
                return Changed(record, made)
            case Unknown():
                mine = (record, made)
