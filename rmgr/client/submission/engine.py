"""Looks after all submissions of this process on one thread: packs and signs what callers add, and verifies what comes back.

A Submitter (`rmgr/submitter`), in this process or in a gateway, does the work at ZooKeeper. Its answers, timers and rows of
the store arrive as jobs of the thread (`submitter/thread.py`); only that thread changes the state.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING

from rmgr.client.identity import Secured, answers_here, update
from rmgr.client.submission.handle import INTERRUPTED, Listener, SilentListener, SubmissionHandle
from rmgr.client.submission.packing import FirstTasks, first_blocks
from rmgr.client.values import AskedFates, Values
from rmgr.coord.protocol.ports import Coordinator, SessionState, Store
from rmgr.errors import NotConnected, RmgrError
from rmgr.model.block import MOST_TASKS, indices_of, ranges_of
from rmgr.model.node import NodeRecord, SubmitterEntry
from rmgr.model.queue import ClusterSettings
from rmgr.model.submission import Phase, Submission, Terms
from rmgr.procedures.output_keys import Fates, FatesPort
from rmgr.runtime import machine
from rmgr.submitter.direct import Submitter, entry_of
from rmgr.submitter.port import Order, Stored, Submitted, WorkPort, prepared
from rmgr.submitter.questions import Asks, CancelSubmission, CancelTasks
from rmgr.submitter.thread import SubmitterThread

if TYPE_CHECKING:
    from rmgr.submitter.handing import Hearing, Lines
    from rmgr.submitter.remote import RemoteAnswers

_LOG = logging.getLogger("rmgr.submitter")
#: How long publishing the user's certificate may take (s).
_PUBLISH_S = 10.0
#: How long an interrupted submission delays Ctrl-C until it is cancelled, and how long that is tried (s).
GIVE_UP_S, _GIVE_UP_LATE_S = 2.0, 60.0
_OPEN = Secured()


class Engine:
    """Submits and follows work for the library and for commands. Thread-safe. Made by `engine_here` or `engine_through`.

    Listeners are called on its thread and must neither block nor run code of the user.

    Args:
        asks: answers users' questions. store: connected; closed with the engine.
        make_work: makes the object that carries out the work, given the Submitter's thread and this owner's entry.
        fates: knows what became of the tasks behind pointers.
        secured: signs what is sent, and judges what comes back and who owns values.
        close: closes the object that carries out the work, given the time that this may take (s).
    """

    def __init__(
        self,
        asks: Asks,
        store: Store,
        make_work: Callable[[SubmitterThread, SubmitterEntry], WorkPort],
        *,
        fates: FatesPort,
        secured: Secured,
        close: Callable[[float], None],
    ) -> None:
        self.signer, self.authenticity = secured.signer, secured.authenticity
        self.asks = asks
        self.store = store
        self.pid = os.getpid()
        self.values = Values(store, fates, secured.deeds)
        self.thread = SubmitterThread()
        self.guid = machine.guid()
        self.handles: dict[int, list[SubmissionHandle]] = {}
        self._close = close
        self._closed = threading.Event()
        self.thread.start()
        self.work: WorkPort = make_work(self.thread, entry_of(self.guid))

    # -- the cluster

    @property
    def user(self) -> str:
        """The user in whose name work is submitted, from the credentials; "" without credentials."""
        return self.signer.user if self.signer is not None else ""

    @property
    def session_state(self) -> SessionState:
        """Whether the coordination service answers."""
        return self.work.session_state

    def settings(self, *, timeout_s: float = 10.0) -> ClusterSettings:
        """Returns queues and limits, at most 5 s old."""
        self.check_usable()
        return self.work.settings(timeout_s=timeout_s)

    def nodes(self, *, timeout_s: float = 10.0) -> list[NodeRecord]:
        """Returns the records of the nodes, at most 5 s old."""
        self.check_usable()
        return self.work.nodes(timeout_s=timeout_s)

    # -- submissions

    def open(self, draft: Submission, listener: Listener, *, timeout_s: float, first: FirstTasks | None = None) -> SubmissionHandle:
        """Makes a submission of `draft` (its id is ignored) by SUBMIT, owned by this Submitter.

        first: its first tasks, in the same commit if they fit and the queue has room, else added right after it (`flush` waits for
            them). They are not added if the draft's token was used before: then `next_index` differs from their number.
        """
        self.check_usable()
        order = Order(draft=draft, is_owned=True)
        if first is not None and not draft.max_running and draft.phase is Phase.OPEN:
            blocks = first_blocks(draft, first.spec, first.payloads) or []
            order = replace(order, blocks=blocks, tasks=len(first.payloads) if blocks else 0, complete=first.complete and bool(blocks))
        made = self._make(self._sign(order, timeout_s), timeout_s)
        handle = SubmissionHandle(self, made, listener, owned=made.created, wants_ownership=not made.created)
        if first is not None:
            first.made(handle)
        self._begin(handle, fresh=made.created)
        if made.created and first is not None and not made.tail.next:
            handle.add(first.spec, first.payloads)
            if first.complete:
                handle.complete()
        return handle

    def _make(self, order: Order, timeout_s: float) -> Submitted:
        try:
            return self.work.submit(order, timeout_s=timeout_s)
        except (KeyboardInterrupt, SystemExit):
            # It may have been made, and nobody would follow it. If the cluster does not answer now, that must not hold up Ctrl-C.
            thread = machine.Thread(target=self._give_up, args=(order,), name="rmgr-give-up", daemon=True)
            thread.start()
            thread.join(GIVE_UP_S)
            raise

    def _give_up(self, order: Order) -> None:
        """Makes an interrupted submission for certain, without tasks unless it has them already, and cancels it."""
        with contextlib.suppress(RmgrError):  # the leader ends it once this process is gone
            made = self.work.submit(replace(order, blocks=(), tasks=0, complete=False), timeout_s=_GIVE_UP_LATE_S)
            if made.submission.nonce != order.draft.nonce:
                return  # its token was used before: another program's
            handle = SubmissionHandle(self, made, SilentListener(), owned=True)
            self._begin(handle, fresh=made.created)
            handle.complete()
            self.asks.ask(CancelSubmission(number=handle.number, detail=INTERRUPTED), timeout_s=_GIVE_UP_LATE_S)

    def submit(self, order: Order, *, timeout_s: float) -> Submitted:
        """Makes one submission that nothing here follows. Raises: see `submitter.port.WorkPort`."""
        return self.work.submit(self._sign(order, timeout_s), timeout_s=timeout_s)

    def submit_many(self, orders: Sequence[Order], *, timeout_s: float) -> list[Submitted]:
        """Makes several complete submissions without an owner. Raises: see `submitter.port.WorkPort`."""
        return self.work.submit_many([self._sign(order, timeout_s) for order in orders], timeout_s=timeout_s)

    def _sign(self, order: Order, timeout_s: float) -> Order:
        if self.signer is None:
            return prepared(order)
        self.signer.publish(self.asks, timeout_s=min(_PUBLISH_S, timeout_s))
        self.signer.check()
        return prepared(order, self.signer.sign)

    def attach(self, number: int, listener: Listener, *, own: bool, timeout_s: float, made: Stored | None = None) -> SubmissionHandle:
        """Follows an existing submission from its beginning; with `own`, takes it over once its owner is gone. Raises: NotFound.

        made: the submission as committed just now; None: it is read.
        """
        self.check_usable()
        stored = made or self.work.read(number, timeout_s=timeout_s)
        signer = self.signer
        if own and signer is not None:
            signer.publish(self.asks, timeout_s=timeout_s)
            own = signer.user == stored.submission.user  # a client can sign tasks only for its own user
        handle = SubmissionHandle(self, stored, listener, owned=False, wants_ownership=own)
        self._begin(handle, fresh=False)
        return handle

    def cancel_tasks(self, number: int, indices: Sequence[int], *, reason: str, running: bool, timeout_s: float) -> list[int]:
        """Cancels waiting tasks, with `running` also orders running ones to be killed. Returns the tasks that will have no other end."""
        self.check_usable()
        order = CancelTasks(number=number, ranges=tuple(ranges_of(indices)), detail=reason, waits_only=not running)
        return indices_of(self.asks.ask(order, timeout_s=timeout_s).ended, MOST_TASKS)

    def update(self, number: int, terms: Terms, *, timeout_s: float) -> str:
        """Changes the terms of a submission. Returns why nothing was changed, "" if it was."""
        self.check_usable()
        return update(self.asks, number, terms, signer=self.signer, timeout_s=timeout_s).unchanged

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Runs user code (done callbacks) on a thread where it may block without harm."""
        self.thread.call_soon(callback)

    def write_soon(self, job: Callable[[], None]) -> None:
        """Runs what writes on the program's streams, on a thread where it may block without harm."""
        self.thread.write_soon(job)

    def close(self, *, timeout_s: float = 5.0, sends: bool = False) -> None:
        """Closes everything; durable work goes on. sends: first sends waiting tasks, within `timeout_s`. Idempotent."""
        if self._closed.is_set():
            return
        self._closed.set()
        if os.getpid() != self.pid:
            return  # a forked child: threads and sockets are the parent's
        if sends and not self.thread.is_current:
            self._flush(timeout_s)
        self.thread.post(self._end_handles)
        self.thread.post(lambda: self.work.close(timeout_s=timeout_s))
        self.thread.stop(timeout_s)
        self.thread.release()
        self._close(timeout_s)
        self.store.close()

    def check_usable(self) -> None:
        """Raises NotConnected after `close`, and in a forked child (threads and sockets do not survive a fork)."""
        if os.getpid() != self.pid:
            raise NotConnected(
                "this connection belongs to the parent process and cannot be used after a fork", hint="call rmgr.connect() in this process"
            )
        if self._closed.is_set():
            raise NotConnected("this connection was closed", hint="call rmgr.connect() again")

    # -- for handles

    def wake(self, handle: SubmissionHandle) -> None:
        """Has the handle send its waiting tasks. From any thread."""
        self.thread.wake(handle.send, handle)

    def forget(self, handle: SubmissionHandle) -> None:
        """Stops looking after a handle that is over."""
        handles = self.handles.get(handle.number)
        if handles is not None and handle in handles:
            handles.remove(handle)
            if not handles:
                del self.handles[handle.number]

    # -- inside

    def _begin(self, handle: SubmissionHandle, *, fresh: bool) -> None:
        def begin() -> None:
            self.handles.setdefault(handle.number, []).append(handle)
            handle.start(fresh=fresh)

        self.thread.post(begin)

    def _all_handles(self) -> list[SubmissionHandle]:
        return [handle for handles in self.handles.values() for handle in handles]

    def _flush(self, timeout_s: float) -> None:
        end_s = machine.monotonic() + timeout_s
        owned: Future[list[SubmissionHandle]] = Future()
        self.thread.post(lambda: owned.set_result([handle for handle in self._all_handles() if handle.owned]))
        try:
            for handle in machine.result(owned, timeout_s):
                with contextlib.suppress(RmgrError):  # `on_dead` of the handle raises it where its tasks are waited for
                    handle.flush(max(0.0, end_s - machine.monotonic()))
        except TimeoutError:
            _LOG.warning("not_flushed: the Submitter is busy")

    def _end_handles(self) -> None:
        for handle in self._all_handles():
            lost = f" as far as it was sent: tasks from {handle.number}_{handle.first_unsent} on may never run" if handle.has_unsent else ""
            handle.on_dead(NotConnected(f"the connection was closed; submission {handle.number} goes on without it{lost}"))


