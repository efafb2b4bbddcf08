"""Durations and sizes as people write them: `90`, `15m`, `1h30m`, `HH:MM:SS`; `512M`, `2G`. Also percentiles, and names of signals."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeVar

from rmgr.errors import UsageError

Number = TypeVar("Number", int, float)
#: Longest duration that users can ask for: 100 years. Sums of a few such durations fit every codec.
MAX_DURATION_US = 36_525 * 86_400_000_000
#: Largest size that users can ask for.
MAX_SIZE_BYTES = 1 << 60
#: Names of signals from 1 on.
_SIGNALS = (
    *("HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM", "STKFLT"),
    *("CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS"),
)
#: Longer texts are refused (and Python does not read numbers of thousands of digits).
_MAX_TEXT = 40
_DURATIONS = "durations look like 90 (seconds), 15m, 1h30m, 2d or HH:MM:SS"
_SIZES = "sizes look like 512M, 2G or a number of bytes"
_UNIT_US = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000, "w": 604_800_000_000}
_WORDS = {"s": ("sec", "secs", "second"), "m": ("min", "mins", "minute"), "h": ("hr", "hrs", "hour"), "d": ("day",), "w": ("week",)}
_UNIT_US |= {word: _UNIT_US[unit] for unit, words in _WORDS.items() for word in (*words, f"{words[-1]}s")}
_PART = re.compile(r"(\d+(?:\.\d+)?)([a-z]+)")
_CLOCK = re.compile(r"^(?:(\d+)-)?(\d+):(\d{1,2})(?::(\d{1,2}))?$")
_DAYS = re.compile(r"^(\d+)-(\d{1,2})$")
_SIZE = re.compile(r"^(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?$", re.IGNORECASE)
_NUMBERED = re.compile(r"(.*?)([1-9][0-9]{0,8})")
_SIZE_UNIT = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def utc(time_us: int) -> str:
    """Formats a moment (us since the epoch) for texts made far from their reader: `2026-11-22T16:04:12Z`."""
    try:
        return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return "the end of time"


def parse_duration_us(text: str) -> int:
    """Reads a duration of at most 100 years in us: seconds as a number, `1h30m`, `10min`, `[D-]HH:MM:SS`, `D-HH` or `MM:SS`."""
    text = text.strip()
    if len(text) > _MAX_TEXT:
        raise UsageError(f"{text[:_MAX_TEXT] + '...'!r} is not a duration", hint=_DURATIONS)
    return check_duration(_duration_us(text), repr(text))


def check_duration(duration_us: int, told: str) -> int:
    """Returns `duration_us` if it is valid. told: its text in an error. Raises UsageError."""
    if not 0 <= duration_us <= MAX_DURATION_US:
        raise UsageError(f"{told} is {'negative' if duration_us < 0 else 'longer than 100 years'}", hint=f"{_DURATIONS}, 36525d at most")
    return duration_us


def _duration_us(text: str) -> int:
    clock = _CLOCK.match(_DAYS.sub(r"\1-\2:00", text))
    if clock:
        days, first, second, third = (int(part) if part else 0 for part in clock.groups())
        if second > 59 or third > 59:
            raise UsageError(f"{text!r} is not a duration: minutes and seconds go to 59", hint=_DURATIONS)
        seconds = first * 3600 + second * 60 + third if clock[4] is not None or clock[1] is not None else first * 60 + second
        return (days * 86_400 + seconds) * 1_000_000
    if re.fullmatch(r"\d+(?:\.\d+)?", text):
        return round(float(text) * 1e6)
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text or any(unit not in _UNIT_US for _, unit in parts):
        raise UsageError(f"{text!r} is not a duration", hint=_DURATIONS)
    return round(sum(float(number) * _UNIT_US[unit] for number, unit in parts))


def duration_us_of(given: str | float | None) -> int:
    """Converts a duration given as text, or as a number of seconds (None: 0), to us. Raises UsageError."""
    if isinstance(given, str):
        return parse_duration_us(given)
    return check_duration(_rounded(given, 1_000_000, "a duration"), f"{given} s")


def size_of(given: str | float | None) -> int:
    """Converts a size given as text, or as a number (None: 0), to bytes. Raises UsageError."""
    return parse_size(given) if isinstance(given, str) else check_size(_rounded(given, 1, "a size"), str(given))


def _rounded(number: float | None, unit: int, what: str) -> int:
    try:
        return round((number or 0) * unit)
    except (TypeError, ValueError, OverflowError):  # not a number, nan, inf
        raise UsageError(f"{number!r} is not {what}") from None


def parse_size(text: str) -> int:
    """Reads a size in bytes, at most 1 EiB: `512M`, `2G`, `1048576`; powers of 1,024. Raises UsageError."""
    text = text.strip()
    match = _SIZE.match(text) if len(text) <= _MAX_TEXT else None
    if match is None:
        shown = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."
        raise UsageError(f"{shown!r} is not a size", hint=_SIZES)
    return check_size(round(float(match[1]) * _SIZE_UNIT[match[2].lower()]), repr(text))


def check_size(size_bytes: int, told: str) -> int:
    """Returns `size_bytes` if it is valid. told: its text in an error. Raises UsageError."""
    if not 0 <= size_bytes <= MAX_SIZE_BYTES:
        raise UsageError(f"{told} is {'negative' if size_bytes < 0 else 'larger than 1048576T'}", hint=_SIZES)
    return size_bytes


def counted(count: int, noun: str) -> str:
    """Returns `1 core`, `2 cores`, `3,000 processes`, `0 policies`."""
    return f"{count:,} {plural(count, noun)}"


def signal_name(number: int) -> str:
    """Returns `SIGSEGV`, or `signal 40` for one without a name. Numbers are those of Linux, where work runs."""
    return f"SIG{_SIGNALS[number - 1]}" if 0 < number <= len(_SIGNALS) else f"signal {number}"


def told_code(exit_code: int | None) -> str:
    """Returns an exit code, with the signal that a shell means by it: `139 (128 + SIGSEGV)`."""
    name = signal_name(exit_code - 128) if exit_code is not None else ""
    return f"{exit_code} (128 + {name})" if name.startswith("SIG") else str(exit_code)


def plural(count: float, noun: str) -> str:
    """Returns the form of `noun` after `count`."""
    if count == 1:
        return noun
    if noun.endswith("y") and noun[-2:-1] not in "aeou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "sh", "ch", "x")) else f"{noun}s"


def format_duration(seconds: float) -> str:
    """Formats seconds so that `parse_duration_us` reads them: `40ms`, `1.4s`, `12s`, `1m30s`, `2h`, `1d2h3m4s`. Rounds below 10 s."""
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if seconds < 0.9995:
        text = f"{seconds * 1e3:.{0 if seconds >= 0.01 else 1}f}"
        return f"{text.removesuffix('.0')}ms" if seconds >= 5e-5 else "0s"
    if seconds < 10:
        return f"{f'{seconds:.1f}'.removesuffix('.0')}s"
    left, message = int(seconds), ""
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, length)
        message += f"{count}{unit}" if count else ""
    return message


def format_size(size_bytes: float) -> str:
    """Formats bytes for people: `512M`, `1.5G`."""
    for unit in ("", "K", "M", "G", "T"):
        if size_bytes < 1024 or unit == "T":
            return f"{size_bytes:.0f}{unit}" if size_bytes >= 10 or unit == "" else f"{size_bytes:.1f}{unit}"
        size_bytes /= 1024
    raise AssertionError("unreachable")


def spanned(names: Sequence[str]) -> str:
    """Returns `n1-n4` for consecutively numbered names, else all of them with commas."""
    parts = [_NUMBERED.fullmatch(name) for name in names]
    if len(names) > 1 and all(parts):
        stems, numbers = {part[1] for part in parts if part}, [int(part[2]) for part in parts if part]
        if len(stems) == 1 and sorted(numbers) == list(range(min(numbers), min(numbers) + len(numbers))):
            stem = stems.pop()
            return f"{stem}{min(numbers)}-{stem}{max(numbers)}"
    return ",".join(names)


def percentile(values: Sequence[Number], percent: int) -> Number:
    """Returns the smallest value not below `percent` of all (nearest rank). Raises ValueError without values. Cost: a sort."""
    if not values:
        raise ValueError("a percentile of nothing")
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]
