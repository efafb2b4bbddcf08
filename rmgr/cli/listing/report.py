"""`rmgr report`: the use by users and accounts, the cluster's utilisation, waits in queues; from the history."""

from __future__ import annotations

import csv
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Any

import click

from rmgr.cli.display.render import Column, Layout, clock, emit, iso, now_us, table
from rmgr.cli.session import Session, command
from rmgr.cli.session.tables import draw, table_options
from rmgr.cli.words.params import SINCE, Parsed, listed, midnight_s, unknown
from rmgr.client.queries import list_past
from rmgr.errors import RmgrError, UsageError
from rmgr.model.units import counted, format_duration, format_size, percentile
from rmgr.model.views import JobView

_HOUR_US = 3_600_000_000
#: Groups that `--by` may name, in the order of columns.
GROUPS = ("day", "user", "account", "queue")
#: Percentiles of waits in the report.
PERCENTS = (50, 90, 99)


def _groups(text: str) -> tuple[str, ...]:
    chosen = listed(text.lower())
    for name in chosen:
        if name not in GROUPS:
            raise unknown("group", name, GROUPS)
    if not chosen:
        raise UsageError("no group is named", hint=f"one or several of {', '.join(GROUPS)}: --by user,day")
    return tuple(dict.fromkeys(chosen))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """Core time that could have been used: cores between begin_us (None = nothing is reported) and end_us; cores 0 = unknown."""

    cores: int
    begin_us: int | None
    end_us: int

    def available_us(self, usage: GroupUsage, by: Sequence[str], days: Days) -> int:
        """Returns the cluster's core time during this line's time: the window, or the part of its day inside the window."""
        if self.begin_us is None:
            return 0
        low, high = self.begin_us, self.end_us
        if usage.group and "day" in by:
            begin, end, _ = days.around(days.begin(usage.group[by.index("day")]))
            low, high = max(low, begin), min(high, end)
        return self.cores * max(0, high - low)


@command(
    "report",
    examples="""\
    rmgr report                             by user and account, over all that the history holds
    rmgr report --since 7d --by day
    rmgr report --by user,day --since 2026-11-01 --until 2026-12-01 --csv > november.csv
    rmgr report --account physics --by user --sort=-corehours
    rmgr report --json""",
    exits="0 ok (also when nothing has ended yet), 4 permission, 5 the data store cannot be reached",
)
@click.option(
    "--by",
    type=Parsed("groups", _groups),
    default="user,account",
    show_default=True,
    metavar="GROUP,...",
    help=f"a line for each {', '.join(GROUPS)}, or several of them",
    shell_complete=lambda _ctx, _parameter, text: [name for name in GROUPS if name.startswith(text)],
)
@click.option("--since", "since_us", type=SINCE, metavar="TIME", help="from this time on: 7d (ago), 16:00, 2026-11-30")
@click.option("--until", "until_us", type=SINCE, metavar="TIME", help="until this time")
@click.option("-u", "--user", metavar="NAME", help="only of this user")
@click.option("--account", metavar="NAME", help="only for this account")
@click.option("-q", "--queue", metavar="NAME", help="only in this queue")
@click.option("--csv", "as_csv", is_flag=True, help="the lines of usage as comma separated values")
@table_options
def report(session: Session, as_csv: bool, layout: Layout, watch: bool, **asked: Any) -> None:
    """Reports the usage of the cluster by work that has ended, its utilisation, and waits per queue.

    Core time is the run time of all attempts times their cores (for pulled work without lost attempts); for jobs that share cores in
    time it is the time in which they had them. Core time and CPU time are spread evenly from a submission's first start to its end, and
    cut at --since and --until; submissions, tasks and waits count when they ended.
    LOST counts attempts, FAILED counts tasks. UTIL is the share of the core time of the nodes known today. Days are local in tables,
    UTC in JSON and CSV. Cost: reads the whole history once (of one user with --user), two reads for each 500 submissions;
    100,000 take about 5 s with SQLite.
    """
    wanted = Wanted(**asked)
    if wanted.since_us is not None and wanted.until_us is not None and wanted.since_us >= wanted.until_us:
        raise UsageError("--since is not before --until", hint="as --since 2d --until 1d")
    if as_csv and session.json:
        raise UsageError("--csv and --json are two formats", hint="choose one")

    def once() -> None:
        made = Report(wanted=wanted, days=Days(UTC if session.json or as_csv else None))
        for job in list_past(session, user=wanted.user):
            made.add(job)
        now = now_us()
        begin_us = made.first_us if wanted.since_us is None else wanted.since_us
        end_us = now if wanted.until_us is None else min(wanted.until_us, now)
        machine = _Machine(cores=0 if made.first_us is None else cluster_cores(session), begin_us=begin_us, end_us=end_us)
        if not made.seen:
            session.note("the history is empty: nothing has ended yet" + (f" of user {wanted.user}" if wanted.user else ""))
        elif made.first_us is None:
            seen = counted(made.seen, "submission")
            session.note(f"nothing of the {seen} in the history is in this report: look at --since, --until and filters")
        if session.json:
            emit(_document(made, machine))
        elif as_csv:
            _write_csv(made, machine)
        elif made.first_us is not None:
            _draw(made, machine, layout)

    draw(session, once, watch=watch)


