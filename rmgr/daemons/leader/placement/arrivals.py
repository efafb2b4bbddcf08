"""Tells the scheduler's state which jobs have come to wait and which have gone, one list of names at a time.

A job that cannot be told (its request is none, or its handling raises) is set aside while its name stands there: others wait behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmgr.coord.decisions.admitted import not_admitted
from rmgr.daemons.leader.core.context import LeaderContext
from rmgr.daemons.leader.core.facts import job_of, marked, misplaced, node_mark, with_known
from rmgr.daemons.leader.core.watched_cache import WatchedCache
from rmgr.errors import InvalidRecord, StateConflict
from rmgr.model.tasks.block import BlockKey
from rmgr.model.tasks.placing import MAX_INDEX, job_id
from rmgr.sched.policy import Cause
from rmgr.sched.state.cluster import ClusterState

if TYPE_CHECKING:
    from rmgr.daemons.leader.placement.placer import Placer


class Arrivals:
    """Of all place queues. In the leader's loop."""

    def __init__(self, context: LeaderContext, placer: Placer) -> None:
        self._context = context
        self._placer = placer

    def look(self, state: ClusterState, queue: str, cache: WatchedCache[list[str]], now_us: int) -> None:
        """Compares the names that wait in the queue with what is known. Raises: StateConflict when the state must be made again."""
        placer = self._placer
        partition = placer.queues[queue].partition
        for gone in placer.job_table.went(queue, cache):
            placer.tell(state, "job_withdrawn", gone, partition)
            placer.because(Cause.JOB_WITHDRAWN)
        for name, key in list(placer.job_table.came(queue, cache)):
            try:
                self._came(state, queue, cache.path, name, key, now_us)
            except StateConflict:
                raise
            except Exception as error:  # noqa: BLE001 - the boundary of one job
                self._context.aside.add(f"{cache.path}/{name}", None, error)
                placer.job_table.waiting.pop(job_id(key.submission, key.first), None)
                self.refuse(queue, name, f"{type(error).__name__}: {error}")

    def _came(self, state: ClusterState, queue: str, path: str, name: str, key: BlockKey, now_us: int) -> None:
        placer = self._placer
        partition = placer.queues[queue].partition
        submission = placer.submission(key.submission)
        if submission is None:
            if why := placer.records.odd.get(key.submission):
                raise InvalidRecord(why)
            placer.news.add(path)  # again when its record has come
            return
        if key.count != 1 or key.first >= MAX_INDEX:
            self.refuse(queue, name, "a placed job is a block of one task")
            return
        if why := not_admitted(placer.queues[queue], submission, key, is_newer=False):
            self.refuse(queue, name, why)
            return
        known = job_id(key.submission, key.first)
        stop = placer.stops.by_job.get(known)
        is_known = known in placer.job_table.waiting or known in placer.job_table.placed
        if is_known or partition not in state.partitions or (stop is not None and not stop.is_back):
            placer.news.add(path)  # it was returned, and is still read on its node; or no node has come yet
            return
        try:
            job = with_known(job_of(submission, key, partition, now_us), placer.job_table.known.get(known))
        except ValueError as error:
            self.refuse(queue, name, str(error))
            return
        if why := misplaced(submission, job, placer.classes.get(partition, ())):
            self.refuse(queue, name, why)
            return
        own = node_mark(submission.rigid) if submission.rigid is not None else ""
        extra, whose = placer.user_requests.mark_of(known, job), placer.whose(job.user)
        if placer.mark(own) | placer.mark(extra) | placer.mark(whose):
            placer.tell_nodes(state)
        job = marked(marked(job, extra), whose)
        placer.job_table.wait(queue, job.partition, name, key)
        if not whose and placer.backoffs.came(known, key):
            placer.tell_nodes(state)
        if stop is not None:
            placer.stops.returned(state, job, now_us)
            return
        placer.tell(state, "job_submitted", job)
        placer.because(Cause.JOB_SUBMITTED)

    def refuse(self, queue: str, name: str, why: str) -> None:
        """It is no job that can be placed; told once, and its owner is told when he asks."""
        job_table = self._placer.job_table
        job_table.settle(queue, name)
        if name not in job_table.odd:
            self._context.log.error("job_not_placeable", queue=queue, block=name, error=why)
        job_table.odd[name] = why
