"""`rmgr jobs` and `rmgr tasks`: work that runs, waits, or has just ended; and `rmgr history`: work that has ended, also long ago."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

import click

from rmgr.cli.display import columns, shapes
from rmgr.cli.display.columns import HISTORY_COLUMNS
from rmgr.cli.display.render import Layout, arrange, clock, emit, folded, iso, now_us, paint, printable, table
from rmgr.cli.session import Session, WorkEnded, command
from rmgr.cli.session.tables import draw, filter_options, named_nodes, positions_of, table_options
from rmgr.cli.words.params import DURATION_US, SINCE, STATES
from rmgr.cli.words.selectors import Filter, parse, resolve
from rmgr.client.queries import list_past, past_of
from rmgr.errors import NotFound, RmgrError, UsageError
from rmgr.model.states import State
from rmgr.model.units import counted
from rmgr.model.views import JobView, TaskView

_TASK_PAGE = 10_000
#: Most jobs in one answer of the leader (`adapters.rpc.MAX_JOBS_PER_REPLY`).
_MOST_JOBS = 3000
_DEFAULT_LIMIT = 100
#: Up to this many named submissions are looked up one by one; for more, the history is read through.
_READ_ALONE = 100


@command(
    "jobs",
    examples="""\
    rmgr jobs                          yours that wait or run
    rmgr jobs -a --sort=-submitted     with those that have ended, newest first
    rmgr jobs -A -q default            of everyone, in one queue or queue class
    rmgr jobs -a --state failed -o id,name,exit,reason
    rmgr jobs -A --node n1             that run on a node
    rmgr jobs -A -o +priority,share    core time used against shares, where the policy orders by it
    rmgr jobs --json | jq '.jobs[].id'""",
    exits="0 ok (an empty list too), 3 no such id (the others are listed), 5 ZooKeeper cannot be reached",
)
@click.argument("selectors", nargs=-1, metavar="[SELECTOR]...")
@click.option("-a", "--all", "ended", is_flag=True, help="include those that have ended")
@click.option("-A", "--everyone", is_flag=True, help="show all users' work, and whose it is")
@click.option("--node", metavar="NODES", default="", help="running on these nodes, as n1 or n[1-3]; with -a also those that ran there")
@filter_options
@table_options
def jobs(
    session: Session, selectors: tuple[str, ...], ended: bool, everyone: bool, node: str, chosen: Filter, layout: Layout, watch: bool
) -> None:
    """Lists submissions that wait or run; with -a also those that have ended and are still in memory (older ones: rmgr history)."""

    def once() -> None:
        found, missing = _find(session, selectors, chosen, ended=ended, everyone=everyone)
        if node:
            wanted = set(named_nodes([node], session.query().nodes()))
            found = [job for job in found if not wanted.isdisjoint(job.nodes)]
        if session.json:
            emit({"jobs": [shapes.job(job) for job in found]} | ({"missing": [str(number) for number in missing]} if missing else {}))
        else:
            draw_jobs(found, layout, of_all=everyone)
            if len(found) >= _MOST_JOBS:
                session.note(f"the newest {_MOST_JOBS} are shown; see ended ones with rmgr history, others with ids or filters")
            if not found and not watch:
                session.note(nothing_listed(chosen, ended=ended or any(state.is_final for state in chosen.states), everyone=everyone))
        if missing:
            session.note(f"not in memory: {', '.join(map(str, missing))}; rmgr history {' '.join(map(str, missing))}")
            if not watch:
                raise WorkEnded(NotFound.exit_code)

    draw(session, once, watch=watch)


def draw_jobs(found: Sequence[JobView], layout: Layout, *, of_all: bool) -> None:
    """Draws the table and, below it, totals, unless the user chose the columns."""
    table(found, columns.job_columns(now_us(), of_all=of_all), layout)
    if len(found) > 1 and layout.header and not layout.columns:
        sys.stdout.write(paint(folded(columns.totals(found), sys.stdout), "dim", sys.stdout) + "\n")


def nothing_listed(chosen: Filter, *, ended: bool, everyone: bool) -> str:
    """Explains an empty list, and names the options that show more."""
    which = "is in memory" if ended else "waits or runs"
    more = [] if ended else ["-a shows what has ended"]
    if not everyone and not chosen.user:
        more.append("-A shows everyone's")
    if ended:
        more.append("rmgr history lists what ended earlier")
    return "; ".join([f"nothing {which}" + (" that matches" if chosen.is_set else ""), *more])


def _find(
    session: Session, selectors: tuple[str, ...], chosen: Filter, *, ended: bool, everyone: bool
) -> tuple[list[JobView], list[int]]:
    """Returns what was selected, and the numbers that are not in memory. Raises NotFound if none of those that were named is."""
    ended = ended or bool(selectors) or any(state.is_final for state in chosen.states)
    if selectors and selectors[0].isalpha():  # `jobs list`, `jobs cancel 14`, `jobs running`, as in other systems
        from rmgr.cli.words.foreign import below_jobs

        meant = f"rmgr jobs -s {selectors[0]}" if selectors[0].upper() in State.__members__ else below_jobs(selectors)
        if meant:
            raise UsageError(f"jobs takes IDs, and {selectors[0]!r} is none", hint=f"did you mean: {meant}")
    if selectors:
        known, selection = session.query().jobs(ended=True), parse(selectors, chosen)
        missing = sorted(set(selection.named) - {job.id for job in known})
        rest = selection.without(missing)
        wanted = {target.submission for target in resolve(rest if rest.named or rest.ranges else selection, known, me=session.me)}
        return [job for job in known if job.id in wanted], missing
    user = chosen.user or ("" if everyone else session.me)
    found = [job for job in session.query().jobs(ended=ended, user=user) if chosen.admits(job)]
    if not found:
        session.query().check_queue(chosen.queue)
    return found, []


@command(
    "tasks",
    examples="""\
    rmgr tasks 42
    rmgr tasks last --state failed
    rmgr tasks 42_7 42_10-20
    rmgr tasks --node n1                   what runs there now, of all jobs
    rmgr tasks 42 -o task,node,maxrss --sort=-maxrss
    rmgr tasks 42 --json --cursor 10000    the next page: "next" of the one before""",
    exits="0 ok, 3 no such id, 5 ZooKeeper cannot be reached, 125 outcomes are missing from the store",
)
@click.argument("selectors", nargs=-1, metavar="[ID]...")
@click.option("--node", metavar="NODES", default="", help="only on these nodes, as n1 or n[1-3]; without IDs: what runs there")
@click.option("-s", "--state", "states", type=STATES, metavar="STATE,...", default=(), help="only in these states")
@click.option("--cursor", type=click.IntRange(0), default=0, metavar="N", help="start at the N-th task")
@click.option("--limit", type=click.IntRange(0), default=_TASK_PAGE, show_default=True, metavar="N", help="at most N tasks, 0 = all")
@table_options
def tasks(
    session: Session,
    selectors: tuple[str, ...],
    node: str,
    states: tuple[State, ...],
    cursor: int,
    limit: int,
    layout: Layout,
    watch: bool,
) -> None:
    """Lists the tasks of a submission: state, attempt, node, time, exit code, error."""
    if not selectors and not node:
        raise UsageError("tasks of which job?", hint="rmgr tasks last; rmgr tasks --node NODE lists what runs on a node")

    def once() -> None:
        least, most = (0, 0) if layout.sort else (cursor, limit)  # sorted, then cut
        found, following = (
            _tasks_of_node(session, selectors, node, states, least, most) if node else _tasks(session, selectors, states, least, most)
        )
        if layout.sort:
            found, following = _page(arrange(found, columns.task_columns(now_us()), layout.sort), cursor, limit)
        if session.json:
            emit({"tasks": [shapes.task(task) for task in found], "next": following})
            return
        table(found, columns.task_columns(now_us()), layout)
        sys.stdout.flush()
        if cursor and not found:
            session.note(f"the list ends before --cursor {cursor}")
        if following is not None:
            session.note(f"{counted(len(found), 'task')} shown; --cursor {following} shows the next, --limit 0 all")

    draw(session, once, watch=watch)


def _tasks(
    session: Session, selectors: tuple[str, ...], states: tuple[State, ...], cursor: int, limit: int
) -> tuple[list[TaskView], int | None]:
    """Returns the requested tasks, and the cursor to continue at (None: those were all)."""
    selection = parse(selectors)
    query = session.query()
    known = query.jobs(ended=True) if selection.needs_list else [query.job(number) for number in selection.named]
    targets = resolve(selection, known, me=session.me)
    if len(targets) == 1 and not targets[0].tasks and not states:
        page = kept_tasks(session, targets[0].submission, first=cursor, limit=limit + 1 if limit else 0)
        more = bool(limit) and len(page) > limit
        return (page[:limit], cursor + limit) if more else (page, None)
    found: list[TaskView] = []
    for target in targets:
        views = kept_tasks(session, target.submission)
        if target.tasks:
            wanted = set(positions_of(session, target.submission, target.tasks, total=len(views)))
            views = [view for view in views if view.position in wanted]
        found += [view for view in views if not states or view.state in states]
    return _page(found, cursor, limit)


def _page(found: list[TaskView], cursor: int, limit: int) -> tuple[list[TaskView], int | None]:
    """Returns one page, of at most `limit` (0: all), and the cursor to continue at."""
    page = found[cursor : cursor + limit] if limit else found[cursor:]
    return page, cursor + len(page) if cursor + len(page) < len(found) else None


def _tasks_of_node(
    session: Session, selectors: tuple[str, ...], node: str, states: tuple[State, ...], cursor: int, limit: int
) -> tuple[list[TaskView], int | None]:
    """Returns all tasks of named jobs that are or were there, else those that run there now; as `_tasks`."""
    wanted = set(named_nodes([node], session.query().nodes()))
    if not selectors:
        selectors = tuple(str(job.id) for job in session.query().jobs() if not wanted.isdisjoint(job.nodes))
        states = states or (State.STARTING, State.RUNNING, State.SUSPENDED, State.STOPPING)
    found = [task for one in selectors for task in _tasks(session, (one,), states, 0, 0)[0] if task.node in wanted]
    return _page(found, cursor, limit)


def kept_tasks(session: Session, number: int, *, first: int = 0, limit: int = 0) -> list[TaskView]:
    """Returns tasks of a submission that exists, or did. Raises NotFound if only its history is kept."""
    try:
        return session.query().tasks(number, first=first, limit=limit)
    except NotFound:
        raise NotFound(f"the tasks of {number} and their output are no longer kept: it is history", hint=f"rmgr history {number}") from None


# -- `rmgr history` ------------------------------------------------------------------------------------------------------------


@command(
    "history",
    examples="""\
    rmgr history                            your last 100, newest first
    rmgr history 42; rmgr history last
    rmgr history --since 1d --state failed
    rmgr history -A -o jobid,user,name,exit,elapsed --sort=-elapsed
    rmgr history --json --limit 0           everything
    rmgr history purge --older-than 90d     removes old lines (operators; rmgr history purge --help)""",
    exits="0 ok, 3 no such id, 5 neither store nor ZooKeeper can be reached",
)
@click.argument("selectors", nargs=-1, metavar="[ID]...")
@click.option("-A", "--everyone", is_flag=True, help="show all users' work")
@click.option("--since", type=SINCE, metavar="TIME", help="ended after this: 2h (ago), 16:00, 2026-11-30")
@click.option("--until", type=SINCE, metavar="TIME", help="ended before this")
@click.option("--limit", type=click.IntRange(0), default=_DEFAULT_LIMIT, show_default=True, metavar="N", help="at most N, 0 = all")
@filter_options
@table_options
def history(
    session: Session,
    selectors: tuple[str, ...],
    everyone: bool,
    since: int | None,
    until: int | None,
    limit: int,
    chosen: Filter,
    layout: Layout,
    watch: bool,
) -> None:
    """Lists submissions that have ended: exit code, times, CPU time, memory, nodes. Newest first.

    The cluster keeps a line for its setting history_retention (365 days); rmgr history purge removes lines earlier.
    """

    def once() -> None:
        named, ranged = _wanted_ids(session, selectors)
        wanted = named | ranged
        user = None if everyone or chosen.user or wanted else session.me
        found: list[JobView] = []
        for job in _newest_first(session, user if not chosen.user else chosen.user, wanted):
            if chosen.admits(job) and (since is None or job.ended_us >= since) and (until is None or job.ended_us <= until):
                found.append(job)
            if limit and len(found) >= limit:
                break
        missing = sorted(named - {job.id for job in found})
        if missing and not chosen.is_set and since is None and until is None and not 0 < limit <= len(found):
            raise NotFound(f"{missing[0]} is not in the history", hint=f"it may not have ended: rmgr show {missing[0]}")
        if session.json:
            emit({"history": [shapes.history(job) for job in found]})
        else:
            table(found, HISTORY_COLUMNS, layout)
            if not found and not watch:
                narrowed = chosen.is_set or since is not None or until is not None
                nothing = "nothing that matches has ended" if narrowed else "nothing has ended yet"
                session.note(nothing + ("" if everyone or chosen.user or wanted else "; -A shows everyone's"))

    draw(session, once, watch=watch)


def _wanted_ids(session: Session, selectors: tuple[str, ...]) -> tuple[frozenset[int], frozenset[int]]:
    """Returns the named ids, and those of ranges, of which only some may have ended; both empty: all submissions."""
    if not selectors:
        return frozenset(), frozenset()
    if "purge" in selectors:
        raise UsageError("purge comes right after history", hint="rmgr history purge --older-than 90d --json")
    selection = parse(selectors)
    if selection.tasks or selection.every:
        raise UsageError("history is listed by submission", hint="rmgr history 42 43, rmgr history 1-10, or rmgr tasks 42")
    ranged = frozenset(chain.from_iterable(selection.ranges))
    newest = [job.id for job in islice(_newest_first(session, session.me), 1)] if selection.last else []
    if selection.last and not newest:
        raise NotFound("none of your submissions has ended yet", hint="rmgr jobs lists those that wait and run")
    return frozenset((*selection.ids, *newest)), ranged


def _newest_first(session: Session, user: str | None, wanted: frozenset[int] = frozenset()) -> Iterator[JobView]:
    """Yields ended work in memory, then the store's, each submission once. wanted: only these; empty: all."""
    told: set[int] = set()
    try:
        recent = [job for job in session.query().jobs(ended=True, user=user or "") if job.state.is_final]
    except RmgrError as error:
        session.note(f"{error.message}; what has just ended may be missing here")
        recent = []
    for job in sorted(recent, key=lambda job: -job.id):
        if not wanted or job.id in wanted:
            told.add(job.id)
            yield job
    left = wanted - told
    if wanted and not left:
        return  # all of them are in memory
    if 0 < len(left) <= _READ_ALONE:  # a look at each, however long the history is
        past: Iterable[JobView] = filter(None, (past_of(session, number) for number in sorted(left, reverse=True)))
    else:
        past = list_past(session, user=user)
    for job in past:
        if job.id not in told and (not wanted or job.id in wanted) and user in {None, job.user}:
            told.add(job.id)
            yield job
            if len(told) == len(wanted):
                return


