"""Defines a policy: parameters in, verbs on a draft out; causes of a pass; orders of the queue; stages: policies by partition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Protocol

from rmgr.sched.job import Job

if TYPE_CHECKING:
    from rmgr.sched.draft import Draft


class Policy(Protocol):
    """A frozen dataclass of parameters. Whatever must survive a pass is a record in the cluster state, never an attribute here."""

    name: ClassVar[str]

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        """Writes its decisions on the draft; raising loses them all."""
        ...


def sends_calls(policy: object) -> bool:
    """It chooses servers for calls, and places no jobs: its class has `for_calls = True`."""
    return bool(getattr(policy, "for_calls", False))


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


class Order(Protocol):
    """The order in which the waiting jobs of a partition are looked at. Frozen and hashable."""

    name: ClassVar[str]

    def arrange(self, draft: Draft) -> Iterator[Job]:
        """Every startable waiting job once, first to be served first."""
        ...


class Key(Protocol):
    """A key that never changes while its job waits. Frozen and hashable: the sorted queue is found by it."""

    name: ClassVar[str]

    def key(self, job: Job) -> tuple[int, ...]:
        """Ascending; ends with the job's id."""
        ...


class KeyedOrder(Order, Key, Protocol):
    """An order by a key that never changes while the job waits: kept sorted between passes, so a pass pays nothing for it."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One policy for some partitions (none named: every partition)."""

    policy: Policy
    partitions: tuple[str, ...] = ()
