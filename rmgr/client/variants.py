"""Calls with other options: `queue.with_options(cores=2).submit_call(...)`, and the same of an Executor.

What a call needs stands in the record of its submission, so each set of options is a submission of its own. It is made when
it is first used, and kept for the next call with the same options. It ends with the queue or executor that it was made from.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from rmgr.client.specs import LAUNCHES
from rmgr.client.tasks import Waited
from rmgr.client.waiting import Deadline
from rmgr.errors import TaskFailed, UsageError
from rmgr.model.tasks.submission import Submission

T = TypeVar("T")

#: What may differ from call to call, of an Executor and of a TaskQueue.
OF_CALLS = (
    "name",
    "queue",
    "cores",
    "memory",
    "time",
    "features",
    "resources",
    "priority",
    "retries",
    "backoff",
    "resubmit",
    "on_disconnect",
)
OF_TASKS = (*OF_CALLS, "processes", "nodes", "launch")


class Variants(Generic[T]):
    """Queues or executors that were made from `origin`, by the options in which they differ from it. Thread-safe.

    Args:
        make: makes one; gets all options. options: those of `origin`. names: which may be changed.
    """

    def __init__(self, make: Callable[..., T], options: Mapping[str, Any], names: tuple[str, ...]) -> None:
        self._make = make
        self._options = dict(options)
        self._names = names
        self._known: dict[str, T] = {}
        self._lock = threading.Lock()

    def get(self, origin: T, changes: Mapping[str, Any]) -> T:
        """The one with these options; `origin` itself where nothing changes. Raises: UsageError, and what making one raises."""
        if unknown := [name for name in changes if name not in self._names]:
            raise UsageError(f"with_options has no option {unknown[0]!r}", hint=f"a call may have its own {', '.join(self._names)}")
        changed = {name: value for name, value in sorted(changes.items()) if value != self._options.get(name)}
        if not changed:
            return origin
        key = repr(changed)
        with self._lock:
            known = self._known.get(key)
            if known is None:
                options = self._options | changed
                if token := options.get("token"):
                    options["token"] = f"{token} {key}"
                known = self._known[key] = self._make(**options)
            return known

    def all(self) -> list[T]:
        """Those that were made, oldest first."""
        with self._lock:
            return list(self._known.values())


def options_of(record: Submission) -> dict[str, Any]:
    """What a TaskQueue with this record was asked for. (Its modules are not known by name: who attaches to it has none.)"""
    request, rigid = record.request, record.rigid
    options: dict[str, Any] = {
        "function": record.function,
        "queue": record.queue,
        "name": record.name,
        "cores": request.cores,
        "memory": request.memory_bytes or None,
        "time": request.time_limit_us / 1e6 or None,
        "features": request.features,
        "resources": dict(request.resources),
        "priority": record.priority,
        "retries": record.retries,
        "backoff": record.backoff_us / 1e6 or None,
        "resubmit": record.resubmit,
        "on_disconnect": str(record.on_disconnect),
        "python": record.python.python if record.python is not None else "",
    }
    if rigid is not None:
        launch = next(name for name, number in LAUNCHES.items() if number == rigid.launch)
        options |= {"processes": rigid.processes, "nodes": rigid.nodes, "launch": launch}
    return options


class WaitedQueue(Protocol):
    """A queue whose tasks can be waited for."""

    def wait_all(self, *, progress: bool, timeout: float | None) -> Waited:
        """Returns when all of them have ended. Raises: TaskFailed, DeadlineExceeded."""
        ...


def outcome_of(queue: WaitedQueue, progress: bool, deadline: Deadline) -> Waited | TaskFailed:
    """What `wait_all` of a queue returns, or raises once all of it has ended. Raises DeadlineExceeded."""
    try:
        return queue.wait_all(progress=progress, timeout=deadline.left())
    except TaskFailed as error:
        return error


def together(mine: Waited, others: Sequence[Waited | TaskFailed]) -> Waited:
    """Of a queue and of those with other options. Raises TaskFailed."""
    counts, failed = dict(mine.counts), list(mine.failed)
    for other in others:
        if isinstance(other, TaskFailed):
            raise other
        failed += other.failed
        counts = {state: counts.get(state, 0) + count for state, count in other.counts.items()}
    return Waited(counts, failed)
