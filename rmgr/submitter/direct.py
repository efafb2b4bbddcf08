"""`WorkPort` on ZooKeeper and the data store: in processes that are trusted with both, and in gateways for all others.

An owner of submissions is alive as long as its entry in /submitters exists; the leader leaves its submissions alone until then. A
Submitter that wants a submission waits until that entry is gone, then takes over: record and tail change in one multi, which fences the
old owner.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rmgr.coord import validity
from rmgr.coord.ops import membership
from rmgr.coord.ops.membership import is_owner, take_ownership, taken_over
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed
from rmgr.coord.protocol.ports import Coordinator, SessionState, Store
from rmgr.coord.protocol.records import read_fragment
from rmgr.errors import NotFound, RmgrError
from rmgr.model.block import Fragment
from rmgr.model.line import Ahead, Told
from rmgr.model.node import NodeRecord, SubmitterEntry
from rmgr.model.queue import ClusterSettings
from rmgr.model.submission import Phase
from rmgr.procedures.admission import check_jobs
from rmgr.procedures.bootstrap import require_store
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.story import Bell, Pause, Semaphore, Stories, Story
from rmgr.submitter import submitting
from rmgr.submitter.follower import Believes
from rmgr.submitter.port import KeptListener, Order, Stored, Submitted
from rmgr.submitter.records import ClusterRecords, Gauge, read_stored
from rmgr.submitter.thread import SubmitterThread
from rmgr.submitter.upkeep import Upkeep

if TYPE_CHECKING:
    from rmgr.submitter.handing import Hearing, Lines

#: Pause before the entries of owners are read again after an error (s).
_AGAIN_S = 1.0


class Submitter:
    """The shared parts of a Submitter in one process, however many owners of submissions it serves.

    Args:
        loop: the Submitter's thread. coordinator, store: connected.
        lines: makes the direct lines to Starters; None: no direct lines. believes: whether to accept a fragment heard on one; None = all.
        decode: as of `Follower`.
    """

    def __init__(
        self,
        loop: SubmitterThread,
        coordinator: Coordinator,
        store: Store,
        *,
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
        self.records = ClusterRecords(coordinator)
        self.gauge = Gauge(loop, coordinator)
        self.numbers = submitting.Numbers()
        self.owners = OwnerWatch(self)
        self.pages = Semaphore(2)  #: for followers that read a page and hand it over
        self.session_state = SessionState.LOST
        self._works: list[DirectWork] = []
        self._upkeeps: dict[int, list[Upkeep]] = {}
        self.lines = lines(loop, self._hear) if lines is not None else None
        coordinator.listen(self._hear_session)  # calls at once: a first submission must not take ZooKeeper for lost

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

    def _hear_session(self, state: SessionState) -> None:
        self.session_state = state
        self.post(lambda: self._on_session(state))

    def _on_session(self, state: SessionState) -> None:
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
        self.entry = OwnerEntry(submitter, entry)

    # -- port.WorkPort

    @property
    def session_state(self) -> SessionState:
        return self.submitter.session_state

    @property
    def session_timeout_s(self) -> float:
        return self.submitter.coordinator.session_timeout_s

    def wait_ready(self, timeout_s: float) -> None:
        """See `port.WorkPort`. Does nothing: the maker of the coordinator has waited."""

    def settings(self, *, timeout_s: float = 10.0) -> ClusterSettings:
        return self.submitter.records.settings(timeout_s=timeout_s)

    def nodes(self, *, timeout_s: float = 10.0) -> list[NodeRecord]:
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
        submitter.post(self.entry.want)
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
        return submitting.submit_many(self.submitter.coordinator, orders, deadline_s=machine.monotonic() + timeout_s)

    def read(self, number: int, *, timeout_s: float) -> Stored:
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
        is_resting: bool = False,
    ) -> Upkeep:
        """See `port.WorkPort`. fragment: the first one to deliver. is_resting: nothing is read before `rest` says so."""
        made = Upkeep(self, stored, listener, is_owned=is_owned, wants_ownership=wants_ownership)
        self.submitter.add(made)
        if is_owned or wants_ownership:
            self.entry.want()
        made.rest(is_resting=is_resting)
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
        self.entry.drop()

    # -- from the Submitter

    def on_session(self, state: SessionState) -> None:
        """Hears whether ZooKeeper answers."""
        if state is SessionState.CONNECTED:
            self.entry.keep()
        self._listener(state)

    def _has_room(self, order: Order, timeout_s: float) -> bool:
        """Returns whether an open submission's first blocks have room; else they are sent later, like all others."""
        draft = order.draft
        if draft.max_running or draft.phase is not Phase.OPEN:
            return False
        cap = self.submitter.records.most_pending(draft.queue)
        return self.submitter.gauge.admit_now(draft.queue, len(order.blocks), cap, timeout_s)


# -- owners: their entries, and taking over from one that is gone -------------------------------------------------------------


