"""Futures of tasks: `concurrent.futures.Future`, made for hundreds of thousands of them pending at once.

Two things are lazy. The result is kept as bytes and decoded in the thread that asks for it. The condition variable of
the base class (a kilobyte) is made only when a thread waits, or the base class needs it (`wait`, `as_completed`,
callbacks). Until then one lock for all futures guards the change of state.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import pickle
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import Future as BaseFuture
from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED, PENDING
from contextlib import AbstractContextManager, nullcontext
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from rmgr.client.pickling import RAISED, FutureHasNoValue, load, unreadable
from rmgr.client.progress import escaped
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Store
from rmgr.errors import DataLost, DeadlineExceeded, TaskFailed, Unavailable, UsageError
from rmgr.model.base.states import Reason, State
from rmgr.model.base.units import format_duration
from rmgr.model.tasks.block import Outcome
from rmgr.procedures.authentic import LOST
from rmgr.runtime import machine

if TYPE_CHECKING:
    from rmgr.client.logs import Line
    from rmgr.client.tasks import Tasks

#: Lines of a failed task's output that its error shows; rows of a table in a notebook.
TAIL_LINES, _SHOWN_ROWS = 10, 20
_LOG = logging.getLogger("concurrent.futures")  # as of futures of others
_DONE = frozenset({CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED})
#: After which a task that was found neither waiting nor running is looked for again.
_LOOK_AGAIN_S = 0.5
#: Guards the change of state, and the making of a condition, of all futures without one. Reentrant: the garbage collector may
#: run inside, and drop a `map` that nobody iterates any more, whose futures are then cancelled.
_lock = threading.RLock()
#: What a call raises to end its own process is no order to end this one.
_ENDS = (SystemExit, KeyboardInterrupt, GeneratorExit)


def renew_lock_after_fork() -> None:
    """In a forked child: another thread may have held the lock at the fork."""
    global _lock
    _lock = threading.RLock()


class Settled(msgspec.Struct, eq=False, gc=False):
    """End of a task, as little as must be kept of it. (Millions of them pass.)

    node: "" when it never ran.
    """

    outcome: Outcome
    node: str
    attempt: int


class _Waiters(list[Any]):
    """The waiters of `concurrent.futures.wait` and `as_completed`: in a task, they give the slot back while they wait."""

    def __init__(self, source: Tasks) -> None:
        super().__init__()
        self._source = source

    def append(self, waiter: Any) -> None:
        self._source.connection.check_waitable()
        wait = waiter.event.wait
        if "wait" not in waiter.event.__dict__:

            def giving_way(timeout: float | None = None) -> bool:
                with giving_slot_back():
                    return bool(wait(timeout))

            waiter.event.wait = giving_way
        super().append(waiter)


class Future(BaseFuture[Any]):
    """One task. Beside the standard methods: `task_id`, `attempt`, `node`."""

    # Stand in for the attributes of the base class until somebody looks.
    _waiters: Any = ()
    _done_callbacks: Any = ()
    _result: Any = None
    _exception: Any = None
    _state: str = PENDING
    _own_condition: threading.Condition | None = None
    _settled: Settled | None = None
    _decoded = False
    _hooks: Any = ()

    def __init__(self, source: Tasks, index: int = -1) -> None:
        self._source = source
        self.index = index

    @property
    def task_id(self) -> str:
        """`42_7`; "" while the task has no number yet (an Executor with `max_workers` numbers tasks when it sends them)."""
        return f"{self._source.number}_{self.index}" if self.index >= 0 else ""

    @property
    def attempt(self) -> int:
        """The attempt that ended it (from 1), 0 while it is not done or never ran."""
        return self._settled.attempt if self._settled is not None else 0

    @property
    def node(self) -> str:
        """Where it ended, "" while it is not done or never ran."""
        return self._settled.node if self._settled is not None else ""

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        condition = self._own_condition
        if condition is None:
            with _lock:
                condition = self._own_condition
                if condition is None:
                    self._waiters = _Waiters(self._source)
                    if self._state not in _DONE:
                        self._done_callbacks = []
                    self._own_condition = condition = threading.Condition()
        return condition

    # -- from the Submitter

    def settle(self, settled: Settled) -> None:
        """The task is final. Cost: about 1 us when nobody looks."""
        cancelled = settled.outcome.state is State.CANCELLED
        self._finish(CANCELLED_AND_NOTIFIED if cancelled else FINISHED, settled, None)

    def take(self, settled: Settled) -> bool:
        """The task has completed, and nobody looks. False: `settle` has to be called. Under the lock of all futures."""
        if self._own_condition is not None or self._hooks or settled.outcome.state is not State.COMPLETED:
            return False
        if self._state not in _DONE:
            self._settled, self._state = settled, FINISHED
        return True

    def break_off(self, error: BaseException) -> None:
        """Nothing will come any more."""
        self._finish(FINISHED, None, error)

    def mark_cancelled(self) -> None:
        """It was cancelled before it started."""
        self._finish(CANCELLED_AND_NOTIFIED, None, None)

    def hook(self, hook: _Arrivals) -> bool:
        """Calls `hook` when done, on the Submitter's thread. False: it is done already. Hooks that have become void are let go."""
        with _lock:
            if self._state in _DONE:
                return False
            self._hooks = (*[known for known in self._hooks if not known.is_void], hook)
            return True

    @property
    def source(self) -> Tasks:
        """Who made it."""
        return self._source

    def _finish(self, state: str, settled: Settled | None, error: BaseException | None) -> None:
        with _lock:
            condition = self._own_condition
            if condition is None:
                if self._state in _DONE:
                    return
                hooks = self._change(state, settled, error)
        if condition is not None:
            with condition:
                with _lock:
                    if self._state in _DONE:
                        return
                    hooks = self._change(state, settled, error)
                for waiter in self._waiters:
                    if state == CANCELLED_AND_NOTIFIED:
                        waiter.add_cancelled(self)
                    elif error is not None or (settled is not None and settled.outcome.state is State.FAILED):
                        waiter.add_exception(self)
                    else:
                        waiter.add_result(self)
                condition.notify_all()
        for hook in hooks:
            hook(self)
        if self._done_callbacks:
            self._source.call_soon(self._invoke_callbacks)

    def _change(self, state: str, settled: Settled | None, error: BaseException | None) -> Any:
        self._settled, self._exception = settled, error
        self._decoded = settled is None
        self._state = state
        hooks, self._hooks = self._hooks, ()
        return hooks

    @property
    def settled(self) -> Settled | None:
        """How it ended, None while it has not, and where that is not known."""
        return self._settled

    # -- from the user

    def cancel(self, *, running: bool = False, timeout: float = 30.0) -> bool:
        """Cancels the task if it has not started; asks the cluster when it was sent already (a few ms).

        Args:
            running: a task that runs is ended too, and this call waits for its end, at most `timeout` seconds.
        Returns: whether it is cancelled. False with `running`: it ended by itself first, or `timeout` was over (the order stands).
        Raises: with `running`: CoordinationUnavailable, PermissionDenied, NotConnected; DeadlineExceeded when it could not be ordered.
        """
        if self._state in _DONE:
            return self._state != FINISHED
        self._source.cancel_futures([self])
        if running and self._state not in _DONE:
            self._end(machine.monotonic() + timeout)
        return self._state in {CANCELLED, CANCELLED_AND_NOTIFIED}

    def _end(self, deadline_s: float) -> None:
        """Has the task ended where it is. One that moves, from a queue to a node or back, is looked for again."""
        while (left_s := deadline_s - machine.monotonic()) > 0:
            ordered = self._source.end_tasks([self.index], reason="", timeout_s=left_s)
            left_s = max(0.01, deadline_s - machine.monotonic())
            with contextlib.suppress(DeadlineExceeded):
                self._await(left_s if ordered else min(left_s, _LOOK_AGAIN_S))
            if self._state in _DONE:
                return

    def running(self) -> bool:
        """False: a program is not told when a task starts. (`rmgr tasks ID` shows what runs.)"""
        return False

    def done(self) -> bool:
        """It is final."""
        return self._state in _DONE

    def cancelled(self) -> bool:
        """It was cancelled."""
        return self._state in {CANCELLED, CANCELLED_AND_NOTIFIED}

    def result(self, timeout: float | None = None) -> Any:
        """The task's value; its exception is raised, with the remote traceback as cause.

        Raises: CancelledError; DeadlineExceeded (a TimeoutError); what the task raised; TaskFailed for other ends.
        """
        if self._state not in _DONE:
            self._await(timeout)
        if not self._decoded:
            self._decode(timeout)
        if self._state != FINISHED:
            raise CancelledError
        if self._exception is not None:
            try:
                raise self._exception
            finally:
                self = None  # type: ignore[assignment]  # noqa: PLW0642 - no reference cycle through the traceback, as in the base class
        return self._result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The task's exception, None when it completed. Raises as `result` where there is none to return."""
        if self._state not in _DONE:
            self._await(timeout)
        if not self._decoded:
            self._decode(timeout)
        if self._state != FINISHED:
            raise CancelledError
        return self._exception  # type: ignore[no-any-return]

    def logs(self, *, follow: bool = False, stream: str = "", timeout: float | None = None) -> Iterator[Line]:
        """Lines that the task has written so far, in its present or last attempt; with `follow` until it has ended, as they come.

        Args: stream: "stdout" or "stderr", "" = both. timeout: for `follow` (s).
        Returns: texts without line ends, with attributes `stream`, `task_id`, `attempt`.
        Raises: UsageError; DeadlineExceeded; Unavailable (a node, the store, ZooKeeper). Cost: while it runs a thread and a call to
            its node, and a look at what the nodes run each second.
        """
        return self._source.lines_of([self], follow=follow, stream=stream, timeout=timeout)

    def wait(self, timeout: float | None = None) -> None:
        """Returns when it is done, however it ended. Raises DeadlineExceeded."""
        if self._state not in _DONE:
            self._await(timeout)

    def _await(self, timeout: float | None) -> None:
        if timeout is not None and timeout <= 0:
            raise DeadlineExceeded(self._story("not done"))
        self._source.connection.check_waitable()
        condition = self._condition
        with giving_slot_back(), condition:
            if not machine.wait_for(condition, lambda: self._state in _DONE, timeout):
                raise DeadlineExceeded(self._story(f"not done within {format_duration(timeout or 0.0)}"))

    def _invoke_callbacks(self) -> None:
        """Whatever one of them raises, the others are called: they run on one thread, which outlives them all."""
        for callback in self._done_callbacks:
            try:
                callback(self)
            except BaseException:  # noqa: BLE001 - code of users
                _LOG.exception("exception calling callback for %r", self)

    def _story(self, what: str) -> str:
        trouble = self._source.connection.trouble()
        return f"task {self.task_id or '(not sent yet)'} is {what}" + (f"; {trouble}" if trouble else "")

    def _decode(self, timeout: float | None) -> None:
        """Bytes -> value or exception, once; of two threads at the same time the first one's stays."""
        settled = self._settled
        if settled is None or self._state != FINISHED:
            self._decoded = True
            return
        value: object = None
        error: BaseException | None = None
        if settled.outcome.state is State.COMPLETED:
            try:
                value = value_of(settled, self._source.number, self._source.store, timeout)
            except Unavailable:
                raise  # the next call may find the store again
            except Exception as failure:  # noqa: BLE001 - kept, and raised by result()
                error = failure
        else:
            error = error_of(settled, self._source.number)
        with _lock:
            if not self._decoded:
                self._result, self._exception = value, error
                self._decoded = True
                settled.outcome = _without_value(settled)

    def __reduce__(self) -> NoReturn:
        raise FutureHasNoValue("a Future cannot travel, its value can: pass future.result()")

    @property
    def state(self) -> str:
        """`pending`, `finished` or `cancelled`, as far as is known here."""
        return "cancelled" if self.cancelled() else self._state.lower()

    def __repr__(self) -> str:
        return f"<rmgr.Future {self.task_id or 'without a number yet'} at {self._source.connection.where}: {self._state.lower()}>"


