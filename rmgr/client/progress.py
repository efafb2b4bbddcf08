"""Progress of a wait: a bar on a terminal or in a notebook, else a plain line now and then; with rate and time left.

It is given counts and draws at most ten times a second. When the cluster stops answering, it says so once.
"""

from __future__ import annotations

import builtins
import math
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self, TextIO

from rmgr.model.units import format_duration
from rmgr.runtime import machine

#: Seconds between two drawings of the bar, and between two plain lines.
REDRAW_S = 0.1
LINE_S = 5.0
#: Length of the window for the rate (s).
_RATE_WINDOW_S = 15.0
#: Silence of the cluster that is reported (s).
SILENCE_S = 2.0
#: Most characters of a text in a notebook.
_MOST_TEXT = 120
_BAR = '<progress style="width:20em" value="{done}" max="{total}"></progress>'


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts for a wait: all tasks, those that are final, and of these the failed and the cancelled."""

    total: int
    final: int
    failed: int = 0
    cancelled: int = 0


class Rate:
    """Tasks per second over the last seconds."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or machine.monotonic
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, final: int) -> None:
        """Takes the number of tasks that are final now."""
        now = self._clock()
        if self._samples and now - self._samples[-1][0] < REDRAW_S / 2:
            return
        self._samples.append((now, final))
        while len(self._samples) > 2 and now - self._samples[0][0] > _RATE_WINDOW_S:
            self._samples.popleft()

    def per_second(self) -> float:
        """Returns the rate, 0.0 while unknown."""
        if len(self._samples) < 2:
            return 0.0
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0

    def left_s(self, counts: Counts) -> float | None:
        """Returns the seconds until all tasks are final at this rate, None while unknown."""
        rate = self.per_second()
        return (counts.total - counts.final) / rate if rate > 0 else None


def is_ascii(stream: TextIO) -> bool:
    """Returns whether the stream can show only ASCII: by its encoding, or because the locale is named C or POSIX."""
    named = next((value for name in ("LC_ALL", "LC_CTYPE", "LANG") if (value := os.environ.get(name))), "")
    return named in {"C", "POSIX"} or not (getattr(stream, "encoding", None) or "utf-8").lower().startswith("utf")


def shown_on(text: str, stream: TextIO) -> str:
    """Returns `text` as `stream` can write it, with `?` for each character that the stream can neither encode nor replace."""
    try:
        if not text.isascii():
            text.encode(stream.encoding, stream.errors or "strict")
    except UnicodeEncodeError:
        return text.encode(stream.encoding, "replace").decode(stream.encoding)
    except (LookupError, TypeError, AttributeError):  # it has no encoding, or an unknown one
        pass
    return text


def line(title: str, counts: Counts, rate: Rate) -> str:
    """Returns a line like `name  120/1000 (12%)  3 failed  85/s  0:10 left`."""
    share = f" ({100 * counts.final // counts.total}%)" if counts.total else ""
    parts = [title, f"{counts.final}/{counts.total}{share}"]
    if counts.failed:
        parts.append(f"{counts.failed} failed")
    if counts.cancelled:
        parts.append(f"{counts.cancelled} cancelled")
    speed = rate.per_second()
    if speed:
        parts.append(f"{speed:.0f}/s" if speed >= 10 else f"{speed:.1f}/s")
    left_s = rate.left_s(counts)
    if left_s is not None and counts.final < counts.total:
        parts.append(f"{format_duration(left_s)} left")
    return "  ".join(parts)


