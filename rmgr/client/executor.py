"""Executor: a `concurrent.futures.Executor` whose workers are the cluster's.

    with rmgr.Executor() as executor:          # in place of concurrent.futures.ProcessPoolExecutor()
        results = list(executor.map(simulate, points))
One Executor is one submission; tasks survive the loss of nodes. When this process dies, what was sent still runs. The submission
ends once the process has been gone for 10 s. (A TaskQueue stays open: another process may attach to it.)
"""

from __future__ import annotations

import concurrent.futures as stdlib
import contextlib
import itertools
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from rmgr.client import echo
from rmgr.client.chunk import call_each
from rmgr.client.connection import Connection, at_end, connect
from rmgr.client.core import BrokenExecutor, Core
from rmgr.client.dropped import when_dropped
from rmgr.client.futures import Future
from rmgr.client.notebook import card
from rmgr.client.progress import shown_on
from rmgr.client.specs import Duration, Options, Size
from rmgr.client.values.pickling import dump_call, name_of
from rmgr.client.variants import OF_CALLS, Variants
from rmgr.client.waiting import Deadline
from rmgr.runtime import machine

#: Calls that `map` adds at a time, and how much of a lazy input it reads ahead.
_MAP_BATCH = 512
_executors: weakref.WeakSet[Core] = weakref.WeakSet()


class Executor(stdlib.Executor):
    """Runs calls on the cluster.

    Args:
        max_workers: most slots in use at once; None: as many as there are.
        initializer, initargs: called once in each worker before its first task.
        cores, memory, time, features, resources: what each call needs. queue, priority: where it stands.
        name: as `rmgr jobs` shows it; default: that of the function that is called first.
        retries, backoff, resubmit: as for TaskQueue; resubmit (default): calls run again when their node dies.
        modules, python, on_disconnect: as for TaskQueue.
        output: "echo" writes what calls print to this process's stdout and stderr, as the workers of a process pool do: when a
            call ends, or line by line as it comes when the call runs for more than a second or two. Where there are several calls
            each line begins with its task ("42_7: text"). "live" writes the lines of all calls, "log" leaves them to `rmgr logs`.
        connection: default `rmgr.connect()`. timeout: for what is asked of the cluster before the first call is sent (s).
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
        if max_workers is not None and max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        if output not in {"echo", "live", "log"}:
            raise ValueError(f"output must be 'echo', 'live' or 'log', not {output!r}")
        self._cap = max_workers
        options = Options(
            queue=queue,
            name=name or "executor",  # until its first call
            cores=cores,
            memory=memory,
            time=time,
            features=features,
            resources=resources,
            priority=priority,
            retries=retries,
            backoff=backoff,
            resubmit=resubmit,
            on_disconnect=on_disconnect,
            python=python,
        )
        connection = connection or connect()
        self._variants: Variants[Executor] = Variants(partial(Executor, connection=connection), asked, OF_CALLS)
        self._core = core = Core(
            connection,
            options,
            cap=max_workers,
            modules=tuple(modules),
            initializer=None if initializer is None else (initializer, tuple(initargs)),
            group=machine.guid() if initializer is not None else "",
            on_output=echo.write if output == "echo" else None,
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
        """Number of the submission, None before the first call."""
        return self._core.tasks.number or None

    def __repr__(self) -> str:
        core = self._core
        where, shut = core.connection.where, ", shut down" if core.is_shut else ""
        if not core.number:
            return f"<rmgr.Executor at {where}: unused{shut}>"
        return f"<rmgr.Executor {core.number} at {where}: {core.ended} call{'s' * (not core.ended.endswith(' of 1'))} ended{shut}>"

    def _repr_html_(self) -> str:
        core = self._core
        return card("Executor", str(core.number or ""), core.connection.where, core.progress, "shut down" * core.is_shut)

    def with_options(self, **options: Any) -> Executor:
        """An executor whose calls need something else: `executor.with_options(cores=2, priority=1).submit(f, 7)`.

        Args:
            options: name, queue, cores, memory, time, features, resources, priority, retries, backoff, resubmit, on_disconnect, as
                of Executor; what is not named is as here.
        Returns: an Executor with a submission of its own, and a `max_workers` of its own where there is one. The same options give
            the same Executor. It is shut down with this one.
        Raises: UsageError (no such option, or a bad value), Infeasible, NotFound (queue), RuntimeError after `shutdown`.
        """
        self._core.check_open()
        return self._variants.get(self, options)

    # -- concurrent.futures.Executor

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """Schedules `fn(*args, **kwargs)`; its future.

        Raises: RuntimeError after `shutdown`; BrokenExecutor when the initializer has failed; PickleFailed naming the
            argument; ValueTooLarge; and at the first call what creating a submission raises.
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
        """As the built-in `map`, calls running at the same time; results in order, as they are asked for.

        Args:
            timeout: for all results together (TimeoutError).
            chunksize: calls a task: for very short calls with small arguments (blocks do most of it anyway).
            buffersize: most results not yet asked for; None: all input is read and scheduled at once.
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
        if chunksize == 1:
            send = partial(core.add_calls, core.spec_of(fn), name_of(fn))
            return _results(core, send, calls, deadline, buffersize)
        chunks = iter(lambda: list(itertools.islice(calls, chunksize)), [])
        send = partial(core.add_calls, core.spec_of(partial(call_each, fn)), name_of(fn))
        window = None if buffersize is None else -(-buffersize // chunksize)
        return itertools.chain.from_iterable(_results(core, send, ((chunk,) for chunk in chunks), deadline, window))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """No call can be added; waits until all have ended unless `wait` is False. Idempotent."""
        others = self._variants.all()
        for core in (self._core, *(other._core for other in others)):  # noqa: SLF001 - of this class
            core.shut(cancel=cancel_futures)
        for other in others:
            other.shutdown(wait, cancel_futures=cancel_futures)  # and what was made from it
        if wait:
            self._core.wait_done()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Waits for what was submitted. After Ctrl-C it says for what; another Ctrl-C leaves it to the cluster."""
        core = self._core
        waiting = self._count_left() if kind is not None and issubclass(kind, KeyboardInterrupt) else 0
        if waiting:
            _say(f"{waiting} call{'s' * (waiting != 1)} of submission {core.number} not ended yet; waiting (Ctrl-C again leaves)")
        try:
            self.shutdown()
        except KeyboardInterrupt:
            _executors.discard(core)  # else the end of the interpreter would wait for them
            for other in self._variants.all():
                _executors.discard(other._core)  # noqa: SLF001 - of this class
                other._core.leave()  # noqa: SLF001 - as above
            core.leave()
            if core.number:
                _say(f"left submission {core.number}, what was sent goes on: rmgr jobs {core.number} (rmgr cancel {core.number} ends it)")
            raise

    def _count_left(self) -> int:
        """Calls that have not ended, also of `with_options`."""
        return self._core.count_left() + sum(other._count_left() for other in self._variants.all())  # noqa: SLF001 - as above


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody reads, or there is no stderr
        sys.stderr.write(shown_on(f"rmgr: {text}\n", sys.stderr))
        sys.stderr.flush()


