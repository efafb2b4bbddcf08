"""Nodes as the scheduler sees them: those of partitions with place queues, with features for requests that name nodes.

If a job was asked to go elsewhere, the nodes for its next start have a feature that only this job requires.

A node that gave a job back without beginning it gets nothing for a while. A Starter takes nothing new while its disk is full, its store
is away, or too much went wrong on it; it logs that, but the leader sees only that jobs come back. Such a node is the emptiest of
all: every waiting job would go there and come back, again and again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rmgr.daemons.leader.facts import allows, node_mark, node_of
from rmgr.daemons.leader.placement.job_table import PlacedJob
from rmgr.daemons.leader.placement.view import label
from rmgr.errors import Infeasible, NotFound, StateConflict
from rmgr.model.base.units import counted
from rmgr.model.tasks.block import BlockKey, task_of
from rmgr.sched.capacity.pool_node import room_if_empty
from rmgr.sched.job import Job, Node, Running, nodes_of
from rmgr.sched.policy import Cause
from rmgr.sched.state.cluster import ClusterState

if TYPE_CHECKING:
    from rmgr.daemons.leader.placement.placer import Placer

#: The first and the longest back-off of a node; one that follows closely on the last is twice as long.
_FIRST_S, _LONGEST_S = 1.0, 60.0
#: A job that waits again later than this after it left its node was released by a user, not given back.
_SOON_S = 10.0
#: Most recently left jobs that are remembered; most of them have ended.
_KEPT = 1_000


class ScheduledNodes:
    """Nodes as the scheduler sees them. In the leader's loop.

    Attributes: mark_of: returns the feature of nodes that run work of a user.
    """

    def __init__(self, placer: Placer) -> None:
        self.names = placer.names
        self.mark_of = placer.known_nodes.mark_of
        self._placer = placer
        self._nodes = placer.known_nodes
        self._listed = placer.lists.running  # the nodes whose running blocks are known take part
        self._updates = placer.updates
        self._marks: set[str] = set()  # of requests that name nodes

    def learn(self, partitions: Collection[str]) -> set[str]:
        """Returns the nodes of these partitions, and gives each a number."""
        found = {name for name, record in self._nodes.records.items() if record.attributes.partition in partitions}
        self.names.learn(found)
        return found

    def all(self) -> list[Node]:
        """Returns every node that takes part."""
        return [self._node(name) for name in sorted(self._listed, key=self.names.id) if name in self._nodes.records]

    def tell(self, state: ClusterState) -> None:
        """Tells the state which nodes have changed."""
        for node in self.all():
            part = state.partitions.get(node.partition)
            if part is None or part.nodes.get(node.id) != node:
                self._updates.tell(state, "node_changed", node)
                self._updates.because(Cause.NODES_CHANGED)

    def mark(self, mark: str) -> bool:
        """Gives the nodes that a request allows a feature of their own. Returns whether the feature is new."""
        if not mark or mark in self._marks:
            return False
        self._marks.add(mark)
        return True

    def _node(self, name: str) -> Node:
        record, nodes = self._nodes.records[name], self._nodes
        marks = (mark for mark in self._marks if allows(mark, name, nodes.refuses(name)))
        return node_of(record, self.names.id(name), closed=not nodes.takes_work(name) or self._placer.is_shut(name), marks=marks)


def only(node: str) -> str:
    """Returns the feature of one node alone."""
    return f"={node};"


class NextStarts:
    """Next starts of all jobs that users asked to move; the job table holds the features. In the leader's loop."""

    def __init__(self, placer: Placer) -> None:
        self._job_table = placer.job_table
        self._nodes = placer.nodes
        self._records = placer.known_nodes.records
        self._updates = placer.updates

    def mark_for(self, run: Running, placed: PlacedJob, to: str) -> str:
        """Returns the feature of nodes for the job's next start. to: one node, "" = any but those of its run.

        Raises: NotFound, StateConflict, Infeasible.
        """
        job = run.job
        shown = label(job.id, self._job_table.submissions)
        if not to:
            here = [self._nodes.names.name(node) for node in nodes_of(run.placement)]
            for never in (here, [placed.node]):
                mark = f"=;{','.join(sorted(never))}"
                if self._could_run(job, mark):
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
        if not self._could_run(job, only(to)):
            wanted = f"{job.processes} x {counted(job.threads, 'core')}"
            raise Infeasible(f"node {to} is too small for job {shown}: it needs {wanted}, {to} has {node.cores}", hint="rmgr nodes")
        return only(to)

    def mark_of(self, job: Job) -> str:
        """Returns the feature for the next start of a job that comes to its queue; "" = any node, also if the feature became impossible."""
        mark = self._job_table.marks.get(job.id, "")
        if mark and not self._could_run(job, mark):
            del self._job_table.marks[job.id]
            return ""
        return mark

    def look_again(self, state: ClusterState) -> None:
        """Lets a job that waits for a node that is gone use any node, after a change of nodes."""
        for job_, mark in list(self._job_table.marks.items()):
            waiting = self._job_table.waiting.get(job_)
            job = state.partitions[waiting.partition].jobs.get(job_) if waiting is not None else None
            if job is None or mark not in job.features:
                continue
            plain = replace(job, features=tuple(name for name in job.features if name != mark))
            if not self._could_run(plain, mark):
                del self._job_table.marks[job_]
                self._updates.tell(state, "job_requeued", plain)

    def _could_run(self, job: Job, mark: str) -> bool:
        """Whether the open nodes that the mark allows could run the job if they were empty."""
        shape = replace(job, features=tuple(name for name in job.features if not name.startswith("="))).shape
        submission = self._job_table.submissions.get(task_of(job.id)[0])
        # The mark of an earlier move is over.
        own = node_mark(submission.rigid) if submission is not None and submission.rigid is not None else ""

        def room(node: Node) -> int:
            allowed = allows(mark, node.name) and (not own or allows(own, node.name))
            return room_if_empty(shape, node) if allowed and not node.closed and node.partition == job.partition else 0

        return sum(map(room, self._nodes.all())) >= job.processes


