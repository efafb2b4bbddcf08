"""Shows a policy its partition after what this pass did: waiting jobs in any order, what runs, what is free, every record."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from types import MappingProxyType

from rmgr.sched.capacity.holds import room
from rmgr.sched.draft.overlay import ELSEWHERE, DraftChanges, Overlay
from rmgr.sched.job import Job, Node, Running
from rmgr.sched.order import Key
from rmgr.sched.plan import GangSet, Infeasible, Insufficient, Why
from rmgr.sched.records import Answered, Call, Gang, Hold, Server, Suspended, Usage, Used
from rmgr.sched.state.partition import arrival


class View(Overlay):
    """Reading changes nothing. Jobs of which a dependency, a begin time or a limit is not met are in no order."""

    __slots__ = ()

    # -- waiting jobs -------------------------------------------------------------------------------------------------------

    def sorted_by(self, order: Key) -> Iterator[Job]:
        """The waiting jobs that this partition can run and this pass has not started, in this order."""
        return self._shown(self._part.sorted_by(order), order.key)

    def by_arrival(self) -> Iterator[Job]:
        """The same jobs in order of (submit time, id): the order that every partition keeps anyway."""
        part = self._part
        if self._more is None and part.limits is None and not self._started:
            return iter(part.waiting)
        return self._shown(part.waiting, arrival)

    def queue(self, name: str) -> Iterator[Job]:
        """Those of them that are in this queue, in order of arrival."""
        return self._shown(self._part.queued().get(name, ()), arrival, name)

    def queues(self) -> tuple[str, ...]:
        """Names of the queues in which such jobs wait or waited before this pass, sorted."""
        names = set(self._part.queued())
        if self._more is not None:
            names.update(job.queue for job in self._more.extra.values())
        return tuple(sorted(names))

    def startable(self, jobs: Iterator[Job]) -> Iterator[Job]:
        """Those of `jobs` that could start at the moment they are reached. What the caller starts meanwhile counts."""
        if self._part.windows or self._holds:
            return self._startable(jobs)
        found = self._pool.startable(jobs, self._horizon)
        return found if self._part.limits is None else self._judged(found, jobs)

    def fits(self, job: Job) -> bool:
        """There is room for the job now, promises aside; for one with a hold: on what is held for it."""
        hold = self._holds.get(job.id)
        return self._pool.fits(job) if hold is None else hold.is_complete

    @property
    def waiting_count(self) -> int:
        count = len(self._part.waiting) - len(self._started)
        return count if self._more is None else count + len(self._more.extra) - len(self._more.gone)

    # -- any job ------------------------------------------------------------------------------------------------------------

    def job(self, job_id: int) -> Job | None:
        """It waits, runs or stands here; None: unknown, or rejected in this pass."""
        run = self.run(job_id)
        if run is not None:
            return run.job
        job = self._waiting(job_id)
        if job is None:
            stopped = (self._part.suspended if self._more is None else self._more.suspended).get(job_id)
            return None if stopped is None else stopped.run.job
        return job

    def promised(self, job_id: int) -> int | None:
        """The start (us) that a reservation of this pass or of an earlier one promises the job."""
        held = self._promises.get(job_id)
        return None if held is None else held.start_us

    # -- what runs ----------------------------------------------------------------------------------------------------------

    def running(self) -> Iterator[Running]:
        """What runs, by job id: what this pass started is there, what it sent away is not."""
        runs = dict(self._part.running)
        if self._more is not None:
            for job_id in self._more.left:
                del runs[job_id]
            runs.update(self._more.begun)
        runs.update(self._started)
        return iter([runs[job_id] for job_id in sorted(runs)])

    def running_in(self, queue: str) -> Iterator[Running]:
        """What runs and came from this queue."""
        return (run for run in self.running() if run.job.queue == queue)

    def run(self, job_id: int) -> Running | None:
        """The run of this job, if it runs."""
        run = self._started.get(job_id)
        if run is None and self._more is not None:
            run = self._more.begun.get(job_id)
            if run is None and job_id in self._more.left:
                return None
        return run or self._part.running.get(job_id)

    def is_pinned(self, job_id: int) -> bool:
        """It runs, and may not be sent back to the queue."""
        return job_id in self._part.pinned

    def suspended(self) -> Iterator[Suspended]:
        """What stands still, by job id."""
        table = self._part.suspended if self._more is None else self._more.suspended
        return iter([table[job_id] for job_id in sorted(table)])

    # -- what is free -------------------------------------------------------------------------------------------------------

    @property
    def free_cores(self) -> int:
        """Cores on which something could start now, promises aside. O(1) for identical one-core nodes, else O(nodes)."""
        return self._pool.free

    @property
    def idle_nodes(self) -> int:
        """Open nodes of which every core is free. O(1) for identical one-core nodes, else O(nodes)."""
        return self._pool.idle_nodes

    @property
    def nodes(self) -> Mapping[int, Node]:
        """By id, ascending."""
        return MappingProxyType(self._part.nodes)

    def room(self, job: Job, node_id: int, cores: int) -> int:
        """Processes of the job that fit into so many cores of this node, were they free; 0 where it cannot run."""
        return room(job, self._part.nodes.get(node_id), cores)

    # -- records ------------------------------------------------------------------------------------------------------------

    def holds(self) -> Iterator[Hold]:
        """By job id."""
        return iter(sorted(self._holds.values()))

    def held_for(self, job_id: int) -> Hold | None:
        """The hold of this job."""
        return self._holds.get(job_id)

    def notes(self, kind: str) -> Mapping[int, tuple[int, ...]]:
        """Every note of this kind by the policy whose turn it is. O(1) before it has written one, then O(notes)."""
        before = self._part.notes.get(self.policy, {}).get(kind, {})
        written = None if self._more is None else self._more.notes.get((self.policy, kind))
        if written is None:
            return MappingProxyType(before)
        return {job_id: value for job_id, value in {**before, **written}.items() if value is not None}

    def note_of(self, kind: str, job_id: int, /) -> tuple[int, ...] | None:
        """Its note of this job, or with id 0 of the partition."""
        if self._more is not None:
            written = self._more.notes.get((self.policy, kind))
            if written is not None and job_id in written:
                return written[job_id]
        return self._part.notes.get(self.policy, {}).get(kind, {}).get(job_id)

    def used_by(self, user: str) -> Used:
        """What this user has running. O(1) after the first time."""
        return self._used("user", user)

    def over_limits(self, job: Job, beside: Sequence[Job] = ()) -> Why | None:
        """The limit that keeps the job from starting now, beside others that are to start with it; None: none does. O(`beside`)."""
        return self._over_limits(job, beside)

    def usage(self) -> Iterator[Usage]:
        """What has been used in the whole cluster and is over, by user and account; what runs is in `running`."""
        return iter(sorted(self._part.usage.values()))

    def uncharged(self, run: Running, now_us: int) -> tuple[int, int | None]:
        """What `usage()` lacks of a run: since when, and for how long of that it had its cores (None: always)."""
        return self._part.uncharged(run, now_us)

    def gangs(self) -> Iterator[Gang]:
        """By name."""
        return iter(sorted((self._part.gangs.by_name if self._more is None else self._more.gangs).values()))

    @property
    def gang_now_us(self) -> int | None:
        """Now, by the clock that slots are counted by, and soon enough for nodes to learn of it; None: nobody can read that clock."""
        shift_us = self._part.gang_shift_us
        return None if shift_us is None else self.now_us + shift_us

    @property
    def no_gang(self) -> str:
        """Why that clock cannot be read."""
        return self._part.gang_why

    @property
    def most_members(self) -> int:
        """Jobs that one gang may have here, 0 = any number."""
        return self._part.gang_most

    def has_place(self, job_id: int) -> bool:
        """It runs; or it is a member of a gang that was asked to leave, and has not yet."""
        return self.run(job_id) is not None or (job_id in self._part.stopping and job_id in self._part.gangs)

    def _leave_gangs(self, job_id: int, joins: str = "") -> None:
        """Strikes a job that begins out of the records of other gangs, in which it stood before it was sent back.

        A record that still named it would make it a member again wherever records are all that is known: in the next leader.
        joins: the gang in which it begins. Cost: O(jobs of gangs), nothing where there are none.
        """
        for gang in list((self._part.gangs.by_name if self._more is None else self._more.gangs).values()):
            if gang.name != joins and job_id in gang.homes:
                more = self._changes()
                rest = self._rest_of(gang, {one for one in gang.homes if one != job_id and self.has_place(one)})
                more.put(more.gangs, gang.name, rest)
                self.decisions.append(GangSet(rest, ELSEWHERE, self.partition))

    def calls(self) -> Iterator[Call]:
        """Calls that want a server, the earliest first."""
        gone = () if self._more is None else self._more.calls_gone
        calls = (call for call in self._part.calls.values() if call.id not in gone)
        return iter(sorted(calls, key=lambda call: (call.submit_us, call.id)))

    def servers(self) -> Iterator[Server]:
        """By name."""
        servers = self._part.servers
        return iter([servers[name] for name in sorted(servers)])

    def measurements(self, server: str) -> Sequence[Server]:
        """The last measurements of this server, the oldest first; empty for an unknown one."""
        return self._part.records_of_calls.measured.get(server, ())

    def answered(self) -> Sequence[Answered]:
        """The last answered calls, the oldest first."""
        return self._part.records_of_calls.answered

    def learnt(self, server: str, function: str, operations: int) -> float | None:
        """Operations/s that answered calls of this function and size showed on the server; None when there were none."""
        return self._part.records_of_calls.speed(server, function, operations)

    # -- inside -------------------------------------------------------------------------------------------------------------

    def _shown(self, jobs: Iterable[Job], key: Callable[[Job], tuple[int, ...]], queue: str | None = None) -> Iterator[Job]:
        more = self._more
        if more is not None and (more.extra or more.gone):
            jobs = self._with_changes(more, jobs, key, queue)
        if self._part.limits is not None:
            jobs = self._within_limits(jobs)
        started = self._started
        return (job for job in jobs if job.id not in started) if started else iter(jobs)

    @staticmethod
    def _with_changes(more: DraftChanges, jobs: Iterable[Job], key: Callable[[Job], tuple[int, ...]], queue: str | None) -> Iterator[Job]:
        stayed = (job for job in jobs if job.id not in more.gone)
        extra = sorted((job for job in more.extra.values() if queue is None or job.queue == queue), key=key)
        return merge(stayed, extra, key=key) if extra else stayed

    def _within_limits(self, jobs: Iterable[Job]) -> Iterator[Job]:
        for job in jobs:
            why = self._over_limits(job)
            if why is None:
                yield job
            else:
                self.left[job.id] = why

    @staticmethod
    def _judged(found: Iterator[Job], jobs: Iterator[Job]) -> Iterator[Job]:
        """`found`; then the rest of `jobs` is gone through, which says of those over a limit that this is why they wait."""
        yield from found
        deque(jobs, maxlen=0)

    def _startable(self, jobs: Iterator[Job]) -> Iterator[Job]:
        """With windows, which are named, and holds, whose jobs need no room."""
        for job in jobs:
            hold = self._holds.get(job.id)
            if hold is not None:
                if hold.is_complete:
                    yield job
            elif self._pool.fits(job):
                if self._horizon is None or self._horizon.admits(job):
                    yield job
                else:
                    self.left[job.id] = self._not_admitted(job)

    def _not_admitted(self, job: Job) -> Why:
        window = self._window_for(self.now_us + job.planned_us)
        if window is None:
            return Why("promise", "would take what is promised to another job")
        name = window.name or str(window.id)
        return Why("maintenance", "its time limit reaches into {} at {} us on nodes that it needs", (name, window.start_us))

    def _job(self, job_id: int) -> Job | Insufficient | Infeasible:
        """The job, if it waits and could start as far as it itself is concerned."""
        if not self._open:
            self._check_open()
        part, more = self._part, self._more
        job = part.jobs.get(job_id) if more is None else self._waiting(job_id)
        if job is None or job_id in self._started:
            return self._never(Why("state", "job {} does not wait in partition {}", (job_id, self.partition)))
        if part.aside and job_id in part.aside and (more is None or job_id not in more.extra):
            return self._never(part.aside[job_id]) if job_id in part.infeasible else Insufficient(part.aside[job_id])
        return job

    def _used(self, kind: str, name: str) -> Used:
        tally = self._tally
        if tally is None:
            tally, self._counted = {}, 0
            self._tally = tally
        if self._counted < len(self._started):
            for run in islice(self._started.values(), self._counted, None):
                _count(tally, run.job, 1)
            self._counted = len(self._started)
        used = self._part.used(kind, name)
        cpus, jobs = tally.get((kind, name), (0, 0))
        if self._more is not None:
            for table, sign in ((self._more.left, -1), (self._more.begun, 1)):
                for run in table.values():
                    if (run.job.user if kind == "user" else run.job.account) == name:
                        cpus, jobs = cpus + sign * run.job.wanted_cpus, jobs + sign
        return Used(used.cpus + cpus, used.jobs + jobs)

    def _over_limits(self, job: Job, beside: Sequence[Job] = ()) -> Why | None:
        """The limit that keeps the job from starting now, beside others that start with it."""
        limits = self._part.limits
        if limits is None:
            return None
        if limits.max_cpus_per_user or limits.max_jobs_per_user:
            used = self._used("user", job.user)
            if beside:
                used = _with(used, [other for other in beside if other.user == job.user])
            if limits.max_cpus_per_user and used.cpus + job.wanted_cpus > limits.max_cpus_per_user:
                return Why("limits", "user {} may have {} CPUs at once and has {}", (job.user, limits.max_cpus_per_user, used.cpus))
            if limits.max_jobs_per_user and used.jobs >= limits.max_jobs_per_user:
                return Why("limits", "user {} may run {} jobs at once and does", (job.user, limits.max_jobs_per_user))
        if limits.max_cpus_per_account:
            used = self._used("account", job.account)
            if beside:
                used = _with(used, [other for other in beside if other.account == job.account])
            if used.cpus + job.wanted_cpus > limits.max_cpus_per_account:
                facts = (job.account, limits.max_cpus_per_account, used.cpus)
                return Why("limits", "account {} may have {} CPUs at once and has {}", facts)
        return None


def _with(used: Used, jobs: Sequence[Job]) -> Used:
    return Used(used.cpus + sum(job.wanted_cpus for job in jobs), used.jobs + len(jobs))


def _count(tally: dict[tuple[str, str], tuple[int, int]], job: Job, sign: int) -> None:
    for who in (("user", job.user), ("account", job.account)):
        cpus, jobs = tally.get(who, (0, 0))
        tally[who] = (cpus + sign * job.wanted_cpus, jobs + sign)
