"""Declares a submission complete when nobody holds its TaskQueue or Executor any more.

The garbage collector may run anywhere, also inside of a lock: it only enqueues (`SimpleQueue.put` may be called so), and
one thread carries out.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

from rmgr.runtime import machine

_jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
_thread: threading.Thread | None = None


def when_dropped(owner: object, job: Callable[[], None]) -> None:
    """`job` is called, on a thread of its own, after `owner` was dropped; it must not refer to it. Not at the interpreter's end."""
    global _thread
    if _thread is None or not _thread.is_alive():  # a child of a fork has none; two at once do no harm
        _thread = machine.Thread(target=_work, name="rmgr-dropped", daemon=True)
        _thread.start()
    weakref.finalize(owner, _jobs.put, job).atexit = False


def _work() -> None:
    while True:
        try:
            _jobs.get()()
        except Exception as error:  # noqa: BLE001 - as in a finalizer: told, and others are let go
            sys.excepthook(type(error), error, error.__traceback__)
