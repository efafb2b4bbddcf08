"""Threads for the driver that end with the process: one that waits for a frozen node must not hold up the exit of a command."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DaemonPool(Executor):
    """An executor whose threads are daemons, made when they are needed.

    Those of `ThreadPoolExecutor` are joined by the interpreter at its end, whatever they are waiting for. Here the driver
    connects to nodes, which takes a node that hangs all of the connect timeout; nothing of it needs to be finished.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._free = 0  #: threads that wait, less what waits for them
        self._is_over = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See `Executor.submit`. Raises: RuntimeError after `shutdown`."""
        future: Future[T] = Future()

        def work() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as error:  # noqa: BLE001 - as every executor: it belongs to the one who asks for the result
                    future.set_exception(error)

        with self._lock:
            if self._is_over:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._queue.put(work)
            self._free -= 1
            if self._free < 0 and self._threads < self._most:
                self._threads += 1
                self._free += 1
                threading.Thread(target=self._run, name=f"rmgr-store-driver-{self._threads}", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002 - the interface's
        """Takes no more; what waits is carried out, and nobody waits for it."""
        with self._lock:
            if not self._is_over:
                self._is_over = True
                for _ in range(self._threads):
                    self._queue.put(None)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
            with self._lock:
                self._free += 1


def use_daemons(cluster: Any, *, most: int) -> None:
    """Gives a driver's Cluster that was just made, and has started nothing, a `DaemonPool` in place of its own executor."""
    own = cluster.executor
    pool = DaemonPool(most)
    cluster.executor = pool
    cluster.scheduler._executor = pool  # noqa: SLF001 - the scheduler was given the other one, and there is no way to say which
    own.shutdown(wait=False)