# -- `rmgr history purge` ------------------------------------------------------------------------------------------------------


@command(
    "purge",
    examples="""\
    rmgr history purge --older-than 90d --dry-run   how many lines would go, of whom
    rmgr history purge --older-than 90d
    rmgr history purge --before 2026-01-01 --user anna""",
    exits="0 ok (nothing to remove, too), 2 usage, 4 not an operator, 5 store unavailable, 6 --timeout ran out (run it again)",
)
@click.option("--older-than", "age_us", type=DURATION_US, metavar="DURATION", help="ended longer ago than this: 90d, 12h")
@click.option("--before", "before_us", type=SINCE, metavar="TIME", help="ended before: 90d (ago), 16:00, 2026-01-01")
@click.option("--user", metavar="NAME", help="only this user's  [everybody's]")
@click.option("--dry-run", is_flag=True, help="print what would be removed, remove nothing")
def purge(session: Session, age_us: int | None, before_us: int | None, user: str | None, dry_run: bool) -> None:
    """Removes submissions that ended before a moment from the history, and so from `rmgr report`. For operators.

    Work that ended recently is still listed until it leaves ZooKeeper (retention in the cluster's settings, 1h). Logs and
    results have retentions of their own (rmgr config show --cluster); named values stay.
    """
    from rmgr.procedures.history import ended_before, forget

    if (age_us is None) == (before_us is None):
        raise UsageError("before when? one of --older-than and --before", hint="rmgr history purge --older-than 90d --dry-run")
    limit_us = now_us() - age_us if age_us is not None else before_us
    assert limit_us is not None
    if not dry_run:
        from rmgr.cli.control.operate import for_operators

        for_operators(session, "purging the history")
    store = session.data_store()
    users: Counter[str] = Counter()
    for view in _views_of_user(session, ended_before(store, limit_us, on_unreadable=session.note, timeout_s=session.left_s(30.0)), user):
        if not dry_run:
            forget(store, view, timeout_s=session.left_s(30.0))
        users[view.user] += 1
    told = [{"user": name, "submissions": count} for name, count in sorted(users.items())]
    removed = 0 if dry_run else users.total()
    verb = "would be removed" if dry_run else "removed"
    whose = f" ({', '.join(f'{name} {count}' for name, count in sorted(users.items()))})" if users else ""
    session.answer(
        {"found": users.total(), "removed": removed, "before": iso(limit_us), "dry_run": dry_run, "users": told},
        f"{users.total()} ended before {clock(limit_us)}: {verb}{printable(whose)}\n",
    )


def _views_of_user(session: Session, views: Iterator[JobView], user: str | None) -> Iterator[JobView]:
    for view in views:
        session.left_s()  # raises when --timeout has run out
        if user is None or view.user == user:
            yield view
