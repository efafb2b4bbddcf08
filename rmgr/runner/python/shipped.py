"""The functions that every server can offer; `shipped.toml` beside this file has their interfaces."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Columns eliminated before the rest of the matrix is updated.
_PANEL = 48


def linsolve(matrix: Floats, right: Floats) -> Any:
    """Returns x with matrix @ x = right. matrix: (n, n). right: (n,). Cost: 2/3 n^3 + 2 n^2 operations.

    Raises: numpy.linalg.LinAlgError for a singular matrix.
    """
    import numpy as np

    return np.linalg.solve(matrix, right)


def linpack(matrix: Floats, right: Floats) -> tuple[Any, Any]:
    """Returns (x, pivots) as LINPACK's dgefa and dgesl: Gaussian elimination with row exchanges; row k was exchanged with row pivots[k].

    matrix: (n, n). right: (n,). Raises: ZeroDivisionError for a singular matrix. Cost: 2/3 n^3 + 2 n^2 operations.
    """
    import numpy as np

    a, x = np.array(matrix, dtype=float), np.array(right, dtype=float)
    n = len(x)
    pivots = np.arange(n, dtype=np.int32)
    for first in range(0, n, _PANEL):
        last = min(first + _PANEL, n)
        for k in range(first, last):
            pivots[k] = chosen = k + int(np.argmax(np.abs(a[k:, k])))
            if a[chosen, k] == 0.0:
                raise ZeroDivisionError(f"the matrix is singular: column {k} has no pivot")
            if chosen != k:
                a[[k, chosen]] = a[[chosen, k]]
                x[[k, chosen]] = x[[chosen, k]]
            a[k + 1 :, k] /= a[k, k]
            a[k + 1 :, k + 1 : last] -= np.outer(a[k + 1 :, k], a[k, k + 1 : last])
        for k in range(first, last):  # rows of the panel, to the right of it
            a[k + 1 : last, last:] -= np.outer(a[k + 1 : last, k], a[k, last:])
        a[last:, last:] -= a[last:, first:last] @ a[first:last, last:]
    for k in range(n):
        x[k + 1 :] -= a[k + 1 :, k] * x[k]
    for k in range(n - 1, -1, -1):
        x[k] /= a[k, k]
        x[:k] -= a[:k, k] * x[k]
    return x, pivots


def echo(data: bytes) -> bytes:
    """Returns its argument."""
    return data


def model(operations: int, data: bytes) -> bytes:
    """Sleeps as long as so many operations take at this server's speed; returns `data`."""
    time.sleep(operations / (float(os.environ["RMGR_CALL_MOPS"]) * 1e6))
    return data
