"""The only access to matplotlib: figures without a display or global state, one style for all, the same bytes for the same picture.

Also axes of time, in seconds, minutes, hours or days, whichever keeps the numbers short, with ticks where a clock has them.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    MultipleLocator,
    NullFormatter,
    NullLocator,
    PercentFormatter,
)

__all__ = [
    "Artist", "Axes", "Figure", "FixedLocator", "FuncFormatter", "Line2D", "MaxNLocator", "MultipleLocator", "Normalize", "NullLocator",
    "Patch", "PercentFormatter", "PolyCollection", "clipped", "encoded", "legend_below", "line_style", "logarithmic", "named", "new_figure",
    "styled",
]
#: Okabe and Ito's colours, which all kinds of colour vision tell apart; grey replaces their yellow, which is too pale for lines.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#999999")
_DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
#: Number of lines that can be told apart by colour and dashes.
MOST_LINES = len(PALETTE) * len(_DASHES)
INK = "#222222"
PALE = "#666666"
#: Colours of areas, paler than those of lines so that a number can be read on them, and colours of the areas' edges.
FILLS = ("#7FB8DD", "#F0B27A", "#8FD3BC", "#E3B7CF", "#BFE3F6", "#F5DA94", "#C3BCE6", "#D2D2D2")
EDGES = ("#00507F", "#8A3C00", "#00664B", "#8A4A6E", "#2F7FA8", "#8A6100", "#4B3F99", "#555555")

_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same letters on every machine
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": PALE,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": PALE,
    "ytick.color": PALE,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.5,
    "legend.frameon": False,
    "legend.handlelength": 3.2,  # long enough to show the dashes
    "hatch.linewidth": 0.5,
    "text.parse_math": False,  # a $ in a name stays a $
    "figure.dpi": 150,
    "savefig.dpi": 150,
    "path.simplify": True,
    "svg.fonttype": "path",  # letters as outlines: the picture looks the same everywhere
    "svg.hashsalt": "rmgr",  # the same ids inside the file every time
}
_LONGEST_TITLE = 110
_LEGEND_LINE = 0.19  # inches
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
#: Longest spans (s) that are shown in seconds, minutes and hours; longer ones are shown in days.
_UP_TO = (180.0, 3 * HOUR, 4 * DAY)
_MOST_TICKS = 11

#: Ticks of a logarithmic axis of time: (seconds, label).
_MARKS = (
    *((10.0**e, f"{10 ** (e + 6):g} µs") for e in (-6, -5, -4)),
    *((10.0**e, f"{10 ** (e + 3):g} ms") for e in (-3, -2, -1)),
    (1.0, "1 s"),
    (10.0, "10 s"),
    (MINUTE, "1 min"),
    (10 * MINUTE, "10 min"),
    (HOUR, "1 h"),
    (6 * HOUR, "6 h"),
    (DAY, "1 d"),
    (10 * DAY, "10 d"),
    (100 * DAY, "100 d"),
    (1000 * DAY, "1000 d"),
)


@contextmanager
def styled() -> Iterator[None]:
    """Applies matplotlib's defaults with this style on top, whatever the user's matplotlibrc says; restores the settings afterwards."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)  # type: ignore[arg-type]  # its keys are literals in the stubs
        yield


def new_figure(*, width: float = 9.0, height: float = 5.0) -> Figure:
    """Returns an empty figure; size in inches at 150 dots per inch. Its layout keeps all parts from overlapping."""
    return Figure(figsize=(width, height), layout="constrained")


