"""Automatic queue selection of paper 000 (its proposal 1): a job that names no queue goes to the strictest class that admits it.

Algorithm:
1. Each waiting job whose queue is none of the classes: of the classes whose limits it keeps (CPUs, processes, threads, requested time) take
   the one with the smallest parallelism limit (`rmgr.sched.queue_class.selected`); route the job there. No class: reject it.
2. First-Fit in every queue, in the order of scanning (`queue_first_fit`). Option start=no: leave starting to the next stage.
Parameters: queues (classes; default those of HPC2500, table 2), scan (names scanned first), thread_affinity (default no), start
(default yes), firstfit_nodes.
Source: papers.md 1.3, paper 000 section 3.1. Differs from it in: nothing. A user who names a queue keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from rmgr.sched.draft import Draft
from rmgr.sched.parameters import about
from rmgr.sched.plan import Why
from rmgr.sched.policies.queue_first_fit import REST, Room, check_scan, in_order, scan
from rmgr.sched.policy import Cause
from rmgr.sched.queue_class import HPC2500, Ladder, QueueClass, selected

STRICTEST = "{} is the strictest queue for {} processes x {} threads ({} CPUs)"
FOR_THREADS = "{} is the queue for few processes of many threads that admits {} processes x {} threads ({} CPUs)"


def route_all(draft: Draft, queues: Ladder, *, thread_affinity: bool = False) -> None:
    """Sends every waiting job that stands in no class's queue to the class for it, or rejects it. O(such jobs)."""
    names = {queue.name for queue in queues}
    for name in sorted(draft.queues()):
        if name in names:
            continue
        for job in list(draft.queue(name)):
            found = selected(job, queues, thread_affinity=thread_affinity)
            shape = (*job.wanted, job.wanted_cpus)
            if found is None:
                draft.reject(job.id, Why("queue_select", "no queue admits {} processes x {} threads ({} CPUs) for its time", shape))
            else:
                is_strictest = not thread_affinity or found == selected(job, queues)
                why = Why("queue_select", STRICTEST if is_strictest else FOR_THREADS, (found.name, *shape))
                draft.route(job.id, found.name, why)


@dataclass(frozen=True, slots=True)
class QueueSelect:
    name: ClassVar[str] = "queue_select"
    waives: ClassVar[Mapping[str, str]] = {"endless": "papers.md 1.7 (C0.7): without reservations a large job waits until the stream stops"}
    queues: tuple[QueueClass, ...] = field(default=HPC2500, metadata=about("the classes, in the order of scanning"))
    scan: tuple[str, ...] = field(default=(), metadata=about("names of queues that are scanned first, in this order"))
    firstfit_nodes: int = field(default=0, metadata=about("nodes on which a job may pass others of its queue; 0: all", least=0))
    thread_affinity: bool = field(default=False, metadata=about("jobs of few processes go to the queue for threads where it admits them"))
    start: bool = field(default=True, metadata=about("start what fits, too; no: that is the next stage's"))

    def __post_init__(self) -> None:
        """Raises: ValueError for a class that stands in it twice, or a queue to scan that no class describes."""
        check_scan(self.queues, self.scan)

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:  # noqa: ARG002 - the same whatever happened
        route_all(draft, self.queues, thread_affinity=self.thread_affinity)
        if not self.start:
            return
        room = Room.of(draft, self.firstfit_nodes)
        for name, _ in in_order(draft, self.queues, self.scan):
            scan(draft, name, room)
        draft.leave_rest(REST)
