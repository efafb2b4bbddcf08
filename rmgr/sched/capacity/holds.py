"""Arithmetic of held cores: how many processes fit on named nodes, where a job starts on its shares, which shares are valid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rmgr.sched.job import Job, Node, Placement, Running, Span
from rmgr.sched.records import Cores, Hold, Share


def room(job: Job, node: Node | None, cores: int) -> int:
    """Returns how many processes of the job fit on `cores` cores of an otherwise empty node; 0 where it cannot run."""
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
    """Checks a record's spans: a tuple of integer triples (first node, last node, count), none longer than `nodes` nodes."""
    return type(spans) is tuple and all(
        type(span) is tuple and [*map(type, span)] == [int, int, int] and span[1] - span[0] < nodes for span in spans
    )


def each_node(cores: Cores) -> Iterator[tuple[int, int]]:
    """Yields (node id, count) for every node of the spans."""
    return ((node, count) for first, last, count in cores for node in range(first, last + 1))


def by_node(cores: Iterable[Cores]) -> dict[int, int]:
    """Returns node id -> total cores over all these spans, in ascending order of id."""
    total: dict[int, int] = {}
    for spans in cores:
        for node, count in each_node(spans):
            total[node] = total.get(node, 0) + count
    return dict(sorted(total.items()))


def placed_on(job: Job, shares: Iterable[Share], nodes: Mapping[int, Node]) -> Placement | None:
    """Places the job on the nodes of lowest id among the shares; None if they have no room for all its processes."""
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
    """Whether `part` names no node twice and takes no more cores of any node than `whole` has."""
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
    """Returns node id -> cores that the run has there."""
    return {node: count * run.job.threads for node, count in each_node(run.placement)}


def share_of(hold: Hold, run_id: int) -> Share:
    """Returns the share of the hold that waits for this run. Raises: StopIteration if there is none."""
    return next(share for share in hold.waits_for if share.run_id == run_id)


def after_leaving(hold: Hold, run_id: int) -> Hold:
    """Returns the hold after the run has left: the run's share moves from `waits_for` to `held`."""
    waits_for = tuple(share for share in hold.waits_for if share.run_id != run_id)
    return hold._replace(waits_for=waits_for, held=tuple(sorted((*hold.held, share_of(hold, run_id)))))
