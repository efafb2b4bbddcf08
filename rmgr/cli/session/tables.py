"""Parts shared by commands that list or select: options of tables and filters, the loop that redraws, the meaning of people's numbers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from rmgr.cli.display.render import Layout, clock, columns_of_terminal, now_us, paint
from rmgr.cli.session.commands import Session
from rmgr.cli.words.params import STATES, missing, parse_nodes
from rmgr.cli.words.selectors import Filter, Target, parse_one, resolve
from rmgr.errors import NotFound, Unavailable, WrongCluster
from rmgr.model.submission import parse_array
from rmgr.model.units import counted

if TYPE_CHECKING:
    from rmgr.model.views import JobView, NodeView

_INTERVAL_S = 2.0


def table_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `layout` and `watch` to a command that draws a table."""
    for option in (
        click.option("--watch", is_flag=True, help="redraw every 2 s until Ctrl-C"),
        click.option("--no-header", is_flag=True, help="omit the header line"),
        click.option("--sort", metavar="[-]COL,...", default="", help="sort by these columns; - for descending, as in --sort=-time"),
        click.option("-o", "--columns", metavar="COL,...", default="", help="show these columns; +COL,... adds to the default ones"),
    ):
        function = option(function)

    def call(*args: Any, columns: str, sort: str, no_header: bool, **values: Any) -> Any:
        return function(*args, layout=Layout(columns=columns, sort=sort, header=not no_header), **values)

    return _with_parameters_of(function, call)


def filter_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `chosen`, a `Filter`, to a command that selects submissions."""
    for option in (
        click.option("-u", "--user", metavar="NAME", default="", help="only of this user"),
        click.option("-q", "--queue", metavar="NAME", default="", help="only in this queue, or of this queue class"),
        click.option("-s", "--state", "states", type=STATES, metavar="STATE,...", default=(), help="only in these states"),
        click.option("--name", metavar="PATTERN", default="", help="only with this name; * and ? match"),
    ):
        function = option(function)

    def call(*args: Any, name: str, states: tuple[Any, ...], queue: str, user: str, **values: Any) -> Any:
        return function(*args, chosen=Filter(name=name, states=states, queue=queue, user=user), **values)

    return _with_parameters_of(function, call)


def _with_parameters_of(function: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
    call.__doc__, call.__name__ = function.__doc__, function.__name__
    call.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]  # where click's decorators leave them
    return call


def draw(session: Session, once: Callable[[], None], *, watch: bool) -> None:
    """Draws once, or again and again until Ctrl-C (which then is the normal end), also while parts of the cluster are away for a time."""
    if not watch:
        once()
        return
    is_screen = sys.stdout.isatty() and not session.json
    was_there = False
    try:
        while True:
            if is_screen:
                sys.stdout.write("\x1b[2J\x1b[H")  # clear, cursor home
                sys.stdout.write(paint(f"{clock(now_us()):>{columns_of_terminal() - 1}}", "dim", sys.stdout) + "\n")
            try:
                once()
                was_there = True
            except Unavailable as error:
                if not was_there or isinstance(error, WrongCluster):
                    raise
                session.note(error.message)
            sys.stdout.flush()
            time.sleep(session.left_s(_INTERVAL_S))
    except KeyboardInterrupt:
        return


# -- words and numbers that people use (`last`, `42_7`, `n[1-3]`, array indices), as the protocol's ids ------------------------


def find_one(session: Session, word: str) -> tuple[Target, JobView]:
    """Returns the one submission or task that `word` means, and the submission's view. Raises NotFound, UsageError. Cost: one question."""
    selection, query = parse_one(word), session.query()
    jobs = query.jobs(ended=True, user=session.me) if selection.needs_list else [query.job(selection.named[0])]
    target = resolve(selection, jobs, me=session.me)[0]
    return target, next(job for job in jobs if job.id == target.submission)


def named_nodes(words: Sequence[str], found: Sequence[NodeView]) -> list[str]:
    """Returns the nodes that `n1`, `n1,n2` or `n[1-3]` name, each once. Raises: UsageError; NotFound for a missing one."""
    names = list(dict.fromkeys(name for word in words for name in parse_nodes(word)))
    known = {node.id for node in found}
    for name in names:
        if name not in known:
            raise missing("node", name, known, listed_by="rmgr nodes")
    return names


def positions_of(session: Session, number: int, shown: Sequence[int], *, total: int | None = None) -> list[int]:
    """Returns the positions of the tasks with these numbers. Raises NotFound naming the first missing one."""
    from rmgr.submitter.questions import ReadRecord

    try:
        submission = session.ask(ReadRecord(number=number)).record
    except NotFound:
        session.query().job(number)  # or NotFound
        raise NotFound(f"the tasks of {number} are no longer kept: it is history", hint=f"rmgr history {number}") from None
    array = parse_array(submission.array) if submission.array else None
    positions = []
    for index in shown:
        position = array.position_of(index) if array else index
        if position is None or (total is not None and position >= total):
            has = f"it has {counted(total, 'task')}, counted from 0" if total is not None else ""
            why = f"its array is {submission.array}" if array else has
            raise NotFound(f"there is no task {number}_{index}" + (f": {why}" if why else ""), hint=f"rmgr tasks {number}")
        positions.append(position)
    return positions
