"""Axes of time: seconds, minutes, hours or days, whichever keeps the numbers short; ticks where a clock has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from rmgr.sim.plots.parts.canvas import Axes, FixedLocator, FuncFormatter, MultipleLocator, NullLocator

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0


class Unit(NamedTuple):
    """A unit of time: its sign, its length in seconds, and steps between ticks that read well."""

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
#: A span of up to so many seconds is shown in that unit.
_UP_TO = (180.0, 3 * HOUR, 4 * DAY)
_MOST_TICKS = 11
#: Ticks of a logarithmic axis, in words.
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


def unit_for(span_s: float) -> Unit:
    """The unit for an axis that spans so many seconds."""
    return UNITS[sum(span_s > limit for limit in _UP_TO)]


def label_of(span_s: float) -> str:
    """A length of time in few letters, three digits exact: `20 ms`, `15 min`, `6 h`, `2.25 d`."""
    if 0 < span_s < 1:
        return f"{span_s * 1e3:.3g} ms" if span_s >= 1e-3 else f"{span_s * 1e6:.3g} µs"
    unit = UNITS[sum(span_s >= limit for limit in (MINUTE, HOUR, DAY))]
    return f"{span_s / unit.seconds:.3g} {unit.sign}"


def moment(time_s: float) -> str:
    """A time since the first submit, exact to the second: `0`, `100 d 4 h 30 min`."""
    rest, parts = round(time_s), []
    for unit in reversed(UNITS):
        count, rest = divmod(rest, round(unit.seconds))
        if count:
            parts.append(f"{count} {unit.sign}")
    return " ".join(parts) or "0"


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """Places on the time axis: `at` turns seconds since the first submit into numbers on the axis."""

    unit: Unit
    origin_s: float

    def at(self, times: Any) -> Any:
        """Numbers or arrays of them."""
        return (times - self.origin_s) / self.unit.seconds


def set_time_axis(axes: Axes, start_s: float, end_s: float) -> TimeAxis:
    """The x axis shows [start, end). A short part of a long run counts from the day or hour before it, and says so."""
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
    """The x axis is logarithmic, in seconds, with ticks in words."""
    axes.set_xscale("log")
    axes.set_xlim(low_s, high_s)
    marks = [(at, text) for at, text in _MARKS if low_s * 0.999 <= at <= high_s * 1.001]
    axes.xaxis.set_major_locator(FixedLocator([at for at, _ in marks]))
    words = dict(marks)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: next((w for m, w in words.items() if abs(m - at) <= m * 1e-6), "")))
    axes.xaxis.set_minor_locator(NullLocator())
