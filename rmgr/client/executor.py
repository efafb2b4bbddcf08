"""Executor: a `concurrent.futures.Executor` whose workers are those of the cluster.

    with rmgr.Executor() as executor:          # in place of concurrent.futures.ProcessPoolExecutor()
        results = list(executor.map(simulate, points))
One Executor is one submission; tasks survive the loss of nodes. When this process dies, tasks that were sent still run. The
submission ends once the process has been gone for 10 s. (A TaskQueue stays open: another process may attach to it.)
"""

from __future__ import annotations

import concurrent.futures as stdlib
import contextlib
import itertools
import operator
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

from rmgr.client import content
from rmgr.client.chunk import call_each
from rmgr.client.connection import Connection, at_end, connect, is_ending, try_at_end
from rmgr.client.content import Payload
from rmgr.client.futures import Deadline, Future, Settled, giving_slot_back, raised_by, settle
from rmgr.client.output import LiveEcho, LongEcho, write
from rmgr.client.pickling import dump_call, dump_initializer, name_of, ship, stays_here
from rmgr.client.progress import card, shown_on
from rmgr.client.specs import OF_CALLS, Duration, Options, Size, Variants, draft_of, python_environment
from rmgr.client.submission.packing import TaskSpec
from rmgr.client.tasks import HELD_BYTES, SubmissionOpening, Tasks, batches, calls_at_once, when_dropped
from rmgr.coord.protocol.ports import Store
from rmgr.errors import NotConnected, RemoteTraceback, RmgrError
from rmgr.model.block import INITIALIZER_FAILED, MAX_TASKS, Fragment, Outcome
from rmgr.model.node import NodeState
from rmgr.model.states import Reason, State
from rmgr.model.submission import Work
from rmgr.runner.pickles import definitions
from rmgr.runtime import machine

#: Longest and shortest work of one block (s): no longer, so that no task waits long behind others; no shorter even when little is
#: left, because a slot waits for commits between two blocks.
BLOCK_S, LEAST_S = 0.1, 0.02
#: Overhead of a task beside its own time (us).
_TASK_US = 30.0
_MAX_BYTES = 1024 * 1024
Output = Callable[[Store, int, Outcome, int], None]
_executors: weakref.WeakSet[Core] = weakref.WeakSet()


