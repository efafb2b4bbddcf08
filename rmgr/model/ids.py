"""Ids and their grammar: submission `42` (`taskq-0000000042`), task `42_7`, attempt `42_7.2`; node and queue names."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rmgr.errors import UsageError

_TASK = re.compile(r"^(\d{1,10})_(\d{1,10})$")
_ATTEMPT = re.compile(r"^(\d{1,10})_(\d{1,10})\.(\d{1,6})$")
_SUBMISSION = re.compile(r"^(?:taskq-)?(\d{1,10})$")
_NAME = re.compile(r"^[a-zA-Z0-9](?:[a-zA-Z0-9._-]{0,62}[a-zA-Z0-9])?$")

#: Highest number of a submission and of a task index (ten digits in every key name).
MAX_NUMBER = 9_999_999_999


@dataclass(frozen=True, slots=True, order=True)
class TaskId:
    """Task `index` (dense, from 0) of submission `submission`."""

    submission: int
    index: int

    def __str__(self) -> str:
        return f"{self.submission}_{self.index}"


@dataclass(frozen=True, slots=True, order=True)
class AttemptId:
    """Attempt `attempt` (from 1) of a task; its text is the application's fencing token: the attempt only grows."""

    submission: int
    index: int
    attempt: int

    @property
    def task(self) -> TaskId:
        """The task it is an attempt of."""
        return TaskId(self.submission, self.index)

    def __str__(self) -> str:
        return f"{self.submission}_{self.index}.{self.attempt}"


def taskq_name(submission: int) -> str:
    """Name of a TaskQueue: what another process attaches to."""
    return f"taskq-{submission:010d}"


def parse_submission(text: str) -> int:
    """`42` or `taskq-0000000042` -> 42. Raises UsageError."""
    match = _SUBMISSION.match(text)
    if match is None:
        raise UsageError(f"{text!r} is not a submission id", hint="ids look like 42, 42_7 or taskq-0000000042; rmgr jobs lists them")
    return int(match[1])


def parse_task(text: str) -> TaskId:
    """`42_7` -> TaskId. Raises UsageError."""
    match = _TASK.match(text)
    if match is None:
        raise UsageError(f"{text!r} is not a task id", hint="task ids look like 42_7; rmgr tasks 42 lists those of 42")
    return TaskId(int(match[1]), int(match[2]))


def parse_attempt(text: str) -> AttemptId:
    """`42_7.2` -> AttemptId. Raises UsageError."""
    match = _ATTEMPT.match(text)
    if match is None:
        raise UsageError(f"{text!r} is not an attempt id", hint="attempt ids look like 42_7.2")
    return AttemptId(int(match[1]), int(match[2]), int(match[3]))


def check_name(kind: str, text: str) -> str:
    """Returns `text` if it may name a node, queue, partition, ...; raises UsageError (also for `..` and slashes)."""
    if not _NAME.match(text):
        raise UsageError(
            f"{text!r} cannot be the name of a {kind}",
            hint="at most 64 letters, digits, '.', '_' and '-'; a letter or digit first and last",
        )
    return text
