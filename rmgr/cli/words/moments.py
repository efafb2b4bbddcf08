"""Moments as people type them (`16:00`, `tomorrow`, `2026-11-30T08:00`), by the wall clock of this machine's time zone.

Where a time zone changes its clock, some times of day come twice and some never. A time that comes twice is the first of both. A time that
never comes, because the clock jumps over it, is the first moment after the jump. Durations are time that passes: a day is 24 hours.
"""

from __future__ import annotations

import re
import time
from datetime import date, datetime, timedelta
from datetime import time as time_of_day

from rmgr.errors import UsageError
from rmgr.model.base.units import MAX_DURATION_US, parse_duration_us

BEGINS = "as 30m, now+30m, 16:00, tomorrow, 2026-11-30 or 2026-11-30T08:00"
_CLOCK = re.compile(r"^(\d{1,2}):(\d{2})(?::(\d{2}))?$", re.ASCII)
_SINCE = "as 2h, 1d, 2026-11-30 or 2026-11-30T12:00"


def parse_begin(text: str, now_s: float | None = None) -> int:
    """Microseconds since the epoch: `30m` or `now+30m` from now, `16:00` the next one, a date with or without a time.

    0 for what is past: at once. Raises UsageError.
    """
    now_s = time.time() if now_s is None else now_s
    moment_s = _to_come(text.strip(), now_s)
    if moment_s - now_s > MAX_DURATION_US / 1e6:
        raise UsageError(f"{text!r} is more than 100 years from now", hint=BEGINS)
    return round(moment_s * 1e6) if moment_s > now_s else 0


def parse_since(text: str, now_s: float | None = None) -> int:
    """`2h` (ago), or a date and time, as microseconds since the epoch. Raises UsageError."""
    try:
        return (time.time_ns() // 1000 if now_s is None else round(now_s * 1e6)) - parse_duration_us(text)
    except UsageError:
        pass
    try:
        return round(_dated_s(text.strip()) * 1e6)
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"{text!r} is neither a duration nor a date", hint=_SINCE) from None


def midnight_s(day: date) -> float:
    """When this day begins, in seconds since the epoch; of a day that the time zone left out: when the next one begins."""
    return _moments_s(datetime.combine(day, time_of_day()))[0]


def _to_come(text: str, now_s: float) -> float:
    word = text.lower()
    today = _wall(now_s).date()
    if word == "now":
        return now_s
    if word == "today":
        return midnight_s(today)
    if word == "tomorrow":
        return midnight_s(today + timedelta(days=1))
    clock = _CLOCK.match("00:00" if word == "midnight" else word)
    if clock is not None:
        try:
            return _next_s(time_of_day(int(clock[1]), int(clock[2]), int(clock[3] or 0)), today, now_s)
        except ValueError:
            raise UsageError(f"{text!r} is no time of day", hint=BEGINS) from None
    try:
        return now_s + parse_duration_us(word.removeprefix("now").removeprefix("+")) / 1e6
    except UsageError:
        pass
    try:
        return _dated_s(text)
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"{text!r} is not a time to begin at", hint=BEGINS) from None


def _next_s(clock: time_of_day, today: date, now_s: float) -> float:
    """When the clock shows this the next time."""
    tomorrow = _wall(midnight_s(today + timedelta(days=1))).date()  # Samoa had no 2011-12-30
    moments = (moment_s for day in (today, tomorrow) for moment_s in _moments_s(datetime.combine(day, clock)))
    return next(moment_s for moment_s in moments if moment_s > now_s)


def _dated_s(text: str) -> float:
    """Raises: ValueError, OverflowError, OSError."""
    told = datetime.fromisoformat(text)
    return _moments_s(told)[0] if told.tzinfo is None else told.timestamp()


def _moments_s(told: datetime) -> list[float]:
    """When the wall clock shows this: once, or twice; the first moment after the jump where it never does.

    Cost: 10 us; where it never does, a search of 20 steps.
    """
    low, high = sorted(told.replace(fold=fold).timestamp() for fold in (0, 1))
    found = [moment_s for moment_s in dict.fromkeys((low, high)) if _wall(moment_s) == told]
    if found:
        return found
    low, high = int(low), int(high) + 1  # Python reads such a time by the offsets before and after: the jump lies between
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _wall(middle) < told else (low, middle)
    return [float(high)]


def _wall(moment_s: float) -> datetime:
    """What the wall clock shows."""
    return datetime.fromtimestamp(moment_s)  # noqa: DTZ006 - this machine's zone is meant
