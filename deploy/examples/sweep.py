#!/usr/bin/env python3
"""A parameter sweep with rmgr.Executor.map and a progress bar: copy it, put your own function in.

The function here: the Lyapunov exponent of the logistic map x -> r x (1 - x) whose r alternates between two values a and b in the
rhythm of a word such as AABAB (Markus and Hess, Computers & Graphics 13, 553 (1989)). Negative: the orbit settles; positive: chaos.
The sweep covers a grid of (a, b), prints the map and writes a CSV file if asked to.

    rmgr dev --detach
    python sweep.py
    python sweep.py --columns 120 --rows 60 --iterations 20000 --csv lyapunov.csv
    python sweep.py --serial                             # the same sweep here, without a cluster
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import time
from collections.abc import Iterator, Sequence

from rich.progress import track

A_RANGE, B_RANGE = (2.0, 4.0), (2.0, 4.0)
SHADES, SHADES_ASCII = "·░▒▓█", ".:=%@"  # from settling slowly to settling fast; chaos is left blank


def lyapunov(a: float, b: float, *, word: str = "AABAB", iterations: int = 4000) -> float:
    """Mean of ln |d x_(n+1) / d x_n| along the orbit from 0.5, without its first quarter (nats an iteration; -inf at x = 0.5)."""
    x, total, skipped = 0.5, 0.0, iterations // 4
    rates = [a if letter == "A" else b for letter in word]
    for n in range(iterations):
        r = rates[n % len(rates)]
        slope = abs(r * (1 - 2 * x))
        if n >= skipped:
            if slope == 0.0:
                return -math.inf
            total += math.log(slope)
        x = r * x * (1 - x)
    return total / (iterations - skipped)


def simulate(point: tuple[float, float, str, int]) -> float:
    """One point of the sweep: what a task does."""
    a, b, word, iterations = point
    return lyapunov(a, b, word=word, iterations=iterations)


def axis(bounds: tuple[float, float], count: int) -> list[float]:
    """`count` values in the middle of equal steps."""
    low, high = bounds
    return [low + (high - low) * (i + 0.5) / count for i in range(count)]


def results(points: Sequence[tuple[float, float, str, int]], *, serial: bool, chunksize: int) -> Iterator[float]:
    """The value of every point, in order, as they become available."""
    if serial:
        yield from map(simulate, points)
        return
    import rmgr

    with rmgr.Executor() as executor:  # in place of concurrent.futures.ProcessPoolExecutor()
        yield from executor.map(simulate, points, chunksize=chunksize)


def picture(values: Sequence[float], columns: int) -> str:
    """The map as text, b upwards, a to the right: the darker, the faster the orbit settles; blank is chaos."""
    shades = SHADES if (sys.stdout.encoding or "").lower().startswith("utf") else SHADES_ASCII

    def shade(value: float) -> str:
        if value > 0:
            return " "
        return shades[min(len(shades) - 1, int(-value * 4))]

    lines = [values[i : i + columns] for i in range(0, len(values), columns)]
    return "\n".join("".join(shade(v) for v in line) for line in reversed(lines))


def main() -> None:
    """Sweeps the grid, draws it, and checks some points against this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--columns", type=int, default=72, help="values of a (default 72)")
    parser.add_argument("--rows", type=int, default=32, help="values of b (default 32)")
    parser.add_argument("--word", default="AABAB", help="rhythm of A and B (default AABAB)")
    parser.add_argument("--iterations", type=int, default=4000, help="iterations a point (default 4000)")
    parser.add_argument("--chunksize", type=int, default=16, help="points a task (default 16)")
    parser.add_argument("--csv", metavar="FILE", help="write a, b, exponent to FILE")
    parser.add_argument("--serial", action="store_true", help="compute here, without a cluster")
    args = parser.parse_args()
    if args.columns < 1 or args.rows < 1 or args.iterations < 4 or not args.word or set(args.word) - {"A", "B"}:
        parser.error("--columns, --rows positive, --iterations at least 4, --word made of A and B")

    points = [(a, b, args.word, args.iterations) for b in axis(B_RANGE, args.rows) for a in axis(A_RANGE, args.columns)]
    started = time.monotonic()
    values = list(track(results(points, serial=args.serial, chunksize=args.chunksize), total=len(points), description="Sweeping"))
    elapsed = time.monotonic() - started

    print(picture(values, args.columns))
    chaotic = sum(v > 0 for v in values)
    print(f"{len(values)} points in {elapsed:.2f} s ({len(values) / elapsed:.0f} a second)")
    print(f"{chaotic / len(values):.0%} of them chaotic; largest exponent {max(values):.4f}")
    if args.csv:
        with open(args.csv, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("a", "b", "lyapunov_exponent"), *((p[0], p[1], v) for p, v in zip(points, values, strict=True))])
        print(f"Written to {args.csv}")
    wrong = [i for i in range(0, len(points), max(1, len(points) // 50)) if simulate(points[i]) != values[i]]
    if wrong:
        sys.exit(f"points {wrong} differ from what this process computes")


if __name__ == "__main__":
    main()
