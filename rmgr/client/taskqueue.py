"""TaskQueue: a growing set of calls of one function, each durable once it is submitted.

with TaskQueue(energy, cores=4) as queue:
    queue.submit(inputs=["in/7"], outputs=["out/7"])      # values by key
    future = queue.submit_call(3.5, seed=1)               # plain arguments
    queue.wait_all(progress=True)
"""

from __future__ import annotations

import hashlib
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, Self

import msgspec

from rmgr.client.connection import Connection, at_end, connect, try_at_end
from rmgr.client.futures import Deadline, Future, Futures, as_completed, check_timeout, giving_slot_back
from rmgr.client.pickling import dump_call, name_of, ship, stays_here
from rmgr.client.progress import ProgressDisplay, card
from rmgr.client.specs import (
    OF_TASKS,
    Duration,
    Options,
    Size,
    Variants,
    draft_of,
    launch_of,
    options_of,
    python_environment,
)
from rmgr.client.submission.packing import TaskSpec
from rmgr.client.tasks import SubmissionOpening, Tasks, Waited, batches, calls_at_once, when_dropped
from rmgr.coord.decisions.rights import trusted
from rmgr.coord.protocol.keys import check_new_key, check_user_key
from rmgr.coord.protocol.ports import SessionState, Store
from rmgr.coord.protocol.records import decode_keyed, decode_payloads, encode_keyed
from rmgr.coord.seal import row_digest
from rmgr.errors import (
    DataLost,
    DeadlineExceeded,
    KeyExists,
    NotFound,
    RmgrError,
    StateConflict,
    SubmitUnknown,
    TaskFailed,
    UsageError,
    ValueTooLarge,
)
from rmgr.model.base import parse_submission, taskq_name
from rmgr.model.block import MAX_KEYED_BYTES, MAX_KEYS, Call, Fragment, KeyedPayload, Outcome
from rmgr.model.states import State
from rmgr.model.submission import Submission, Terms, Work
from rmgr.model.units import duration_us_of, format_duration, size_of
from rmgr.runner.pickles import definitions
from rmgr.runner.program import mine
from rmgr.submitter.questions import CancelSubmission, CountFragments

if TYPE_CHECKING:
    from rmgr.client.logs import Line
    from rmgr.client.submission.handle import SubmissionHandle
    from rmgr.client.values import Values

#: Characters of a value that an error message shows.
_MOST_SHOWN = 60
#: How long the end of the process waits, for all queues together, until submitted tasks are durable (s).
_LAST_FLUSH_S = 10.0
#: How often a wait without news checks that the cluster still answers (s).
TICK_S = 1.0
#: Output keys remembered before the keys of tasks that have claimed theirs are forgotten.
_MANY_UNCLAIMED = 10_000
#: Bytes of a row of arguments; a larger row is refused.
_MOST_BYTES = 256 * 1024 * 1024
_open_queues: weakref.WeakSet[TaskQueue] = weakref.WeakSet()


