"""The one door to matplotlib: figures without a display or global state, one style for all, the same bytes from the same picture."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

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
    "Artist",
    "Axes",
    "Figure",
    "FixedLocator",
    "FuncFormatter",
    "Line2D",
    "MaxNLocator",
    "MultipleLocator",
    "Normalize",
    "NullLocator",
    "Patch",
    "PercentFormatter",
    "PolyCollection",
    "clipped",
    "encoded",
    "legend_below",
    "line_style",
    "logarithmic",
    "named",
    "new_figure",
    "styled",
]

#: Okabe and Ito's colours, told apart by all kinds of colour vision; yellow is too pale for lines and comes last.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#999999")
_DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
#: So many lines can be told apart, by colour and dashes.
MOST_LINES = len(PALETTE) * len(_DASHES)
INK = "#222222"
PALE = "#666666"

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
    "text.parse_math": False,  # a $ in a name is a $
    "figure.dpi": 150,
    "savefig.dpi": 150,
    "path.simplify": True,
    "svg.fonttype": "path",  # letters as outlines: the picture looks the same everywhere
    "svg.hashsalt": "rmgr",  # ids inside the file are not drawn anew every time
}
_LONGEST_TITLE = 110
_LEGEND_LINE = 0.19  # inches


@contextmanager
def styled() -> Iterator[None]:
    """Matplotlib's own defaults and this style on top, whatever the user's matplotlibrc says; as it was before, afterwards."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)  # type: ignore[arg-type]  # its keys are literals in the stubs
        yield


def new_figure(*, width: float = 9.0, height: float = 5.0) -> Figure:
    """An empty figure, size in inches at 150 dots an inch; nothing in it overlaps, whatever is added."""
    return Figure(figsize=(width, height), layout="constrained")


def encoded(figure: Figure, form: str) -> bytes:
    """The file's bytes. form: png or svg. No date and no program's version in it. Call it inside `styled`."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=form, metadata={"Date": None, "Creator": None} if form == "svg" else {"Software": None})
    return buffer.getvalue()


def named(axes: Axes, title: str, *details: str) -> None:
    """The title above: what is shown, and smaller facts in a second line."""
    lines = (title, "; ".join(filter(None, details)))
    axes.set_title("\n".join(clipped(line, _LONGEST_TITLE) for line in lines if line))


def clipped(text: str, most: int) -> str:
    """At most so many letters, the middle left out."""
    half = (most - 3) // 2
    return text if len(text) <= most else f"{text[:half]}...{text[-half:]}"


def logarithmic(axes: Axes) -> None:
    """The y axis is logarithmic, with plain numbers at its ticks: 1, 10, 100, over few decades 2 and 5 too."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 150 * low else (1.0,)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def line_style(at: int) -> dict[str, Any]:
    """Colour and dashes of the line number `at`, from 0. Neighbours differ in both, for prints without colour and lines on one another."""
    return {"color": PALETTE[at % len(PALETTE)], "linestyle": _DASHES[(at + at // len(PALETTE)) % len(_DASHES)]}


def legend_below(figure: Figure, handles: Sequence[Artist], labels: Sequence[str], *, title: str = "") -> None:
    """A legend under the axes, where no data is; as many columns as its longest name leaves room for. The figure grows by its lines."""
    if not handles:
        return
    labels = [clipped(label, _LONGEST_TITLE) for label in labels]
    longest = max(map(len, labels)) + 8
    columns = max(1, min(len(labels), int(figure.get_figwidth() * 14 / longest)))
    rows = -(-len(labels) // columns)
    figure.set_figheight(figure.get_figheight() + _LEGEND_LINE * (rows - 1))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, title=title or None, fontsize=8.5)
