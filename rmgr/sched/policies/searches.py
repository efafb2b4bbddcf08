"""Searches through a queue in any order: First-Fit, a blocking head, EASY and conservative backfilling.

Parameters of all: order (default fcfs).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from typing import ClassVar

from rmgr.sched.draft import Draft
from rmgr.sched.parameters import about
from rmgr.sched.plan import Accepted, Infeasible, Insufficient, Why
from rmgr.sched.policies.orders import Fcfs
from rmgr.sched.policy import Cause, Order

# -- searches that promise nothing ---------------------------------------------------------------------------------------------

FITS = Why("first_fit", "the first in the queue that fits in what is free")
REST = Why("first_fit", "needs more than is free after this pass")
HEAD = Why("head", "first in the queue, and it fits")


@dataclass(frozen=True, slots=True)
class FirstFit:
    """Search: starts every waiting job that fits, in the order of the queue; jobs that do not fit are promised nothing.

    Algorithm: 1. scan the queue once, from its head; 2. start each job that fits in what is then free, on the free nodes of lowest id. One
    scan finds all of them, because free capacity only shrinks during it. Large jobs may wait for ever under a stream of small ones.
    Source: papers.md 2.2 (First-Fit), 6 (reference start times). Differs from it in: nothing.
    """

    name: ClassVar[str] = "first_fit"
    waives: ClassVar[Mapping[str, str]] = {"endless": "papers.md 2.2: what passes a job is never held back for it"}
    order: Order = field(default_factory=Fcfs)

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:  # noqa: ARG002 - the same whatever happened
        for job in draft.startable(self.order.arrange(draft)):
            draft.start(job.id, FITS)
        draft.leave_rest(REST)


@dataclass(frozen=True, slots=True)
class HeadBlocking:
    """No search: the head of the queue starts as soon as it fits; until then it blocks everything behind it.

    Algorithm: 1. take the first waiting job of the order; 2. if it fits, start it on the free nodes of lowest id and go to 1; 3. otherwise
    stop. Source: papers.md 2.2 ("no search = the head blocks"), 6 (reference start times). Differs from it in: nothing.
    """

    name: ClassVar[str] = "head_blocking"
    order: Order = field(default_factory=Fcfs)

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:  # noqa: ARG002 - the same whatever happened
        for job in self.order.arrange(draft):
            verdict = draft.start(job.id, HEAD)
            if not isinstance(verdict, Accepted):
                draft.leave_pending(job.id, verdict.why)
                draft.leave_rest(Why("order", "job {} is before it and blocks the queue", (job.id,)))
                return


# -- EASY ----------------------------------------------------------------------------------------------------------------------

_SHADOW = Why("easy", "the head of the queue: nothing may pass it that would delay it")
_BEHIND = Why("easy", "does not fit now, or would delay the head of the queue")


class Backfill(StrEnum):
    """In which order those behind the head are scanned."""

    QUEUE = "queue"
    SHORTEST = "shortest"


@dataclass(frozen=True, slots=True)
class Easy:
    """Search: EASY (aggressive) backfilling. Only the head has a promise; others may pass it where they do not delay it.

    Algorithm:
    1. Start the jobs at the head of the queue while they fit.
    2. For the head that does not fit: the shadow time is the earliest time at which enough is free if every running job uses its whole time
       limit; extra is what is free then beyond the head's need, counting every job that ends by its limit at that very time.
    3. Scan the rest once, in order (or, where asked for, the shortest requested time first): start a job that fits now and either ends by
       its limit no later than the shadow time, or fits into extra (which it then uses up).
    The draft vets step 3: a reservation on it is a promise that no start may break.
    Parameters: backfill (queue or shortest, default queue; shortest sorts what waits in every pass). Source: papers.md 6 ("EASY, exactly"
    and C5.1; Lifka, "The ANL/IBM SP scheduling system", 1995).
    Differs from it in: on nodes with several cores "enough" means the processes of the job placed on whole nodes, not a sum of cores. There
    the head is promised nodes that have no room for such processes now, if possible, and jobs that end by the shadow time start where later
    ends have no room: more room stays for others.
    """

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
                    draft.reserve(head.id, _SHADOW)
                    passes = Why("backfill", "fits now without delaying job {}", (head.id,))
                    rest = queue if self.backfill is Backfill.QUEUE else iter(sorted(queue, key=attrgetter("planned_us")))
                    for job in draft.startable(rest):
                        draft.start(job.id, passes)
                    draft.leave_rest(_BEHIND)
                    return


# -- conservative backfilling --------------------------------------------------------------------------------------------------

_PROMISE = Why("conservative", "the earliest start that delays no promise made before")
_DUE = Why("conservative", "its promised start has come")
_NOT_DUE = Why("conservative", "its promised start is still to come; an earlier one would delay a promise made before")
_FREEING = frozenset({Cause.JOB_ENDED, Cause.JOB_WITHDRAWN, Cause.NODES_CHANGED, Cause.TAKE_OVER})


@dataclass(frozen=True, slots=True)
class Conservative:
    """Search: conservative backfilling. Every waiting job has a promise, and no start may break any promise.

    Algorithm:
    1. If anything was freed since the last pass (an end, a withdrawal, a change of nodes): go through the queue in order; each job gives up
       its reservation and takes the earliest one that breaks no other, which is never later than its old one.
    2. Otherwise: jobs without a reservation take, in order, the earliest one that breaks none.
    3. Start, in order, every job whose reservation is now.
    4. Ask for a pass at the earliest reservation that does not wait for an overdue run.
    Promises are kept as records, so a later pass or another leader keeps them. The order ranks jobs in steps 1 to 3.
    Source: papers.md 6 (C5.1; Mu'alem and Feitelson, "Utilization, predictability, workloads, and user runtime estimates", 2001, section
    2). Differs from it in: on nodes with several cores a promise names its nodes, so a job may occasionally wait although enough cores are
    free on other nodes.
    """

    name: ClassVar[str] = "conservative"
    order: Order = field(default_factory=Fcfs)

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        freed = not causes.isdisjoint(_FREEING)
        first: int | None = None
        for job in self.order.arrange(draft):
            at_us = draft.promised(job.id)
            if freed or at_us is None or at_us <= draft.now_us:
                match draft.reserve(job.id, _PROMISE, keep=True):
                    case Accepted(at_us):
                        pass
                    case Insufficient(why) | Infeasible(why):
                        draft.leave_pending(job.id, why)
                        continue
            if at_us == draft.now_us:
                draft.start(job.id, _DUE)
            elif at_us > draft.now_us + 1:  # else it waits for an overdue run, whose end will cause a pass
                first = at_us if first is None else min(first, at_us)
        if first is not None:
            draft.wake_at(first, _PROMISE)
        draft.leave_rest(_NOT_DUE)