def cluster_cores(session: Session) -> int:
    """Returns the cores of all nodes that are not fenced or stopped; 0 (with a note) if they cannot be read."""
    from rmgr.model.node import NodeState
    from rmgr.submitter.questions import ReadNodes

    try:
        records = session.ask(ReadNodes())
    except RmgrError as error:
        session.note(f"{error.message}; utilisation is left out: how many cores there are is not known")
        return 0
    return sum(record.capacity.cores for record in records if record.state is not NodeState.FENCED)


# -- machine output ------------------------------------------------------------------------------------------------------------


def _document(made: Report, machine: _Machine) -> dict[str, Any]:
    by = made.wanted.by
    available_us = machine.available_us(made.total, by, made.days)
    return {
        "since": iso(machine.begin_us) if machine.begin_us is not None else None,
        "until": iso(machine.end_us),
        "by": list(by),
        "rows": [dict(zip(by, usage.group, strict=True)) | _numbers(made, machine, usage) for usage in made.rows()],
        "total": _numbers(made, machine, made.total),
        "cluster": {"cores": machine.cores, "core_seconds": available_us / 1e6} if machine.cores else None,
        "waits": [_wait(waits) for waits in made.waits()],
    }


def _numbers(made: Report, machine: _Machine, usage: GroupUsage) -> dict[str, Any]:
    return {
        "jobs": usage.jobs,
        "tasks": usage.tasks,
        "failed": usage.failed,
        "cancelled": usage.cancelled,
        "lost": usage.lost,
        "cpu_seconds": usage.cpu_us / 1e6,
        "core_seconds": usage.core_us / 1e6,
        "max_rss_bytes": usage.max_rss_kib * 1024,
        "utilisation": _utilisation(made, machine, usage),
    }


def _utilisation(made: Report, machine: _Machine, usage: GroupUsage) -> float | None:
    available_us = machine.available_us(usage, made.wanted.by, made.days)
    return usage.core_us / available_us if available_us else None


def _wait(waits: QueueWaits) -> dict[str, Any]:
    told = {f"p{percent}": value / 1e6 for percent, value in zip(PERCENTS, waits.percentiles, strict=True)}
    return {"queue": waits.queue, "jobs": waits.jobs, **told, "max": waits.most / 1e6}


def _write_csv(made: Report, machine: _Machine) -> None:
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow([*made.wanted.by, *_numbers(made, machine, made.total)])
    for usage in made.rows():
        numbers = _numbers(made, machine, usage).values()
        out.writerow([*usage.group, *("" if value is None else value for value in numbers)])


# -- for people ----------------------------------------------------------------------------------------------------------------


def _draw(made: Report, machine: _Machine, layout: Layout) -> None:
    out, total, cores = sys.stdout, made.total, machine.cores
    table(made.rows(), _usage_columns(made, machine), layout)
    waits = made.waits()
    if waits:
        out.write("\n")
        table(waits, _WAIT_COLUMNS, Layout(header=layout.header))
    span = f"from {clock(machine.begin_us or 0)} to {clock(machine.end_us)}"
    message = f"{_hours(total.core_us)} core hours used by {counted(total.jobs, 'submission')} {span}"
    share = _utilisation(made, machine, total)
    if share is not None:
        message += f", {share:.1%} of what {counted(cores, 'core')} have"
    out.write(f"\n{message}\n")
    out.flush()


