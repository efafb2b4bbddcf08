"""An outside ledger of gangs: processes spin and stamp a mapped file with CLOCK_BOOTTIME, so their own stamps say when each ran.

As a program: `gang_ledger.py DIR SECONDS [FILE]` spins until it has had a processor for so long, and FILE is there. It leaves
`DIR/<job>.<rank>.<node>` with the stretches in which it ran: one ends where it was away for longer than `GAP_NS`. The checker
compares stretches, and trusts nobody.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

#: A process that was away for longer had been stopped, or had no processor.
GAP_NS = 20_000_000
_PAIR = struct.Struct("<QQ")
_MOST = 4_096


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
        table = mmap.mmap(file.fileno(), _PAIR.size * _MOST)
    had, at = 0, -1
    last = looked = -GAP_NS
    may_end = not until
    while had < seconds * 1e9 or not may_end:
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        if now - last > GAP_NS or at < 0:
            at += 1
            _PAIR.pack_into(table, at * _PAIR.size, now, now)
        else:
            had += now - last
            struct.pack_into("<Q", table, at * _PAIR.size + 8, now)
        last = now
        if not may_end and now - looked > GAP_NS:
            may_end, looked = os.path.exists(until), now


def stretches(directory: Path) -> list[Stretch]:
    """All that was stamped."""
    found = []
    for path in sorted(directory.iterdir()):
        job, rank, node = path.name.split(".")
        data = path.read_bytes()
        pairs = (_PAIR.unpack_from(data, at) for at in range(0, len(data) - _PAIR.size + 1, _PAIR.size))
        found += [Stretch(start, end, job, rank, node) for start, end in pairs if start]
    return found


def overlaps(some: Iterable[Stretch], cores: dict[str, int] | None = None) -> list[tuple[Stretch, ...]]:
    """Moments at which processes of more jobs ran on a node than it has cores (1 where nothing is said): each as those that ran."""
    wrong = []
    by_node: dict[str, list[Stretch]] = {}
    for one in some:
        by_node.setdefault(one.node, []).append(one)
    for node, there in by_node.items():
        running: list[Stretch] = []
        for one in sorted(there):
            running = [other for other in running if other.end > one.start]
            running.append(one)
            if len({other.job for other in running}) > (cores or {}).get(node, 1):
                wrong.append(tuple(running))
    return wrong


def together(some: Iterable[Stretch], job: str) -> float:
    """Of the time in which any process of a job ran, the part in which all of them did."""
    ranks: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for one in some:
        if one.job == job:
            ranks.setdefault((one.rank, one.node), []).append((one.start, one.end))
    edges = sorted((at, step) for spans in ranks.values() for start, end in spans for at, step in ((start, 1), (end, -1)))
    any_ns = all_ns = count = before = 0
    for at, step in edges:
        any_ns += (at - before) * (count > 0)
        all_ns += (at - before) * (count == len(ranks))
        count, before = count + step, at
    return all_ns / any_ns if any_ns else 0.0


def served_s(some: Iterable[Stretch], job: str) -> float:
    """Seconds for which all processes of the job together ran."""
    return sum(one.end - one.start for one in some if one.job == job) / 1e9


if __name__ == "__main__":
    spin(sys.argv[1], float(sys.argv[2]), *sys.argv[3:])
