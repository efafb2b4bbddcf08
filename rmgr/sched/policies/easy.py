"""Search: EASY (aggressive) backfilling. Only the head has a promise; others may pass it where they do not delay it.

Algorithm:
1. Start the jobs at the head of the queue while they fit.
2. For the head that does not fit: the shadow time is the earliest time at which enough is free if every running job uses its whole time
   limit; extra is what is free then beyond the head's need, counting every job that ends by its limit at that very time.
3. Scan the rest once, in order (or, where asked for, the shortest requested time first): start a job that fits now and either ends by its
   limit no later than the shadow time, or fits into extra (which it then uses up).
The draft vets step 3: a reservation on it is a promise that no start may break.
Parameters: order (default fcfs), backfill (queue or shortest, default queue; shortest sorts what waits in every pass). Source: papers.md 6
("EASY, exactly" and C5.1; Lifka, "The ANL/IBM SP scheduling system", 1995).
Differs from it in: on nodes with several cores "enough" means the processes of the job placed on whole nodes, not a sum of cores.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from typing import ClassVar

from rmgr.sched.draft import Draft
from rmgr.sched.parameters import about
from rmgr.sched.plan import Accepted, Infeasible, Insufficient, Why
from rmgr.sched.policies.fcfs import Fcfs
from rmgr.sched.policies.first_fit import HEAD
from rmgr.sched.policy import Cause, Order

SHADOW = Why("easy", "the head of the queue: nothing may pass it that would delay it")
REST = Why("easy", "does not fit now, or would delay the head of the queue")


class Backfill(StrEnum):
    """In which order those behind the head are scanned."""

    QUEUE = "queue"
    SHORTEST = "shortest"


@dataclass(frozen=True, slots=True)
class Easy:
    name: ClassVar[str] = "easy"
    order: Order = field(default_factory=Fcfs)
    backfill: Backfill = field(default=Backfill.QUEUE, metadata=about("who passes the head first: as in the queue, or the shortest"))

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:  # noqa: ARG002 - the same whatever happened
        queue = self.order.arrange(draft)
        for head in queue:
            match draft.start(head.id, HEAD):
                case Accepted():
                    continue
                case Insufficient(why) | Infeasible(why):
                    draft.leave_pending(head.id, why)
                    draft.reserve(head.id, SHADOW)
                    passes = Why("backfill", "fits now without delaying job {}", (head.id,))
                    rest = queue if self.backfill is Backfill.QUEUE else iter(sorted(queue, key=attrgetter("planned_us")))
                    for job in draft.startable(rest):
                        draft.start(job.id, passes)
                    draft.leave_rest(REST)
                    return
