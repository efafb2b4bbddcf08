"""Search: conservative backfilling. Every waiting job has a promise, and no start may break any promise.

Algorithm:
1. If anything was freed since the last pass (an end, a withdrawal, a change of nodes): go through the queue in order; each job gives up its
   reservation and takes the earliest one that breaks no other, which is never later than its old one.
2. Otherwise: jobs without a reservation take, in order, the earliest one that breaks none.
3. Start, in order, every job whose reservation is now.
4. Ask for a pass at the earliest reservation that does not wait for an overdue run.
Promises are kept as records, so a later pass or another leader keeps them.
Parameters: order (default fcfs; it ranks jobs in steps 1 to 3). Source: papers.md 6 (C5.1; Mu'alem and Feitelson, "Utilization,
predictability, workloads, and user runtime estimates", 2001, section 2). Differs from it in: on nodes with several cores a promise names
its nodes, so a job may occasionally wait although enough cores are free on other nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from rmgr.sched.draft import Draft
from rmgr.sched.plan import Accepted, Infeasible, Insufficient, Why
from rmgr.sched.policies.fcfs import Fcfs
from rmgr.sched.policy import Cause, Order

PROMISE = Why("conservative", "the earliest start that delays no promise made before")
DUE = Why("conservative", "its promised start has come")
REST = Why("conservative", "its promised start is still to come; an earlier one would delay a promise made before")
FREEING = frozenset({Cause.JOB_ENDED, Cause.JOB_WITHDRAWN, Cause.NODES_CHANGED, Cause.TAKE_OVER})


@dataclass(frozen=True, slots=True)
class Conservative:
    name: ClassVar[str] = "conservative"
    order: Order = field(default_factory=Fcfs)

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        freed = not causes.isdisjoint(FREEING)
        first: int | None = None
        for job in self.order.arrange(draft):
            at_us = draft.promised(job.id)
            if freed or at_us is None or at_us <= draft.now_us:
                match draft.reserve(job.id, PROMISE, keep=True):
                    case Accepted(at_us):
                        pass
                    case Insufficient(why) | Infeasible(why):
                        draft.leave_pending(job.id, why)
                        continue
            if at_us == draft.now_us:
                draft.start(job.id, DUE)
            elif at_us > draft.now_us + 1:  # else it waits for an overdue run, whose end will cause a pass
                first = at_us if first is None else min(first, at_us)
        if first is not None:
            draft.wake_at(first, PROMISE)
        draft.leave_rest(REST)
