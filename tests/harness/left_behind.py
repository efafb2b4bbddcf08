"""Kills what a run of the tests has left behind, also one that was killed itself: daemons, work and servers would go on for ever.

A process waits for the end of the run's main process, which it is told by the kernel, and then kills whatever was executed with the run's
mark in its environment, and what that forked. A run that ends by itself has nothing left. Linux only. Cost: 20 ms a run.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

_MARK = "TESTS_RUN"  # without the prefix RMGR_: tests remove rmgr's variables from processes that they start
#: The time in which workers of a run that was killed, and servers that die with them, end by themselves (s).
_THEY_END_S = 3.0
_LOOK_S = 0.1
#: It outlives the run, whose output somebody may read to its end.
_SILENT: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)


def pytest_configure(config: object) -> None:
    """Marks a run's processes, and starts the one that waits for its end, beside the main process and not below it."""
    if hasattr(config, "workerinput") or not Path("/proc/self/environ").exists():
        return
    os.environ[_MARK] = mark = uuid.uuid4().hex
    subprocess.run([sys.executable, "-I", "-S", __file__, str(os.getpid()), mark], env={}, cwd="/", check=True, **_SILENT)


def _wait_for_end(pid: int) -> None:
    try:
        select.select([os.pidfd_open(pid)], [], [])
    except ProcessLookupError:  # already
        return


def _marked(mark: bytes) -> list[int]:
    found = []
    for entry in os.scandir("/proc"):
        try:
            if entry.name.isdigit() and mark in Path(entry.path, "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:  # it has ended, or is another user's
            continue
    return found


def _kill(mark: str) -> None:
    last_s = time.monotonic() + _THEY_END_S
    while found := _marked(f"{_MARK}={mark}".encode()):
        if time.monotonic() >= last_s:
            for pid in found:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        time.sleep(_LOOK_S)


if __name__ == "__main__" and not os.fork():
    os.setsid()
    _wait_for_end(int(sys.argv[1]))
    _kill(sys.argv[2])
