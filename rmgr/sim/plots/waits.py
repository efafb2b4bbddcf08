"""Distribution of wait times: for each run, the share of jobs that wait no longer than x; x logarithmic."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rmgr.errors import UsageError
from rmgr.sim.plots.parts.canvas import MOST_LINES, Figure, PercentFormatter, legend_below, line_style, named, new_figure
from rmgr.sim.plots.parts.labels import labels_of, shared_facts
from rmgr.sim.plots.parts.reading import Floats, Run
from rmgr.sim.plots.parts.timing import label_of, set_logarithmic_times
from rmgr.sim.plots.parts.window import TimeWindow

#: A curve through more points than this has no more to show.
_MOST_POINTS = 2000


def waits(runs: Sequence[Run], window: TimeWindow = TimeWindow()) -> Figure:  # noqa: B008 - a frozen value
    """The picture. At its left edge each curve begins at the share of jobs that do not wait at all. Jobs count that ran and were
    submitted in the window.

    Raises: UsageError for more runs than lines can be told apart, or when no job ran.
    """
    if len(runs) > MOST_LINES:
        raise UsageError(f"{len(runs)} runs are too many for one picture of waits", hint=f"at most {MOST_LINES}; name fewer directories")
    found = [_waits(run, window) for run in runs]
    positive = [waits[waits > 0] for waits in found if (waits > 0).any()]
    low = 10.0 ** np.floor(np.log10(min((waits.min() for waits in positive), default=1.0)))
    high = max((float(waits.max()) for waits in positive), default=10.0) * 1.3
    figure = new_figure(height=5.2)
    axes = figure.add_subplot()
    handles = []
    for at, times in enumerate(found):
        values, shares = distribution(times)
        x, y = np.concatenate([[low], values[1:], [high * 2]]), np.append(shares, 1.0)
        handles += axes.step(x, y, where="post", **line_style(at))
    set_logarithmic_times(axes, low, high)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("wait (logarithmic; at the left edge: no wait)")
    axes.set_ylabel("jobs that wait no longer")
    title, facts = shared_facts(runs)
    told = "" if window.is_whole else f"submitted {window.told(runs[0])}"
    named(axes, f"Wait times, {title}", *facts, told)
    legend = [
        f"{label}: mean {label_of(times.mean())}, {np.count_nonzero(times == 0) / len(times):.0%} do not wait"
        for label, times in zip(labels_of(runs), found, strict=True)
    ]
    legend_below(figure, handles, legend)
    return figure


def distribution(times: Floats) -> tuple[Floats, Floats]:
    """(wait, share of jobs that wait no longer) at no wait and at each wait that occurs, or at two thousand of them."""
    values, counts = np.unique(times, return_counts=True)
    shares = counts.cumsum() / len(times)
    if values[0] > 0:
        values, shares = np.concatenate([[0.0], values]), np.concatenate([[0.0], shares])
    if len(values) > _MOST_POINTS:
        kept = np.unique(np.linspace(0, len(values) - 1, _MOST_POINTS).astype(np.int64))
        values, shares = values[kept], shares[kept]
    return values, shares


def _waits(run: Run, window: TimeWindow) -> Floats:
    start, end = (0.0, np.inf) if window.is_whole else window.of(run)
    found = run.wait[np.isfinite(run.start) & np.isfinite(run.wait) & (run.submit >= start) & (run.submit < end)]
    if not len(found):
        raise UsageError(f"{run.directory}: no job that was submitted {window.told(run) or 'at all'} ran, so there are no waits to draw")
    return found
