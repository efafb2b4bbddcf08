"""Futures of tasks: `concurrent.futures.Future`, built so that hundreds of thousands can be pending at once.

Two things are lazy. The result is kept as bytes and decoded in the thread that asks for it. The condition variable of
the base class (a kilobyte) is made only when a thread waits, or the base class needs it (`wait`, `as_completed`,
callbacks). Until then one lock for all futures guards the change of state.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
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
from rmgr.model.block import Outcome
from rmgr.model.states import Reason, State
from rmgr.model.units import format_duration
from rmgr.procedures.authentic import LOST
from rmgr.runner.pickles import definitions
from rmgr.runner.unpickling import loads
from rmgr.runtime import machine

if TYPE_CHECKING:
    from rmgr.client.logs import Line
    from rmgr.client.tasks import Tasks

#: A value that stays in its future's end once it is decoded.
_SMALL_BYTES = 256
#: Lines of a failed task's output that its error shows; rows of the table that a notebook shows.
TAIL_LINES, _SHOWN_ROWS = 10, 20
_LOG = logging.getLogger("concurrent.futures")  # the logger of the standard library's futures
_DONE = frozenset({CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED})
#: Time until a task that was found neither waiting nor running is looked for again (s).
_LOOK_AGAIN_S = 0.5
#: Guards the change of state, and the creation of a condition, of all futures that have no condition yet. Reentrant: the garbage
#: collector may run inside and drop a `map` that nothing iterates any more, which then cancels its futures.
_lock = threading.RLock()
#: Exceptions with which a call ends its own process; they must not end this process.
_ENDS = (SystemExit, KeyboardInterrupt, GeneratorExit)


def renew_lock_after_fork() -> None:
    """Replaces the lock in a forked child: another thread may have held it at the fork."""
    global _lock
    _lock = threading.RLock()


class Settled(msgspec.Struct, eq=False, gc=False):
    """End of a task, kept as small as possible. (Millions of them pass.)

    node: "" if the task never ran.
    """

    outcome: Outcome
    node: str
    attempt: int


class _Waiters(list[Any]):
    """The waiters of `concurrent.futures.wait` and `as_completed`. Inside a task, each gives the task's slot back while it waits."""

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
    """Future of one task. Adds `task_id`, `attempt`, `node`, `logs` and others to the standard methods."""

    # Stand in for the attributes of the base class until they are needed.
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
        """Number of the attempt that ended the task (from 1); 0 while the task is not done, or if it never ran."""
        return self._settled.attempt if self._settled is not None else 0

    @property
    def node(self) -> str:
        """Name of the node where the task ended; "" while the task is not done, or if it never ran."""
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
        """Ends the future: the task is final. Cost: about 1 us when nothing waits for it."""
        cancelled = settled.outcome.state is State.CANCELLED
        self._finish(CANCELLED_AND_NOTIFIED if cancelled else FINISHED, settled, None)

    def take(self, settled: Settled) -> bool:
        """Ends the future if its task completed and nothing waits for it. False: call `settle`. The lock of all futures must be held."""
        if self._own_condition is not None or self._hooks or settled.outcome.state is not State.COMPLETED:
            return False
        if self._state not in _DONE:
            self._settled, self._state = settled, FINISHED
        return True

    def break_off(self, error: BaseException) -> None:
        """Ends the future with `error`: no result will come."""
        self._finish(FINISHED, None, error)

    def mark_cancelled(self) -> None:
        """Ends the future as cancelled before the task started."""
        self._finish(CANCELLED_AND_NOTIFIED, None, None)

    def hook(self, hook: Arrivals) -> bool:
        """Registers `hook`, to be called on the Submitter's thread when the future is done. False: it is done already. Drops void hooks."""
        with _lock:
            if self._state in _DONE:
                return False
            self._hooks = (*[known for known in self._hooks if not known.is_void], hook)
            return True

    @property
    def source(self) -> Tasks:
        """The `Tasks` that made this future."""
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
        """How the task ended; None while it has not ended, and if its end is not known."""
        return self._settled

    # -- from the user

    def cancel(self, *, running: bool = False, timeout: float = 30.0) -> bool:
        """Cancels the task if it has not started; asks the cluster if the task was sent already (a few ms).

        Args:
            running: also ends a running task, and waits at most `timeout` seconds for its end.
        Returns: whether it is cancelled. False with `running`: it ended by itself first, or `timeout` expired (the order stands).
        Raises: with `running`: CoordinationUnavailable, PermissionDenied, NotConnected; DeadlineExceeded if it could not be ordered.
        """
        if self._state in _DONE:
            return self._state != FINISHED
        self._source.cancel_futures([self])
        if running and self._state not in _DONE:
            self._end(machine.monotonic() + timeout)
        return self._state in {CANCELLED, CANCELLED_AND_NOTIFIED}

    def _end(self, deadline_s: float) -> None:
        """Has the task ended wherever it is. Looks again for a task that is moving between a queue and a node."""
        while (left_s := deadline_s - machine.monotonic()) > 0:
            ordered = self._source.end_tasks([self.index], reason="", timeout_s=left_s)
            left_s = max(0.01, deadline_s - machine.monotonic())
            with contextlib.suppress(DeadlineExceeded):
                self._await(left_s if ordered else min(left_s, _LOOK_AGAIN_S))
            if self._state in _DONE:
                return

    def running(self) -> bool:
        """Always False: a program is not told when a task starts. (`rmgr tasks ID` shows what runs.)"""
        return False

    def done(self) -> bool:
        """Whether the task is final."""
        return self._state in _DONE

    def cancelled(self) -> bool:
        """Whether the task was cancelled."""
        return self._state in {CANCELLED, CANCELLED_AND_NOTIFIED}

    def result(self, timeout: float | None = None) -> Any:
        """Returns the task's value, or raises its exception with the remote traceback as cause.

        Raises: CancelledError; DeadlineExceeded (a TimeoutError); the task's own exception; TaskFailed for other ends.
        """
        if self._state not in _DONE:
            self._await(timeout)
        if not self._decoded:
            self._decode(timeout)
        if self._state != FINISHED:
            raise self._cancelled()
        if self._exception is not None:
            try:
                raise self._exception
            finally:
                self = None  # type: ignore[assignment]  # noqa: PLW0642 - no reference cycle through the traceback, as in the base class
        return self._result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Returns the task's exception, or None if it completed. Raises CancelledError and DeadlineExceeded, as `result`."""
        if self._state not in _DONE:
            self._await(timeout)
        if not self._decoded:
            self._decode(timeout)
        if self._state != FINISHED:
            raise self._cancelled()
        return self._exception  # type: ignore[no-any-return]

    def logs(self, *, follow: bool = False, stream: str = "", timeout: float | None = None) -> Iterator[Line]:
        """Yields lines that the task has written so far in its latest attempt; with `follow`, lines as they come until the task has ended.

        Args: stream: "stdout" or "stderr", "" = both. timeout: for `follow` (s).
        Returns: texts without line ends, with attributes `stream`, `task_id`, `attempt`.
        Raises: UsageError; DeadlineExceeded; Unavailable (a node, the store, ZooKeeper). Cost: while the task runs, a thread, a call to
            its node, and one look per second at what the nodes run.
        """
        return self._source.lines_of([self], follow=follow, stream=stream, timeout=timeout)

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the task is done, however it ended. Raises DeadlineExceeded."""
        if self._state not in _DONE:
            self._await(timeout)

    def _await(self, timeout: float | None) -> None:
        if timeout is not None and timeout <= 0:
            raise DeadlineExceeded(self._story("not done"))
        self._source.connection.check_waitable()
        condition = self._condition
        with giving_slot_back(), condition:
            if not machine.wait_for(condition, lambda: self._state in _DONE, timeout):
                hint = f"it goes on; why it waits: rmgr explain {self.task_id}" if self.task_id else "it goes on"
                raise DeadlineExceeded(self._story(f"not done within {format_duration(timeout or 0.0)}"), hint=hint)

    def _invoke_callbacks(self) -> None:
        """Calls every callback even if one raises: all run on one thread, which must survive them."""
        for callback in self._done_callbacks:
            try:
                callback(self)
            except BaseException:  # noqa: BLE001 - code of users
                _LOG.exception("exception calling callback for %r", self)

    def _cancelled(self) -> CancelledError:
        why = self._settled.outcome.error if self._settled is not None else ""
        return CancelledError(f"task {self.task_id or '(not sent)'} was cancelled" + (f": {why}" if why else ""))

    def _story(self, what: str) -> str:
        trouble = self._source.connection.trouble()
        return f"task {self.task_id or '(not sent yet)'} is {what}" + (f"; {trouble}" if trouble else "")

    def _decode(self, timeout: float | None) -> None:
        """Decodes the outcome into a value or an exception, once; if two threads do it at the same time, the first one's result stays."""
        settled = self._settled
        if settled is None or self._state != FINISHED:
            self._decoded = True
            return
        value: object = None
        error: BaseException | None = None
        number, store = self._source.number, self._source.store
        if settled.outcome.state is State.COMPLETED:
            try:
                value = value_of(settled, number, store, timeout)
            except Unavailable:
                raise  # the next call may reach the store again
            except Exception as failure:  # noqa: BLE001 - kept, and raised by result()
                error = failure
        else:
            error = error_of(settled, number, raised_by(settled, number, store, timeout))
        with _lock:
            if not self._decoded:
                self._result, self._exception = value, error
                self._decoded = True
                self._settled = _without_value(settled)  # others may have the whole one

    def __reduce__(self) -> NoReturn:
        raise FutureHasNoValue("a Future cannot travel, its value can: pass future.result()")

    @property
    def state(self) -> str:
        """`pending`, `finished` or `cancelled`, as far as this process knows."""
        return "cancelled" if self.cancelled() else self._state.lower()

    def __repr__(self) -> str:
        return f"<rmgr.Future {self.task_id or 'without a number yet'} at {self._source.connection.where}: {self._state.lower()}>"