class TaskQueue:
    """A queue of calls of one function.

    Args:
        function: a callable, or the id that `Connection.register` returned.
        cores, memory, time, features, resources: what each task needs and may use ("2G", "1h30m", or bytes and seconds).
        processes, nodes: number of processes of a task (cores and memory are per process) and of nodes; the leader places such a task.
        launch: "ranks": every process calls the function, with RMGR_RANK, RMGR_NPROCS, RMGR_NODE and so on in its environment.
            "mpi": the processes are one MPI program, and the function's parameter `comm` is an mpi4py communicator of all of them;
            the nodes need mpirun and mpi4py (default for a function with a parameter `comm`). "once": only the first node calls
            the function, which may start more with `rmgr run` or mpirun. The result is what rank 0 returns. A rank that
            raises an exception ends all ranks, and the attempt FAILED.
        queue: the cluster's queue. priority: within that queue, higher first. name: shown by `rmgr jobs`; default: the function's name.
        resubmit: True runs tasks again after a loss (their node died); False starts at most one attempt.
        retries, backoff: how often, and after what delay, a task that failed by itself runs again.
        modules: local modules or packages that the workers lack, shipped by content.
        python: interpreter on the nodes. on_disconnect: "keep" or "exclusive" (never runs twice at a time).
        overwrite: default of `submit`: replaces output keys that exist.
        token: makes creation idempotent: the same token gives the same queue.
        connection: default `rmgr.connect()`. timeout: for the creation (s). A queue without a token is recorded in the commit of its
            first tasks, or when its `id` is read.
    Raises: NotConnected, CoordinationUnavailable, StoreUnavailable, Infeasible, NotFound (queue), PickleFailed, SubmitUnknown.
    """

    def __init__(
        self,
        function: Callable[..., Any] | str,
        cores: int = 1,
        *,
        processes: int = 1,
        nodes: int = 0,
        launch: str = "",
        queue: str = "",
        name: str = "",
        priority: int = 0,
        retries: int = 0,
        backoff: Duration = None,
        resubmit: bool = True,
        memory: Size = None,
        time: Duration = None,
        features: Sequence[str] = (),
        resources: Mapping[str, int] | None = None,
        modules: Iterable[ModuleType | str] = (),
        python: str = "",
        on_disconnect: str = "keep",
        overwrite: bool = False,
        token: str = "",
        connection: Connection | None = None,
        timeout: float = 30.0,
    ) -> None:
        asked = {name: value for name, value in locals().items() if name not in {"self", "connection", "__class__"}}
        check_timeout(timeout)
        submitter = (connection := connection or connect()).submitter
        if isinstance(function, str):
            digest = connection.functions.check(function, timeout_s=timeout)
        else:
            definitions().look_again()
            digest = connection.functions.register(function, timeout_s=timeout)
        name = name or ("python" if isinstance(function, str) else name_of(function)[:200])
        launch = launch or launch_of(function, several=processes > 1 or nodes > 1)
        options = Options(**{key: asked[key] for key in OF_TASKS} | {"name": name, "launch": launch, "token": token})
        # A function that was registered brings its values as they were then.
        group = digest[:32] if isinstance(function, str) and mine().workers["group"] else ""
        environment = python_environment(python=python, modules=ship(submitter.store, modules, timeout_s=timeout), group=group)
        draft = draft_of(options, work=Work.PYTHON, python=environment, function=digest, user=submitter.user)
        opening = SubmissionOpening(submitter, draft, timeout_s=timeout)
        draft, tasks = opening.draft, Tasks(connection, keep_all=bool(token), opening=opening)
        if token or submitter.session_state is not SessionState.CONNECTED:  # may attach to a queue that exists; raises if disconnected
            draft = tasks.opened().submission
        self._begin(connection, tasks, draft, overwrite=overwrite, attached=bool(token), function=function, asked=asked)

    def _begin(
        self,
        connection: Connection,
        tasks: Tasks,
        record: Submission,
        *,
        overwrite: bool,
        attached: bool = False,
        function: object = None,
        asked: dict[str, Any] | None = None,
    ) -> None:
        self.connection = connection
        options = asked if asked is not None else {**options_of(record), "overwrite": overwrite}
        self._variants: Variants[TaskQueue] = Variants(partial(TaskQueue, connection=connection), options, OF_TASKS)
        self.is_closed = False
        self._tasks: Tasks = tasks
        self._attached = attached
        self._record = record
        self._specs: dict[tuple[str, bool, int, bool], TaskSpec] = {}
        self._plain_function = function if isinstance(function, types.FunctionType) else None
        self._function_name = record.name
        self._overwrite = overwrite
        self._adding = threading.Lock()
        self._keys = TaskKeys(connection.store)
        _open_queues.add(self)
        if not attached:
            when_dropped(self, tasks.let_go)
        at_end("task queues", _flush_open_queues)

    @classmethod
    def attach(cls, name: str | int, *, connection: Connection | None = None, overwrite: bool = False, timeout: float = 30.0) -> TaskQueue:
        """Continues a queue that another process made: the same results, and new tasks once that process is gone.

        Args:
            name: "taskq-0000000007", or 7.
        Raises: NotFound if there is no such submission or it was collected (`rmgr history` shows its end); UsageError.
        """
        check_timeout(timeout)
        number = name if isinstance(name, int) else parse_submission(name)
        connection = connection or connect()
        tasks = Tasks(connection, keep_all=True)
        handle = tasks.handle = connection.submitter.attach(number, tasks, own=True, timeout_s=timeout)
        if handle.submission.work is not Work.PYTHON:
            raise UsageError(f"submission {number} runs commands, it is not a TaskQueue", hint=f"rmgr wait {number}")
        made = cls.__new__(cls)
        made._begin(connection, tasks, handle.submission, overwrite=overwrite, attached=True)  # noqa: SLF001 - a constructor of this class
        return made

    def own(self, timeout: float | None = None) -> int:
        """Waits until this process may add tasks: at once for a queue of its own, after `attach` when the former owner is gone.

        Returns: the number of tasks so far, which is the index of the next one, so an interrupted loop continues there. A
            queue that was completed already has all its tasks.
        Raises: StateConflict if the owner is alive, or the queue was cancelled.
        """
        progress = self._handle.progress
        if not progress.tail.complete:
            try:
                self._tasks.wait_room(block=True, timeout_s=timeout)
            except StateConflict:
                if not progress.tail.complete:
                    raise
        return len(self)

    # -- what it is

    @property
    def _handle(self) -> SubmissionHandle:
        """Returns the submission, recording it first if needed. A recorded one keeps its number and name when the connection is gone."""
        handle = self._tasks.handle
        return handle if handle is not None else self._tasks.opened()

    @property
    def id(self) -> int:
        """Number of the submission, as `rmgr jobs` shows it. Reading it records the queue if nothing was submitted before."""
        return self._handle.number

    @property
    def name(self) -> str:
        """`taskq-0000000042`: the name by which another process attaches."""
        return taskq_name(self._handle.number)

    @property
    def function(self) -> str:
        """Id of the queue's function."""
        return self._record.function

    def __len__(self) -> int:
        return 0 if self._tasks.handle is None else max(self._handle.next_index, self._handle.progress.total)

    def __repr__(self) -> str:
        where = f"{self._function_name} at {self.connection.where}"
        if self._tasks.handle is None:
            return f"<rmgr.TaskQueue {where}: unused>"
        return f"<rmgr.TaskQueue {self.name} {where}: {self._tasks.ended} task{'s' * (len(self) != 1)} ended{', closed' * self.is_closed}>"

    def __reduce__(self) -> NoReturn:
        stays_here("a TaskQueue", "pass its name, and TaskQueue.attach(name) there; or make one where it is needed: rmgr.TaskQueue(f)")

    def _repr_html_(self) -> str:
        name = "" if self._tasks.handle is None else self.name
        more = (f"function {self._function_name}", "closed" * self.is_closed)
        return card("TaskQueue", name, self.connection.where, self._tasks.progress, *more)

    # -- submitting

    def submit(
        self,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
        resubmit: bool | None = None,
        *,
        retries: int | None = None,
        overwrite: bool | None = None,
        trust: str | Sequence[str] = (),
        check: bool = False,
        block: bool = True,
        timeout: float | None = None,
    ) -> Future:
        """Submits one task in the keyed form: the function gets the values of its input keys and returns one value per output key.

        Output keys are claimed many at a time, when tasks become durable. A key that this process knows to be taken is refused at once.
        A key that another task has taken ends this task FAILED with OUTPUT_EXISTS: the future, `wait_all` and `flush` raise it.

        Args:
            inputs, outputs: keys in the data store (`Connection.store`). resubmit: run again after a loss; None: the queue's setting.
            trust: other users whose pickled values the task may load as inputs. Loading them runs those users' code under your name.
            overwrite: replaces output keys that exist. block, timeout: what to do when the queue is full (QueueFull).
            check: looks up all keys, and waits until the task is durable and has claimed its output keys.
        Returns: a future whose result is None; the values are under the output keys.
        Raises: KeyExists (an output key is known to be taken), QueueFull, StateConflict (closed or cancelled).
            With `check` also PermissionDenied (a key belongs to another user), StoreUnavailable, SubmitUnknown.
        Cost: 20 us; with `check` as `flush`, and one read per key.
        """
        if isinstance(inputs, str) or isinstance(outputs, str):
            raise UsageError("inputs and outputs are lists of keys", hint='inputs=["in/7"], outputs=["out/7"]')
        if resubmit is not None and not isinstance(resubmit, bool):
            message = f"submit takes keys of the data store; resubmit = {_value_text(resubmit)} is not True or False"
            raise UsageError(message, hint="plain arguments: queue.submit_call(1, 2, 3)")
        try:
            check_names(inputs, outputs)
        except (TypeError, UsageError):
            _check_keys(inputs, outputs)
            raise
        record = self._record
        replace = self._overwrite if overwrite is None else overwrite
        payload = encode_keyed(KeyedPayload(tuple(inputs), tuple(outputs), replace, trusted(trust)))
        if len(payload) > MAX_KEYED_BYTES:
            message = f"the keys of a task have {len(payload):,} bytes; the limit is {MAX_KEYED_BYTES:,}"
            raise ValueTooLarge(message, hint="shorter keys, several values under one key, or more tasks")
        spec = self._spec(record.resubmit if resubmit is None else resubmit, record.retries if retries is None else retries, keyed=True)
        self._tasks.wait_room(block=block, timeout_s=timeout)
        wait_s = 30.0 if timeout is None else max(1.0, timeout)
        with self._adding:
            if outputs and not replace:
                self._keys.check_free(outputs, self._handle, timeout_s=wait_s)
            if check:
                self._keys.look(inputs, outputs, overwrite=replace, trust=trusted(trust), timeout_s=wait_s)
            future = self._tasks.add(spec, [payload], outputs=tuple(outputs))[0]
            self._keys.add(outputs, future.index)
        if check:
            self._wait_sent(future.index, timeout)
        return future

    def _wait_sent(self, index: int, timeout: float | None) -> None:
        if not self._handle.wait_sent(index, timeout):
            raise SubmitUnknown(
                f"task {self.id}_{index} is not known to be durable within {format_duration(timeout or 0.0)}",
                token=self._handle.submission.token,
                task_id=f"{self.id}_{index}",
                hint="it is sent again in the background while this process lives",
            )
        for error in self._handle.take_refused(index).values():
            raise error

    def submit_call(self, /, *args: Any, **kwargs: Any) -> Future:
        """Submits one call with plain arguments. Returns a future that has the function's result. Waits while the queue is full.

        Raises: PickleFailed naming the argument, ValueTooLarge, StateConflict.
        """
        payload = dump_call(args, kwargs, self._function_name)
        self._tasks.wait_room(block=True, timeout_s=None)
        with self._adding:
            return self._tasks.add(self._plain_spec, [payload])[0]

    def map(self, function: Callable[..., Any] | str | None, /, *iterables: Iterable[Any], chunksize: int = 1) -> list[Future]:
        """Submits one call per tuple of arguments, like the built-in `map`. Returns the futures in order.

        Args:
            function: the queue's own function (or None, or its id); another function is allowed in the same queue, too.
            chunksize: accepted for compatibility with `Executor.map`; tasks travel in blocks anyway.
        """
        if not (function is None or isinstance(function, str) or callable(function)):
            message = f"map takes a function first, and this is a {type(function).__name__}"
            raise UsageError(message, hint="queue.map(None, range(3)) calls the queue's own function, queue.map(f, range(3)) another one")
        if not iterables:
            raise UsageError("map needs at least one iterable", hint="queue.map(function, range(1000))")
        if chunksize < 1:
            raise UsageError(f"chunksize = {chunksize} is not a number from 1", hint="leave it out: tasks travel in blocks anyway")
        spec = self._plain_spec
        if function is not None:
            digest = function if isinstance(function, str) else self.connection.functions.register(function)
            if digest != spec.function:
                spec = TaskSpec(function=digest, resubmit=spec.resubmit, retries=spec.retries)
        name = self._function_name if function is None or isinstance(function, str) else name_of(function)
        futures = Futures()
        calls = zip(*iterables, strict=False)
        payloads = (dump_call(args, {}, name) for args in calls)
        for batch in batches(payloads, calls_at_once(iterables)):
            self._tasks.wait_room(block=True, timeout_s=None)
            with self._adding:
                futures += self._tasks.add(spec, batch)
        return futures

    def with_options(self, **options: Any) -> TaskQueue:
        """Returns a queue of the same function with other options: `queue.with_options(cores=2, priority=1).submit_call(...)`.

        Args:
            options: name, queue, cores, processes, nodes, launch, memory, time, features, resources, priority, retries, backoff,
                resubmit, on_disconnect, as of TaskQueue; options not named stay as in this queue.
        Returns: a TaskQueue with its own submission; the same options give the same TaskQueue. `wait_all`, `as_completed`, `flush`,
            `cancel()` and `close` of this queue include it; `len`, `futures` and `future` do not.
        Raises: UsageError (unknown option, or a bad value), Infeasible, NotFound (queue). Cost: a commit with its first tasks.
        """
        return self._variants.get(self, options)

    def _spec(self, resubmit: bool, retries: int, *, keyed: bool) -> TaskSpec:
        """Returns what tasks added now share. Cost: some microseconds, to see whether a global of the function has been rebound."""
        digest = self._record.function if self._plain_function is None else self.connection.functions.register(self._plain_function)
        key = (digest, resubmit, retries, keyed)
        spec = self._specs.get(key)
        if spec is None:
            if retries < 0:
                raise UsageError(f"retries = {retries} is negative", hint="retries=0: it runs once")
            self._specs = {kept: spec for kept, spec in self._specs.items() if kept[0] == digest}
            spec = self._specs[key] = TaskSpec(function=digest, resubmit=resubmit, retries=retries, keyed=keyed)
        return spec

    @property
    def _plain_spec(self) -> TaskSpec:
        """The spec of calls with plain arguments."""
        return self._spec(self._record.resubmit, self._record.retries, keyed=False)

    # -- waiting

    def as_completed(self, futures: Iterable[Future] | None = None, *, timeout: float | None = None) -> Iterator[Future]:
        """Yields futures as they end, each once; without `futures`, those that have not ended yet, including those of `with_options`.

        Raises: DeadlineExceeded. Cost: O(1) a future.
        """
        if futures is None:
            futures = [future for queue in (self, *self._variants.all()) for future in queue.futures()]
        return as_completed(futures, timeout)

    def futures(self) -> list[Future]:
        """Returns the futures of tasks that have not ended, in order; after `attach`, of all tasks."""
        return Futures(map(self.future, range(len(self))) if self._attached else self._tasks.unfinished())

    def future(self, index: int) -> Future:
        """Returns the future of task `index`. Raises NotFound, also for a task that has ended unless the queue was attached to."""
        return self._tasks.future(index)

    def wait_all(self, *, progress: bool = False, timeout: float | None = None) -> Waited:
        """Waits until all tasks submitted so far have ended.

        Returns: counts by state, and the ids of the tasks that failed.
        Raises: TaskFailed if a task submitted with `resubmit=True` FAILED (after all have ended); DeadlineExceeded.
        """
        deadline = Deadline(timeout)
        others = [_outcome_of(queue, progress, deadline) for queue in self._variants.all()]
        title = f"{self.name} {self._function_name}" if self._tasks.handle is not None else self._function_name
        with ProgressDisplay(title, enabled=progress, trouble=self.connection.trouble) as display, giving_slot_back():
            while True:
                counts = self._tasks.counts()
                display.update(counts)
                if counts.final >= counts.total:
                    break
                if deadline.is_over:
                    story, within = self.connection.trouble(), format_duration(timeout or 0.0)
                    raise DeadlineExceeded(
                        f"{counts.total - counts.final} of {counts.total} in {self.name} have not ended within {within}"
                        + (f"; {story}" if story else ""),
                        hint="they go on; call wait_all again",
                    )
                left = deadline.left()
                self._tasks.wait_news(TICK_S if left is None else min(left, TICK_S), counts)
        return _merged_counts(self._tasks.waited(), others)

    def follow(self, *, stream: str = "", timeout: float | None = None) -> Iterator[Line]:
        """Yields output lines of the tasks that have not ended, as the lines come, until all those tasks have ended.

        Reads up to 64 tasks at once; lines of other tasks come when those tasks end.

        Args: stream: "stdout" or "stderr", "" = both. timeout: s.
        Raises: UsageError; DeadlineExceeded; StoreUnavailable, CoordinationUnavailable. Cost: as `Future.logs`.
        """
        return self._tasks.lines_of(self._tasks.unfinished(), follow=True, stream=stream, timeout=timeout)

    # -- ending

    def cancel(self, index: int | Sequence[int] | str | None = None, reason: str = "", *, timeout: float = 30.0) -> None:
        """Cancels tasks, running ones too. Returns when the cancellation is ordered; the futures end when the tasks have ended.

        Args:
            index: one or several tasks, and the queue goes on; None: every task that has not ended, and no task can be added
                afterwards. A string is taken as the reason. Ended tasks stay as they are.
        Raises: NotFound (no such task), CoordinationUnavailable, PermissionDenied, DeadlineExceeded.
        """
        if isinstance(index, str):
            reason, index = index, None
        if index is not None:
            self._cancel_some([index] if isinstance(index, int) else list(index), reason, timeout)
            return
        for queue in self._variants.all():
            queue.cancel(reason=reason, timeout=timeout)
        self.connection.asks.ask(CancelSubmission(number=self.id, detail=reason), timeout_s=timeout)

    def update(
        self,
        *,
        priority: int | None = None,
        time: Duration = None,
        memory: Size = None,
        name: str | None = None,
        features: Sequence[str] | None = None,
        timeout: float = 30.0,
    ) -> None:
        """Changes the terms of tasks that have not started: `queue.update(memory="4G", time="2h")`; None keeps a term.

        A shorter time limit also applies to running tasks, counted from their start; a longer one only if an operator sets it. A user may
        lower a priority, an operator may raise it. Later tasks of this queue have the new terms, too; `with_options` queues keep theirs.
        Raises: StateConflict saying why nothing was changed; Infeasible, UsageError, NotFound, PermissionDenied, CoordinationUnavailable.
        """
        if isinstance(features, str):
            raise UsageError(f"features = {features!r} is not a list of names", hint=f"features={features.split(',')!r}")
        terms = Terms(
            priority=priority,
            time_limit_us=None if time is None else duration_us_of(time),
            memory_bytes=None if memory is None else size_of(memory),
            name=name,
            features=None if features is None else tuple(features),
        )
        if not terms.said():
            raise UsageError("nothing is to be changed", hint='queue.update(memory="4G")')
        if why := self.connection.submitter.update(self.id, terms, timeout_s=timeout):
            raise StateConflict(f"submission {self.id} was not changed: {why}", hint=f"rmgr show {self.id}")

    def _cancel_some(self, indices: list[int], reason: str, timeout_s: float) -> None:
        count = len(self)
        if missing := [index for index in indices if not 0 <= index < count]:
            raise NotFound(f"the queue has no task {missing[0]}, it has {count}", hint="future.index is a task's number, from 0")
        if indices:
            self._tasks.end_tasks(indices, reason=reason, timeout_s=timeout_s)

    def rerun_failed(self, indices: Sequence[int] | None = None, *, timeout: float | None = 60.0, **options: Any) -> TaskQueue:
        """Submits the tasks that have FAILED so far again, in a new queue: `queue.rerun_failed(memory="2G").wait_all()`.

        Args:
            indices: only these tasks. options: as of `with_options`; the rest stays as in this queue, also the functions' environment.
        Returns: a TaskQueue with these tasks in order, numbered from 0; no task can be added to it.
        Raises: NotFound if nothing has failed; DataLost naming a task whose arguments are not kept: it has not FAILED, never reached a
            node, or was lost with its node (without `indices` such tasks are left out with a RuntimeWarning, if others remain); the
            errors of `with_options`. Replaces the output keys of these tasks. Cost: reads all ends, and each large argument.
        """
        if unknown := [name for name in options if name not in OF_TASKS]:
            raise UsageError(f"rerun_failed has no option {unknown[0]!r}", hint=f"a task may have its own {', '.join(OF_TASKS)}")
        deadline = Deadline(timeout)
        known = FailedCalls.read(self.connection, self._tasks.opened().number, deadline)
        wanted = {index: known.get(index) for index in sorted(known if indices is None else set(indices))}
        if indices is None and 0 < (left_out := sum(call is None for call in wanted.values())) < len(wanted):
            message = f"{left_out} of {len(wanted)} tasks that failed are left out: their arguments are not kept"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
            wanted = {index: call for index, call in wanted.items() if call is not None}
        calls = calls_again(self._tasks.store, self.id, wanted)
        record, submitter = self._record, self.connection.submitter
        given = {name: value for name, value in options_of(record).items() if name != "function"} | options
        draft = draft_of(Options(**given), work=Work.PYTHON, python=record.python, function=record.function, user=submitter.user)
        opening = SubmissionOpening(submitter, draft, timeout_s=30.0)
        draft, tasks = opening.draft, Tasks(self.connection, keep_all=True, opening=opening)
        made = TaskQueue.__new__(TaskQueue)
        made._begin(self.connection, tasks, draft, overwrite=True, attached=True)  # noqa: SLF001 - a constructor of this class
        for call in calls:
            digest = self.connection.functions.check(call.function, timeout_s=deadline.left() or 30.0)
            spec = TaskSpec(function=digest, resubmit=draft.resubmit, retries=draft.retries, keyed=call.keyed)
            outputs = decode_keyed(call.payload).outputs if call.keyed else ()
            tasks.wait_room(block=True, timeout_s=deadline.left())
            tasks.add(spec, [call.payload], outputs=outputs)
        made.close(timeout=deadline.left())
        return made

    def flush(self, timeout: float | None = None) -> None:
        """Waits until everything submitted is durable and has claimed its output keys.

        Raises: SubmitUnknown, QueueFull; KeyExists or PermissionDenied if tasks were refused since the last call because their output
            keys belong to others: those tasks end FAILED with OUTPUT_EXISTS, other tasks are not affected.
        """
        for queue in self._variants.all():
            queue.flush(timeout)
        if self._tasks.handle is None:
            return
        self.connection.check_waitable()
        self._tasks.handle.flush(timeout)
        refused = self._tasks.handle.take_refused()
        if refused:
            index = min(refused)
            error, others = refused[index], f" ({len(refused)} tasks were refused in all)" if len(refused) > 1 else ""
            raise type(error)(f"task {self.id}_{index}: {error.message}{others}", hint=error.hint)

    def close(self, *, timeout: float | None = 60.0) -> None:
        """Closes the queue to new tasks; returns when everything submitted is durable. The tasks go on. Idempotent."""
        self.is_closed = True
        for queue in self._variants.all():
            queue.close(timeout=timeout)
        self._tasks.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except Exception:
            if kind is None:
                raise