class Executor(stdlib.Executor):
    """Runs calls on the cluster.

    Args:
        max_workers: most slots in use at once; None: all slots of the cluster.
        initializer, initargs: called once in each worker before its first task.
        cores, memory, time, features, resources: what each call needs and may use ("2G", "1h30m", or bytes and seconds).
        queue, priority: the cluster's queue, and the priority within it.
        name: shown by `rmgr jobs`; default: the name of the first function called.
        retries, backoff, resubmit: as of TaskQueue; resubmit (default): calls run again when their node dies.
        modules, python, on_disconnect: as of TaskQueue.
        output: "echo" writes what calls print to this process's stdout and stderr, as the workers of a process pool do: when a
            call ends, or line by line if the call runs for more than a second or two. With several calls,
            each line begins with its task ("42_7: text"). "live" writes the lines of all calls, "log" leaves them to `rmgr logs`.
        connection: default `rmgr.connect()`. timeout: for requests to the cluster before the first call is sent (s).
    Raises: ValueError, NotConnected, Infeasible, NotFound (queue), PickleFailed (initializer).
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        queue: str = "",
        name: str = "",
        cores: int = 1,
        memory: Size = None,
        time: Duration = None,
        features: Sequence[str] = (),
        resources: Mapping[str, int] | None = None,
        priority: int = 0,
        retries: int = 0,
        backoff: Duration = None,
        resubmit: bool = True,
        modules: Iterable[ModuleType | str] = (),
        python: str = "",
        on_disconnect: str = "keep",
        output: str = "echo",
        connection: Connection | None = None,
        timeout: float = 30.0,
    ) -> None:
        asked = {name: value for name, value in locals().items() if name not in {"self", "connection", "__class__"}}
        cap = None if max_workers is None else operator.index(max_workers)
        if cap is not None and cap <= 0:
            raise ValueError("max_workers must be greater than 0")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        if output not in {"echo", "live", "log"}:
            raise ValueError(f"output must be 'echo', 'live' or 'log', not {output!r}")
        self._cap = cap
        named = {"name": name or "executor", "python": python}  # until its first call
        options = Options(**{key: asked[key] for key in OF_CALLS} | named)
        connection = connection or connect()
        self._variants: Variants[Executor] = Variants(partial(Executor, connection=connection), asked, OF_CALLS)
        self._core = core = Core(
            connection,
            options,
            cap=cap,
            modules=tuple(modules),
            initializer=None if initializer is None else (initializer, tuple(initargs)),
            group=machine.guid() if initializer is not None else "",
            on_output=write if output == "echo" else None,
            is_live=output == "live",
            is_named=bool(name),
            timeout_s=timeout,
        )
        _executors.add(core)
        at_end("executors", _end_executors)
        when_dropped(self, core.let_go)

    # -- what libraries look at

    @property
    def _max_workers(self) -> int:
        return self._cap or self._core.slots()

    @property
    def _broken(self) -> BrokenExecutor | None:
        return self._core.broken

    @property
    def _shutdown(self) -> bool:
        return self._core.is_shut

    @property
    def id(self) -> int | None:
        """Number of the submission; None before the first call."""
        return self._core.number or None

    def __repr__(self) -> str:
        core = self._core
        where, shut = core.connection.where, ", shut down" if core.is_shut else ""
        if not core.number:
            return f"<rmgr.Executor at {where}: unused{shut}>"
        return f"<rmgr.Executor {core.number} at {where}: {core.ended} call{'s' * (not core.ended.endswith(' of 1'))} ended{shut}>"

    def __reduce__(self) -> NoReturn:
        stays_here("an Executor", "make one where it is needed: rmgr.Executor() in a task has the same cluster")

    def _repr_html_(self) -> str:
        core = self._core
        return card("Executor", str(core.number or ""), core.connection.where, core.progress, "shut down" * core.is_shut)

    def with_options(self, **options: Any) -> Executor:
        """Returns an executor with other options: `executor.with_options(cores=2, priority=1).submit(f, 7)`.

        Args:
            options: name, queue, cores, memory, time, features, resources, priority, retries, backoff, resubmit, on_disconnect, as
                of Executor; options not named stay as in this one.
        Returns: an Executor with its own submission, and its own `max_workers` if this one has a limit. The same options give
            the same Executor. `shutdown` of this Executor shuts it down, too.
        Raises: UsageError (unknown option, or a bad value), Infeasible, NotFound (queue), RuntimeError after `shutdown`.
        """
        self._core.check_open()
        return self._variants.get(self, options)

    # -- concurrent.futures.Executor

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """Schedules `fn(*args, **kwargs)` and returns its future.

        Raises: RuntimeError after `shutdown`; BrokenExecutor if the initializer has failed; PickleFailed naming the
            argument; ValueTooLarge; and, at the first call, the errors of creating a submission.
        """
        core = self._core
        core.check_open()
        spec = core.spec_of(fn)
        core.name_after(fn)
        return core.add(spec, [dump_call(args, kwargs, name_of(fn))])[0]

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[Any]:
        """Calls `fn` for each tuple of arguments, in parallel, like the built-in `map`; yields the results in order.

        Args:
            timeout: for all results together (TimeoutError).
            chunksize: calls per task, for very short calls with small arguments (blocks do most of this anyway).
            buffersize: most results scheduled ahead of the one being read; None: reads and schedules all input at once.
        Returns: an iterator. Dropping it cancels calls that have not started, once it was asked for a result.
        Raises: at once, as `submit`, and errors of reading the input; calls added before that run. While iterating: the error of a call,
            or of the first failing call of a chunk; TimeoutError; CancelledError. Cost: one pickle of the arguments per call.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if buffersize is not None and (not isinstance(buffersize, int) or isinstance(buffersize, bool)):
            raise TypeError("buffersize must be an integer or None")
        if buffersize is not None and buffersize < 1:
            raise ValueError("buffersize must be None or > 0")
        deadline = Deadline(timeout)
        core = self._core
        core.check_open()
        core.name_after(fn)
        calls: Iterator[tuple[Any, ...]] = zip(*iterables, strict=False)
        at_once, name = calls_at_once(iterables), name_of(fn)
        if chunksize == 1:
            payloads = (dump_call(args, {}, name) for args in calls)
            return _results(core, core.spec_of(fn), payloads, deadline, buffersize, at_once)
        chunks = iter(lambda: list(itertools.islice(calls, chunksize)), [])
        payloads = (dump_call((chunk,), {}, name) for chunk in chunks)
        window = None if buffersize is None else -(-buffersize // chunksize)
        return itertools.chain.from_iterable(_results(core, core.spec_of(partial(call_each, fn)), payloads, deadline, window, at_once))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Closes the executor to new calls; waits until all have ended unless `wait` is False. Idempotent."""
        others = self._variants.all()
        for core in (self._core, *(other._core for other in others)):  # noqa: SLF001 - of this class
            core.shut(cancel=cancel_futures)
        for other in others:
            other.shutdown(wait, cancel_futures=cancel_futures)  # and the executors made from it
        if wait:
            self._core.wait_done()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Waits for submitted calls. After Ctrl-C it says how many are left; another Ctrl-C leaves them to the cluster."""
        core = self._core
        waiting = self._count_left() if kind is not None and issubclass(kind, KeyboardInterrupt) else 0
        if waiting:
            _say(f"{waiting} call{'s' * (waiting != 1)} of submission {core.number} not ended yet; waiting (Ctrl-C again leaves)")
        try:
            self.shutdown()
        except KeyboardInterrupt:
            _executors.discard(core)  # else the end of the interpreter would wait for its calls
            for other in self._variants.all():
                _executors.discard(other._core)  # noqa: SLF001 - of this class
                other._core.leave()  # noqa: SLF001 - as above
            core.leave()
            if core.number:
                _say(f"left submission {core.number}, what was sent goes on: rmgr jobs {core.number} (rmgr cancel {core.number} ends it)")
            raise

    def _count_left(self) -> int:
        """Returns the number of calls that have not ended, including those of `with_options`."""
        return self._core.count_left() + sum(other._count_left() for other in self._variants.all())  # noqa: SLF001 - as above


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # the reader is gone, or there is no stderr
        sys.stderr.write(shown_on(f"rmgr: {text}\n", sys.stderr))
        sys.stderr.flush()


def _results(
    core: Core, spec: TaskSpec, payloads: Iterator[Payload], deadline: Deadline, window: int | None, at_once: int
) -> Iterator[Any]:
    """Schedules all calls, or the first `window`, now and yields results later; cancels calls whose results are not asked for."""
    futures: deque[Future] = deque()
    for batch in batches(itertools.islice(payloads, window), at_once):
        futures.extend(core.add(spec, batch))
    return _yield_results(core, spec, payloads, deadline, futures)


def _yield_results(
    core: Core, spec: TaskSpec, payloads: Iterator[Payload], deadline: Deadline, futures: deque[Future]
) -> Iterator[Any]:
    try:
        while futures:
            for payload in itertools.islice(payloads, 1):
                futures.extend(core.add(spec, [payload]))
            futures[0].wait(deadline.left())
            yield futures.popleft().result()
    finally:
        left = [future for future in futures if not future.done()]
        if left and not core.is_over:
            core.abandon(left)


def _end_executors() -> None:
    """Makes the interpreter wait for submitted calls at exit, as the pools of concurrent.futures do."""
    for core in list(_executors):
        if core.connection.is_usable:
            try_at_end(core.end)


class BrokenExecutor(RmgrError, stdlib.BrokenExecutor):
    """The initializer failed, so no worker can be made and no call can run. `__cause__` is the initializer's error."""


class Core(Tasks):
    """The tasks of one Executor and the state that outlives it: its submission, its futures, and when the submission ends.

    The Executor holds the core, never the reverse: dropping an Executor shuts it down, and its calls still end.

    Args:
        cap: most slots in use at once, None = no cap. on_output: takes the output of calls. is_live: writes output as it comes.
        group: workers are shared only within it. is_named: the user has named the submission.
    """

    def __init__(
        self,
        connection: Connection,
        options: Options,
        *,
        cap: int | None,
        modules: tuple[ModuleType | str, ...],
        initializer: tuple[Callable[..., object], tuple[Any, ...]] | None,
        group: str,
        on_output: Output | None,
        is_live: bool = False,
        is_named: bool = True,
        timeout_s: float,
    ) -> None:
        super().__init__(connection)
        submitter = connection.submitter
        self.broken: BrokenExecutor | None = None
        self.is_shut = False
        self._timeout_s = timeout_s
        self._on_output = on_output
        self._live = LiveEcho(self) if is_live else LongEcho(self) if on_output is not None else None
        self._has_initializer = initializer is not None
        definitions().look_again()
        digest = ""
        if initializer is not None:
            digest = connection.functions.initializer(dump_initializer(*initializer), timeout_s=timeout_s)
        environment = python_environment(
            python=options.python, modules=ship(submitter.store, modules, timeout_s=timeout_s), initializer=digest, group=group
        )
        draft = draft_of(options, work=Work.PYTHON, python=environment, user=submitter.user, ends_with_owner=True)
        self._opening = SubmissionOpening(submitter, draft, timeout_s=timeout_s)
        self._draft = self._opening.draft
        self._throttle = Throttle(self, cap or 0)
        self._adding = threading.Lock()
        self._completed = False
        self._is_named = is_named

    @property
    def has_pending(self) -> bool:
        """Whether some added calls have not ended."""
        return bool(self._pending) or not self._throttle.is_empty

    @property
    def is_over(self) -> bool:
        """Whether the executor is shut down and no call is left to end."""
        return self.is_shut and not self._pending

    # -- adding

    def check_open(self) -> None:
        """Raises an error if no further call can be added."""
        if self.broken is not None:
            raise self._break(self.broken)
        if self.is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if is_ending():
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    def spec_of(self, function: Callable[..., Any]) -> TaskSpec:
        """Returns what calls of `function` share; uploads the function if the store lacks it."""
        if not callable(function):
            raise TypeError(f"{function!r} is not callable")
        digest = self.connection.functions.register(function, timeout_s=self._timeout_s)
        return TaskSpec(function=digest, resubmit=self._draft.resubmit, retries=self._draft.retries)

    def name_after(self, function: Callable[..., Any]) -> None:
        """Names the submission after its first function, unless the user has named it."""
        if not self._is_named and self._opening is not None and callable(function):
            self._is_named = True
            self._opening.draft = replace(self._opening.draft, name=name_of(function)[:200])

    def add(self, spec: TaskSpec, payloads: Sequence[Payload], **_: Any) -> list[Future]:
        """Adds calls and returns their futures. The first call creates the submission."""
        if self.handle is not None:
            self.wait_room(block=True, timeout_s=None)
        with self._adding:
            self.check_open()
            if not self._throttle.cap:
                added = super().add(spec, payloads)
                if self._live is not None:
                    self._live.begin()
                return added
            self.opened()
            calls = [OutgoingTask(spec, *self._store_if_large(payload), Future(self)) for payload in payloads]
            self._throttle.add(calls)
            if self._live is not None:
                self._live.begin()
            return [call.future for call in calls]

    def _store_if_large(self, payload: Payload) -> tuple[bytes, str]:
        """Returns (arguments, ""), or (b"", name of the row that holds them) if they are large."""
        return (content.whole([payload])[0], "") if len(payload) <= HELD_BYTES else (b"", self.store_row(payload))

    def slots(self) -> int:
        """Returns the number of calls that the cluster can run at once."""
        request = self._draft.request
        nodes = [node for node in self.connection.submitter.nodes() if node.state is NodeState.UP]
        return max(1, sum(node.capacity.cores // request.cores for node in nodes))

    # -- from the Submitter

    def on_outcomes(self, fragment: Fragment, outcomes: Sequence[Outcome]) -> None:
        """See `handle.Listener`."""
        if self._has_initializer and self.broken is None:
            refused = next((outcome for outcome in outcomes if _is_refusal(outcome)), None)
            if refused is not None:
                self._fail(Settled(refused, fragment.node, refused.attempt or fragment.attempt))
        super().on_outcomes(fragment, outcomes if self._live is None else self._tell(self._live, fragment, outcomes))
        self._throttle.ended(outcomes)
        if self.is_shut:
            self._complete()

    def on_dead(self, error: RmgrError) -> None:
        """See `handle.Listener`."""
        super().on_dead(error)
        if isinstance(error, NotConnected):
            error = NotConnected("the connection was closed before this call was sent: it will not run")
        for future in self._throttle.take_back():
            future.break_off(error)

    def _tell(self, live: LiveEcho, fragment: Fragment, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """Has the output of these calls written, and then their futures settled: a result comes after what its call has printed.

        Returns: the calls that have printed nothing.
        """
        live.heard()
        silent: list[Outcome] = []
        spoke: list[Outcome] = []
        for outcome in outcomes:
            is_silent = outcome.log == (b"", b"") and outcome.log_parts == (0, 0)
            if is_silent:
                silent.append(outcome)
            if live.takes(outcome.index):
                ended = [] if is_silent else self.take_ended(fragment, [outcome])
                live.end(outcome, outcome.attempt or fragment.attempt, partial(settle, ended))
            elif not is_silent:
                spoke.append(outcome)
        if spoke:
            self.connection.submitter.write_soon(partial(self._write, fragment, spoke, self.take_ended(fragment, spoke)))
        return silent

    def _write(self, fragment: Fragment, spoke: Sequence[Outcome], ended: Sequence[tuple[Future, Settled]]) -> None:
        assert self._on_output is not None
        try:
            for outcome in spoke:
                self._on_output(self.store, self.number, outcome, outcome.attempt or fragment.attempt)
        finally:
            settle(ended)

    def _fail(self, settled: Settled) -> None:
        """Ends every call with BrokenExecutor, and refuses later calls: no worker can be made."""
        outcome = settled.outcome
        error = BrokenExecutor(f"the initializer of the workers failed: {outcome.error}", hint=f"rmgr logs {self.number}_{outcome.index}")
        is_here = outcome.value_size < 0  # this thread does not wait for the store
        raised = raised_by(settled, self.number, self.store, None) if is_here else None
        error.__cause__ = raised if raised is not None else RemoteTraceback(outcome.error)
        self.broken = error
        for future in self._throttle.take_back():
            future.break_off(self._break(error))
        while self._pending:
            try:
                _, future = self._pending.popitem()
            except KeyError:
                break
            future.break_off(self._break(error))
        self.call_soon(self._cancel_rest)

    def _cancel_rest(self) -> None:
        from rmgr.submitter.questions import CancelSubmission

        try:
            self.connection.asks.ask(CancelSubmission(number=self.number, detail="the initializer failed"), timeout_s=10.0)
        except RmgrError:
            return  # its tasks fail one by one instead

    def let_go(self) -> None:
        """Shuts down, because the Executor was dropped."""
        if not self.is_shut:
            self.shut(cancel=False)

    def _break(self, error: BrokenExecutor) -> BrokenExecutor:
        """Returns a copy of the error for each raise, because tracebacks must not be shared."""
        copy = BrokenExecutor(error.message, hint=error.hint)
        copy.__cause__ = error.__cause__
        return copy

    # -- for futures

    def cancel_futures(self, futures: Sequence[Future]) -> list[Future]:
        """See `Tasks`."""
        self._throttle.cancel(set(futures))
        if self._throttle.cap and self.is_shut:
            self._complete()  # also if `abandon` took the last waiting ones
        if self.handle is None or all(future.done() for future in futures):
            return [future for future in futures if future.cancelled()]
        return super().cancel_futures(futures)

    def abandon(self, futures: list[Future]) -> None:
        """Cancels those of `futures` that have not started, without waiting for the cluster: no caller will ask for them."""

        def cancel() -> None:
            try:
                self.cancel_futures(futures)
            except RmgrError:
                return  # they run, and their results are ignored

        self._throttle.cancel(set(futures))
        self.call_soon(cancel)

    # -- the end

    def shut(self, *, cancel: bool) -> None:
        """Closes the executor to new calls. cancel: cancels calls that have not started."""
        with self._adding:
            self.is_shut = True
        if cancel and self._throttle.cap:  # a call that was sent counts as started, as in the call queue of a process pool
            self._throttle.cancel()
        elif cancel and (left := self.unfinished()):
            self.cancel_futures(left)
        self._complete()

    def _complete(self) -> None:
        if self._completed or self.handle is None or not self.connection.is_usable or self.dead is not None:
            return
        if self._throttle.is_empty:
            self._completed = True
            self.handle.complete()

    def count_left(self) -> int:
        """Returns the number of calls that have not ended."""
        return len(self.unfinished()) + len(self._throttle.waiting())

    def leave(self) -> None:
        """Stops waiting: calls that were sent go on; calls that this process holds back to keep the cap are cancelled."""
        self.is_shut = True
        self._throttle.cancel()
        self._complete()

    def end(self) -> None:
        """Closes the executor to new calls and waits until all have ended."""
        self.shut(cancel=False)
        self.wait_done()

    def wait_done(self) -> None:
        """Waits until every call has ended and its output was written. Does nothing in a forked child: the calls are its parent's."""
        if self.connection.is_forked:
            return
        with giving_slot_back():
            while left := [*self.unfinished(), *self._throttle.waiting()]:
                for future in left:
                    future.wait()
        if self._live is not None and self.connection.is_usable:
            self._live.settle(10.0)
        if self._on_output is not None and self.handle is not None and self.connection.is_usable:
            written = threading.Event()
            self.connection.submitter.write_soon(written.set)
            written.wait(10.0)
        if self.handle is not None and self._completed and self.connection.is_usable and self.dead is None:
            try:
                self.handle.flush(10.0)
            except RmgrError:
                return  # the leader declares it complete


def _is_refusal(outcome: Outcome) -> bool:
    return outcome.state is State.FAILED and outcome.reason is Reason.START_FAILED and outcome.error.startswith(INITIALIZER_FAILED)


@dataclass(slots=True, eq=False)
class OutgoingTask:
    """A task on its way out. row: the row that holds its arguments if they are large."""

    spec: TaskSpec
    payload: bytes
    row: str
    future: Future


class Throttle:
    """A cap on slots in use: tasks wait here and leave in serial blocks, with never more blocks in flight than the cap. 0 = no cap: no task
    waits here.

    A serial block runs one task after another in one slot and is never taken in part, so blocks in flight are slots in
    flight. A block holds about `BLOCK_S` of work, as measured, and never more than its share of the waiting tasks.
    The Submitter's thread and callers' threads use it; `_lock` guards it.
    """

    def __init__(self, tasks: Tasks, cap: int) -> None:
        self.cap = cap
        self._tasks = tasks
        self._lock = threading.RLock()
        self._waiting: deque[OutgoingTask] = deque()
        self._left: dict[int, list[int]] = {}  #: index -> [tasks of its block that have not ended]
        self._flying = 0
        self._mean_us: float | None = None

    def add(self, calls: Iterable[OutgoingTask]) -> None:
        """Adds calls, which go out as soon as there is room."""
        with self._lock:
            self._waiting.extend(calls)
            self._send()

    def ended(self, outcomes: Sequence[Outcome]) -> None:
        """Counts these tasks as ended, and sends more."""
        if not self.cap:
            return
        with self._lock:
            for outcome in outcomes:
                if outcome.elapsed_us:
                    mean = self._mean_us
                    self._mean_us = outcome.elapsed_us if mean is None else 0.9 * mean + 0.1 * outcome.elapsed_us
                left = self._left.pop(outcome.index, None)
                if left is not None:
                    left[0] -= 1
                    if not left[0]:
                        self._flying -= 1
            self._send()

    def take_back(self, futures: set[Future] | None = None) -> list[Future]:
        """Removes waiting calls (all, or those of `futures`) and returns their futures; they will not go out."""
        with self._lock:
            taken = [call.future for call in self._waiting if futures is None or call.future in futures]
            gone = set(taken)
            self._waiting = deque(call for call in self._waiting if call.future not in gone)
        return taken

    def cancel(self, futures: set[Future] | None = None) -> None:
        """Takes calls back as `take_back` does, and cancels them."""
        for future in self.take_back(futures):
            future.mark_cancelled()

    def waiting(self) -> list[Future]:
        """Returns the futures of the calls that wait here."""
        with self._lock:
            return [call.future for call in self._waiting]

    @property
    def is_empty(self) -> bool:
        """Whether no call waits here."""
        return not self._waiting

    def _send(self) -> None:
        while self._waiting and self._flying < self.cap:
            block = self._next_block()
            futures = [call.future for call in block]
            self._flying += 1
            try:
                first = self._tasks.add_for(
                    block[0].spec, [call.payload for call in block], futures, solid=len(block) > 1, row=block[0].row
                )
            except RmgrError as error:
                self._flying -= 1
                for future in futures:
                    future.break_off(error)
                continue
            left = [len(block)]
            for index in range(first, first + len(block)):
                self._left[index] = left

    def _next_block(self) -> list[OutgoingTask]:
        waiting, size = self._waiting, self._size()
        block = [waiting.popleft()]
        spec, room = block[0].spec, _MAX_BYTES - len(block[0].payload)
        while waiting and len(block) < size and waiting[0].spec == spec and not (block[0].row or waiting[0].row):
            room -= len(waiting[0].payload)
            if room < 0:
                break
            block.append(waiting.popleft())
        return block

    def _size(self) -> int:
        """Returns the number of tasks in the next block: one until their running time is known."""
        if self._mean_us is None:
            return 1
        each_us = self._mean_us + _TASK_US
        share = -(-len(self._waiting) // (2 * self.cap))
        return max(1, min(MAX_TASKS, max(share, int(LEAST_S * 1e6 / each_us)), int(BLOCK_S * 1e6 / each_us)))
