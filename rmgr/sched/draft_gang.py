"""The verb of time-sharing: a matrix of slots over nodes that belong to it, sketched for nested partitions (seed 002)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from rmgr.sched.draft_view import View
from rmgr.sched.gangs import OWNER
from rmgr.sched.holds import are_spans, each_node, room
from rmgr.sched.job import Job, Placement, Running, nodes_of
from rmgr.sched.plan import Accepted, GangSet, Infeasible, Insufficient, Start, Verdict, Why
from rmgr.sched.records import Gang

_NONE: Mapping[int, Placement] = {}


class Ganging(View):
    """A part of `Draft`."""

    __slots__ = ()

    def gang(
        self,
        name: str,
        slot_us: int,
        rows: Sequence[Sequence[int]],
        why: Why,
        placements: Mapping[int, Placement] = _NONE,
    ) -> Verdict:
        """Commits the matrix: its rows run in turn, `slot_us` each; all jobs of a row run together. It replaces the one of that name.

        Args: rows: job ids; a job stands in every row in which it runs. placements: where the waiting jobs among them start now.
        Its nodes, those on which its jobs stand, are nobody else's. Every job that runs in the old matrix must be in the new one.
        Insufficient: nodes that are not free or closed, a promise or a window. Infeasible: jobs of a row that overlap, memory or other
        resources that do not do for all jobs of a node together, unknown jobs, bad placements. Cost: O(nodes of all rows).
        """
        self._check_open()
        gang = Gang(name, slot_us, tuple(tuple(row) for row in rows if row), self.policy, self.partition)
        stands = self._stands(gang, placements)
        if not isinstance(stands, dict):
            return stands
        wrong = self._does_not_fit(gang, stands)
        if wrong is not None:
            return self._never(wrong)
        more, pool = self._changes(), self._pool
        mark = len(more.undo)
        begun = [run for run in stands.values() if self.run(run.job.id) is None]
        members = {run.job.id for run in self.running() if self._gang_of(run.job.id) == name}
        owned = {node for job_id in members for node in nodes_of(stands[job_id].placement)}
        for run in stands.values():
            if run.job.id not in members and run not in begun:
                pool.give(run.job, run.placement)
                more.did(partial(pool.take, run.job, run.placement))
                more.put(more.silent, run.job.id, None)
        needed = {node for run in stands.values() for node in nodes_of(run.placement)} - owned
        begins_on = {node for run in begun for node in nodes_of(run.placement)}
        for node in sorted(needed | begins_on):
            if self._has_window(node) or (node in needed and not pool.holds(OWNER, ((node, node, 1),))):
                more.back(mark)
                return Insufficient(Why("gang", "node {} is not free as a whole, closed, or has a window of maintenance", (node,)))
            if node in needed:
                pool.take(OWNER, ((node, node, 1),))
                more.did(partial(pool.give, OWNER, ((node, node, 1),)))
        more.put(more.gangs, name, gang)
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
        self.decisions.append(GangSet(gang, why, self.partition))
        self.decisions += [Start(run.job.id, run.placement, why, self.partition) for run in begun]
        return Accepted(self.now_us)

    def _has_window(self, node: int) -> bool:
        return any(node in window.nodes and window.end_us > self.now_us for window in self._part.windows.values())

    def _stands(self, gang: Gang, placements: Mapping[int, Placement]) -> dict[int, Running] | Insufficient | Infeasible:
        """Where each job of the matrix stands, or will."""
        if not isinstance(gang.slot_us, int) or gang.slot_us <= 0 or not isinstance(gang.name, str) or not gang.name:
            return self._never(Why("gang", "a gang has a name, and slots longer than {} us", (gang.slot_us,)))
        others = {job_id for other in self.gangs() if other.name != gang.name for job_id in other.jobs}
        flagged = self._part.flagged if self._more is None else self._more.flagged
        stands: dict[int, Running] = {}
        comes: list[Job] = []
        for job_id in gang.jobs:
            run = self.run(job_id)
            if type(job_id) is not int:
                return self._never(Why("gang", "{} is no job", (job_id,)))
            if job_id in others or job_id in self._started or job_id in flagged:
                return self._never(Why("gang", "job {} is in another gang, started in this pass, or promised", (job_id,)))
            if run is None:
                job = self._job(job_id)
                if not isinstance(job, Job):
                    return job
                over = self._over_limits(job, comes)
                if over is not None:
                    return Insufficient(over)
                comes.append(job)
                if job_id in self._promises or job_id in self._holds:
                    return self._never(Why("gang", "job {} has been promised a start", (job_id,)))
                placement = placements.get(job_id, ())
                if not are_spans(placement, len(self._part.nodes)):
                    return self._never(Why("gang", "the placement of job {} is no tuple of spans", (job_id,)))
                if sum(count for _, count in each_node(placement)) != job.processes or any(count < 1 for _, count in each_node(placement)):
                    return self._never(Why("gang", "job {} needs a placement of all its processes", (job_id,)))
                run = Running(job, self.now_us, self.now_us + job.planned_us, placement)
            stands[job_id] = run
        lost = [run.job.id for run in self.running() if self._gang_of(run.job.id) == gang.name and run.job.id not in stands]
        return self._never(Why("gang", "job {} runs in it and is in no row", (lost[0],))) if lost else stands

    def _does_not_fit(self, gang: Gang, stands: Mapping[int, Running]) -> Why | None:
        nodes = self._part.nodes
        memory: dict[int, int] = {}
        others: dict[tuple[int, str], int] = {}
        for run in stands.values():
            for node_id, count in each_node(run.placement):
                node = nodes.get(node_id)
                if node is None or room(run.job, node, node.cores) < count:
                    return Why("gang", "job {} cannot run on node {}", (run.job.id, node_id))
                memory[node_id] = memory.get(node_id, 0) + count * run.job.memory_bytes
                if node.memory_bytes and memory[node_id] > node.memory_bytes:
                    return Why("gang", "the memory of node {} does not do for all jobs on it", (node_id,))
                for name, number in run.job.resources:
                    others[node_id, name] = others.get((node_id, name), 0) + count * number
                    if others[node_id, name] > dict(node.resources).get(name, 0):
                        return Why("gang", "the {} of node {} do not do for all jobs on it", (name, node_id))
        for row in gang.rows:
            taken: dict[int, int] = {}
            if len(set(row)) < len(row):
                return Why("gang", "a row names a job twice")
            for job_id in row:
                run = stands[job_id]
                for node_id, count in each_node(run.placement):
                    cores = nodes[node_id].cores if run.job.exclusive else count * run.job.threads
                    taken[node_id] = taken.get(node_id, 0) + cores
                    if taken[node_id] > nodes[node_id].cores:
                        return Why("gang", "jobs of one row overlap on node {}", (node_id,))
        return None
