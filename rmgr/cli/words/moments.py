"""Moments as people type them (`16:00`, `tomorrow`, `2026-11-30T08:00`), by the wall clock of this machine's time zone.

Where a time zone changes its clock, some times of day come twice and some never. If a time comes twice, the first one counts. If the
clock jumps over a time, the first moment after the jump counts. Durations are time that passes: a day is 24 hours.
"""

from __future__ import annotations

import re
import time
from datetime import date, datetime, timedelta
from datetime import time as time_of_day

from rmgr.cli.words.params import Parsed
from rmgr.errors import UsageError
from rmgr.model.base.units import MAX_DURATION_US, parse_duration_us

BEGINS = "as 30m, now+30m, 16:00, tomorrow, 2026-11-30 or 2026-11-30T08:00"
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", re.ASCII)
_SINCE = "as 2h, 1d, 16:00, 2026-11-30 or 2026-11-30T12:00"


def parse_begin(text: str, now_s: float | None = None) -> int:
    """Returns microseconds since the epoch: `30m` or `now+30m` from now, the next `16:00`, a date with or without a time.

    Returns 0, at once, for a moment in the past. Raises UsageError.
    """
    now_s = time.time() if now_s is None else now_s
    moment_s = _to_come(text.strip(), now_s)
    if moment_s - now_s > MAX_DURATION_US / 1e6:
        raise UsageError(f"{text!r} is more than 100 years from now", hint=BEGINS)
    return round(moment_s * 1e6) if moment_s > now_s else 0


def parse_since(text: str, now_s: float | None = None) -> int:
    """Returns `2h` ago, the last `16:00`, or a date with or without a time, as microseconds since the epoch. Raises UsageError."""
    now_us = time.time_ns() // 1000 if now_s is None else round(now_s * 1e6)
    text = text.strip()
    clock = _time_of_day(text, _SINCE)
    if clock is not None:
        return round(_last_s(clock, now_us / 1e6) * 1e6)
    try:
        return now_us - parse_duration_us(text)
    except UsageError:
        pass
    try:
        return round(_dated_s(text) * 1e6)
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"{text!r} is neither a duration nor a date or time of day", hint=_SINCE) from None


def midnight_s(day: date) -> float:
    """Returns when this day begins, in seconds since the epoch; for a day that the time zone left out, when the next one begins."""
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
    clock = _time_of_day("00:00" if word == "midnight" else word, BEGINS)
    if clock is not None:
        return _next_s(clock, today, now_s)
    try:
        return now_s + parse_duration_us(word.removeprefix("now").removeprefix("+")) / 1e6
    except UsageError:
        pass
    try:
        return _dated_s(text)
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"{text!r} is not a time to begin at", hint=BEGINS) from None


def _time_of_day(text: str, hint: str) -> time_of_day | None:
    """Parses `16:00` or `16:00:30`; returns None for text that does not look like one. Raises UsageError."""
    if re.fullmatch(r"\d+(:\d+){1,2}", text, re.ASCII) is None:
        return None
    clock = _CLOCK.fullmatch(text)
    try:
        if clock is not None:
            return time_of_day(int(clock[1]), int(clock[2]), int(clock[3] or 0))
    except ValueError:
        pass
    raise UsageError(f"{text!r} is no time of day", hint=hint)


def _next_s(clock: time_of_day, today: date, now_s: float) -> float:
    """Returns when the clock next shows this time."""
    tomorrow = _wall(midnight_s(today + timedelta(days=1))).date()  # Samoa had no 2011-12-30
    moments = (moment_s for day in (today, tomorrow) for moment_s in _moments_s(datetime.combine(day, clock)))
    return next(moment_s for moment_s in moments if moment_s > now_s)


def _last_s(clock: time_of_day, now_s: float) -> float:
    """Returns when the clock last showed this time."""
    today = _wall(now_s).date()
    yesterday = _wall(midnight_s(today) - 1).date()
    moments = (moment_s for day in (yesterday, today) for moment_s in _moments_s(datetime.combine(day, clock)))
    return max(moment_s for moment_s in moments if moment_s <= now_s)


def _dated_s(text: str) -> float:
    """Parses a date with or without a time. Raises: ValueError, OverflowError, OSError."""
    told = datetime.fromisoformat(text)
    return _moments_s(told)[0] if told.tzinfo is None else told.timestamp()


def _moments_s(told: datetime) -> list[float]:
    """Returns when the wall clock shows this: once, or twice; or the first moment after the jump, if it never does.

    Cost: 10 us; for a time that never comes, a search of 20 steps.
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
    """Returns what the wall clock shows."""
    return datetime.fromtimestamp(moment_s)  # noqa: DTZ006 - this machine's zone is meant

#: Microseconds since the epoch as int: of a future moment (0 = at once), of a past one.
BEGIN, SINCE = Parsed("time", parse_begin), Parsed("time", parse_since)
