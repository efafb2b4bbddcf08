#!/usr/bin/env python3
"""Eigenvalues in an interval by contour integration: an algorithm that is redundant in itself, so that lost tasks need not run again.

The block method of Sakurai and Sugiura for A x = lambda B x, the other kind of application of Takefusa et al. (2012): one task a quadrature
point z_j on the upper half of a circle through both ends of the interval solves (z_j B - A) X_j = B V for a random block V. All moments
sum_j w_j z_j^k X_j, whatever the weights w_j, lie in the space spanned by Re X_j and Im X_j (the lower half circle gives the complex
conjugates). The eigenvectors inside the circle dominate that space; Rayleigh-Ritz on it yields them, and the residual of each says
whether it is one. Taking the whole space of the points that *came back*, instead of moments with weights fixed beforehand,
is what makes missing points harmless: there are twice as many points as needed, and up to 30 % may be missing.

So every task is submitted with resubmit=False: it runs at most once, and when its node dies its output is gone. The application goes on.

    rmgr dev --detach
    python eigen.py --progress --delay 2                 # 2 s a task: time to kill a Starter
    python eigen.py --serial --drop 0.3                  # no cluster: leave out 30 % of the points and see

Problem: -(u_xx + u_yy) = lambda u on the unit square, u = 0 on its edge, bilinear finite elements on a regular grid: A the stiffness and
B the mass matrix. Its eigenvalues are known in closed form, most of them twice (hence a block V). Needs numpy (the extra `examples`).

Sources: Sakurai and Sugiura, J. Comput. Appl. Math. 159, 119 (2003); Sakurai and Tadano, Hokkaido Math. J. 36, 745 (2007) (Rayleigh-Ritz);
Ikegami, Sakurai and Nagashima, J. Comput. Appl. Math. 233, 1927 (2010) (block). Differs from them in: the space, as said above.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

try:
    import numpy as np
except ImportError:
    sys.exit("eigen.py needs numpy; type: pip install 'numpy>=1.24'")

Matrix = Any  # numpy.ndarray
RESIDUAL = 1e-8  # ||A x - lambda B x|| / ||A x||: an eigenpair below, noise above
ACCURACY = 1e-10  # relative error of an eigenvalue against the closed form
RANK = 1e-13  # singular values below this part of the largest are rounding errors
BEYOND_REPAIR = 0.3  # part of the points that may be missing


# -- the problem ---------------------------------------------------------------------------------------------------------


def element_matrices(cells: int) -> tuple[Matrix, Matrix]:
    """Stiffness and mass matrix of -u'' on (0, 1) with `cells` linear elements and u = 0 at both ends."""
    n, h = cells - 1, 1.0 / cells
    off = np.eye(n, k=1) + np.eye(n, k=-1)
    return (2 * np.eye(n) - off) / h, (4 * np.eye(n) + off) * h / 6


def pencil(cells: int) -> tuple[Matrix, Matrix]:
    """A and B on the unit square: Kronecker products of the matrices of one dimension."""
    k, m = element_matrices(cells)
    return np.kron(k, m) + np.kron(m, k), np.kron(m, m)


def known_eigenvalues(cells: int) -> Matrix:
    """All eigenvalues of the pencil, ascending: sums of two of the one-dimensional ones 6/h^2 (1 - cos k pi h) / (2 + cos k pi h)."""
    h = 1.0 / cells
    c = np.cos(np.arange(1, cells) * np.pi * h)
    one = 6 / h**2 * (1 - c) / (2 + c)
    return np.sort((one[:, None] + one[None, :]).ravel())


# -- what runs on the cluster --------------------------------------------------------------------------------------------


def solve(point: complex, problem: Mapping[str, Any], *, delay: float = 0.0) -> Matrix:
    """X = (z B - A)^-1 B V at one quadrature point z."""
    time.sleep(delay)
    a, b = pencil(problem["cells"])
    return np.linalg.solve(point * b - a, b @ problem["block"])


# -- the application -----------------------------------------------------------------------------------------------------


def quadrature_points(low: float, high: float, count: int) -> list[complex]:
    """`count` points, evenly on the upper half of the circle with the diameter low..high, none on the real axis."""
    angles = (2 * np.arange(count) + 1) * np.pi / (2 * count)
    return [complex(z) for z in (low + high) / 2 + (high - low) / 2 * np.exp(1j * angles)]


def rayleigh_ritz(a: Matrix, b: Matrix, solutions: Mapping[int, Matrix], low: float, high: float) -> tuple[Matrix, Matrix, int]:
    """Ritz values in low..high (ascending), their residuals, and the dimension of the space that the solutions span."""
    columns = np.hstack([part for _, x in sorted(solutions.items()) for part in (x.real, x.imag)])
    columns /= np.linalg.norm(columns, axis=0)
    left, sigma, _ = np.linalg.svd(columns, full_matrices=False)
    basis = left[:, sigma > RANK * sigma[0]]
    inverse = np.linalg.inv(np.linalg.cholesky(basis.T @ b @ basis))  # B is positive definite, and so is its projection
    values, vectors = np.linalg.eigh(inverse @ (basis.T @ a @ basis) @ inverse.T)
    inside = (values >= low) & (values <= high)
    values, x = values[inside], basis @ (inverse.T @ vectors[:, inside])
    ax = a @ x
    return values, np.linalg.norm(ax - (b @ x) * values, axis=0) / np.linalg.norm(ax, axis=0), basis.shape[1]


def on_the_cluster(points: list[complex], problem: Mapping[str, Any], args: argparse.Namespace) -> dict[int, Matrix]:
    """One task a point, at most once each; the solutions that came back, by the number of their point."""
    import rmgr

    store = rmgr.connect().store
    key = args.prefix or f"eigen/{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    print(f"Data store    {key}/...")
    store.put(f"{key}/problem", problem)
    for j, z in enumerate(points):
        store.put(f"{key}/point/{j}", z)
    with rmgr.TaskQueue(functools.partial(solve, delay=args.delay), cores=1) as queue:
        for j in range(len(points)):
            queue.submit(inputs=[f"{key}/point/{j}", f"{key}/problem"], outputs=[f"{key}/x/{j}"], resubmit=False, overwrite=args.overwrite)
        queue.wait_all(progress=args.progress)  # raises nothing for a lost task: resubmit=False says that the application can do without
    print(f"TaskQueue     {queue.name}: {len(points)} tasks, one a point")
    found = {j: store.get(f"{key}/x/{j}", None) for j in range(len(points))}
    return {j: x for j, x in found.items() if x is not None}


def judge(values: Matrix, residuals: Matrix, known: Matrix) -> str | None:
    """Prints the eigenvalues; returns what is wrong with them, or None."""
    good = residuals <= RESIDUAL
    found = values[good]
    print(f"\n{'':>4}{'eigenvalue':>22}{'known':>22}{'residual':>12}")
    for i in range(max(len(found), len(known))):
        mine, residual = (f"{found[i]:.12f}", f"{residuals[good][i]:.1e}") if i < len(found) else ("-", "-")
        print(f"{i + 1:>4}{mine:>22}{known[i] if i < len(known) else float('nan'):>22.12f}{residual:>12}")
    if not good.all():
        print(f"{int((~good).sum())} Ritz values with a residual above {RESIDUAL:g} left out")
    if len(found) != len(known):
        return f"{len(found)} eigenvalues found, {len(known)} exist in the interval: too many points are missing, add --points"
    error = float(np.max(np.abs(found - known) / known)) if len(known) else 0.0
    print(f"\nlargest residual {residuals[good].max(initial=0.0):.1e}, largest relative error {error:.1e}")
    return None if error <= ACCURACY else f"an eigenvalue is off by {error:.1e} (relative), allowed are {ACCURACY:g}"


def main() -> None:
    """Solves, counts what is missing, and checks the answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interval", type=float, nargs=2, default=(300.0, 500.0), metavar=("LOW", "HIGH"), help="default 300 500")
    parser.add_argument("--points", type=int, default=24, help="quadrature points, one task each (default 24)")
    parser.add_argument("--block", type=int, default=6, help="columns of V, at least the largest multiplicity (default 6)")
    parser.add_argument("--cells", type=int, default=32, help="elements along an edge; the matrices have (cells - 1)^2 rows (default 32)")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds that each task sleeps in addition, to have time for a fault")
    parser.add_argument("--prefix", default="", help="prefix of all keys in the data store (default: a new one every run)")
    parser.add_argument("--overwrite", action="store_true", help="replace outputs that exist already under --prefix")
    parser.add_argument("--progress", action="store_true", help="show progress while the tasks run")
    parser.add_argument("--serial", action="store_true", help="compute here, without a cluster")
    parser.add_argument("--drop", type=float, default=0.0, metavar="PART", help="with --serial: leave out this part of the points")
    parser.add_argument("--seed", type=int, default=1, help="of V, and of what --drop leaves out")
    args = parser.parse_args()
    low, high = args.interval
    if not (low < high and args.points > 0 and args.block > 0 and args.cells > 2 and 0 <= args.drop < 1):
        parser.error("LOW must be below HIGH, --points and --block positive, --cells above 2, --drop in 0..1")

    rng = np.random.default_rng(args.seed)
    n = (args.cells - 1) ** 2
    problem = {"cells": args.cells, "block": rng.standard_normal((n, args.block))}
    points = quadrature_points(low, high, args.points)
    print(f"Problem       A x = lambda B x, {n} rows, eigenvalues in {low:g}..{high:g}", flush=True)
    started = time.monotonic()
    if args.serial:
        left_out = set(rng.choice(args.points, int(args.drop * args.points), replace=False).tolist())
        solutions = {j: solve(z, problem) for j, z in enumerate(points) if j not in left_out}
    else:
        solutions = on_the_cluster(points, problem, args)
    missing = [j for j in range(args.points) if j not in solutions]
    print(f"Points        {args.points} tasks, {len(missing)} missing {missing or ''}: {time.monotonic() - started:.2f} s")
    if not solutions:
        sys.exit("no point came back")
    if len(missing) > BEYOND_REPAIR * args.points:
        print(f"more than {BEYOND_REPAIR:.0%} of the points are missing; trying all the same", file=sys.stderr)

    a, b = pencil(args.cells)
    values, residuals, dimension = rayleigh_ritz(a, b, solutions, low, high)
    print(f"Space         {dimension} dimensions from {len(solutions)} x {2 * args.block} columns")
    known = known_eigenvalues(args.cells)
    wrong = judge(values, residuals, known[(known >= low) & (known <= high)])
    if wrong:
        sys.exit(wrong)
    print("All eigenvalues in the interval are right" + (f", without the {len(missing)} missing points." if missing else "."))


if __name__ == "__main__":
    main()
