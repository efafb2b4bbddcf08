"""Runs the tests as on a machine that stands still at times: stops all processes of the run for 2 to 10 s a minute (`tests/stalls.sh`).

Processes of the run are the command's descendants, and processes with its mark in their environment, because daemons may be orphaned.
Processes that a test, or a daemon, has stopped stay stopped: parents are stopped before their children, and go on after them, so that
nobody stops or continues a process that stands still for the stall. These stalls are made on purpose and excuse no failure
(`tests/harness/second_goes.py`).
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence

import psutil

from tests.harness.second_goes import STALLED_VARIABLE

_MARK = "STALLED_RUN"  # without the prefix RMGR_: tests remove rmgr's variables from processes that they start
_EVERY_S = 60.0
_LEAST_S, _MOST_S = 2.0, 10.0
_STILL = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_ZOMBIE)


def processes_of(root: psutil.Process, mark: str) -> Iterator[psutil.Process]:
    """Yields the processes of a run, parents before their children, and orphans with theirs at the end. mark: see the module."""
    below = dict.fromkeys((root, *root.children(recursive=True)))  # psutil lists all children of a process before any of theirs
    yield from below
    orphans: dict[psutil.Process, int] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process not in below and process.environ().get(_MARK) == mark:
                orphans[process] = len(process.parents())
    yield from sorted(orphans, key=orphans.__getitem__)


def stop_all(root: psutil.Process, mark: str) -> list[psutil.Process]:
    """Stops all processes of the run that are not stopped yet, also those started meanwhile. Returns the processes that it has stopped."""
    stopped: list[psutil.Process] = []
    while True:
        found = [process for process in processes_of(root, mark) if process not in stopped and _stop(process)]
        if not found:
            return stopped
        stopped += found


def _stop(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        if process.status() not in _STILL:
            process.suspend()
            return True
    return False


def go_on(stopped: Sequence[psutil.Process]) -> None:
    """Continues the stopped processes at the end of a stall, the last first."""
    for process in reversed(stopped):
        with contextlib.suppress(psutil.Error):
            process.resume()


def run(words: Sequence[str], *, every_s: float = _EVERY_S, least_s: float = _LEAST_S, most_s: float = _MOST_S) -> int:
    """Runs a command with stalls until it ends; returns its exit code. Ctrl-C is left to the command."""
    mark, draw = uuid.uuid4().hex, random.Random()
    with subprocess.Popen(words, env=os.environ | {_MARK: mark, STALLED_VARIABLE: "1"}) as command:
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return command.wait(every_s)
                for_s = draw.uniform(least_s, most_s)
                with contextlib.suppress(psutil.NoSuchProcess):
                    stopped = stop_all(psutil.Process(command.pid), mark)
                    try:
                        time.sleep(for_s)
                    finally:
                        go_on(stopped)
        except KeyboardInterrupt:
            command.send_signal(signal.SIGINT)
            return command.wait(120)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
