"""Gives a policy its draft: a view of one partition, an overlay of this pass's decisions, and verbs that are vetted at once.

A verb answers `Accepted`, `Insufficient` (not now) or `Infeasible` (never); only accepted verbs get into the plan, so no policy can
over-commit a node, start a job twice, or break a promise of this or an earlier pass. The interface on one page:

| to see (`view.py`) | |
|---|---|
| `sorted_by(order)`, `by_arrival()`, `queue(name)`, `queues()` | waiting jobs that nothing about themselves keeps from starting |
| `startable(jobs)`, `fits(job)`, `waiting_count` | which of them could start now |
| `job(id)`, `run(id)`, `running()`, `running_in(queue)`, `suspended()`, `is_pinned(id)` | jobs; whether one may move |
| `free_cores`, `idle_nodes`, `nodes`, `room(job, node, cores)` | free capacity |
| `promised(id)`, `holds()`, `held_for(id)` | promises |
| `note_of(kind, id)`, `notes(kind)` | the policy's memory |
| `used_by(user)`, `usage()`, `uncharged(run, now_us)`, `gangs()` | other records |
| `calls()`, `servers()`, `measurements(server)`, `learnt(...)`, `answered()` | calls that wait for a server; what is known of servers |
| `now_us`, `seed`, `partition` | of the pass |

| to decide, each with its why | |
|---|---|
| `start`, `reserve`, `unreserve` | place waiting jobs |
| `migrate`, `preempt`, `suspend`, `resume`, `route`, `reject` | move jobs |
| `send` | send calls to servers |
| `hold`, `shrink`, `release` | promise the cores of running jobs |
| `gang` | share nodes in time |
| `note`, `forget` | remember |
| `wake_at`, `leave_pending`, `leave_rest`, `fork` | ask for a pass, say why jobs wait, try something |
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise

from rmgr.sched import records
from rmgr.sched.capacity.gangs import OWNER, Carousel, memory_on, placed_in, stands_in
from rmgr.sched.capacity.nodes import NodePool
from rmgr.sched.job import Job, Placement, Reservation, Running, count_of, each_node, nodes_of, sent_back
from rmgr.sched.plan import (
    Accepted,
    GangSet,
    HoldCores,
    Infeasible,
    Insufficient,
    Migrate,
    Preempt,
    Reject,
    ReleaseHold,
    Reserve,
    Resume,
    Route,
    Send,
    Start,
    Suspend,
    Unreserve,
    Verdict,
    WakeAt,
    Why,
    of_tuple,
)
from rmgr.sched.state.partition import Pool
from rmgr.sched.tree.shape import MOST_LEAVES, Tree
from rmgr.sched.view import ABANDONED, IN_ITS_WAY, View

UNKNOWN_TIME = Why("time", "no time is known at which enough is free: nodes are closed")
TOO_LARGE = "needs {} x {} cores, {} are free"
SCATTERED = "needs {} x {} cores, {} are free, but where it may run there is room for {} such processes"
NOT_EMPTY = "needs {} x {} cores and its nodes for itself, {} nodes empty"
NO_SPANS = Why("nodes", "a placement is a tuple of spans: first node, last node, processes on each")
HAS_HOLD = Why("hold", "it has been promised the cores of running jobs")
#: Kind of a policy's note on a job that it has suspended.
STANDS_STILL = "stands still"
#: The user wants it so, or the job has just refused.
PINNED = Why("pinned", "it may not be sent back to the queue")
_INTEGERS = {int}
#: Upper bound of slot numbers and other counts.
_MOST = 1 << 62


class Trial:
    """A fork of the draft: verbs used inside are undone unless `keep` was called."""

    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept = False

    def keep(self) -> None:
        self.kept = True


class Draft(View):
    """One partition in one pass. The draft closes when the pass ends, so a policy that kept it cannot use it."""

    __slots__ = ()

    @contextmanager
    def fork(self) -> Iterator[Trial]:
        """Tries something: `with draft.fork() as trial:` undoes every verb used inside unless `trial.keep()` was called."""
        trial, mark = Trial(), self.mark()
        try:
            yield trial
        finally:
            if not trial.kept:
                self.back(mark)

    def wake_at(self, at_us: int, why: Why) -> Verdict:
        """Asks for a pass at this time. Infeasible unless it is later than now."""
        self._check_open()
        if not isinstance(at_us, int) or at_us <= self.now_us:
            return self._never(Why("time", "{} us is not after now", (at_us,)))
        self.decisions.append(WakeAt(at_us, why, self.partition))
        return Accepted(at_us)

    def leave_pending(self, job_id: int, why: Why) -> None:
        """Sets the reason why this job keeps waiting."""
        self.left[job_id] = why

    def leave_rest(self, why: Why) -> None:
        """Sets the reason why every waiting job without its own reason keeps waiting."""
        self.rest = why

    # -- waiting jobs -------------------------------------------------------------------------------------------------------

    def start(self, job_id: int, why: Why, placement: Placement | None = None) -> Verdict:
        """Starts a waiting job now, on `placement` or on the free nodes of lowest id. Cost: O(spans), however many nodes there are."""
        job = self._job(job_id)
        if not isinstance(job, Job):
            return job
        if self._part.limits is not None:
            over = self.over_limits(job)
            if over is not None:
                return Insufficient(over)
        hold = (self._part.holds if self._more is None else self._more.holds).get(job_id)
        if hold is not None:
            return self._start_on_held(job, hold, why, placement)
        pool, horizon, is_taken = self._pool, self._horizon, False
        if placement is not None:
            if not records.are_spans(placement, len(self._part.nodes)):
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
        """Promises the job the earliest start that breaks no other promise if every run uses its whole limit; replaces its old promise.

        keep: commit it as a record that later passes honour; otherwise it holds for this pass. Insufficient: no start time is known.
        Cost: the first promise of a pass O(runs + promises); later ones O(what is free for as long as the limit before their answer).
        """
        job = self._job(job_id)
        if not isinstance(job, Job):
            return job
        if self._part.limits is not None:
            over = self.over_limits(job)
            if over is not None:
                return Insufficient(over)
        hold = self._holds.get(job_id)
        if hold is not None:  # that is its promise
            return Accepted(self.now_us) if hold.is_complete else Insufficient(HAS_HOLD)
        old = None
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
                self._strike_record(job_id, UNKNOWN_TIME)
                return Insufficient(UNKNOWN_TIME)
            held = Reservation(job_id, *found, self.policy)
        self._promises[job_id] = held
        if not keep and old is not None:
            self._strike_record(job_id, why)
        if not keep or old != held or self._part.reservations.get(job_id) != held:
            self.decisions.append(Reserve(job_id, held.start_us, held.placement, keep, why, self.partition, self.policy))
        return Accepted(held.start_us)

    def unreserve(self, job_id: int, why: Why) -> Verdict:
        """Gives up the job's promise. Infeasible if it has none."""
        self._check_open()
        if job_id not in self._promises:
            return self._never(Why("state", "job {} has no reservation in partition {}", (job_id, self.partition)))
        job = self._waiting(job_id)
        assert job is not None, "a promise goes with its job"
        self._give_up(job, why)
        return Accepted(self.now_us)

    def _start_on_held(self, job: Job, hold: records.Hold, why: Why, placement: Placement | None) -> Verdict:
        """Starts a job with a hold on its held cores, the only place where it may start."""
        if not hold.is_complete:
            runs = ", ".join(str(share.run_id) for share in hold.waits_for)
            return Insufficient(Why("hold", "has been promised the cores of running jobs {}", (runs,)))
        where = records.placed_on(job, hold.held, self._part.nodes)
        if where is None or placement not in (None, where):
            return Insufficient(Why("hold", "does not fit on what is held for it, or was to start elsewhere"))
        if self._window_for(self.now_us + job.planned_us, where) is not None:
            return Insufficient(self._not_admitted(job))
        more, pool = self._changes(), self._pool
        mark = len(more.undo)
        self._swap_hold(job, None)
        if not pool.holds(job, where):  # memory that other jobs still use
            more.back(mark)
            return Insufficient(Why("hold", "the cores held for it are free, something else that it needs there is not"))
        pool.take(job, where)
        self._started[job.id] = Running(job, self.now_us, self.now_us + job.planned_us, where)
        self._look_again()
        self._leave_gangs(job.id)
        self.decisions.append(Start(job.id, where, why, self.partition))
        return Accepted(self.now_us)

    def _within_promises(self, job: Job, placement: Placement | None) -> Placement | None:
        """Returns where the job can start now without breaking a promise to another job, and uses up its own promise; None if nowhere."""
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

    # -- jobs that run or stand still ---------------------------------------------------------------------------------------

    def migrate(self, job_id: int, why: Why) -> Verdict:
        """Asks a running or suspended job to checkpoint and puts it back in the queue now; its capacity is free in this pass.

        Infeasible for a pinned job (`is_pinned`): its user wants it to run once and to its end, or it has just refused.
        Insufficient for a job that this very pass has started, so a job moves at most once a pass. Cost: O(its placement).
        """
        return self._send_back(Migrate(job_id, why, self.partition))

    def preempt(self, job_id: int, why: Why) -> Verdict:
        """As `migrate`, but the job starts again from scratch."""
        return self._send_back(Preempt(job_id, why, self.partition))

    def suspend(self, job_id: int, why: Why) -> Verdict:
        """Stops a running job in place: its cores are free in this pass, its memory stays taken. A note says which policy did it.

        Insufficient if a promise counts on its memory; Infeasible in a gang, which suspends its jobs itself.
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
        more.put(more.suspended, job_id, records.Suspended(run, self.now_us))
        broken = self._breaks_promises(mark)
        if broken is not None:  # the promise counts on its memory
            return broken
        self._write(STANDS_STILL, run.job.id, (self.now_us,))
        self.decisions.append(Suspend(run.job.id, why, self.partition))
        return Accepted(self.now_us)

    def resume(self, job_id: int, why: Why) -> Verdict:
        """Lets a suspended job go on in place with the rest of its limit. Insufficient while its cores are not free."""
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
        over = self.over_limits(job)
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
        """Moves a waiting job to the queue `to`. It keeps its place in every order except the queue's own."""
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
        """Rejects a waiting job that can never run here, even one that no order shows: the driver ends it."""
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
        if job_id not in more.gone:  # it ran before this pass or no order shows it: hide it from every reader
            more.put(more.rejected, job_id, None)
        self._promises.pop(job_id, None)
        self._look_again()
        self.decisions.append(Reject(job_id, why, self.partition))
        return Accepted(self.now_us)

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
        """Returns the job's run, which this pass must not have touched."""
        self._check_open()
        more = self._more
        if job_id in self._started or (more is not None and (job_id in more.begun or job_id in more.left)):
            return Insufficient(Why("state", "job {} was started or moved in this very pass", (job_id,)))
        run = self._part.running.get(job_id)
        return self._never(Why("state", "job {} does not run in partition {}", (job_id, self.partition))) if run is None else run

    def _vacate(self, run: Running) -> None:
        """Takes the run off its nodes and turns the share that a hold waits for into a held one. A gang keeps its nodes for this pass."""
        more, pool, job_id = self._changes(), self._pool, run.job.id
        more.put(more.left, job_id, run)
        self._tally = None
        if self._part.gangs.of and job_id in self._part.gangs.of:
            return  # the record keeps the job until it is set again
        pool.give(run.job, run.placement)
        more.did(partial(pool.take, run.job, run.placement))
        holder = more.flagged.get(job_id)
        if holder is not None:
            hold, job = more.holds[holder], self._waiting(holder)
            assert job is not None
            cores = records.share_of(hold, job_id).cores
            pool.take_share(job, cores)
            more.did(partial(pool.give_share, job, cores))
            more.drop(more.flagged, job_id)
            more.put(more.holds, holder, records.after_leaving(hold, job_id))

    # -- cores of running jobs ----------------------------------------------------------------------------------------------

    def hold(self, job_id: int, shares: Sequence[records.Share], why: Why) -> Verdict:
        """Promises the waiting job these cores as soon as their runs leave; it starts nowhere else. Replaces the job's hold.

        For a run that has left since an earlier `hold`, name what is held of it, all or fewer cores. Cores not named are free at once, or
        when their run ends. Until the job has ended, no promise counts on cores that it holds.
        Insufficient: a run is promised to another job, the job does not fit on the shares, or a promise would be broken.
        Infeasible: an unknown job or run, or more cores than the run has. Cost: O(nodes of the shares), with promises a new timeline.
        """
        job = self._job(job_id)
        if not isinstance(job, Job):
            return job
        if job_id in self._promises:
            return Insufficient(Why("hold", "job {} has been promised a start", (job_id,)))
        more = self._changes()
        old = more.holds.get(job_id)
        new = self._vetted(job, shares, old)
        if not isinstance(new, records.Hold):
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

    def shrink(self, job_id: int, shares: Sequence[records.Share], why: Why) -> Verdict:
        """Calls `hold` again for a job that has a hold; Infeasible if it has none."""
        if job_id not in self._holds:
            return self._never(Why("state", "job {} has no hold in partition {}", (job_id, self.partition)))
        return self.hold(job_id, shares, why)

    def release(self, job_id: int, why: Why) -> Verdict:
        """Gives up the job's hold: held cores are free in this pass, and its runs are promised to no job. Infeasible if it has none."""
        self._check_open()
        job = self._waiting(job_id)
        if job is None or job_id not in self._holds:
            return self._never(Why("state", "job {} has no hold in partition {}", (job_id, self.partition)))
        self._swap_hold(job, None)
        self._look_again()
        self.decisions.append(ReleaseHold(job_id, why, self.partition))
        return Accepted(self.now_us)

    def _vetted(self, job: Job, shares: Sequence[records.Share], old: records.Hold | None) -> records.Hold | Insufficient | Infeasible:
        more = self._changes()
        had = {share.run_id: share for share in old.held} if old is not None else {}
        waits_for: list[records.Share] = []
        held: list[records.Share] = []
        if len({share.run_id for share in shares}) < len(shares):
            return self._never(Why("hold", "a run is named twice"))
        for share in shares:
            run_id = share.run_id
            if type(run_id) is not int or not records.are_spans(share.cores, len(self._part.nodes)):
                return self._never(Why("hold", "the share of run {} is no tuple of spans", (run_id,)))
            if run_id in had:
                whole = records.by_node([had[run_id].cores])
                held.append(share)
            else:
                run = self.run(run_id)
                if run is None or self._gang_of(run_id) is not None:
                    return self._never(Why("state", "job {} does not run by itself in partition {}", (run_id, self.partition)))
                holder = more.flagged.get(run_id, job.id)
                if holder != job.id:
                    return Insufficient(Why("hold", "the cores of job {} are promised to job {}", (run_id, holder)))
                whole = records.cores_of(run)
                waits_for.append(share)
            if not records.is_within(share.cores, whole):
                return self._never(Why("hold", "job {} does not have the cores {}", (run_id, share.cores)))
        if records.placed_on(job, [*waits_for, *held], self._part.nodes) is None:
            return Insufficient(Why("hold", "{} processes x {} threads do not fit on these cores", (job.processes, job.threads)))
        return records.Hold(job.id, tuple(sorted(waits_for)), tuple(sorted(held)), self.policy)

    # -- gangs: time-sharing by the slots of a queue tree --------------------------------------------------------------------

    def carousel(self, gang: records.Gang, closed: frozenset[int] = frozenset()) -> Carousel:
        """Returns the tree, front and queues of a record; change only a `copy()`."""
        return self._part.gangs.carousel(gang, closed)

    def gang(self, gang: records.Gang, why: Why, carousel: Carousel | None = None) -> Verdict:
        """Sets the record, replacing the gang of that name. Its waiting jobs start on the leaves of their tree nodes, lowest first.

        Args: gang: `policy` and `partition` are set here. carousel: the object from which the record was made, which spares building it
        again; it must not change any more.
        Nodes on which its jobs run belong to the gang alone. Every running job of the gang must be in the record, where it runs.
        Insufficient: nodes not free or closed, a promise or a window. Infeasible: a job that does not fit into its tree node, too little
        memory or other resources for all jobs of a node together, jobs that run elsewhere or are unknown, a malformed record.
        Cost: O(jobs of the gang + nodes of those that start).
        """
        self._check_open()
        wrong = _why_malformed(gang)
        if wrong is not None:
            return self._never(Why("gang", wrong))
        gang = gang._replace(policy=self.policy, partition=self.partition)
        stands = self._stands(gang, None if carousel is None else carousel.tree)
        if not isinstance(stands, dict):
            return stands
        begun = [run for run in stands.values() if not self.has_place(run.job.id)]
        lacking = self._lacks(stands, begun, gang.memory_share)
        if lacking is not None:
            return self._never(lacking)
        more, pool = self._changes(), self._pool
        mark = len(more.undo)
        owned = {node for run in self._members(gang.name) for node in nodes_of(run.placement)} if begun else set()
        for node in sorted({node for run in begun for node in nodes_of(run.placement)}):
            if self._has_window(node) or (node not in owned and not pool.holds(OWNER, ((node, node, 1),))):
                more.back(mark)
                return Insufficient(Why("gang", "node {} is not free as a whole, closed, or has a window of maintenance", (node,)))
            if node not in owned:
                pool.take(OWNER, ((node, node, 1),))
                more.did(partial(pool.give, OWNER, ((node, node, 1),)))
        more.put(more.gangs, gang.name, gang)
        for run in begun:
            more.put(more.begun, run.job.id, run)
            more.put(more.silent, run.job.id, None)
            if run.job.id in more.extra:
                more.drop(more.extra, run.job.id)
            elif run.job.id not in more.gone:
                more.put(more.gone, run.job.id, None)
        broken = self._breaks_promises(mark)
        if broken is not None:
            return broken
        if carousel is not None:
            self._part.gangs.remember(gang, frozenset(carousel.tree.closed), carousel)
        for run in begun:
            self._leave_gangs(run.job.id, gang.name)
        self.decisions.append(GangSet(gang, why, self.partition))
        self.decisions += [Start(run.job.id, run.placement, why, self.partition) for run in begun]
        return Accepted(self.now_us)

    def shareable(self, name: str) -> frozenset[int]:
        """Returns open nodes without a window that are the named gang's or free as a whole, where its jobs could start. Cost: O(nodes)."""
        owned = {node for run in self._members(name) for node in nodes_of(run.placement)}
        holds = self._pool.holds
        return frozenset(
            node.id
            for node in self._part.nodes.values()
            if not node.closed and (node.id in owned or holds(OWNER, ((node.id, node.id, 1),))) and not self._has_window(node.id)
        )

    def _members(self, name: str) -> Iterator[Running]:
        """Yields the runs in the gang, and those that were asked to leave it and have not left yet."""
        yield from (run for run in self.running() if self._gang_of(run.job.id) == name)
        yield from (run for job_id, run in self._part.stopping.items() if self._part.gangs.of.get(job_id) == name)

    def _has_window(self, node: int) -> bool:
        return any(node in window.nodes and window.end_us > self.now_us for window in self._part.windows.values())

    def _stands(self, gang: records.Gang, known: Tree | None) -> dict[int, Running] | Insufficient | Infeasible:
        """Returns where each job of the gang runs or will run, in the order of its queues."""
        nodes, homes = self._part.nodes, gang.homes
        tree: Tree | None = None
        before = next((old for old in self.gangs() if old.name == gang.name), None)
        grown = before is not None and before.leaves != gang.leaves
        same = before.homes if before is not None and (before.leaves, before.width) == (gang.leaves, gang.width) else {}
        flagged = self._records.flagged
        stands: dict[int, Running] = {}
        comes: list[Job] = []
        for job_id, node in homes.items():
            run = self.run(job_id) or (self._part.stopping.get(job_id) if self._part.gangs.of.get(job_id) == gang.name else None)
            if run is not None:
                if self._gang_of(job_id) != gang.name or job_id in self._started or job_id in flagged:
                    return self._never(Why("gang", "job {} runs outside of the gang, or is promised", (job_id,)))
                if same.get(job_id) == node:
                    stands[job_id] = run
                    continue
                job = run.job
            else:
                found = self._job(job_id)
                if not isinstance(found, Job):
                    return found
                job = found
                over = self.over_limits(job, comes)
                if over is not None:
                    return Insufficient(over)
                comes.append(job)
                if job_id in self._promises or job_id in self._holds:
                    return self._never(Why("gang", "job {} has been promised a start", (job_id,)))
            if tree is None:
                tree = known or Tree(gang.width, count_of(gang.leaves))
            if node >= tree.nodes:
                return self._never(Why("gang", "job {} stands in tree node {}, of {}", (job_id, node, tree.nodes)))
            if run is not None and grown and stands_in(run, gang.leaves, tree.span(node)):
                stands[job_id] = run  # where it would be placed now does not matter: nodes have closed and opened since
                continue
            placement = placed_in(job, gang.leaves, tree.span(node), nodes)
            if run is None and placement is not None:
                stands[job_id] = Running(job, self.now_us, self.now_us + job.planned_us, placement)
            elif run is not None and placement == run.placement:
                stands[job_id] = run
            else:
                return self._never(Why("gang", "job {} does not fit into tree node {}, or runs elsewhere", (job_id, node)))
        lost = [run.job.id for run in self._members(gang.name) if run.job.id not in stands]
        return self._never(Why("gang", "job {} runs in it and is in no queue", (lost[0],))) if lost else stands

    def _lacks(self, stands: dict[int, Running], begun: list[Running], share: int) -> Why | None:
        """Returns a reason if memory or other resources of a node do not suffice for all of its jobs together, whichever has the slot."""
        if not any(share or run.job.memory_bytes or run.job.resources for run in begun):
            return None
        nodes = self._part.nodes
        memory: dict[int, int] = {}
        others: dict[tuple[int, str], int] = {}
        for run in stands.values():
            for node_id, count in each_node(run.placement):
                node = nodes.get(node_id)
                if node is None:
                    continue
                memory[node_id] = memory.get(node_id, 0) + memory_on(run.job, node, count, share)
                if node.memory_bytes and memory[node_id] > node.memory_bytes:
                    return Why("gang", "the memory of node {} does not do for all jobs on it", (node_id,))
                for name, number in run.job.resources:
                    others[node_id, name] = others.get((node_id, name), 0) + count * number
                    if others[node_id, name] > dict(node.resources).get(name, 0):
                        return Why("gang", "the {} of node {} do not do for all jobs on it", (name, node_id))
        return None

    # -- calls --------------------------------------------------------------------------------------------------------------

    def send(self, call_id: int, to: str, why: Why, *, predicted_us: int = 0) -> Verdict:
        """Sends a call to the server `to`. predicted_us: how long from now the policy expects the answer to take, 0 = no prediction.

        Infeasible: an unknown call, or one that has a server; a server that is unknown or closed, does not offer the function, or is
        excluded by the call.
        """
        self._check_open()
        call = self._part.calls.get(call_id) if type(call_id) is int else None
        more = self._changes()
        if call is None or call_id in more.calls_gone:
            return self._never(Why("state", "call {} does not wait in partition {}", (call_id, self.partition)))
        server = self._part.servers.get(to) if type(to) is str else None
        if server is None:
            return self._never(Why("server", "no server {} in partition {}", (to, self.partition)))
        if not server.takes(call):
            return self._never(Why("server", "server {} cannot take call {} of {}", (to, call_id, call.function or "any function")))
        if type(predicted_us) is not int or predicted_us < 0:
            return self._never(Why("prediction", "{} us is no time until an answer", (predicted_us,)))
        more.put(more.calls_gone, call_id, None)
        self.decisions.append(Send(call_id, to, why, self.partition, predicted_us))
        return Accepted(self.now_us)

    # -- notes --------------------------------------------------------------------------------------------------------------

    def note(self, kind: str, job_id: int, value: tuple[int, ...], /) -> Verdict:
        """Notes a value on a job or call until it leaves the cluster; id 0 means the partition. Replaces the note of that kind.

        Infeasible: an unknown job, or anything but a name and a tuple of integers, since another leader must be able to read the record.
        """
        self._check_open()
        if type(kind) is not str or type(job_id) is not int or type(value) is not tuple or not {*map(type, value)} <= _INTEGERS:
            return self._never(Why("note", "{} of job {}: a note is a tuple of integers", (kind, job_id)))
        if job_id and not self._part.knows(job_id):
            return self._never(Why("state", "no job {} in partition {}", (job_id, self.partition)))
        self._write(kind, job_id, value)
        return Accepted(self.now_us)

    def forget(self, kind: str, job_id: int, /) -> Verdict:
        """Deletes the note, if there is one."""
        self._check_open()
        if type(job_id) is int and self.note_of(kind, job_id) is not None:
            self._write(kind, job_id, None)
        return Accepted(self.now_us)

    def _noted(self, kind: str, job_id: int) -> list[str]:
        """Returns the policies that have a note of this kind on the job, sorted."""
        part, more = self._part, self._more
        found = {policy for policy, kinds in part.notes.items() if job_id in kinds.get(kind, ())}
        if more is not None:
            written = {policy: notes[job_id] for (policy, known), notes in more.notes.items() if known == kind and job_id in notes}
            found = {policy for policy in (*found, *written) if written.get(policy, ()) is not None}
        return sorted(found)

    def _strike(self, kind: str, job_id: int) -> None:
        """Deletes all policies' notes of this kind on the job."""
        for policy in self._noted(kind, job_id):
            self._write(kind, job_id, None, policy)

    def _write(self, kind: str, job_id: int, value: tuple[int, ...] | None, policy: str = "") -> None:
        more = self._changes()
        key = (policy or self.policy, kind)
        notes = more.notes.get(key)
        if notes is None:
            notes = more.notes[key] = {}
        if self._marked:  # changes may be undone
            more.did(partial(notes.__setitem__, job_id, notes[job_id]) if job_id in notes else partial(notes.__delitem__, job_id))
        notes[job_id] = value

    # -- the engine's -------------------------------------------------------------------------------------------------------

    def inherit(self, keepers: Container[str]) -> None:
        """Before this pass's policies plan, resumes jobs suspended by policies that have left the pipeline.

        A job resumes as soon as its cores are free. Until then no other job gets the free ones among them, and promises that count on them
        are taken back (their policies promise again in this pass, around the job). So it waits at most for the runs and holds that have its
        cores. (`View` deals with notes, holds, promises and gangs of these policies.)
        Cost: O(suspended jobs), plus O(its placement) for each of these jobs.
        """
        for stopped in sorted(self._part.suspended.values(), key=lambda one: (one.since_us, one.run.job.id)):
            job_id = stopped.run.job.id
            if not any(policy in keepers for policy in self._noted(STANDS_STILL, job_id)):
                self._go_on(stopped.run)

    def _go_on(self, run: Running) -> None:
        job_id = run.job.id
        if isinstance(self.resume(job_id, ABANDONED), Accepted):
            return
        if self._pool.can_resume(run.job, run.placement):
            self._take_back_promises()
            self.resume(job_id, ABANDONED)  # a limit or a window of maintenance may prevent it, but only for a while
            return
        self._keep_cores(run)

    def _keep_cores(self, run: Running) -> None:
        """Keeps the free ones among the run's cores from all other jobs in this pass."""
        more, pool = self._changes(), self._pool
        for node, cores in records.cores_of(run).items():
            wanted = self._part.nodes[node].cores if run.job.exclusive else cores
            where: Placement = ((node, node, 1),)
            free = next((count for count in range(wanted, 0, -1) if pool.holds(_dummy_job(count), where)), 0)
            if free:
                pool.take(_dummy_job(free), where)
                more.did(partial(pool.give, _dummy_job(free), where))
        self._look_again()
        if self._timeline is not None and self._timeline.overdrawn:
            self._take_back_promises()

    def _take_back_promises(self) -> None:
        for job_id in sorted(self._promises):
            self.decisions.append(Unreserve(job_id, IN_ITS_WAY, self.partition))
        self._promises.clear()
        self._look_again()


