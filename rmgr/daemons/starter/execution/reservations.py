"""Cores of a node that a waiting job was promised: the Starter turns them from those of a running job into kept ones, and asks nobody.

`/holds/<node>/r-<job>` names the running jobs whose cores they will be. A job that has ended here frees its cores in `Lanes`, and before
anything else may start they are kept again: what was pulled never gets between, and the COMPLETE that deletes the block is all that is
committed. A new leader, or this node after a restart, sees by the same block that the cores are the waiting job's. A promise goes with
the commit that places its job: what was kept stays kept until the START, or the hold, that came with it is known.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import RmgrError, WrongCluster
from rmgr.model.base.resources import Needs
from rmgr.model.tasks.placing import Reserved, run_label
from rmgr.runtime import machine
from rmgr.runtime.logger import Log

if TYPE_CHECKING:
    from rmgr.daemons.starter.core.blocks import ClaimedBlock
    from rmgr.daemons.starter.core.doors import NodeOrders, TreeAccess
    from rmgr.daemons.starter.execution.lanes import Lanes
    from rmgr.model.tasks.block import BlockKey

#: Pause after a promise could not be read; how soon it is looked again whether what came in its place is known.
_PAUSE_S, _LOOK_S = 0.5, 0.01


@dataclass(slots=True, kw_only=True, eq=False)
class _Promise:
    """To one waiting job. met: of its running jobs, those that were seen here; gone: those that have ended."""

    name: str
    submission: int
    index: int
    record: Reserved | None = None
    met: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    is_reading: bool = False
    is_stale: bool = True  #: it is to be read
    is_bad: bool = False  #: what stands there is no promise: nothing is kept for it
    is_leaving: bool = False  #: its job was placed, or waits no more
    retry_s: float = -math.inf


class ReservingNode(Protocol):
    """The node whose cores are promised."""

    name: str
    blocks: dict[BlockKey, ClaimedBlock]
    lanes: Lanes

    @property
    def orders(self) -> NodeOrders: ...


class HeldHere(Protocol):
    """A part of a job that runs elsewhere, on this node."""

    @property
    def is_ready(self) -> bool: ...

    @property
    def is_too_large(self) -> bool: ...


class HoldsHere(Protocol):
    """The parts that jobs with another head have on this node."""

    def parts_of(self, submission: int, index: int) -> Sequence[HeldHere]:
        """Of one job."""
        ...

    def has(self, name: str) -> bool:
        """It stands."""
        ...


class JobsHere(Protocol):
    """The placed jobs of this node."""

    @property
    def holds(self) -> HoldsHere: ...

    def is_taking(self, submission: int) -> bool:
        """A job of it is about to be the node's own."""
        ...


