"""The Submitter engine: looks after all submissions of this process on one thread.

Callers add tasks and wait. Answers of ZooKeeper, watches, timers and rows from the store come in as jobs of the thread
(`thread.py`), which alone changes the state.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from rmgr.client.identity.authentic import Authenticity
from rmgr.client.identity.signing import Signer
from rmgr.client.ports import FirstTasks, Listener
from rmgr.client.submission.gauge import Gauge
from rmgr.client.submission.handle import SubmissionHandle
from rmgr.client.submission.packing import first_blocks
from rmgr.client.submission.sender import Outlet
from rmgr.client.submission.stored import StoredSubmission
from rmgr.client.submitter import submitting
from rmgr.client.submitter.entry import OwnerEntry
from rmgr.client.submitter.owners import OwnerWatch
from rmgr.client.submitter.records import ClusterRecords
from rmgr.client.submitter.thread import SubmitterThread
from rmgr.client.values.values import Values
from rmgr.coord.decisions.gating import Doer
from rmgr.coord.ops.work import Block
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.ports import Coordinator, SessionState, Store
from rmgr.coord.validity import records as validity
from rmgr.errors import NotConnected, NotFound, RmgrError
from rmgr.model.cluster.node import NodeRecord
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.model.tasks.block import MOST_TASKS
from rmgr.model.tasks.request import indices_of, ranges_of
from rmgr.model.tasks.submission import Phase, Submission, Terms
from rmgr.procedures import cancelling
from rmgr.procedures.bootstrap import require_store
from rmgr.procedures.caps import check_jobs
from rmgr.procedures.snapshot import fetch
from rmgr.runtime import machine

if TYPE_CHECKING:
    from rmgr.client.submitter.lines import Hearing, Lines
    from rmgr.model.wire.line import Ahead, Told
    from rmgr.procedures.deeds import Deeds

_LOG = logging.getLogger("rmgr.submitter")


class Engine:
    """`ports.SubmitterPort` in this process.

    Args:
        coordinator, store: connected; closed with the engine.
        cap_blocks: overrides the queues' `max_pending_blocks` (tests).
        signer, authenticity, deeds: sign what is sent, judge what comes back and whose values are (secured clusters).
        lines: makes the direct lines to Starters; None: there are none.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        store: Store,
        *,
        cap_blocks: int | None = None,
        signer: Signer | None = None,
        authenticity: Authenticity | None = None,
        deeds: Deeds | None = None,
        lines: Callable[[SubmitterThread, Hearing], Lines] | None = None,
    ) -> None:
        self.signer = signer
        self.coordinator = coordinator
        self.store = store
        self.pid = os.getpid()
        self.values = Values(store, coordinator, deeds)
        self.thread = thread = SubmitterThread(coordinator, store)
        self.guid = thread.guid
        self._authenticity = authenticity
        self._gauge = Gauge(thread)
        self._outlet = Outlet(gauge=self._gauge, signer=signer, values=self.values)
        self._records = ClusterRecords(coordinator, cap_blocks=cap_blocks)
        self._handles: dict[int, list[SubmissionHandle]] = {}
        self._owners = OwnerWatch(thread, self._all)
        self._entry = OwnerEntry(thread)
        self._numbers = submitting.Numbers()
        self._state = SessionState.LOST
        self._closed = threading.Event()
        self.lines = lines(thread, self._hear) if lines is not None else None
        thread.start()
        coordinator.listen(lambda state: thread.post(lambda: self._on_session(state)))

    # -- ports.SubmitterPort

    @property
    def cluster(self) -> Engine:
        """See `ports.SubmitterPort`."""
        return self

    @property
    def user(self) -> str:
        """See `ports.ClusterView`."""
        return self.signer.user if self.signer is not None else ""

    @property
    def session_state(self) -> SessionState:
        """See `ports.ClusterView`."""
        return self._state

    def settings(self, *, timeout_s: float = 10.0) -> ClusterSettings:
        """See `ports.ClusterView`."""
        self.check_usable()
        return self._records.settings(timeout_s=timeout_s)

    def nodes(self, *, timeout_s: float = 10.0) -> list[NodeRecord]:
        """See `ports.ClusterView`."""
        self.check_usable()
        return self._records.nodes(timeout_s=timeout_s)

    def open(self, draft: Submission, listener: Listener, *, timeout_s: float, first: FirstTasks | None = None) -> SubmissionHandle:
        """See `ports.SubmitterPort`."""
        self.check_usable()
        require_store(self.store)
        if not draft.token and self._state is SessionState.CONNECTED:
            check_jobs(self.coordinator, self._records.settings().limits, self.user or draft.user)
        self.thread.post(self._entry.want)
        deadline_s = machine.monotonic() + timeout_s
        blocks = self._first_blocks(draft, first, timeout_s) if first is not None else []
        made = submitting.submit(
            self.coordinator,
            draft,
            owner=self.guid,
            deadline_s=deadline_s,
            blocks=blocks,
            tasks=len(first.payloads) if first is not None and blocks else 0,
            complete=first is not None and first.complete and bool(blocks),
            signer=self.signer,
            numbers=self._numbers if self._state is SessionState.CONNECTED else None,  # else a reading finds out first that nobody answers
        )
        handle = self._handle(made, listener, owned=made.created, held=bool(draft.max_running))
        handle.wants_ownership = not made.created
        if first is not None:
            first.made(handle)
        self._begin(handle, fresh=made.created)
        if not made.created:
            self.thread.post(self._owners.begin)
        elif first is not None and not blocks:
            handle.add(first.spec, first.payloads)
            if first.complete:
                handle.complete()
        return handle

    def attach(self, number: int, listener: Listener, *, own: bool, timeout_s: float) -> SubmissionHandle:
        """See `ports.SubmitterPort`."""
        self.check_usable()
        record, tail = fetch(
            [paths.sub(number), paths.tail(number)], lambda path: self.coordinator.get(path, timeout_s=timeout_s), timeout_s=timeout_s + 1
        )
        if record is None or tail is None:
            raise NotFound(f"there is no submission {number}", hint="rmgr jobs -a lists those in memory, rmgr history the older ones")
        submission = validity.submission(record.data, number)
        stored = StoredSubmission(
            submission=submission, version=record.version, tail=validity.tail(tail, number), tail_version=tail.version
        )  # fmt: skip
        handle = self._handle(stored, listener, owned=False, held=bool(submission.max_running))
        signer = self.signer
        if own and signer is not None:
            signer.publish(self.coordinator, timeout_s=timeout_s)
            own = signer.user == submission.user  # nobody can sign tasks for another user
        handle.wants_ownership = own
        self._begin(handle, fresh=False)
        if own:
            self.thread.post(self._entry.want)
            self.thread.post(self._owners.begin)
        return handle

    def cancel_tasks(self, number: int, indices: Sequence[int], *, reason: str, running: bool, timeout_s: float) -> list[int]:
        """See `ports.SubmitterPort`."""
        self.check_usable()
        deadline_s = machine.monotonic() + timeout_s
        ended = cancelling.cancel_tasks(
            self.coordinator, number, ranges_of(indices), detail=reason, by=self.user, running=running, deadline_s=deadline_s
        )
        return indices_of(ended, MOST_TASKS)

    def update(self, number: int, terms: Terms, *, timeout_s: float) -> str:
        """See `ports.SubmitterPort`."""
        from rmgr.procedures.updating import update_submission

        self.check_usable()
        sign = None
        if self.signer is not None:
            self.signer.publish(self.coordinator, timeout_s=timeout_s)
            sign = self.signer.amendment
        doer = Doer(name=self.user, now_us=machine.wall_us())
        return update_submission(self, number, terms, doer=doer, sign=sign, timeout_s=timeout_s).unchanged

    def call_soon(self, callback: Callable[[], None]) -> None:
        """See `ports.SubmitterPort`."""
        self.thread.call_soon(callback)

    def close(self, *, timeout_s: float = 5.0, sends: bool = False) -> None:
        """See `ports.SubmitterPort`. Idempotent."""
        if self._closed.is_set():
            return
        self._closed.set()
        if os.getpid() != self.pid:
            return  # a forked child: threads and sockets are the parent's
        if sends and not self.thread.is_current:
            self._flush(timeout_s)
        self.thread.post(self._end_handles)
        self.thread.stop(timeout_s)
        if self.lines is not None:
            self.lines.close()
        self.thread.release()
        self.coordinator.close(timeout_s=timeout_s)
        self.store.close()

    def check_usable(self) -> None:
        """Raises NotConnected after `close`, and in a forked child (threads and sockets do not survive a fork)."""
        if os.getpid() != self.pid:
            raise NotConnected(
                "this connection belongs to the parent process and cannot be used after a fork", hint="call rmgr.connect() in this process"
            )
        if self._closed.is_set():
            raise NotConnected("this connection was closed", hint="call rmgr.connect() again")

    # -- handle.HandleKeeper

    def wake(self, handle: SubmissionHandle) -> None:
        """See `handle.HandleKeeper`."""
        self.thread.wake(handle.send, handle)

    def forget(self, handle: SubmissionHandle) -> None:
        """See `handle.HandleKeeper`."""
        handles = self._handles.get(handle.number)
        if handles is not None and handle in handles:
            handles.remove(handle)
            if not handles:
                del self._handles[handle.number]

    def look_at_owners(self) -> None:
        """See `handle.HandleKeeper`."""
        self._owners.look()

    # -- inside

    def _hear(self, message: Ahead | Told) -> None:
        """A Starter says on a direct line what it commits."""
        for handle in self._handles.get(message.submission, ()):
            handle.heard(message)

    def _handle(self, stored: StoredSubmission, listener: Listener, *, owned: bool, held: bool) -> SubmissionHandle:
        return SubmissionHandle(
            self.thread,
            self,
            stored,
            listener,
            owned=owned,
            held=held,
            pending_cap=self._most_pending(stored.submission.queue),
            outlet=self._outlet,
            settings=self._records,
            lines=self.lines,
            authenticity=self._authenticity,
        )

    def _begin(self, handle: SubmissionHandle, *, fresh: bool) -> None:
        def begin() -> None:
            self._handles.setdefault(handle.number, []).append(handle)
            handle.start(fresh=fresh)

        self.thread.post(begin)

    def _all(self) -> list[SubmissionHandle]:
        return [handle for handles in self._handles.values() for handle in handles]

    def _flush(self, timeout_s: float) -> None:
        end_s = machine.monotonic() + timeout_s
        owned: Future[list[SubmissionHandle]] = Future()
        self.thread.post(lambda: owned.set_result([handle for handle in self._all() if handle.owned]))
        try:
            for handle in machine.result(owned, timeout_s):
                with contextlib.suppress(RmgrError):  # the end of the handle raises it where its tasks are waited for
                    handle.flush(max(0.0, end_s - machine.monotonic()))
        except TimeoutError:
            _LOG.warning("not_flushed: the Submitter is busy")

    def _end_handles(self) -> None:
        for handle in self._all():
            lost = f" as far as it was sent: tasks from {handle.number}_{handle.first_unsent} on may never run" if handle.has_unsent else ""
            handle.die(NotConnected(f"the connection was closed; submission {handle.number} goes on without it{lost}"))

    def _on_session(self, state: SessionState) -> None:
        self._state = state
        if state is SessionState.CONNECTED:
            self._entry.keep()
            for handle in self._all():
                handle.reconnected()
            self._owners.reconnected()

    def _first_blocks(self, draft: Submission, first: FirstTasks, timeout_s: float) -> list[Block]:
        """Blocks that go with the SUBMIT. None: the tasks are sent afterwards, as all others."""
        if draft.max_running or draft.phase is not Phase.OPEN:
            return []
        blocks = first_blocks(draft, first.spec, first.payloads) or []
        has_room = self._gauge.admit_now(draft.queue, len(blocks), self._most_pending(draft.queue), timeout_s) if blocks else False
        return blocks if has_room else []

    def _most_pending(self, queue: str) -> int:
        self.check_usable()
        return self._records.most_pending(queue)
