"""Defines a policy: parameters in, verbs on a draft out; orders of the queue; the pipeline that names policies per partition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from rmgr.sched.job import Job
from rmgr.sched.order import Cause, Key

if TYPE_CHECKING:
    from rmgr.sched.draft import Draft

__all__ = ["Cause", "KeyedOrder", "Order", "Policy", "Stage"]


class Policy(Protocol):
    """A frozen dataclass of parameters. Whatever must survive a pass is a record in the cluster state, never an attribute here."""

    name: ClassVar[str]

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        """Writes its decisions on the draft; raising loses them all."""
        ...


def sends_calls(policy: object) -> bool:
    """It chooses servers for calls, and places no jobs: its class has `for_calls = True`."""
    return bool(getattr(policy, "for_calls", False))


class Order(Protocol):
    """The order in which the waiting jobs of a partition are looked at. Frozen and hashable."""

    name: ClassVar[str]

    def arrange(self, draft: Draft) -> Iterator[Job]:
        """Every startable waiting job once, first to be served first."""
        ...


class KeyedOrder(Order, Key, Protocol):
    """An order by a key that never changes while the job waits: kept sorted between passes, so a pass pays nothing for it."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One policy for some partitions (none named: every partition)."""

    policy: Policy
    partitions: tuple[str, ...] = ()
