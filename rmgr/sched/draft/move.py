"""Verbs that move jobs: back to the queue, stopped and resumed in place, to another queue or server, out."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from rmgr.sched.capacity.holds import after_leaving, share_of
from rmgr.sched.draft.note import Noting
from rmgr.sched.job import Running, sent_back
from rmgr.sched.plan import (
    Accepted,
    Infeasible,
    Insufficient,
    Migrate,
    Preempt,
    Reject,
    Resume,
    Route,
    Suspend,
    Verdict,
    Why,
)
from rmgr.sched.records import Suspended

#: Kind of the note that a policy has of a job that it has stopped in place.
STANDS_STILL = "stands still"
#: Its user wants it so, or it has just refused.
PINNED = Why("pinned", "it may not be sent back to the queue")


class Moving(Noting):
    """A part of `Draft`."""

    __slots__ = ()

    def migrate(self, job_id: int, why: Why) -> Verdict:
        """A running or suspended job is asked to checkpoint and waits again, from this moment on; what it had is free in this pass.

        Infeasible for one that is pinned (`is_pinned`): its user wants it to run once and to its end, or it has just refused.
        Insufficient for one that this pass itself has started: so a job moves at most once a pass. Cost: that of its placement.
        """
        return self._send_back(Migrate(job_id, why, self.partition))

    def preempt(self, job_id: int, why: Why) -> Verdict:
        """The same, but it starts again from nothing."""
        return self._send_back(Preempt(job_id, why, self.partition))

    def suspend(self, job_id: int, why: Why) -> Verdict:
        """A running job stops in place: its cores are free in this pass, its memory stays taken. A note says which policy did it.

        Insufficient where a promise counts on its memory, Infeasible in a gang: that suspends by itself.
        """
        run = self._ran_before(job_id)
        if not isinstance(run, Running):
            return run
        if self._gang_of(job_id) is not None:
            return self._never(Why("gang", "job {} stands in a gang", (job_id,)))
        more, pool = self._changes(), self._pool
        mark = len(more.undo)
        self._vacate(run)
        pool.park(run.job, run.placement)
        more.did(partial(pool.unpark, run.job, run.placement))
        more.put(more.suspended, job_id, Suspended(run, self.now_us))
        broken = self._breaks_promises(mark)
        if broken is not None:  # its memory was to come back
            return broken
        self._write(STANDS_STILL, run.job.id, (self.now_us,))
        self.decisions.append(Suspend(run.job.id, why, self.partition))
        return Accepted(self.now_us)

    def resume(self, job_id: int, why: Why) -> Verdict:
        """A suspended job goes on where it stands, with what was left of its limit. Insufficient while its cores are not free."""
        self._check_open()
        more, pool = self._changes(), self._pool
        stopped = more.suspended.get(job_id)
        if stopped is None:
            return self._never(Why("state", "job {} is not suspended in partition {}", (job_id, self.partition)))
        run = stopped.run
        job, end_us = run.job, self.now_us + run.end_us - stopped.since_us
        if job_id in more.left:
            return Insufficient(Why("state", "job {} was suspended in this very pass", (job_id,)))
        if not pool.can_resume(job, run.placement):
            return Insufficient(Why("resources", "the cores of job {} are not free", (job_id,)))
        window = self._window_for(end_us, run.placement)
        if window is not None:
            return Insufficient(Why("maintenance", "could run into {} at {} us", (window.name or window.id, window.start_us)))
        over = self._over_limits(job)
        if over is not None:
            return Insufficient(over)
        mark = len(more.undo)
        pool.unpark(job, run.placement)
        more.did(partial(pool.park, job, run.placement))
        pool.take(job, run.placement)
        more.did(partial(pool.give, job, run.placement))
        more.drop(more.suspended, job_id)
        more.put(more.begun, job_id, Running(job, self.now_us, end_us, run.placement))
        broken = self._breaks_promises(mark)
        if broken is not None:
            return broken
        self._strike(STANDS_STILL, job.id)
        self.decisions.append(Resume(job_id, why, self.partition))
        return Accepted(self.now_us)

    def route(self, job_id: int, to: str, why: Why) -> Verdict:
        """A waiting job goes to the queue `to`. It keeps its place in every order but that of the queue."""
        self._check_open()
        job = self._job(job_id)
        if isinstance(job, Insufficient | Infeasible):
            return job
        if not to or not isinstance(to, str):
            return self._never(Why("queue", "a queue has a name"))
        if to != job.queue:
            more = self._changes()
            if job_id not in more.extra:
                more.put(more.gone, job_id, None)
            more.put(more.extra, job_id, replace(job, queue=to))
            self.decisions.append(Route(job.id, to, why, self.partition))
        return Accepted(self.now_us)

    def reject(self, job_id: int, why: Why) -> Verdict:
        """A waiting job can never run here: the driver ends it. Also one that no order shows."""
        self._check_open()
        job = self._waiting(job_id)
        if job is None or job_id in self._started:
            return self._never(Why("state", "job {} does not wait in partition {}", (job_id, self.partition)))
        more = self._changes()
        if job_id in more.holds:
            self._swap_hold(job, None)
        if job_id in more.extra:
            more.drop(more.extra, job_id)
        if job_id in self._part.jobs and job_id not in self._part.aside and job_id not in more.gone:
            more.put(more.gone, job_id, None)
        if job_id not in more.gone:  # it ran before this pass, or no order shows it: it is not there for anybody either
            more.put(more.rejected, job_id, None)
        self._promises.pop(job_id, None)
        self._look_again()
        self.decisions.append(Reject(job_id, why, self.partition))
        return Accepted(self.now_us)

    # -- inside -------------------------------------------------------------------------------------------------------------

    def _send_back(self, decision: Migrate | Preempt) -> Verdict:
        job_id = decision.job_id
        self._check_open()
        if job_id in self._part.pinned:
            return self._never(PINNED)
        more, pool = self._changes(), self._pool
        stopped = more.suspended.get(job_id)
        if stopped is not None and job_id not in more.left:
            run = stopped.run
            pool.unpark(run.job, run.placement)
            more.did(partial(pool.park, run.job, run.placement))
            more.drop(more.suspended, job_id)
            self._strike(STANDS_STILL, run.job.id)
        else:
            found = self._ran_before(job_id)
            if not isinstance(found, Running):
                return found
            run = found
            self._vacate(run)
        job = sent_back(run.job, self.now_us, moved=isinstance(decision, Migrate))
        more.put(more.extra, job_id, job)
        self.decisions.append(decision._replace(job_id=job.id))
        self._look_again()
        return Accepted(self.now_us)

    def _ran_before(self, job_id: int) -> Running | Insufficient | Infeasible:
        """A run that this pass has not touched."""
        self._check_open()
        more = self._more
        if job_id in self._started or (more is not None and (job_id in more.begun or job_id in more.left)):
            return Insufficient(Why("state", "job {} was started or moved in this very pass", (job_id,)))
        run = self._part.running.get(job_id)
        return self._never(Why("state", "job {} does not run in partition {}", (job_id, self.partition))) if run is None else run

    def _vacate(self, run: Running) -> None:
        """The run leaves its nodes; what a hold waits for of them is held. Nodes of a gang stay the gang's for this pass."""
        more, pool, job_id = self._changes(), self._pool, run.job.id
        more.put(more.left, job_id, run)
        self._tally = None
        if self._part.gangs.of and job_id in self._part.gangs.of:
            return  # the record keeps it until it is set again
        pool.give(run.job, run.placement)
        more.did(partial(pool.take, run.job, run.placement))
        holder = more.flagged.get(job_id)
        if holder is not None:
            hold, job = more.holds[holder], self._waiting(holder)
            assert job is not None
            cores = share_of(hold, job_id).cores
            pool.take_share(job, cores)
            more.did(partial(pool.give_share, job, cores))
            more.drop(more.flagged, job_id)
            more.put(more.holds, holder, after_leaving(hold, job_id))
