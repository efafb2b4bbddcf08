"""Computes how much of each cell of a grid rectangles cover: exact sums by second differences, whatever the number of rectangles."""

from __future__ import annotations

import numpy as np

from rmgr.sim.plots.parts.reading import Floats


def occupancy(left: Floats, right: Floats, low: Floats, high: Floats, *, bins: int, rows: int) -> Floats:
    """Share of each cell (row, bin) that the rectangles cover, 1 where they cover it whole.

    Args:
        left, right: edges in bins; low, high: in rows; parts outside of the grid are cut off. The rectangles do not overlap.
    Cost: O(rectangles) + O(bins x rows).
    """
    grid = np.zeros((rows + 2, bins + 2))
    left, right = np.clip(left, 0, bins), np.clip(right, 0, bins)
    low, high = np.clip(low, 0, rows), np.clip(high, 0, rows)
    for x, y, sign in ((left, low, 1), (right, low, -1), (left, high, -1), (right, high, 1)):
        bin_at, row_at = x.astype(np.int64), y.astype(np.int64)
        in_bin, in_row = x - bin_at, y - row_at
        # A step at x adds 1 - f to its own cell and f to the next one, before the sum along the axis.
        for row, bin_, part in (
            (row_at, bin_at, (1 - in_row) * (1 - in_bin)),
            (row_at, bin_at + 1, (1 - in_row) * in_bin),
            (row_at + 1, bin_at, in_row * (1 - in_bin)),
            (row_at + 1, bin_at + 1, in_row * in_bin),
        ):
            np.add.at(grid, (row, bin_), sign * part)
    covered: Floats = np.clip(grid.cumsum(0).cumsum(1)[:rows, :bins], 0, 1)
    return covered
