"""TaskQueue: one function and a growing set of calls of it, durable from the moment they are submitted.

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
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, Self

import msgspec

from rmgr.client.connection import Connection, at_end, connect, try_at_end
from rmgr.client.content import Payload
from rmgr.client.futures import Deadline, Future, Futures, as_completed, check_timeout, giving_slot_back
from rmgr.client.pickling import dump_call, name_of, ship, stays_here
from rmgr.client.ports import TaskSpec
from rmgr.client.progress import ProgressDisplay, card
from rmgr.client.specs import (
    OF_TASKS,
    Duration,
    Options,
    Size,
    Variants,
    bytes_of,
    draft_of,
    launch_of,
    options_of,
    python_environment,
    us_of,
)
from rmgr.client.tasks import SubmissionOpening, Tasks, Waited, when_dropped
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
from rmgr.model.base.ids import parse_submission, taskq_name
from rmgr.model.base.states import State
from rmgr.model.base.units import format_duration
from rmgr.model.tasks.block import MAX_KEYED_BYTES, MAX_KEYS, Call, Fragment, KeyedPayload, Outcome
from rmgr.model.tasks.submission import Submission, Terms, Work
from rmgr.submitter.questions import CountFragments

if TYPE_CHECKING:
    from rmgr.client.logs import Line
    from rmgr.client.submission.handle import SubmissionHandle
    from rmgr.client.values import Values

#: Calls that `map` adds at a time, and bytes of their arguments, about: the first run while the rest is still being pickled.
_MAP_BATCH, _MAP_BYTES = 512, 4 * 1024 * 1024
#: Characters of a value in an error.
_MOST_SHOWN = 60
#: How long the end of the process may wait until what was submitted is durable (s), however many queues there are.
_LAST_FLUSH_S = 10.0
#: How often a wait without news looks whether the cluster still answers.
_TICK_S = 1.0
#: Output keys remembered before those are forgotten whose tasks have claimed them.
_MANY_UNCLAIMED = 10_000
#: Bytes of a row of arguments: what is larger is not read here as a whole.
_MOST_BYTES = 256 * 1024 * 1024
_open_queues: weakref.WeakSet[TaskQueue] = weakref.WeakSet()


class TaskQueue:
    """A queue of calls of one function.

    Args:
        function: a callable, or the id that `Connection.register` returned.
        cores, memory, time, features, resources: what each task needs and may use ("2G", "1h30m", or bytes and seconds).
        processes, nodes: a task has so many processes (cores and memory are those of one), on so many nodes; it is placed by the leader.
        launch: "ranks": the function is called in each of them, with RMGR_RANK, RMGR_NPROCS, RMGR_NODE and so on in the environment.
            "mpi": they are one MPI program, and a parameter `comm` of the function is an mpi4py communicator of them all; the nodes
            need mpirun and mpi4py. (The default for a function with such a parameter.) "once": it is called on the first node
            alone, and may start what it wants there with `rmgr run` or mpirun. What rank 0 returns is the result. A rank that
            raises ends them all, and the attempt FAILED.
        queue: the named queue of the cluster; priority within it, higher first. name: as `rmgr jobs` shows it; default: the function's.
        resubmit: tasks run again after a loss (their node died); else at most one attempt ever starts.
        retries, backoff: how often, and after how long, they run again after a failure of their own.
        modules: local modules or packages that workers lack, shipped by content.
        python: interpreter of the nodes to use. on_disconnect: "keep" or "exclusive" (never runs twice at a time).
        overwrite: default of `submit`: output keys that exist are replaced.
        token: makes creation idempotent: the same token gives the same queue.
        connection: default `rmgr.connect()`. timeout: for the creation (s). A queue without a token is recorded with the first tasks
            that are submitted, in one commit, or when its `id` is asked for.
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
            digest = connection.functions.register(function, timeout_s=timeout)
        options = Options(
            queue=queue,
            name=name or ("python" if isinstance(function, str) else name_of(function)[:200]),
            cores=cores,
            processes=processes,
            nodes=nodes,
            launch=launch or launch_of(function, several=processes > 1 or nodes > 1),
            memory=memory,
            time=time,
            priority=priority,
            retries=retries,
            backoff=backoff,
            resubmit=resubmit,
            features=features,
            resources=resources,
            on_disconnect=on_disconnect,
            token=token,
        )
        environment = python_environment(python=python, modules=ship(submitter.store, modules, timeout_s=timeout))
        draft = draft_of(options, work=Work.PYTHON, python=environment, function=digest, user=submitter.user)
        opening = SubmissionOpening(submitter, draft, timeout_s=timeout)
        draft, tasks = opening.draft, Tasks(connection, keep_all=bool(token), opening=opening)
        if token or submitter.session_state is not SessionState.CONNECTED:  # used before: an attach; nobody answers: raised here
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
        """Goes on with a queue that another process made: the same results, and new tasks once that process is gone.

        Args:
            name: "taskq-0000000007", or 7.
        Raises: NotFound when there is no such submission, or it was collected (`rmgr history` has its end); UsageError.
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
        """Waits until this process may add tasks (its own queue: at once; one attached to: when its owner is gone).

        Returns: how many tasks there are now, and so the index of the next one: where an interrupted loop goes on. A
            queue that was completed has all its tasks.
        Raises: StateConflict when the owner lives on, or the queue was cancelled.
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
        """Its submission: made with the first tasks, or here. One that exists keeps its number and name when the connection is gone."""
        handle = self._tasks.handle
        return handle if handle is not None else self._tasks.opened()

    @property
    def id(self) -> int:
        """Number of the submission, as `rmgr jobs` shows it. (Recorded by this call, if nothing was submitted before.)"""
        return self._handle.number

    @property
    def name(self) -> str:
        """`taskq-0000000042`: what another process attaches to."""
        return taskq_name(self._handle.number)

    @property
    def function(self) -> str:
        """Id of the function."""
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
        """One task in the keyed form: the function gets the values of its input keys, and returns one value per output key.

        Output keys are claimed many at a time, when the tasks become durable. One that this process knows to be taken is refused here.
        One that somebody else has taken ends its task FAILED with OUTPUT_EXISTS: the future, `wait_all` and `flush` raise it.

        Args:
            inputs, outputs: keys in the data store (`Connection.store`). resubmit: it runs again after a loss, None = as the queue says.
            trust: users whose pickled values the task loads as inputs beside your own: that runs what they wrote, as you.
            overwrite: replace output keys that exist. block, timeout: when the queue is full (QueueFull).
            check: look at all keys, and wait until the task is durable and the output keys are its own.
        Returns: a future whose result is None; the values are under the output keys.
        Raises: KeyExists (an output key is known to be taken), QueueFull, StateConflict (closed or cancelled).
            With `check` also PermissionDenied (a key is somebody else's), StoreUnavailable, SubmitUnknown.
        Cost: 20 us; with `check` as `flush`, and a read for each key.
        """
        if isinstance(inputs, str) or isinstance(outputs, str):
            raise UsageError("inputs and outputs are lists of keys", hint='inputs=["in/7"], outputs=["out/7"]')
        if resubmit is not None and not isinstance(resubmit, bool):
            told = f"submit takes keys of the data store; resubmit = {_shown(resubmit)} is not True or False"
            raise UsageError(told, hint="plain arguments: queue.submit_call(1, 2, 3)")
        try:
            check_names(inputs, outputs)
        except (TypeError, UsageError):
            _check_keys(inputs, outputs)
            raise
        record = self._record
        replace = self._overwrite if overwrite is None else overwrite
        payload = encode_keyed(KeyedPayload(tuple(inputs), tuple(outputs), replace, trusted(trust)))
        if len(payload) > MAX_KEYED_BYTES:
            told = f"the keys of a task have {len(payload):,} bytes; the limit is {MAX_KEYED_BYTES:,}"
            raise ValueTooLarge(told, hint="shorter keys, several values under one key, or more tasks")
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
        """One call with plain arguments; its future has the function's result.

        Raises: PickleFailed naming the argument, ValueTooLarge, StateConflict. Waits while the queue is full.
        """
        payload = dump_call(args, kwargs, self._function_name)
        self._tasks.wait_room(block=True, timeout_s=None)
        with self._adding:
            return self._tasks.add(self._plain, [payload])[0]

    def map(self, function: Callable[..., Any] | str | None, /, *iterables: Iterable[Any], chunksize: int = 1) -> list[Future]:
        """One call for each tuple of arguments, as the built-in `map`; their futures in order.

        Args:
            function: the queue's own (or None, or its id); tasks of another function may stand in the same queue too.
            chunksize: accepted for likeness with `Executor.map`; tasks travel in blocks anyway.
        """
        if not (function is None or isinstance(function, str) or callable(function)):
            told = f"map takes a function first, and this is a {type(function).__name__}"
            raise UsageError(told, hint="queue.map(None, range(3)) calls the queue's own function, queue.map(f, range(3)) another one")
        if not iterables:
            raise UsageError("map needs at least one iterable", hint="queue.map(function, range(1000))")
        if chunksize < 1:
            raise UsageError(f"chunksize = {chunksize} is not a number from 1", hint="leave it out: tasks travel in blocks anyway")
        spec = self._plain
        if function is not None:
            digest = function if isinstance(function, str) else self.connection.functions.register(function)
            if digest != spec.function:
                spec = TaskSpec(function=digest, resubmit=spec.resubmit, retries=spec.retries)
        name = self._function_name if function is None or isinstance(function, str) else name_of(function)
        futures = Futures()
        calls = zip(*iterables, strict=False)
        payloads = (dump_call(args, {}, name) for args in calls)
        while batch := _some(payloads):
            self._tasks.wait_room(block=True, timeout_s=None)
            with self._adding:
                futures += self._tasks.add(spec, batch)
        return futures

    def with_options(self, **options: Any) -> TaskQueue:
        """A queue of the same function whose tasks need something else: `queue.with_options(cores=2, priority=1).submit_call(...)`.

        Args:
            options: name, queue, cores, processes, nodes, launch, memory, time, features, resources, priority, retries, backoff,
                resubmit, on_disconnect, as of TaskQueue; what is not named is as here.
        Returns: a TaskQueue with a submission of its own, the same one for the same options. `wait_all`, `as_completed`, `flush`,
            `cancel()` and `close` of this queue mean it too; `len`, `futures` and `future` do not.
        Raises: UsageError (no such option, or a bad value), Infeasible, NotFound (queue). Cost: a commit with its first tasks.
        """
        return self._variants.get(self, options)

    def _spec(self, resubmit: bool, retries: int, *, keyed: bool) -> TaskSpec:
        """What tasks share that are added now. Cost: some microseconds: has a global of the function been bound anew?"""
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
    def _plain(self) -> TaskSpec:
        """Of calls with plain arguments."""
        return self._spec(self._record.resubmit, self._record.retries, keyed=False)

    # -- waiting

    def as_completed(self, futures: Iterable[Future] | None = None, *, timeout: float | None = None) -> Iterator[Future]:
        """Futures as they end, each once; without `futures` those that have not ended, also of `with_options`.

        Raises: DeadlineExceeded. Cost: O(1) a future.
        """
        if futures is None:
            futures = [future for queue in (self, *self._variants.all()) for future in queue.futures()]
        return as_completed(futures, timeout)

    def futures(self) -> list[Future]:
        """Futures of the tasks that have not ended; of all tasks after `attach`. In order."""
        return Futures(map(self.future, range(len(self))) if self._attached else self._tasks.unfinished())

    def future(self, index: int) -> Future:
        """The future of task `index`. Raises NotFound; also when it has ended, unless the queue was attached to."""
        return self._tasks.future(index)

    def wait_all(self, *, progress: bool = False, timeout: float | None = None) -> Waited:
        """Waits until all tasks submitted so far have ended.

        Returns: counts by state, and the ids of the tasks that failed.
        Raises: TaskFailed when a task submitted with `resubmit=True` FAILED (after all have ended); DeadlineExceeded.
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
                self._tasks.wait_news(_TICK_S if left is None else min(left, _TICK_S), counts)
        return _together(self._tasks.waited(), others)

    def follow(self, *, stream: str = "", timeout: float | None = None) -> Iterator[Line]:
        """Yields lines of the tasks that have not ended, as they come, until all of those have ended.

        Up to 64 tasks are read at once; the lines of others come when they end.

        Args: stream: "stdout" or "stderr", "" = both. timeout: s.
        Raises: UsageError; DeadlineExceeded; StoreUnavailable, CoordinationUnavailable. Cost: as `Future.logs`.
        """
        return self._tasks.lines_of(self._tasks.unfinished(), follow=True, stream=stream, timeout=timeout)

    # -- ending

    def cancel(self, index: int | Sequence[int] | str | None = None, reason: str = "", *, timeout: float = 30.0) -> None:
        """Cancels tasks, running ones too. Returns when that is ordered; their futures end when the tasks have ended.

        Args:
            index: a task or several, and the queue goes on; None: every task that has not ended, and nothing can be added
                afterwards. A string is the reason. What has ended stays as it is.
        Raises: NotFound (no such task), CoordinationUnavailable, PermissionDenied, DeadlineExceeded.
        """
        if isinstance(index, str):
            reason, index = index, None
        if index is not None:
            self._cancel_some([index] if isinstance(index, int) else list(index), reason, timeout)
            return
        from rmgr.submitter.questions import CancelSubmission

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
        """Gives tasks that have not started other terms: `queue.update(memory="4G", time="2h")`; None: that stays.

        A shorter time limit also holds for what runs, from its start on; a longer one if an operator gives it. A user may lower a
        priority, an operator raise it. Later tasks of this queue have the new terms, too; those of `with_options` keep theirs.
        Raises: StateConflict saying why nothing was changed; Infeasible, UsageError, NotFound, PermissionDenied, CoordinationUnavailable.
        """
        if isinstance(features, str):
            raise UsageError(f"features = {features!r} is not a list of names", hint=f"features={features.split(',')!r}")
        terms = Terms(
            priority=priority,
            time_limit_us=None if time is None else us_of(time),
            memory_bytes=None if memory is None else bytes_of(memory),
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
        """Submits again what has FAILED so far, in a queue of its own: `queue.rerun_failed(memory="2G").wait_all()`.

        Args:
            indices: of these tasks alone. options: as of `with_options`; what is not named is as here, the functions' environment too.
        Returns: a TaskQueue with these tasks in their order, numbered from 0, to which nothing can be added.
        Raises: NotFound where nothing has failed; DataLost naming a task whose arguments are not kept: it has not FAILED, never came to a
            node, or was lost with it (without `indices` such tasks are left out, with a RuntimeWarning, if there are others); what
            `with_options` raises. Output keys of these tasks are replaced. Cost: reads all ends, and each large argument.
        """
        if unknown := [name for name in options if name not in OF_TASKS]:
            raise UsageError(f"rerun_failed has no option {unknown[0]!r}", hint=f"a task may have its own {', '.join(OF_TASKS)}")
        deadline = Deadline(timeout)
        known = FailedCalls.read(self.connection, self._tasks.opened().number, deadline)
        wanted = {index: known.get(index) for index in sorted(known if indices is None else set(indices))}
        if indices is None and 0 < (left_out := sum(call is None for call in wanted.values())) < len(wanted):
            told = f"{left_out} of {len(wanted)} tasks that failed are left out: their arguments are not kept"
            warnings.warn(told, RuntimeWarning, stacklevel=2)
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
        """Waits until everything submitted is durable, and its output keys are its own.

        Raises: SubmitUnknown, QueueFull; KeyExists or PermissionDenied when tasks were refused since the last call because somebody
            else has their output keys: they end FAILED with OUTPUT_EXISTS, the others are not touched by it.
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
        """No task will be added; returns when everything submitted is durable. The tasks go on. Idempotent."""
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
    """Raises UsageError for arguments of a call in place of keys."""
    for value in (inputs, outputs):
        if not isinstance(value, Iterable) or any(not isinstance(key, str) for key in (value if isinstance(value, Sized) else ())):
            told = f"submit takes keys of the data store, and {_shown(value)} is none"
            raise UsageError(told, hint="plain arguments: queue.submit_call(3), or queue.map(None, range(3))")