def _check_keys(inputs: object, outputs: object) -> None:
    """Raises UsageError if arguments of a call were given in place of keys."""
    for value in (inputs, outputs):
        if not isinstance(value, Iterable) or any(not isinstance(key, str) for key in (value if isinstance(value, Sized) else ())):
            message = f"submit takes keys of the data store, and {_value_text(value)} is none"
            raise UsageError(message, hint="plain arguments: queue.submit_call(3), or queue.map(None, range(3))")


def _value_text(value: object) -> str:
    """Returns a value's text for an error message; the type's name if the text would be long."""
    text = repr(value) if isinstance(value, int | float | str | list | tuple | dict | set) else f"a {type(value).__name__}"
    return text if len(text) <= _MOST_SHOWN else f"a {type(value).__name__}"


def _flush_open_queues() -> None:
    """Makes tasks in unclosed queues durable before the process ends, or reports which are not."""
    deadline = Deadline(_LAST_FLUSH_S)
    for queue in list(_open_queues):
        if not queue.is_closed and queue.connection.is_usable:
            try_at_end(lambda queue=queue: queue.flush(deadline.left()))  # type: ignore[misc]


def _outcome_of(queue: TaskQueue, progress: bool, deadline: Deadline) -> Waited | TaskFailed:
    """Returns what `wait_all` of a queue returns, or the TaskFailed that it raises. Raises DeadlineExceeded."""
    try:
        return queue.wait_all(progress=progress, timeout=deadline.left())
    except TaskFailed as error:
        return error


