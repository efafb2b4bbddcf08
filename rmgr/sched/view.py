"""Shows a policy its partition after what this pass did, and takes all of that back: waiting jobs, what runs, what is free, every record.

The pass's decisions lie over the state, which they never change: what was accepted is the plan's. What promises leave free is known here,
too (`_look_again`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from rmgr.errors import StateConflict
from rmgr.sched.capacity.holds import room, share_of
from rmgr.sched.capacity.horizon import Closing, Ending, Horizon, Timeline
from rmgr.sched.capacity.horizon_node import NodeShadow, NodeTimeline, NodeWindows
from rmgr.sched.capacity.pool_node import NodePool
from rmgr.sched.capacity.units import UnitPool, UnitShadow, UnitTimeline
from rmgr.sched.job import Job, Node, Placement, Reservation, Running
from rmgr.sched.plan import Decision, GangSet, Infeasible, Insufficient, Noted, ReleaseHold, Unreserve, WakeAt, Why
from rmgr.sched.policy import Key
from rmgr.sched.records import Answered, Call, Gang, Hold, Maintenance, Server, Suspended, Usage, Used
from rmgr.sched.state.partition import Partition, arrival

NOBODYS = Why("policy", "the policy that promised it no longer serves this partition")
ABANDONED = Why("policy", "the policy that stopped it no longer serves this partition")
IN_ITS_WAY = Why("policy", "a job that was stopped by a policy which has left goes on first")
#: Why the engine itself decides something, before any policy does or beside what it does.
ELSEWHERE = Why("gang", "a job of it that was sent back begins elsewhere")
OF_THE_ENGINE = frozenset({NOBODYS, ELSEWHERE, ABANDONED, IN_ITS_WAY})
BEGINS = Why("begin", "a job may start then")
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class View:
    """A partition in one pass, to be read: reading changes nothing. The verbs of `Draft` stand on it.

    Jobs of which a dependency, a begin time or a limit is not met are in no order. Starts and promises, which every pass has, are fields.
    All other changes are in `DraftChanges`, made when the first one comes, with a list of what undoes them: a pass that moves nothing pays
    nothing for them.
    """

    __slots__ = (
        "_counted",
        "_horizon",
        "_marked",
        "_more",
        "_open",
        "_part",
        "_pool",
        "_promises",
        "_started",
        "_tally",
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
        self._more: DraftChanges | None = None
        self._timeline: Timeline | None = None  #: of all promises, where there may be many
        self._horizon: Horizon | None = None  #: the timeline, or the shadow of the only promise, or windows of maintenance
        self._open = True
        self._marked = False  #: somebody may go back
        self._counted, self._tally = 0, None  # type: int, dict[tuple[str, str], tuple[int, int]] | None
        self.policy = ""  #: whose turn it is; the engine sets it
        self.partition = part.name
        self.now_us = now_us
        self.seed = seed
        self.decisions: list[Decision] = []
        self.left: dict[int, Why] = {}
        self.rest: Why | None = None
        self.refused = 0
        if part.begins:
            begin_us = part.next_begin_us()
            if begin_us is not None:
                self.decisions.append(WakeAt(begin_us, BEGINS, part.name))
        if part.notes or part.holds or part.gangs.by_name:
            self._drop_orphans(keepers)
        if part.reservations:
            for held in part.reservations.values():
                if held.policy in keepers:
                    self._promises[held.job_id] = held
                else:
                    self.decisions.append(Unreserve(held.job_id, NOBODYS, part.name))
        if part.reservations or part.windows:
            self._look_again()

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

    # -- the engine's -----------------------------------------------------------------------------------------------------

    def mark(self) -> Mark:
        """The point to which `back` leads."""
        self._marked = True
        undo = 0 if self._more is None else len(self._more.undo)
        return Mark(len(self._started), len(self.decisions), undo, self._promises.copy(), self.left.copy(), self.rest)

    def back(self, mark: Mark) -> None:
        """Takes back everything since the mark."""
        while len(self._started) > mark.started:
            _, run = self._started.popitem()
            self._pool.give(run.job, run.placement)
        if self._more is not None:
            self._more.back(mark.undo)
        del self.decisions[mark.decisions :]
        self._promises, self.left, self.rest = mark.promises.copy(), mark.left.copy(), mark.rest
        self._tally = None
        self._look_again()

    def close(self) -> None:
        """Takes the overlay off the state again; no verb works any more."""
        self._open = False
        if self._started:
            for run in reversed(self._started.values()):
                self._pool.give(run.job, run.placement)
        if self._more is not None:
            self._more.back(0)

    @property
    def aside(self) -> Mapping[int, Why]:
        """Waiting jobs that no order shows, and why."""
        return self._part.aside

    def sealed(self) -> tuple[Decision, ...]:
        """Every decision in the order to carry them out; notes last, each once. Ask before `close`."""
        if self._more is None or not self._more.notes:
            return tuple(self.decisions)
        notes: list[Noted] = []
        for policy, kind in sorted(self._more.notes):
            before = self._part.notes.get(policy, {}).get(kind, {})
            written = self._more.notes[policy, kind]
            changed = [job_id for job_id in sorted(written) if written[job_id] != before.get(job_id)]
            notes += [Noted(policy, kind, job_id, written[job_id], self.partition) for job_id in changed]
        return (*self.decisions, *notes)

    # -- changes ------------------------------------------------------------------------------------------------------------

    def _changes(self) -> DraftChanges:
        if self._more is None:
            self._more = DraftChanges(self._part)
        return self._more

    def _waiting(self, job_id: int) -> Job | None:
        """The job as it waits after what this pass did."""
        if self._more is not None:
            job = self._more.extra.get(job_id)
            if job is not None or job_id in self._more.gone or job_id in self._more.rejected:
                return job
        return self._part.jobs.get(job_id)

    def _gang_of(self, job_id: int) -> str | None:
        """Name of the gang in which the job runs."""
        more = self._more
        if more is None:
            return self._part.gangs.of.get(job_id)
        if job_id in more.begun:
            return next((gang.name for gang in more.gangs.values() if job_id in gang.homes), None)
        return None if job_id in more.left else self._part.gangs.of.get(job_id)

    def _drop_orphans(self, keepers: Container[str]) -> None:
        """Notes and holds of policies that left the pipeline go; from their gangs, which turn on, goes what has ended."""
        part = self._part
        for gang in sorted(part.gangs.by_name.values()):
            if gang.policy not in keepers and not all(map(part.is_member, gang.homes)) and part.gang_shift_us is not None:
                rest = self._rest_of(gang, {job_id for job_id in gang.homes if part.is_member(job_id)})
                self._changes().gangs[gang.name] = rest
                self.decisions.append(GangSet(rest, NOBODYS, part.name))
        for policy in part.notes:
            if policy not in keepers:
                for kind, notes in part.notes[policy].items():
                    self._changes().notes[policy, kind] = dict.fromkeys(notes)
        for hold in sorted(part.holds.values()):
            if hold.policy not in keepers:
                self._swap_hold(part.jobs[hold.job_id], None)
                self.decisions.append(ReleaseHold(hold.job_id, NOBODYS, part.name))

    def _rest_of(self, gang: Gang, stay: Container[int]) -> Gang:
        """The record from the next slot on, with only those of its jobs that stay."""
        carousel = self._part.gangs.carousel(gang, frozenset()).copy()
        carousel.advance_to(carousel.boundary(self.now_us + (self._part.gang_shift_us or 0)))
        for job_id in gang.homes:
            if job_id not in stay:
                carousel.remove(job_id)
        return carousel.record(gang.name, gang.policy, gang.partition)

    def _swap_hold(self, job: Job, new: Hold | None) -> None:
        """The job's hold is this one from now on, in pool and flags."""
        more, pool = self._changes(), self._pool
        old = more.holds.get(job.id)
        if old is not None:
            for share in old.held:
                pool.give_share(job, share.cores)
                more.did(partial(pool.take_share, job, share.cores))
            for share in old.waits_for:
                more.drop(more.flagged, share.run_id)
            more.drop(more.holds, job.id)
        if new is not None:
            for share in new.held:
                pool.take_share(job, share.cores)
                more.did(partial(pool.give_share, job, share.cores))
            for share in new.waits_for:
                more.put(more.flagged, share.run_id, job.id)
            more.put(more.holds, job.id, new)

    @property
    def _holds(self) -> dict[int, Hold]:
        return self._part.holds if self._more is None else self._more.holds

    # -- jobs and limits ----------------------------------------------------------------------------------------------------

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
            why = self.over_limits(job)
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

    # -- horizons -----------------------------------------------------------------------------------------------------------

    def _look_again(self) -> None:
        """What is promised, what runs or what is held has changed."""
        if self._promises:
            self._horizon = self._timeline = self._lay_out()
        else:
            self._timeline = None
            self._horizon = self._windows_only() if self._part.windows else None

    def _lay_out(self) -> Timeline:
        """A timeline with every promise and window on it."""
        pool = self._pool
        promised: list[tuple[Job, Reservation]] = []
        for held in self._promises.values():
            job = self._waiting(held.job_id)
            assert job is not None
            promised.append((job, held))
        if isinstance(pool, UnitPool):
            return UnitTimeline(self.now_us, pool, self._endings(), ((job, held.start_us) for job, held in promised))
        timeline = NodeTimeline(self.now_us, pool, self._endings(), self._give_back)
        for start_us, nobody, nodes in self._closings():
            timeline.promise(nobody, start_us, nodes)
        for job, held in promised:
            timeline.promise(job, held.start_us, held.placement)
        return timeline

    def _windows_only(self) -> Horizon:
        """For starts it is enough to know what windows take: what comes back later helps nobody who starts now."""
        assert isinstance(self._pool, NodePool)
        return NodeWindows(self._pool, self.now_us, self._closings())

    def _closings(self) -> Iterator[Closing]:
        """A window is a promise of whole nodes to nobody."""
        for window in self._part.windows.values():
            start_us = max(window.start_us, self.now_us)
            if window.end_us > start_us:
                nodes = tuple((node, node, 1) for node in sorted(window.nodes) if node in self._part.nodes)
                yield start_us, Job(id=0, submit_us=0, exclusive=True, limit_us=window.end_us - start_us), nodes

    def _window_for(self, end_us: int, placement: Placement | None = None) -> Maintenance | None:
        """The first window into which a job from now until then would reach (on these nodes)."""
        for window in sorted(self._part.windows.values(), key=_begin):
            on_it = placement is None or any(first <= node <= last for first, last, _ in placement for node in window.nodes)
            if on_it and window.end_us > self.now_us and window.start_us < end_us:
                return window
        return None

    def _shadow(self, job: Job) -> UnitShadow | NodeShadow | None:
        pool = self._pool
        if isinstance(pool, UnitPool):
            return UnitShadow.of(job, self.now_us, pool, self._endings())
        return NodeShadow.of(job, self.now_us, pool, self._endings(), self._give_back)

    def _endings(self) -> list[Ending]:
        """When nodes come back: what ran before this pass and what it has begun, sorted."""
        part, more = self._part, self._more
        endings = part.endings
        if more is not None and more.undo:
            runs = (run for job_id, run in part.running.items() if job_id not in more.left and job_id not in more.silent)
            endings = [(run.end_us, run.job.id, self._returns(run)) for run in runs if run.job.id not in part.gangs]
            endings += [(r.end_us, r.job.id, self._returns(r)) for r in more.begun.values() if r.job.id not in more.silent]
        elif not self._started:
            return endings
        return sorted(endings + [(run.end_us, run.job.id, self._returns(run)) for run in self._started.values()])

    def _returns(self, run: Running) -> int:
        """Units of the pool that come back when it ends: not those that a hold takes over."""
        returns = self._pool.returns
        units = returns(run.job, run.placement)
        more = self._more
        if more is not None and run.job.id in more.flagged:
            units -= returns(run.job, share_of(more.holds[more.flagged[run.job.id]], run.job.id).cores)
        return units

    def _give_back(self, pool: NodePool, job_id: int) -> None:
        """The same, given to a pool of nodes."""
        run = self._run_of(job_id)
        pool.give(run.job, run.placement)
        flagged = self._part.flagged if self._more is None else self._more.flagged
        if job_id in flagged:
            holder = flagged[job_id]
            job = self._waiting(holder)
            assert job is not None
            pool.take_share(job, share_of(self._holds[holder], job_id).cores)

    def _run_of(self, job_id: int) -> Running:
        run = self._started.get(job_id)
        if run is None and self._more is not None:
            run = self._more.begun.get(job_id)
        return run or self._part.running[job_id]

    def _breaks_promises(self, mark: int) -> Insufficient | None:
        """After a change that takes capacity: back to the mark of `DraftChanges.undo` if a promise cannot be kept.

        Also where it could not be kept before (a node was lost): what is answered must not depend on how the draft came to where it is.
        """
        if not self._promises:
            if self._horizon is not None:  # of windows, or of a promise that has been kept meanwhile
                self._look_again()
            return None
        self._look_again()
        if self._timeline is None or not self._timeline.overdrawn:
            return None
        self._changes().back(mark)
        self._look_again()
        return Insufficient(Why("promise", "would take what is promised to another job"))

    # -- answers ------------------------------------------------------------------------------------------------------------

    def _never(self, why: Why) -> Infeasible:
        self.refused += 1
        return Infeasible(why)

    def _check_open(self) -> None:
        if not self._open:
            raise StateConflict(f"the draft of partition {self.partition} is closed: its pass ended", hint="a policy keeps nothing")


