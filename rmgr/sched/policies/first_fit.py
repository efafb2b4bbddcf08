"""Search: First-Fit. Every waiting job that fits starts, in the order of the queue; nothing is promised to those that do not.

Algorithm: 1. scan the queue once, from its head; 2. start each job that fits in what is free then, on the free nodes of lowest id.
One scan finds all: what is free only shrinks during it. Large jobs may wait for ever under a stream of small ones.
Parameters: order (default fcfs). Source: papers.md 2.2 (First-Fit), 6 (reference start times). Differs from it in: nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from rmgr.sched.draft import Draft
from rmgr.sched.plan import Why
from rmgr.sched.policies.fcfs import Fcfs
from rmgr.sched.policy import Cause, Order

FITS = Why("first_fit", "the first in the queue that fits in what is free")
REST = Why("first_fit", "needs more than is free after this pass")


@dataclass(frozen=True, slots=True)
class FirstFit:
    name: ClassVar[str] = "first_fit"
    waives: ClassVar[Mapping[str, str]] = {"endless": "papers.md 2.2: what passes a job is never held back for it"}
    order: Order = field(default_factory=Fcfs)

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:  # noqa: ARG002 - the same whatever happened
        for job in draft.startable(self.order.arrange(draft)):
            draft.start(job.id, FITS)
        draft.leave_rest(REST)
