"""A program that stamps a mapped file with CLOCK_BOOTTIME while it has a processor. It imports little, because gangs start hundreds of it.

    stamping.py DIR SECONDS [FILE]

It ends when it has run for SECONDS and FILE exists. Without FILE it spins. With FILE, which most tests name, it sleeps between stamps:
spinning ranks of four nodes would take a small machine's processors from each other and from the daemons under test.
It writes the stretches in which it ran to `DIR/<job>.<rank>.<node>`; a stretch ends where it was off the processor for over `GAP_NS`.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time

#: A longer gap between stamps means that the process was stopped, or had no processor.
GAP_NS = 5_000_000
_BETWEEN_S = 0.001  #: sleep between two stamps: a shorter overlap of two processes is not seen
PAIR = struct.Struct("=QQ")
_MOST = 65_536


def spin(directory: str, seconds: float, until: str = "") -> None:
    """Stamps until it has run for `seconds` and the file `until` exists."""
    name = f"{os.environ['RMGR_JOB_ID']}.{os.environ.get('RMGR_RANK', '0')}.{os.environ['RMGR_NODE']}"
    path = os.path.join(directory, name)
    with open(path, "w+b") as file:
        file.truncate(PAIR.size * _MOST)
        # Written as numbers of eight bytes, because `pack_into` first clears the bytes, which a reader would see.
        table = memoryview(mmap.mmap(file.fileno(), PAIR.size * _MOST)).cast("Q")
    had, at = 0, -1
    last = looked = -GAP_NS
    may_end = not until
    while had < seconds * 1e9 or not may_end:
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        if (now - last > GAP_NS and at < _MOST - 1) or at < 0:
            at += 1
            table[2 * at + 1] = now  # the end first: a pair with a start is then complete
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
