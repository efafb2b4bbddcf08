"""Tells the scheduler's state which jobs have come to wait and which have gone, one list of names at a time.

A job that cannot be told (its request is none, or its handling raises) is set aside while its name stands there: others wait behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from rmgr.coord.decisions.admitted import not_admitted
from rmgr.daemons.leader.core.facts import job_of, marked, misplaced, node_mark, with_known
from rmgr.daemons.leader.core.term import Term
from rmgr.daemons.leader.core.watched_cache import WatchedCache
from rmgr.daemons.leader.nodes.scheduled import ScheduledNodes
from rmgr.daemons.leader.placement.submissions import SubmissionRecords
from rmgr.daemons.leader.records.job_table import JobTable
from rmgr.daemons.leader.records.served import ServedPartitions
from rmgr.daemons.leader.records.updates import StateUpdates
from rmgr.errors import InvalidRecord, StateConflict
from rmgr.model.tasks.block import BlockKey
from rmgr.model.tasks.placing import MAX_INDEX, job_id
from rmgr.sched.job import Job
from rmgr.sched.policy import Cause
from rmgr.sched.state.cluster import ClusterState


class ReturningJob(Protocol):
    """A job that was asked to give its nodes up. is_back: it waits in its queue."""

    is_back: bool


class Returns(Protocol):
    """Knows the jobs that were asked to give their nodes up, and takes them back."""

    @property
    def by_job(self) -> Mapping[int, ReturningJob]: ...

    def returned(self, state: ClusterState, job: Job, now_us: int) -> None:
        """The job waits again."""
        ...


class Arrivals:
    """Reads the arrivals of all place queues. In the leader's loop.

    Args:
        mark_of: says where the next start of a job must be ("" = anywhere).
        came_back: told of each job that comes to wait; True: its node is left alone from now on.
        again: has the list at this path compared in the next turn, too.
    """

    def __init__(
        self,
        term: Term,
        job_table: JobTable,
        served: ServedPartitions,
        records: SubmissionRecords,
        nodes: ScheduledNodes,
        stops: Returns,
        updates: StateUpdates,
        *,
        mark_of: Callable[[Job], str],
        came_back: Callable[[int, BlockKey], bool],
        again: Callable[[str], None],
    ) -> None:
        self._term = term
        self._job_table = job_table
        self._served = served
        self._records = records
        self._nodes = nodes
        self._stops = stops
        self._updates = updates
        self._mark_of = mark_of
        self._came_back = came_back
        self._again = again

    def look(self, state: ClusterState, queue: str, cache: WatchedCache[list[str]], now_us: int) -> None:
        """Compares the names that wait in the queue with what is known. Raises: StateConflict when the state must be made again."""
        job_table, partition = self._job_table, self._served.queues[queue].partition
        for gone in job_table.went(queue, cache):
            self._updates.tell(state, "job_withdrawn", gone, partition)
            self._updates.because(Cause.JOB_WITHDRAWN)
        for name, key in list(job_table.came(queue, cache)):
            try:
                self._came(state, queue, cache.path, name, key, now_us)
            except StateConflict:
                raise
            except Exception as error:  # noqa: BLE001 - the boundary of one job
                self._term.aside.add(f"{cache.path}/{name}", None, error)
                job_table.waiting.pop(job_id(key.submission, key.first), None)
                self.refuse(queue, name, f"{type(error).__name__}: {error}")

    def _came(self, state: ClusterState, queue: str, path: str, name: str, key: BlockKey, now_us: int) -> None:
        job_table, spec = self._job_table, self._served.queues[queue]
        partition = spec.partition
        submission = self._records.get(key.submission)
        if submission is None:
            if why := self._records.odd.get(key.submission):
                raise InvalidRecord(why)
            self._again(path)  # when its record has come
            return
        if key.count != 1 or key.first >= MAX_INDEX:
            self.refuse(queue, name, "a placed job is a block of one task")
            return
        if spec.name in submission.queues[1:]:  # from there it is moved
            job_table.settle(queue, name)
            return
        if why := not_admitted(spec, submission, key, is_newer=False):
            self.refuse(queue, name, why)
            return
        known = job_id(key.submission, key.first)
        stop = self._stops.by_job.get(known)
        is_known = known in job_table.waiting or known in job_table.placed
        if is_known or partition not in state.partitions or (stop is not None and not stop.is_back):
            self._again(path)  # it was returned, and is still read on its node; or no node has come yet
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
        extra, whose = self._mark_of(job), self._nodes.mark_of(job.user)
        if self._nodes.mark(own) | self._nodes.mark(extra) | self._nodes.mark(whose):
            self._nodes.tell(state)
        job = marked(marked(job, extra), whose)
        job_table.wait(queue, job.partition, name, key)
        if not whose and self._came_back(known, key):
            self._nodes.tell(state)
        if stop is not None:
            self._stops.returned(state, job, now_us)
            return
        self._updates.tell(state, "job_submitted", job)
        self._updates.because(Cause.JOB_SUBMITTED)

    def refuse(self, queue: str, name: str, why: str) -> None:
        """It is no job that can be placed; told once, and its owner is told when he asks."""
        job_table = self._job_table
        job_table.settle(queue, name)
        if name not in job_table.odd:
            self._term.log.error("job_not_placeable", queue=queue, block=name, error=why)
        job_table.odd[name] = why
