"""Which jobs came to wait, and which went: lists of names, records of their submissions, the facts that follow; and how the state is made.

A job that cannot be judged (an invalid request, or an error while it is handled) is set aside while its name stands there: others wait.

A list of 10,000 names costs the leader 20 ms and ZooKeeper 10 ms, and every PLACE fires its watch. So a long list is not read again while
its znode's stat shows that nothing has come (counter of creations) and that only this leader's commits took names (number of children).
Answers come in the order of the questions: when a list or a stat arrives, exactly the names taken by commits answered before are missing.

`Rebuild` makes the scheduler's state from znodes: a new leader's first task, and what every leader does when its memory is in doubt. It
reads lists of waiting and running names requested after the rebuild began, then records of their submissions, blocks of running jobs (for
their nodes) and of jobs that wait again (for their number of moves), and the policies' memory. It writes nothing. Names that come
meanwhile are passed to the finished state as news. Long work runs in slices, between which the leader's loop does other things.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rmgr.coord import validity
from rmgr.coord.decisions.admitted import not_admitted
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped, Stat
from rmgr.coord.protocol.records import decode_block
from rmgr.daemons.leader.facts import job_of, known_of, marked, misplaced, node_mark, running_of, with_known
from rmgr.daemons.leader.placement.job_table import PlacedJob, Records, decode_records
from rmgr.daemons.leader.placement.orders import standing
from rmgr.daemons.leader.placement.stops import PendingStop
from rmgr.daemons.leader.term import Term, Thunk, WatchedCache, read_again
from rmgr.errors import InvalidRecord, RmgrError, StateConflict
from rmgr.model.block import MAX_INDEX, Allocation, BlockKey, job_id
from rmgr.model.node import MOST_QUANTUM_US
from rmgr.model.submission import Submission, as_started
from rmgr.runtime.story import Bell, Pause, Story, insist
from rmgr.sched.capacity.gangs import leaves_of
from rmgr.sched.job import Job, Node, Running, each_node, nodes_of
from rmgr.sched.policy import Cause
from rmgr.sched.records import Gang, Suspended
from rmgr.sched.state.cluster import ClusterState, Snapshot
from rmgr.sched.state.partition import Partition

if TYPE_CHECKING:
    from rmgr.daemons.leader.placement.placer import Placer

#: Records read by one request, and decoded in one message.
_TOGETHER = 64
#: Pause before a missing record is read again, and before an unreadable one.
_PAUSE_S, _LONG_PAUSE_S = 1.0, 60.0
#: Largest number of errors remembered.
_MOST_UNREADABLE = 1000
#: Least time between two reads of one list, and the addition for each of its names: where thousands wait, a new job waits longer anyway.
PACE_S, PACE_A_NAME_S = 0.005, 50e-6
#: A shorter list is simply read.
LONG = 200
#: When no name was taken for this long, the list is read once more, and watched.
QUIET_S = 2.0
_LEAST_S = 0.02
_RETRY_S, _NODES_S = 0.5, 0.01
#: Longest time that the loop is kept at a stretch.
SLICE_S = 0.02
#: Names or jobs handled between two yields.
SOME = 50


class Arrivals:
    """Handles the arrivals of all place queues. In the leader's loop."""

    def __init__(self, placer: Placer) -> None:
        self._placer = placer
        self._term = placer.term
        self._job_table = placer.job_table
        self._served = placer.served
        self._records = placer.records
        self._nodes = placer.nodes
        self._stops = placer.stops
        self._updates = placer.updates

    def look(self, state: ClusterState, queue: str, cache: WatchedCache[list[str]], now_us: int) -> None:
        """Compares the names that wait in the queue with memory. Raises: StateConflict if the state must be rebuilt."""
        job_table, partition = self._job_table, self._served.queues[queue].partition
        for gone in job_table.went(queue, cache):
            self._updates.tell(state, "job_withdrawn", gone, partition)
            self._updates.because(Cause.JOB_WITHDRAWN)
        for name, key in list(job_table.came(queue, cache)):
            try:
                self._add_job(state, queue, cache.path, name, key, now_us)
            except StateConflict:
                raise
            except Exception as error:  # noqa: BLE001 - the boundary of one job
                self._term.aside.add(f"{cache.path}/{name}", None, error)
                job_table.waiting.pop(job_id(key.submission, key.first), None)
                self.refuse(queue, name, f"{type(error).__name__}: {error}")

    def _add_job(self, state: ClusterState, queue: str, path: str, name: str, key: BlockKey, now_us: int) -> None:
        job_table, spec = self._job_table, self._served.queues[queue]
        partition = spec.partition
        submission = self._records.get(key.submission)
        if submission is None:
            if why := self._records.unreadable.get(key.submission):
                raise InvalidRecord(why)
            self._placer.lists.again(path)  # again when its record has come
            return
        if key.count != 1 or key.first >= MAX_INDEX:
            self.refuse(queue, name, "a placed job is a block of one task")
            return
        if spec.name in submission.queues[1:]:  # a former queue: the sweep moves the block
            job_table.settle(queue, name)
            return
        if why := not_admitted(spec, submission, key, is_newer=False):
            self.refuse(queue, name, why)
            return
        known = job_id(key.submission, key.first)
        stop = self._stops.by_job.get(known)
        is_known = known in job_table.waiting or known in job_table.placed
        if is_known or partition not in state.partitions or (stop is not None and not stop.is_back):
            self._placer.lists.again(path)  # just returned, and its node's list still names it; or the partition has no node yet
            return
        try:
            job = with_known(job_of(submission, key, partition, now_us), job_table.known.get(known))
        except ValueError as error:
            self.refuse(queue, name, str(error))
            return
        if why := misplaced(submission, job, self._served.classes.get(partition, ())):
            self.refuse(queue, name, why)
            return
        own = node_mark(submission.rigid) if submission.rigid is not None else ""
        extra, user_mark = self._placer.next_starts.mark_of(job), self._nodes.mark_of(job.user)
        if self._nodes.mark(own) | self._nodes.mark(extra) | self._nodes.mark(user_mark):
            self._nodes.tell(state)
        job = marked(marked(job, extra), user_mark)
        job_table.wait(queue, job.partition, name, key)
        if not user_mark and self._placer.backoffs.came(known, key):
            self._nodes.tell(state)
        if stop is not None:
            self._stops.returned(state, job, now_us)
            return
        self._updates.tell(state, "job_submitted", job)
        self._updates.because(Cause.JOB_SUBMITTED)

    def refuse(self, queue: str, name: str, why: str) -> None:
        """Refuses a block that is no placeable job; logs it once, and keeps the reason for its owner."""
        job_table = self._job_table
        job_table.settle(queue, name)
        if name not in job_table.refused_blocks:
            self._term.log.error("job_not_placeable", queue=queue, block=name, error=why)
        job_table.refused_blocks[name] = why