def _merged_counts(mine: Waited, others: Sequence[Waited | TaskFailed]) -> Waited:
    """Merges the counts of a queue with those of its `with_options` queues. Raises TaskFailed."""
    counts, failed = dict(mine.counts), list(mine.failed)
    for other in others:
        if isinstance(other, TaskFailed):
            raise other
        failed += other.failed
        counts = {state: counts.get(state, 0) + count for state, count in other.counts.items()}
    return Waited(counts, failed)


class TaskKeys:
    """Refuses tasks of one queue, before they are submitted, whose output keys are known to be taken. One caller at a time."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._unclaimed: dict[str, int] = {}  #: output keys -> index, of tasks that may not have claimed them yet

    def add(self, outputs: Sequence[str], index: int) -> None:
        """Notes that task `index` writes these keys."""
        self._unclaimed.update(dict.fromkeys(outputs, index))

    def check_free(self, outputs: Sequence[str], handle: SubmissionHandle, *, timeout_s: float) -> None:
        """Refuses output keys that this process knows to be taken. Reads the store only for keys that it has seen before.

        Raises: KeyExists, StoreUnavailable.
        """
        claimed = handle.first_unclaimed
        if len(self._unclaimed) > _MANY_UNCLAIMED:
            self._unclaimed = {key: index for key, index in self._unclaimed.items() if index >= claimed}
        for key in outputs:
            if self._unclaimed.get(key, -1) >= claimed:
                task = f"{handle.number}_{self._unclaimed[key]}"
                raise KeyExists(f"the output key {key!r} exists already: task {task} writes it", hint="overwrite=True replaces it")
            if key in self._values.seen:
                self._values.check_free(key, timeout=timeout_s)

    def look(self, inputs: Sequence[str], outputs: Sequence[str], *, overwrite: bool, trust: Sequence[str], timeout_s: float) -> None:
        """Refuses keys that the store refuses now. Raises: KeyExists, PermissionDenied, StoreUnavailable. Cost: one read per key."""
        check_output = self._values.check_mine if overwrite else self._values.check_free
        for key in outputs:
            check_output(key, timeout=timeout_s)
        for key in inputs:
            self._values.check_input(key, trust=trust, timeout=timeout_s)


def check_names(inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Raises UsageError for invalid keys, for an output key that is given twice, and for too many keys."""
    written, _ = set(map(check_new_key, outputs)), [check_user_key(key) for key in inputs]
    if len(written) != len(outputs):
        raise UsageError(f"an output key stands twice in {list(outputs)}", hint="each output has a key of its own")
    if len(inputs) + len(outputs) > MAX_KEYS:
        message = f"a task has {len(inputs):,} input keys and {len(outputs):,} output keys; {MAX_KEYS:,} together are the limit"
        raise UsageError(message, hint="several values under one key, or more tasks")


