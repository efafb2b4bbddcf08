"""A submission as it was read from ZooKeeper, or has just been made there."""

from __future__ import annotations

from dataclasses import dataclass

from rmgr.model.tasks.submission import Submission, Tail


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSubmission:
    """Record and tail of a submission, with their versions."""

    submission: Submission
    version: int
    tail: Tail
    tail_version: int