class Futures(list[Future]):
    """A list of futures in the order of their calls; a notebook shows it as a table: the number in each state, and the first futures."""

    def _repr_html_(self) -> str:
        states = Counter(future.state for future in self)
        counts = ", ".join(f"{count:,} {escaped(state)}" for state, count in sorted(states.items())) or "no futures"
        rows = "".join(
            f"<tr><td>{escaped(future.task_id)}</td><td>{escaped(future.state)}</td><td>{escaped(future.node)}</td>"
            f"<td>{future.attempt or ''}</td></tr>"
            for future in self[:_SHOWN_ROWS]
        )
        more = f"<div>{len(self) - _SHOWN_ROWS:,} more</div>" if len(self) > _SHOWN_ROWS else ""
        head = "<tr><th>task</th><th>state</th><th>node</th><th>attempt</th></tr>"
        return f"<div>{counts}</div><table>{head}{rows}</table>{more}" if self else f"<div>{counts}</div>"


def settle(ended: Sequence[tuple[Future, Settled]]) -> None:
    """Ends the futures of tasks that are final, as `Future.settle` does. Cost: 0.2 us each when nothing waits for them."""
    with _lock:
        seen = [(future, settled) for future, settled in ended if not future.take(settled)]
    for future, settled in seen:
        future.settle(settled)


