"""The futures of one submission: which of its tasks are awaited, how many have ended, and which have failed.

Outcomes arrive on the Submitter's thread; threads of the user call everything else.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from rmgr.client import content
from rmgr.client.connection import Connection
from rmgr.client.content import Payload
from rmgr.client.futures import Future, Settled, error_of, raised_by, settle
from rmgr.client.progress import Counts
from rmgr.client.submission.handle import Listener
from rmgr.client.submission.packing import FirstTasks, TaskSpec
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Store
from rmgr.errors import NotConnected, NotFound, RmgrError, StateConflict, SubmitUnknown, TaskFailed, Unavailable
from rmgr.model.block import Fragment, Outcome
from rmgr.model.states import Reason, State
from rmgr.model.submission import Submission
from rmgr.model.units import counted
from rmgr.procedures.admission import admit
from rmgr.procedures.output_keys import delete_pointers
from rmgr.runtime import machine

if TYPE_CHECKING:
    from rmgr.client.logs import Line
    from rmgr.client.submission.engine import Engine
    from rmgr.client.submission.handle import SubmissionHandle

#: Arguments of a task above this size are written to the store by the caller, smaller ones on the way to the queue.
LARGE_BYTES = 4 * 1024 * 1024
#: Arguments of a task above this size are accepted only while the store answers, and do not wait in this process until the task may
#: be sent (`Executor` with `max_workers`).
HELD_BYTES = 256 * 1024
#: Failed tasks whose whole end is kept.
_FAILURES_KEPT = 100
#: How long a cancel may take, and fetching the exception of a failed task (s).
_CANCEL_S = _FETCH_S = 10.0
#: What `map` adds at a time: calls, roughly the bytes of their arguments, and what it reads in this time (s). The first calls run while
#: the rest is still being read and pickled.
_MAP_BATCH, _MAP_BYTES, MAP_S = 512, 4 * 1024 * 1024, 0.01


class Waited(NamedTuple):
    """Result of `wait_all`: number of tasks by state, and ids of the failed tasks."""

    counts: dict[str, int]
    failed: list[str]


class Tasks:
    """The tasks of one submission: a `handle.Listener` that brings results to futures, and cancels tasks for them.

    Args:
        keep_all: also keeps the ends of tasks without a future (for a queue that was attached to).
        opening: makes the submission with its first tasks, or when its number is needed.
    """

    def __init__(self, connection: Connection, *, keep_all: bool = False, opening: SubmissionOpening | None = None) -> None:
        self.connection = connection
        self.store: Store = connection.submitter.store
        self.handle: SubmissionHandle | None = None
        self._opening = opening
        self._is_closed = False
        self.dead: RmgrError | None = None
        self._pending: dict[int, Future] = {}
        self._outputs: dict[int, tuple[str, ...]] = {}
        self._kept: dict[int, Settled] | None = {} if keep_all else None
        self._keeping = threading.Lock()
        self._failed: dict[int, Settled | None] = {}
        self._unusual: set[int] = set()  #: tasks submitted with another `resubmit` than the queue's
        self._news = threading.Condition(threading.Lock())
        self._version = 0
        self._waiters = 0

    @property
    def number(self) -> int:
        """Number of the submission; 0 before it exists."""
        return self.handle.number if self.handle is not None else 0

    @property
    def ended(self) -> str:
        """`3 of 8`: ended tasks of all, as text."""
        counts = self.progress
        return "0 of 0" if counts is None else f"{counts.final} of {counts.total}"

    @property
    def progress(self) -> Counts | None:
        """Counts as known here; None before there is a submission. Never raises."""
        handle = self.handle
        if handle is None:
            return None
        progress = handle.progress
        return Counts(
            total=max(handle.next_index, progress.total),
            final=progress.final,
            failed=progress.counts[State.FAILED],
            cancelled=progress.counts[State.CANCELLED],
        )

    # -- adding (one caller at a time)

    def add(self, spec: TaskSpec, payloads: Sequence[Payload], *, outputs: tuple[str, ...] = (), solid: bool = False) -> list[Future]:
        """Adds tasks; returns their futures. Raises: as `SubmissionHandle.add`; StoreUnavailable for large arguments."""
        futures = [Future(self) for _ in payloads]
        self.add_for(spec, payloads, futures, outputs=outputs, solid=solid)
        return futures

    def add_for(
        self,
        spec: TaskSpec,
        payloads: Sequence[Payload],
        futures: list[Future],
        *,
        outputs: tuple[str, ...] = (),
        solid: bool = False,
        row: str = "",
    ) -> int:
        """Adds tasks as `add` does, for futures that exist already. Returns the first index."""
        if self.handle is None and self._opening is not None and payloads:
            if not (outputs or solid or row or spec.keyed or self._is_closed) and max(map(len, payloads)) <= HELD_BYTES:
                return self._open_with(self._opening, spec, payloads, futures)
            self.opened()
        handle = self.handle_or_raise()
        first = handle.next_index
        for index, future in enumerate(futures, first):
            future.index = index
        if spec.resubmit != handle.submission.resubmit:
            self._unusual.update(range(first, first + len(payloads)))
        if outputs:
            self._outputs[first] = outputs
        # Before they are added, because they may end at any moment afterwards.
        self._pending.update(zip(range(first, first + len(futures)), futures, strict=True))
        try:
            is_fixed = solid or row or spec.keyed
            largest = 0 if is_fixed else max(map(len, payloads), default=0)
            if largest > HELD_BYTES:
                self.store.head(keys.arguments(self.number, first, "0"))  # refuses at once what cannot be stored
            if largest <= LARGE_BYTES:
                pieces = content.whole(payloads) if is_fixed else cast("list[bytes]", payloads)  # a payload in parts is always large
                handle.add(spec, pieces, solid=solid, row=row)
            else:
                for payload in payloads:
                    self._add_one(handle, spec, payload)
        except BaseException:
            for index in range(handle.next_index, first + len(futures)):
                self._pending.pop(index, None)
            raise
        return first

    def _open_with(self, opening: SubmissionOpening, spec: TaskSpec, payloads: Sequence[Payload], futures: list[Future]) -> int:
        """Adds the first tasks of a submission, which is made with them."""
        self.connection.check_usable()
        for index, future in enumerate(futures):
            future.index = index
        if spec.resubmit != opening.draft.resubmit:
            self._unusual.update(range(len(payloads)))
        self._pending.update(enumerate(futures))
        try:
            opening.open(self, FirstTasks(spec=spec, payloads=content.whole(payloads), made=self._set_handle))
        except BaseException as error:
            self._pending.clear()
            self._unusual.clear()
            if isinstance(error, SubmitUnknown):
                self.dead = error  # the submission may exist with these tasks, so no other may replace it
            raise
        return 0

    def opened(self) -> SubmissionHandle:
        """Returns the handle; makes the submission if needed. Raises: as `Engine.open`."""
        if self.handle is None and self._opening is not None and self.dead is None:
            self.connection.check_usable()
            self._set_handle(self._opening.open(self, None))
            if self._is_closed:
                self.handle_or_raise().complete()
        return self.handle_or_raise()

    def _set_handle(self, handle: SubmissionHandle) -> None:
        self.handle = handle

    def _add_one(self, handle: SubmissionHandle, spec: TaskSpec, payload: Payload) -> None:
        if len(payload) <= LARGE_BYTES:
            handle.add(spec, content.whole([payload]))
            return
        handle.add(spec, [b""], row=self.store_row(payload))

    def store_row(self, payload: Payload) -> str:
        """Writes the arguments of one task; returns the row, which like all rows is named by its content."""
        parts = content.parts_of((payload,))
        row = keys.arguments(self.number, 0, content.hash_of(parts))
        content.put_rows(self.store, [(row, parts)])
        return row

    def handle_or_raise(self) -> SubmissionHandle:
        """Returns the handle if tasks can be added, else raises the reason."""
        self.connection.check_usable()
        if self.dead is not None:
            raise self.dead
        if self.handle is None:
            raise StateConflict("the submission does not exist yet")
        return self.handle

    def close(self, timeout_s: float | None) -> None:
        """Closes the submission to new tasks and waits until added ones are durable. Records nothing of a queue never used."""
        self.let_go()
        if self.handle is not None and self.connection.is_usable:
            self.handle.flush(timeout_s)

    def let_go(self) -> None:
        """Closes the submission to new tasks."""
        self._is_closed = True
        if self.handle is not None:
            self.handle.complete()

    def check_open(self) -> None:
        """Raises the error that `add` would raise."""
        self.handle_or_raise().add(TaskSpec(), [])

    def wait_room(self, *, block: bool, timeout_s: float | None) -> None:
        """Waits while the queue is full or too much is unsent. Raises QueueFull."""
        if self.handle is None and self._opening is not None and self.dead is None:
            self.connection.check_usable()
        else:
            self.handle_or_raise().wait_room(timeout_s if block else 0.0)

    # -- from the Submitter

    def on_outcomes(self, fragment: Fragment, outcomes: Sequence[Outcome]) -> None:
        """See `handle.Listener`."""
        settle(self.take_ended(fragment, outcomes))

    def take_ended(self, fragment: Fragment, outcomes: Sequence[Outcome]) -> list[tuple[Future, Settled]]:
        """Notes that these tasks have ended; returns their futures, which the caller settles."""
        node, attempt, pop = fragment.node, fragment.attempt, self._pending.pop
        ended = [Settled(outcome, node, outcome.attempt or attempt) for outcome in outcomes]
        if self._kept is not None:
            with self._keeping:
                self._kept.update((settled.outcome.index, settled) for settled in ended)
        awaited = []
        for settled in ended:
            outcome = settled.outcome
            if outcome.state is not State.COMPLETED:
                self._on_loss(settled)
            future = pop(outcome.index, None)
            if future is not None:
                awaited.append((future, settled))
        if self._outputs:
            for outcome in outcomes:
                self._outputs.pop(outcome.index, None)
        return awaited

    def _on_loss(self, settled: Settled) -> None:
        outcome = settled.outcome
        if outcome.state is State.FAILED:
            self._failed[outcome.index] = settled if len(self._failed) < _FAILURES_KEPT else None
        outputs = self._outputs.get(outcome.index)
        if outputs and outcome.reason is not Reason.OUTPUT_EXISTS:  # no value will ever be there: the keys are free again
            number, store = self.number, self.store
            self.connection.submitter.call_soon(lambda: _free_keys(store, number, outcome.index, outputs))

    def on_progress(self) -> None:
        """See `handle.Listener`."""
        self._version += 1
        if self._waiters:
            with self._news:
                self._news.notify_all()

    def on_dead(self, error: RmgrError) -> None:
        """See `handle.Listener`."""
        self.dead = error
        while self._pending:
            try:
                _, future = self._pending.popitem()
            except KeyError:
                break
            future.break_off(error)
        self.on_progress()

    # -- waiting

    def counts(self) -> Counts:
        """Returns the counts. Raises if no further outcome will come, or the connection is not usable."""
        counts = self.progress
        if counts is None:
            return Counts(total=0, final=0)
        if self.dead is not None and counts.final < counts.total:
            raise self.dead
        if not self.connection.is_usable:
            raise NotConnected(self.connection.trouble(), hint=f"TaskQueue.attach({self.number})")
        return counts

    def wait_news(self, timeout_s: float, known: Counts) -> None:
        """Waits until the counts differ from `known`, at most `timeout_s`."""
        with self._news:
            self._waiters += 1
            try:
                version = self._version
                if self.counts() == known and version == self._version:
                    machine.wait_for(self._news, lambda: version != self._version or self.dead is not None, timeout_s)
            finally:
                self._waiters -= 1

    def waited(self) -> Waited:
        """Returns the result of `wait_all`, or raises TaskFailed."""
        handle = self.opened()
        counts = {str(state): count for state, count in handle.progress.counts.items()}
        failed = sorted(self._failed)
        expected = handle.submission.resubmit
        fatal = [index for index in failed if expected != (index in self._unusual)]
        if fatal:
            raise self._failure(fatal)
        return Waited(counts, [f"{self.number}_{index}" for index in failed])

    def _failure(self, fatal: list[int]) -> BaseException:
        first = next((index for index in fatal if self._failed[index] is not None), fatal[0])
        settled = self._failed[first]
        others = f" ({len(fatal)} tasks failed in all)" if len(fatal) > 1 else ""
        if settled is None:
            return TaskFailed(f"task {self.number}_{first} failed{others}", task_id=f"{self.number}_{first}", reason="FAILED")
        try:
            raised = raised_by(settled, self.number, self.store, _FETCH_S)
        except Unavailable:
            raised = None
        error = error_of(settled, self.number, raised, loses=True)
        assert isinstance(error, TaskFailed)
        if others:
            error.message += others
            error.args = (error.message,)
        return error

    def future(self, index: int) -> Future:
        """Returns a future of an existing task. Raises NotFound."""
        handle = self.opened()
        if not 0 <= index < (count := max(handle.next_index, handle.progress.total)):
            raise NotFound(f"there is no task {self.number}_{index}", hint=f"it has {counted(count, 'task')}, counted from 0")
        with self._keeping:
            settled = self._kept.get(index) if self._kept is not None else None
            if settled is None:
                known = self._pending.get(index)
                if known is not None:
                    return known
                if self._kept is None:
                    raise NotFound(
                        f"task {self.number}_{index} has ended, and its future was let go", hint="keep the future that submit returned"
                    )
                future = self._pending[index] = Future(self, index)
                if self.dead is not None:
                    future.break_off(self.dead)
                return future
        future = Future(self, index)
        future.settle(settled)
        return future

    def unfinished(self) -> list[Future]:
        """Returns the futures of tasks that have not ended, in order."""
        return [future for _, future in sorted(self._pending.items())]

    # -- for futures

    def cancel_futures(self, futures: Sequence[Future]) -> list[Future]:
        """Cancels tasks that have not started; returns those of `futures` that are cancelled now.

        Cost: for tasks that were sent already, a listing of the queue and one commit per block.
        """
        handle = self.handle_or_raise()
        by_index = {future.index: future for future in futures if not future.done() and future.index >= 0}
        gone = set(handle.drop(list(by_index)))
        sent = sorted(by_index.keys() - gone)
        if sent:
            cancel = self.connection.submitter.cancel_tasks
            gone.update(cancel(handle.number, sent, reason="", running=False, timeout_s=_CANCEL_S))
        ended = [by_index[index] for index in sorted(gone)]
        for future in ended:
            future.mark_cancelled()
        return [future for future in futures if future.cancelled()]

    def end_tasks(self, indices: Sequence[int], *, reason: str, timeout_s: float) -> list[int]:
        """Cancels tasks, and orders running ones to end. Returns both kinds.

        Cost: as `cancel_futures`, plus a listing of what the nodes run and one commit per running task.
        """
        handle = self.handle_or_raise()
        gone = set(handle.drop(list(indices)))
        for index in gone:
            if (future := self._pending.get(index)) is not None:
                future.mark_cancelled()
        if sent := sorted(set(indices) - gone):
            gone.update(self.connection.submitter.cancel_tasks(handle.number, sent, reason=reason, running=True, timeout_s=timeout_s))
        return sorted(gone)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Runs code of the user on a thread where it may block."""
        self.connection.submitter.call_soon(callback)

    def lines_of(self, futures: Sequence[Future], *, follow: bool, stream: str, timeout: float | None) -> Iterator[Line]:
        """Yields lines that tasks have written. See `Future.logs`."""
        from rmgr.client.output import lines_of

        return lines_of(self, futures, follow=follow, stream=stream, timeout=timeout)


