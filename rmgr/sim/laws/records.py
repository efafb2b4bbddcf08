"""Checks any records of a cluster, counted afresh: no core, byte, other resource or exclusive node given twice."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from rmgr.sched.capacity.gangs import cores_within
from rmgr.sched.job import Job, Node, Placement, Running, nodes_of
from rmgr.sched.records import Gang
from rmgr.sched.state.cluster import Snapshot
from rmgr.sched.tree.shape import Tree


def overcommitted(snapshot: Snapshot) -> Iterator[str]:
    """A sentence for each thing that is taken more often than it is there, and for each job that stands where it cannot.

    Cost: O(nodes + processes of what stands).
    """
    nodes = {node.id: node for node in snapshot.nodes}
    gangs = {job_id for gang in snapshot.gangs for job_id in gang.jobs}
    alone = _Taken(nodes)
    stands = {run.job.id: run for run in snapshot.running}
    for run in snapshot.running:
        yield from misplaced(run.job, run.placement, nodes)
        if run.job.id not in gangs:
            alone.add(run)
    for stopped in snapshot.suspended:
        yield from misplaced(stopped.run.job, stopped.run.placement, nodes)
        alone.add_memory(stopped.run)
    yield from _promised(snapshot, stands, alone)
    yield from alone.too_much()
    owners: dict[int, str] = {}
    for gang in snapshot.gangs:
        yield from _crowded(gang, stands, nodes, alone, owners)


class _Taken:
    """What stands on each node."""

    def __init__(self, nodes: dict[int, Node]) -> None:
        self.nodes = nodes
        self.cores: Counter[int] = Counter()
        self.memory: Counter[int] = Counter()
        self.others: Counter[tuple[int, str]] = Counter()
        self.names: defaultdict[int, list[str]] = defaultdict(list)
        self.exclusive: defaultdict[int, list[int]] = defaultdict(list)
        self.crowded: defaultdict[int, list[int]] = defaultdict(list)

    def add(self, run: Running) -> None:
        self.add_memory(run)
        for node, processes in processes_on(run.placement):
            self.cores[node] += processes * run.job.threads
            self.names[node].append(f"job {run.job.id}")
            if run.job.exclusive:
                self.exclusive[node].append(run.job.id)
            if run.job.spread and processes > 1:
                self.crowded[node].append(run.job.id)

    def add_memory(self, run: Running) -> None:
        for node, processes in processes_on(run.placement):
            self.memory[node] += processes * run.job.memory_bytes
            for name, count in run.job.resources:
                self.others[node, name] += processes * count

    def too_much(self) -> Iterator[str]:
        for node_id in sorted(self.nodes):
            node, names = self.nodes[node_id], ", ".join(self.names[node_id])
            if self.cores[node_id] > node.cores:
                yield f"node {node_id} has {node.cores} cores, {names} take {self.cores[node_id]}"
            if node.memory_bytes and self.memory[node_id] > node.memory_bytes:
                yield f"node {node_id} has {node.memory_bytes} bytes, {names} and what is suspended there take {self.memory[node_id]}"
            has = dict(node.resources)
            for name in sorted(name for at, name in self.others if at == node_id):
                if self.others[node_id, name] > has.get(name, 0):
                    taken = self.others[node_id, name]
                    yield f"node {node_id} has {has.get(name, 0)} {name}, {names} and what is suspended there take {taken}"
            if self.exclusive[node_id] and len(self.names[node_id]) > 1:
                yield f"node {node_id} is shared by {names}, and job {self.exclusive[node_id][0]} is exclusive"
            for job_id in self.crowded[node_id]:
                yield f"node {node_id} has several processes of job {job_id}, which is spread"


def _promised(snapshot: Snapshot, stands: dict[int, Running], taken: _Taken) -> Iterator[str]:
    """What holds have is taken; what they wait for runs, and is promised once."""
    waits = {job.id for job in snapshot.waiting}
    flagged: set[int] = set()
    for hold in snapshot.holds:
        if hold.job_id not in waits:
            yield f"cores are held for job {hold.job_id}, which does not wait"
        for share in hold.held:
            for node, cores in processes_on(share.cores):
                taken.cores[node] += cores
                taken.names[node].append(f"the hold of job {hold.job_id}")
        for share in hold.waits_for:
            if share.run_id not in stands:
                yield f"the hold of job {hold.job_id} waits for job {share.run_id}, which does not run"
            if share.run_id in flagged:
                yield f"job {share.run_id} is promised in two holds"
            flagged.add(share.run_id)


def _crowded(gang: Gang, stands: dict[int, Running], nodes: dict[int, Node], alone: _Taken, owners: dict[int, str]) -> Iterator[str]:
    """Each job stands on the leaves of its tree node; all of them keep their memory; nobody else is on their nodes."""
    together = _Taken(nodes)
    tree = Tree(gang.width, sum((last - first + 1) * cores for first, last, cores in gang.leaves))
    for job_id, home in gang.homes.items():
        run = stands.get(job_id)
        if run is None:
            continue  # it has ended, or waits again: its slots are empty
        together.add_memory(run)
        leaves = {node: cores for node, _, cores in cores_within(gang.leaves, *tree.span(home))}
        for node, processes in processes_on(run.placement):
            if processes * run.job.threads > leaves.get(node, 0):
                yield f"job {job_id} stands on node {node} outside of tree node {home} of gang {gang.name}"
            if run.job.exclusive and leaves.get(node, 0) < nodes[node].cores:
                yield f"job {job_id} is exclusive, and others have cores of node {node} in its slots"
            if run.job.spread and processes > 1:
                yield f"node {node} has several processes of job {job_id}, which is spread"
            if alone.names[node]:
                yield f"node {node} belongs to gang {gang.name}, and {', '.join(alone.names[node])} is on it"
            if owners.setdefault(node, gang.name) != gang.name:
                yield f"node {node} belongs to gangs {owners[node]} and {gang.name}"
    yield from together.too_much()


def misplaced(job: Job, placement: Placement, nodes: dict[int, Node]) -> Iterator[str]:
    """What is wrong with this job on these nodes, whoever else is there."""
    ids = nodes_of(placement)
    if sorted(set(ids)) != ids:
        yield f"job {job.id} stands on {placement}: nodes twice or out of order"
    total = sum(processes for _, processes in processes_on(placement))
    if total != job.processes or any(processes < 1 for _, _, processes in placement):
        yield f"job {job.id} has {job.processes} processes, {total} stand on {placement}"
    for node_id in ids:
        node = nodes.get(node_id)
        if node is None:
            yield f"job {job.id} stands on node {node_id}, which is not there"
        elif node.partition != job.partition:
            yield f"job {job.id} of partition {job.partition} stands on node {node_id} of partition {node.partition}"
        elif not set(job.features) <= set(node.features):
            yield f"job {job.id} needs {', '.join(job.features)}, node {node_id} lacks it"


def processes_on(placement: Placement) -> Iterator[tuple[int, int]]:
    """(node, processes) of each node of a placement."""
    for first, last, processes in placement:
        for node in range(first, last + 1):
            yield node, processes