def _shown(value: object) -> str:
    """A value for an error: a large one by its type."""
    text = repr(value) if isinstance(value, int | float | str | list | tuple | dict | set) else f"a {type(value).__name__}"
    return text if len(text) <= _MOST_SHOWN else f"a {type(value).__name__}"


def _some(payloads: Iterator[Payload]) -> list[Payload]:
    """The next ones that are added together; large arguments few at a time."""
    batch: list[Payload] = []
    size = 0
    for payload in islice(payloads, _MAP_BATCH):
        batch.append(payload)
        size += len(payload)
        if size >= _MAP_BYTES:
            break
    return batch


def _flush_open_queues() -> None:
    """What was submitted to queues that nobody closed becomes durable before the process ends, or it is said what was not."""
    deadline = Deadline(_LAST_FLUSH_S)
    for queue in list(_open_queues):
        if not queue.is_closed and queue.connection.is_usable:
            try_at_end(lambda queue=queue: queue.flush(deadline.left()))  # type: ignore[misc]


def _outcome_of(queue: TaskQueue, progress: bool, deadline: Deadline) -> Waited | TaskFailed:
    """What `wait_all` of a queue returns, or raises once all of it has ended. Raises DeadlineExceeded."""
    try:
        return queue.wait_all(progress=progress, timeout=deadline.left())
    except TaskFailed as error:
        return error