class SubmissionRecords:
    """Records by number, kept in the job table. nobodys: numbers whose last read found no record, or an unreadable one.
    unreadable: reasons for the unreadable ones.
    """

    def __init__(self, placer: Placer) -> None:
        self.nobodys: set[int] = set()
        self._term = placer.term
        self._job_table = placer.job_table
        self._wake = placer.wake
        self._wanted: list[int] = []
        self.unreadable: dict[int, str] = {}

    def get(self, number: int) -> Submission | None:
        """Returns the record, None while it is being read, or if it is gone."""
        if number not in self._job_table.submissions:
            self._job_table.submissions[number] = None
            if not self._wanted:
                self._term.soon(self._read)
            self._wanted.append(number)
        return self._job_table.submissions[number]

    def _read(self) -> None:
        wanted, self._wanted = self._wanted, []
        for at in range(0, len(wanted), _TOGETHER):
            self._term.tell(self._read_some(wanted[at : at + _TOGETHER]), "records of submissions", key=object())

    def _read_some(self, numbers: list[int]) -> Story[None]:
        try:
            records = yield self._term.get_all([paths.sub(number) for number in numbers])
        except RmgrError:
            self._forget_records(numbers)
            return
        for number, found in zip(numbers, records, strict=True):
            version = None if found is None else found.version
            self._term.aside.run(paths.sub(number), version, self._take, number, found)

    def _take(self, number: int, found: Stamped | None) -> None:
        try:
            self._job_table.submissions[number] = None if found is None else validity.submission(found.data, number)
        except RmgrError as error:
            if self.unreadable.get(number) != error.message:  # logged once
                self._term.log.error("submission_unreadable", submission=number, error=error.message)
                self.unreadable = {**dict(islice(self.unreadable.items(), _MOST_UNREADABLE)), number: error.message}
        if self._job_table.submissions.get(number) is None:
            self.nobodys.add(number)
            self._term.after(_PAUSE_S if found is None else _LONG_PAUSE_S, self._forget_records, [number])
        else:
            self.nobodys.discard(number)
        self._wake()

    def _forget_records(self, numbers: list[int]) -> None:
        for number in numbers:
            self._job_table.submissions.pop(number, None)
        self._wake()


