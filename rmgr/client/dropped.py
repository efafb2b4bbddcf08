"""Declares a submission complete when nobody holds its TaskQueue or Executor any more.

The garbage collector may run anywhere, also inside of a lock: it only enqueues (`SimpleQueue.put` may be called so), and
one thread carries out.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

from rmgr.runtime import machine

_jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
_started = threading.Event()


def when_dropped(owner: object, job: Callable[[], None]) -> None:
    """`job` is called, on a thread of its own, after `owner` was dropped; it must not refer to it. Not at the interpreter's end."""
    if not _started.is_set():
        _started.set()
        machine.Thread(target=_work, name="rmgr-dropped", daemon=True).start()
    weakref.finalize(owner, _jobs.put, job).atexit = False


def _work() -> None:
    while True:
        _jobs.get()()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_started.clear)