@dataclass(slots=True)
class _Backoff:
    length_s: float
    until_s: float


class NodeBackoffs:
    """Knows which nodes get nothing for now, and how long. In the leader's loop."""

    def __init__(self, placer: Placer) -> None:
        self._placer = placer
        self._loop = placer.context.tree
        self._log = placer.context.term.log
        self._left: OrderedDict[int, tuple[BlockKey, str, float]] = OrderedDict()  # job -> its block, its node, when it left
        self._backoffs: dict[str, _Backoff] = {}

    def left(self, job: int, placed: PlacedJob) -> None:
        """Remembers a job that left its node: it has ended, or comes back."""
        if len(placed.allocation.shares) > 1:
            return  # it is unknown which of its nodes was not ready
        self._left[job] = (placed.key, placed.node, self._loop.clock())
        if len(self._left) > _KEPT:
            self._left.popitem(last=False)

    def came(self, job: int, key: BlockKey) -> bool:
        """Looks at a waiting job: if its attempt is the same, it was not begun. Returns whether its node is left alone from now on."""
        before = self._left.pop(job, None)
        if before is None or before[0] != key or self._loop.clock() - before[2] > _SOON_S:
            return False
        return self._back_off(before[1])

    def _back_off(self, node: str) -> bool:
        now_s, last = self._loop.clock(), self._backoffs.get(node)
        if last is not None and now_s < last.until_s:
            return False  # the node was given several jobs at once
        is_again = last is not None and now_s < last.until_s + max(_SOON_S, last.length_s)
        length_s = min(_LONGEST_S, last.length_s * 2) if last is not None and is_again else _FIRST_S
        self._backoffs[node] = _Backoff(length_s, now_s + length_s)
        self._log.warning("node_backs_off", node=node, seconds=length_s, why="it gave a job back that it had not begun")
        self._loop.after(length_s, self._placer.nodes_changed)
        return True

    def under_way(self) -> dict[str, float]:
        """Returns node -> seconds until it is tried again."""
        now_s = self._loop.clock()
        return {node: backoff.until_s - now_s for node, backoff in self._backoffs.items() if backoff.until_s > now_s}

    def is_left_alone(self, node: str) -> bool:
        """Whether nothing may be placed there now."""
        backoff = self._backoffs.get(node)
        return backoff is not None and self._loop.clock() < backoff.until_s