def trouble_of(state: SessionState, gateway: str) -> str:
    """Returns who does not answer an engine in this state of its session, "" if all do. gateway: "" = the engine works on ZooKeeper."""
    if state is SessionState.LOST and gateway:
        return f"the gateway at {gateway} does not answer, or has lost ZooKeeper"
    return "" if state is SessionState.CONNECTED else "ZooKeeper does not answer"


def engine_here(
    coordinator: Coordinator,
    store: Store,
    asks: Asks | None = None,
    *,
    secured: Secured = _OPEN,
    lines: Callable[[SubmitterThread, Hearing], Lines] | None = None,
) -> Engine:
    """Returns an engine that works on ZooKeeper itself, and closes `coordinator` at its end.

    Args:
        asks: None answers all questions (tests).
        lines: makes the direct lines to Starters; None: no direct lines. Others: as of `Engine`.
    """
    made: list[Submitter] = []

    def work(thread: SubmitterThread, entry: SubmitterEntry) -> WorkPort:
        believes = secured.authenticity.believes if secured.authenticity is not None else None
        made.append(Submitter(thread, coordinator, store, lines=lines, believes=believes))
        return made[0].work(entry)

    def close(timeout_s: float) -> None:
        if made[0].lines is not None:
            made[0].lines.close()
        coordinator.close(timeout_s=timeout_s)

    if asks is None:
        asks = answers_here(coordinator, lambda: store, None)
    fates = Fates(store, coordinator)
    return Engine(asks, store, work, fates=fates, secured=secured, close=close)


def engine_through(asks: RemoteAnswers, store: Store, *, secured: Secured = _OPEN) -> Engine:
    """Returns an engine that works through the gateways of `asks`. Connects in the background. Close it first. Args: see `Engine`."""
    from rmgr.submitter.talking import RemoteWork

    def work(thread: SubmitterThread, entry: SubmitterEntry) -> WorkPort:
        return RemoteWork(thread, asks, entry)

    fates = AskedFates(asks)
    return Engine(asks, store, work, fates=fates, secured=secured, close=lambda _: None)
