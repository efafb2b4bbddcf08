"""`WorkPort` on ZooKeeper and the data store: in processes that are trusted with both, and in gateways for all others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rmgr.coord.protocol.ports import Coordinator, SessionState, Store
from rmgr.coord.protocol.records import read_fragment
from rmgr.model.cluster.node import NodeRecord, SubmitterEntry
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.model.tasks.block import Fragment
from rmgr.model.tasks.submission import Phase
from rmgr.model.wire.line import Ahead, Told
from rmgr.procedures.admission import check_jobs
from rmgr.procedures.bootstrap import require_store
from rmgr.runtime import machine
from rmgr.submitter import submitting
from rmgr.submitter.follower import Believes
from rmgr.submitter.ownership import OwnerEntry, OwnerWatch
from rmgr.submitter.port import KeptListener, Order, Stored, Submitted
from rmgr.submitter.records import ClusterRecords, Gauge, read_stored
from rmgr.submitter.thread import SubmitterThread
from rmgr.submitter.upkeep import Upkeep

if TYPE_CHECKING:
    from rmgr.submitter.handing import Hearing, Lines


class Submitter:
    """The shared parts of a Submitter in one process, however many owners of submissions it serves.

    Args:
        loop: the Submitter's thread. coordinator, store: connected.
        cap_blocks: overrides the queues' `max_pending_blocks` (tests).
        lines: makes the direct lines to Starters; None: no direct lines. believes: whether to accept a fragment heard on one; None = all.
        decode: as of `Follower`.
    """

    def __init__(
        self,
        loop: SubmitterThread,
        coordinator: Coordinator,
        store: Store,
        *,
        cap_blocks: int | None = None,
        lines: Callable[[SubmitterThread, Hearing], Lines] | None = None,
        believes: Believes | None = None,
        decode: Callable[[bytes], Fragment] = read_fragment,
    ) -> None:
        self.loop = loop
        self.post, self.after, self.io, self.jitter = loop.post, loop.after, loop.io, loop.jitter
        self.coordinator = coordinator
        self.store = store
        self.believes = believes
        self.decode = decode
        self.records = ClusterRecords(coordinator, cap_blocks=cap_blocks)
        self.gauge = Gauge(loop, coordinator)
        self.numbers = submitting.Numbers()
        self.owners = OwnerWatch(self)
        self.session_state = SessionState.LOST
        self._works: list[DirectWork] = []
        self._upkeeps: dict[int, list[Upkeep]] = {}
        self.lines = lines(loop, self._hear) if lines is not None else None
        coordinator.listen(lambda state: loop.post(lambda: self._on_session(state)))

    def work(self, entry: SubmitterEntry, listener: Callable[[SessionState], None] = lambda _: None) -> DirectWork:
        """Makes the `WorkPort` of the owner that `entry` describes. listener: hears of the session on the Submitter's thread."""
        made = DirectWork(self, entry, listener)
        self.post(lambda: self._works.append(made))
        return made

    def upkeeps(self) -> Iterator[Upkeep]:
        """Yields all submissions that are looked after or followed. On the Submitter's thread."""
        for upkeeps in list(self._upkeeps.values()):
            yield from list(upkeeps)

    def add(self, upkeep: Upkeep) -> None:
        """Adds an upkeep that begins."""
        self._upkeeps.setdefault(upkeep.number, []).append(upkeep)

    def forget(self, upkeep: Upkeep) -> None:
        """Removes an upkeep that is over."""
        upkeeps = self._upkeeps.get(upkeep.number)
        if upkeeps is not None and upkeep in upkeeps:
            upkeeps.remove(upkeep)
            if not upkeeps:
                del self._upkeeps[upkeep.number]

    def drop(self, work: DirectWork) -> None:
        """Removes the work of an owner that has gone."""
        if work in self._works:
            self._works.remove(work)

    def _hear(self, message: Ahead | Told) -> None:
        """Takes what a Starter reports on a direct line about its commits."""
        for upkeep in list(self._upkeeps.get(message.submission, ())):
            upkeep.heard(message)

    def _on_session(self, state: SessionState) -> None:
        self.session_state = state
        for work in list(self._works):
            work.on_session(state)
        if state is SessionState.CONNECTED:  # hints may have been lost
            for upkeep in self.upkeeps():
                upkeep.nudge()
            self.owners.look()


