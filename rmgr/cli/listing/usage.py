"""Adds up the history for a report, one submission after another: by user, account, queue or day. Pure.

Core time of a submission (run time of its attempts x cores of a task) and its CPU time are spread evenly over the time from its first start
to its last end, so that a window and the days in it get their share; counts belong to the moment when it ended. Shares are whole
microseconds and add up exactly.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from rmgr.cli.words.moments import midnight_s
from rmgr.model.views import JobView

#: What `--by` may name, in the order of columns.
GROUPS = ("day", "user", "account", "queue")
#: Percentiles of waits that are told.
PERCENTS = (50, 90, 99)


@dataclass(slots=True, kw_only=True)
class GroupUsage:
    """One line: what a group used. Times in microseconds. lost: attempts; failed: tasks."""

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
        """`job` ended here."""
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
    """Window and filter of a report. since_us, until_us: the window, None = open. user, account, queue: only of these, None = of all."""

    by: tuple[str, ...] = ("user", "account")
    since_us: int | None = None
    until_us: int | None = None
    user: str | None = None
    account: str | None = None
    queue: str | None = None

    def admits(self, job: JobView) -> bool:
        """Whose it is."""
        return (
            (self.user is None or job.user == self.user)
            and (self.account is None or job.account == self.account)
            and (self.queue is None or job.queue == self.queue)
        )


def core_us(job: JobView) -> int:
    """Core time. A summary of an older release has no run time: then from its first start to its end, once."""
    width = job.cores * max(1, job.processes)
    return width * (job.run_us or max(0, job.ended_us - job.started_us if job.started_us else 0))


def percentile(ascending: Sequence[int], percent: int) -> int:
    """The smallest value that `percent` of all do not exceed (nearest rank). Raises ValueError when there is none."""
    if not ascending:
        raise ValueError("a percentile of nothing")
    return ascending[max(0, -(-len(ascending) * percent // 100) - 1)]


class Days:
    """Calendar days of a time zone, None = this machine's. Cost: two conversions a new day, none for the one asked last."""

    def __init__(self, zone: tzinfo | None = UTC) -> None:
        self._zone = zone
        self._last = (0, 0, "")

    def around(self, time_us: int) -> tuple[int, int, str]:
        """(begin, end, name) of the day that holds `time_us`; the end is the next day's begin."""
        begin, end, _ = self._last
        if not begin <= time_us < end:
            day = datetime.fromtimestamp(time_us // 1_000_000, self._zone).date()
            self._last = (self._midnight(day), self._midnight(day + timedelta(days=1)), day.isoformat())
        return self._last

    def begin(self, name: str) -> int:
        """When the day of that name begins, in microseconds since the epoch."""
        return self._midnight(date.fromisoformat(name))

    def _midnight(self, day: date) -> int:
        moment_s = midnight_s(day) if self._zone is None else datetime.combine(day, time(), self._zone).timestamp()
        return int(moment_s) * 1_000_000


@dataclass(slots=True, kw_only=True)
class Report:
    """Adds submissions up. Cost: O(1) a submission and day that it ran; memory: a line a group, 8 bytes a submission for its wait."""

    wanted: Wanted
    days: Days = field(default_factory=Days)
    seen: int = 0  #: summaries that were looked at
    first_us: int | None = None  #: when the earliest submission of the report was submitted, None = it has none
    total: GroupUsage = field(default_factory=GroupUsage)
    _groups: dict[tuple[str, ...], GroupUsage] = field(default_factory=dict)
    _waits: dict[str, array[int]] = field(default_factory=dict)

    def add(self, job: JobView) -> None:
        """Takes in one summary, in any order, each once."""
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
        """A line a group: by day where days are asked for, else who used most first. Cost: O(groups log groups)."""
        rows = sorted(self._groups.values(), key=lambda usage: (-usage.core_us, usage.group))
        if "day" in self.wanted.by:
            at = self.wanted.by.index("day")
            rows.sort(key=lambda usage: usage.group[at])
        return rows

    def waits(self) -> list[QueueWaits]:
        """A line a queue. Cost: O(n log n) once."""
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
    """What of `total`, spread over begin..end, falls between low and high; neighbouring shares add up. Of no time at all: everything."""
    if end <= begin:
        return total
    return total * (high - begin) // (end - begin) - total * (low - begin) // (end - begin)