class JobLists:
    """All lists of one leadership. In its loop.

    Attributes: pending: queue -> its list. running: node -> its list. news: paths of lists to compare in the next turn.
    """

    def __init__(self, placer: Placer) -> None:
        self.pending: dict[str, WatchedCache[list[str]]] = {}
        self.running: dict[str, WatchedCache[list[str]]] = {}
        self.news: set[str] = set()
        self._term = placer.term
        self._job_table = placer.job_table
        self._wake = placer.wake

    def serve(self, queues: Collection[str]) -> None:
        """Follows the lists of exactly these place queues from now on."""
        for name in self.pending.keys() - set(queues):
            self.pending.pop(name).stop()
        for name in set(queues) - self.pending.keys():
            self.pending[name] = self._waiting_in(name)

    def look_on(self, nodes: Iterable[str]) -> list[str]:
        """Starts reading the lists of running blocks of new nodes. Returns their names."""
        fresh = sorted(set(nodes) - self.running.keys())
        for name in fresh:
            # Pulled blocks come and go all the time: the list is watched only while jobs run on the node, and read once to find them.
            self.running[name] = self._list(paths.running_node(name), watched=False)
        return fresh

    def watch_head(self, node: str) -> None:
        """Watches the node's list as long as jobs have their head there."""
        cache = self.running.get(node)
        if cache is None:
            cache = self.running[node] = self._list(paths.running_node(node))
        wanted = self._job_table.has_jobs(node)
        if wanted and not cache.is_watched:
            cache.is_watched = True
            cache.refresh()
        cache.is_watched = wanted

    def look_at(self, path: str) -> None:
        """Reads a list again now, and compares it in the next turn."""
        self.news.add(path)
        for cache in self._all_caches():
            if cache.path == path:
                cache.refresh()
        self._wake()

    def again(self, path: str) -> None:
        """Compares the list once more in the next turn."""
        self.news.add(path)

    def take_news(self) -> set[str]:
        """Returns the paths of lists to compare now."""
        news, self.news = self.news, set()
        return news

    def all_are_news(self) -> None:
        """Compares all lists: the rebuilt state must hear of everything that came since."""
        self.news = {cache.path for cache in self._all_caches()}

    def resync(self) -> None:
        """Reads the watched lists again, in portions: the loop has other things to do."""
        self._term.tell(read_again([cache for cache in self._all_caches() if cache.is_watched]), "lists of jobs")

    def _all_caches(self) -> tuple[WatchedCache[list[str]], ...]:
        return (*self.pending.values(), *self.running.values())

    def _waiting_in(self, queue: str) -> WatchedCache[list[str]]:
        cache = LongList(self._term, paths.pending(queue), lambda: self._on_list(cache), lambda: self._job_table.took[queue])
        cache.is_chatty, cache.pace_s = True, PACE_S
        cache.refresh()
        return cache

    def _list(self, path: str, *, watched: bool = True) -> WatchedCache[list[str]]:
        cache: WatchedCache[list[str]] = WatchedCache(self._term, self._term.children, path, lambda: self._on_list(cache))
        cache.is_chatty, cache.is_watched = True, watched
        cache.pace_s = PACE_S
        cache.refresh()
        return cache

    def _on_list(self, cache: WatchedCache[list[str]]) -> None:
        cache.pace_s = PACE_S + PACE_A_NAME_S * len(cache.value or ())
        self.news.add(cache.path)
        self._wake()


