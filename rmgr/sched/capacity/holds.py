"""Arithmetic of held cores: how many processes fit into cores of named nodes, where a job starts on its shares, which shares are good."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rmgr.sched.job import Job, Node, Placement, Running, Span
from rmgr.sched.records import Cores, Hold, Share


def room(job: Job, node: Node | None, cores: int) -> int:
    """Processes of the job that fit into so many cores of an otherwise empty node; 0 where it cannot run."""
    if node is None or node.closed or not set(job.features) <= set(node.features) or (job.exclusive and cores < node.cores):
        return 0
    count = cores // job.threads
    if job.memory_bytes and node.memory_bytes:
        count = min(count, node.memory_bytes // job.memory_bytes)
    if job.resources:
        has = dict(node.resources)
        count = min(count, *(has.get(name, 0) // number for name, number in job.resources))
    return min(count, 1) if job.spread else count


def are_spans(spans: object, nodes: int) -> bool:
    """It is a tuple of (first node, last node, count), all integers, none longer than so many nodes: what a record may hold."""
    return type(spans) is tuple and all(
        type(span) is tuple and [*map(type, span)] == [int, int, int] and span[1] - span[0] < nodes for span in spans
    )


def each_node(cores: Cores) -> Iterator[tuple[int, int]]:
    """(node id, count) of every node of these spans."""
    return ((node, count) for first, last, count in cores for node in range(first, last + 1))


def by_node(cores: Iterable[Cores]) -> dict[int, int]:
    """Node id -> cores of all of them together, ascending."""
    total: dict[int, int] = {}
    for spans in cores:
        for node, count in each_node(spans):
            total[node] = total.get(node, 0) + count
    return dict(sorted(total.items()))


def placed_on(job: Job, shares: Iterable[Share], nodes: Mapping[int, Node]) -> Placement | None:
    """The job on the nodes of lowest id of these shares; None when they have no room for all its processes."""
    wanted = job.processes
    spans: list[Span] = []
    for node, cores in by_node(share.cores for share in shares).items():
        count = min(room(job, nodes.get(node), cores), wanted)
        if not count:
            continue
        wanted -= count
        if spans and spans[-1][1] == node - 1 and spans[-1][2] == count:
            spans[-1] = (spans[-1][0], node, count)
        else:
            spans.append((node, node, count))
        if not wanted:
            return tuple(spans)
    return None


def is_within(part: Cores, whole: Mapping[int, int]) -> bool:
    """No node of it twice, and nowhere more than there."""
    seen: set[int] = set()
    for first, last, count in part:
        if count < 1 or last < first:
            return False
        for node in range(first, last + 1):
            if node in seen or count > whole.get(node, 0):
                return False
            seen.add(node)
    return True


def cores_of(run: Running) -> dict[int, int]:
    """Node id -> cores that the run has there."""
    return {node: count * run.job.threads for node, count in each_node(run.placement)}


def share_of(hold: Hold, run_id: int) -> Share:
    """The one that waits for this run."""
    return next(share for share in hold.waits_for if share.run_id == run_id)


def after_leaving(hold: Hold, run_id: int) -> Hold:
    """The run has left: its share is held."""
    waits_for = tuple(share for share in hold.waits_for if share.run_id != run_id)
    return hold._replace(waits_for=waits_for, held=tuple(sorted((*hold.held, share_of(hold, run_id)))))