# -- rerunning calls -----------------------------------------------------------------------------------------------------------


class FailedCalls:
    """A `handle.Listener` that keeps the calls of FAILED tasks, from the ends that the client accepts as authentic."""

    def __init__(self) -> None:
        self.calls: dict[int, Call | None] = {}
        self.dead: RmgrError | None = None
        self._news = threading.Event()

    @classmethod
    def read(cls, connection: Connection, number: int, deadline: Deadline) -> dict[int, Call | None]:
        """Returns the calls of tasks FAILED so far (None if not kept). Raises: DeadlineExceeded, NotFound, CoordinationUnavailable."""
        left_s, reader = deadline.left() or 30.0, cls()
        committed = connection.asks.ask(CountFragments(number=number), timeout_s=left_s)
        handle = connection.submitter.attach(number, reader, own=False, timeout_s=left_s)
        while handle.progress.next_fragment < committed and reader.dead is None:
            if deadline.is_over:
                raise DeadlineExceeded(f"the ends of {number} could not be read in time", hint="try again, with a longer timeout=")
            reader._news.wait(0.2)
            reader._news.clear()
        if reader.dead is not None:
            raise reader.dead
        return dict(reader.calls)

    def on_outcomes(self, fragment: Fragment, outcomes: Sequence[Outcome]) -> None:  # noqa: ARG002 - of all listeners
        """See `handle.Listener`."""
        self.calls.update((outcome.index, outcome.call) for outcome in outcomes if outcome.state is State.FAILED)

    def on_progress(self) -> None:
        """See `handle.Listener`."""
        self._news.set()

    def on_dead(self, error: RmgrError) -> None:
        """See `handle.Listener`."""
        self.dead = error
        self._news.set()


