"""What failed of a submission, read once: its ends as groups, and the last line that one of each group has written to stderr."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rmgr.cli.display.failures import Failure, harmless, of_job, sentence
from rmgr.cli.display.render import clock, here
from rmgr.errors import NotFound, RmgrError
from rmgr.model.base.states import State
from rmgr.model.base.units import counted
from rmgr.model.views import JobView

if TYPE_CHECKING:
    from rmgr.cli.session.context import Session
    from rmgr.cli.waiting.follow import FollowedEnd

#: Groups that are shown with what one of them wrote, and tasks of each whose logs are looked at for something to show.
MOST_SHOWN, _LOOKED_AT = 5, 3


@dataclass(slots=True)
class _Group:
    nodes: dict[str, int] = field(default_factory=dict)
    first: list[FollowedEnd] = field(default_factory=list)

    def add(self, end: FollowedEnd) -> None:
        """Only the first few keep their logs."""
        self.nodes[end.node] = self.nodes.get(end.node, 0) + 1
        if len(self.first) < _LOOKED_AT or end.position < self.first[-1].position:
            self.first = sorted([*self.first, end], key=lambda one: one.position)[:_LOOKED_AT]


@dataclass(slots=True)
class BadEnds:
    """Ends of a submission of which something FAILED. cancelled: in words, "" = nothing was. is_past: only the history tells of it."""

    failures: list[Failure] = field(default_factory=list)
    cancelled: str = ""
    is_past: bool = False


def read_bad_ends(session: Session, number: int, total: int, positions: Collection[int] | None = None) -> BadEnds:
    """What failed (of these tasks), the most frequent first, and what was cancelled.

    Raises: NotFound where only the history is kept; DataLost. Cost: every outcome is read, and a row of the store for a few tasks.
    """
    from rmgr.cli.waiting.follow import read_ends

    groups: dict[tuple[str, int | None], _Group] = {}
    cancelled, why, last_us = 0, "", 0
    for end in read_ends(session, number):
        if positions is not None and end.position not in positions:
            continue
        if end.state is State.FAILED:
            groups.setdefault((end.reason, end.exit_code), _Group()).add(end)
        elif end.state is State.CANCELLED:
            cancelled, why, last_us = cancelled + 1, why or end.error, max(last_us, end.ended_us)
    ordered = sorted(groups.items(), key=lambda pair: -sum(pair[1].nodes.values()))
    found = [
        _failure(session, reason, code, group, looks=at < MOST_SHOWN) for at, ((reason, code), group) in enumerate(ordered)
    ]
    return BadEnds(found, _cancelled(cancelled, total, why, last_us) if cancelled else "")


def bad_ends_of(session: Session, job: JobView, position: int | None = None) -> BadEnds:
    """The same of a submission, or of its task at `position`; of one that is history what that tells. Raises: DataLost."""
    if not job.counts.get(State.FAILED):
        return BadEnds()
    try:
        return read_bad_ends(session, job.id, job.tasks if position is None else 1, None if position is None else {position})
    except NotFound:
        return BadEnds(of_job(job) if position is None else [], is_past=True)


def told(bad: BadEnds, job: JobView, total: int) -> list[tuple[str, str]]:
    """(name, words) for people, a line each: what failed, and below it what one of it has written last; what was cancelled."""
    lines = []
    for failure in bad.failures[:MOST_SHOWN]:
        lines.append(("failed", sentence(failure, total)))
        if failure.said or (failure.detail and total > 1):
            lines.append(("", (f"{failure.task} " if total > 1 and failure.task else "") + f"| {failure.said or failure.detail}"))
    if rest := bad.failures[MOST_SHOWN:]:
        lines.append(("", f"{sum(failure.tasks for failure in rest):,} more, in other ways: rmgr tasks {job.id} --state failed"))
    if bad.cancelled and lines:
        more = f": {here(job.detail)}" if job.detail and here(job.detail) not in bad.cancelled else ""
        lines.append(("cancelled", bad.cancelled + more))
    return lines


def _cancelled(count: int, total: int, why: str, last_us: int) -> str:
    return f"{count:,} of {counted(total, 'task')}" + (f" at {clock(last_us)}" if last_us else "") + (f": {here(why)}" if why else "")


def _failure(session: Session, reason: str, code: int | None, group: _Group, *, looks: bool) -> Failure:
    chosen, line = group.first[0], ""
    for end in group.first if looks else ():
        line = last_line(session, end)
        if line:
            chosen = end
            break
    return Failure(
        reason=reason,
        exit_code=code,
        nodes=group.nodes,
        task=chosen.id,
        error=chosen.error,
        started_us=chosen.started_us,
        ended_us=chosen.ended_us,
        max_rss_kib=chosen.max_rss_kib,
        stderr=line,
        has_output=any(any(end.log) or any(end.log_parts) for end in group.first),
    )


def last_line(session: Session, end: FollowedEnd) -> str:
    """The last line of its stderr that says something, "" where there is none, or the store is away. Cost: at most one row is read."""
    for data in _ends_of_stderr(session, end):
        for line in reversed(data[-64 * 1024 :].splitlines()):  # of bytes: at \n and \r alone; of a progress bar the last state
            if told := harmless(line[:4096]):
                return told
    return ""


def _ends_of_stderr(session: Session, end: FollowedEnd) -> Iterator[bytes]:
    """The part of its stderr that came with its end, then the last one in the store."""
    yield end.log[1]
    if not end.log_parts[1]:
        return
    from rmgr.client.logs import read_part

    try:
        yield read_part(session.data_store(), end.submission, end.position, end.attempt, "stderr", end.log_parts[1] - 1)
    except RmgrError as error:
        session.detail(f"{end.id}: its stderr cannot be read: {error.message}")
