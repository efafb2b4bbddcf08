"""Searches that promise nothing: First-Fit scans the queue and starts every job that fits; without a search the head blocks the queue.

Algorithm of First-Fit: 1. scan the queue once, from its head; 2. start each job that fits in what is then free, on the free nodes of lowest
id. One scan finds all of them, because free capacity only shrinks during it. Large jobs may wait for ever under a stream of small ones.
Algorithm of a blocking head: 1. take the first waiting job of the order; 2. if it fits, start it on the free nodes of lowest id and go to
1; 3. otherwise stop.
Parameters: order (default fcfs). Source: papers.md 2.2 (First-Fit; "no search = the head blocks"), 6 (reference start times). Differs from
it in: nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from rmgr.sched.draft import Draft
from rmgr.sched.plan import Accepted, Why
from rmgr.sched.policies.fcfs import Fcfs
from rmgr.sched.policy import Cause, Order

FITS = Why("first_fit", "the first in the queue that fits in what is free")
REST = Why("first_fit", "needs more than is free after this pass")
HEAD = Why("head", "first in the queue, and it fits")


@dataclass(frozen=True, slots=True)
class FirstFit:
    """Search: starts every waiting job that fits, in the order of the queue; jobs that do not fit are promised nothing."""

    name: ClassVar[str] = "first_fit"
    waives: ClassVar[Mapping[str, str]] = {"endless": "papers.md 2.2: what passes a job is never held back for it"}
    order: Order = field(default_factory=Fcfs)

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:  # noqa: ARG002 - the same whatever happened
        for job in draft.startable(self.order.arrange(draft)):
            draft.start(job.id, FITS)
        draft.leave_rest(REST)


@dataclass(frozen=True, slots=True)
class HeadBlocking:
    """No search: the head of the queue starts as soon as it fits; until then it blocks everything behind it."""

    name: ClassVar[str] = "head_blocking"
    order: Order = field(default_factory=Fcfs)

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:  # noqa: ARG002 - the same whatever happened
        for job in self.order.arrange(draft):
            verdict = draft.start(job.id, HEAD)
            if not isinstance(verdict, Accepted):
                draft.leave_pending(job.id, verdict.why)
                draft.leave_rest(Why("order", "job {} is before it and blocks the queue", (job.id,)))
                return
