"""Nouns of placement: rigid jobs, nodes, and where each job runs.

Time is an integer number of microseconds everywhere in this package (`_us`); a driver chooses the origin. Ids of jobs and nodes are
integers: the lowest node id is taken first, and the lowest job id wins a tie.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, Self, TypeAlias

#: Planned time of a job without a time limit: longer than any run.
UNLIMITED_US = 1 << 60

#: Nodes `first..last` (both included), each with `processes` processes of the job.
Span: TypeAlias = tuple[int, int, int]
#: Where a job runs: spans in ascending order of node id, none overlapping.
Placement: TypeAlias = tuple[Span, ...]
#: Countable resources besides cores and memory, (name, count) in ascending order: what a process needs or what a node has.
Resources: TypeAlias = tuple[tuple[str, int], ...]
#: (processes, threads of each) that the user asked for.
Asked: TypeAlias = tuple[int, int]


class Special(NamedTuple):
    """Needs that few processes have: features of the node and other resources."""

    features: tuple[str, ...] = ()
    resources: Resources = ()


class Shape(NamedTuple):
    """Needs of one process on its node: jobs of the same shape fit on the same nodes. special: None if there is nothing special."""

    threads: int
    memory_bytes: int
    special: Special | None
    exclusive: bool
    spread: bool = False

    @property
    def resources(self) -> Resources:
        """Resources in `special`."""
        return () if self.special is None else self.special.resources


#: The shape of most jobs.
PLAIN = Shape(1, 0, None, False)


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Job:
    """A rigid parallel job: `processes` x `threads` cores; the threads of one process share a node, processes may be spread.

    limit_us: requested elapsed time, the longest it may run; 0 = no limit, planned as `UNLIMITED_US`.
    memory_bytes: of one process, 0 = not counted. resources: of one process. exclusive: no other job on its nodes.
    spread: each process on a node of its own.
    priority: larger goes first under `priority`.
    queued_us: when it last entered the queue (-1: at submit_us); later than its submit time after a migration or preemption.
    after: ids of jobs that must have left the cluster first; an id unknown to the state counts as left. begin_us: earliest start.
    restarts: how often it was sent back to the queue; moves: how many of these were moves by a policy (`Migrate`).
    saves: it can save its state on request and continue elsewhere. max_moves: how often a policy may move it, 0 = unspecified.
    asked: what the user asked for, if something else is placed: each of so many nodes then gets one process with the threads of all that
    run there. None: the same as placed. Classes, limits, priorities and the match of a connection look at it.
    """

    id: int
    submit_us: int
    processes: int = 1
    threads: int = 1
    limit_us: int = 0
    memory_bytes: int = 0
    features: tuple[str, ...] = ()
    exclusive: bool = False
    partition: str = "default"
    queue: str = "default"
    user: str = ""
    account: str = ""
    priority: int = 0
    queued_us: int = -1
    after: tuple[int, ...] = ()
    begin_us: int = 0
    restarts: int = 0
    spread: bool = False
    resources: Resources = ()
    asked: Asked | None = None
    saves: bool = True
    moves: int = 0
    max_moves: int = 0
    cpus: int = field(init=False, compare=False)  #: processes x threads
    wanted: Asked = field(init=False, compare=False)  #: `asked`, or what is placed if that is None
    wanted_cpus: int = field(init=False, compare=False)  #: cores of `wanted`
    planned_us: int = field(init=False, compare=False)  #: the limit, or `UNLIMITED_US`
    shape: Shape = field(init=False, compare=False)

    def __new__(
        cls,
        *,
        id: int,
        submit_us: int,
        processes: int = 1,
        threads: int = 1,
        limit_us: int = 0,
        memory_bytes: int = 0,
        features: tuple[str, ...] = (),
        exclusive: bool = False,
        partition: str = "default",
        queue: str = "default",
        user: str = "",
        account: str = "",
        priority: int = 0,
        queued_us: int = -1,
        after: tuple[int, ...] = (),
        begin_us: int = 0,
        restarts: int = 0,
        spread: bool = False,
        resources: Resources = (),
        asked: Asked | None = None,
        saves: bool = True,
        moves: int = 0,
        max_moves: int = 0,
    ) -> Self:
        """Builds the job in less than half the time of the dataclass's own constructor, which sets every field of a frozen class by a call.

        Raises: ValueError for a job without cores or with a negative time, naming the job and the field.
        """
        new: Any = object.__new__(_Unfrozen)
        new.id = id
        new.submit_us = submit_us
        new.processes = processes
        new.threads = threads
        new.limit_us = limit_us
        new.memory_bytes = memory_bytes
        new.features = features
        new.exclusive = exclusive
        new.partition = partition
        new.queue = queue
        new.user = user
        new.account = account
        new.priority = priority
        new.queued_us = queued_us if queued_us >= 0 else submit_us
        new.after = after
        new.begin_us = begin_us
        new.restarts = restarts
        new.spread = spread
        new.resources = resources
        new.asked = asked
        new.saves = saves
        new.moves = moves
        new.max_moves = max_moves
        new.cpus = processes * threads
        if asked is None:
            new.wanted = (processes, threads)
            new.wanted_cpus = new.cpus
        else:
            new.wanted = asked
            new.wanted_cpus = asked[0] * asked[1]
        new.planned_us = limit_us or UNLIMITED_US
        if threads == 1 and not (memory_bytes or features or resources or exclusive or spread):
            new.shape = PLAIN
        else:
            special = Special(features, resources) if features or resources else None
            new.shape = Shape(threads, memory_bytes, special, exclusive, spread)
            if resources and not _is_countable(resources):
                new._complain()  # noqa: SLF001 - its own class
        if processes < 1 or threads < 1 or submit_us < 0 or limit_us < 0 or memory_bytes < 0 or begin_us < 0:
            new._complain()  # noqa: SLF001 - its own class
        new.__class__ = cls
        made: Self = new
        return made

    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, object]]:
        """Supports copies and pickles."""
        return (), {one.name: getattr(self, one.name) for one in fields(self) if one.init}

    def _complain(self) -> None:
        for name in ("processes", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"job {self.id}: {name} is {getattr(self, name)}, at least 1 is needed")
        for name in ("submit_us", "limit_us", "memory_bytes", "begin_us"):
            if getattr(self, name) < 0:
                raise ValueError(f"job {self.id}: {name} is {getattr(self, name)}, it cannot be negative")
        if not _is_countable(self.resources):
            raise ValueError(f"job {self.id}: resources are {self.resources}, not names, ascending, each with a count of 1 or more")


class _Unfrozen(Job):
    """A job under construction. It needs both methods, otherwise each field would again be set by a call."""

    __slots__ = ()
    __setattr__ = object.__setattr__
    __delattr__ = object.__delattr__


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node as the scheduler sees it. closed: drained, lost or fenced; nothing starts there, runs continue until a fact ends them."""

    id: int
    cores: int = 1
    memory_bytes: int = 0  #: 0 = not counted: every memory request fits
    partition: str = "default"
    features: tuple[str, ...] = ()
    name: str = ""
    speed: float = 1.0
    site: str = ""
    closed: bool = False
    resources: Resources = ()


