"""What a policy is: parameters in, verbs on a draft out; orders of the queue; the pipeline that names policies per partition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Protocol

from rmgr.sched.job import Job

if TYPE_CHECKING:
    from rmgr.sched.draft import Draft


class Cause(StrEnum):
    """Why a pass is run: everything that happened since the last one."""

    JOB_SUBMITTED = "job_submitted"
    JOB_ENDED = "job_ended"  #: or left its nodes in any other way
    JOB_WITHDRAWN = "job_withdrawn"  #: cancelled or held while it waited
    NODES_CHANGED = "nodes_changed"
    CALL_SUBMITTED = "call_submitted"
    CALL_ANSWERED = "call_answered"
    SERVERS_CHANGED = "servers_changed"  #: measured again, came, left, opened or closed
    TIMER = "timer"  #: a `WakeAt`, or the driver's own tick
    TAKE_OVER = "take_over"  #: a new leader's first pass; a changed configuration


class Policy(Protocol):
    """A frozen dataclass of parameters. Whatever must survive a pass is a record in the cluster state, never an attribute here."""

    name: ClassVar[str]

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        """Writes its decisions on the draft; raising loses them all."""
        ...


class Order(Protocol):
    """The order in which the waiting jobs of a partition are looked at. Frozen and hashable."""

    name: ClassVar[str]

    def arrange(self, draft: Draft) -> Iterator[Job]:
        """Every startable waiting job once, first to be served first."""
        ...


class KeyedOrder(Order, Protocol):
    """An order by a key that never changes while the job waits: kept sorted between passes, so a pass pays nothing for it."""

    def key(self, job: Job) -> tuple[int, ...]:
        """Ascending; ends with the job's id."""
        ...


@dataclass(frozen=True, slots=True)
class Stage:
    """One policy for some partitions (none named: every partition)."""

    policy: Policy
    partitions: tuple[str, ...] = ()
