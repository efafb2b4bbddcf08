"""Distributed queue tree: every job gets a slice of time at once, all its processes in the same slots.

Algorithm: 1. the cores of the partition are the leaves of a tree of nested partitions; 2. a job enters the run queue of one smallest
partition that holds it, chosen from the root down by `allocation`; 3. a front crosses the tree from the root to the leaves, one slot at a
time: a node serves its queue once, then its children go on side by side, and a child that finishes early starts over (`rmgr.sched.tree`);
4. a job waits if it would exceed the cap on a core or if memory is missing, and the jobs behind it wait too; a node with a window of
maintenance takes no job until the window is over, because slots stretch a job for an unknown time; 5. ended jobs leave the record
at the next boundary of a slot, and new jobs enter it there.
Parameters: width, quantum, allocation, weights, newcomers, most_jobs.
Source: Hori et al., distributed queue tree; papers.md section 3. Differs from it in: one leader publishes the tree and its front, the
nodes of the tree send no messages; a weight of q gives a job q adjacent entries in its queue (the paper's future work); `most_jobs`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from rmgr.sched.capacity.gangs import Carousel, leaves_of, memory_on, placed_in
from rmgr.sched.draft import Draft
from rmgr.sched.job import PLAIN, Job, count_of, each_node, nodes_of
from rmgr.sched.parameters import about
from rmgr.sched.plan import Accepted, Why
from rmgr.sched.policy import Cause
from rmgr.sched.records import Cores, Gang
from rmgr.sched.tree.rotation import Newcomers
from rmgr.sched.tree.shape import AllocationRule, choose, first_of_depth, height_of

SHARES = Why("dqt", "shares its cores in time")
LEFT = Why("dqt", "what has ended leaves the tree")
AT_CAP = "its cores have {} jobs each, as many as they may; rmgr policy set dqt --param most_jobs=N lets more share them"
LACKING = Why("dqt", "memory or other resources of its nodes do not do for one job more: all jobs there keep theirs; --mem asks for less")
TAKEN = Why("dqt", "cores that it could have are other work's, closed, or planned for maintenance")
FULL = Why(
    "dqt",
    "the record of the gang has as many jobs as nodes read at once: it comes when one of them has ended (rmgr queues --tree); "
    "rmgr starter --partition NAME gives some nodes a record of their own",
)
BEHIND = Why("dqt", "waits behind a job that came earlier")
NEVER = Why("dqt", "no partition of the tree can hold its processes")
MOST_WEIGHT = 8


@dataclass(frozen=True, slots=True)
class Dqt:
    name: ClassVar[str] = "dqt"
    #: No other policy may place jobs in its partitions: their nodes belong to its gang.
    alone: ClassVar[bool] = True
    #: Its jobs share nodes in time: the cluster's nodes carry out its slots by themselves.
    shares_time: ClassVar[bool] = True
    width: int = field(default=2, metadata=about("children of a node of the tree", least=2, most=64))
    quantum_us: int = field(default=1_000_000, metadata=about("how long a slot lasts", least=10_000, most=3_600_000_000))
    allocation: AllocationRule = field(
        default=AllocationRule.BF_APA, metadata=about("in which partition of its size a new job goes (papers.md 3.3)")
    )
    weights: str = field(
        default="", metadata=about("slots of a job in each round, by its priority from there on: 0:1,100:2,1000:4 (1 to 8); empty: 1")
    )
    newcomers: Newcomers = field(default=Newcomers.THIS_ROUND, metadata=about("when a job that comes to an empty queue is served first"))
    most_jobs: int = field(default=8, metadata=about("on one core at a time; 0: any number", unit="jobs", least=0, most=1000))

    def __post_init__(self) -> None:
        """Raises: ValueError for weights that are malformed or out of order."""
        weights_of(self.weights)

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:  # noqa: ARG002 - only the current state decides
        old = next((gang for gang in draft.gangs() if gang.name == self.name), None)
        gone = [job_id for job_id in old.homes if not draft.has_place(job_id)] if old is not None else []
        coming = next(draft.by_arrival(), None)
        if coming is None and not gone:
            return
        now_us = draft.gang_now_us
        if now_us is None:
            draft.leave_rest(Why("dqt", "{}", (draft.no_gang,)))
            return
        carousel = self._moved_on(draft, old, gone, now_us)
        note = draft.note_of("rr", 0) or ()
        cursors = dict(zip(note[::2], note[1::2], strict=True))
        before = dict(cursors)
        comes = self._let_in(draft, carousel, cursors)
        if not comes and not gone:
            return
        self._set(draft, carousel, comes)
        if cursors != before:
            draft.note("rr", 0, tuple(part for pair in sorted(cursors.items()) for part in pair))

    # -- the tree as it is at the next boundary -------------------------------------------------------------------------------

    def _moved_on(self, draft: Draft, old: Gang | None, gone: Iterable[int], now_us: int) -> Carousel:
        closed_nodes = [node.id for node in draft.nodes.values() if node.closed]
        if old is not None:
            wanted = _with_new_nodes(old, draft)
            closed = _closed_leaves(wanted.leaves, draft, closed_nodes)
            carousel = draft.carousel(wanted, closed).copy()
            carousel.advance_to(carousel.boundary(now_us))
            for job_id in gone:
                carousel.remove(job_id)
            if carousel.weights:
                return carousel
        leaves = leaves_of(draft.nodes)
        fresh = Gang(
            self.name,
            self.quantum_us,
            now_us,
            0,
            self.width,
            leaves,
            (),
            next_round=self.newcomers is Newcomers.NEXT_ROUND,
            memory_share=self.most_jobs,
        )
        return draft.carousel(fresh, _closed_leaves(leaves, draft, closed_nodes)).copy()

    # -- jobs that enter ----------------------------------------------------------------------------------------------------------

    def _let_in(self, draft: Draft, carousel: Carousel, cursors: dict[int, int]) -> list[Job]:
        """Returns the jobs that enter, in order of arrival; the first one that cannot enter holds up the jobs behind it."""
        room = _Room(draft, carousel, self.name, self.most_jobs)
        comes: list[Job] = []
        for job in draft.by_arrival():
            over = draft.over_limits(job, comes)  # orders know what has started, but these jobs start together
            if over is not None:
                draft.leave_pending(job.id, over)
                continue
            if draft.most_members and len(carousel.weights) >= draft.most_members:
                draft.leave_pending(job.id, FULL)
                draft.leave_rest(BEHIND)
                break
            node = self._node(carousel, job, cursors, room)
            if node is None:
                if room.never(job):
                    draft.reject(job.id, NEVER)
                    continue
                draft.leave_pending(job.id, self._lacks(carousel, job, cursors, room))
                draft.leave_rest(BEHIND)
                break
            carousel.add(job.id, node, self.weight_of(job))
            room.take(job, node)
            comes.append(job)
        return comes

    def _node(self, carousel: Carousel, job: Job, cursors: dict[int, int], room: _Room) -> int | None:
        if room.is_plain(job):
            return choose(carousel.entries, job.cpus, self.allocation, cursors)
        return choose(carousel.entries, room.size_of(job), self.allocation, cursors, lambda node: room.has(job, node))

    def _lacks(self, carousel: Carousel, job: Job, cursors: dict[int, int], room: _Room) -> Why:
        """Returns what keeps every tree node from taking the job. The room must not be used to let in jobs afterwards."""
        room.is_counted = False
        if self._node(carousel, job, dict(cursors), room) is not None:
            return LACKING
        room.is_capped = False
        return TAKEN if self._node(carousel, job, dict(cursors), room) is None else Why("dqt", AT_CAP, (self.most_jobs,))

    def _set(self, draft: Draft, carousel: Carousel, comes: list[Job]) -> None:
        """Sets the record; if something prevents it, leaves the last newcomer waiting and tries again."""
        while True:
            record = carousel.record(self.name, self.name, draft.partition)
            verdict = draft.gang(record, SHARES if comes else LEFT, carousel)
            if isinstance(verdict, Accepted) or not comes:
                return
            carousel = carousel.copy()
            last = comes.pop()
            carousel.remove(last.id)
            draft.leave_pending(last.id, verdict.why)
            draft.leave_rest(BEHIND)

    def weight_of(self, job: Job) -> int:
        """Returns the number of entries of the job in its queue."""
        found = 1
        for priority, weight in weights_of(self.weights):
            if job.priority >= priority:
                found = weight
        return found


def weights_of(text: str) -> tuple[tuple[int, int], ...]:
    """Parses `0:1,100:2` into ((0, 1), (100, 2)). Raises: ValueError for a malformed list, or one out of order."""
    found: list[tuple[int, int]] = []
    for word in text.split(",") if text.strip() else []:
        priority, colon, weight = word.strip().partition(":")
        try:
            pair = int(priority), int(weight)
        except ValueError:
            raise ValueError(f"weights are {text!r}: write PRIORITY:WEIGHT, as 0:1,100:2,1000:4") from None
        if not colon or not 1 <= pair[1] <= MOST_WEIGHT:
            raise ValueError(f"weights are {text!r}: {word.strip()} has no weight from 1 to {MOST_WEIGHT}")
        if found and pair[0] <= found[-1][0]:
            raise ValueError(f"weights are {text!r}: {pair[0]} stands after {found[-1][0]}; sort them by priority, as 0:1,100:2,1000:4")
        found.append(pair)
    return tuple(found)


class _Room:
    """Which tree nodes may take a job: those with open cores, free or the gang's. `is_capped`: also jobs below the cap; `is_counted`: also
    memory and other resources.
    """

    def __init__(self, draft: Draft, carousel: Carousel, name: str, most_jobs: int) -> None:
        self._draft, self._carousel, self._name, self._most = draft, carousel, name, most_jobs
        self.is_capped, self.is_counted = bool(most_jobs), True
        self._shut = sum(node.closed for node in draft.nodes.values())
        self._counts_memory = bool(carousel.memory_share) and any(node.memory_bytes for node in draft.nodes.values())
        self._shareable: frozenset[int] | None = None
        self._memory: dict[int, int] | None = None
        self._others: dict[tuple[int, str], int] = {}

    def nodes(self) -> frozenset[int]:
        """Returns the open nodes that are the gang's or free."""
        if self._shareable is None:
            self._shareable = self._draft.shareable(self._name)
        return self._shareable

    def is_plain(self, job: Job) -> bool:
        """Whether any tree node of the job's size may take it."""
        if self.is_capped and self._carousel.jobs.longest[0] >= self._most:
            return False
        return self._fits_anywhere(job)

    def _fits_anywhere(self, job: Job) -> bool:
        """Whether only cores count for the job, and every open node is available to it."""
        return job.shape is PLAIN and not self._counts_memory and len(self.nodes()) + self._shut == len(self._draft.nodes)

    def has(self, job: Job, node: int) -> bool:
        """Whether the tree node may take the job now."""
        draft, tree = self._draft, self._carousel.tree
        if self.is_capped:
            loads = self._carousel.jobs
            above = sum(loads.lengths[at] for at in tree.path(node)[:-1])
            if above + loads.longest[node] >= self._most:
                return False
        if self._fits_anywhere(job):
            return True
        placement = placed_in(job, self._carousel.leaves, tree.span(node), draft.nodes)
        if placement is None:
            return False
        if self.is_counted and (job.memory_bytes or job.resources or self._counts_memory):
            self._count()
            assert self._memory is not None
            for at, count in each_node(placement):
                has = draft.nodes[at]
                if has.memory_bytes and self._memory.get(at, 0) + self._memory_on(job, at, count) > has.memory_bytes:
                    return False
                if any(self._others.get((at, name), 0) + count * n > dict(has.resources).get(name, 0) for name, n in job.resources):
                    return False
        return self.nodes().issuperset(nodes_of(placement))

    def size_of(self, job: Job) -> int:
        """Returns the cores of the smallest kind of tree node that could hold the job; threads or features may require extra cores."""
        tree, nodes, size = self._carousel.tree, self._draft.nodes, job.cpus
        while job.shape is not PLAIN and size < tree.processors:
            targets = [
                node
                for node in range(tree.nodes)
                if tree.sizes[node] >= size and all(tree.sizes[child] < size for child in tree.children(node))
            ]
            if any(placed_in(job, self._carousel.leaves, tree.span(node), nodes) is not None for node in targets):
                break
            size = min(tree.sizes[node] for node in targets) + 1
        return min(size, tree.processors)

    def never(self, job: Job) -> bool:
        """Whether the job would not fit even alone on all current nodes, all open. (The tree may be smaller until its jobs have ended.)"""
        nodes = self._draft.nodes
        if any(node.closed for node in nodes.values()):
            return False
        leaves = leaves_of(nodes)
        return placed_in(job, leaves, (0, count_of(leaves)), nodes) is None

    def take(self, job: Job, node: int) -> None:
        """Records that the job has entered this tree node."""
        if job.memory_bytes or job.resources or self._counts_memory:
            self._count()
            placement = placed_in(job, self._carousel.leaves, self._carousel.tree.span(node), self._draft.nodes)
            if placement is not None:
                self._add(job, placement)

    def _count(self) -> None:
        if self._memory is None:
            self._memory = {}
            for run in self._draft.running():
                if run.job.id in self._carousel:
                    self._add(run.job, run.placement)

    def _memory_on(self, job: Job, node: int, count: int) -> int:
        known = self._draft.nodes.get(node)
        return 0 if known is None else memory_on(job, known, count, self._carousel.memory_share)

    def _add(self, job: Job, placement: Cores) -> None:
        assert self._memory is not None
        for at, count in each_node(placement):
            self._memory[at] = self._memory.get(at, 0) + self._memory_on(job, at, count)
            for name, number in job.resources:
                self._others[at, name] = self._others.get((at, name), 0) + count * number