def room_on(shape: Shape, node: Node, cores: int, memory: int) -> int:
    """Returns how many processes of this shape fit on so many free cores and bytes of the node; see `room_beside` for other resources."""
    threads, memory_bytes, special, exclusive, spread = shape
    if exclusive and cores < node.cores:
        return 0
    if special is not None and not set(special.features) <= set(node.features):
        return 0
    count = cores // threads
    if memory_bytes and node.memory_bytes:
        count = min(count, memory // memory_bytes)
    return max(min(count, 1) if spread else count, 0)


def room_beside(count: int, resources: Resources, others: Mapping[str, Sequence[int]], at: int = 0) -> int:
    """Returns how many of `count` processes the resources in `others`, at index `at`, suffice for."""
    for name, number in resources:
        count = min(count, others[name][at] // number) if name in others else 0
    return max(count, 0)


def room_if_empty(shape: Shape, node: Node, cores: int) -> int:
    """Returns how many processes of this shape fit on so many cores of the otherwise empty node, be it open or closed."""
    count = room_on(shape, node, cores, node.memory_bytes)
    return room_beside(count, shape.resources, {name: (has,) for name, has in node.resources}) if shape.resources else count


def room(job: Job, node: Node | None, cores: int) -> int:
    """Returns how many processes of the job fit on so many cores of the otherwise empty node; 0 where it cannot run."""
    return 0 if node is None or node.closed else room_if_empty(job.shape, node, cores)


class Running(NamedTuple):
    """A job on its nodes. start_us: since when it runs, or since its last resume. end_us: when its limit ends it."""

    job: Job
    start_us: int
    end_us: int
    placement: Placement


def sent_back(job: Job, now_us: int, *, moved: bool) -> Job:
    """Returns the job as it waits again from now on. moved: a policy has moved it; otherwise it has lost its work."""
    return replace(job, queued_us=now_us, restarts=job.restarts + 1, moves=job.moves + moved)


def charged_cores(run: Running, nodes: Mapping[int, Node]) -> int:
    """Returns the cores that the user is charged for: those of the processes, or all cores of nodes used exclusively."""
    if not run.job.exclusive:
        return run.job.cpus
    found = [nodes[node].cores for node in nodes_of(run.placement) if node in nodes]
    return max(run.job.cpus, sum(found))


class Reservation(NamedTuple):
    """A committed record: `job_id` is promised a start no later than `start_us`; nothing that starts now may break the promise."""

    job_id: int
    start_us: int
    placement: Placement = ()  #: () where any nodes will do
    policy: str = ""  #: policy that made the promise; the promise goes when the policy leaves the pipeline


def spans_of(counts: Iterable[tuple[int, int]]) -> Placement:
    """Turns (node id, count), ascending, into spans."""
    spans: list[Span] = []
    for node, processes in counts:
        if spans and spans[-1][1] == node - 1 and spans[-1][2] == processes:
            spans[-1] = (spans[-1][0], node, processes)
        else:
            spans.append((node, node, processes))
    return tuple(spans)


def resources_of(counts: Mapping[str, int]) -> Resources:
    """Returns the names with a count above 0, each with its count, sorted."""
    return tuple(sorted((name, count) for name, count in counts.items() if count > 0)) if counts else ()


def _is_countable(resources: Resources) -> bool:
    names = [name for name, _ in resources]
    return sorted(set(names)) == names and all(count > 0 for _, count in resources)


def each_node(spans: Iterable[Span]) -> Iterator[tuple[int, int]]:
    """Yields (node id, count) for every node of the spans."""
    return ((node, count) for first, last, count in spans for node in range(first, last + 1))


def count_of(spans: Iterable[Span]) -> int:
    """Returns the sum of the counts of all nodes of the spans. Cost: O(spans)."""
    return sum((last - first + 1) * count for first, last, count in spans)


def count_on(node: int, spans: Iterable[Span]) -> int:
    """Returns the count of this node, 0 if it is in none of the spans. Cost: O(spans)."""
    return next((count for first, last, count in spans if first <= node <= last), 0)


def nodes_of(placement: Placement) -> list[int]:
    """Returns every node id of a placement, in ascending order."""
    return [node for node, _ in each_node(placement)]