class Futures(list[Future]):
    """Futures in the order of their calls: a list, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        return table(self)


def table(futures: Sequence[Future]) -> str:
    """A list of futures: how many are in which state, and the first of them."""
    states = Counter(future.state for future in futures)
    counts = ", ".join(f"{count:,} {escaped(state)}" for state, count in sorted(states.items())) or "no futures"
    rows = "".join(
        f"<tr><td>{escaped(future.task_id)}</td><td>{escaped(future.state)}</td><td>{escaped(future.node)}</td>"
        f"<td>{future.attempt or ''}</td></tr>"
        for future in futures[:_SHOWN_ROWS]
    )
    more = f"<div>{len(futures) - _SHOWN_ROWS:,} more</div>" if len(futures) > _SHOWN_ROWS else ""
    head = "<tr><th>task</th><th>state</th><th>node</th><th>attempt</th></tr>"
    return f"<div>{counts}</div><table>{head}{rows}</table>{more}" if futures else f"<div>{counts}</div>"


def settle(ended: Sequence[tuple[Future, Settled]]) -> None:
    """Tasks are final, as `Future.settle` of each. Cost: 0.2 us each when nobody looks."""
    with _lock:
        seen = [(future, settled) for future, settled in ended if not future.take(settled)]
    for future, settled in seen:
        future.settle(settled)


def _without_value(settled: Settled) -> Any:
    """The outcome without the bytes that were decoded (they may be large)."""
    outcome = settled.outcome
    return msgspec.structs.replace(outcome, value=b"") if len(outcome.value) > 256 else outcome


# -- futures as they end -------------------------------------------------------------------------------------------------------


def as_completed(futures: Iterable[Future], timeout_s: float | None) -> Iterator[Future]:
    """Yields futures as they end, each once, and first those that have ended. Raises DeadlineExceeded."""
    deadline = Deadline(timeout_s)
    arrived: SimpleQueue[Future] = SimpleQueue()
    hook = _Arrivals(arrived)
    seen: set[Future] = set()
    source: Tasks | None = None
    for future in futures:
        if future not in seen:
            seen.add(future)
            if not future.hook(hook):
                arrived.put(future)
            elif future.source is not source:
                source = future.source
                source.connection.check_waitable()
    total = left = len(seen)
    seen.clear()
    return _drain(arrived, left, total, deadline, source)


class _Arrivals:
    """Takes futures that have ended, for one `as_completed`.

    It is void when nobody iterates that any more. So a caller that asks again and again for the next one that ends leaves
    nothing behind in the others.
    """

    __slots__ = ("_queue",)

    def __init__(self, queue: SimpleQueue[Future]) -> None:
        self._queue = weakref.ref(queue)

    @property
    def is_void(self) -> bool:
        return self._queue() is None

    def __call__(self, future: Future) -> None:
        queue = self._queue()
        if queue is not None:
            queue.put(future)


def _drain(arrived: SimpleQueue[Future], left: int, total: int, deadline: Deadline, source: Tasks | None) -> Iterator[Future]:
    while left:
        try:
            ended = arrived.get_nowait()
        except Empty:
            with giving_slot_back():
                try:
                    ended = arrived.get(timeout=deadline.left())
                except Empty:
                    story = source.connection.trouble() if source is not None else ""
                    raise DeadlineExceeded(f"{left} (of {total}) futures unfinished" + (f"; {story}" if story else "")) from None
        left -= 1
        yield ended
        del ended


# -- how a task ended ----------------------------------------------------------------------------------------------------------


def value_of(settled: Settled, number: int, store: Store, timeout_s: float | None) -> object:
    """The value of a COMPLETED task. Large values are fetched from the store.

    Raises: DataLost, StoreUnavailable; PickleFailed when it cannot be unpickled here.
    """
    outcome = settled.outcome
    if outcome.error.startswith(LOST):
        why = outcome.error.partition(": ")[2]
        raise DataLost(f"task {number}_{outcome.index} completed, but {why}", hint="submit it again")
    if outcome.value_size >= 0:
        return _stored_value(settled, number, store, 60.0 if timeout_s is None else max(1.0, timeout_s))
    if not outcome.pickled:
        return outcome.value
    if not outcome.value:
        return None  # a command, or the keyed form: there is nothing to return
    try:
        return pickle.loads(outcome.value)  # noqa: S301 - results of the user's own functions, decoded in the user's process
    except RAISED as error:  # code of users: __setstate__ may raise anything
        raise unreadable(f"the result of task {number}_{outcome.index}", error) from error


def _stored_value(settled: Settled, number: int, store: Store, timeout_s: float) -> object:
    outcome = settled.outcome
    task, key = f"{number}_{outcome.index}", keys.output(number, outcome.index, settled.attempt)
    found = store.get_noted_many([key], largest=outcome.value_size, timeout_s=timeout_s).get(key)
    if found is None:
        raise DataLost(f"the result of task {task} ({key}) is missing from the data store", hint="submit it again")
    data, about = found
    if data is None or (outcome.value_sha256 is not None and hashlib.sha256(data).digest() != outcome.value_sha256):
        raise DataLost(f"the result of task {task} ({key}) in the data store is not what its node has stored", hint="submit it again")
    return load(data, about.encoding, f"the result of task {task}")


def error_of(settled: Settled, number: int, *, loses: bool = False) -> BaseException:
    """The exception of a task that did not complete: its own, with the traceback there as cause, or TaskFailed.

    Args:
        loses: always TaskFailed, also when the task raised (what `wait_all` raises; its own exception is then the cause). So it is for
            exceptions that would end this process, or a generator of it, in silence.
    """
    outcome = settled.outcome
    if outcome.state is State.CANCELLED:
        return CancelledError(f"task {number}_{outcome.index} was cancelled")
    raised = raised_by(outcome)
    if raised is not None and not loses and not isinstance(raised, _ENDS):
        return raised
    failed = TaskFailed(
        _sentence(settled, number),
        task_id=f"{number}_{outcome.index}",
        reason=str(outcome.reason),
        attempts=max(1, settled.attempt),
        node=settled.node,
        log_tail=log_tail(outcome),
        work_exit_code=outcome.exit_code,
        hint=_KEYWORDS.get(outcome.reason) or f"rmgr logs {number}_{outcome.index}",
    )
    failed.__cause__ = raised
    return failed


def raised_by(outcome: Outcome) -> BaseException | None:
    """The exception that the task raised, None when it did not end so or it cannot be rebuilt here."""
    if not outcome.value or outcome.reason not in {Reason.EXCEPTION, Reason.BAD_OUTPUT, Reason.START_FAILED}:
        return None
    try:
        error = pickle.loads(outcome.value)  # noqa: S301 - as above
    except RAISED:  # as above; its summary is in the outcome
        return None
    return error if isinstance(error, BaseException) else None

#: How a limit is moved: TaskQueue and Executor take the same keywords.
_KEYWORDS = {
    Reason.TIME_LIMIT: "a longer limit: TaskQueue(f, time=SECONDS or '15m'), and the same of Executor",
    Reason.OUT_OF_MEMORY: "say what it needs: TaskQueue(f, memory=BYTES or '2G'), and the same of Executor",
}


def _sentence(settled: Settled, number: int) -> str:
    outcome = settled.outcome
    where = f" on {settled.node}" if settled.node else ""
    again = f", attempt {settled.attempt}" if settled.attempt > 1 else ""
    what = outcome.error or (f"exit code {outcome.exit_code}" if outcome.exit_code is not None else "no details")
    return f"task {number}_{outcome.index} failed{where}{again}: {outcome.reason} ({what})"


def log_tail(outcome: Outcome) -> str:
    """The last lines of its output, stderr before stdout."""
    for stream in (1, 0):
        data = outcome.log[stream].strip()
        if data:
            return b"\n".join(data.splitlines()[-TAIL_LINES:]).decode("utf-8", "replace")
    return ""


def _share_attributes() -> None:
    """Of the attributes that instances get later only those that the first few had take no dictionary of their own (CPython 3.11).

    Futures get these when they end, thousands after the first was made: 180 bytes each, and twice as much for the collector to look at.
    """
    first: Future = Future.__new__(Future)
    first.index = -1
    for name in ("_settled", "_state", "_result", "_exception", "_decoded", "_hooks"):
        setattr(first, name, getattr(first, name))


_share_attributes()


# -- waiting, wherever it happens: inside a task the slot goes back meanwhile; outside it costs nothing ------------------------


def giving_slot_back() -> AbstractContextManager[None]:
    """Around every wait for other tasks. Only in a worker does it do anything."""
    module = sys.modules.get("rmgr.runner.current")  # a worker has loaded it before any task ran
    return module.blocking() if module is not None else nullcontext()


def check_timeout(seconds: float) -> float:
    """`seconds`, within which something is to be made or opened. Raises UsageError: nothing can be, so the cluster would be blamed."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise UsageError(f"timeout must be more than 0 seconds, not {seconds!r}", hint="leave it out for the usual one")
    return seconds


class Deadline:
    """End of a wait: `left()` seconds, None = never."""

    __slots__ = ("_end",)

    def __init__(self, timeout_s: float | None) -> None:
        self._end = None if timeout_s is None else machine.monotonic() + timeout_s

    def left(self) -> float | None:
        """Seconds left, at least 0; None without a deadline."""
        return None if self._end is None else max(0.0, self._end - machine.monotonic())

    @property
    def is_over(self) -> bool:
        """The time has run out."""
        return self._end is not None and machine.monotonic() >= self._end
