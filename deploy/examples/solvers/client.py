#!/usr/bin/env python3
"""A client of the solver service: calls go to the server that is expected to answer first, and each answer is checked.

    rmgr dev --servers 2 --detach                              # a cluster with a gateway
    rmgr server --name big --functions solvers.toml --slots 2 &
    rmgr server --name small --functions solvers.toml --slots 1 &
    rmgr functions                                             # poisson and lowest are there now, beside the shipped ones
    python client.py
    python client.py --points 400 --calls 20
    rmgr call --explain poisson --n 400                        # where would it go, and by which numbers?

The client needs numpy and rmgr, and the address of the gateway where no `rmgr dev` runs (RMGR_GATEWAY). It has neither solvers.py nor an
idea where the servers are. Several calls at once spread over the servers.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from typing import Any

try:
    import numpy as np
except ImportError:
    sys.exit("client.py needs numpy; type: pip install numpy")

import rmgr
from rmgr.errors import CallFailed, RmgrError

Array = Any  # numpy.ndarray


def problem(points: int, p: int, q: int) -> tuple[Array, Array]:
    """A right side whose solution is known: u = sin(p pi x) sin(q pi y), an eigenvector of the five-point differences."""
    h = 1.0 / (points + 1)
    x = h * np.arange(1, points + 1)
    u = np.outer(np.sin(p * np.pi * x), np.sin(q * np.pi * x))
    eigenvalue = sum((2 * np.sin(k * np.pi * h / 2) / h) ** 2 for k in (p, q))
    return eigenvalue * u, u


def solve_all(points: int, calls: int, timeout_s: float) -> Counter[str]:
    """All problems at once; how many calls each server has answered. Raises: RmgrError for a call without an answer."""
    served: Counter[str] = Counter()
    problems = [problem(points, 1 + number % 5, 1 + number // 5 % 5) for number in range(calls)]
    futures = [rmgr.call_async("poisson", f, timeout=timeout_s) for f, _ in problems]
    for future, (_, u) in zip(futures, problems, strict=True):
        error = float(np.abs(future.result() - u).max())
        if not error < 1e-9:
            sys.exit(f"the answer of {future.server} is off by {error:.1e}")
        served[future.server] += 1
    return served


def main() -> None:
    """Solves, counts, and shows how a function's own error arrives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=200, help="inner points of a side (default 200)")
    parser.add_argument("--calls", type=int, default=12, help="problems at once (default 12)")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds until a call is given up (default 120)")
    args = parser.parse_args()
    if args.points < 2 or args.calls < 1:
        parser.error("--points at least 2, --calls at least 1")

    began_s = time.monotonic()
    try:
        served = solve_all(args.points, args.calls, args.timeout)
        lowest = rmgr.call("lowest", np.diag([4.0, 1.0, 9.0]), 2, timeout=args.timeout)
    except RmgrError as error:  # NoServer, CallTimeout, CallLost, ...: one line, and what to type
        sys.exit(f"{error}")
    print(f"{args.calls} problems of {args.points} x {args.points} points in {time.monotonic() - began_s:.2f} s, all right")
    print("answered by " + ", ".join(f"{server}: {count}" for server, count in sorted(served.items())))
    print(f"the two lowest eigenvalues of diag(4, 1, 9): {lowest[0]:.0f} and {lowest[1]:.0f}")
    try:
        rmgr.call("lowest", np.array([[0.0, 1.0], [2.0, 0.0]]), 1, timeout=args.timeout)
    except CallFailed as error:
        print(f"a function that raises: {str(error).splitlines()[0]}")


if __name__ == "__main__":
    main()