class DraftChanges:
    """Changes of a pass beside starts and promises. Every change is written with `put`, `drop` or `did`, so that it can be undone."""

    __slots__ = (
        "begun",
        "calls_gone",
        "extra",
        "flagged",
        "gangs",
        "gone",
        "holds",
        "left",
        "notes",
        "rejected",
        "silent",
        "suspended",
        "undo",
    )

    def __init__(self, part: Partition) -> None:
        self.extra: dict[int, Job] = {}  #: wait because of this pass: sent back, or in another queue than before
        self.gone: dict[int, None] = {}  #: do not wait any more as they did before this pass
        self.rejected: dict[int, None] = {}  #: of those that no order showed before this pass
        self.left: dict[int, Running] = {}  #: ran before this pass, and were sent away
        self.begun: dict[int, Running] = {}  #: run because of this pass otherwise than by a start: resumed, or in a gang
        self.silent: dict[int, None] = {}  #: run, but their end gives nothing back: they joined a gang
        self.suspended: dict[int, Suspended] = part.suspended.copy()
        self.holds: dict[int, Hold] = part.holds.copy()
        self.flagged: dict[int, int] = part.flagged.copy()
        self.gangs: dict[str, Gang] = part.gangs.by_name.copy()
        self.calls_gone: dict[int, None] = {}
        self.notes: dict[tuple[str, str], dict[int, tuple[int, ...] | None]] = {}
        self.undo: list[Callable[[], object]] = []

    def put(self, table: dict[_Key, _Value], key: _Key, value: _Value) -> None:
        """`table[key] = value`, until it is undone."""
        undo = partial(table.__setitem__, key, table[key]) if key in table else partial(table.__delitem__, key)
        self.undo.append(undo)
        table[key] = value

    def drop(self, table: dict[_Key, _Value], key: _Key) -> None:
        """`del table[key]`, until it is undone."""
        self.undo.append(partial(table.__setitem__, key, table.pop(key)))

    def did(self, undo: Callable[[], object]) -> None:
        """Something was done that this takes back."""
        self.undo.append(undo)

    def back(self, mark: int) -> None:
        """Takes back everything since."""
        while len(self.undo) > mark:
            self.undo.pop()()


class Mark(NamedTuple):
    """State of a draft, to return to."""

    started: int
    decisions: int
    undo: int
    promises: dict[int, Reservation]
    left: dict[int, Why]
    rest: Why | None


def _begin(window: Maintenance) -> tuple[int, int]:
    return (window.start_us, window.id)


def _with(used: Used, jobs: Sequence[Job]) -> Used:
    return Used(used.cpus + sum(job.wanted_cpus for job in jobs), used.jobs + len(jobs))


def _count(tally: dict[tuple[str, str], tuple[int, int]], job: Job, sign: int) -> None:
    for who in (("user", job.user), ("account", job.account)):
        cpus, jobs = tally.get(who, (0, 0))
        tally[who] = (cpus + sign * job.wanted_cpus, jobs + sign)