def _free_keys(store: Store, number: int, index: int, outputs: tuple[str, ...]) -> None:
    """Frees the output keys of a task without a result, if the store answers."""
    try:
        delete_pointers(store, number, index, outputs)
    except RmgrError:
        return  # a later task with these keys finds out that this one has failed


def calls_at_once(iterables: Iterable[Iterable[Any]]) -> int:
    """Returns how many calls `map` adds at a time: one if the next argument may be slow to come, as from a generator."""
    return _MAP_BATCH if all(isinstance(iterable, Sized) for iterable in iterables) else 1


def batches(payloads: Iterable[Payload], at_once: int) -> Iterator[list[Payload]]:
    """Yields arguments to add together: fewer if they are large or come slowly. What was read before an error comes before the error."""
    batch: list[Payload] = []
    size, due_s = 0, machine.monotonic() + MAP_S
    try:
        for payload in payloads:
            batch.append(payload)
            size += len(payload)
            if len(batch) >= at_once or size >= _MAP_BYTES or machine.monotonic() >= due_s:
                yield batch
                batch, size, due_s = [], 0, machine.monotonic() + MAP_S
    except (Exception, KeyboardInterrupt):  # of the user's iterator
        if batch:
            yield batch
        raise
    if batch:
        yield batch


class SubmissionOpening:
    """Makes one submission with its first tasks: one commit instead of two, and none if it is never used. Thread-safe.

    Args:
        draft: checked against the cluster. timeout_s: for that check, and for making the submission.
    Raises: CoordinationUnavailable; the refusals of `admit`.
    """

    def __init__(self, submitter: Engine, draft: Submission, *, timeout_s: float) -> None:
        self.draft = admit(draft, submitter.settings(timeout_s=timeout_s), submitter.nodes(timeout_s=timeout_s))
        self._submitter = submitter
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._handle: SubmissionHandle | None = None

    def open(self, listener: Listener, first: FirstTasks | None) -> SubmissionHandle:
        """Returns the submission, with these tasks. Adds them to it if it was made before because its number was needed.
        """
        with self._lock:
            if self._handle is None:
                self._handle = self._submitter.open(self.draft, listener, timeout_s=self._timeout_s, first=first)
            elif first is not None:
                first.made(self._handle)
                self._handle.add(first.spec, first.payloads)
        return self._handle

_jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
_thread: threading.Thread | None = None


def when_dropped(owner: object, job: Callable[[], None]) -> None:
    """Calls `job` on a separate thread after `owner` was dropped; `job` must not refer to `owner`. Not called at interpreter exit.

    The garbage collector may run anywhere, even inside a lock, so it only enqueues (`SimpleQueue.put` allows that).
    """
    global _thread
    if _thread is None or not _thread.is_alive():  # a forked child has no thread; two at once do no harm
        _thread = machine.Thread(target=_run_dropped_jobs, name="rmgr-dropped", daemon=True)
        _thread.start()
    weakref.finalize(owner, _jobs.put, job).atexit = False


def _run_dropped_jobs() -> None:
    while True:
        try:
            _jobs.get()()
        except Exception as error:  # noqa: BLE001 - as in a finalizer: reported, and other jobs still run
            sys.excepthook(type(error), error, error.__traceback__)