def _results(
    core: Core,
    send: Callable[[list[tuple[Any, ...]]], list[Future]],
    calls: Iterator[tuple[Any, ...]],
    deadline: Deadline,
    window: int | None,
) -> Iterator[Any]:
    """Schedules now (all, or the first `window`), yields results later; what nobody asks for any more is cancelled."""
    futures: deque[Future] = deque()
    while batch := list(itertools.islice(calls, _MAP_BATCH if window is None else min(_MAP_BATCH, window - len(futures)))):
        futures.extend(send(batch))
    return _yield_results(core, send, calls, deadline, futures)


def _yield_results(
    core: Core,
    send: Callable[[list[tuple[Any, ...]]], list[Future]],
    calls: Iterator[tuple[Any, ...]],
    deadline: Deadline,
    futures: deque[Future],
) -> Iterator[Any]:
    try:
        while futures:
            more = list(itertools.islice(calls, 1))
            if more:
                futures.extend(send(more))
            futures[0].wait(deadline.left())
            yield futures.popleft().result()
    finally:
        left = [future for future in futures if not future.done()]
        if left and not core.is_over:
            core.abandon(left)


def _end_executors() -> None:
    """As the pools of concurrent.futures: the interpreter waits for what was submitted."""
    for core in list(_executors):
        if core.connection.is_usable:
            core.shut(cancel=False)
            core.wait_done()


__all__ = ["BrokenExecutor", "Executor"]