class LongList(WatchedCache[list[str]]):
    """A cache of names. `took` counts the names that this leader's answered commits ever took out; `value` still contains them."""

    __slots__ = ("_count", "_creates", "_moved_s", "_noted", "_took", "_took_before", "_took_then")

    def __init__(self, term: Term, path: str, changed: Thunk, took: Callable[[], int]) -> None:
        super().__init__(term, term.children, path, changed)
        self._took = took
        self._noted: int | None = None  # counter of creations when the list in flight was requested
        self._creates: int | None = None  # the same for `value`; None if it is short, or unknown
        self._count = self._took_then = self._took_before = 0
        self._moved_s = -math.inf

    def refresh(self) -> None:
        if self._changed is not None and not self._reading and len(self.value or ()) >= LONG:
            self._term.heard(self._term.stat(self.path), self._note, about=self.path)  # answered before the list
        super().refresh()

    def _note(self, stat: Stat | None) -> None:
        self._noted = None if stat is None else stat.creates

    def _arrived(self, value: list[str] | None) -> None:
        self._creates, self._noted = self._noted if value is not None and len(value) >= LONG else None, None
        self._count, self._took_then = len(value or ()), self._took()
        self._took_before, self._moved_s = self._took_then, self._term.clock()
        super()._arrived(value)

    def _failed(self) -> None:
        self._creates = self._noted = None
        super()._failed()

    def _fired(self) -> None:
        if self._creates is None or self._reading or self._changed is None:
            super()._fired()
            return
        self._armed = False
        if self._timer is None:
            self._timer = self._term.after(max(0.0, self._read_s + self.pace_s - self._term.clock()), self._due)

    def _due(self) -> None:
        self._timer = None
        if self._creates is None:
            self.refresh()
        elif self._changed is not None and not self._reading:
            self._read_s = self._term.clock()
            self._term.heard(self._term.stat(self.path), self._looked, self.refresh, about=self.path)

    def _looked(self, stat: Stat | None) -> None:
        if self._changed is None or self._reading:
            return  # the list itself is in flight
        took, now_s = self._took(), self._term.clock()
        if took != self._took_before:
            self._took_before, self._moved_s = took, now_s
        left = self._count - (took - self._took_then)
        if stat is None or stat.creates != self._creates or stat.children != left or left < LONG or now_s - self._moved_s > QUIET_S:
            self.refresh()
        elif self._timer is None:
            self._timer = self._term.after(max(_LEAST_S, self.pace_s), self._due)


class StandingJob(NamedTuple):
    """The part of a placed job's block that placement needs."""

    allocation: Allocation
    answered: bool
    moves: int


