"""An outside ledger of gangs: processes spin and stamp a mapped file with CLOCK_BOOTTIME, so their own stamps say when each ran.

As a program: `gang_ledger.py DIR SECONDS [FILE]` spins until it has had a processor for so long, and FILE is there. With FILE, which
tests of whole clusters name, it sleeps between two stamps: spinning, the ranks of four nodes take a small machine's processors from each
other and from all that is tested. It leaves `DIR/<job>.<rank>.<node>` with the stretches in which it ran: one ends where it was away for
longer than `GAP_NS`. The checker compares stretches, and trusts nobody.
"""

from __future__ import annotations

import itertools
import os
import struct
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

#: A process that was away for longer had been stopped, or had no processor.
GAP_NS = 5_000_000
_BETWEEN_S = 0.001  #: two stamps of one that sleeps: what ran for less beside another is not seen
#: Continues processes as soon as somebody stops them, before all other work of the machine.
CONTINUE = """
import os, signal, sys, time
os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(2))
while True:
    for pid in map(int, sys.argv[1:]):
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            sys.exit()
    time.sleep(0.00005)
"""
_PAIR = struct.Struct("=QQ")
_MOST = 65_536


class Stretch(NamedTuple):
    """One process ran from start to end (ns, CLOCK_BOOTTIME), as far as its own stamps tell."""

    start: int
    end: int
    job: str
    rank: str
    node: str


def spin(directory: str, seconds: float, until: str = "") -> None:
    """Stamps until it has run for so long, and the file is there."""
    import mmap

    name = f"{os.environ['RMGR_JOB_ID']}.{os.environ.get('RMGR_RANK', '0')}.{os.environ['RMGR_NODE']}"
    path = os.path.join(directory, name)
    with open(path, "w+b") as file:
        file.truncate(_PAIR.size * _MOST)
        # As numbers of eight bytes: `pack_into` clears what it writes first, which a reader would see.
        table = memoryview(mmap.mmap(file.fileno(), _PAIR.size * _MOST)).cast("Q")
    had, at = 0, -1
    last = looked = -GAP_NS
    may_end = not until
    while had < seconds * 1e9 or not may_end:
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        if (now - last > GAP_NS and at < _MOST - 1) or at < 0:
            at += 1
            table[2 * at + 1] = now  # first: with a start it is there
            table[2 * at] = now
        else:
            had += now - last
            table[2 * at + 1] = now
        last = now
        if not may_end and now - looked > GAP_NS:
            may_end, looked = os.path.exists(until), now
        if until:
            time.sleep(_BETWEEN_S)


def stretches(directory: Path, jobs: Collection[str] = (), *, since: int = 0) -> list[Stretch]:
    """All that was stamped, by these jobs if there are any, and had not ended then (ns)."""
    found = []
    for path in sorted(directory.iterdir()):
        job, rank, node = path.name.split(".")
        if not jobs or job in jobs:
            found += [Stretch(start, end, job, rank, node) for start, end in _stamped(path) if end > since]
    return found


def _stamped(path: Path) -> Iterator[tuple[int, int]]:
    """The pairs of a file, most of which has not been written."""
    with path.open("rb") as file:
        parts = iter(lambda: file.read(4096), b"")
        yield from itertools.takewhile(itemgetter(0), itertools.chain.from_iterable(map(_PAIR.iter_unpack, parts)))


def overlaps(some: Iterable[Stretch], cores: dict[str, int] | None = None) -> list[tuple[Stretch, ...]]:
    """Moments at which processes of more jobs ran on a node than it has cores (1 where nothing is said): each as those that ran.

    What is shorter than `GAP_NS` and lies within another's stretch proves nothing: the other may have been away meanwhile.
    """
    wrong = []
    by_node: dict[str, list[Stretch]] = {}
    for one in some:
        by_node.setdefault(one.node, []).append(one)
    for node, there in by_node.items():
        running: list[Stretch] = []
        for one in sorted(there):
            running = [other for other in running if other.end > one.start]
            if one.end - one.start < GAP_NS and any(other.end >= one.end for other in running if other.job != one.job):
                continue
            running.append(one)
            if len({other.job for other in running}) > (cores or {}).get(node, 1):
                wrong.append(tuple(running))
    return wrong


def in_its_slots(some: Iterable[Stretch], job: str, tree: Mapping[str, Any], *, since: int = 0, until: int = sys.maxsize) -> float:
    """Of the time in which a process of a job ran, the part in slots that the record gives the job on its node; of the process of which it
    is least, 0.0 without any. How much of its slots a process made use of does not matter: on a busy machine that is little.

    Args:
        tree: as `rmgr queues --tree --matrix N --json` has it, of a reference on this machine: what its matrix does not tell is not looked
        at. since, until: nor is what was before and after (ns).
    """
    slot_ns = round(tree["quantum_seconds"] * 1e9)
    origin_ns = (tree["origin_us"] - tree["clock"]["offset_us"]) * 1000
    nodes = [leaf["node"] for leaf in tree["leaves"] for _ in range(leaf["cores"])]
    rows = {row["slot"]: {node for node, there in zip(nodes, row["cores"], strict=True) if there == job} for row in tree["matrix"]}
    ran: dict[tuple[str, str], list[int]] = {}  # process -> (ns in its slots, ns in all)
    for one in some:
        start, end = max(one.start, since), min(one.end, until)
        if one.job != job or start >= end:
            continue
        sums = ran.setdefault((one.rank, one.node), [0, 0])
        for slot in range((start - origin_ns) // slot_ns, (end - origin_ns) // slot_ns + 1):
            if slot in rows:
                ns = max(0, min(end, origin_ns + (slot + 1) * slot_ns) - max(start, origin_ns + slot * slot_ns))
                sums[0] += ns * (one.node in rows[slot])
                sums[1] += ns
    return min((right / every if every else 0.0 for right, every in ran.values()), default=0.0)


def served_s(some: Iterable[Stretch], job: str) -> float:
    """Seconds for which all processes of the job together ran."""
    return sum(one.end - one.start for one in some if one.job == job) / 1e9


if __name__ == "__main__":
    spin(sys.argv[1], float(sys.argv[2]), *sys.argv[3:])