def calls_again(store: Store, number: int, calls: Mapping[int, Call | None]) -> Iterator[Call]:
    """Yields these calls with their arguments, one row in memory at a time, each set to overwrite its output keys.

    Raises: NotFound if `calls` is empty; DataLost naming the first task whose arguments are not kept, before it yields any.
    """
    if not calls:
        raise NotFound(f"no task of {number} has failed", hint=f"rmgr tasks {number}")
    missing = next((index for index, call in calls.items() if call is None), None)
    if missing is not None:
        why = f"the arguments of task {number}_{missing} are not kept: only a task that FAILED on a node leaves them"
        raise DataLost(why, hint="submit it again; rerun_failed runs what has failed")
    return _read(store, number, {index: call for index, call in calls.items() if call is not None})


def _read(store: Store, number: int, calls: Mapping[int, Call]) -> Iterator[Call]:
    row = ""
    payloads: tuple[bytes, ...] = ()
    for index, call in calls.items():
        payload = call.payload
        if call.row:
            if call.row != row:
                row, payloads = call.row, _payloads(store, call.row)
            if call.at >= len(payloads):
                raise DataLost(f"the arguments of task {number}_{index} are not in {call.row}", hint="submit it again")
            payload = payloads[call.at]
        if call.keyed:
            payload = encode_keyed(msgspec.structs.replace(decode_keyed(payload), overwrite=True, claims_by="", deeds=()))
        yield msgspec.structs.replace(call, payload=payload, row="", at=0)


def _payloads(store: Store, row: str) -> tuple[bytes, ...]:
    found = store.get_noted_many([row], largest=_MOST_BYTES).get(row)
    data = found[0] if found is not None else None
    if data is None or hashlib.sha256(data).hexdigest() != row_digest(row):
        raise DataLost(f"the arguments {row} are not in the data store as they were, or are too large", hint="submit them again")
    try:
        return decode_payloads(data)
    except msgspec.MsgspecError as error:
        raise DataLost(f"the arguments {row} cannot be read: {error}", hint="submit them again") from None
