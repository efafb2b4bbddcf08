"""A partition in the cluster state: its nodes, waiting and running jobs, and promises, kept ready for a pass.

The records are primary; pools, sorted queues and endings are derived from them and can be derived again (`_rebuild`). `SortedJobs` keeps
waiting jobs in an order, `CallRecords` what is known of servers and answered calls.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import chain
from operator import itemgetter
from typing import TypeAlias

from rmgr.sched import records
from rmgr.sched.capacity.gangs import OWNER, GangBook
from rmgr.sched.capacity.nodes import Ending, NodePool
from rmgr.sched.capacity.units import UnitPool
from rmgr.sched.job import Job, Node, Placement, Reservation, Running, count_on, nodes_of
from rmgr.sched.plan import Why
from rmgr.sched.policy import Key

Pool: TypeAlias = UnitPool | NodePool
#: policy -> kind -> id -> value
Notes: TypeAlias = dict[str, dict[str, dict[int, tuple[int, ...]]]]
_SortKey: TypeAlias = tuple[int, ...]
_Entry: TypeAlias = tuple[_SortKey, Job]
_JOB: Callable[[_Entry], Job] = itemgetter(1)
#: Entries of a chunk; it is split above twice this number. Moving 1,000 pointers costs less than finding the chunk.
CHUNK = 1000
#: Number of measurements kept for each server, including the latest.
MEASUREMENTS = 8
#: Number of answered calls kept.
ANSWERED = 20
#: Number of learnt performances kept in a partition; the one based on the fewest calls is dropped first.
LEARNT = 4096
#: Weight of a new answer in learnt performance, from as many answers as its inverse on.
_WEIGHT = 0.1


def arrival(job: Job) -> tuple[int, int]:
    """Returns the key that every order falls back to."""
    return (job.submit_us, job.id)


class Partition:
    """The records of a partition. Drafts read it; only `ClusterState` changes it, one fact at a time."""

    __slots__ = (
        "_used",
        "_views",
        "aside",
        "begins",
        "calls",
        "depends",
        "endings",
        "flagged",
        "gang_most",
        "gang_shift_us",
        "gang_why",
        "gangs",
        "holds",
        "infeasible",
        "jobs",
        "limits",
        "name",
        "nodes",
        "notes",
        "now_us",
        "pinned",
        "pool",
        "queues",
        "records_of_calls",
        "reservations",
        "running",
        "servers",
        "stopping",
        "suspended",
        "usage",
        "waiting",
        "windows",
    )

    def __init__(self, name: str, nodes: Iterable[Node], usage: dict[tuple[str, str], records.Usage] | None = None) -> None:
        self.name = name
        self.nodes: dict[int, Node] = {node.id: node for node in sorted(nodes, key=lambda node: node.id)}
        self.jobs: dict[int, Job] = {}  #: waiting jobs, by id
        self.infeasible: dict[int, Job] = {}  #: waiting jobs that only a changed cluster could run
        self.aside: dict[int, Why] = {}  #: reason of each waiting job that no order shows
        self.depends: dict[int, Why] = {}  #: what each waiting job with dependencies still waits for
        self.begins: list[tuple[int, int]] = []  #: (begin, id) of jobs aside for that reason, a heap
        self.waiting = SortedJobs(arrival)
        self.queues: dict[str, SortedJobs] | None = None  #: the same jobs by queue; built on first use
        self.running: dict[int, Running] = {}
        self.suspended: dict[int, records.Suspended] = {}
        self.stopping: dict[int, Running] = {}  #: last stretches of jobs asked to give up their nodes, which neither wait nor run
        self.pinned: set[int] = set()  #: running jobs that are never sent back to the queue
        self.reservations: dict[int, Reservation] = {}
        self.notes: Notes = {}
        self.holds: dict[int, records.Hold] = {}
        self.flagged: dict[int, int] = {}  #: run -> job whose hold waits for it
        self.windows: dict[int, records.Maintenance] = {}
        self.limits: records.Limits | None = None
        self.gangs = GangBook()
        self.gang_shift_us: int | None = 0  #: gang time minus time of passes; None = unreadable: no gang is set
        self.gang_why = ""  #: why it is unreadable
        self.gang_most = 0  #: jobs in one gang's record, 0 = any number
        self.calls: dict[int, records.Call] = {}
        self.servers: dict[str, records.Server] = {}
        self.records_of_calls = CallRecords()
        self.usage = {} if usage is None else usage  #: of the whole cluster
        self.endings: list[Ending] = []  #: ends of running jobs, sorted
        self.now_us = 0  #: of the last pass
        self._used: dict[tuple[str, str], records.Used] | None = None  #: ("user" | "account", name) -> running work; built on first use
        self._views: dict[Key, SortedJobs] = {}
        self.pool = self._pool()

    # -- what a draft asks ------------------------------------------------------------------------------------------------

    def sorted_by(self, order: Key) -> SortedJobs:
        """Returns the feasible waiting jobs in this order, kept up to date from then on. First use: O(n log n)."""
        view = self._views.get(order)
        if view is None:
            view = self._views[order] = SortedJobs(order.key, self.waiting)
        elif view.postponed:
            del self._views[order]  # if a user's key raises, its policy loses this pass and nothing else happens
            view.settle()
            self._views[order] = view
        return view

    def queued(self) -> dict[str, SortedJobs]:
        """Returns the shown jobs of each queue that has any, kept up to date from then on. First use: O(n log n)."""
        queues = self.queues
        if queues is None:
            queues = self.queues = {}
            for job in self.waiting:
                self._enqueue(queues, job)
        return queues

    def used(self, kind: str, name: str) -> records.Used:
        """Returns the running work of a "user" or an "account", kept up to date from then on."""
        if self._used is None:
            self._used = {}
            for run in self.running.values():
                self._count(run.job, 1)
        return self._used.get((kind, name), records.Used())

    def knows(self, job_id: int) -> bool:
        """Whether a job or call of this id is here."""
        if job_id in self.jobs or job_id in self.running:
            return True
        return job_id in self.suspended or job_id in self.stopping or job_id in self.calls

    # -- facts of jobs, called by ClusterState ----------------------------------------------------------------------------

    def add_job(self, job: Job) -> None:
        self.jobs[job.id] = job
        why = self.why_never(job) if self.limits is not None or not self.pool.feasible(job) else None
        if why is not None:
            self.infeasible[job.id] = job
            self.aside[job.id] = why
        elif self.depends and job.id in self.depends:
            self.aside[job.id] = self.depends[job.id]
        elif job.begin_us > self.now_us:
            heappush(self.begins, (job.begin_us, job.id))
            self.aside[job.id] = Why("begin", "may not start before {} us", (job.begin_us,))
        else:
            self._show(job)

    def drop_job(self, job: Job) -> None:
        """Removes a job that no longer waits."""
        job_id = job.id
        del self.jobs[job_id]
        self.reservations.pop(job_id, None)
        if job_id in self.aside:
            del self.aside[job_id]
            self.infeasible.pop(job_id, None)
            self.depends.pop(job_id, None)
        else:
            self._hide(job)
        if self.holds and job_id in self.holds:
            self._free_hold(self.holds.pop(job_id), job)

    def set_depends(self, job: Job, why: Why | None) -> None:
        """Sets what a waiting job still waits for; None: all its dependencies have left."""
        if why is None:
            self.depends.pop(job.id, None)
        else:
            self.depends[job.id] = why
        if job.id in self.jobs:
            self.reconsider(job)

    def reconsider(self, job: Job) -> None:
        """Decides again whether a waiting job is shown; it keeps everything else."""
        if job.id in self.aside:
            del self.aside[job.id]
            self.infeasible.pop(job.id, None)
        else:
            self._hide(job)
        self.add_job(job)

    def open_for(self, now_us: int) -> None:
        """Shows jobs whose begin time has come."""
        if now_us < self.now_us:  # an earlier pass is run again: hide jobs that had not begun then
            self.now_us = now_us
            for job in list(self.jobs.values()):
                if job.begin_us > now_us and job.id not in self.aside:
                    self.reconsider(job)
        self.now_us = now_us
        if not self.begins:
            return
        while (begin_us := self.next_begin_us()) is not None and begin_us <= now_us:
            _, job_id = heappop(self.begins)
            self.reconsider(self.jobs[job_id])

    def next_begin_us(self) -> int | None:
        """Returns the begin time of the next job to be shown, or None."""
        while self.begins:
            begin_us, job_id = self.begins[0]
            job, why = self.jobs.get(job_id), self.aside.get(job_id)
            if job is not None and job.begin_us == begin_us and why is not None and why.rule == "begin":
                return begin_us
            heappop(self.begins)
        return None

    def add_running(self, run: Running) -> None:
        job = run.job
        self.running[job.id] = run
        if self._used is not None:
            self._count(job, 1)
        if self.gangs.of and job.id in self.gangs:
            self.gangs.enter(self.pool, run)
        else:
            pool, placement = self.pool, run.placement
            pool.take(job, placement)
            insort(self.endings, (run.end_us, job.id, pool.returns(job, placement)))

    def drop_running(self, run: Running) -> None:
        """Takes the run off its nodes; the share of them that a hold waits for is held from now on."""
        job_id = run.job.id
        del self.running[job_id]
        if self._used is not None:
            self._count(run.job, -1)
        if self.gangs.of and job_id in self.gangs:
            self.gangs.leave(self.pool, run)
            return
        self.pool.give(run.job, run.placement)
        del self.endings[bisect_left(self.endings, (run.end_us, job_id))]  # a pair sorts before the entry of that job
        if self.flagged and job_id in self.flagged:
            holder = self.flagged.pop(job_id)
            hold = self.holds[holder]
            self.pool.take_share(self.jobs[holder], records.share_of(hold, job_id).cores)
            self.holds[holder] = records.after_leaving(hold, job_id)

    def is_member(self, job_id: int) -> bool:
        """Whether the job has a place in a gang: it runs, or was asked to leave and has not left yet."""
        return job_id in self.gangs and (job_id in self.running or job_id in self.stopping)

    def uncharged(self, run: Running, now_us: int, until: records.Gang | None = None) -> tuple[int, int | None]:
        """Returns what records of usage lack of a run: (since when, for how much of that it had its cores; None = all).

        A member of a gang is charged the slots that its record gives it: up to the new record's first slot whenever one is set (`until`),
        otherwise all that have begun. While the clock cannot be read, nothing is known of them.
        """
        name = self.gangs.of.get(run.job.id)
        if name is None:
            return run.start_us, None
        gang = self.gangs.by_name[name]
        if self.gang_shift_us is None:
            return now_us, 0
        begun = (now_us + self.gang_shift_us - gang.origin_us) // gang.slot_us + 1 if until is None else until.slot
        given = self.gangs.given(gang, max(begun, gang.slot)).get(run.job.id, 0)
        return gang.origin_us + gang.slot * gang.slot_us - self.gang_shift_us, given * gang.slot_us

    def step_aside(self, run: Running) -> None:
        """A member of a gang was asked to leave: it keeps its place, and its nodes stay the gang's, until it has left."""
        del self.running[run.job.id]
        if self._used is not None:
            self._count(run.job, -1)

    def step_back(self, run: Running) -> None:
        """A member that was asked to leave goes on."""
        self.running[run.job.id] = run
        if self._used is not None:
            self._count(run.job, 1)

    def suspend(self, run: Running, now: int) -> None:
        self.drop_running(run)
        self.pool.park(run.job, run.placement)
        self.suspended[run.job.id] = records.Suspended(run, now)

    def drop_suspended(self, job_id: int) -> Running:
        """Removes a suspended job, which leaves its nodes or is about to go on there."""
        run = self.suspended.pop(job_id).run
        self.pool.unpark(run.job, run.placement)
        return run

    def forget(self, job_id: int) -> None:
        """Deletes all notes on a job that has left the cluster."""
        for kinds in self.notes.values():
            for notes in kinds.values():
                notes.pop(job_id, None)

    def has_room_for(self, run: Running) -> bool:
        """Whether the run's nodes, even closed ones, still have its capacity, so no other job was given it. Cost: O(running)."""
        pool = NodePool(replace(node, closed=False) for node in self.nodes.values())
        mine = self.gangs.of.get(run.job.id)
        owned: set[int] = set()
        leaving = (run for job_id, run in self.stopping.items() if job_id in self.gangs)
        for other in (*self.running.values(), *leaving):
            name = self.gangs.of.get(other.job.id)
            if name is None:
                pool.take(other.job, other.placement)
            elif name != mine:
                owned.update(nodes_of(other.placement))
        for node in sorted(owned):
            pool.take(OWNER, ((node, node, 1),))
        for hold in self.holds.values():
            for share in hold.held:
                pool.take_share(self.jobs[hold.job_id], share.cores)
        for stopped in self.suspended.values():
            pool.park(stopped.run.job, stopped.run.placement)
        return all(first in self.nodes and last in self.nodes for first, last, _ in run.placement) and pool.holds(run.job, run.placement)

    def can_start(self, job: Job, placement: Placement) -> bool:
        """Whether the job can start there; a job with a hold only on what is held for it, and only if the hold is complete."""
        hold = self.holds.get(job.id)
        if hold is None:
            return job.id in self.gangs or self.pool.holds(job, placement)
        if not hold.is_complete:
            return False
        for share in hold.held:
            self.pool.give_share(job, share.cores)
        fits = self.pool.holds(job, placement)
        for share in hold.held:
            self.pool.take_share(job, share.cores)
        return fits

    # -- facts of policies and operators ------------------------------------------------------------------------------------

    def set_hold(self, hold: records.Hold) -> None:
        """Sets the job's hold, replacing its old one."""
        job = self.jobs[hold.job_id]
        old = self.holds.pop(hold.job_id, None)
        if old is not None:
            self._free_hold(old, job)
        self.holds[hold.job_id] = hold
        for share in hold.held:
            self.pool.take_share(job, share.cores)
        for share in hold.waits_for:
            self.flagged[share.run_id] = hold.job_id
            self._ending_again(share.run_id)

    def release(self, job_id: int) -> None:
        hold = self.holds.pop(job_id, None)
        if hold is not None:
            self._free_hold(hold, self.jobs[job_id])

    def set_note(self, policy: str, kind: str, job_id: int, value: tuple[int, ...] | None) -> None:
        """Sets a note; value None deletes it. Notes on jobs that have left meanwhile are ignored."""
        if value is not None:
            if job_id and not self.knows(job_id):
                return
            self.notes.setdefault(policy, {}).setdefault(kind, {})[job_id] = value
            return
        kinds = self.notes.get(policy, {})
        if job_id in kinds.get(kind, {}):
            del kinds[kind][job_id]
            if not kinds[kind]:
                del kinds[kind]
            if not kinds:
                del self.notes[policy]

    def set_limits(self, limits: records.Limits | None) -> None:
        """Cost: O(waiting)."""
        self.limits = limits
        for job in list(self.jobs.values()):
            if job.id in self.infeasible or self.why_never(job) is not None:
                self.reconsider(job)

    def set_windows(self, windows: dict[int, records.Maintenance]) -> None:
        """Cost: O(everything), but it is rare."""
        self.windows = dict(sorted(windows.items()))
        self._rebuild()

    def set_node(self, node: Node) -> None:
        """Adds, closes, opens or resizes a node. O(everything); closing or opening one without holds etc. is O(spans of runs)."""
        old = self.nodes.get(node.id)
        self.nodes[node.id] = node
        if old is not None and replace(old, closed=node.closed) == node and not (self.holds or self.suspended or list(self.gangs)):
            if old.closed != node.closed:
                self._set_closed(node)
            return
        self.nodes = dict(sorted(self.nodes.items()))
        self._rebuild()

    def drop_node(self, node_id: int) -> None:
        """Removes a node and the promises on it, which cannot be kept."""
        del self.nodes[node_id]
        self.reservations = {i: r for i, r in self.reservations.items() if not count_on(node_id, r.placement)}
        self._rebuild()

    # -- derived data -------------------------------------------------------------------------------------------------------

    def _set_closed(self, node: Node) -> None:
        there = [job_id for job_id, run in self.running.items() if count_on(node.id, run.placement)]
        self.pool.set_closed(node, taken=bool(there))
        for job_id in there:
            self._ending_again(job_id)

    def _free_hold(self, hold: records.Hold, job: Job) -> None:
        for share in hold.held:
            self.pool.give_share(job, share.cores)
        for share in hold.waits_for:
            del self.flagged[share.run_id]
            self._ending_again(share.run_id)

    def _ending_again(self, run_id: int) -> None:
        run = self.running[run_id]
        at = bisect_left(self.endings, (run.end_us, run_id))
        self.endings[at] = (run.end_us, run_id, units_back(self.pool, run, self.flagged, self.holds))

    def why_never(self, job: Job) -> Why | None:
        """Returns why the job can never run here as it is, or None."""
        if not self.pool.feasible(job):
            for name, count in job.resources:
                if self.pool.feasible(replace(job, resources=tuple(one for one in job.resources if one[0] != name))):
                    return Why("size", "needs {} x {} {}: more than partition {} has", (job.processes, count, name, self.name))
            return Why("size", "needs {} x {} cores: more than partition {} has", (job.processes, job.threads, self.name))
        limits = self.limits
        if limits is not None:
            if limits.max_time_us and job.planned_us > limits.max_time_us:
                return Why("limits", "its time limit is above the longest of partition {}, {} us", (self.name, limits.max_time_us))
            for most in (limits.max_cpus_per_user, limits.max_cpus_per_account):
                if most and job.wanted_cpus > most:
                    return Why("limits", "needs {} CPUs: nobody may have more than {} in partition {}", (job.wanted_cpus, most, self.name))
        return None

    def _show(self, job: Job) -> None:
        self.waiting.add(job)
        if self._views:
            for view in self._views.values():
                view.postpone(job)
        if self.queues is not None:
            self._enqueue(self.queues, job)

    def _hide(self, job: Job) -> None:
        self.waiting.remove(job)
        if self._views:
            for view in self._views.values():
                view.remove(job)
        if self.queues is not None:
            queue = self.queues[job.queue]
            queue.remove(job)
            if not len(queue):
                del self.queues[job.queue]

    @staticmethod
    def _enqueue(queues: dict[str, SortedJobs], job: Job) -> None:
        queue = queues.get(job.queue)
        if queue is None:
            queue = queues[job.queue] = SortedJobs(arrival)
        queue.add(job)

    def _count(self, job: Job, sign: int) -> None:
        used = self._used
        assert used is not None
        for who in (("user", job.user), ("account", job.account)):
            had = used.get(who, records.Used())
            used[who] = records.Used(had.cpus + sign * job.wanted_cpus, had.jobs + sign)

    def _rebuild(self) -> None:
        was_units = isinstance(self.pool, UnitPool)
        self.pool = self._pool()
        if was_units and isinstance(self.pool, NodePool):
            self.reservations.clear()  # they name no nodes, so nothing could be kept free for them
        runs, self.running, self.endings = self.running, {}, []
        self._used = None
        self.gangs.vacate()
        for run in runs.values():
            self.add_running(run)
        for run in self.stopping.values():
            if run.job.id in self.gangs:
                self.gangs.enter(self.pool, run)
        for stopped in self.suspended.values():
            self.pool.park(stopped.run.job, stopped.run.placement)
        jobs, self.jobs, self.infeasible, self.aside, self.begins = self.jobs, {}, {}, {}, []
        self.waiting, self._views, self.queues = SortedJobs(arrival), {}, None
        for job in jobs.values():
            self.add_job(job)
        holds, self.holds, self.flagged = self.holds, {}, {}
        for hold in holds.values():
            self.set_hold(hold)

    def _pool(self) -> Pool:
        nodes = self.nodes.values()
        return UnitPool(nodes) if not self.windows and UnitPool.serves(nodes) else NodePool(nodes)


