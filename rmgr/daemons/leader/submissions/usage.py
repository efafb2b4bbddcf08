"""Counts what each user has in the cluster just now, from the leader's memory, for the limits of users."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from rmgr.coord.decisions.progress import Progress
from rmgr.model.tasks.submission import Submission

#: The other znodes of a submission, with what ZooKeeper keeps of each (bytes).
_ZNODES_BYTES = 1000


@dataclass(slots=True)
class UserTotals:
    """Use of one user: submissions that have not ended, their tasks that are not final, bytes below `/subs`."""

    open_submissions: int = 0
    unfinished_tasks: int = 0
    zookeeper_bytes: int = 0


class CountedSubmission(Protocol):
    """A submission that counts for its user. record_bytes, fragment_bytes: in ZooKeeper, as far as they were read."""

    submission: Submission | None
    progress: Progress
    record_bytes: int

    @property
    def fragment_bytes(self) -> int: ...

    @property
    def is_closed(self) -> bool: ...

    @property
    def is_ended(self) -> bool: ...


def usage(followed: Iterable[CountedSubmission]) -> dict[str, UserTotals]:
    """By user. Cost: about 1 us a submission.

    A submission that was made a moment ago counts as open, its tasks when its tail has been read (half a second).
    """
    found: dict[str, UserTotals] = {}
    for item in followed:
        submission = item.submission
        if submission is None:
            continue
        use = found.get(submission.user)
        if use is None:
            use = found[submission.user] = UserTotals()
        use.zookeeper_bytes += _ZNODES_BYTES + item.record_bytes + item.fragment_bytes
        if not (item.is_closed or item.is_ended):
            use.open_submissions += 1
            use.unfinished_tasks += max(0, item.progress.total - item.progress.final)
    return found