class Reservations:
    """All promises on one node. is_owed: one lacks what something else still has. is_unsure: one has not been read."""

    def __init__(self, node: ReservingNode, jobs: JobsHere, shared: TreeAccess, *, log: Log) -> None:
        self._node = node
        self._jobs = jobs
        self._shared = shared
        self._log = log
        self._promises: dict[str, _Promise] = {}
        self._looks = False
        self.is_owed = self.is_unsure = False

    def seen(self, names: Collection[str]) -> None:
        """What stands below `/holds/<node>`."""
        standing = dict(paths.reserved_in(names))
        for name, promise in self._promises.items():
            promise.is_leaving = name not in standing
            promise.is_stale = not promise.is_leaving  # one of the same name may have taken its place
        for name, (submission, index) in standing.items():
            if name not in self._promises:
                self._promises[name] = _Promise(name=name, submission=submission, index=index)

    def lose(self) -> None:
        """The node was fenced: what stands is read again."""
        for name in self._promises:
            self._node.lanes.keep(name, 0, 0)
        self._promises.clear()
        self.is_owed = self.is_unsure = False

    def settle(self) -> None:
        """Keeps what has become free for those to whom it was promised. Cost: O(blocks + holds) while something is promised."""
        if not self._promises:
            return
        self._let_go()
        here = self._runs_here()
        is_owed = False
        for promise in self._promises.values():
            if promise.is_stale and not promise.is_reading and machine.monotonic() >= promise.retry_s:
                self._read(promise)
            if promise.record is not None and not promise.is_bad:  # of one that leaves, too: what it waits for may end only now
                is_owed = not self._node.lanes.keep(promise.name, *self._wanted(promise, promise.record, here)) or is_owed
        self.is_owed = is_owed
        self.is_unsure = any(one.record is None and not one.is_bad for one in self._promises.values())

    def _let_go(self) -> None:
        """What was kept for jobs that are placed by now is free, for them first: they stand before all that was pulled."""
        jobs = self._jobs
        for promise in [promise for promise in self._promises.values() if promise.is_leaving]:
            parts = jobs.holds.parts_of(promise.submission, promise.index)
            if not self._node.orders.is_settled or jobs.is_taking(promise.submission):
                self._look_later()
            elif all(part.is_ready or part.is_too_large for part in parts):
                self._end(promise)

    def make_room(self, submission: int, index: int) -> None:
        """A part of the job, which runs elsewhere, takes its cores now: those that were kept for it are free."""
        for promise in list(self._promises.values()):
            if promise.is_leaving and (promise.submission, promise.index) == (submission, index):
                self._end(promise)

    def _end(self, promise: _Promise) -> None:
        del self._promises[promise.name]
        self._node.lanes.keep(promise.name, 0, 0)
        self._log.info("reservation_gone", name=promise.name)

    def _look_later(self) -> None:
        if not self._looks:
            self._looks = True
            self._shared.after(_LOOK_S, self._look)

    def _look(self) -> None:
        self._looks = False
        self._shared.wake()

    def _runs_here(self) -> set[str]:
        """Jobs that have cores of this node, or are about to."""
        blocks = (block for block in self._node.blocks.values() if block.is_placed and (block.ready or block.live))
        return {run_label(block.key.submission, block.key.first, block.key.attempt) for block in blocks}

    def _wanted(self, promise: _Promise, record: Reserved, here: set[str]) -> tuple[int, int, Needs]:
        """Cores, MiB and pieces of other resources that are its job's by now."""
        jobs, is_settled = self._jobs, self._node.orders.is_settled
        cores = total = 0
        for run, count in record.shares:
            total += count
            if run in here or jobs.holds.has(run):
                promise.met.add(run)
                promise.gone.discard(run)
            elif run not in promise.gone:
                # One that was never seen here has ended, or has not come: the START of it may be on the way.
                if run in promise.met or not run or (is_settled and not jobs.is_taking(int(run.partition(".")[0]))):
                    promise.gone.add(run)
                else:
                    self._look_later()
            cores += count if run in promise.gone else 0
        if not total:
            return cores, 0, ()
        needs = tuple((name, count * cores // total) for name, count in record.resources)
        return cores, record.memory_mib * cores // total, needs

    # -- reading

    def _read(self, promise: _Promise) -> None:
        promise.is_reading, promise.is_stale = True, False
        future = self._shared.coordinator.get(f"{paths.hold(self._node.name)}/{promise.name}")
        future.add_done_callback(lambda done: self._shared.post(partial(self._arrived, promise, done)))

    def _arrived(self, promise: _Promise, done: Future[Stamped | None]) -> None:
        promise.is_reading = False
        if self._promises.get(promise.name) is not promise:
            return
        try:
            found = done.result()
            if found is not None:  # else the list that does not have it is on the way
                promise.record = record = decode_record(found.data, Reserved, promise.name)
                promise.is_bad = len(paths.holds_in(run for run, _ in record.shares if run)) < sum(bool(run) for run, _ in record.shares)
        except RmgrError as error:
            self._log.warning("reservation_not_readable", name=promise.name, error=error.message)
            promise.is_bad = isinstance(error, WrongCluster)
            promise.is_stale, promise.retry_s = not promise.is_bad, machine.monotonic() + _PAUSE_S
            self._shared.after(_PAUSE_S, self._shared.wake)
        self._shared.wake()