def _together(mine: Waited, others: Sequence[Waited | TaskFailed]) -> Waited:
    """Of a queue and of those with other options. Raises TaskFailed."""
    counts, failed = dict(mine.counts), list(mine.failed)
    for other in others:
        if isinstance(other, TaskFailed):
            raise other
        failed += other.failed
        counts = {state: counts.get(state, 0) + count for state, count in other.counts.items()}
    return Waited(counts, failed)


class TaskKeys:
    """Refuses keys of tasks of one queue before these are submitted: output keys that are known to be taken. One caller at a time."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._unclaimed: dict[str, int] = {}  #: output keys of tasks that may not have claimed them yet

    def add(self, outputs: Sequence[str], index: int) -> None:
        """Task `index` writes these keys."""
        self._unclaimed.update(dict.fromkeys(outputs, index))

    def check_free(self, outputs: Sequence[str], handle: SubmissionHandle, *, timeout_s: float) -> None:
        """Refuses output keys that are known here to be taken. Reads nothing but those that were seen before.

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
        """Refuses what the store refuses now. Raises: KeyExists, PermissionDenied, StoreUnavailable. Cost: a read for each key."""
        check_output = self._values.check_mine if overwrite else self._values.check_free
        for key in outputs:
            check_output(key, timeout=timeout_s)
        for key in inputs:
            self._values.check_input(key, trust=trust, timeout=timeout_s)


