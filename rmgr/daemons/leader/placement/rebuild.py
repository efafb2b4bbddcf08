"""Makes the scheduler's state from znodes: a new leader's first task, and what every leader does when its memory is in doubt.

Reads in this order: lists of waiting and running names requested after the rebuild began, records of their submissions, blocks of running
jobs (for their nodes) and of jobs that wait again (for their number of moves), and the policies' memory. Writes nothing. Names that come
meanwhile are passed to the finished state as news. Long work runs in slices, between which the leader's loop does other things.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.records import decode_block
from rmgr.daemons.leader.facts import job_of, known_of, marked, misplaced, node_mark, running_of, with_known
from rmgr.daemons.leader.placement.job_table import PlacedJob, Records, decode_records
from rmgr.daemons.leader.placement.orders import standing
from rmgr.daemons.leader.placement.stops import PendingStop
from rmgr.model.cluster.node import MOST_QUANTUM_US
from rmgr.model.tasks.block import MAX_INDEX, Allocation, BlockKey, job_id
from rmgr.model.tasks.submission import Submission, as_started
from rmgr.runtime.story import Bell, Pause, Story, insist
from rmgr.sched.capacity.gangs import leaves_of
from rmgr.sched.capacity.holds import each_node
from rmgr.sched.job import Job, Node, Running, nodes_of
from rmgr.sched.records import Gang, Suspended
from rmgr.sched.state.cluster import ClusterState, Snapshot
from rmgr.sched.state.partition import Partition

if TYPE_CHECKING:
    from rmgr.daemons.leader.placement.placer import Placer

_RETRY_S, _NODES_S = 0.5, 0.01
#: Blocks read by one request, and decoded in one message.
_TOGETHER = 64
#: Longest time that the loop is kept at a stretch.
SLICE_S = 0.02
#: Names or jobs handled between two yields.
SOME = 50


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
        self._tree, self._term = placer.context.tree, placer.context.term
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
        began_s, partitions = self._tree.clock(), sorted(self._served.partitions)
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
        self._slice_end_s = self._tree.clock() + SLICE_S
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
        self.promised = yield from standing(self._tree, records.values())
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
        if self._tree.clock() >= self._slice_end_s:
            yield self._tree.others_first()
            self._slice_end_s = self._tree.clock() + SLICE_S

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
        running, crowded = _fitting(others_run, suspended, machine, [*turning, *leaving])
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
                gangs=_gangs(gangs, [*turning, *leaving], machine),
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
        return insist(lambda: self._tree.get_all(wanted), _RETRY_S)

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


def _gangs(known: Mapping[str, Gang], members: list[Running], machine: list[Node]) -> tuple[Gang, ...]:
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


def _fitting(
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
        for first, last, processes in run.placement:
            for node in range(first, last + 1):
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
