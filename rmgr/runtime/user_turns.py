"""Jobs of several users that wait for few threads, and get them in turns: a Starter's work with the store, a gateway's orders."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Container, Mapping
from typing import Generic, Protocol, TypeVar


class HasUser(Protocol):
    """A job. user: its owner, "" for the process itself."""

    @property
    def user(self) -> str: ...


J = TypeVar("J", bound=HasUser)


class UserTurns(Generic[J]):
    """Waiting jobs; those of the process itself (user "") go first. Cost: O(1), `newcomer` O(users); `next` too, with `had`.

    Args:
        most_of_one: most running jobs of one user.
        had: returns what a job's user has used, the user with the least goes first; None: users go in turn.
    """

    def __init__(self, most_of_one: int, had: Callable[[J], float] | None = None) -> None:
        self._most_of_one = most_of_one
        self._had = had
        self._of: OrderedDict[str, deque[J]] = OrderedDict()  #: no queue is empty; the next user stands first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, job: J) -> None:
        """Adds a job as its user's last."""
        self._of.setdefault(job.user, deque()).append(job)
        self._count += 1

    def appendleft(self, job: J) -> None:
        """Adds a job as its user's next."""
        self._of.setdefault(job.user, deque()).appendleft(job)
        self._count += 1

    def next(self, under_way: Mapping[str, int]) -> str | None:
        """Returns the user with the next job; skips users who have as many jobs running as allowed. under_way: running jobs by user."""
        if "" in self._of:
            return ""
        able = (user for user in self._of if under_way[user] < self._most_of_one)
        had = self._had
        return next(able, None) if had is None else min(able, key=lambda user: had(self._of[user][0]), default=None)

    def take(self, user: str) -> J:
        """Takes the next job of a waiting user."""
        jobs = self._of[user]
        job = jobs.popleft()
        self._count -= 1
        if jobs:
            self._of.move_to_end(user)
        else:
            del self._of[user]
        return job

    def newcomer(self, *served: Container[str]) -> str | None:
        """Returns the first waiting user who is in none of `served`."""
        return next((user for user in self._of if not any(user in some for some in served)), None)

    def clear(self) -> None:
        """Drops all jobs."""
        self._of.clear()
        self._count = 0