def _without_value(settled: Settled) -> Settled:
    """Returns the end without its decoded bytes (they may be large)."""
    if len(settled.outcome.value) <= _SMALL_BYTES:
        return settled
    return msgspec.structs.replace(settled, outcome=msgspec.structs.replace(settled.outcome, value=b""))


# -- futures as they end -------------------------------------------------------------------------------------------------------


def as_completed(futures: Iterable[Future], timeout_s: float | None) -> Iterator[Future]:
    """Yields futures as they end, each once, beginning with those that have ended already. Raises DeadlineExceeded."""
    deadline = Deadline(timeout_s)
    arrived: SimpleQueue[Future] = SimpleQueue()
    hook = Arrivals(arrived)
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


class Arrivals:
    """Collects futures that have ended, for one `as_completed`.

    It is void once nothing iterates that `as_completed` any more, so a caller that asks again and again for the next future to
    end leaves nothing behind in the other futures.
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
    """Returns the value of a COMPLETED task. Fetches large values from the store.

    Raises: DataLost, StoreUnavailable; PickleFailed if the value cannot be unpickled here.
    """
    outcome = settled.outcome
    if outcome.error.startswith(LOST):
        why = outcome.error.partition(": ")[2]
        raise DataLost(f"task {number}_{outcome.index} completed, but {why}", hint="submit it again")
    if outcome.value_size >= 0:
        return _stored_value(settled, number, store, timeout_s, "result")
    if not outcome.pickled:
        return outcome.value
    if not outcome.value:
        return None  # a command or a task in the keyed form returns nothing
    try:
        return loads(outcome.value)  # results of the user's own functions, decoded in the user's process
    except RAISED as error:  # code of users: __setstate__ may raise anything
        raise unreadable(f"the result of task {number}_{outcome.index}", error) from error


def _stored_value(settled: Settled, number: int, store: Store, timeout_s: float | None, what: str) -> object:
    outcome = settled.outcome
    task, key = f"{number}_{outcome.index}", keys.output(number, outcome.index, settled.attempt)
    patience_s = 60.0 if timeout_s is None else max(1.0, timeout_s)
    found = store.get_noted_many([key], largest=outcome.value_size, timeout_s=patience_s).get(key)
    if found is None:
        raise DataLost(f"the {what} of task {task} ({key}) is missing from the data store", hint="submit it again")
    data, about = found
    if data is None or (outcome.value_sha256 is not None and hashlib.sha256(data).digest() != outcome.value_sha256):
        raise DataLost(f"the {what} of task {task} ({key}) in the data store is not what its node has stored", hint="submit it again")
    return load(data, about.encoding, f"the {what} of task {task}")


def error_of(settled: Settled, number: int, raised: BaseException | None, *, loses: bool = False) -> BaseException:
    """Returns the exception of a task that did not complete: the task's own, with the remote traceback as cause, or TaskFailed.

    Args:
        raised: what `raised_by` returned.
        loses: always TaskFailed (as `wait_all` raises it), with the task's own exception as its cause. Without `loses` the same holds
            for exceptions that would silently end this process or one of its generators.
    """
    outcome = settled.outcome
    if outcome.state is State.CANCELLED:
        return CancelledError(f"task {number}_{outcome.index} was cancelled")
    if raised is not None and not loses and not isinstance(raised, _ENDS):
        return raised
    has_log = any(outcome.log) or any(outcome.log_parts)
    failed = TaskFailed(
        _sentence(settled, number),
        task_id=f"{number}_{outcome.index}",
        reason=str(outcome.reason),
        attempts=max(1, settled.attempt),
        node=settled.node,
        log_tail=log_tail(outcome),
        work_exit_code=outcome.exit_code,
        hint=_KEYWORDS.get(outcome.reason) or f"rmgr {'logs' if has_log else 'explain'} {number}_{outcome.index}",
    )
    failed.__cause__ = raised
    return failed


def raised_by(settled: Settled, number: int, store: Store, timeout_s: float | None) -> BaseException | None:
    """Returns the exception that the task raised, or None if it raised none or the exception cannot be rebuilt here.

    Fetches a large one from the store. Raises: Unavailable.
    """
    outcome = settled.outcome
    if outcome.reason not in {Reason.EXCEPTION, Reason.BAD_OUTPUT, Reason.START_FAILED}:
        return None
    try:
        if outcome.value_size >= 0:
            error = _stored_value(settled, number, store, timeout_s, "exception")
        else:
            error = loads(outcome.value) if outcome.value else None
    except Unavailable:
        raise
    except RAISED:  # code of users: its summary is in the outcome
        return None
    if not isinstance(error, BaseException):
        return None
    definitions().explain(error)
    return error


#: Begins what `faulthandler` writes: the innermost place comes first there.
_CRASH = b"Fatal Python error: "
#: How a user raises a limit: TaskQueue and Executor take the same keywords.
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
    """Returns the last lines of the task's output, of stderr if there are any, else of stdout; where Python crashed, its report's first."""
    for stream in (1, 0):
        data = outcome.log[stream].strip()
        if (crash := data.rfind(_CRASH)) >= 0:
            return b"\n".join(data[crash:].splitlines()[:TAIL_LINES]).decode("utf-8", "replace")
        if data:
            return b"\n".join(data.splitlines()[-TAIL_LINES:]).decode("utf-8", "replace")
    return ""


def _share_attributes() -> None:
    """Sets the late attributes of futures once on a first instance, so that CPython 3.11 needs no dictionary for each future.

    CPython 3.11 shares only attribute names that the first few instances had. Futures get these names when they end, thousands after
    the first was made. A dictionary would cost 180 bytes per future, and twice as much for the garbage collector to look at.
    """
    first: Future = Future.__new__(Future)
    first.index = -1
    for name in ("_settled", "_state", "_result", "_exception", "_decoded", "_hooks"):
        setattr(first, name, getattr(first, name))


_share_attributes()


# -- waiting: inside a task it gives the slot back meanwhile, elsewhere it costs nothing ---------------------------------------


def giving_slot_back() -> AbstractContextManager[None]:
    """Returns a context for every wait for other tasks; it has an effect only in a worker."""
    module = sys.modules.get("rmgr.runner.current")  # a worker has loaded it before any task ran
    return module.blocking() if module is not None else nullcontext()


def check_timeout(seconds: float) -> float:
    """Returns `seconds`, a timeout for making or opening something. Raises UsageError if not positive: else the cluster would be blamed."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise UsageError(f"timeout must be more than 0 seconds, not {seconds!r}", hint="leave it out for the usual one")
    return seconds


class Deadline:
    """End of a wait: `left()` gives the seconds left, None = no limit."""

    __slots__ = ("_end",)

    def __init__(self, timeout_s: float | None) -> None:
        self._end = None if timeout_s is None else machine.monotonic() + timeout_s

    def left(self) -> float | None:
        """Returns the seconds left, at least 0; None without a deadline."""
        return None if self._end is None else max(0.0, self._end - machine.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether the time has run out."""
        return self._end is not None and machine.monotonic() >= self._end
