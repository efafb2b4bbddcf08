"""Makes the scheduler's state out of names, blocks and what policies remember. Pure but for the job table, which it fills.

It takes its time in slices: each generator yields now and then, so that the leader's loop does other things.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol

from rmgr.coord.protocol import paths
from rmgr.daemons.leader.core.facts import job_of, known_of, marked, misplaced, node_mark, running_of, with_known
from rmgr.daemons.leader.nodes.scheduled import ScheduledNodes
from rmgr.daemons.leader.placement.stops import PendingStop
from rmgr.daemons.leader.records.job_table import JobTable, PlacedJob
from rmgr.daemons.leader.records.records import Records
from rmgr.daemons.leader.records.served import ServedPartitions
from rmgr.model.cluster.gang import MOST_QUANTUM_US
from rmgr.model.tasks.block import BlockKey
from rmgr.model.tasks.placing import Allocation, job_id
from rmgr.model.tasks.submission import Submission, as_started
from rmgr.sched.capacity.gangs import leaves_of
from rmgr.sched.capacity.holds import each_node
from rmgr.sched.job import Job, Node, Running, nodes_of
from rmgr.sched.records import Gang, Suspended
from rmgr.sched.state.cluster import ClusterState, Snapshot
from rmgr.sched.state.partition import Partition

#: So many names or jobs lie between two yields.
SOME = 50


class StandingJob(NamedTuple):
    """The part of a placed job's block that placing needs."""

    allocation: Allocation
    answered: bool
    moves: int


class Adopter(Protocol):
    """Goes on with a job that a leader before has asked to give its nodes up."""

    def adopt(self, stop: PendingStop) -> None: ...


class StateBuilding:
    """Builds jobs for one leadership. In its loop.

    Args:
        submission: the record of that number, None = it is unknown.
        mark_of: says where the next start of a job must be ("" = anywhere).
        refuse: sets the block (queue, name) aside, and says why.
    """

    def __init__(
        self,
        job_table: JobTable,
        served: ServedPartitions,
        nodes: ScheduledNodes,
        stops: Adopter,
        *,
        submission: Callable[[int], Submission | None],
        mark_of: Callable[[Job], str],
        refuse: Callable[[str, str, str], None],
    ) -> None:
        self._job_table = job_table
        self._served = served
        self._nodes = nodes
        self._stops = stops
        self._submission = submission
        self._mark_of = mark_of
        self._refuse = refuse

    def state(
        self,
        waiting: list[tuple[str, str, BlockKey]],
        placed: list[tuple[BlockKey, StandingJob]],
        told: Mapping[str, tuple[bool, int]],
        remembered: Mapping[str, Records],
        gangs: Mapping[str, Gang],
        *,
        now_us: int,
        half_life_us: int,
    ) -> Generator[bool, None, ClusterState]:
        """The state. Yields True, now and then.

        Args:
            waiting: (queue, name, key). placed: (key, block). remembered, gangs: by partition.
            told: path of a waiting block -> whether its program has answered, how often it was moved.
        """
        routes = {job: queue for records in remembered.values() for job, queue in records.routes}
        job_table, submission_of = self._job_table, self._submission
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
                yield True
            record = submission_of(key.submission)
            submission = as_started(record, allocation.changes) if record is not None else None
            job = self._job(submission, submission.queue, key, now_us) if submission is not None else None
            if submission is None or job is None:
                continue
            job = self._queued(self._routed(self._known(job, submission, answered, moves), routes), queued)
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
                yield True
            record = submission_of(key.submission)
            if record is not None and queue in record.queues[1:]:  # from there it is moved
                job_table.settle(queue, name)
                continue
            is_placed = job_id(key.submission, key.first) in job_table.placed
            job = self._job(record, queue, key, now_us) if record is not None and not is_placed else None
            if job is not None and not self._is_misplaced(job, queue, name, key):
                if job.id in asked and asked[job.id].attempt < key.attempt:
                    queued.setdefault(job.id, now_us)  # it came back while nobody led
                known = told.get(f"{paths.pending(queue)}/{name}")
                if known is not None and record is not None:
                    job = self._known(job, record, *known)
                job = self._queued(self._routed(job, routes), queued)
                for mark in (self._mark_of(job), self._nodes.mark_of(job.user)):
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
            self._stops.adopt(
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
            self._refuse(queue, paths.block_name(key), str(error))
            return None

    def _is_misplaced(self, job: Job, queue: str, name: str, key: BlockKey) -> bool:
        """Its user named a queue class that does not admit it: it is set aside until the class does."""
        submission = self._submission(key.submission)
        why = misplaced(submission, job, self._served.classes.get(job.partition, ())) if submission is not None else ""
        if why:
            self._refuse(queue, name, why)
        else:
            self._job_table.odd.pop(name, None)
        return bool(why)

    def _routed(self, job: Job, routes: Mapping[int, str]) -> Job:
        if job.id not in routes:
            return job
        self._job_table.routes[job.id] = routes[job.id]
        return replace(job, queue=routes[job.id])

    def _known(self, job: Job, submission: Submission, answered: bool, moves: int) -> Job:
        """With what its block tells of it."""
        known = known_of(submission, answered, moves)
        found = with_known(job, known)
        if found is not job:
            self._job_table.learn(job.id, known)
        return found

    def _queued(self, job: Job, queued: Mapping[int, int]) -> Job:
        """One that was given up stands in its queue since then."""
        if job.id not in queued:
            return job
        self._job_table.queued[job.id] = queued[job.id]
        return replace(job, queued_us=queued[job.id])


def _gangs(known: Mapping[str, Gang], members: list[Running], machine: list[Node]) -> tuple[Gang, ...]:
    """The gangs of all members: what the records say, and for members that no record has, one in which all share all nodes in turn.

    Nodes go on by the last record that they could read; whoever is in none stands still until the next one is set.
    """
    found: list[Gang] = []
    for partition in sorted({run.job.partition for run in members}):
        there = sorted(run.job.id for run in members if run.job.partition == partition)
        gang = known.get(partition)
        homes = {} if gang is None else gang.homes
        missing = tuple((job, 1) for job in there if job not in homes)
        if gang is None:
            has = {node.id: node for node in machine if node.partition == partition}
            if not has:  # all of them are gone: where its members stand
                theirs = [run for run in members if run.job.partition == partition]
                stand = [(at, count * run.job.threads) for run in theirs for at, count in each_node(run.placement)]
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
    """(what stands on its nodes as the scheduler counts it, what stands there beside it).

    A job that has refused to stop goes on under others that were given its nodes and wait there: the last to come are counted.
    members: of gangs, which have their nodes as a whole.
    Cost: O(runs) where nothing is counted twice.
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
