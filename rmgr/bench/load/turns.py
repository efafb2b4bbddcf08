"""Programs of `bench gang`, which import nothing of rmgr: ranks that spin and stamp, a ping-pong, work, and the bare loop.

    stamp DIR GAP_S SECONDS     spins until it has had a processor for that long; records when each of its stretches began
    pingpong FILE               rank 0 counts up, rank 1 follows; both spin until the other has answered
    work FILE                   computes, and counts its steps
    loop DIR QUANTUM_NS ORIGIN_NS SLOTS NODE [GROUP GROUP]
                                two stamping child processes take turns: what a turner does, with nothing around it

Programs that count end when their file says so. Times are ns of CLOCK_BOOTTIME. A GROUP is a control group of version 2, by
its directory; without groups the loop stops its children by signals.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import struct
import sys
import time

WORD = struct.Struct("<Q")
#: Offsets of words in a file that counts, 64 bytes apart: the count of each side (work: the second one), and whether it is over.
PING, PONG, OVER, COUNT_BYTES = 0, 64, 128, 192
#: Steps of a linear congruence, about 0.1 ms: the unit that work counts.
_STEP = 1_000
_MOST_STRETCHES = 4_096


def now_ns() -> int:
    """Returns the time of the clock that turners use."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def stamp(path: str, gap_s: float, seconds: float) -> None:
    """Spins and stamps; a stretch ends where the process was away for longer than the gap."""
    gap_ns, wanted_ns = int(gap_s * 1e9), int(seconds * 1e9)
    with open(path, "w+b") as file:
        file.truncate(WORD.size * _MOST_STRETCHES)
        table = mmap.mmap(file.fileno(), WORD.size * _MOST_STRETCHES)
    had_ns = at = 0
    last = -gap_ns - 1
    while had_ns < wanted_ns and at < _MOST_STRETCHES:
        now = now_ns()
        if now - last > gap_ns:
            WORD.pack_into(table, at * WORD.size, now)
            at += 1
        else:
            had_ns += now - last
        last = now


def pingpong(path: str, rank: int) -> None:
    """Sends messages by counting in the file's words."""
    table = _counted(path)
    mine, other, over = (PONG if rank else PING) // 8, (PING if rank else PONG) // 8, OVER // 8
    count = 0
    while True:
        if not rank:
            count += 1
            table[mine] = count
        awaited = count + rank
        while table[other] != awaited:
            if table[over]:
                return
        if rank:
            count += 1
            table[mine] = count


def work(path: str) -> None:
    """Computes steps of a linear congruence and counts them."""
    table = _counted(path)
    value = count = 0
    while not table[OVER // 8]:
        for _ in range(_STEP):
            value = (value * 69_069 + 1) & 0xFFFFFFFF
        count += 1
        table[PONG // 8] = count


def _counted(path: str) -> memoryview[int]:
    with open(path, "r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), COUNT_BYTES)).cast("Q")


def loop(directory: str, quantum_ns: int, origin_ns: int, slots: int, node: str, groups: list[str]) -> None:
    """Stops one child and continues the other at each boundary, with a priority above all work, as a turner does."""
    children: list[int] = []
    for at in range(2):
        pid = os.fork()
        if pid == 0:
            stamp(os.path.join(directory, f"job{at}.{node}"), quantum_ns / 2e9, slots * quantum_ns / 1e9)
            os._exit(0)
        children.append(pid)
        if groups:
            _write(f"{groups[at]}/cgroup.procs", str(pid))
        _switch(groups, children, at, on=False)
    try:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        slot = turned = 0
        while turned < slots:
            _sleep_until(origin_ns + slot * quantum_ns)
            if now_ns() < origin_ns + (slot + 1) * quantum_ns:  # otherwise the machine stood still all the time: not counted
                _switch(groups, children, 1 - slot % 2, on=False)
                _switch(groups, children, slot % 2, on=True)
                turned += 1
            slot += 1
        _sleep_until(origin_ns + slot * quantum_ns)
    finally:
        for at, pid in enumerate(children):
            os.kill(pid, signal.SIGKILL)
            _switch(groups, children, at, on=True)
            os.waitpid(pid, 0)


def _sleep_until(at_ns: int) -> None:
    time.sleep(max(0, at_ns - now_ns()) / 1e9)


def _switch(groups: list[str], children: list[int], at: int, *, on: bool) -> None:
    if groups:
        _write(f"{groups[at]}/cgroup.freeze", "0" if on else "1")
    else:
        os.kill(children[at], signal.SIGCONT if on else signal.SIGSTOP)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def main(what: str, *args: str) -> None:
    """Runs one of the programs; see the first lines of the file."""
    rank, node = os.environ.get("RMGR_RANK", "0"), os.environ.get("RMGR_NODE", "")
    job = os.environ.get("RMGR_JOB_ID", "0")
    match what, args:
        case "stamp", (directory, gap_s, seconds):
            stamp(os.path.join(directory, f"job{job}.{node}"), float(gap_s), float(seconds))
        case "pingpong", (path,):
            pingpong(path, int(rank))
        case "work", (path,):
            work(path)
        case "loop", (directory, quantum_ns, origin_ns, slots, node, *groups):
            loop(directory, int(quantum_ns), int(origin_ns), int(slots), node, list(groups))
        case _:
            raise SystemExit(f"{what}: not known; {__doc__}")


if __name__ == "__main__":
    main(*sys.argv[1:])
