"""An outside ledger of gangs: processes stamp a mapped file (tests/harness/stamping.py), so their own stamps say when each ran.

The checker compares stretches, and trusts nobody.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from tests.harness.stamping import GAP_NS, PAIR

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


class Stretch(NamedTuple):
    """One process ran from start to end (ns, CLOCK_BOOTTIME), as far as its own stamps tell."""

    start: int
    end: int
    job: str
    rank: str
    node: str


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
        yield from itertools.takewhile(itemgetter(0), itertools.chain.from_iterable(map(PAIR.iter_unpack, parts)))


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