def entry_of(guid: str) -> SubmitterEntry:
    """Returns the entry of an owner in this process."""
    return SubmitterEntry(guid=guid, host=socket.gethostname(), pid=os.getpid(), since_us=machine.wall_us())


class OwnerEntry:
    """The ephemeral znode of one owner, made with its first submission and again in each new session; two with one guid do no harm."""

    def __init__(self, submitter: Submitter, entry: SubmitterEntry) -> None:
        self._submitter = submitter
        self.entry = entry
        self._stories = Stories(submitter.loop)
        self._wanted = False
        self._session = 0  #: session in which the entry was made
        self._path = ""

    def want(self) -> None:
        """Keeps an entry from now on."""
        self._wanted = True
        self.keep()

    def keep(self) -> None:
        """Makes the entry if this session has none."""
        if self._wanted:
            self._stories.begin(self._make(), key="make")

    def drop(self) -> None:
        """Removes the entry while the session goes on: the leader, or a Submitter that wants them, may have the submissions."""
        self._wanted = False
        if self._path and self._session == self._submitter.coordinator.session_id:
            self._submitter.coordinator.commit(membership.leave(self._path))
        self._path = ""

    def _make(self) -> Story[None]:
        coordinator = self._submitter.coordinator
        while self._wanted and self._submitter.session_state is SessionState.CONNECTED:
            session = coordinator.session_id
            if session == self._session:
                return
            try:
                outcome = yield coordinator.commit(membership.enter(self.entry), timeout_s=5.0)
            except RmgrError:
                outcome = None
            if isinstance(outcome, Committed):
                self._session, self._path = session, outcome.paths[0]
                if not self._wanted:  # dropped meanwhile
                    self.drop()
                return
            yield Pause(self._submitter.jitter(0.5))


class OwnerWatch:
    """Watches which Submitters are alive, once some submission waits for the end of one."""

    def __init__(self, submitter: Submitter) -> None:
        self._submitter = submitter
        self._bell = Bell(submitter.loop)
        self._stories = Stories(submitter.loop)

    def begin(self) -> None:
        """Begins to watch, or looks again."""
        if not self._stories.begin(self._watch(), key="watch"):
            self._bell.ring()

    def look(self) -> None:
        """Reads the entries again, if some submission waits."""
        self._bell.ring()

    def _watch(self) -> Story[None]:
        submitter = self._submitter
        while True:
            try:
                names = yield submitter.coordinator.children(paths.SUBMITTERS, watch=self._bell.ring)
                waiting = [one for one in submitter.upkeeps() if one.wants_ownership]
                wanted = {one.submission.owner for one in waiting}
                there = [f"{paths.SUBMITTERS}/{name}" for name in names or () if paths.entry_guid(name) in wanted]
                found = (yield submitter.coordinator.get_many(there)) if there else ()
            except RmgrError:
                yield Pause(submitter.jitter(_AGAIN_S))
                continue
            # Entries prove which submissions a Submitter owns; a guid alone proves nothing, because everybody can read it.
            living: list[SubmitterEntry] = []
            for path, item in zip(there, found, strict=True):
                with contextlib.suppress(RmgrError):  # not a valid entry
                    living += [validity.decode(item.data, SubmitterEntry, path)] if item is not None else []
            for one in waiting:
                self._decide(one, living)
            yield self._bell.heard()

    def _decide(self, upkeep: Upkeep, living: Sequence[SubmitterEntry]) -> None:
        """Takes a submission over if its owner is gone and it is not complete: the leader ends complete ones."""
        if upkeep.is_over or upkeep.is_owned or any(is_owner(entry, upkeep.submission) for entry in living):
            return
        if upkeep.tail.complete or upkeep.submission.phase in {Phase.CANCELLED, Phase.CLOSED}:
            return
        upkeep.stories.begin(self._take_over(upkeep), key="takeover")

    def _take_over(self, upkeep: Upkeep) -> Story[None]:
        submitter, number, guid = self._submitter, upkeep.number, upkeep.guid
        try:
            record, tail = yield submitter.coordinator.get_many([paths.sub(number), paths.tail(number)])
            if record is None or tail is None:
                upkeep.die(NotFound(f"submission {number} is gone", hint=f"rmgr history {number}"))
                return
            owned = replace(validity.submission(record.data, number), owner=guid)
            grown = taken_over(validity.tail(tail, number), guid, f"{guid[:12]}-over")
            if grown.complete:
                return
            failpoint("submitter.before_take_over")
            outcome = yield submitter.coordinator.commit(take_ownership(owned, record.version, grown, tail.version))
        except RmgrError:
            outcome = None
        if isinstance(outcome, Committed):
            failpoint("submitter.after_take_over")
            upkeep.taken_over(Stored(submission=owned, version=record.version + 1, tail=grown, tail_version=tail.version + 1))
        else:
            submitter.loop.after(submitter.jitter(0.2), self.look)
