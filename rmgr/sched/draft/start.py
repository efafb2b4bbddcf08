"""Verbs that place waiting jobs: start now, promise a start, give the promise up."""

from __future__ import annotations

from dataclasses import replace

from rmgr.sched.capacity.holds import are_spans, placed_on
from rmgr.sched.capacity.pool_node import NodePool
from rmgr.sched.draft.view import View
from rmgr.sched.job import Job, Placement, Reservation, Running
from rmgr.sched.plan import Accepted, Insufficient, Reserve, Start, Unreserve, Verdict, Why, of_tuple
from rmgr.sched.records import Hold
from rmgr.sched.state.partition import Pool

UNKNOWN_TIME = Why("time", "no time is known at which enough is free: nodes are closed")
TOO_LARGE = "needs {} x {} cores, {} are free"
SCATTERED = "needs {} x {} cores, {} are free, but where it may run there is room for {} such processes"
NOT_EMPTY = "needs {} x {} cores and its nodes for itself, {} nodes empty"
NO_SPANS = Why("nodes", "a placement is a tuple of spans: first node, last node, processes on each")
HAS_HOLD = Why("hold", "it has been promised the cores of running jobs")


def lacking(job: Job, pool: Pool) -> Why:
    """Why the job, which does not fit, does not: the first resource without which it would, else cores, or where they are free."""
    if job.resources and isinstance(pool, NodePool):
        for name, count in job.resources:
            if pool.fits(replace(job, resources=tuple(one for one in job.resources if one[0] != name))):
                return Why("resources", "needs {} x {} {}, {} are free", (job.processes, count, name, pool.free_of(name)))
    if job.exclusive:
        return Why("resources", NOT_EMPTY, (job.processes, job.threads, pool.idle_nodes))
    if pool.free >= job.cpus and isinstance(pool, NodePool):
        return Why("resources", SCATTERED, (job.processes, job.threads, pool.free, sum(pool.rooms(job))))
    return Why("resources", TOO_LARGE, (job.processes, job.threads, pool.free))


class Starting(View):
    """A part of `Draft`."""

    __slots__ = ()

    def start(self, job_id: int, why: Why, placement: Placement | None = None) -> Verdict:
        """Starts a waiting job now, on the free nodes of lowest id or on `placement`. O(spans), however many nodes there are."""
        job = self._job(job_id)
        if not isinstance(job, Job):
            return job
        if self._part.limits is not None:
            over = self._over_limits(job)
            if over is not None:
                return Insufficient(over)
        hold = (self._part.holds if self._more is None else self._more.holds).get(job_id)
        if hold is not None:
            return self._start_on_held(job, hold, why, placement)
        pool, horizon, is_taken = self._pool, self._horizon, False
        if placement is not None:
            if not are_spans(placement, len(self._part.nodes)):
                return self._never(NO_SPANS)
            unknown = [n for first, last, _ in placement for n in (first, last) if n not in self._part.nodes]
            if unknown:
                return self._never(Why("nodes", "no node {} in partition {}", (unknown[0], self.partition)))
            if not pool.holds(job, placement):
                return Insufficient(Why("resources", "{} is not free for job {}", (placement, job_id)))
        elif horizon is not None and not pool.fits(job):
            return Insufficient(lacking(job, pool))
        if horizon is not None:
            placement = self._within_promises(job, placement)
            if placement is None:
                return Insufficient(self._not_admitted(job))
        elif placement is None:
            placement = pool.claim(job)
            if placement is None:
                free = pool.free
                if job.resources or job.exclusive or free >= job.cpus:
                    return Insufficient(lacking(job, pool))
                why_not = of_tuple(Why, ("resources", TOO_LARGE, (job.processes, job.threads, free)))
                return of_tuple(Insufficient, (why_not,))
            is_taken = True
        if not is_taken:
            pool.take(job, placement)
        now_us = self.now_us
        self._started[job_id] = of_tuple(Running, (job, now_us, now_us + job.planned_us, placement))
        if horizon is not None and self._horizon is not None:
            self._horizon.started(job, placement)
        if self._part.gangs.by_name:
            self._leave_gangs(job_id)
        self.decisions.append(of_tuple(Start, (job_id, placement, why, self.partition)))
        return of_tuple(Accepted, (now_us,))

    def reserve(self, job_id: int, why: Why, *, keep: bool = False) -> Verdict:
        """Promises the job the earliest start that breaks no other promise, every run using its whole limit; replaces its old one.

        keep: commit it as a record that later passes honour; else it holds for this pass. Insufficient: no such time is known.
        Cost: the first promise of a pass O(runs + promises), further ones of what is free for so long before their answer.
        """
        job = self._job(job_id)
        if not isinstance(job, Job):
            return job
        if self._part.limits is not None:
            over = self._over_limits(job)
            if over is not None:
                return Insufficient(over)
        hold = self._holds.get(job_id)
        if hold is not None:  # that is its promise
            return Accepted(self.now_us) if hold.is_complete else Insufficient(HAS_HOLD)
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
            found = timeline.move(job, None if old is None else (old.start_us, old.placement))
            if found is None:
                if job_id in self._part.reservations:
                    self.decisions.append(Unreserve(job_id, UNKNOWN_TIME, self.partition))
                return Insufficient(UNKNOWN_TIME)
            held = Reservation(job_id, *found, self.policy)
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

    def _start_on_held(self, job: Job, hold: Hold, why: Why, placement: Placement | None) -> Verdict:
        """A job with a hold starts on what is held for it, and nowhere else."""
        if not hold.is_complete:
            runs = ", ".join(str(share.run_id) for share in hold.waits_for)
            return Insufficient(Why("hold", "has been promised the cores of running jobs {}", (runs,)))
        where = placed_on(job, hold.held, self._part.nodes)
        if where is None or placement not in (None, where):
            return Insufficient(Why("hold", "does not fit on what is held for it, or was to start elsewhere"))
        if self._window_for(self.now_us + job.planned_us, where) is not None:
            return Insufficient(self._not_admitted(job))
        more, pool = self._changes(), self._pool
        mark = len(more.undo)
        self._swap_hold(job, None)
        if not pool.holds(job, where):  # memory that other jobs still have
            more.back(mark)
            return Insufficient(Why("hold", "the cores held for it are free, something else that it needs there is not"))
        pool.take(job, where)
        self._started[job.id] = Running(job, self.now_us, self.now_us + job.planned_us, where)
        self._look_again()
        self._leave_gangs(job.id)
        self.decisions.append(Start(job.id, where, why, self.partition))
        return Accepted(self.now_us)

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