def _usage_columns(made: Report, machine: _Machine) -> tuple[Column, ...]:
    def group(name: str, at: int) -> Column:
        is_told = len(by) == 1 or any(usage.group[at] for usage in rows)  # accounts are seldom given
        return Column(name=name.upper(), text=lambda u: u.group[at] or "-", is_id=is_told and at == 0, default=is_told)

    def number(name: str, value: Callable[[GroupUsage], int], text: Callable[[int], str] = str, *, default: bool = True) -> Column:
        return Column(name=name, text=lambda u: text(value(u)), order=value, right=True, default=default)

    def share(usage: GroupUsage) -> float:
        return _utilisation(made, machine, usage) or 0.0

    by, rows = made.wanted.by, made.rows()
    return (
        *(group(name, at) for at, name in enumerate(by)),
        number("JOBS", lambda u: u.jobs),
        number("TASKS", lambda u: u.tasks),
        number("FAILED", lambda u: u.failed),
        number("CANCELLED", lambda u: u.cancelled, default=False),
        number("LOST", lambda u: u.lost),
        number("CPUHOURS", lambda u: u.cpu_us, _hours),
        number("COREHOURS", lambda u: u.core_us, _hours),
        Column(name="UTIL", text=lambda u: f"{share(u):.1%}" if machine.cores else "", order=share, right=True),
        number("MAXRSS", lambda u: u.max_rss_kib, lambda kib: format_size(kib * 1024) if kib else ""),
    )


def _hours(time_us: int) -> str:
    return f"{time_us / _HOUR_US:,.3f}"


def _wait_column(name: str, value: Callable[[QueueWaits], int]) -> Column:
    return Column(name=name, text=lambda w: format_duration(value(w) / 1e6), order=value, right=True)

_WAIT_COLUMNS = (
    Column(name="QUEUE", text=lambda w: w.queue, is_id=True),
    Column(name="STARTED", text=lambda w: str(w.jobs), right=True),
    *(_wait_column(f"WAIT P{percent}", lambda w, at=at: w.percentiles[at]) for at, percent in enumerate(PERCENTS)),  # type: ignore[misc]
    _wait_column("MAX", lambda w: w.most),
)


