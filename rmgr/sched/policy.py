"""Defines policies (parameters in, verbs on a draft out), causes of a pass, orders of the queue, and stages: policies by partition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Protocol

from rmgr.sched.job import Job

if TYPE_CHECKING:
    from rmgr.sched.draft import Draft


class Policy(Protocol):
    """A frozen dataclass of parameters. State that must survive a pass is a record in the cluster state, never an attribute here."""

    name: ClassVar[str]

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        """Writes the policy's decisions on the draft; if it raises, they are all lost."""
        ...


def sends_calls(policy: object) -> bool:
    """Whether the policy chooses servers for calls and places no jobs: its class has `for_calls = True`."""
    return bool(getattr(policy, "for_calls", False))


class Cause(StrEnum):
    """Causes of a pass: kinds of events since the last one."""

    JOB_SUBMITTED = "job_submitted"
    JOB_ENDED = "job_ended"  #: the job ended, or left its nodes in any other way
    JOB_WITHDRAWN = "job_withdrawn"  #: the job was cancelled or held while it waited
    NODES_CHANGED = "nodes_changed"
    CALL_SUBMITTED = "call_submitted"
    CALL_ANSWERED = "call_answered"
    SERVERS_CHANGED = "servers_changed"  #: a server was measured again, came, left, opened or closed
    TIMER = "timer"  #: a `WakeAt`, or the driver's own tick
    TAKE_OVER = "take_over"  #: a new leader's first pass; a changed configuration


class Order(Protocol):
    """The order in which a policy looks at the waiting jobs of a partition. Frozen and hashable."""

    name: ClassVar[str]

    def arrange(self, draft: Draft) -> Iterator[Job]:
        """Yields every startable waiting job once, the first to be served first."""
        ...


class Key(Protocol):
    """A sort key that never changes while its job waits. Frozen and hashable: the sorted queue is looked up by it."""

    name: ClassVar[str]

    def key(self, job: Job) -> tuple[int, ...]:
        """Returns the key; it sorts ascending and ends with the job's id."""
        ...


class KeyedOrder(Order, Key, Protocol):
    """An order by a key that never changes while the job waits: the queue stays sorted between passes, so a pass pays nothing for it."""

    def arrange(self, draft: Draft) -> Iterator[Job]:
        return draft.sorted_by(self)


@dataclass(frozen=True, slots=True)
class Stage:
    """One policy and the partitions it serves; an empty tuple means every partition."""

    policy: Policy
    partitions: tuple[str, ...] = ()
