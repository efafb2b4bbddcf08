"""Tables and JSON: columns that people choose and sort, fitted to the terminal; machine output as specified in cli.md section 5."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TextIO

from rmgr.model.states import State
from rmgr.model.units import format_duration

SCHEMA = "rmgr/1"
_STYLES = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35", "cyan": "36", "bold": "1", "dim": "2"}
_GAP = "  "
#: Least widths to which `_fit` shortens text, in steps: first names, then times and the text a line is read for, then both.
_READABLE, _TELLING, _NARROWEST = 8, 24, 5
_TELLS = ("REASON", "WHY", "ERROR", "FIX", "SUBMITTED", "STARTED")

#: Colours of words that are states.
STATE_STYLES = {
    "INITIAL": "yellow", "HELD": "magenta", "RUNNING": "cyan", "STARTING": "cyan", "SUSPENDED": "magenta", "STOPPING": "yellow",
    "COMPLETED": "green", "FAILED": "red", "CANCELLED": "yellow", "up": "green", "open": "green", "draining": "yellow", "drained": "yellow",
    "closed": "yellow", "stopped": "yellow", "quarantined": "red", "fenced": "red", "lost": "red", "down": "dim",
}


#: The order in which tasks and nodes pass through their states.
_LIFE = (
    *("HELD", "INITIAL", "STARTING", "RUNNING", "SUSPENDED", "STOPPING", "COMPLETED", "FAILED", "CANCELLED"),
    *("up", "draining", "drained", "quarantined", "fenced", "lost", "down"),
)


#: A moment as `model.units.utc` writes it for remote readers.
_MOMENT = re.compile(r"\b[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z\b")
#: Characters that JSON may hold unescaped but that may not be visible.
_UNSURE = re.compile(r"[^ -~\n]")


# -- machine output ---------------------------------------------------------------------------------------------------------


def emit(document: dict[str, Any], out: TextIO | None = None) -> None:
    """Writes one JSON value (a line), `schema` first."""
    stream = out or sys.stdout
    stream.write(json_line({"schema": SCHEMA, **document}))
    stream.flush()


def json_line(value: object) -> str:
    """Returns `value` as JSON on its own line, readable, with escapes for anything that would steer a terminal."""
    return harmless_json(json.dumps(value, ensure_ascii=False)) + "\n"


def harmless_json(text: str) -> str:
    """Returns the JSON (values, or lines of them) with escapes for invisible characters: C1 controls, marks that turn the direction.

    JSON itself demands escapes only for U+0000 to U+001F; terminals obey U+009B as they do ESC [. Where stdout is not in UTF, everything
    but ASCII is escaped: a program must get the actual text, not `?` in its place.
    """
    if not text.isascii() and not (sys.stdout.encoding or "utf").lower().startswith("utf"):
        return _UNSURE.sub(lambda found: _escapes(found[0]), text)
    if text.replace("\n", "").isprintable():
        return text
    return _UNSURE.sub(lambda found: found[0] if found[0].isprintable() else _escapes(found[0]), text)


def _escapes(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def iso(time_us: int) -> str | None:
    """Returns microseconds since the epoch as ISO-8601 UTC; None for 0 (not yet)."""
    if not time_us:
        return None
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# -- text -------------------------------------------------------------------------------------------------------------------


def is_coloured(out: TextIO) -> bool:
    """Returns whether to use colour: a terminal, no NO_COLOR, not TERM=dumb."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and out.isatty()


def paint(text: str, style: str, out: TextIO) -> str:
    """Returns `text` in a style, if colour is used."""
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if style and text and is_coloured(out) else text


def printable(text: str) -> str:
    """Returns `text` on one line without control characters: other users' names and messages must not steer the terminal."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else " " if char in "\n\t" else char.encode("unicode_escape").decode("ascii") for char in text
    )


def here(text: str) -> str:
    """Returns a daemon's sentence on one line, with its moments in this machine's time."""
    return _MOMENT.sub(lambda found: _local_moment(found[0]), printable(text))


def _local_moment(moment: str) -> str:
    try:
        return clock(round(datetime.fromisoformat(moment).timestamp() * 1e6))
    except (ValueError, OverflowError, OSError):  # not a real moment
        return moment


def width_of(text: str) -> int:
    """Returns the number of columns that `text` takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def columns_of_terminal() -> int:
    """Returns the width of the terminal."""
    import shutil  # imports three archive libraries, which output into a pipe does without

    return shutil.get_terminal_size().columns


def folded(text: str, out: TextIO, *, begin: int = 0, indent: int = 0) -> str:
    """Breaks lines of `text` between words where a terminal would break them anywhere; leaves it whole for a pipe.

    A command stays whole, too, up to its first argument, so that it can be copied.

    Args:
        begin: columns before the text on its first line. indent: of the following lines; written here as well.
    """
    if not out.isatty() or text.startswith("rmgr ") or begin + width_of(text) <= (room := columns_of_terminal()):
        return text
    words = _whole_commands(re.split("( +)", text))  # alternating with the gaps between them
    told, used = words[0], begin + width_of(words[0])
    for gap, word in zip(words[1::2], words[2::2], strict=True):
        used += len(gap) + width_of(word)
        if used > room:
            told, used = f"{told}\n{' ' * indent}{word}", indent + width_of(word)
        else:
            told += gap + word
    return told


def _whole_commands(words: list[str]) -> list[str]:
    """Joins words and gaps so that `rmgr drain n2` and `2 cores` each are one word."""
    told: list[str] = []
    while words:
        length = 5 if words[0].lstrip("(") == "rmgr" else 3 if words[0].isdigit() else 1
        told.append("".join(words[:length]))
        told += words[length : length + 1]
        words = words[length + 1 :]
    return told


def told_counts(counts: Mapping[State, int] | Mapping[str, int]) -> str:
    """Returns counts by state, `2 RUNNING, 3 COMPLETED`, in the order of a life; "" for none."""
    places = {name: at for at, name in enumerate(_LIFE)}
    found = sorted(((str(name), count) for name, count in counts.items() if count), key=lambda pair: (places.get(pair[0], 99), pair[0]))
    return ", ".join(f"{count} {name}" for name, count in found)


def elapsed(started_us: int, ended_us: int, now_us: int) -> str:
    """Returns the time from start to end, or until now; empty before the start."""
    return format_duration(max(0, (ended_us or now_us) - started_us) / 1e6) if started_us else ""


def clock(time_us: int) -> str:
    """Returns a time for people: local, to the second; with the date unless it is today's."""
    if not time_us:
        return ""
    moment = datetime.fromtimestamp(time_us / 1e6).astimezone()
    today = datetime.now(UTC).astimezone().date()
    return moment.strftime("%H:%M:%S" if moment.date() == today else "%Y-%m-%d %H:%M:%S")


def age(time_us: int, now_us: int) -> str:
    """Returns how long ago it was, for people."""
    if not time_us:
        return ""
    return "now" if now_us - time_us < 1_500_000 else f"{format_duration((now_us - time_us) / 1e6)} ago"


def now_us() -> int:
    """Returns the time now, in microseconds since the epoch."""
    return time.time_ns() // 1000


# -- tables -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column. text: what a row shows. order: the sort key (default: the text).

    is_id: never shortened. right: numbers, not shortened either. default: shown without `-o`. keep: shown even if empty in every row.
    state: the word chooses the colour. style: colour of any text there. also: an older name, which `-o` and `--sort` accept, too.
    """

    name: str
    text: Callable[[Any], str]
    order: Callable[[Any], Any] | None = None
    is_id: bool = False
    right: bool = False
    default: bool = True
    keep: bool = False
    state: bool = False
    style: str = ""
    also: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Choices made by options: `-o a,b`, `--sort -a`, `--no-header`."""

    columns: str = ""
    sort: str = ""
    header: bool = True


def choose(columns: Sequence[Column], names: str) -> list[Column]:
    """Returns the columns in `names` ("" = the default ones), in that order; `+x` adds to the default ones. Raises UsageError."""
    if not names:
        return [column for column in columns if column.default]
    chosen = [column for column in columns if column.default] if names.startswith("+") else []
    for name in names.removeprefix("+").split(","):
        if (named := _find(columns, name.strip())) not in chosen:
            chosen.append(named)
    return chosen


def _find(columns: Sequence[Column], name: str) -> Column:
    wanted = name.lower().replace("-", "").replace("_", "")
    for column in columns:
        if wanted == "id" and column.is_id:
            return column
        names = (column.name.lower(), column.also.lower())
        if wanted in {*names, *(name.partition("(")[0] for name in names)} - {""}:
            return column
    from rmgr.cli.words.params import unknown

    raise unknown("column", name.upper(), [column.name for column in columns])


def arrange(rows: Iterable[Any], columns: Sequence[Column], sort: str) -> list[Any]:
    """Returns the rows sorted by `--sort [-]col[,[-]col]`; rows without a value come last."""
    arranged = list(rows)
    for part in reversed([part.strip() for part in sort.split(",") if part.strip()]):
        column = _find(columns, part.lstrip("+-"))
        key = column.order or column.text
        empty = [row for row in arranged if key(row) in {None, ""}]
        filled = [row for row in arranged if key(row) not in {None, ""}]
        arranged = sorted(filled, key=key, reverse=part.startswith("-")) + empty
    return arranged


def table(rows: Iterable[Any], columns: Sequence[Column], layout: Layout, out: TextIO | None = None) -> None:
    """Draws a table. Empty columns are dropped unless they were asked for; on a terminal the table fits its width.

    Raises: UsageError for an unknown column.
    """
    stream = out or sys.stdout
    chosen = choose(columns, layout.columns)
    lines = [[printable(column.text(row)) for column in chosen] for row in arrange(rows, columns, layout.sort)]
    if lines and not layout.columns:
        kept = [at for at, column in enumerate(chosen) if column.keep or column.is_id or any(line[at] for line in lines)]
        chosen, lines = [chosen[at] for at in kept], [[line[at] for at in kept] for line in lines]
    heads = [column.name for column in chosen] if layout.header else [""] * len(chosen)
    widths = [max([width_of(head), *(width_of(line[at]) for line in lines)]) for at, head in enumerate(heads)]
    more = "…"
    if stream.isatty():
        from rmgr.client.progress import is_ascii

        more = "+" if is_ascii(stream) else more
        widths = _fit(widths, heads, chosen, columns_of_terminal())
    if layout.header:
        names = [name if column.is_id else _cut(name, width, more) for name, width, column in zip(heads, widths, chosen, strict=True)]
        head = _GAP.join(_pad(name, width, column.right) for name, width, column in zip(names, widths, chosen, strict=True)).rstrip()
        stream.write(paint(head, "bold", stream) + "\n")
    for line in lines:
        cells = []
        for text, width, column in zip(line, widths, chosen, strict=True):
            shown = _pad(text if column.is_id else _cut(text, width, more), width, column.right)
            style = STATE_STYLES.get(text.partition(" ")[0], "") if column.state else column.style
            cells.append(paint(shown, style, stream) if text.strip() else shown)
        stream.write(_GAP.join(cells).rstrip() + "\n")
    stream.flush()


def _fit(widths: list[int], heads: list[str], columns: Sequence[Column], room: int) -> list[int]:
    """Narrows the widest columns of text, never ids, states and numbers, until the line fits or nothing more can be taken.

    Names become as short as is readable before the text a line is read for, the reason or the error, loses anything.
    """
    widths = list(widths)
    texts = [at for at, column in enumerate(columns) if not (column.is_id or column.state or column.right)]
    telling = [at for at in texts if heads[at].endswith(_TELLS)]
    names = [at for at in texts if at not in telling]
    for among, least in ((names, _READABLE), (telling, _TELLING), (names, _NARROWEST), (telling, _NARROWEST)):
        while sum(widths) + len(_GAP) * (len(widths) - 1) > room:
            able = [at for at in among if widths[at] > max(least, min(width_of(heads[at]), 6))]
            if not able:
                break
            widths[max(able, key=lambda at: (widths[at], at))] -= 1
    return widths


def _cut(text: str, width: int, more: str) -> str:
    """Shortens text to `width`. more: the mark for the rest, one column wide."""
    if width_of(text) <= width:
        return text
    while text and width_of(text) > width - 1:
        text = text[:-1]
    return f"{text}{more}"


def _pad(text: str, width: int, right: bool) -> str:
    gap = " " * max(0, width - width_of(text))
    return gap + text if right else text + gap
