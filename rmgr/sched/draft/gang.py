"""The verb of time-sharing: sets the record of a gang, whose jobs share nodes by the slots of a queue tree."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain, pairwise

from rmgr.sched.capacity.gangs import OWNER, Carousel, memory_on, placed_in, stands_in, too_many_leaves
from rmgr.sched.capacity.holds import are_spans, each_node
from rmgr.sched.draft.view import View
from rmgr.sched.job import Job, Running, nodes_of
from rmgr.sched.plan import Accepted, GangSet, Infeasible, Insufficient, Start, Verdict, Why
from rmgr.sched.records import Gang
from rmgr.sched.tree.shape import Tree

#: More slots than this nobody counts.
_MOST = 1 << 62


class Ganging(View):
    """A part of `Draft`."""

    __slots__ = ()

    def carousel(self, gang: Gang, closed: frozenset[int] = frozenset()) -> Carousel:
        """The tree, the front and the queues of a record. Change a `copy()` only."""
        return self._part.gangs.carousel(gang, closed)

    def gang(self, gang: Gang, why: Why, carousel: Carousel | None = None) -> Verdict:
        """Sets the record, in place of the one of that name. Its waiting jobs start on the leaves of their tree nodes, lowest first.

        Args: gang: `policy` and `partition` are set here. carousel: what the record was made of, to spare making it anew; it is not
        changed any more.
        Its nodes, those on which its jobs stand, are nobody else's. Every job of the gang that runs must be in it, where it stands.
        Insufficient: nodes that are not free or closed, a promise or a window. Infeasible: a job that does not fit into its partition,
        memory or other resources that do not do for all jobs of a node together, jobs that run elsewhere or are unknown, a record that
        is none. Cost: O(jobs of the gang + nodes of those that start).
        """
        self._check_open()
        wrong = _malformed(gang)
        if wrong is not None:
            return self._never(Why("gang", wrong))
        gang = gang._replace(policy=self.policy, partition=self.partition)
        stands = self._stands(gang, None if carousel is None else carousel.tree)
        if not isinstance(stands, dict):
            return stands
        begun = [run for run in stands.values() if not self.has_place(run.job.id)]
        lacking = self._lacks(stands, begun, gang.memory_share)
        if lacking is not None:
            return self._never(lacking)
        more, pool = self._changes(), self._pool
        mark = len(more.undo)
        owned = {node for run in self._members(gang.name) for node in nodes_of(run.placement)} if begun else set()
        for node in sorted({node for run in begun for node in nodes_of(run.placement)}):
            if self._has_window(node) or (node not in owned and not pool.holds(OWNER, ((node, node, 1),))):
                more.back(mark)
                return Insufficient(Why("gang", "node {} is not free as a whole, closed, or has a window of maintenance", (node,)))
            if node not in owned:
                pool.take(OWNER, ((node, node, 1),))
                more.did(partial(pool.give, OWNER, ((node, node, 1),)))
        more.put(more.gangs, gang.name, gang)
        for run in begun:
            more.put(more.begun, run.job.id, run)
            more.put(more.silent, run.job.id, None)
            if run.job.id in more.extra:
                more.drop(more.extra, run.job.id)
            elif run.job.id not in more.gone:
                more.put(more.gone, run.job.id, None)
        broken = self._breaks_promises(mark)
        if broken is not None:
            return broken
        if carousel is not None:
            self._part.gangs.remember(gang, frozenset(carousel.tree.closed), carousel)
        for run in begun:
            self._leave_gangs(run.job.id, gang.name)
        self.decisions.append(GangSet(gang, why, self.partition))
        self.decisions += [Start(run.job.id, run.placement, why, self.partition) for run in begun]
        return Accepted(self.now_us)

    def shareable(self, name: str) -> frozenset[int]:
        """Nodes on which a job of the gang of this name could start: the gang's, or free as a whole; open, without a window. O(nodes)."""
        owned = {node for run in self._members(name) for node in nodes_of(run.placement)}
        holds = self._pool.holds
        return frozenset(
            node.id
            for node in self._part.nodes.values()
            if not node.closed and (node.id in owned or holds(OWNER, ((node.id, node.id, 1),))) and not self._has_window(node.id)
        )

    def _members(self, name: str) -> Iterator[Running]:
        """What runs in the gang, and what was asked to leave it and has not yet."""
        yield from (run for run in self.running() if self._gang_of(run.job.id) == name)
        yield from (run for job_id, run in self._part.stopping.items() if self._part.gangs.of.get(job_id) == name)

    def _has_window(self, node: int) -> bool:
        return any(node in window.nodes and window.end_us > self.now_us for window in self._part.windows.values())

    def _stands(self, gang: Gang, known: Tree | None) -> dict[int, Running] | Insufficient | Infeasible:
        """Where each job of the gang stands, or will, in the order of its queues."""
        nodes, homes = self._part.nodes, gang.homes
        tree: Tree | None = None
        before = next((old for old in self.gangs() if old.name == gang.name), None)
        grown = before is not None and before.leaves != gang.leaves
        same = before.homes if before is not None and (before.leaves, before.width) == (gang.leaves, gang.width) else {}
        flagged = self._part.flagged if self._more is None else self._more.flagged
        stands: dict[int, Running] = {}
        comes: list[Job] = []
        for job_id, node in homes.items():
            run = self.run(job_id) or (self._part.stopping.get(job_id) if self._part.gangs.of.get(job_id) == gang.name else None)
            if run is not None:
                if self._gang_of(job_id) != gang.name or job_id in self._started or job_id in flagged:
                    return self._never(Why("gang", "job {} runs outside of the gang, or is promised", (job_id,)))
                if same.get(job_id) == node:
                    stands[job_id] = run
                    continue
                job = run.job
            else:
                found = self._job(job_id)
                if not isinstance(found, Job):
                    return found
                job = found
                over = self.over_limits(job, comes)
                if over is not None:
                    return Insufficient(over)
                comes.append(job)
                if job_id in self._promises or job_id in self._holds:
                    return self._never(Why("gang", "job {} has been promised a start", (job_id,)))
            if tree is None:
                tree = known or Tree(gang.width, sum((last - first + 1) * cores for first, last, cores in gang.leaves))
            if node >= tree.nodes:
                return self._never(Why("gang", "job {} stands in tree node {}, of {}", (job_id, node, tree.nodes)))
            if run is not None and grown and stands_in(run, gang.leaves, tree.span(node), nodes):
                stands[job_id] = run  # where it would be placed now is another question: nodes have closed and opened since
                continue
            placement = placed_in(job, gang.leaves, tree.span(node), nodes)
            if run is None and placement is not None:
                stands[job_id] = Running(job, self.now_us, self.now_us + job.planned_us, placement)
            elif run is not None and placement == run.placement:
                stands[job_id] = run
            else:
                return self._never(Why("gang", "job {} does not fit into tree node {}, or runs elsewhere", (job_id, node)))
        lost = [run.job.id for run in self._members(gang.name) if run.job.id not in stands]
        return self._never(Why("gang", "job {} runs in it and is in no queue", (lost[0],))) if lost else stands

    def _lacks(self, stands: dict[int, Running], begun: list[Running], share: int) -> Why | None:
        """Memory and other resources are there for all jobs of a node together, whoever's turn it is."""
        if not any(share or run.job.memory_bytes or run.job.resources for run in begun):
            return None
        nodes = self._part.nodes
        memory: dict[int, int] = {}
        others: dict[tuple[int, str], int] = {}
        for run in stands.values():
            for node_id, count in each_node(run.placement):
                node = nodes.get(node_id)
                if node is None:
                    continue
                memory[node_id] = memory.get(node_id, 0) + memory_on(run.job, node, count, share)
                if node.memory_bytes and memory[node_id] > node.memory_bytes:
                    return Why("gang", "the memory of node {} does not do for all jobs on it", (node_id,))
                for name, number in run.job.resources:
                    others[node_id, name] = others.get((node_id, name), 0) + count * number
                    if others[node_id, name] > dict(node.resources).get(name, 0):
                        return Why("gang", "the {} of node {} do not do for all jobs on it", (name, node_id))
        return None


