"""The Submitter engine: one thread and a mailbox that look after all submissions of this process.

Callers add tasks and wait; answers of ZooKeeper, watches, timers and rows from the store come in as jobs through the
mailbox, and the thread alone changes the state. The same engine is the library's and the gateway's.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rmgr.client.identity.authentic import Authenticity
from rmgr.client.identity.signing import Signer
from rmgr.client.ports import FirstTasks, Listener
from rmgr.client.submission.gauge import Gauge
from rmgr.client.submission.handle import SubmissionHandle
from rmgr.client.submission.packing import first_blocks
from rmgr.client.submitter import submitting
from rmgr.client.submitter.entry import OwnerEntry
from rmgr.client.values.values import Values
from rmgr.coord.ops.owner import is_owner
from rmgr.coord.ops.work import Block
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.ports import Coordinator, SessionState, Store
from rmgr.coord.validity import records as validity
from rmgr.errors import NotConnected, NotFound, RmgrError
from rmgr.model.cluster.node import NodeRecord, SubmitterEntry
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.model.tasks.submission import Phase, Submission
from rmgr.procedures import cancelling
from rmgr.procedures.bootstrap import require_store
from rmgr.procedures.snapshot import fetch
from rmgr.runtime import loop, machine
from rmgr.runtime.mailbox import Mailbox

if TYPE_CHECKING:
    from rmgr.client.submitter.lines import Lines
    from rmgr.model.wire.line import Ahead, Told
    from rmgr.procedures.deeds import Deeds

_LOG = logging.getLogger("rmgr.submitter")
Job = Callable[[], None]

#: How old what is known of queues and nodes may be.
FRESH_S = 5.0


class Engine:
    """`ports.SubmitterPort` in this process.

    Args:
        coordinator, store: connected; closed with the engine.
        cap_blocks: overrides the queues' `max_pending_blocks` (tests).
        signer, authenticity, deeds: sign what is sent, judge what comes back and whose values are (secured clusters).
        lines: makes the direct lines to Starters; None: there are none.
    """

    commit_timeout_s = 10.0

    def __init__(
        self,
        coordinator: Coordinator,
        store: Store,
        *,
        cap_blocks: int | None = None,
        signer: Signer | None = None,
        authenticity: Authenticity | None = None,
        deeds: Deeds | None = None,
        lines: Callable[[Engine], Lines] | None = None,
    ) -> None:
        self.signer = signer
        self.authenticity = authenticity
        self.coordinator = coordinator
        self.store = store
        self.guid = machine.guid()
        self.pid = os.getpid()
        self.gauge = Gauge(self)
        self.values = Values(store, coordinator, deeds)
        self.known_settings = ClusterSettings()
        self._cap_blocks = cap_blocks
        self.mailbox: Mailbox[Job] = Mailbox()
        self._handles: dict[int, list[SubmissionHandle]] = {}
        self._entry = OwnerEntry(self)
        self._numbers = submitting.Numbers()
        self._state = SessionState.LOST
        self._listeners: list[Callable[[SessionState], None]] = []
        self._cache: dict[str, tuple[float, Any]] = {}
        self._cache_lock = threading.Lock()
        self._io: Executor | None = None
        self._callbacks: Executor | None = None
        self._pools_lock = threading.Lock()
        self._watching_owners = False
        self._closed = threading.Event()
        self._thread = machine.Thread(target=loop.run, args=(self,), name="rmgr-submitter", daemon=True)
        self.lines = lines(self) if lines is not None else None
        self._thread.start()
        coordinator.listen(lambda state: self.post(lambda: self._on_session(state)))

    # -- ports.SubmitterPort

    @property
    def user(self) -> str:
        """See `ports.SubmitterPort`."""
        return self.signer.user if self.signer is not None else ""

    @property
    def session_state(self) -> SessionState:
        """What the coordination service said last."""
        return self._state

    def listen(self, listener: Callable[[SessionState], None]) -> None:
        """See `ports.SubmitterPort`."""

        def add() -> None:
            self._listeners.append(listener)
            listener(self._state)

        self.post(add)

    def settings(self, *, timeout_s: float = 10.0) -> ClusterSettings:
        """See `ports.SubmitterPort`."""
        return self._fresh("settings", lambda: self._read_settings(timeout_s))  # type: ignore[no-any-return]

    def nodes(self, *, timeout_s: float = 10.0) -> list[NodeRecord]:
        """See `ports.SubmitterPort`."""
        return self._fresh("nodes", lambda: self._read_nodes(timeout_s))  # type: ignore[no-any-return]

    def open(self, draft: Submission, listener: Listener, *, timeout_s: float, first: FirstTasks | None = None) -> SubmissionHandle:
        """See `ports.SubmitterPort`."""
        self.check_usable()
        require_store(self.store)
        self.post(self._entry.want)
        deadline_s = machine.monotonic() + timeout_s
        blocks = self._first_blocks(draft, first, timeout_s) if first is not None else []
        made = submitting.submit(
            self.coordinator,
            draft,
            owner=self.guid,
            deadline_s=deadline_s,
            blocks=lambda number: [(replace(key, submission=number), data) for key, data in blocks],
            tasks=len(first.payloads) if first is not None and blocks else 0,
            complete=first is not None and first.complete and bool(blocks),
            signer=self.signer,
            numbers=self._numbers if self._state is SessionState.CONNECTED else None,  # else a reading tells first that nobody answers
        )
        handle = SubmissionHandle(
            self,
            made.submission,
            made.version,
            made.tail,
            made.tail_version,
            listener,
            owned=made.created,
            held=bool(draft.max_running),
            pending_cap=self._cap(made.submission.queue),
        )
        handle.wants_ownership = not made.created
        if first is not None:
            first.made(handle)
        self._begin(handle, fresh=made.created)
        if not made.created:
            self.post(self._watch_owners)
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
        handle = SubmissionHandle(
            self,
            submission,
            record.version,
            validity.tail(tail, number),
            tail.version,
            listener,
            owned=False,
            held=bool(submission.max_running),
            pending_cap=self._cap(submission.queue),
        )
        signer = self.signer
        if own and signer is not None:
            signer.publish(self.coordinator, timeout_s=timeout_s)
            own = signer.user == submission.user  # nobody can sign tasks for another user
        handle.wants_ownership = own
        self._begin(handle, fresh=False)
        if own:
            self.post(self._entry.want)
            self.post(self._watch_owners)
        return handle

    def cancel_tasks(self, number: int, indices: Sequence[int], *, reason: str, running: bool, timeout_s: float) -> list[int]:
        """See `ports.SubmitterPort`."""
        self.check_usable()
        return cancelling.cancel_tasks(
            self.coordinator, number, indices, detail=reason, running=running, deadline_s=machine.monotonic() + timeout_s
        )

    def call_soon(self, callback: Job) -> None:
        """See `ports.SubmitterPort`."""
        with self._pools_lock:
            if self._callbacks is None:
                self._callbacks = machine.pool(1, "rmgr-callbacks")
            pool = self._callbacks
        try:
            pool.submit(callback)
        except RuntimeError:  # the interpreter is going down: nobody else will call it
            callback()

    def close(self, *, timeout_s: float = 5.0, sends: bool = False) -> None:
        """See `ports.SubmitterPort`. Idempotent."""
        if self._closed.is_set():
            return
        self._closed.set()
        if os.getpid() != self.pid:
            return  # a forked child: threads and sockets are the parent's
        if sends and threading.current_thread() is not self._thread:
            self._flush(timeout_s)
        self.post(self._end_handles)
        self.mailbox.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
        if self.lines is not None:
            self.lines.close()
        for pool in (self._io, self._callbacks):
            if pool is not None:
                pool.shutdown(wait=False)
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

    # -- doors.SubmitterHost

    def post(self, job: Job) -> None:
        """Runs `job` on the Submitter's thread, soon."""
        self.mailbox.put(job)

    def after(self, delay_s: float, job: Job) -> Any:
        """Runs `job` on the Submitter's thread later."""
        return self.mailbox.after(delay_s, job)

    def io(self, job: Callable[[], Any]) -> Future[Any]:
        """Runs `job` where waiting for the store holds nothing else up."""
        with self._pools_lock:
            if self._io is None:
                self._io = machine.pool(2, "rmgr-store")
            pool = self._io
        try:
            return pool.submit(job)
        except RuntimeError as error:  # the interpreter is going down
            failed: Future[Any] = Future()
            failed.set_exception(NotConnected(str(error)))
            return failed

    def jitter(self, seconds: float) -> float:
        """0.75 to 1.25 of it."""
        return seconds * machine.uniform(0.75, 1.25)

    # -- for handles

    def wake(self, handle: SubmissionHandle) -> None:
        """A handle has something to send."""
        self.mailbox.wake(handle.send, handle)

    def forget(self, handle: SubmissionHandle) -> None:
        """A handle is over."""
        handles = self._handles.get(handle.number)
        if handles is not None and handle in handles:
            handles.remove(handle)
            if not handles:
                del self._handles[handle.number]

    def heard(self, message: Ahead | Told) -> None:
        """A Starter says on a direct line what it commits."""
        for handle in self._handles.get(message.submission, ()):
            handle.heard(message)

    def look_at_owners(self) -> None:
        """Reads which Submitters live, for handles that wait for an owner's end; again whenever one comes or goes."""
        asked = self.coordinator.children(paths.SUBMITTERS, watch=lambda: self.post(self.look_at_owners))
        asked.add_done_callback(lambda _: self.post(lambda: self._owners(asked)))

    # -- inside

    def wait_s(self) -> None:
        """See `runtime.loop.Owner`."""

    def turn(self, message: Job | None) -> bool:
        """See `runtime.loop.Owner`. Closing the mailbox ends the loop."""
        try:
            if message is not None:
                message()
        except Exception:  # noqa: BLE001 - the loop boundary: a defect in one submission must not end the others
            _LOG.exception("submitter_job_failed")
        return True

    def _begin(self, handle: SubmissionHandle, *, fresh: bool) -> None:
        def begin() -> None:
            self._handles.setdefault(handle.number, []).append(handle)
            handle.start(fresh=fresh)

        self.post(begin)

    def _all(self) -> list[SubmissionHandle]:
        return [handle for handles in self._handles.values() for handle in handles]

    def _flush(self, timeout_s: float) -> None:
        end_s = machine.monotonic() + timeout_s
        owned: Future[list[SubmissionHandle]] = Future()
        self.post(lambda: owned.set_result([handle for handle in self._all() if handle.owned]))
        try:
            for handle in machine.result(owned, timeout_s):
                with contextlib.suppress(RmgrError):  # whoever waits for its tasks is told with the end of the handle
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
            if self._watching_owners:
                self.look_at_owners()
        for listener in self._listeners:
            listener(state)

    def _watch_owners(self) -> None:
        self._watching_owners = True
        self.look_at_owners()

    def _owners(self, asked: Future[list[str] | None]) -> None:
        try:
            names = asked.result(0) or []
        except RmgrError:
            self.after(self.jitter(1.0), self.look_at_owners)
            return
        wanted = {handle.submission.owner for handle in self._all() if handle.wants_ownership}
        there = [f"{paths.SUBMITTERS}/{name}" for name in names if paths.entry_guid(name) in wanted]
        if not there:
            self._look([])
            return
        read = self.coordinator.get_many(there)
        read.add_done_callback(lambda _: self.post(lambda: self._entries(there, read)))

    def _entries(self, asked: Sequence[str], read: Future[list[Stamped | None]]) -> None:
        """Whom each of them looks after: a guid alone proves nothing, for everybody reads it."""
        try:
            found = read.result(0)
        except RmgrError:
            self.after(self.jitter(1.0), self.look_at_owners)
            return
        entries = []
        for path, item in zip(asked, found, strict=True):
            with contextlib.suppress(RmgrError):  # what stands there is no entry
                entries += [validity.decode(item.data, SubmitterEntry, path)] if item is not None else []
        self._look(entries)

    def _look(self, living: Sequence[SubmitterEntry]) -> None:
        for handle in self._all():
            handle.look_at_owner(frozenset(entry.guid for entry in living if is_owner(entry, handle.submission)))

    def _first_blocks(self, draft: Submission, first: FirstTasks, timeout_s: float) -> list[Block]:
        """What goes with the SUBMIT; nothing: it is sent afterwards, by the rules of everything that is sent."""
        if draft.max_running or draft.phase is not Phase.OPEN:
            return []
        blocks = first_blocks(draft, first.spec, first.payloads) or []
        return blocks if self._has_room(draft.queue, len(blocks), timeout_s) else []

    def _has_room(self, queue: str, blocks: int, timeout_s: float) -> bool:
        """Counts so many blocks in, if the queue takes them now."""
        cap = self._cap(queue)
        if cap <= 0 or not blocks:
            return True
        answer: Future[bool] = Future()

        def ask() -> None:
            known = self.gauge.admit(queue, blocks, cap, ask)
            if known is not None:
                answer.set_result(known)

        self.post(ask)
        try:
            return machine.result(answer, timeout_s)
        except TimeoutError:
            return False

    def _cap(self, queue: str) -> int:
        if self._cap_blocks is not None:
            return self._cap_blocks
        spec = self.settings().queue(queue)
        return spec.max_pending_blocks if spec is not None else 0

    def _fresh(self, what: str, read: Callable[[], Any]) -> Any:
        self.check_usable()
        now = machine.monotonic()
        with self._cache_lock:
            known = self._cache.get(what)
        if known is not None and now - known[0] < FRESH_S:
            return known[1]
        value = read()
        with self._cache_lock:
            self._cache[what] = (now, value)
        return value

    def _read_settings(self, timeout_s: float) -> ClusterSettings:
        found = self.coordinator.get(paths.CONFIG, timeout_s=timeout_s).result(timeout_s + 1)
        if found is not None:
            self.known_settings = validity.decode(found.data, ClusterSettings, paths.CONFIG)
        return self.known_settings

    def _read_nodes(self, timeout_s: float) -> list[NodeRecord]:
        names = self.coordinator.children(paths.NODES, timeout_s=timeout_s).result(timeout_s + 1) or []
        found = fetch([paths.node(name) for name in sorted(names)], self.coordinator.get, timeout_s=timeout_s)
        records = []
        for item in found:
            if item is not None:
                with contextlib.suppress(RmgrError):  # a record of a newer release says nothing to this one
                    records.append(validity.decode(item.data, NodeRecord, paths.NODES))
        return records
