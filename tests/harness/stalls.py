"""Runs the tests on a machine that stands still: once a minute all processes of the run are stopped for 2 to 10 s (`tests/stalls.sh`).

Processes of the run are those below the command, and those that have its mark among their variables: daemons may belong to nobody any more.
What a test has stopped itself stays stopped. Stalls are made here on purpose, so they excuse nothing (`tests/harness/second_goes.py`).
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

_MARK = "STALLED_RUN"  # without the prefix of rmgr's variables, which tests take away from what they start
_EVERY_S = 60.0
_LEAST_S, _MOST_S = 2.0, 10.0
_STILL = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_ZOMBIE)


def processes_of(root: psutil.Process, mark: str) -> Iterator[psutil.Process]:
    """Those of a run, in no order. mark: see the module."""
    below = {root, *root.children(recursive=True)}
    yield from below
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process not in below and process.environ().get(_MARK) == mark:
                yield process


def stop_all(root: psutil.Process, mark: str) -> list[psutil.Process]:
    """Stops every process of the run that is not stopped already; those that were begun meanwhile, too. Returns: whom it has stopped."""
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
    """The end of a stall."""
    for process in stopped:
        with contextlib.suppress(psutil.Error):
            process.resume()


def run(words: Sequence[str], *, every_s: float = _EVERY_S, least_s: float = _LEAST_S, most_s: float = _MOST_S) -> int:
    """Runs a command in stalls until it ends; its exit code. Ctrl-C is for the command."""
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
