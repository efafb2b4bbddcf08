"""Says where the next start of a job must be that was asked to go elsewhere: a feature of nodes that only this job asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rmgr.daemons.leader.core.facts import allows, node_mark
from rmgr.daemons.leader.nodes.scheduled import ScheduledNodes
from rmgr.daemons.leader.records.job_table import JobTable, PlacedJob
from rmgr.daemons.leader.records.updates import StateUpdates
from rmgr.daemons.leader.records.view import label
from rmgr.errors import Infeasible, NotFound, StateConflict
from rmgr.model.base.units import counted
from rmgr.model.cluster.node import NodeRecord
from rmgr.model.tasks.placing import task_of
from rmgr.sched.capacity.pool_node import room_if_empty
from rmgr.sched.job import Job, Node, Running, nodes_of
from rmgr.sched.state.cluster import ClusterState


def only(node: str) -> str:
    """The feature of one node alone."""
    return f"={node};"


class NextStarts:
    """Next starts of all jobs that users asked to move; the features stand in the job table. In the leader's loop.

    Args: records: of all nodes of the cluster, by name.
    """

    def __init__(self, job_table: JobTable, nodes: ScheduledNodes, records: Mapping[str, NodeRecord], updates: StateUpdates) -> None:
        self._job_table = job_table
        self._nodes = nodes
        self._records = records
        self._updates = updates

    def mark_for(self, run: Running, placed: PlacedJob, to: str) -> str:
        """The feature of the nodes on which it may start next. to: one node, "" = any but those of its run.

        Raises: NotFound, StateConflict, Infeasible.
        """
        job = run.job
        shown = label(job.id, self._job_table.submissions)
        if not to:
            here = [self._nodes.names.name(node) for node in nodes_of(run.placement)]
            for never in (here, [placed.node]):
                mark = f"=;{','.join(sorted(never))}"
                if self._could(job, mark):
                    return mark
            raise Infeasible(
                f"job {shown} cannot go elsewhere: no other open node of partition {placed.partition} could run it",
                hint=f"rmgr nodes; rmgr checkpoint {shown} saves its state where it is",
            )
        if to not in self._records:
            raise NotFound(f"there is no node {to!r}", hint="rmgr nodes")
        node = next((node for node in self._nodes.all() if node.name == to), None)
        if node is None or node.partition != job.partition:
            raise Infeasible(f"node {to} is not in partition {job.partition}, where job {shown} is placed", hint="rmgr nodes -o +partition")
        if node.closed:
            why = f"node {to} takes nothing new: it is drained, or its Starter is gone"
            raise StateConflict(why, hint=f"rmgr nodes {to}; rmgr resume {to}")
        if not self._could(job, only(to)):
            wanted = f"{job.processes} x {counted(job.threads, 'core')}"
            raise Infeasible(f"node {to} is too small for job {shown}: it needs {wanted}, {to} has {node.cores}", hint="rmgr nodes")
        return only(to)

    def mark_of(self, job: Job) -> str:
        """Where the next start of a job that comes to its queue must be: "" = anywhere, also where it has become impossible."""
        mark = self._job_table.marks.get(job.id, "")
        if mark and not self._could(job, mark):
            del self._job_table.marks[job.id]
            return ""
        return mark

    def look_again(self, state: ClusterState) -> None:
        """Nodes have changed: a job that waits for one that is gone waits for any."""
        for job_, mark in list(self._job_table.marks.items()):
            waiting = self._job_table.waiting.get(job_)
            job = state.partitions[waiting.partition].jobs.get(job_) if waiting is not None else None
            if job is None or mark not in job.features:
                continue
            plain = replace(job, features=tuple(name for name in job.features if name != mark))
            if not self._could(plain, mark):
                del self._job_table.marks[job_]
                self._updates.tell(state, "job_requeued", plain)

    def _could(self, job: Job, mark: str) -> bool:
        """Open nodes that the mark allows could run the job if they were empty."""
        shape = replace(job, features=tuple(name for name in job.features if not name.startswith("="))).shape
        submission = self._job_table.submissions.get(task_of(job.id)[0])
        # A mark of an earlier move is over.
        own = node_mark(submission.rigid) if submission is not None and submission.rigid is not None else ""

        def room(node: Node) -> int:
            allowed = allows(mark, node.name) and (not own or allows(own, node.name))
            return room_if_empty(shape, node) if allowed and not node.closed and node.partition == job.partition else 0

        return sum(map(room, self._nodes.all())) >= job.processes
