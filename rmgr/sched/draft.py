"""What a policy writes on: a read-only view of one partition, an overlay of what this pass has decided, and verbs that are vetted at once.

A verb answers `Accepted`, `Insufficient` (not now) or `Infeasible` (never); only what was accepted is in the plan, so no policy can
over-commit a node, start a job twice, or break a promise that this pass or an earlier one made.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from rmgr.errors import StateConflict
from rmgr.sched.horizon import Ending, Horizon, Timeline
from rmgr.sched.horizon_node import NodeShadow, NodeTimeline
from rmgr.sched.horizon_unit import UnitShadow, UnitTimeline
from rmgr.sched.job import Job, Placement, Reservation, Running
from rmgr.sched.partition import Partition
from rmgr.sched.plan import (
    Accepted,
    Decision,
    Infeasible,
    Insufficient,
    Reserve,
    Start,
    Unreserve,
    Verdict,
    WakeAt,
    Why,
)
from rmgr.sched.policy import KeyedOrder
from rmgr.sched.pool_unit import UnitPool

UNKNOWN_TIME = Why("time", "no time is known at which enough is free: nodes are closed")


NOBODYS = Why("policy", "the policy that promised it no longer serves this partition")


class Mark(NamedTuple):
    """How far a draft had come."""

    started: int
    decisions: int
    promises: dict[int, Reservation]
    left: dict[int, Why]
    rest: Why | None


class Trial:
    """A fork of the draft: what is written meanwhile is taken back unless `keep` was called."""

    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept = False

    def keep(self) -> None:
        self.kept = True


class Draft:
    """One partition in one pass. It is closed when the pass ends: a policy that kept it cannot use it."""

    __slots__ = (
        "_horizon",
        "_open",
        "_part",
        "_pool",
        "_promises",
        "_started",
        "_timeline",
        "decisions",
        "left",
        "now_us",
        "partition",
        "policy",
        "refused",
        "rest",
        "seed",
    )

    def __init__(self, part: Partition, now_us: int, seed: int, keepers: Container[str] = ()) -> None:
        self._part = part
        self._pool = part.pool
        self._started: dict[int, Running] = {}
        self._promises: dict[int, Reservation] = {}
        self._timeline: Timeline | None = None  #: of all promises, where there may be many
        self._horizon: Horizon | None = None  #: the timeline, or the shadow of the only promise
        self._open = True
        self.policy = ""  #: whose turn it is; the engine sets it
        self.partition = part.name
        self.now_us = now_us
        self.seed = seed
        self.decisions: list[Decision] = []
        self.left: dict[int, Why] = {}
        self.rest: Why | None = None
        self.refused = 0
        if part.reservations:
            for held in part.reservations.values():
                if held.policy in keepers:
                    self._promises[held.job_id] = held
                else:
                    self.decisions.append(Unreserve(held.job_id, NOBODYS, part.name))
            self._look_again()

    # -- the view ---------------------------------------------------------------------------------------------------------

    def sorted_by(self, order: KeyedOrder) -> Iterator[Job]:
        """The waiting jobs that this partition can run and this pass has not started, in this order."""
        started = self._started
        for job in self._part.sorted_by(order):
            if job.id not in started:
                yield job

    def by_arrival(self) -> Iterator[Job]:
        """The same jobs in order of (submit time, id): the order that every partition keeps anyway."""
        started = self._started
        if not started:
            return iter(self._part.waiting)
        return (job for job in self._part.waiting if job.id not in started)

    def startable(self, jobs: Iterator[Job]) -> Iterator[Job]:
        """Those of `jobs` that could start at the moment they are reached. What the caller starts meanwhile counts."""
        return self._pool.startable(jobs, self._horizon)

    def fits(self, job: Job) -> bool:
        """There is room for the job now, promises aside."""
        return self._pool.fits(job)

    def promised(self, job_id: int) -> int | None:
        """The start (us) that a reservation of this pass or of an earlier one promises the job."""
        held = self._promises.get(job_id)
        return None if held is None else held.start_us

    def running(self) -> Iterator[Running]:
        """What ran before this pass, by job id."""
        return iter(sorted(self._part.running.values(), key=_job_id))

    @property
    def free_cores(self) -> int:
        """Cores on which something could start now, promises aside. O(1) for identical one-core nodes, else O(nodes)."""
        return self._pool.free

    @property
    def waiting_count(self) -> int:
        return len(self._part.waiting) - len(self._started)

    # -- the verbs --------------------------------------------------------------------------------------------------------

    def start(self, job_id: int, why: Why, placement: Placement | None = None) -> Verdict:
        """Starts a waiting job now, on the free nodes of lowest id or on `placement`. O(spans), however many nodes there are."""
        job = self._job(job_id)
        if not isinstance(job, Job):
            return job
        pool, horizon = self._pool, self._horizon
        if placement is not None:
            unknown = [n for first, last, _ in placement for n in (first, last) if n not in self._part.nodes]
            if unknown:
                return self._never(Why("nodes", "no node {} in partition {}", (unknown[0], self.partition)))
            if not pool.holds(job, placement):
                return Insufficient(Why("resources", "{} is not free for job {}", (placement, job_id)))
        elif not pool.fits(job):
            return Insufficient(Why("resources", "needs {} x {} cores, {} are free", (job.processes, job.threads, pool.free)))
        if horizon is not None:
            placement = self._within_promises(job, placement)
            if placement is None:
                return Insufficient(Why("promise", "would take what is promised to another job"))
        elif placement is None:
            placement = pool.pick(job)
            assert placement is not None
        pool.take(job, placement)
        self._started[job_id] = Running(job, self.now_us, self.now_us + job.planned_us, placement)
        if self._horizon is not None:
            self._horizon.started(job, placement)
        self.decisions.append(Start(job_id, placement, why, self.partition))
        return Accepted(self.now_us)

    def reserve(self, job_id: int, why: Why, *, keep: bool = False) -> Verdict:
        """Promises the job the earliest start that breaks no other promise, every run using its whole limit; replaces its old one.

        keep: commit it as a record that later passes honour; else it holds for this pass. Insufficient: no such time is known.
        Cost: the first promise of a pass O(runs), further ones O(runs + promises) each.
        """
        job = self._job(job_id)
        if not isinstance(job, Job):
            return job
        if self._horizon is None and not keep:
            shadow = self._shadow(job)
            if shadow is None:
                return Insufficient(UNKNOWN_TIME)
            self._horizon = shadow
            held = Reservation(job_id, shadow.at_us, shadow.placement, self.policy)
        else:
            timeline = self._timeline
            if timeline is None:
                timeline = self._horizon = self._timeline = self._lay_out()
            old = self._promises.pop(job_id, None)
            if old is not None:
                timeline.withdraw(job, old.start_us, old.placement)
            found = timeline.earliest(job)
            if found is None:
                if job_id in self._part.reservations:
                    self.decisions.append(Unreserve(job_id, UNKNOWN_TIME, self.partition))
                return Insufficient(UNKNOWN_TIME)
            held = Reservation(job_id, *found, self.policy)
            timeline.promise(job, *found)
        self._promises[job_id] = held
        if not keep or self._part.reservations.get(job_id) != held:
            self.decisions.append(Reserve(job_id, held.start_us, held.placement, keep, why, self.partition, self.policy))
        return Accepted(held.start_us)

    def unreserve(self, job_id: int, why: Why) -> Verdict:
        """Gives up the job's promise. Infeasible when it has none."""
        self._check_open()
        if self._promises.pop(job_id, None) is None:
            return self._never(Why("state", "job {} has no reservation in partition {}", (job_id, self.partition)))
        self._look_again()
        if job_id in self._part.reservations:
            self.decisions.append(Unreserve(job_id, why, self.partition))
        return Accepted(self.now_us)

    @contextmanager
    def fork(self) -> Iterator[Trial]:
        """What if: `with draft.fork() as trial:` takes back every verb used inside, unless `trial.keep()` was called."""
        trial, mark = Trial(), self.mark()
        try:
            yield trial
        finally:
            if not trial.kept:
                self.back(mark)

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

    def mark(self) -> Mark:
        """The point to which `back` leads."""
        return Mark(len(self._started), len(self.decisions), self._promises.copy(), self.left.copy(), self.rest)

    def back(self, mark: Mark) -> None:
        """Takes back everything since the mark."""
        while len(self._started) > mark.started:
            _, run = self._started.popitem()
            self._pool.give(run.job, run.placement)
        del self.decisions[mark.decisions :]
        self._promises, self.left, self.rest = mark.promises.copy(), mark.left.copy(), mark.rest
        self._look_again()

    def close(self) -> None:
        """Takes the overlay off the state again; no verb works any more."""
        self._open = False
        for run in reversed(self._started.values()):
            self._pool.give(run.job, run.placement)

    def _job(self, job_id: int) -> Job | Infeasible:
        self._check_open()
        job = self._part.jobs.get(job_id)
        if job is None or job_id in self._started:
            return self._never(Why("state", "job {} does not wait in partition {}", (job_id, self.partition)))
        if job_id in self._part.infeasible:
            return self._never(Why("size", "job {} needs more than partition {} has", (job_id, self.partition)))
        return job

    def _within_promises(self, job: Job, placement: Placement | None) -> Placement | None:
        """Where the job can start now without breaking a promise to another; its own promise is then kept. None: nowhere."""
        own = self._promises.get(job.id)
        timeline = self._timeline
        if own is not None:
            if timeline is None:  # the only promise is its own
                del self._promises[job.id]
                self._horizon = None
                return placement or self._pool.pick(job)
            timeline.withdraw(job, own.start_us, own.placement)
        horizon = self._horizon
        assert horizon is not None
        if placement is None:
            placement = horizon.place(job)
        elif not horizon.allows(job, placement):
            placement = None
        if own is not None and timeline is not None:
            if placement is None:
                timeline.promise(job, own.start_us, own.placement)
            else:
                del self._promises[job.id]
        return placement

    def _look_again(self) -> None:
        self._horizon = self._timeline = self._lay_out() if self._promises else None

    def _endings(self) -> list[Ending]:
        """When nodes come back: what ran before this pass and what it has started, sorted."""
        if not self._started:
            return self._part.endings
        returns = self._pool.returns
        own = [(run.end_us, run.job.id, returns(run.job, run.placement)) for run in self._started.values()]
        return sorted(self._part.endings + own)

    def _run_of(self, job_id: int) -> Running:
        return self._started.get(job_id) or self._part.running[job_id]

    def _shadow(self, job: Job) -> UnitShadow | NodeShadow | None:
        pool = self._pool
        if isinstance(pool, UnitPool):
            return UnitShadow.of(job, self.now_us, pool, self._endings())
        return NodeShadow.of(job, self.now_us, pool, self._endings(), self._run_of)

    def _lay_out(self) -> Timeline:
        """A timeline with every promise on it."""
        pool = self._pool
        timeline: UnitTimeline | NodeTimeline
        if isinstance(pool, UnitPool):
            timeline = UnitTimeline(self.now_us, pool, self._endings())
        else:
            timeline = NodeTimeline(self.now_us, pool, self._endings(), self._run_of)
        for held in self._promises.values():
            timeline.promise(self._part.jobs[held.job_id], held.start_us, held.placement)
        return timeline

    def _never(self, why: Why) -> Infeasible:
        self.refused += 1
        return Infeasible(why)

    def _check_open(self) -> None:
        if not self._open:
            raise StateConflict(f"the draft of partition {self.partition} is closed: its pass ended", hint="a policy keeps nothing")


def _job_id(run: Running) -> int:
    return run.job.id
