"""The functions of the solver service: ordinary Python on numpy arrays. They run on the servers; clients know only their names."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any  # numpy.ndarray


def poisson(f: Array) -> Array:
    """u with -(u_xx + u_yy) = f on the unit square and u = 0 on its edge, by five-point differences. f, u: (n, n), the inner points.

    The matrix of one dimension is diagonal in the basis of sines, which is its own inverse: four products of n x n matrices.
    """
    n = len(f)
    k = np.arange(1, n + 1)
    h = 1.0 / (n + 1)
    sines = np.sqrt(2 * h) * np.sin(np.pi * h * np.outer(k, k))
    eigenvalues = (2 * np.sin(np.pi * h * k / 2) / h) ** 2
    return sines @ ((sines @ f @ sines) / np.add.outer(eigenvalues, eigenvalues)) @ sines


def lowest(a: Array, count: int) -> Array:
    """The `count` lowest eigenvalues of the symmetric matrix a, ascending.

    Raises: ValueError for another matrix, or more than it has: the client gets CallFailed with this text.
    """
    if not 0 < count <= len(a):
        raise ValueError(f"a matrix of {len(a)} rows has no {count} eigenvalues")
    if not np.allclose(a, a.T):
        raise ValueError("the matrix is not symmetric")
    return np.linalg.eigvalsh(a)[:count]