def units_back(pool: Pool, run: Running, flagged: Mapping[int, int], holds: Mapping[int, records.Hold]) -> int:
    """Returns the units of the pool that come back when the run ends, without those that a hold takes over."""
    units = pool.returns(run.job, run.placement)
    if flagged and run.job.id in flagged:
        units -= pool.returns(run.job, records.share_of(holds[flagged[run.job.id]], run.job.id).cores)
    return units


class SortedJobs:
    """Waiting jobs in ascending order of `key`, which must end with the job's id. The key is computed once for each job.

    Cost: insertion and removal about the square root of the number of jobs; iterating needs no sorting.

    A user's key may raise. So jobs can be postponed: they count as members but get their key, and their place, only in `settle`.
    """

    __slots__ = ("_chunks", "_key", "_keys", "_lasts", "postponed")

    def __init__(self, key: Callable[[Job], _SortKey], jobs: Iterable[Job] = ()) -> None:
        self._key = key
        self.postponed: dict[int, Job] = {}
        entries = sorted((key(job), job) for job in jobs)
        self._keys = {job.id: its for its, job in entries}
        self._chunks = [entries[i : i + CHUNK] for i in range(0, len(entries), CHUNK)]
        self._lasts = [chunk[-1][0] for chunk in self._chunks]

    def __len__(self) -> int:
        return len(self._keys) + len(self.postponed)

    def __iter__(self) -> Iterator[Job]:
        # not a generator: most passes stop at the first job, and closing a generator there costs more than the rest of the pass
        return map(_JOB, chain.from_iterable(self._chunks))

    def postpone(self, job: Job) -> None:
        """Adds the job; `settle` will put it into its place."""
        self.postponed[job.id] = job

    def settle(self) -> None:
        """Sorts in the postponed jobs. After an exception of the key this object is unusable."""
        for job in self.postponed.values():
            self.add(job)
        self.postponed.clear()

    def add(self, job: Job) -> None:
        key = self._keys[job.id] = self._key(job)
        entry = (key, job)
        chunks = self._chunks
        if not chunks:
            chunks.append([entry])
            self._lasts.append(entry[0])
            return
        at = bisect_left(self._lasts, entry[0])
        if at == len(chunks):
            at -= 1
            chunk = chunks[at]
            chunk.append(entry)
            self._lasts[at] = entry[0]
        else:
            chunk = chunks[at]
            insort(chunk, entry)
        if len(chunk) > 2 * CHUNK:
            chunks[at : at + 1] = [chunk[:CHUNK], chunk[CHUNK:]]
            self._lasts[at : at + 1] = [chunk[CHUNK - 1][0], chunk[-1][0]]

    def remove(self, job: Job) -> None:
        """Raises: KeyError if the job is not a member."""
        if self.postponed.pop(job.id, None) is not None:
            return
        key = self._keys.pop(job.id)
        at = bisect_left(self._lasts, key) if len(self._lasts) > 1 else 0
        chunk = self._chunks[at]
        # most jobs start from the head; otherwise search: a shorter tuple sorts before the entry of the same key
        i = 0 if chunk[0][1] is job else bisect_left(chunk, (key,))
        del chunk[i]
        if not chunk:
            del self._chunks[at], self._lasts[at]
        elif i == len(chunk):
            self._lasts[at] = chunk[-1][0]


