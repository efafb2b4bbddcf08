"""Types of option values: durations, sizes, names, nodes, moments; an error names the option and shows the right form."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from typing import TYPE_CHECKING, Any

import click

from rmgr.errors import NotFound, UsageError, nearest
from rmgr.model.states import LOSSES, Reason, State
from rmgr.model.units import MAX_DURATION_US, counted, parse_duration_us, parse_size

if TYPE_CHECKING:
    from rmgr.model.submission import Dependency

_LEAST_MEMORY_BYTES = 1024 * 1024
TIME_LIMIT = 124
INFRASTRUCTURE = 125
CANCELLED = 130
_KILLED = 128 + 9
_MAX_NODES = 100_000
#: Parts of an element in a list of nodes: `n`, `[1-3,7]`.
_BRACKETS = re.compile(r"^([^\[\]]*)(?:\[([0-9,-]+)\])?([^\[\]]*)$")
_INFRASTRUCTURE = LOSSES | {Reason.POISON}
#: Exit codes, for the help of commands that wait.
WORK_EXITS = """\
the work's own code (of several the highest; after --max-fails of those that failed),
128+N on signal N, 124 its time limit,
125 infrastructure (its node or data were lost for good), 1 an exception, 127 no such command (126: it cannot run),
130 cancelled, or detached by Ctrl-C; 2 usage, 3 no such id, 5 service unavailable, 6 --timeout ran out"""


class Parsed(click.ParamType):
    """A value read by a function that raises `UsageError`; values that are not text pass unchanged."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002 - click's signature
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except UsageError as error:
            where = max(param.opts, key=len) if param is not None and param.opts[0].startswith("-") else ""
            raise UsageError(f"{where}: {error.message}" if where else error.message, hint=error.hint) from None

#: Seconds as float: `90`, `15m`, `1h30m`, `HH:MM:SS`.
DURATION = Parsed("duration", lambda text: parse_duration_us(text) / 1e6)
#: Microseconds as int.
DURATION_US = Parsed("duration", parse_duration_us)

_IS_NOTED = "rmgr.limit_is_noted"
#: Most names that a hint lists.
_MOST_KNOWN = 50


class _TimeLimit(Parsed):
    """A time limit; a bare number gets a note that it means seconds, because other systems read minutes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and value.strip().upper() in {"UNLIMITED", "INFINITE", "NONE"}:
            raise UsageError(f"--time: {value!r} is no time", hint="leave it out, or -t 0: work has no limit of its own then")
        limit_us = super().convert(value, param, ctx)
        text = value.strip() if isinstance(value, str) else ""
        if limit_us and text.isascii() and text.isdigit() and ctx is not None and ctx.obj is not None and _IS_NOTED not in ctx.meta:
            ctx.meta[_IS_NOTED] = True  # once for a list of jobs
            ctx.obj.note(f"-t {text} is {counted(int(text), 'second')}; {counted(int(text), 'minute')} would be -t {text}m")
        return limit_us

#: Microseconds as int, for a time limit.
TIME_LIMIT_US = _TimeLimit("duration", parse_duration_us)
#: Bytes: `512M`, `2G`.
SIZE = Parsed("size", parse_size)


def unknown(kind: str, given: str, known: Iterable[str], *, listed_by: str = "") -> UsageError:
    """Returns the error for a name that does not exist: it suggests the nearest one, else lists them all."""
    names = sorted(known)
    message = nearest(given, names, f"known: {', '.join(names[:_MOST_KNOWN])}{', ...' * (len(names) > _MOST_KNOWN)}")
    return UsageError(f"there is no {kind} {given!r}", hint=f"{message}  ({listed_by} lists them)" if listed_by else message)


def missing(kind: str, given: str, known: Iterable[str], *, listed_by: str) -> NotFound:
    """Returns the error for something that the cluster does not have, in the words of `unknown`."""
    told = unknown(kind, given, known, listed_by=listed_by)
    return NotFound(told.message, hint=told.hint)


def one_of(kind: str, known: Iterable[str]) -> Parsed:
    """Returns a type for one of some names; its error suggests the nearest."""
    names = tuple(known)

    def read(text: str) -> str:
        if text not in names:
            raise unknown(kind, text, names)
        return text

    return Parsed(kind, read)

#: Other systems' words for states.
_OTHER_STATES = {
    "PENDING": State.INITIAL, "PD": State.INITIAL, "WAITING": State.INITIAL, "QUEUED": State.INITIAL, "R": State.RUNNING,
    "CD": State.COMPLETED, "DONE": State.COMPLETED, "FINISHED": State.COMPLETED, "SUCCEEDED": State.COMPLETED, "F": State.FAILED,
    "CA": State.CANCELLED, "CANCELED": State.CANCELLED,
}


def parse_states(text: str) -> tuple[State, ...]:
    """Parses `failed,running`; understands Slurm's and HyperQueue's words, too. Raises UsageError."""
    states = []
    for word in text.split(","):
        name = word.strip().upper()
        if name in _OTHER_STATES:
            states.append(_OTHER_STATES[name])
        elif name in State.__members__:
            states.append(State(name))
        else:
            others = ", ".join(f"{word} ({state})" for word, state in _OTHER_STATES.items())
            told = unknown("state", name, State.__members__)
            raise UsageError(told.message, hint=f"{told.hint}; also {others}")
    return tuple(states)

#: States, separated by commas.
STATES = Parsed("states", parse_states)


def listed(text: str) -> tuple[str, ...]:
    """Splits a list: `a, b,` -> ("a", "b")."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def parse_pair(what: str, *, else_: str = "") -> Callable[[str], tuple[str, str]]:
    """Returns a reader of `A=B`. else_: an alternative to suggest."""

    def read(text: str) -> tuple[str, str]:
        left, equals, right = text.partition("=")
        if not equals or not left:
            raise UsageError(f"{text!r} is not {what}", hint=f"write it as {what}{else_}")
        return left, right

    return read


