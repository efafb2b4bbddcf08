"""Defines what state and draft know of policies: the cause of a pass, and the key by which a queue is kept sorted.

Policies themselves, and orders that look at a draft, are in `policy.py`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Protocol

from rmgr.sched.job import Job


class Cause(StrEnum):
    """Causes of a pass: everything that happened since the last one."""

    JOB_SUBMITTED = "job_submitted"
    JOB_ENDED = "job_ended"  #: or left its nodes in any other way
    JOB_WITHDRAWN = "job_withdrawn"  #: cancelled or held while it waited
    NODES_CHANGED = "nodes_changed"
    CALL_SUBMITTED = "call_submitted"
    CALL_ANSWERED = "call_answered"
    SERVERS_CHANGED = "servers_changed"  #: measured again, came, left, opened or closed
    TIMER = "timer"  #: a `WakeAt`, or the driver's own tick
    TAKE_OVER = "take_over"  #: a new leader's first pass; a changed configuration


class Key(Protocol):
    """A key that never changes while its job waits. Frozen and hashable: the sorted queue is found by it."""

    name: ClassVar[str]

    def key(self, job: Job) -> tuple[int, ...]:
        """Ascending; ends with the job's id."""
        ...
