"""Search: none. The head of the queue starts as soon as it fits; until then it blocks everything behind it.

Algorithm: 1. take the first waiting job of the order; 2. if it fits, start it on the free nodes of lowest id and go to 1; 3. else stop.
Parameters: order (default fcfs). Source: papers.md 2.2 ("no search = the head blocks"). Differs from it in: nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from rmgr.sched.draft import Draft
from rmgr.sched.plan import Accepted, Why
from rmgr.sched.policies.fcfs import Fcfs
from rmgr.sched.policy import Cause, Order

HEAD = Why("head", "first in the queue, and it fits")


@dataclass(frozen=True, slots=True)
class HeadBlocking:
    name: ClassVar[str] = "head_blocking"
    order: Order = field(default_factory=Fcfs)

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:  # noqa: ARG002 - the same whatever happened
        for job in self.order.arrange(draft):
            verdict = draft.start(job.id, HEAD)
            if not isinstance(verdict, Accepted):
                draft.leave_pending(job.id, verdict.why)
                draft.leave_rest(Why("order", "job {} is before it and blocks the queue", (job.id,)))
                return