def parse_resource(text: str) -> tuple[str, int]:
    """Parses `NAME=N`. Raises UsageError."""
    name, value = parse_pair("NAME=N")(text)
    if not value.isascii() or not value.isdigit():
        raise UsageError(f"{text!r} is not NAME=N: {value!r} is no number", hint="--resource licence=2")
    return name, int(value)

#: `gpu=2`.
RESOURCE = Parsed("resource", parse_resource)
#: `order=sjf`, for a policy.
PARAMETER = Parsed("parameter", parse_pair("NAME=VALUE"))


def parse_after(text: str) -> tuple[Dependency, ...]:
    """Parses `ok:12,any:13,fail:14`; understands Slurm's `afterok:12:13`; a bare `12` means ok. Raises UsageError."""
    from rmgr.cli.words.sbatch import UNLIKE_DEPENDENCIES  # with all that Slurm's options mean
    from rmgr.model.submission import Condition, Dependency

    if "?" in text:
        raise UsageError(f"{text!r} is not a dependency: one of several is not enough here", hint="all must be met: ok:12,any:13")
    found = []
    words = {"ok": Condition.OK, "any": Condition.ANY, "fail": Condition.FAIL, "afterok": Condition.OK, "afterany": Condition.ANY}
    for part in text.split(","):
        word, colon, ids = part.strip().partition(":")
        if not colon:
            word, ids = ("ok", word) if word not in UNLIKE_DEPENDENCIES else (word, "ID")
        if word in UNLIKE_DEPENDENCIES:
            why, _, hint = UNLIKE_DEPENDENCIES[word].replace("ID", ids.partition(":")[0]).partition(": ")
            raise UsageError(f"{part!r} is not a dependency: {why}", hint=hint)
        if word in words and not ids.strip(":"):
            raise UsageError(f"{part!r} is not a dependency: no id stands behind it", hint=f"is a variable empty? {word}:ID")
        if word in words and (single := re.fullmatch(r"(\d*)(?:_.*|last|\+\d+)", ids, re.ASCII)):
            why = "work waits for the end of a whole submission, by its number"
            raise UsageError(f"{part!r} is not a dependency: {why}", hint=f"{word}:{single[1] or 'ID'}; rmgr jobs -a shows numbers")
        if word not in words or not all(number.isascii() and number.isdigit() and len(number) <= 10 for number in ids.split(":")):
            raise UsageError(
                f"{part!r} is not a dependency", hint="dependencies look like ok:12 (it succeeded), any:13 (it ended), fail:14 (it failed)"
            )
        found += [Dependency(condition=words[word], submission=int(number)) for number in ids.split(":")]
    return tuple(found)


def parse_memory(text: str) -> int:
    """Parses a size in which something could run: a bare number is bytes here, and mebibytes in other systems. Raises UsageError."""
    size = parse_size(text)
    if 0 < size < _LEAST_MEMORY_BYTES:
        message = f"with a unit: {text.strip()}M" if text.strip().isdigit() else "as 512M or 4G"
        raise UsageError(f"nothing runs in {size} bytes", hint=message)
    return size


#: `ok:12,any:13`.
AFTER = Parsed("dependencies", parse_after)
#: Bytes of memory.
MEMORY = Parsed("size", parse_memory)


# -- exit codes ----------------------------------------------------------------------------------------------------------------