# -- what is counted (pure) ----------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class GroupUsage:
    """One line: the use of a group. Times in microseconds. lost: attempts; failed: tasks."""

    group: tuple[str, ...] = ()
    jobs: int = 0
    tasks: int = 0
    failed: int = 0
    cancelled: int = 0
    lost: int = 0
    cpu_us: int = 0
    core_us: int = 0
    max_rss_kib: int = 0

    def count(self, job: JobView) -> None:
        """Counts `job`, which ended in this group."""
        self.jobs += 1
        self.tasks += job.tasks
        self.failed += job.counts.get("FAILED", 0)
        self.cancelled += job.counts.get("CANCELLED", 0)
        self.lost += job.lost


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueWaits:
    """Waits of a queue's submissions for their first start, in microseconds. percentiles: as `PERCENTS` (nearest rank)."""

    queue: str
    jobs: int
    percentiles: tuple[int, ...]
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Window and filter of a report. since_us, until_us: the window, None = open. user, account, queue: only these, None = all."""

    by: tuple[str, ...] = ("user", "account")
    since_us: int | None = None
    until_us: int | None = None
    user: str | None = None
    account: str | None = None
    queue: str | None = None

    def admits(self, job: JobView) -> bool:
        """Returns whether `job` passes the filter."""
        return (
            (self.user is None or job.user == self.user)
            and (self.account is None or job.account == self.account)
            and (self.queue is None or job.queue == self.queue)
        )


def core_us(job: JobView) -> int:
    """Returns the core time. For a summary of an older release, without a run time: cores from first start to end, once."""
    width = job.cores * max(1, job.processes)
    return width * (job.run_us or max(0, job.ended_us - job.started_us if job.started_us else 0))


class Days:
    """Calendar days of a time zone, None = this machine's. Cost: two conversions for a new day, none for the last one asked."""

    def __init__(self, zone: tzinfo | None = UTC) -> None:
        self._zone = zone
        self._last = (0, 0, "")

    def around(self, time_us: int) -> tuple[int, int, str]:
        """Returns (begin, end, name) of the day that holds `time_us`; the end is the next day's begin."""
        begin, end, _ = self._last
        if not begin <= time_us < end:
            day = datetime.fromtimestamp(time_us // 1_000_000, self._zone).date()
            self._last = (self._midnight(day), self._midnight(day + timedelta(days=1)), day.isoformat())
        return self._last

    def begin(self, name: str) -> int:
        """Returns when the day of that name begins, in microseconds since the epoch."""
        return self._midnight(date.fromisoformat(name))

    def _midnight(self, day: date) -> int:
        moment_s = midnight_s(day) if self._zone is None else datetime.combine(day, time(), self._zone).timestamp()
        return int(moment_s) * 1_000_000


@dataclass(slots=True, kw_only=True)
class Report:
    """Adds submissions up. Cost: O(1) per submission and day that it ran; memory: a line per group, 8 bytes per submission for its wait."""

    wanted: Wanted
    days: Days = field(default_factory=Days)
    seen: int = 0  #: number of summaries seen
    first_us: int | None = None  #: submit time of the report's earliest submission, None if it has none
    total: GroupUsage = field(default_factory=GroupUsage)
    _groups: dict[tuple[str, ...], GroupUsage] = field(default_factory=dict)
    _waits: dict[str, array[int]] = field(default_factory=dict)

    def add(self, job: JobView) -> None:
        """Adds one summary; they may come in any order, each once."""
        self.seen += 1
        wanted = self.wanted
        if not wanted.admits(job) or not job.ended_us:
            return
        begin, end = job.started_us or job.ended_us, job.ended_us
        low = begin if wanted.since_us is None else max(begin, wanted.since_us)
        high = end if wanted.until_us is None else min(end, wanted.until_us)
        counts = (wanted.since_us is None or wanted.since_us <= end) and (wanted.until_us is None or end < wanted.until_us)
        if not counts and low >= high:
            return
        submitted_us = job.submitted_us or begin
        self.first_us = submitted_us if self.first_us is None else min(self.first_us, submitted_us)
        if counts:
            self._group(job, end).count(job)
            self.total.count(job)
            if job.started_us:
                self._waits.setdefault(job.queue, array("q")).append(max(0, job.started_us - submitted_us))
        for piece_begin, piece_end in self._pieces(low, high):
            cpu_us, cores_us = (
                _share(job.cpu_us, begin, end, piece_begin, piece_end),
                _share(core_us(job), begin, end, piece_begin, piece_end),
            )
            for usage in (self._group(job, piece_begin), self.total):
                usage.cpu_us += cpu_us
                usage.core_us += cores_us
                usage.max_rss_kib = max(usage.max_rss_kib, job.max_rss_kib)

    def rows(self) -> list[GroupUsage]:
        """Returns a line per group: by day if days are asked for, else the largest use first. Cost: O(groups log groups)."""
        rows = sorted(self._groups.values(), key=lambda usage: (-usage.core_us, usage.group))
        if "day" in self.wanted.by:
            at = self.wanted.by.index("day")
            rows.sort(key=lambda usage: usage.group[at])
        return rows

    def waits(self) -> list[QueueWaits]:
        """Returns a line per queue. Cost: O(n log n) once."""
        found = []
        for queue, waits in sorted(self._waits.items()):
            ascending = sorted(waits)
            told = tuple(percentile(ascending, percent) for percent in PERCENTS)
            found.append(QueueWaits(queue=queue, jobs=len(ascending), percentiles=told, most=ascending[-1]))
        return found

    def _pieces(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        if low >= high:  # it took no time that could be divided
            yield low, low
        elif "day" not in self.wanted.by:
            yield low, high
        else:
            while low < high:
                end = min(high, self.days.around(low)[1])
                yield low, end
                low = end

    def _group(self, job: JobView, at_us: int) -> GroupUsage:
        names = {"user": job.user, "account": job.account, "queue": job.queue}
        group = tuple(self.days.around(at_us)[2] if name == "day" else names[name] for name in self.wanted.by)
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = GroupUsage(group=group)
        return found


def _share(total: int, begin: int, end: int, low: int, high: int) -> int:
    """Returns the part of `total`, spread over begin..end, between low and high; adjoining shares add up. For an empty span, all of it."""
    if end <= begin:
        return total
    return total * (high - begin) // (end - begin) - total * (low - begin) // (end - begin)
