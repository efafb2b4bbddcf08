"""The Submitter's thread, which alone changes the state of submissions. Jobs that may wait run on threads beside it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from rmgr.errors import NotConnected, Unavailable
from rmgr.runtime import machine
from rmgr.runtime.machine import Backoff
from rmgr.runtime.mailbox import Mailbox, Timer, run_loop
from rmgr.runtime.story import Pause, Story

_LOG = logging.getLogger("rmgr.submitter")
Job = Callable[[], object]
T = TypeVar("T")


class SubmitterThread:
    """Runs jobs one after another. Thread-safe."""

    def __init__(self) -> None:
        self.mailbox: Mailbox[Job] = Mailbox()
        self._io: Executor | None = None
        self._beside: dict[str, Executor] = {}
        self._pools_lock = threading.Lock()
        self._thread = machine.Thread(target=run_loop, args=(self,), name="rmgr-submitter", daemon=True)

    def start(self) -> None:
        """Begins to run jobs."""
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread."""
        return threading.current_thread() is self._thread

    def post(self, job: Job) -> None:
        """Runs `job` on this thread, soon."""
        self.mailbox.put(job)

    def after(self, delay_s: float, job: Job) -> Timer:
        """Runs `job` on this thread later."""
        return self.mailbox.after(delay_s, job)

    def io(self, job: Callable[[], Any]) -> Future[Any]:
        """Runs `job` on another thread, where it may wait for the store."""
        with self._pools_lock:
            if self._io is None:
                self._io = machine.pool(2, "rmgr-store")
            pool = self._io
        try:
            return pool.submit(job)
        except RuntimeError as error:  # the interpreter is shutting down
            failed: Future[Any] = Future()
            failed.set_exception(NotConnected(str(error)))
            return failed

    def jitter(self, seconds: float) -> float:
        """Returns 0.75 to 1.25 times `seconds`."""
        return seconds * machine.uniform(0.75, 1.25)

    def wake(self, job: Job, key: object) -> None:
        """Posts `job` unless a job with the same key is already waiting."""
        self.mailbox.wake(job, key)

    def call_soon(self, callback: Job) -> None:
        """Runs code of the user on a separate thread, where it may block without harm."""
        self._run_beside("rmgr-callbacks", callback)

    def write_soon(self, job: Job) -> None:
        """Runs what writes on the program's streams on a thread of its own: it may block, and callbacks may wait for it."""
        self._run_beside("rmgr-output", job)

    def _run_beside(self, name: str, job: Job) -> None:
        with self._pools_lock:
            pool = self._beside.get(name)
            if pool is None:
                pool = self._beside[name] = machine.pool(1, name)
        try:
            pool.submit(job)
        except RuntimeError:  # the interpreter is shutting down: no other thread will call it
            job()

    def stop(self, timeout_s: float) -> None:
        """Runs jobs that were posted before, then ends the thread."""
        self.mailbox.close()
        if not self.is_current:
            self._thread.join(timeout_s)

    def release(self) -> None:
        """Lets the other threads end once they have finished their jobs."""
        for pool in (self._io, *self._beside.values()):
            if pool is not None:
                pool.shutdown(wait=False)

    # -- turns (`LoopOwner`)

    def wait_s(self) -> None:
        """See `LoopOwner`: waits only for jobs."""

    def turn(self, job: Job | None) -> bool:
        """See `LoopOwner`. Closing the mailbox ends the loop."""
        try:
            if job is not None:
                job()
        except Exception:  # noqa: BLE001 - the loop boundary: a defect in one submission must not end the others
            _LOG.exception("submitter_job_failed")
        return True


def sure(
    ask: Callable[[], Future[T]],
    asked: Future[T] | None = None,
    *,
    pauses_s: tuple[float, float],
    silence: tuple[type[Exception], ...] = (Unavailable,),
    troubled: Callable[[Exception], None] = lambda _: None,
) -> Story[T]:
    """Returns the answer, asking again after longer and longer pauses as long as there is none.

    asked: a question already under way. pauses_s: the first and the longest. silence: errors that count as no answer. troubled: gets them.
    """
    pauses = Backoff(*pauses_s)
    while True:
        try:
            answer: T = yield ask() if asked is None else asked
            return answer
        except silence as error:
            troubled(error)
        asked = None
        yield Pause(pauses.next_s())