class Rebuild:
    """One rebuild. news: rings when something has come."""

    def __init__(self, placer: Placer, news: Bell) -> None:
        self._placer = placer
        self._news = news
        self._term = placer.term
        self._job_table = placer.job_table
        self._pending, self._running = placer.lists.pending, placer.lists.running
        self._submissions = placer.records
        self._served = placer.served
        self._nodes = placer.nodes
        self._slice_end_s = 0.0
        self._told: dict[str, tuple[bool, int]] = {}  # path under /pending of a job that has run before -> answered, moves
        self.promised: dict[int, list[str]] = {}  #: waiting job -> nodes with its promise
        self.records: dict[str, tuple[bytes, int | None]] = {}  #: partition -> the policies' memory, version of its znode

    def build(self) -> Story[ClusterState]:
        """Builds the state, from the first read on."""
        began_s, partitions = self._term.clock(), sorted(self._served.partitions)
        for cache in (*self._pending.values(), *self._running.values()):
            cache.refresh()
        remembered = yield from self._read([paths.placing(partition) for partition in partitions])
        gangs = dict(zip(partitions, (yield from self._read([paths.gangs(partition) for partition in partitions])), strict=True))
        for partition, found in zip(partitions, remembered, strict=True):
            self.records[partition] = (b"", None) if found is None else (found.data, found.version)
        while not self._placer.knows_nodes():
            yield Pause(_NODES_S)
        while any(cache.asked_s < began_s for cache in (*self._pending.values(), *self._running.values())):
            yield self._news.heard()
        self._slice_end_s = self._term.clock() + SLICE_S
        waiting, there, numbers = yield from self._read_names()
        while any(self._submissions.get(number) is None and number not in self._submissions.nobodys for number in numbers):
            yield self._news.heard()
        placed: list[tuple[BlockKey, str]] = []  # (key, path)
        for path, key in there:
            submission = self._submissions.get(key.submission)
            if submission is not None and (submission.queue in self._served.queues or submission.rigid is not None):
                placed.append((key, path))
        again = [f"{paths.pending(queue)}/{name}" for queue, name, key in waiting if key.attempt > 1]
        blocks = yield from self._read_blocks([path for _, path in placed] + again)
        records = self._decode_memory()
        self.promised = yield from standing(self._term, records.values())
        stand = [(key, one) for key, path in placed if (one := blocks[path]) is not None]
        adopted = self._placer.gangs.adopt(gangs)
        return (yield from self._state(waiting, stand, records, adopted, self._placer.now_us(), self._served.half_life_us))

    def _read_names(self) -> Story[tuple[list[tuple[str, str, BlockKey]], list[tuple[str, BlockKey]], list[int]]]:
        """Returns waiting (queue, name, key) and running (path, key) blocks, and the submissions of both."""
        waiting: list[tuple[str, str, BlockKey]] = []
        there: list[tuple[str, BlockKey]] = []
        numbers: dict[int, None] = {}
        for queue, pending in self._pending.items():
            for at, (name, key) in enumerate(self._job_table.came(queue, pending)):
                numbers[key.submission] = None
                if key.count == 1 and key.first < MAX_INDEX:
                    waiting.append((queue, name, key))
                if at % SOME == 0:
                    yield from self._yield_turn()
        for node, running in list(self._running.items()):
            for name, key in paths.blocks_in(running.value):
                numbers[key.submission] = None
                there.append((f"{paths.running_node(node)}/{name}", key))
            yield from self._yield_turn()
        for number in numbers:
            self._submissions.get(number)
        return waiting, there, list(numbers)

    def _yield_turn(self) -> Story[None]:
        """Lets the leader's loop do other things after each slice of time."""
        if self._term.clock() >= self._slice_end_s:
            yield self._term.others_first()
            self._slice_end_s = self._term.clock() + SLICE_S

    # -- building

    def _state(
        self,
        waiting: list[tuple[str, str, BlockKey]],
        placed: list[tuple[BlockKey, StandingJob]],
        remembered: Mapping[str, Records],
        gangs: Mapping[str, Gang],
        now_us: int,
        half_life_us: int,
    ) -> Story[ClusterState]:
        """Makes the state; fills the job table.

        Args:
            waiting: (queue, name, key). placed: (key, block). remembered, gangs: by partition.
        """
        routes = {job: queue for records in remembered.values() for job, queue in records.routes}
        job_table, submission_of = self._job_table, self._submissions.get
        for records in remembered.values():
            job_table.since |= dict(records.since)
            job_table.marks |= dict(records.marks)
            job_table.pins |= dict(records.pins)
            job_table.stays |= {job: (start_us, end_us) for job, start_us, end_us in records.stays}
        queued = {job: at_us for records in remembered.values() for job, at_us in records.queued}
        asked = {one.job: one for records in remembered.values() for one in records.stops}
        stood = {job: (since_us, start_us, end_us) for one in remembered.values() for job, start_us, end_us, since_us in one.suspended}
        running: list[Running] = []
        stopping: dict[int, Running] = {}
        suspended: list[Suspended] = []
        for at, (key, (allocation, answered, moves)) in enumerate(placed):
            if at % SOME == 0:
                yield from self._yield_turn()
            record = submission_of(key.submission)
            submission = as_started(record, allocation.changes) if record is not None else None
            job = self._job(submission, submission.queue, key, now_us) if submission is not None else None
            if submission is None or job is None:
                continue
            job = self._with_queued_time(self._with_route(self._with_block_facts(job, submission, answered, moves), routes), queued)
            job_table.run(job.id, PlacedJob(submission.queue, job.partition, key, paths.block_name(key), allocation))
            run = running_of(job, allocation, submission, self._nodes.names)
            if job.id in asked and asked[job.id].attempt == key.attempt:
                start_us, end_us = asked[job.id].start_us, asked[job.id].end_us
                stopping[job.id] = run._replace(start_us=start_us, end_us=end_us)
            elif job.id in stood:
                since_us, start_us, end_us = stood[job.id]
                suspended.append(Suspended(run._replace(start_us=start_us, end_us=end_us), since_us))
            else:
                start_us, end_us = job_table.stays.get(job.id, (run.start_us, run.end_us))
                running.append(run._replace(start_us=start_us, end_us=end_us))
        jobs: list[Job] = []
        for at, (queue, name, key) in enumerate(waiting):
            if at % SOME == 0:
                yield from self._yield_turn()
            record = submission_of(key.submission)
            if record is not None and queue in record.queues[1:]:  # a former queue: the sweep moves the block
                job_table.settle(queue, name)
                continue
            is_placed = job_id(key.submission, key.first) in job_table.placed
            job = self._job(record, queue, key, now_us) if record is not None and not is_placed else None
            if job is not None and not self._is_misplaced(job, queue, name, key):
                if job.id in asked and asked[job.id].attempt < key.attempt:
                    queued.setdefault(job.id, now_us)  # it came back while there was no leader
                known = self._told.get(f"{paths.pending(queue)}/{name}")
                if known is not None and record is not None:
                    job = self._with_block_facts(job, record, *known)
                job = self._with_queued_time(self._with_route(job, routes), queued)
                for mark in (self._placer.next_starts.mark_of(job), self._nodes.mark_of(job.user)):
                    self._nodes.mark(mark)
                    job = marked(job, mark)
                job_table.wait(queue, job.partition, name, key)
                jobs.append(job)
        for number in {key.submission for _, _, key in waiting}:
            submission = submission_of(number)
            if submission is not None and submission.rigid is not None:
                self._nodes.mark(node_mark(submission.rigid))
        machine = self._nodes.all()
        turning = [run for run in running if job_table.placed[run.job.id].allocation.gang]
        leaving = [run for job, run in stopping.items() if job_table.placed[job].allocation.gang]
        others_run = [run for run in running if not job_table.placed[run.job.id].allocation.gang]
        running, crowded = fitting(others_run, suspended, machine, [*turning, *leaving])
        running = sorted((*running, *turning), key=lambda run: run.job.id)
        stopping |= {run.job.id: run for run in crowded}
        waits, runs = frozenset(job.id for job in jobs), frozenset(run.job.id for run in running)
        others = frozenset({*stopping, *(stopped.run.job.id for stopped in suspended)})
        kept = [records.of_jobs(partition, self._nodes.names, waits, runs, others) for partition, records in remembered.items()]
        for job_, run in stopping.items():
            one = asked.get(job_)
            guid, asked_us = (one.guid, one.asked_us) if one is not None else ("", None)
            self._placer.stops.adopt(
                PendingStop(job=job_, placed=job_table.placed[job_], guid=guid, run=run, asked_us=asked_us, route=routes.get(job_, ""))
            )
        pinned = [run.job for run in running if not job_table.may_move(run.job.id) or job_table.pins.get(run.job.id, now_us) > now_us]
        return ClusterState.restored(
            Snapshot(
                nodes=tuple(machine),
                waiting=tuple(jobs),
                running=tuple(running),
                suspended=tuple(suspended),
                stopping=tuple(stopping.values()),
                pinned=tuple((job.partition, job.id) for job in pinned),
                reservations=tuple(one for reservations, _, _ in kept for one in reservations),
                notes=tuple(one for _, notes, _ in kept for one in notes),
                gangs=gangs_of(gangs, [*turning, *leaving], machine),
                holds=tuple(one for _, _, holds in kept for one in holds),
                limits=tuple(sorted(self._served.limits.items())),
                usage=tuple(use for records in remembered.values() for use in records.charged(runs, now_us, half_life_us)),
            ),
            half_life_us,
        )

    def _job(self, submission: Submission, queue: str, key: BlockKey, now_us: int) -> Job | None:
        spec = self._served.queues.get(queue)
        if spec is None:
            return None
        try:
            return job_of(submission, key, spec.partition, now_us)
        except Exception as error:  # noqa: BLE001 - the boundary of one job
            self._placer.arrivals.refuse(queue, paths.block_name(key), str(error))
            return None

    def _is_misplaced(self, job: Job, queue: str, name: str, key: BlockKey) -> bool:
        """Sets a job aside if the queue class that its user named does not admit it, until the class does."""
        submission = self._submissions.get(key.submission)
        why = misplaced(submission, job, self._served.classes.get(job.partition, ())) if submission is not None else ""
        if why:
            self._placer.arrivals.refuse(queue, name, why)
        else:
            self._job_table.refused_blocks.pop(name, None)
        return bool(why)

    def _with_route(self, job: Job, routes: Mapping[int, str]) -> Job:
        if job.id not in routes:
            return job
        self._job_table.routes[job.id] = routes[job.id]
        return replace(job, queue=routes[job.id])

    def _with_block_facts(self, job: Job, submission: Submission, answered: bool, moves: int) -> Job:
        """Returns the job with what its block says about it."""
        known = known_of(submission, answered, moves)
        found = with_known(job, known)
        if found is not job:
            self._job_table.learn(job.id, known)
        return found

    def _with_queued_time(self, job: Job, queued: Mapping[int, int]) -> Job:
        """Returns the job with the time since when it is back in its queue, if it gave up its nodes."""
        if job.id not in queued:
            return job
        self._job_table.queued[job.id] = queued[job.id]
        return replace(job, queued_us=queued[job.id])

    # -- reading

    def _read(self, wanted: list[str]) -> Story[list[Stamped | None]]:
        """Reads the data of znodes, however long it takes."""
        return insist(lambda: self._term.get_all(wanted), _RETRY_S)

    def _read_blocks(self, wanted: list[str]) -> Story[dict[str, StandingJob | None]]:
        """Reads blocks by path; None for gone or pulled ones."""
        blocks: dict[str, StandingJob | None] = {}
        for at in range(0, len(wanted), _TOGETHER):
            some = wanted[at : at + _TOGETHER]
            for path, found in zip(some, (yield from self._read(some)), strict=True):
                blocks[path] = None
                if found is not None:
                    self._term.aside.run(path, found.version, self._take_block, blocks, path, found)
            yield from self._yield_turn()
        return blocks

    def _take_block(self, blocks: dict[str, StandingJob | None], path: str, found: Stamped) -> None:
        try:
            data = decode_block(found.data)
        except msgspec.DecodeError as error:
            self._term.log.error("block_unreadable", path=path, error=str(error))
            return
        if data.answered or data.moves:
            self._told[path] = (data.answered, data.moves)
        if data.allocation is not None:
            blocks[path] = StandingJob(data.allocation, data.answered, data.moves)

    def _decode_memory(self) -> dict[str, Records]:
        """Decodes the policies' memory by partition; unreadable records are logged and left out."""
        found = {}
        for partition, (data, _) in sorted(self.records.items()):
            try:
                found[partition] = decode_records(data)
            except msgspec.DecodeError as error:
                self._term.log.error("placing_records_unreadable", partition=partition, error=str(error))
        return found