def _closed_leaves(leaves: Cores, draft: Draft, closed_nodes: list[int]) -> frozenset[int]:
    """Returns the leaves of nodes that are closed or gone."""
    nodes = draft.nodes
    if not closed_nodes and all(first in nodes and last in nodes for first, last, _ in leaves) and _is_whole(leaves, draft):
        return frozenset()
    shut: list[int] = []
    at = 0
    for node_id, cores in each_node(leaves):
        node = nodes.get(node_id)
        if node is None or node.closed or node.cores < cores:
            shut += range(at, at + cores)
        at += cores
    return frozenset(shut)


def _is_whole(leaves: Cores, draft: Draft) -> bool:
    nodes = draft.nodes
    return sum(last - first + 1 for first, last, _ in leaves) == len(nodes) and all(
        nodes[first].cores == cores == nodes[last].cores for first, last, cores in leaves
    )


def _with_new_nodes(old: Gang, draft: Draft) -> Gang:
    """Returns the record with the leaves of new nodes appended; a taller tree has the old one as its first subtree."""
    known = set(nodes_of(old.leaves))
    fresh = {node.id: node for node in draft.nodes.values() if node.id not in known}
    if not fresh:
        return old
    leaves = (*old.leaves, *leaves_of(fresh))
    width = old.width
    levels = height_of(width, count_of(leaves)) - height_of(width, count_of(old.leaves))
    if not levels:
        return old._replace(leaves=leaves)
    tops = tuple((first_of_depth(width, depth), 0, False) for depth in range(levels)) if old.front else ()
    return old._replace(
        leaves=leaves,
        queues=tuple((_number_in_taller_tree(width, levels, node), entries) for node, entries in old.queues),
        front=(*tops, *((_number_in_taller_tree(width, levels, node), own, done) for node, own, done in old.front)),
        late=tuple((job_id, _number_in_taller_tree(width, levels, node), weight) for job_id, node, weight in old.late),
    )


def _number_in_taller_tree(width: int, levels: int, node: int) -> int:
    """Returns the node's number in a tree that is `levels` taller and has the node's tree as its leftmost subtree."""
    depth = 0
    while first_of_depth(width, depth + 1) <= node:
        depth += 1
    return node - first_of_depth(width, depth) + first_of_depth(width, depth + levels)