class DirectWork:
    """`port.WorkPort` for one owner of submissions. Made by `Submitter.work`."""

    def __init__(self, submitter: Submitter, entry: SubmitterEntry, listener: Callable[[SessionState], None]) -> None:
        self.submitter = submitter
        self.guid = entry.guid
        self._listener = listener
        self._entry = OwnerEntry(submitter, entry)

    # -- port.WorkPort

    @property
    def session_state(self) -> SessionState:
        """See `port.WorkPort`."""
        return self.submitter.session_state

    @property
    def session_timeout_s(self) -> float:
        """See `port.WorkPort`."""
        return self.submitter.coordinator.session_timeout_s

    def wait_ready(self, timeout_s: float) -> None:
        """See `port.WorkPort`. Does nothing: the maker of the coordinator has waited."""

    def settings(self, *, timeout_s: float = 10.0) -> ClusterSettings:
        """See `port.WorkPort`."""
        return self.submitter.records.settings(timeout_s=timeout_s)

    def nodes(self, *, timeout_s: float = 10.0) -> list[NodeRecord]:
        """See `port.WorkPort`."""
        return self.submitter.records.nodes(timeout_s=timeout_s)

    def submit(self, order: Order, *, timeout_s: float, is_repeat: bool = False) -> Submitted:
        """See `port.WorkPort`. is_repeat: the order may have been carried out elsewhere."""
        submitter, deadline_s = self.submitter, machine.monotonic() + timeout_s
        is_connected = submitter.session_state is SessionState.CONNECTED
        if not order.is_owned:
            return submitting.submit(
                submitter.coordinator, order, owner="", deadline_s=deadline_s, numbers=submitter.numbers, is_repeat=is_repeat
            )
        require_store(submitter.store)
        if not order.draft.token and is_connected:
            check_jobs(submitter.coordinator, self.settings().limits, order.draft.user)
        submitter.post(self._entry.want)
        self.settings(timeout_s=timeout_s)
        if order.blocks and not self._has_room(order, timeout_s):
            order = replace(order, blocks=(), tasks=0, complete=False)
        # Without a connection, reading first finds that out.
        return submitting.submit(
            submitter.coordinator,
            order,
            owner=self.guid,
            deadline_s=deadline_s,
            numbers=submitter.numbers if is_connected else None,
            is_repeat=is_repeat,
        )

    def submit_many(self, orders: Sequence[Order], *, timeout_s: float) -> list[Submitted]:
        """See `port.WorkPort`."""
        return submitting.submit_many(self.submitter.coordinator, orders, deadline_s=machine.monotonic() + timeout_s)

    def read(self, number: int, *, timeout_s: float) -> Stored:
        """See `port.WorkPort`."""
        self.settings(timeout_s=timeout_s)  # reads the caps of queues, for later growths
        return read_stored(self.submitter.coordinator, number, timeout_s=timeout_s)

    def keep(
        self,
        stored: Stored,
        listener: KeptListener,
        *,
        is_owned: bool,
        wants_ownership: bool = False,
        is_fresh: bool = False,
        fragment: int = 0,
    ) -> Upkeep:
        """See `port.WorkPort`. fragment: the first one to deliver."""
        made = Upkeep(self, stored, listener, is_owned=is_owned, wants_ownership=wants_ownership)
        self.submitter.add(made)
        if is_owned or wants_ownership:
            self._entry.want()
        made.start(is_fresh=is_fresh, fragment=fragment)
        if wants_ownership:
            self.submitter.owners.begin()
        return made

    def close(self, *, timeout_s: float) -> None:
        """See `port.WorkPort`. On the Submitter's thread, or after it has ended."""
        del timeout_s  # it waits for nothing
        self.end(0.0)

    def end(self, lingers_s: float) -> None:
        """Stops all upkeeps; the owner counts as alive for another `lingers_s`."""
        for upkeep in self.submitter.upkeeps():
            if upkeep.work is self:
                upkeep.leave()
        self.submitter.drop(self)
        if lingers_s > 0:
            self.submitter.after(lingers_s, self.disown)
        else:
            self.disown()

    def disown(self) -> None:
        """Ends the owner's life at once, even during `lingers_s`. Idempotent."""
        self._entry.drop()

    # -- from the Submitter

    def on_session(self, state: SessionState) -> None:
        """Hears whether ZooKeeper answers."""
        if state is SessionState.CONNECTED:
            self._entry.keep()
        self._listener(state)

    def _has_room(self, order: Order, timeout_s: float) -> bool:
        """Returns whether an open submission's first blocks have room; else they are sent later, like all others."""
        draft = order.draft
        if draft.max_running or draft.phase is not Phase.OPEN:
            return False
        cap = self.submitter.records.most_pending(draft.queue)
        return self.submitter.gauge.admit_now(draft.queue, len(order.blocks), cap, timeout_s)
