"""Shows a policy its partition as this pass has changed it (waiting jobs, runs, free capacity, every record) and can undo the changes.

The pass's decisions overlay the state without changing it; accepted decisions become the plan. Horizons, which say what promises leave
free, are kept here too (`_look_again`).
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
from rmgr.sched.capacity.nodes import Closing, Ending, Horizon, NodePool, NodeShadow, NodeTimeline, NodeWindows, Timeline
from rmgr.sched.capacity.units import UnitPool, UnitShadow, UnitTimeline
from rmgr.sched.job import Job, Node, Placement, Reservation, Running, count_on, room
from rmgr.sched.plan import Decision, GangSet, Infeasible, Insufficient, Noted, ReleaseHold, Reserve, Unreserve, WakeAt, Why
from rmgr.sched.policy import Key
from rmgr.sched.records import Answered, Call, Gang, Hold, Maintenance, Server, Suspended, Usage, Used, share_of
from rmgr.sched.state.partition import Partition, arrival, units_back

NOBODYS = Why("policy", "the policy that promised it no longer serves this partition")
ABANDONED = Why("policy", "the policy that stopped it no longer serves this partition")
IN_ITS_WAY = Why("policy", "a job that was stopped by a policy which has left goes on first")
#: Reasons of decisions that the engine itself takes, before any policy or beside one.
ELSEWHERE = Why("gang", "a job of it that was sent back begins elsewhere")
OF_THE_ENGINE = frozenset({NOBODYS, ELSEWHERE, ABANDONED, IN_ITS_WAY})
BEGINS = Why("begin", "a job may start then")
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class View:
    """Read access to a partition during one pass; reading changes nothing. `Draft` adds the verbs.

    Orders leave out jobs with an unmet dependency, begin time or limit. Starts and promises, which every pass has, are fields. All other
    changes are in `DraftChanges`, created at the first one, together with a list of undo actions, so a pass that moves nothing pays nothing
    for them.
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
        self._timeline: Timeline | None = None  #: of all promises, if there may be many
        self._horizon: Horizon | None = None  #: the timeline, the shadow of the only promise, or windows of maintenance
        self._open = True
        self._marked = False  #: a mark exists, so changes may be undone
        self._counted, self._tally = 0, None  # type: int, dict[tuple[str, str], tuple[int, int]] | None
        self.policy = ""  #: the policy now planning; set by the engine
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
        """Yields the waiting jobs that this partition can run and this pass has not started, in this order."""
        return self._shown(self._part.sorted_by(order), order.key)

    def by_arrival(self) -> Iterator[Job]:
        """Yields the same jobs in order of (submit time, id), which every partition keeps anyway."""
        part = self._part
        if self._more is None and part.limits is None and not self._started:
            return iter(part.waiting)
        return self._shown(part.waiting, arrival)

    def queue(self, name: str) -> Iterator[Job]:
        """Yields the jobs of `by_arrival` that are in this queue."""
        return self._shown(self._part.queued().get(name, ()), arrival, name)

    def queues(self) -> tuple[str, ...]:
        """Returns the names of the queues in which such jobs wait or waited before this pass, sorted."""
        names = set(self._part.queued())
        if self._more is not None:
            names.update(job.queue for job in self._more.extra.values())
        return tuple(sorted(names))

    def startable(self, jobs: Iterator[Job]) -> Iterator[Job]:
        """Yields the `jobs` that could start at the moment they are reached, taking into account the caller's starts meanwhile."""
        if self._part.windows or self._holds:
            return self._startable(jobs)
        found = self._pool.startable(jobs, self._horizon)
        return found if self._part.limits is None else self._judged(found, jobs)

    def fits(self, job: Job) -> bool:
        """Whether there is room for the job now, promises aside; for a job with a hold: whether the hold is complete."""
        hold = self._holds.get(job.id)
        return self._pool.fits(job) if hold is None else hold.is_complete

    @property
    def waiting_count(self) -> int:
        count = len(self._part.waiting) - len(self._started)
        return count if self._more is None else count + len(self._more.extra) - len(self._more.gone)

    # -- any job ------------------------------------------------------------------------------------------------------------

    def job(self, job_id: int) -> Job | None:
        """Returns a job that waits, runs or is suspended here; None if unknown or rejected in this pass."""
        run = self.run(job_id)
        if run is not None:
            return run.job
        job = self._waiting(job_id)
        if job is None:
            stopped = self._records.suspended.get(job_id)
            return None if stopped is None else stopped.run.job
        return job

    def promised(self, job_id: int) -> int | None:
        """Returns the start (us) that a reservation of this or an earlier pass promises the job, or None."""
        held = self._promises.get(job_id)
        return None if held is None else held.start_us

    # -- what runs ----------------------------------------------------------------------------------------------------------

    def running(self) -> Iterator[Running]:
        """Yields the runs by job id: with those that this pass started, without those that it sent away."""
        runs = dict(self._part.running)
        if self._more is not None:
            for job_id in self._more.left:
                del runs[job_id]
            runs.update(self._more.begun)
        runs.update(self._started)
        return iter([runs[job_id] for job_id in sorted(runs)])

    def running_in(self, queue: str) -> Iterator[Running]:
        """Yields the runs of jobs from this queue."""
        return (run for run in self.running() if run.job.queue == queue)

    def run(self, job_id: int) -> Running | None:
        """Returns the run of this job, or None if it does not run."""
        run = self._started.get(job_id)
        if run is None and self._more is not None:
            run = self._more.begun.get(job_id)
            if run is None and job_id in self._more.left:
                return None
        return run or self._part.running.get(job_id)

    def is_pinned(self, job_id: int) -> bool:
        """Whether the job runs and may not be sent back to the queue."""
        return job_id in self._part.pinned

    def suspended(self) -> Iterator[Suspended]:
        """Yields the suspended jobs, by job id."""
        table = self._records.suspended
        return iter([table[job_id] for job_id in sorted(table)])

    # -- what is free -------------------------------------------------------------------------------------------------------

    @property
    def free_cores(self) -> int:
        """Cores on which something could start now, promises aside. Cost: O(1) for identical one-core nodes, else O(nodes)."""
        return self._pool.free

    @property
    def idle_nodes(self) -> int:
        """Number of open nodes with every core free. Cost: O(1) for identical one-core nodes, else O(nodes)."""
        return self._pool.idle_nodes

    @property
    def nodes(self) -> Mapping[int, Node]:
        """The nodes by id, ascending."""
        return MappingProxyType(self._part.nodes)

    def room(self, job: Job, node_id: int, cores: int) -> int:
        """Returns how many processes of the job would fit on so many free cores of this node; 0 where it cannot run."""
        return room(job, self._part.nodes.get(node_id), cores)

    # -- records ------------------------------------------------------------------------------------------------------------

    def holds(self) -> Iterator[Hold]:
        """Yields the holds by job id."""
        return iter(sorted(self._holds.values()))

    def held_for(self, job_id: int) -> Hold | None:
        """Returns the job's hold, or None."""
        return self._holds.get(job_id)

    def notes(self, kind: str) -> Mapping[int, tuple[int, ...]]:
        """Returns job id -> note of this kind by the planning policy. Cost: O(1) until the pass writes one, then O(notes)."""
        before = self._part.notes.get(self.policy, {}).get(kind, {})
        written = None if self._more is None else self._more.notes.get((self.policy, kind))
        if written is None:
            return MappingProxyType(before)
        return {job_id: value for job_id, value in {**before, **written}.items() if value is not None}

    def note_of(self, kind: str, job_id: int, /) -> tuple[int, ...] | None:
        """Returns the policy's note on a job; id 0 means the partition itself. None if there is none."""
        if self._more is not None:
            written = self._more.notes.get((self.policy, kind))
            if written is not None and job_id in written:
                return written[job_id]
        return self._part.notes.get(self.policy, {}).get(kind, {}).get(job_id)

    def used_by(self, user: str) -> Used:
        """Returns the user's running work. Cost: O(1) after the first time."""
        return self._used("user", user)

    def over_limits(self, job: Job, beside: Sequence[Job] = ()) -> Why | None:
        """Returns the limit that keeps the job from starting now, together with the jobs `beside`, or None. Cost: O(`beside`)."""
        limits = self._part.limits
        if limits is None:
            return None
        if limits.max_cpus_per_user or limits.max_jobs_per_user:
            used = self._used("user", job.user)
            if beside:
                used = _used_with(used, [other for other in beside if other.user == job.user])
            if limits.max_cpus_per_user and used.cpus + job.wanted_cpus > limits.max_cpus_per_user:
                return Why("limits", "user {} may have {} CPUs at once and has {}", (job.user, limits.max_cpus_per_user, used.cpus))
            if limits.max_jobs_per_user and used.jobs >= limits.max_jobs_per_user:
                return Why("limits", "user {} may run {} jobs at once and does", (job.user, limits.max_jobs_per_user))
        if limits.max_cpus_per_account:
            used = self._used("account", job.account)
            if beside:
                used = _used_with(used, [other for other in beside if other.account == job.account])
            if used.cpus + job.wanted_cpus > limits.max_cpus_per_account:
                facts = (job.account, limits.max_cpus_per_account, used.cpus)
                return Why("limits", "account {} may have {} CPUs at once and has {}", facts)
        return None

    def usage(self) -> Iterator[Usage]:
        """Yields the use by ended jobs in the whole cluster, by user and account; running jobs are in `running`."""
        return iter(sorted(self._part.usage.values()))

    def uncharged(self, run: Running, now_us: int) -> tuple[int, int | None]:
        """Returns the part of a run missing in `usage()`: since when, and for how much of that time it had its cores (None: all)."""
        return self._part.uncharged(run, now_us)

    def gangs(self) -> Iterator[Gang]:
        """Yields the gangs by name."""
        return iter(sorted(self._gangs.values()))

    @property
    def gang_now_us(self) -> int | None:
        """Now by the clock that counts slots, plus the lead that nodes need to learn of a change; None if it cannot be read."""
        shift_us = self._part.gang_shift_us
        return None if shift_us is None else self.now_us + shift_us

    @property
    def no_gang(self) -> str:
        """Why the clock of slots cannot be read."""
        return self._part.gang_why

    @property
    def most_members(self) -> int:
        """Number of jobs that one gang may have here; 0 = any number."""
        return self._part.gang_most

    def has_place(self, job_id: int) -> bool:
        """Whether the job runs, or is a gang member that was asked to leave and has not left yet."""
        return self.run(job_id) is not None or (job_id in self._part.stopping and job_id in self._part.gangs)

    def _leave_gangs(self, job_id: int, joins: str = "") -> None:
        """Removes a job that starts from the records of other gangs in which it was before it was sent back.

        If a record still named it, a new leader, which knows only records, would make the job a member again.
        joins: the gang in which the job starts. Cost: O(jobs of gangs), nothing if there are none.
        """
        for gang in list(self._gangs.values()):
            if gang.name != joins and job_id in gang.homes:
                more = self._changes()
                rest = self._rest_of(gang, {one for one in gang.homes if one != job_id and self.has_place(one)})
                more.put(more.gangs, gang.name, rest)
                self.decisions.append(GangSet(rest, ELSEWHERE, self.partition))

    def calls(self) -> Iterator[Call]:
        """Yields the calls that wait for a server, the earliest first."""
        gone = () if self._more is None else self._more.calls_gone
        calls = (call for call in self._part.calls.values() if call.id not in gone)
        return iter(sorted(calls, key=lambda call: (call.submit_us, call.id)))

    def servers(self) -> Iterator[Server]:
        """Yields the servers by name."""
        servers = self._part.servers
        return iter([servers[name] for name in sorted(servers)])

    def measurements(self, server: str) -> Sequence[Server]:
        """Returns the last measurements of this server, the oldest first; empty for an unknown server."""
        return self._part.records_of_calls.measured.get(server, ())

    def answered(self) -> Sequence[Answered]:
        """Returns the last answered calls, the oldest first."""
        return self._part.records_of_calls.answered

    def learnt(self, server: str, function: str, operations: int) -> float | None:
        """Returns operations/s that answered calls of this function and size showed on the server, or None if there were none."""
        return self._part.records_of_calls.speed(server, function, operations)

    # -- the engine's -----------------------------------------------------------------------------------------------------

    def mark(self) -> Mark:
        """Returns a mark for `back`."""
        self._marked = True
        undo = 0 if self._more is None else len(self._more.undo)
        return Mark(len(self._started), len(self.decisions), undo, self._promises.copy(), self.left.copy(), self.rest)

    def back(self, mark: Mark) -> None:
        """Undoes everything since the mark."""
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
        """Removes the overlay from the state; no verb works any more."""
        self._open = False
        if self._started:
            for run in reversed(self._started.values()):
                self._pool.give(run.job, run.placement)
        if self._more is not None:
            self._more.back(0)

    @property
    def aside(self) -> Mapping[int, Why]:
        """Waiting jobs that no order shows, each with its reason."""
        return self._part.aside

    def sealed(self) -> tuple[Decision, ...]:
        """Returns every decision in the order to carry them out, notes last and each once. Must be called before `close`."""
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
        """Returns the job if it waits, with the changes of this pass, or None."""
        if self._more is not None:
            job = self._more.extra.get(job_id)
            if job is not None or job_id in self._more.gone or job_id in self._more.rejected:
                return job
        return self._part.jobs.get(job_id)

    def _gang_of(self, job_id: int) -> str | None:
        """Returns the name of the gang in which the job runs, or None."""
        more = self._more
        if more is None:
            return self._part.gangs.of.get(job_id)
        if job_id in more.begun:
            return next((gang.name for gang in more.gangs.values() if job_id in gang.homes), None)
        return None if job_id in more.left else self._part.gangs.of.get(job_id)

    def _drop_orphans(self, keepers: Container[str]) -> None:
        """Drops notes and holds of policies that left the pipeline; removes ended jobs from their gangs, which go on turning."""
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
        """Returns the record from the next slot on, with only those of its jobs that stay."""
        carousel = self._part.gangs.carousel(gang, frozenset()).copy()
        carousel.advance_to(carousel.boundary(self.now_us + (self._part.gang_shift_us or 0)))
        for job_id in gang.homes:
            if job_id not in stay:
                carousel.remove(job_id)
        return carousel.record(gang.name, gang.policy, gang.partition)

    def _swap_hold(self, job: Job, new: Hold | None) -> None:
        """Replaces the job's hold by `new` (None: no hold) in pool and flags."""
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
    def _records(self) -> Partition | DraftChanges:
        """Holds, suspended jobs and flagged runs as this pass has changed them."""
        return self._part if self._more is None else self._more

    @property
    def _holds(self) -> dict[int, Hold]:
        return self._part.holds if self._more is None else self._more.holds

    @property
    def _gangs(self) -> dict[str, Gang]:
        return self._part.gangs.by_name if self._more is None else self._more.gangs

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
                if job.id in self._promises:  # others need not wait for what it may not have
                    self._give_up(job, why)

    @staticmethod
    def _judged(found: Iterator[Job], jobs: Iterator[Job]) -> Iterator[Job]:
        """Yields `found`, then exhausts `jobs` so that jobs over a limit get that limit as their reason to wait."""
        yield from found
        deque(jobs, maxlen=0)

    def _startable(self, jobs: Iterator[Job]) -> Iterator[Job]:
        """As the pool's `startable`, but names windows in reasons and lets jobs with complete holds start without room."""
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
        """Returns the job if it waits and nothing about the job itself keeps it from starting."""
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
                for who in (("user", run.job.user), ("account", run.job.account)):
                    cpus, jobs = tally.get(who, (0, 0))
                    tally[who] = (cpus + run.job.wanted_cpus, jobs + 1)
            self._counted = len(self._started)
        used = self._part.used(kind, name)
        cpus, jobs = tally.get((kind, name), (0, 0))
        if self._more is not None:
            for table, sign in ((self._more.left, -1), (self._more.begun, 1)):
                for run in table.values():
                    if (run.job.user if kind == "user" else run.job.account) == name:
                        cpus, jobs = cpus + sign * run.job.wanted_cpus, jobs + sign
        return Used(used.cpus + cpus, used.jobs + jobs)

    def _give_up(self, job: Job, why: Why) -> None:
        """Takes the job's promise back, as a record too. Cost: O(steps of a timeline + decisions of this pass)."""
        held = self._promises.pop(job.id)
        if self._promises and self._timeline is not None:
            self._timeline.withdraw(job, held.start_us, held.placement)
        else:
            self._look_again()
        self._strike_record(job.id, why)

    def _strike_record(self, job_id: int, why: Why) -> None:
        """Deletes the record of the job's promise, be it of an earlier pass or of this one. Cost: O(decisions of this pass)."""
        if job_id in self._part.reservations or any(type(one) is Reserve and one.keep and one.job_id == job_id for one in self.decisions):
            self.decisions.append(Unreserve(job_id, why, self.partition))

    # -- horizons -----------------------------------------------------------------------------------------------------------

    def _look_again(self) -> None:
        """Rebuilds the horizon after a change of promises, runs or holds."""
        if self._promises:
            self._horizon = self._timeline = self._lay_out()
        else:
            self._timeline = None
            self._horizon = None
            if self._part.windows:  # they suffice for starts: capacity that comes back later cannot help a start now
                assert isinstance(self._pool, NodePool)
                self._horizon = NodeWindows(self._pool, self.now_us, self._closings())

    def _lay_out(self) -> Timeline:
        """Returns a timeline with every promise and window on it."""
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

    def _closings(self) -> Iterator[Closing]:
        """Yields each window as a promise of whole nodes to a dummy job."""
        for window in self._part.windows.values():
            start_us = max(window.start_us, self.now_us)
            if window.end_us > start_us:
                nodes = tuple((node, node, 1) for node in sorted(window.nodes) if node in self._part.nodes)
                yield start_us, Job(id=0, submit_us=0, exclusive=True, limit_us=window.end_us - start_us), nodes

    def _window_for(self, end_us: int, placement: Placement | None = None) -> Maintenance | None:
        """Returns the first window that a job from now until `end_us` would reach into (on these nodes, if given), or None."""
        for window in sorted(self._part.windows.values(), key=lambda window: (window.start_us, window.id)):
            on_it = placement is None or any(count_on(node, placement) for node in window.nodes)
            if on_it and window.end_us > self.now_us and window.start_us < end_us:
                return window
        return None

    def _shadow(self, job: Job) -> UnitShadow | NodeShadow | None:
        pool = self._pool
        if isinstance(pool, UnitPool):
            return UnitShadow.of(job, self.now_us, pool, self._endings())
        return NodeShadow.of(job, self.now_us, pool, self._endings(), self._give_back)

    def _endings(self) -> list[Ending]:
        """Returns the times at which nodes come back, from runs before this pass and its own, sorted."""
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
        return units_back(self._pool, run, self._records.flagged, self._holds)

    def _give_back(self, pool: NodePool, job_id: int) -> None:
        """Gives a pool of nodes what `_returns` counts."""
        run = self.run(job_id)
        assert run is not None
        pool.give(run.job, run.placement)
        flagged = self._records.flagged
        if job_id in flagged:
            holder = flagged[job_id]
            job = self._waiting(holder)
            assert job is not None
            pool.take_share(job, share_of(self._holds[holder], job_id).cores)

    def _breaks_promises(self, mark: int) -> Insufficient | None:
        """After a change that takes capacity, undoes it to the mark of `DraftChanges.undo` if a promise cannot be kept.

        It does so even if the promise could not be kept before (a node was lost): the answer must not depend on the draft's history.
        """
        if not self._promises:
            if self._horizon is not None:  # of windows, or of a promise that was kept meanwhile
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
    """Changes of a pass other than starts and promises, each written with `put`, `drop` or `did` so that it can be undone."""

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
        self.extra: dict[int, Job] = {}  #: jobs that wait because of this pass: sent back, or routed to another queue
        self.gone: dict[int, None] = {}  #: jobs that no longer wait as they did before this pass
        self.rejected: dict[int, None] = {}  #: rejected jobs that no order showed before this pass
        self.left: dict[int, Running] = {}  #: jobs that ran before this pass and were sent away
        self.begun: dict[int, Running] = {}  #: jobs that this pass made run without a start: resumed, or in a gang
        self.silent: dict[int, None] = {}  #: running jobs whose end gives nothing back, because they joined a gang
        self.suspended: dict[int, Suspended] = part.suspended.copy()
        self.holds: dict[int, Hold] = part.holds.copy()
        self.flagged: dict[int, int] = part.flagged.copy()
        self.gangs: dict[str, Gang] = part.gangs.by_name.copy()
        self.calls_gone: dict[int, None] = {}
        self.notes: dict[tuple[str, str], dict[int, tuple[int, ...] | None]] = {}
        self.undo: list[Callable[[], object]] = []

    def put(self, table: dict[_Key, _Value], key: _Key, value: _Value) -> None:
        """Sets `table[key] = value` and records how to undo it."""
        undo = partial(table.__setitem__, key, table[key]) if key in table else partial(table.__delitem__, key)
        self.undo.append(undo)
        table[key] = value

    def drop(self, table: dict[_Key, _Value], key: _Key) -> None:
        """Deletes `table[key]` and records how to undo it."""
        self.undo.append(partial(table.__setitem__, key, table.pop(key)))

    def did(self, undo: Callable[[], object]) -> None:
        """Records an action that undoes a change made elsewhere."""
        self.undo.append(undo)

    def back(self, mark: int) -> None:
        """Undoes everything since the mark."""
        while len(self.undo) > mark:
            self.undo.pop()()


class Mark(NamedTuple):
    """State of a draft to return to."""

    started: int
    decisions: int
    undo: int
    promises: dict[int, Reservation]
    left: dict[int, Why]
    rest: Why | None


def _used_with(used: Used, jobs: Sequence[Job]) -> Used:
    return Used(used.cpus + sum(job.wanted_cpus for job in jobs), used.jobs + len(jobs))
