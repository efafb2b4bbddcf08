"""A program that stamps a mapped file with CLOCK_BOOTTIME for as long as it has a processor. It imports little: gangs start hundreds of it.

    stamping.py DIR SECONDS [FILE]

It ends when it has had a processor for so long, and FILE is there. Without FILE it spins. With FILE, which most tests name, it sleeps
between two stamps: spinning, the ranks of four nodes take a small machine's processors from each other and from all that is tested.
It leaves `DIR/<job>.<rank>.<node>` with the stretches in which it ran: one ends where it was away for longer than `GAP_NS`.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time

#: A process that was away for longer had been stopped, or had no processor.
GAP_NS = 5_000_000
_BETWEEN_S = 0.001  #: two stamps of one that sleeps: what ran for less beside another is not seen
PAIR = struct.Struct("=QQ")
_MOST = 65_536


def spin(directory: str, seconds: float, until: str = "") -> None:
    """Stamps until it has run for so long, and the file is there."""
    name = f"{os.environ['RMGR_JOB_ID']}.{os.environ.get('RMGR_RANK', '0')}.{os.environ['RMGR_NODE']}"
    path = os.path.join(directory, name)
    with open(path, "w+b") as file:
        file.truncate(PAIR.size * _MOST)
        # As numbers of eight bytes: `pack_into` clears what it writes first, which a reader would see.
        table = memoryview(mmap.mmap(file.fileno(), PAIR.size * _MOST)).cast("Q")
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


if __name__ == "__main__":
    spin(sys.argv[1], float(sys.argv[2]), *sys.argv[3:])
