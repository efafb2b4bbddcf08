"""Translates znodes into the scheduler's nouns and back: nodes get numbers, submissions become jobs, placements become allocations.

Pure. Node numbers are valid in this leader only; records contain names of nodes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

from rmgr.model.base import MIB, needs_of
from rmgr.model.block import Allocation, BlockKey, job_id
from rmgr.model.node import NodeRecord
from rmgr.model.submission import Rigid, Submission
from rmgr.model.units import counted
from rmgr.sched.capacity.gangs import share_of_memory
from rmgr.sched.job import Job, Node, Placement, Running, spans_of
from rmgr.sched.queue_class import QueueClass

#: Whether a job can save its state, and how often a policy has moved it.
Known: TypeAlias = tuple[bool, int]
NOTHING_KNOWN: Known = (False, 0)
#: For a submission without a rigid request.
_PLAIN = Rigid()
_PARTS = re.compile(r"(\d+)")


def natural(name: str) -> tuple[object, ...]:
    """Returns a sort key that puts n2 before n10."""
    return tuple((1, int(part)) if part.isdigit() else (0, part) for part in _PARTS.split(name))


class Names:
    """Numbers of nodes: nodes learned together are numbered in natural order of their names, later nodes get the next numbers."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._names: list[str] = []

    def learn(self, names: Iterable[str]) -> None:
        """Gives numbers to the nodes that have none."""
        for name in sorted(set(names) - self._ids.keys(), key=natural):
            self._ids[name] = len(self._names)
            self._names.append(name)

    def id(self, name: str) -> int:
        """Returns the node's number; a new node gets one."""
        if name not in self._ids:
            self.learn((name,))
        return self._ids[name]

    def name(self, number: int) -> str:
        """Returns the node of that number. Raises: IndexError."""
        return self._names[number]


# -- nodes and jobs ------------------------------------------------------------------------------------------------------------


def node_of(record: NodeRecord, number: int, *, closed: bool, marks: Iterable[str] = ()) -> Node:
    """Returns the node as the scheduler sees it. marks: further features (`node_mark`)."""
    attributes = record.attributes
    return Node(
        id=number,
        cores=record.capacity.cores,
        memory_bytes=record.capacity.memory_bytes,
        partition=attributes.partition,
        features=tuple(sorted({*attributes.features, *marks})),
        name=record.node,
        speed=attributes.speed,
        site=attributes.site,
        closed=closed,
        resources=needs_of(record.capacity.resources),
    )


def node_mark(rigid: Rigid) -> str:
    """Returns the feature that stands for "one of the nodes that this request allows", "" if it allows all."""
    if not rigid.nodelist and not rigid.exclude:
        return ""
    return f"={','.join(sorted(rigid.nodelist))};{','.join(sorted(rigid.exclude))}"


def user_mark(user: str) -> str:
    """Returns the feature of all nodes that accept the user's work; jobs need it if some node refuses the user."""
    return f"!{user}"


def allows(mark: str, node: str, refused: Collection[str] = ()) -> bool:
    """Whether the mark allows the node. refused: users whose work the node cannot run."""
    if mark.startswith("!"):
        return mark[1:] not in refused
    only, _, never = mark[1:].partition(";")
    return (not only or node in only.split(",")) and node not in never.split(",")


def marked(job: Job, mark: str) -> Job:
    """Returns the job limited to nodes with this feature ("" = no limit)."""
    return replace(job, features=(*job.features, mark)) if mark else job