def exit_code_of(state: State, reason: str, exit_code: int | None) -> int:
    """Returns the exit code for one task (or one submission) that has ended.

    Args:
        exit_code: of a command; with reason SIGNAL, a negative number or one below 128 is the signal's number.
    Returns: 0 for COMPLETED; 130 cancelled; 124 time limit; 125 the cluster's fault; 128+N signal N; else the work's
        own code, which is a shell's if a command does not exist (127) or cannot run (126); 1 if it has none (an exception).
    """
    if state is State.COMPLETED:
        return 0
    if state is State.CANCELLED:
        return CANCELLED
    if reason == Reason.TIME_LIMIT:
        return TIME_LIMIT
    if reason in _INFRASTRUCTURE:
        return INFRASTRUCTURE
    if exit_code is not None and exit_code < 0:
        return 128 - exit_code
    if reason == Reason.SIGNAL:
        return _KILLED if not exit_code else exit_code if exit_code > 128 else 128 + exit_code
    if reason == Reason.OUT_OF_MEMORY:
        return _KILLED
    if reason in {Reason.EXIT_CODE, Reason.NONE, Reason.START_FAILED} and exit_code:
        return exit_code
    return 1


def highest(codes: Iterable[int]) -> int:
    """Returns the exit code for several tasks: the highest."""
    return max(codes, default=0)


def parse_nodes(text: str) -> tuple[str, ...]:
    """Parses `n1,n2` or `n[1-3,7],m1`; returns each name once, in order. Raises UsageError."""
    found: dict[str, None] = {}
    for part in re.split(r",(?![^\[]*\])", text):
        match = _BRACKETS.match(part.strip())
        if not part.strip() or match is None:
            raise UsageError(f"{text!r} is no list of nodes", hint="as n1,n2 or n[1-3,7]")
        head, inside, tail = match.groups()
        for number in _numbers(inside, text) if inside is not None else ("",):
            found[f"{head}{number}{tail}"] = None
        if len(found) > _MAX_NODES:
            raise UsageError(f"{text!r} names more than {_MAX_NODES} nodes", hint="as n1,n2 or n[1-3,7]")
    return tuple(found)


def _numbers(inside: str, text: str) -> list[str]:
    """Expands `1-3,7` to 1 2 3 7, with leading zeros as in the first number."""
    found: list[str] = []
    for part in inside.split(","):
        first, dash, last = part.partition("-")
        if len(part) > 40:  # Python reads no number of this length
            raise UsageError(f"{text!r} is no list of nodes: [{inside}]", hint="as n[1-3,7]")
        low, high = (int(first), int(last)) if first and last else (int(first or 0), int(first or -1))
        if not first or (dash and not last) or high < low or high - low > _MAX_NODES:
            raise UsageError(f"{text!r} is no list of nodes: [{inside}]", hint="as n[1-3,7]")
        found += [f"{number:0{len(first)}d}" for number in range(low, high + 1)]
    return found


# -- moments (`16:00`, `tomorrow`, `2026-11-30T08:00`), by the wall clock of this machine's time zone ---------------------------

# Where a time zone changes its clock, some times of day come twice and some never. If a time comes twice, the first one counts. If the
# clock jumps over a time, the first moment after the jump counts. Durations are time that passes: a day is 24 hours.

BEGINS = "as 30m, now+30m, 16:00, tomorrow, 2026-11-30 or 2026-11-30T08:00"
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", re.ASCII)
_SINCE = "as 2h, 1d, 16:00, yesterday, 2026-11-30 or 2026-11-30T12:00"
#: After `now-`, is it a time of day or a duration? And are these days and hours, or a date?
_UNCLEAR = re.compile(r"\d+(?::\d+)+|\d+-(?:2[4-9]|[3-9]\d|\d{3,})(?::\d+)*", re.ASCII)
_DAYS_AGO = {"today": 0, "midnight": 0, "yesterday": 1}


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
    """Returns the moment `2h` ago, the last `16:00`, `today`, `yesterday` or a date, in us since the epoch. Raises UsageError."""
    now_us = time.time_ns() // 1000 if now_s is None else round(now_s * 1e6)
    text = text.strip()
    if (word := text.lower()) in _DAYS_AGO:
        return round(midnight_s(_wall(now_us / 1e6).date() - timedelta(days=_DAYS_AGO[word])) * 1e6)
    clock = _time_of_day(text, _SINCE)
    if clock is not None:
        return round(_last_s(clock, now_us / 1e6) * 1e6)
    with suppress(UsageError):
        if _UNCLEAR.fullmatch(ago := text.removeprefix("now-")) is None:
            return now_us - parse_duration_us(ago)
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
