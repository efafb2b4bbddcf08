"""Verbs of connection reservations: a waiting job is promised the cores of named running jobs."""

from __future__ import annotations

from collections.abc import Sequence

from rmgr.sched.capacity.holds import are_spans, by_node, cores_of, is_within, placed_on
from rmgr.sched.draft.view import View
from rmgr.sched.job import Job
from rmgr.sched.plan import Accepted, HoldCores, Infeasible, Insufficient, ReleaseHold, Verdict, Why
from rmgr.sched.records import Hold, Share


class Holding(View):
    """A part of `Draft`."""

    __slots__ = ()

    def hold(self, job_id: int, shares: Sequence[Share], why: Why) -> Verdict:
        """The waiting job gets these cores as soon as the runs that have them leave, and starts on nothing else. It replaces its hold.

        A run that has left since an earlier `hold` is named by what is held of it, all or fewer cores. What is not named is free at once,
        or when its run ends. Until the job has ended, no promise counts on what it holds.
        Insufficient: a run is promised to another job, the job does not fit on the shares, or a promise would be broken.
        Infeasible: an unknown job or run, or more cores than it has. Cost: O(nodes of the shares), with promises a new timeline.
        """
        job = self._job(job_id)
        if not isinstance(job, Job):
            return job
        if job_id in self._promises:
            return Insufficient(Why("hold", "job {} has been promised a start", (job_id,)))
        more = self._changes()
        old = more.holds.get(job_id)
        new = self._vetted(job, shares, old)
        if not isinstance(new, Hold):
            return new
        if new == old:
            return Accepted(self.now_us)
        mark = len(more.undo)
        self._swap_hold(job, new)
        broken = self._breaks_promises(mark)
        if broken is not None:
            return broken
        self.decisions.append(HoldCores(job_id, new, why, self.partition))
        return Accepted(self.now_us)

    def shrink(self, job_id: int, shares: Sequence[Share], why: Why) -> Verdict:
        """`hold` again, for a job that has one."""
        if job_id not in self._holds:
            return self._never(Why("state", "job {} has no hold in partition {}", (job_id, self.partition)))
        return self.hold(job_id, shares, why)

    def release(self, job_id: int, why: Why) -> Verdict:
        """The job's hold goes: what was held is free in this pass, its runs are promised to nobody. Infeasible when it has none."""
        self._check_open()
        job = self._waiting(job_id)
        if job is None or job_id not in self._holds:
            return self._never(Why("state", "job {} has no hold in partition {}", (job_id, self.partition)))
        self._swap_hold(job, None)
        self._look_again()
        self.decisions.append(ReleaseHold(job_id, why, self.partition))
        return Accepted(self.now_us)

    def _vetted(self, job: Job, shares: Sequence[Share], old: Hold | None) -> Hold | Insufficient | Infeasible:
        more = self._changes()
        had = {share.run_id: share for share in old.held} if old is not None else {}
        waits_for: list[Share] = []
        held: list[Share] = []
        if len({share.run_id for share in shares}) < len(shares):
            return self._never(Why("hold", "a run is named twice"))
        for share in shares:
            run_id = share.run_id
            if type(run_id) is not int or not are_spans(share.cores, len(self._part.nodes)):
                return self._never(Why("hold", "the share of run {} is no tuple of spans", (run_id,)))
            if run_id in had:
                whole = by_node([had[run_id].cores])
                held.append(share)
            else:
                run = self.run(run_id)
                if run is None or self._gang_of(run_id) is not None:
                    return self._never(Why("state", "job {} does not run by itself in partition {}", (run_id, self.partition)))
                holder = more.flagged.get(run_id, job.id)
                if holder != job.id:
                    return Insufficient(Why("hold", "the cores of job {} are promised to job {}", (run_id, holder)))
                whole = cores_of(run)
                waits_for.append(share)
            if not is_within(share.cores, whole):
                return self._never(Why("hold", "job {} does not have the cores {}", (run_id, share.cores)))
        if placed_on(job, [*waits_for, *held], self._part.nodes) is None:
            return Insufficient(Why("hold", "{} processes x {} threads do not fit on these cores", (job.processes, job.threads)))
        return Hold(job.id, tuple(sorted(waits_for)), tuple(sorted(held)), self.policy)