def encoded(figure: Figure, form: str) -> bytes:
    """Returns the bytes of the file, without a date or a version of the program. form: png or svg. Call it inside `styled`."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=form, metadata={"Date": None, "Creator": None} if form == "svg" else {"Software": None})
    return buffer.getvalue()


def named(axes: Axes, title: str, *details: str) -> None:
    """Sets the title above the axes: what is shown, and details in a second line."""
    lines = (title, "; ".join(filter(None, details)))
    axes.set_title("\n".join(clipped(line, _LONGEST_TITLE) for line in lines if line))


def clipped(text: str, most: int) -> str:
    """Shortens the text to at most `most` letters by leaving out its middle."""
    half = (most - 3) // 2
    return text if len(text) <= most else f"{text[:half]}...{text[-half:]}"


def logarithmic(axes: Axes) -> None:
    """Makes the y axis logarithmic, with plain numbers at its ticks: 1, 10, 100, and over few decades also 2 and 5."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 150 * low else (1.0,)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def line_style(at: int) -> dict[str, Any]:
    """Returns colour and dashes of line `at` (from 0). Neighbours differ in both, for prints without colour and for lines that overlap."""
    return {"color": PALETTE[at % len(PALETTE)], "linestyle": _DASHES[(at + at // len(PALETTE)) % len(_DASHES)]}


def legend_below(figure: Figure, handles: Sequence[Artist], labels: Sequence[str], *, title: str = "") -> None:
    """Draws a legend below the axes, in as many columns as its longest label leaves room for. The figure grows by the legend's lines."""
    if not handles:
        return
    labels = [clipped(label, _LONGEST_TITLE) for label in labels]
    longest = max(map(len, labels)) + 8
    columns = max(1, min(len(labels), int(figure.get_figwidth() * 14 / longest)))
    rows = -(-len(labels) // columns)
    figure.set_figheight(figure.get_figheight() + _LEGEND_LINE * (rows - 1))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, title=title or None, fontsize=8.5)


class Unit(NamedTuple):
    """A unit of time: its symbol, its length in seconds, and steps between ticks that read well."""

    sign: str
    seconds: float
    steps: tuple[float, ...]


_DECIMAL = tuple(m * 10.0**e for e in range(-6, 13) for m in (1, 2, 5))
_CLOCK = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 20, 30, 60, 120)
UNITS = (
    Unit("s", 1.0, _DECIMAL),
    Unit("min", MINUTE, _CLOCK),
    Unit("h", HOUR, (0.1, 0.25, 0.5, 1, 2, 3, 4, 6, 12, 24, 48)),
    Unit("d", DAY, (0.25, 0.5, *(step for step in _DECIMAL if step >= 1))),
)


def unit_for(span_s: float) -> Unit:
    """Returns the unit for an axis that spans `span_s` seconds."""
    return UNITS[sum(span_s > limit for limit in _UP_TO)]


def label_of(span_s: float) -> str:
    """Returns a length of time in few letters, with three digits: `20 ms`, `15 min`, `6 h`, `2.25 d`."""
    if 0 < span_s < 1:
        return f"{span_s * 1e3:.3g} ms" if span_s >= 1e-3 else f"{span_s * 1e6:.3g} µs"
    unit = UNITS[sum(span_s >= limit for limit in (MINUTE, HOUR, DAY))]
    return f"{span_s / unit.seconds:.3g} {unit.sign}"


def moment(time_s: float) -> str:
    """Returns a time since the first submit in words, exact to the second: `0`, `100 d 4 h 30 min`."""
    rest, parts = round(time_s), []
    for unit in reversed(UNITS):
        count, rest = divmod(rest, round(unit.seconds))
        if count:
            parts.append(f"{count} {unit.sign}")
    return " ".join(parts) or "0"


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """Positions on the time axis: `at` turns seconds since the first submit into numbers on the axis."""

    unit: Unit
    origin_s: float

    def at(self, times: Any) -> Any:
        """Converts a number or an array of numbers."""
        return (times - self.origin_s) / self.unit.seconds


def set_time_axis(axes: Axes, start_s: float, end_s: float) -> TimeAxis:
    """Makes the x axis show [start, end). A short part of a long run counts from the day or hour before it, as the axis label says."""
    unit, whole = unit_for(end_s - start_s), unit_for(end_s)
    coarse = next((unit_.seconds for unit_ in UNITS if unit_.seconds > unit.seconds), DAY)
    origin = 0.0 if unit == whole else start_s // coarse * coarse
    axis = TimeAxis(unit, origin)
    low, high = axis.at(start_s), axis.at(end_s)
    step = next((step for step in unit.steps if (high - low) / step <= _MOST_TICKS), unit.steps[-1])
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(MultipleLocator(step))
    after = f"{moment(origin)} after " if origin else ""
    axes.set_xlabel(f"time since {after}the first submit ({unit.sign})")
    return axis


def set_logarithmic_times(axes: Axes, low_s: float, high_s: float) -> None:
    """Makes the x axis logarithmic, in seconds, with ticks in words."""
    axes.set_xscale("log")
    axes.set_xlim(low_s, high_s)
    marks = [(at, text) for at, text in _MARKS if low_s * 0.999 <= at <= high_s * 1.001]
    axes.xaxis.set_major_locator(FixedLocator([at for at, _ in marks]))
    words = dict(marks)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: next((w for m, w in words.items() if abs(m - at) <= m * 1e-6), "")))
    axes.xaxis.set_minor_locator(NullLocator())
