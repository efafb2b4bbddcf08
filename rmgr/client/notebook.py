"""What a notebook shows of executors, queues and futures: a few lines of HTML, made from counts; nothing is asked of the cluster.

Names come from users and nodes, so every text is escaped and cut. No package is needed: a bar is drawn where IPython already runs.
"""

from __future__ import annotations

import builtins
import html
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

#: Characters of one text, and rows of a table.
_MOST_TEXT, _MOST_ROWS = 120, 20
#: How fast a bar may be drawn again is its owner's; this is its width.
_BAR = '<progress style="width:20em" value="{done}" max="{total}"></progress>'


class CountedProgress(Protocol):
    """How far a wait is."""

    @property
    def total(self) -> int: ...
    @property
    def final(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def cancelled(self) -> int: ...


class ShownFuture(Protocol):
    """What a table shows of a future. Only what is known here already."""

    @property
    def task_id(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def node(self) -> str: ...
    @property
    def attempt(self) -> int: ...


def escaped(text: object) -> str:
    """`text` as it may stand in HTML: escaped, without control characters, cut."""
    plain = "".join(char if char.isprintable() else "\ufffd" for char in str(text))
    return html.escape(plain if len(plain) <= _MOST_TEXT else f"{plain[:_MOST_TEXT]}\u2026")


def bar(counts: CountedProgress, *more: str) -> str:
    """A bar with its numbers. more: texts behind them."""
    told = [f"{counts.final:,} of {counts.total:,}"]
    told += [f"{counts.failed:,} failed"] if counts.failed else []
    told += [f"{counts.cancelled:,} cancelled"] if counts.cancelled else []
    line = _BAR.format(done=counts.final, total=max(1, counts.total))
    return f"{line} {', '.join([*told, *(escaped(text) for text in more if text)])}"


def card(kind: str, name: str, where: str, counts: CountedProgress | None, *more: str) -> str:
    """One executor or queue. name: "" while it has no submission. counts: None: it was not used yet."""
    head = f"<b>{escaped(kind)}</b> {escaped(name)}".rstrip() + f" at {escaped(where)}"
    state = [escaped(text) for text in more if text]
    return f"<div>{', '.join([head, *state])}<br>{bar(counts) if counts is not None else 'unused'}</div>"


def table(futures: Sequence[ShownFuture]) -> str:
    """A list of futures: how many are in which state, and the first of them."""
    states = Counter(future.state for future in futures)
    counts = ", ".join(f"{count:,} {escaped(state)}" for state, count in sorted(states.items())) or "no futures"
    rows = "".join(
        f"<tr><td>{escaped(future.task_id)}</td><td>{escaped(future.state)}</td><td>{escaped(future.node)}</td>"
        f"<td>{future.attempt or ''}</td></tr>"
        for future in futures[:_MOST_ROWS]
    )
    more = f"<div>{len(futures) - _MOST_ROWS:,} more</div>" if len(futures) > _MOST_ROWS else ""
    head = "<tr><th>task</th><th>state</th><th>node</th><th>attempt</th></tr>"
    return f"<div>{counts}</div><table>{head}{rows}</table>{more}" if futures else f"<div>{counts}</div>"


def is_notebook() -> bool:
    """This process is the kernel of a notebook, which shows HTML; a terminal of IPython does not."""
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

    def draw(self, counts: CountedProgress, more: Iterable[str]) -> None:
        """Shows the present counts. Cost: one message to the notebook."""
        from IPython.display import display  # type: ignore[import-not-found, unused-ignore]  # it is there: this is its process

        self._html = f"<div>{escaped(self._title)} {bar(counts, *more)}</div>"
        if self._shown is None:
            self._shown = display(self, display_id=True)
        else:
            self._shown.update(self)
