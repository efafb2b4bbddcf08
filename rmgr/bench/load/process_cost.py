"""Watches the cost of processes: time of the processor, wake-ups, memory; by process and with all that they started.

The used heap of a Java process comes through HotSpot's own attach protocol, so that no JDK is needed (only `java`).
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from rmgr.errors import Unavailable

MIB = 1 << 20
#: The clock of a process by its pid, as clock_getcpuclockid(3) makes it: what the scheduler counted.
_SCHED = 2
_DEADLINE_S = 30.0
_LOOK_S = 0.02
#: "def new generation   total 39296K, used 1234K", "tenured generation ...", and what follows of other collectors; never "Metaspace".
_USED = re.compile(r"^ *(?!Metaspace|class space)\S[^\n]*?total \S+, used (\d+)K", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Cost:
    """Since it was started: seconds of the processor, and how often its threads gave the processor up by themselves."""

    cpu_s: float
    wakeups: int

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.cpu_s - other.cpu_s, self.wakeups - other.wakeups)

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.cpu_s + other.cpu_s, self.wakeups + other.wakeups)


@contextlib.contextmanager
def sampled(look: Callable[[], float], every_s: float) -> Iterator[list[float]]:
    """What `look` finds all the while, one sample after the other."""
    samples, over = list[float](), threading.Event()

    def watch() -> None:
        while True:
            samples.append(look())
            if over.wait(every_s):
                return

    thread = threading.Thread(target=watch, name="rmgr-bench-samples")
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def children_of(pid: int) -> list[int]:
    """All processes that `pid` started and those started, without itself."""
    try:
        return sorted(child.pid for child in psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def cost_of(pid: int) -> Cost:
    """Of one process, threads that ended included. Raises: ProcessLookupError. Resolution: ns of the processor's time."""
    try:
        cpu_s = time.clock_gettime((~pid << 3) | _SCHED)
    except OSError:
        raise ProcessLookupError(pid) from None
    wakeups = 0
    for thread in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            wakeups += next(int(line.split()[1]) for line in thread.read_text().splitlines() if line.startswith("voluntary_ctxt"))
    return Cost(cpu_s, wakeups)


def pss_bytes(pid: int) -> int:
    """Memory of one process, each page shared by n processes as 1/n of it. 0: it is gone. Cost: ms, with the kernel's lock on its pages."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def cpu_s(pids: Iterable[int]) -> float:
    """Seconds of the processor that these processes have used; of those that are gone nothing is known any more."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            total += cost_of(pid).cpu_s
    return total


def live_heap_bytes(pid: int) -> int:
    """Bytes of objects that are reachable in process `pid`: a full collection, then what is in use.

    Raises: Unavailable when it is no HotSpot JVM of this user, or does not answer. Cost: the pause of a full collection.
    """
    _ask(pid, "GC.run")
    used = _USED.findall(_ask(pid, "GC.heap_info"))
    if not used:
        raise Unavailable(f"process {pid} does not tell its heap")
    return sum(map(int, used)) * 1024


def _ask(pid: int, command: str) -> str:
    """The answer of a diagnostic command (what `jcmd` does)."""
    deadline_s = time.monotonic() + _DEADLINE_S
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(_DEADLINE_S)
        try:
            peer.connect(str(_listening(pid, deadline_s)))
            peer.sendall(b"1\0jcmd\0" + command.encode() + b"\0\0\0")
            parts = []
            while part := peer.recv(65_536):
                parts.append(part)
        except OSError as error:
            raise Unavailable(f"the Java process {pid} cannot be asked: {error}") from error
    code, _, answer = b"".join(parts).decode(errors="replace").partition("\n")
    if code.strip() != "0":
        raise Unavailable(f"the Java process {pid} refuses {command}: {answer.strip()[:200]}")
    return answer


def _listening(pid: int, deadline_s: float) -> Path:
    """Where it listens; a file of a known name and SIGQUIT make it begin."""
    path = Path(f"/proc/{pid}/root", "tmp", f".java_pid{pid}")
    if path.exists():
        return path
    wish = Path(f"/proc/{pid}/cwd/.attach_pid{pid}")
    try:
        wish.touch(mode=0o600)
        try:
            os.kill(pid, signal.SIGQUIT)
            while not path.exists():
                if time.monotonic() > deadline_s:
                    raise Unavailable(f"the Java process {pid} does not listen")
                time.sleep(_LOOK_S)
        finally:
            with contextlib.suppress(OSError):
                wish.unlink()
    except OSError as error:
        raise Unavailable(f"the Java process {pid} cannot be asked: {error}") from error
    return path