class CallRecords:
    """Records of calls besides waiting calls: measurements of servers over time, answered calls, learnt performance.

    Bounded in size, and independent of the order in which records are read back.
    """

    __slots__ = ("answered", "learnt", "measured")

    def __init__(self) -> None:
        self.measured: dict[str, tuple[records.Server, ...]] = {}  #: by server, the oldest first
        self.answered: tuple[records.Answered, ...] = ()  #: the oldest first
        self.learnt: dict[tuple[str, str, int], records.Learnt] = {}  #: by (server, function, power of two)

    def measure(self, server: records.Server) -> None:
        """Adds a measurement. If the server has a new life, drops its older measurements, which say nothing about it."""
        before: Sequence[records.Server] = self.measured.get(server.name, ())
        if before and before[-1].life != server.life:
            before = ()
        self.measured[server.name] = (*(old for old in before if old.at_us < server.at_us), server)[-MEASUREMENTS:]

    def answer(self, answered: records.Answered) -> None:
        """Adds an answered call and updates the learnt performance of its server: a mean first, then a moving average."""
        self.answered = tuple(sorted((*self.answered, answered), key=_by_end))[-ANSWERED:]
        if answered.operations <= 0 or answered.service_us <= 0:
            return
        key = (answered.server, answered.function, power_of(answered.operations))
        rate = answered.operations * 1e6 / answered.service_us
        known = self.learnt.get(key)
        if known is None:
            known = records.Learnt(*key, rate, 1, answered.partition)
        else:
            calls, mean = known.calls + 1, known.operations_per_s
            known = known._replace(operations_per_s=mean + max(1.0 / calls, _WEIGHT) * (rate - mean), calls=calls)
        self.learnt[key] = known
        if len(self.learnt) > LEARNT:
            least = min((other for other in self.learnt.values() if other is not known), key=lambda other: (other.calls, other))
            del self.learnt[least.server, least.function, least.power]

    def speed(self, server: str, function: str, operations: int) -> float | None:
        """Returns learnt operations/s, of the nearest known size; None if nothing of this function is known."""
        power = power_of(operations)
        known = self.learnt.get((server, function, power))
        if known is None:
            sizes = [other for name, called, other in self.learnt if name == server and called == function]
            if not sizes:
                return None
            known = self.learnt[server, function, min(sizes, key=lambda other: (abs(other - power), other))]
        return known.operations_per_s

    def restore(self, measured: Iterable[records.Server], answered: Iterable[records.Answered], learnt: Iterable[records.Learnt]) -> None:
        """Reads records back, in any order."""
        for server in sorted(measured, key=lambda one: (one.name, one.at_us)):
            self.measured[server.name] = (*self.measured.get(server.name, ()), server)
        self.answered = tuple(sorted(answered, key=_by_end))[-ANSWERED:]
        self.learnt = {(known.server, known.function, known.power): known for known in sorted(learnt)}


def power_of(operations: int) -> int:
    """Returns the exponent of the largest power of two <= operations: 1023 -> 9, 1024 -> 10; 0 for 0 and 1."""
    return max(operations.bit_length() - 1, 0)


def _by_end(answered: records.Answered) -> tuple[int, int]:
    return answered.end_us, answered.call_id
