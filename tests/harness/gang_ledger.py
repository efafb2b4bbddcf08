"""A ledger of gangs outside rmgr: processes stamp mapped files (tests/harness/stamping.py), which show when each process ran.

The checker uses only these stretches, and nothing that rmgr reports.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from tests.harness.stamping import GAP_NS, PAIR

#: A program that continues processes as soon as they are stopped, ahead of all other work of the machine.
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


class Stretch(NamedTuple):
    """A time in which one process ran, from start to end (ns, CLOCK_BOOTTIME), by its own stamps."""

    start: int
    end: int
    job: str
    rank: str
    node: str


def stretches(directory: Path, jobs: Collection[str] = (), *, since: int = 0) -> list[Stretch]:
    """Returns all stretches in a directory, of these jobs (none given: of all), that ended after `since` (ns)."""
    found = []
    for path in sorted(directory.iterdir()):
        job, rank, node = path.name.split(".")
        if not jobs or job in jobs:
            found += [Stretch(start, end, job, rank, node) for start, end in _stamped(path) if end > since]
    return found


def _stamped(path: Path) -> Iterator[tuple[int, int]]:
    """Yields the pairs of a file up to the first unwritten one; most of a file is unwritten."""
    with path.open("rb") as file:
        parts = iter(lambda: file.read(4096), b"")
        yield from itertools.takewhile(itemgetter(0), itertools.chain.from_iterable(map(PAIR.iter_unpack, parts)))


def overlaps(some: Iterable[Stretch], cores: dict[str, int] | None = None) -> list[tuple[Stretch, ...]]:
    """Returns the moments at which processes of more jobs ran on a node than it has cores (default 1): each as the stretches that overlap.

    A stretch shorter than `GAP_NS` within another process's stretch proves nothing: that process may have been off the core meanwhile.
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
    """Returns the share of a process's running time that lies in the slots of its job on its node: the least of all the job's processes,
    or 0.0 without any. How much of its slots a process uses does not matter; on a busy machine it is little.

    Args:
        tree: as `rmgr queues --tree --matrix N --json` prints it, of a reference on this machine; times outside its matrix are ignored.
        since, until: times before and after are ignored, too (ns).
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
    """Returns the running time of all processes of a job, added up (s)."""
    return sum(one.end - one.start for one in some if one.job == job) / 1e9