def per_node(rigid: Rigid) -> int:
    """Returns the ranks in one process of the scheduler: 1, or the most ranks on one node if a number of nodes was requested."""
    return -(-rigid.processes // rigid.nodes) if rigid.nodes else 1


def job_of(submission: Submission, key: BlockKey, partition: str, now_us: int) -> Job:
    """Returns a waiting task as a job. If nodes were requested, one process of the scheduler stands for all that one node gets.

    Raises: ValueError if it cannot be a job.
    """
    request, rigid = submission.request, submission.rigid or _PLAIN
    mark, together = node_mark(rigid), per_node(rigid)
    return Job(
        id=job_id(key.submission, key.first),
        submit_us=min(submission.submitted_us, now_us),
        processes=rigid.nodes or rigid.processes,
        threads=request.cores * together,
        limit_us=request.time_limit_us,
        memory_bytes=request.memory_bytes * together,
        features=(*request.features, mark) if mark else request.features,
        exclusive=rigid.exclusive,
        spread=bool(rigid.nodes),
        partition=partition,
        queue=rigid.queue_class or submission.queue,
        user=submission.user,
        account=submission.account,
        priority=submission.priority if submission.changes else key.priority,
        begin_us=rigid.begin_us,
        restarts=key.attempt - 1,
        resources=needs_of(request.resources, together),
        asked=(rigid.processes, request.cores) if rigid.nodes else None,
        saves=rigid.saves(),
        max_moves=rigid.max_moves,
    )


def misplaced(submission: Submission, job: Job, classes: Iterable[QueueClass]) -> str:
    """Returns why the queue class that the user named does not admit the job, "" if it does, or no longer exists."""
    name = submission.rigid.queue_class if submission.rigid is not None else ""
    found = next((known for known in classes if name == known.name), None)
    if found is None or found.admits(job):
        return ""
    asked = f"{counted(job.wanted[0], 'process')} x {counted(job.wanted[1], 'thread')} ({counted(job.wanted_cpus, 'CPU')})"
    return f"queue class {name}, which its user named, allows {found.limits}; it asks for {asked}"


def known_of(submission: Submission, answered: bool, moves: int) -> Known:
    """Returns what is known about a job from its record and its block (`BlockData.answered`, `moves`)."""
    return (submission.rigid or _PLAIN).saves(answered), moves


def with_known(job: Job, known: Known | None) -> Job:
    """Returns the job with what was learned about it."""
    return job if known is None or known == (job.saves, job.moves) else replace(job, saves=known[0], moves=known[1])


# -- placements ----------------------------------------------------------------------------------------------------------------


def allocation_of(
    submission: Submission,
    placement: Placement,
    names: Names,
    now_us: int,
    nodes: Mapping[str, NodeRecord] | None = None,
    *,
    gang: str = "",
    generation: int = 0,
    memory_share: int = 0,
) -> Allocation:
    """Returns nodes and ranks of a job that starts now; the first node is its head.

    nodes: records of the nodes, for a job that gets whole nodes or a share of their memory. gang: partition of its gang, "" if none.
    generation, memory_share: of that gang's record.
    """
    request, rigid = submission.request, submission.rigid or _PLAIN
    counts = [(names.name(node), processes) for first, last, processes in placement for node in range(first, last + 1)]
    if rigid.nodes:
        share, more = divmod(rigid.processes, rigid.nodes)
        counts = [(name, share + (at < more)) for at, (name, _) in enumerate(counts)]
    memory_mib = -(-request.memory_bytes // MIB)
    if memory_share and not memory_mib and nodes is not None:
        has = [(nodes[name].capacity, count) for name, count in counts]
        parts = [
            share_of_memory(one.memory_bytes, one.cores, one.cores if rigid.exclusive else count * request.cores, memory_share) // count
            for one, count in has
            if one.memory_bytes
        ]
        memory_mib = max(1, min(parts) // MIB) if parts else 0
    return Allocation(
        shares=tuple(counts),
        threads=request.cores,
        memory_mib=memory_mib,
        started_us=now_us,
        planned_us=request.time_limit_us,
        whole=tuple(nodes[name].capacity.cores for name, _ in counts) if rigid.exclusive and nodes is not None else (),
        gang=gang,
        generation=generation,
        changes=len(submission.changes),
    )


def running_of(job: Job, allocation: Allocation, submission: Submission, names: Names) -> Running:
    """Returns a placed job as the scheduler sees it."""
    rigid = submission.rigid or _PLAIN
    shares = sorted((names.id(name), 1 if rigid.nodes else count) for name, count in allocation.shares)
    start_us = allocation.started_us
    return Running(job, start_us, start_us + job.planned_us, spans_of(shares))
