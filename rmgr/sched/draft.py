"""What a policy writes on: a read-only view of one partition, an overlay of what this pass has decided, and verbs that are vetted at once.

A verb answers `Accepted`, `Insufficient` (not now) or `Infeasible` (never); only what was accepted is in the plan, so no policy can
over-commit a node, start a job twice, or break a promise that this pass or an earlier one made.
"""

from __future__ import annotations

from collections.abc import Iterator

from rmgr.errors import StateConflict
from rmgr.sched.job import Job, Placement, Running
from rmgr.sched.partition import Partition
from rmgr.sched.plan import Accepted, Decision, Infeasible, Insufficient, Start, Verdict, WakeAt, Why
from rmgr.sched.policy import KeyedOrder


class Draft:
    """One partition in one pass. It is closed when the pass ends: a policy that kept it cannot use it."""

    __slots__ = ("_open", "_part", "_pool", "_started", "decisions", "left", "now_us", "partition", "refused", "rest", "seed")

    def __init__(self, part: Partition, now_us: int, seed: int) -> None:
        self._part = part
        self._pool = part.pool
        self._started: dict[int, Running] = {}
        self._open = True
        self.partition = part.name
        self.now_us = now_us
        self.seed = seed
        self.decisions: list[Decision] = []
        self.left: dict[int, Why] = {}
        self.rest: Why | None = None
        self.refused = 0

    # -- the view ---------------------------------------------------------------------------------------------------------

    def sorted_by(self, order: KeyedOrder) -> Iterator[Job]:
        """The waiting jobs that this partition can run and this pass has not started, in this order."""
        started = self._started
        for job in self._part.sorted_by(order):
            if job.id not in started:
                yield job

    def startable(self, jobs: Iterator[Job]) -> Iterator[Job]:
        """Those of `jobs` that could start at the moment they are reached. What the caller starts meanwhile counts."""
        pool = self._pool
        for job in jobs:
            if pool.fits(job):
                yield job

    def fits(self, job: Job) -> bool:
        """There is room for the job now."""
        return self._pool.fits(job)

    def running(self) -> Iterator[Running]:
        """What ran before this pass, by job id."""
        return iter(sorted(self._part.running.values(), key=_job_id))

    @property
    def waiting_count(self) -> int:
        return len(self._part.waiting) - len(self._started)

    # -- the verbs --------------------------------------------------------------------------------------------------------

    def start(self, job_id: int, why: Why, placement: Placement | None = None) -> Verdict:
        """Starts a waiting job now, on the free nodes of lowest id or on `placement`. O(spans), however many nodes there are."""
        self._check_open()
        job = self._part.jobs.get(job_id)
        if job is None or job_id in self._started:
            return self._never(Why("state", "job {} does not wait in partition {}", (job_id, self.partition)))
        if job_id in self._part.infeasible:
            return self._never(Why("size", "job {} needs more than partition {} has", (job_id, self.partition)))
        if placement is None:
            placement = self._pool.pick(job)
            if placement is None:
                return Insufficient(Why("resources", "needs {} cores, {} nodes are free", (job.cpus, self._pool.free)))
        elif not self._pool.holds(job, placement):
            unknown = [n for first, last, _ in placement for n in (first, last) if n not in self._part.nodes]
            if unknown:
                return self._never(Why("nodes", "no node {} in partition {}", (unknown[0], self.partition)))
            return Insufficient(Why("resources", "{} is not free for job {}", (placement, job_id)))
        self._pool.take(job, placement)
        self._started[job_id] = Running(job, self.now_us, self.now_us + job.planned_us, placement)
        self.decisions.append(Start(job_id, placement, why, self.partition))
        return Accepted(self.now_us)

    def wake_at(self, at_us: int, why: Why) -> Verdict:
        """Asks for a pass at this time. Infeasible unless it is later than now."""
        self._check_open()
        if at_us <= self.now_us:
            return self._never(Why("time", "{} us is not after now", (at_us,)))
        self.decisions.append(WakeAt(at_us, why, self.partition))
        return Accepted(at_us)

    def leave_pending(self, job_id: int, why: Why) -> None:
        """Says why this job keeps waiting."""
        self.left[job_id] = why

    def leave_rest(self, why: Why) -> None:
        """Says why every waiting job without a reason of its own keeps waiting."""
        self.rest = why

    # -- the engine's -----------------------------------------------------------------------------------------------------

    def undo(self) -> None:
        """Takes the overlay off the state again and closes the draft."""
        self._open = False
        for run in reversed(self._started.values()):
            self._pool.give(run.job, run.placement)

    def _never(self, why: Why) -> Infeasible:
        self.refused += 1
        return Infeasible(why)

    def _check_open(self) -> None:
        if not self._open:
            raise StateConflict(f"the draft of partition {self.partition} is closed: its pass ended", hint="a policy keeps nothing")


def _job_id(run: Running) -> int:
    return run.job.id
