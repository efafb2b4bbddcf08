"""The scheduler's state made from znodes: what a new leader does first, and what every leader does when it no longer trusts its memory.

Read in this order: lists of waiting and running names that were asked for after the rebuild began, records of their submissions, the blocks
of running jobs (they say where each stands) and of those that wait again (how often they were moved), and what policies remember. Nothing
is written. Names that come meanwhile are not waited for, they are told the state as news; and all that takes time is done in slices,
between which the leader's loop does other things.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.records import decode_block
from rmgr.daemons.leader.core.context import LeaderContext
from rmgr.daemons.leader.core.facts import job_of, known_of, marked, misplaced, node_mark, running_of, with_known
from rmgr.daemons.leader.core.watched_cache import WatchedCache
from rmgr.daemons.leader.placement.stops import PendingStop
from rmgr.daemons.leader.records.job_table import PlacedJob
from rmgr.daemons.leader.records.records import Records, decode_records
from rmgr.daemons.leader.records.reserved import Standing
from rmgr.model.tasks.block import BlockKey
from rmgr.model.tasks.placing import MAX_INDEX, Allocation, job_id
from rmgr.sched.job import Job, Node, Running
from rmgr.sched.records import Suspended
from rmgr.sched.state.cluster import ClusterState
from rmgr.sched.state.partition import Partition
from rmgr.sched.state.snapshot import Snapshot

if TYPE_CHECKING:
    from rmgr.daemons.leader.placement.placer import Placer
    from rmgr.model.tasks.submission import Submission

_RETRY_S = 0.5
#: Until it is asked again whose key it is that an allocation names.
_LOOK_S = 0.02
#: Blocks that are read by one request, and decoded in one message.
_TOGETHER = 64
#: So long the loop is kept at a time; and how many names or jobs lie between two looks at the clock.
SLICE_S, _SOME = 0.02, 50


class _Stand(NamedTuple):
    """What is needed of the block of a placed job."""

    allocation: Allocation
    answered: bool
    moves: int


class Rebuild:
    """One of them. `step` is called again and again, until it answers."""

    def __init__(
        self,
        context: LeaderContext,
        placer: Placer,
        pending: Mapping[str, WatchedCache[list[str]]],
        running: Mapping[str, WatchedCache[list[str]]],
        partitions: set[str],
    ) -> None:
        self._context = context
        self._placer = placer
        self._pending, self._running = pending, running
        self._partitions = sorted(partitions)
        self._began_s = context.clock()
        self._blocks: dict[str, _Stand | None] = {}  # path under /running; None: gone, or pulled work
        self._told: dict[str, tuple[bool, int]] = {}  # path under /pending of one that has run before -> answered, moves
        self._reading = 0
        self._work: Generator[bool, None, ClusterState] | None = None
        self.promised: dict[int, list[str]] = {}  #: waiting job -> nodes on which its promise stands
        self.records: dict[str, tuple[bytes, int | None]] = {}  #: partition -> what policies remember, version of its znode
        for cache in (*pending.values(), *running.values()):
            cache.refresh()
        for partition in self._partitions:
            self._read(paths.placing(partition), partial(self._on_records, partition))

    def step(self, half_life_us: int) -> ClusterState | None:
        """The state, once it is made; what comes, or is still to do, wakes the placer for the next step."""
        lists = (*self._pending.values(), *self._running.values())
        if len(self.records) < len(self._partitions) or any(cache.asked_s < self._began_s for cache in lists):
            return None
        if self._reading:
            return None  # each answer wakes us
        if self._work is None:
            self._work = self._making(half_life_us)
        end_s = self._context.clock() + SLICE_S
        try:
            while next(self._work):
                if self._context.clock() >= end_s:
                    self._placer.wake()
                    return None
        except StopIteration as made:
            state: ClusterState = made.value
            return state
        return None

    def _making(self, half_life_us: int) -> Generator[bool, None, ClusterState]:
        """All of it. Yields True: there is more to do; False: something must come first."""
        placer = self._placer
        waiting: list[tuple[str, str, BlockKey]] = []  # (queue, name, key)
        there: list[tuple[str, BlockKey]] = []  # (path, key) under /running
        numbers: dict[int, None] = {}
        for queue, pending in self._pending.items():
            for at, (name, key) in enumerate(placer.job_table.came(queue, pending)):
                numbers[key.submission] = None
                if key.count == 1 and key.first < MAX_INDEX:
                    waiting.append((queue, name, key))
                if at % _SOME == 0:
                    yield True
        for node, running in list(self._running.items()):
            for name, key in paths.blocks_in(running.value):
                numbers[key.submission] = None
                there.append((f"{paths.running_node(node)}/{name}", key))
            yield True
        for number in numbers:
            placer.submission(number)
        for number in numbers:
            while placer.submission(number) is None and number not in placer.records.nobodys:
                yield False
        placed: list[tuple[BlockKey, str, str]] = []  # (key, queue, path)
        for path, key in there:
            submission = placer.submission(key.submission)
            if submission is not None and (submission.queue in placer.queues or submission.rigid is not None):
                placed.append((key, submission.queue, path))
        again = [f"{paths.pending(queue)}/{name}" for queue, name, key in waiting if key.attempt > 1]
        wanted = [path for _, _, path in placed] + again
        for at in range(0, len(wanted), _TOGETHER):
            self._read_blocks(wanted[at : at + _TOGETHER])
        promises = Standing(self._context, self._remembered().values(), placer.wake)
        while self._reading or not promises.is_read:
            yield False
        self.promised = promises.found
        stand = [(key, queue, one) for key, queue, path in placed if (one := self._blocks[path]) is not None]
        return (yield from self._state(waiting, stand, half_life_us))

    # -- reading

    def _read(self, path: str, then: Callable[[Stamped | None], None]) -> None:
        self._reading += 1
        self._context.get(path, partial(self._arrived, then), failed=partial(self._failed, path, then))

    def _arrived(self, then: Callable[[Stamped | None], None], found: Stamped | None) -> None:
        self._reading -= 1
        then(found)

    def _failed(self, path: str, then: Callable[[Stamped | None], None]) -> None:
        self._reading -= 1
        self._context.after(_RETRY_S, partial(self._read, path, then))

    def _on_records(self, partition: str, found: Stamped | None) -> None:
        self.records[partition] = (b"", None) if found is None else (found.data, found.version)
        self._placer.wake()

    def _read_blocks(self, wanted: list[str]) -> None:
        self._reading += 1
        self._context.get_all(wanted, partial(self._on_blocks, wanted), failed=partial(self._no_blocks, wanted))

    def _on_blocks(self, wanted: list[str], blocks: list[Stamped | None]) -> None:
        self._reading -= 1
        for path, found in zip(wanted, blocks, strict=True):
            if not self._context.aside.run(path, None if found is None else found.version, partial(self._on_block, path, found)):
                self._blocks[path] = None
        self._placer.wake()

    def _no_blocks(self, wanted: list[str]) -> None:
        self._reading -= 1
        self._context.after(_RETRY_S, partial(self._read_blocks, wanted))

    def _on_block(self, path: str, found: Stamped | None) -> None:
        try:
            data = None if found is None else decode_block(found.data)
            allocation = None if data is None else data.allocation
            if data is not None and (data.answered or data.moves):
                self._told[path] = (data.answered, data.moves)
            self._blocks[path] = None if data is None or allocation is None else _Stand(allocation, data.answered, data.moves)
            if found is not None and allocation is not None and path.startswith(f"{paths.RUNNING}/"):
                self._look(path, allocation, found.stat.czxid)
        except msgspec.MsgspecError as error:
            self._context.log.error("block_unreadable", path=path, error=str(error))
            self._blocks[path] = None

    def _look(self, path: str, allocation: Allocation, zxid: int) -> None:
        """Whether a leader has placed it there: what somebody else has put there takes nothing from anybody."""
        node, _, name = path.removeprefix(f"{paths.RUNNING}/").partition("/")
        why = self._context.placings.look(node, name, allocation, zxid=zxid)
        if why is None:
            self._reading += 1
            self._context.after(_LOOK_S, partial(self._look_again, path, allocation, zxid))
        elif why:
            self._context.log.warning("block_not_placed", path=path, why=why)
            self._blocks[path] = None

    def _look_again(self, path: str, allocation: Allocation, zxid: int) -> None:
        self._reading -= 1
        self._look(path, allocation, zxid)
        self._placer.wake()

    # -- building

    def _state(
        self, waiting: list[tuple[str, str, BlockKey]], placed: list[tuple[BlockKey, str, _Stand]], half_life_us: int
    ) -> Generator[bool, None, ClusterState]:
        placer, now_us = self._placer, self._placer.now_us()
        remembered = self._remembered()
        routes = {job: queue for records in remembered.values() for job, queue in records.routes}
        job_table = placer.job_table
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
        for at, (key, queue, (allocation, answered, moves)) in enumerate(placed):
            if at % _SOME == 0:
                yield True
            job = self._job(queue, key, now_us)
            if job is None:
                continue
            submission = placer.submission(key.submission)
            assert submission is not None
            job = self._queued(self._routed(self._known(job, submission, answered, moves), routes), queued)
            job_table.run(job.id, PlacedJob(queue, job.partition, key, paths.block_name(key), allocation))
            run = running_of(job, allocation, submission, placer.names)
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
            if at % _SOME == 0:
                yield True
            job = None if job_id(key.submission, key.first) in placer.job_table.placed else self._job(queue, key, now_us)
            if job is not None and not self._is_misplaced(job, queue, name, key):
                if job.id in asked and asked[job.id].attempt < key.attempt:
                    queued.setdefault(job.id, now_us)  # it came back while nobody led
                told = self._told.get(f"{paths.pending(queue)}/{name}")
                submission = placer.submission(key.submission)
                if told is not None and submission is not None:
                    job = self._known(job, submission, *told)
                job = self._queued(self._routed(job, routes), queued)
                for mark in (placer.user_requests.mark_of(job.id, job), placer.whose(job.user)):
                    placer.mark(mark)
                    job = marked(job, mark)
                job_table.wait(queue, job.partition, name, key)
                jobs.append(job)
        for number in {key.submission for _, _, key in waiting}:
            submission = placer.submission(number)
            if submission is not None and submission.rigid is not None:
                placer.mark(node_mark(submission.rigid))
        machine = placer.machine()
        running, crowded = _fitting(running, suspended, machine)
        stopping |= {run.job.id: run for run in crowded}
        waits, runs = frozenset(job.id for job in jobs), frozenset(run.job.id for run in running)
        others = frozenset({*stopping, *(stopped.run.job.id for stopped in suspended)})
        kept = [records.of_jobs(partition, placer.names, waits, runs, others) for partition, records in remembered.items()]
        for job_, run in stopping.items():
            one = asked.get(job_)
            guid, asked_us = (one.guid, one.asked_us) if one is not None else ("", None)
            placer.stops.adopt(
                PendingStop(job=job_, placed=job_table.placed[job_], guid=guid, run=run, asked_us=asked_us, route=routes.get(job_, ""))
            )
        pinned = [run.job for run in running if not placer.may_move(run.job.id) or job_table.pins.get(run.job.id, now_us) > now_us]
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
                holds=tuple(one for _, _, holds in kept for one in holds),
                limits=tuple(sorted(placer.limits.items())),
                usage=tuple(use for records in remembered.values() for use in records.charged(runs, now_us, half_life_us)),
            ),
            half_life_us,
        )

    def _job(self, queue: str, key: BlockKey, now_us: int) -> Job | None:
        submission = self._placer.submission(key.submission)
        spec = self._placer.queues.get(queue)
        if submission is None or spec is None:
            return None
        try:
            return job_of(submission, key, spec.partition, now_us)
        except Exception as error:  # noqa: BLE001 - the boundary of one job
            self._placer.arrivals.refuse(queue, paths.block_name(key), str(error))
            return None

    def _is_misplaced(self, job: Job, queue: str, name: str, key: BlockKey) -> bool:
        """Its user named a queue class that does not admit it: it is set aside until the class does."""
        placer, submission = self._placer, self._placer.submission(key.submission)
        why = misplaced(submission, job, placer.classes.get(job.partition, ())) if submission is not None else ""
        if why:
            placer.arrivals.refuse(queue, name, why)
        else:
            placer.job_table.odd.pop(name, None)
        return bool(why)

    def _routed(self, job: Job, routes: Mapping[int, str]) -> Job:
        if job.id not in routes:
            return job
        self._placer.job_table.routes[job.id] = routes[job.id]
        return replace(job, queue=routes[job.id])

    def _known(self, job: Job, submission: Submission, answered: bool, moves: int) -> Job:
        """With what its block tells of it."""
        known = known_of(submission, answered, moves)
        found = with_known(job, known)
        if found is not job:
            self._placer.job_table.learn(job.id, known)
        return found

    def _queued(self, job: Job, queued: Mapping[int, int]) -> Job:
        """One that was given up stands in its queue since then."""
        if job.id not in queued:
            return job
        self._placer.job_table.queued[job.id] = queued[job.id]
        return replace(job, queued_us=queued[job.id])

    def _remembered(self) -> dict[str, Records]:
        """By partition; what cannot be read is told, and forgotten."""
        found = {}
        for partition, (data, _) in sorted(self.records.items()):
            try:
                found[partition] = decode_records(data)
            except msgspec.MsgspecError as error:
                self._context.log.error("placing_records_unreadable", partition=partition, error=str(error))
        return found


def _fitting(running: list[Running], suspended: list[Suspended], machine: list[Node]) -> tuple[list[Running], list[Running]]:
    """(what stands on its nodes as the scheduler counts it, what stands there beside it).

    A job that has refused to stop goes on under others that were given its nodes and wait there: the last to come are counted.
    Cost: O(runs) where nothing is counted twice.
    """
    taken: Counter[int] = Counter()
    has = {node.id: node.cores for node in machine}
    for run in running:
        for first, last, processes in run.placement:
            for node in range(first, last + 1):
                taken[node] += has.get(node, 0) if run.job.exclusive else processes * run.job.threads
    full = {node for node, cores in taken.items() if cores > has.get(node, cores)}
    if not full:
        return running, []
    parts: dict[str, Partition] = {}
    for name in sorted({one.partition for one in machine}):
        parts[name] = Partition(name, [one for one in machine if one.partition == name])
    for stopped in suspended:
        parts[stopped.run.job.partition].suspended[stopped.run.job.id] = stopped
    kept, crowded = [], []
    for run in sorted(running, key=lambda run: (-run.start_us, run.job.id)):
        part = parts[run.job.partition]
        if part.has_room_for(run):
            part.running[run.job.id] = run
            kept.append(run)
        else:
            crowded.append(run)
    return sorted(kept, key=lambda run: run.job.id), crowded