def _malformed(gang: object) -> str | None:
    """Why it is no record of a gang that another leader could read; None: it is one."""
    if type(gang) is not Gang:
        return "a gang is a record of type Gang"
    if type(gang.name) is not str or not gang.name:
        return "a gang has a name"
    if (
        not _is_count(gang.slot_us, 1)
        or not _is_count(gang.origin_us, -_MOST)
        or not _is_count(gang.slot)
        or type(gang.next_round) is not bool
    ):
        return "slots are longer than 0 us, and counted from 0"
    if not _is_count(gang.memory_share):
        return "a job's share of memory is a number of jobs"
    if not _is_count(gang.width, 2) or gang.width > 64 or not are_spans(gang.leaves, 1 << 20) or not gang.leaves:
        return "a tree has a width of 2 to 64, and leaves that are spans of nodes"
    if any(first > last or cores < 1 or first < 0 for first, last, cores in gang.leaves) or too_many_leaves(gang.leaves):
        return "leaves are cores of nodes"
    in_order = sorted(gang.leaves)
    if any(later[0] <= earlier[1] for earlier, later in pairwise(in_order)):
        return "no node stands twice among the leaves"
    if not all(map(_are_tuples, (gang.queues, gang.front, gang.late))):
        return "queues, front and late are tuples of tuples"
    if not all(len(item) == 2 and _is_count(item[0]) and _are_tuples(item[1]) for item in gang.queues):
        return "a queue is a tree node and its entries"
    if not all(len(entry) == 2 and _is_count(entry[0]) and _is_count(entry[1], 1) for _, entries in gang.queues for entry in entries):
        return "an entry is a job and a number"
    if not all(len(item) == 3 and _is_count(item[0]) and _is_count(item[1]) and type(item[2]) is bool for item in gang.front):
        return "the front names nodes, entries to be served, and whether a round is over"
    if not all(len(item) == 3 and all(map(_is_count, item)) and item[2] for item in gang.late):
        return "late jobs have a tree node and a weight"
    return _twice(gang)


def _twice(gang: Gang) -> str | None:
    seen: dict[int, int] = {}
    for job_id, node in _places(gang):
        if seen.setdefault(job_id, node) != node:
            return "a job stands in two queues"
    if len({node for node, _ in gang.queues}) < len(gang.queues) or any(job_id < 1 for job_id in seen):
        return "each queue stands there once, with ids of jobs"
    return None


def _places(gang: Gang) -> Iterator[tuple[int, int]]:
    in_queues = ((job_id, node) for node, entries in gang.queues for job_id, _ in entries)
    return chain(in_queues, ((job_id, node) for job_id, node, _ in gang.late))


def _is_count(value: object, least: int = 0) -> bool:
    return type(value) is int and least <= value < _MOST


def _are_tuples(value: object) -> bool:
    return type(value) is tuple and all(type(item) is tuple for item in value)