def gangs_of(known: Mapping[str, Gang], members: list[Running], machine: list[Node]) -> tuple[Gang, ...]:
    """Returns the gangs of all members: from the records, and for members without a record, one in which all share all nodes in turn.

    Nodes go on by the last record that they could read; a job that is in none stands still until the next record.
    """
    found: list[Gang] = []
    for partition in sorted({run.job.partition for run in members}):
        there = sorted(run.job.id for run in members if run.job.partition == partition)
        gang = known.get(partition)
        homes = {} if gang is None else gang.homes
        missing = tuple((job, 1) for job in there if job not in homes)
        if gang is None:
            has = {node.id: node for node in machine if node.partition == partition}
            if not has:  # all nodes are gone: take those on which its members stand
                partition_members = [run for run in members if run.job.partition == partition]
                stand = [(at, count * run.job.threads) for run in partition_members for at, count in each_node(run.placement)]
                has = {at: Node(id=at, cores=cores, partition=partition) for at, cores in sorted(stand)}
            leaves = leaves_of(has)
            gang = Gang("dqt", MOST_QUANTUM_US, 0, 0, 2, leaves, (), policy="dqt", partition=partition)
        if missing:
            queues = dict(gang.queues)
            queues[0] = (*queues.get(0, ()), *missing)
            gang = gang._replace(queues=tuple(sorted(queues.items())), front=())
        found.append(gang)
    return tuple(found)