class ProgressDisplay:
    """Shows one wait on stderr. A context manager; call `update` whenever counts change.

    Args:
        enabled: False shows nothing but trouble.
        trouble: returns what is wrong with the cluster at present, "" = nothing.
    """

    def __init__(self, title: str, *, enabled: bool = True, stream: TextIO | None = None, trouble: Callable[[], str] = lambda: "") -> None:
        self._title = title
        self._enabled = enabled
        self._stream = stream or sys.stderr
        self._trouble = trouble
        self._rate = Rate()
        self.counts = Counts(total=0, final=0)
        self._drawn_s = -math.inf
        self._said = ""
        self._silent_since_s: float | None = None
        self._is_trouble_told = False
        self._bar: Any = None
        self._notebook: NotebookBar | None = None
        self._task: Any = None

    def __enter__(self) -> Self:
        if self._enabled and is_notebook():
            self._notebook = NotebookBar(self._title)
        elif self._enabled and self._stream.isatty() and os.environ.get("TERM") != "dumb":  # a dumb terminal cannot redraw a line
            self._bar, self._task = _make_bar(self._title, self._stream)
            self._bar.start()
        self._drawn_s = machine.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        if self._notebook is not None:
            self._draw()
        elif self._bar is not None:
            self._draw()
            with suppress(OSError):  # the terminal was closed: a wait ends as it ends
                self._bar.stop()
        elif self._enabled and self._said:
            self._write(line(self._title, self.counts, self._rate))

    def update(self, counts: Counts) -> None:
        """Takes the current counts."""
        self.counts = counts
        self._rate.add(counts.final)
        self.tick()

    def tell(self, done: int, total: int) -> None:
        """Takes counts of things of which none fails."""
        self.update(Counts(total=total, final=done))

    def tick(self) -> None:
        """Redraws if it is time. Called at least every second."""
        now = machine.monotonic()
        self._look_for_trouble(now)
        if not self._enabled:
            return
        if self._bar is not None or self._notebook is not None:
            if now - self._drawn_s >= REDRAW_S:
                self._draw()
        elif now - self._drawn_s >= LINE_S:
            self._drawn_s = now
            self._said = line(self._title, self.counts, self._rate)
            self._write(self._said)

    def say(self, text: str) -> None:
        """Writes one line between the progress."""
        self._write(text)

    def _look_for_trouble(self, now: float) -> None:
        trouble = self._trouble()
        if not trouble:
            if self._is_trouble_told:
                self._write("rmgr: the cluster answers again")
            self._silent_since_s, self._is_trouble_told = None, False
        elif self._silent_since_s is None:
            self._silent_since_s = now
        elif not self._is_trouble_told and self._silent_since_s < now - SILENCE_S:
            self._is_trouble_told = True
            self._write(f"rmgr: {trouble}; still waiting")

    def _draw(self) -> None:
        self._drawn_s = machine.monotonic()
        counts, left_s = self.counts, self._rate.left_s(self.counts)
        speed = self._rate.per_second()
        rate = f"{speed:.0f}/s" if speed else ""
        left = f"{format_duration(left_s)} left" if left_s is not None and counts.final < counts.total else ""
        if self._notebook is not None:
            self._notebook.draw(counts, (rate, left))
            return
        failed = f"{counts.failed} failed" if counts.failed else ""
        self._bar.update(self._task, total=counts.total or None, completed=counts.final, failed=failed, rate=rate, left=left)

    def _write(self, text: str) -> None:
        try:
            if self._bar is not None:
                self._bar.console.print(text, highlight=False, markup=False)
            else:
                self._stream.write(shown_on(f"{text}\n", self._stream))
                self._stream.flush()
        except (OSError, ValueError):
            return  # the reader is gone


def _make_bar(title: str, stream: TextIO) -> tuple[Any, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.table import Column

    is_plain = is_ascii(stream)

    class Screen(Console):
        @property
        def encoding(self) -> str:
            """The encoding by which rich chooses the characters of its bar."""
            return "ascii" if is_plain else super().encoding

    def whole() -> Column:
        return Column(no_wrap=True)

    bar = Progress(
        TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="crop" if is_plain else "ellipsis", max_width=24)),
        BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=4)),  # takes the width that the numbers leave
        MofNCompleteColumn(table_column=whole()),
        TextColumn("[red]{task.fields[failed]}", table_column=whole()),
        TextColumn("{task.fields[rate]}", table_column=whole()),
        TextColumn("{task.fields[left]}", table_column=whole()),
        expand=True,
        console=Screen(file=stream),
        auto_refresh=True,
        refresh_per_second=10,
        transient=False,
    )
    return bar, bar.add_task(title, total=None, failed="", rate="", left="")


# -- in a notebook: a few lines of HTML, made from counts without asking the cluster -------------------------------------------


# Names come from users and nodes, so every text is escaped and cut. No package is needed: bars are drawn where IPython already runs.


def escaped(text: object) -> str:
    """Returns `text` escaped for HTML, without control characters, cut."""
    import html  # only notebooks need it

    plain = "".join(char if char.isprintable() else "\ufffd" for char in str(text))
    return html.escape(plain if len(plain) <= _MOST_TEXT else f"{plain[:_MOST_TEXT]}\u2026")


def bar(counts: Counts, *more: str) -> str:
    """Returns a bar with its numbers. more: texts after them."""
    parts = [f"{counts.final:,} of {counts.total:,}"]
    parts += [f"{counts.failed:,} failed"] if counts.failed else []
    parts += [f"{counts.cancelled:,} cancelled"] if counts.cancelled else []
    line = _BAR.format(done=counts.final, total=max(1, counts.total))
    return f"{line} {', '.join([*parts, *(escaped(text) for text in more if text)])}"


def card(kind: str, name: str, where: str, counts: Counts | None, *more: str) -> str:
    """Returns HTML for one executor or queue. name: "" before it has a submission. counts: None before its first use."""
    head = f"<b>{escaped(kind)}</b> {escaped(name)}".rstrip() + f" at {escaped(where)}"
    state = [escaped(text) for text in more if text]
    return f"<div>{', '.join([head, *state])}<br>{bar(counts) if counts is not None else 'unused'}</div>"


def is_notebook() -> bool:
    """Returns whether this process is the kernel of a notebook, which shows HTML; an IPython terminal does not."""
    shell = getattr(builtins, "get_ipython", None)
    return shell is not None and type(shell()).__name__ == "ZMQInteractiveShell"


class NotebookBar:
    """A bar below the cell that waits, drawn again in place."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._shown: Any = None

    def _repr_html_(self) -> str:
        return self._html

    _html = ""

    def draw(self, counts: Counts, more: Iterable[str]) -> None:
        """Shows the current counts. Cost: one message to the notebook."""
        from IPython.display import display  # type: ignore[import-not-found, unused-ignore]  # always installed in a kernel

        self._html = f"<div>{escaped(self._title)} {bar(counts, *more)}</div>"
        if self._shown is None:
            self._shown = display(self, display_id=True)
        else:
            self._shown.update(self)