def lacking(job: Job, pool: Pool) -> Why:
    """Returns why a job does not fit: the first resource without which it would, else the cores, or where they are free."""
    if job.resources and isinstance(pool, NodePool):
        for name, count in job.resources:
            if pool.fits(replace(job, resources=tuple(one for one in job.resources if one[0] != name))):
                return Why("resources", "needs {} x {} {}, {} are free", (job.processes, count, name, pool.free_of(name)))
    if job.exclusive:
        return Why("resources", NOT_EMPTY, (job.processes, job.threads, pool.idle_nodes))
    if pool.free >= job.cpus and isinstance(pool, NodePool):
        return Why("resources", SCATTERED, (job.processes, job.threads, pool.free, sum(pool.rooms(job))))
    return Why("resources", TOO_LARGE, (job.processes, job.threads, pool.free))


def _dummy_job(count: int) -> Job:
    """Returns a dummy job of so many cores on one node."""
    return Job(id=0, submit_us=0, threads=count)


def _why_malformed(gang: object) -> str | None:
    """Returns why the value is not a gang record that another leader could read, or None if it is one."""
    if type(gang) is not records.Gang:
        return "a gang is a record of type Gang"
    if type(gang.name) is not str or not gang.name:
        return "a gang has a name"
    if (
        not _is_count(gang.slot_us, 1)
        or not _is_count(gang.origin_us, -_MOST)
        or not _is_count(gang.slot)
        or type(gang.next_round) is not bool
    ):
        return "slots are longer than 0 us, and counted from 0"
    if not _is_count(gang.memory_share):
        return "a job's share of memory is a number of jobs"
    if not _is_count(gang.width, 2) or gang.width > 64 or not records.are_spans(gang.leaves, 1 << 20) or not gang.leaves:
        return "a tree has a width of 2 to 64, and leaves that are spans of nodes"
    if any(first > last or cores < 1 or first < 0 for first, last, cores in gang.leaves) or count_of(gang.leaves) > MOST_LEAVES:
        return "leaves are cores of nodes"
    in_order = sorted(gang.leaves)
    if any(later[0] <= earlier[1] for earlier, later in pairwise(in_order)):
        return "no node stands twice among the leaves"
    if not all(map(_are_tuples, (gang.queues, gang.front, gang.late))):
        return "queues, front and late are tuples of tuples"
    if not all(len(item) == 2 and _is_count(item[0]) and _are_tuples(item[1]) for item in gang.queues):
        return "a queue is a tree node and its entries"
    if not all(len(entry) == 2 and _is_count(entry[0]) and _is_count(entry[1], 1) for _, entries in gang.queues for entry in entries):
        return "an entry is a job and a number"
    if not all(len(item) == 3 and _is_count(item[0]) and _is_count(item[1]) and type(item[2]) is bool for item in gang.front):
        return "the front names nodes, entries to be served, and whether a round is over"
    if not all(len(item) == 3 and all(map(_is_count, item)) and item[2] for item in gang.late):
        return "late jobs have a tree node and a weight"
    return _named_twice(gang)


def _named_twice(gang: records.Gang) -> str | None:
    seen: dict[int, int] = {}
    in_queues = ((job_id, node) for node, entries in gang.queues for job_id, _ in entries)
    for job_id, node in chain(in_queues, ((job_id, node) for job_id, node, _ in gang.late)):
        if seen.setdefault(job_id, node) != node:
            return "a job stands in two queues"
    if len({node for node, _ in gang.queues}) < len(gang.queues) or any(job_id < 1 for job_id in seen):
        return "each queue stands there once, with ids of jobs"
    return None


def _is_count(value: object, least: int = 0) -> bool:
    return type(value) is int and least <= value < _MOST


def _are_tuples(value: object) -> bool:
    return type(value) is tuple and all(type(item) is tuple for item in value)