def fitting(
    running: list[Running], suspended: list[Suspended], machine: list[Node], members: list[Running]
) -> tuple[list[Running], list[Running]]:
    """Returns (runs that fit on their nodes, runs that overlap with those).

    A job that refused to stop goes on beside others that were given its nodes and wait there: the latest to come fit.
    members: of gangs, which have their nodes as a whole.
    Cost: O(runs) if no node is counted twice.
    """
    taken: Counter[int] = Counter()
    has = {node.id: node.cores for node in machine}
    for run in running:
        for node, processes in each_node(run.placement):
            taken[node] += has.get(node, 0) if run.job.exclusive else processes * run.job.threads
    owned = {node for run in members for node in nodes_of(run.placement)}
    full = {node for node, cores in taken.items() if node in owned or cores > has.get(node, cores)}
    if not full:
        return running, []
    parts: dict[str, Partition] = {}
    for name in sorted({one.partition for one in machine}):
        parts[name] = Partition(name, [one for one in machine if one.partition == name])
    for stopped in suspended:
        parts[stopped.run.job.partition].suspended[stopped.run.job.id] = stopped
    for run in members:
        part = parts.get(run.job.partition)
        if part is None:
            continue  # its nodes have left
        part.running[run.job.id] = run
        part.gangs.of[run.job.id] = "its gang"
    kept, crowded = [], []
    for run in sorted(running, key=lambda run: (-run.start_us, run.job.id)):
        part = parts[run.job.partition]
        if part.has_room_for(run):
            part.running[run.job.id] = run
            kept.append(run)
        else:
            crowded.append(run)
    return sorted(kept, key=lambda run: run.job.id), crowded
