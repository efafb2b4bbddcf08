"""The processors that work may use, as its variable RMGR_CPU_BIND names them: told to the kernel before it starts."""

from __future__ import annotations

import contextlib
import os

VARIABLE = "RMGR_CPU_BIND"


def bind(text: str, *, every_thread: bool = False) -> None:
    """This process, and what it starts from now on, use these processors only (`0,2`; "" = as they do). Cost: a few us a thread.

    every_thread: those that libraries have begun, too. Processors that are gone are nobody's error: work runs on where it is.
    """
    if not text:
        return
    cpus = [int(number) for number in text.split(",")]
    threads = [0]
    if every_thread:
        with contextlib.suppress(OSError):
            threads = [int(name) for name in os.listdir("/proc/self/task")]
    for thread in threads:
        with contextlib.suppress(OSError, AttributeError):  # no such call where there is no Linux
            os.sched_setaffinity(thread, cpus)
