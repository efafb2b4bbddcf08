"""Runs a program of rmgr as on a machine with a wrong wall clock: `wall_clock.py SECONDS -m MODULE [ARGUMENT...]`.

The clock of rmgr (`runtime/machine.py`) is ahead by SECONDS, or behind if negative. Libraries and started programs keep the right clock,
because they compare it with the kernel's.
"""

from __future__ import annotations

import runpy
import sys


def main() -> None:
    sys.path[0] = ""  # as with `python -m`, in place of this file's directory
    from rmgr.runtime import machine

    ahead_s = float(sys.argv[1])
    wall_s, wall_us = machine.wall_s, machine.wall_us
    machine.wall_s = lambda: wall_s() + ahead_s
    machine.wall_us = lambda: wall_us() + int(ahead_s * 1e6)  # type: ignore[assignment]
    assert sys.argv[2] == "-m"
    sys.argv = sys.argv[3:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