def check_names(inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Raises UsageError for keys that cannot be, and for an output key that stands twice."""
    written, _ = set(map(check_new_key, outputs)), [check_user_key(key) for key in inputs]
    if len(written) != len(outputs):
        raise UsageError(f"an output key stands twice in {list(outputs)}", hint="each output has a key of its own")
    if len(inputs) + len(outputs) > MAX_KEYS:
        told = f"a task has {len(inputs):,} input keys and {len(outputs):,} output keys; {MAX_KEYS:,} together are the limit"
        raise UsageError(told, hint="several values under one key, or more tasks")


# -- calls that are run again --------------------------------------------------------------------------------------------------


class FailedCalls:
    """A `ports.Listener` that keeps what FAILED calls have left: of the ends that its client believes."""

    def __init__(self) -> None:
        self.calls: dict[int, Call | None] = {}
        self.dead: RmgrError | None = None
        self._news = threading.Event()

    @classmethod
    def read(cls, connection: Connection, number: int, deadline: Deadline) -> dict[int, Call | None]:
        """Of the tasks that have FAILED by now, None where nothing is kept. Raises: DeadlineExceeded, NotFound, CoordinationUnavailable."""
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
        """See `ports.Listener`."""
        self.calls.update((outcome.index, outcome.call) for outcome in outcomes if outcome.state is State.FAILED)

    def on_progress(self) -> None:
        """See `ports.Listener`."""
        self._news.set()

    def on_dead(self, error: RmgrError) -> None:
        """See `ports.Listener`."""
        self.dead = error
        self._news.set()


def calls_again(store: Store, number: int, calls: Mapping[int, Call | None]) -> Iterator[Call]:
    """The calls of these tasks with their arguments, one row in memory at a time; output keys are theirs to have again.

    Raises: NotFound where there are none; DataLost naming the first task whose arguments are not kept, before any is given.
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
