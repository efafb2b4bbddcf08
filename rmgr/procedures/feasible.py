"""Whether a partition could ever run a placed request: its shape, the nodes that it names, what the known nodes hold. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rmgr.errors import Infeasible, NotFound, UsageError
from rmgr.model.base.resources import Request, needs_of
from rmgr.model.base.units import counted, format_size, plural
from rmgr.model.cluster.node import NodeRecord
from rmgr.model.cluster.queue import QueueSpec
from rmgr.model.tasks.placing import FROM_START, MAX_INDEX, Rigid

_MAX_PROCESSES = 9_999_999


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """A placed request on its way into a queue."""

    request: Request
    rigid: Rigid
    queue: QueueSpec

    @property
    def cores(self) -> int:
        """Of all processes."""
        return self.rigid.processes * self.request.cores

    @property
    def text(self) -> str:
        """`4 processes of 2 cores and 1.0G each, --resource gpu=1`."""
        request, processes = self.request, self.rigid.processes
        each = f"{request.cores} core{'s' if request.cores != 1 else ''}"
        each += f" and {format_size(request.memory_bytes)}" if request.memory_bytes else ""
        each += "".join(f", {count} {name}" for name, count in needs_of(request.resources))
        return f"{counted(processes, 'process')} of {each} each" if processes > 1 else f"a process of {each}"


def check_shape(rigid: Rigid, tasks: int = 1) -> None:
    """What contradicts itself. Raises UsageError that says what to type."""
    if not 1 <= rigid.processes <= _MAX_PROCESSES:
        raise UsageError(
            f"-n {rigid.processes} is not between 1 and {_MAX_PROCESSES}", hint="-n: processes of one job; an array of jobs is -a 1-100"
        )
    if rigid.nodes < 0:
        raise UsageError(f"-N {rigid.nodes} is no number of nodes", hint="-N 1 or more, or without -N: wherever they fit")
    if rigid.nodes > rigid.processes:
        raise UsageError(
            f"-N {rigid.nodes} nodes are more than -n {counted(rigid.processes, 'process')}: each node has at least one",
            hint=f"-n {rigid.nodes}, or -N {rigid.processes}",
        )
    both = sorted(set(rigid.nodelist) & set(rigid.exclude))
    if both:
        raise UsageError(f"{', '.join(both)}: both in --nodelist and in --exclude", hint="take it out of one of them")
    if rigid.nodelist and rigid.nodes > len(set(rigid.nodelist)):
        raise UsageError(
            f"-N {counted(rigid.nodes, 'node')}, and --nodelist names only {len(set(rigid.nodelist))}",
            hint=f"name more nodes, or -N {len(set(rigid.nodelist))}",
        )
    if rigid.restart == FROM_START and (rigid.checkpoint_every_us > 0 or rigid.checkpoint):
        option = "--checkpoint-every" if rigid.checkpoint_every_us > 0 else "--checkpoint"
        raise UsageError(f"{option}: nothing is stored of a job with --restart-from start", hint="without one of them")
    if tasks > MAX_INDEX:
        raise UsageError(f"{counted(tasks, 'task')}: a placed submission has at most {MAX_INDEX:,}", hint="submit it in parts")


def check_nodes(needs: Needs, nodes: Sequence[NodeRecord]) -> None:
    """Refuses what the known nodes can never run. Without any node in the partition nothing is known: they may come.

    Raises: NotFound for a node that nobody knows, Infeasible with what the partition has. Cost: O(nodes log nodes).
    """
    rigid, partition = needs.rigid, needs.queue.partition
    here = {node.node: node for node in nodes if node.attributes.partition == partition}
    for option, names in (("--nodelist", rigid.nodelist), ("--exclude", rigid.exclude)):
        _check_names(option, names, here, {node.node: node.attributes.partition for node in nodes}, partition)
    if not here:
        return
    wanted = set(needs.request.features)
    left = [name for name in here if name not in rigid.exclude and (not rigid.nodelist or name in rigid.nodelist)]
    if not left:
        named = ",".join(sorted(rigid.exclude))
        raise Infeasible(f"--exclude {named} leaves no node of partition {partition}", hint="exclude fewer; rmgr nodes lists them")
    able = [name for name in left if wanted <= set(here[name].attributes.features)]
    if not able:
        known = sorted({feature for node in here.values() for feature in node.attributes.features})
        raise Infeasible(
            f"no node of {_where(needs)} has the features {', '.join(sorted(wanted))}",
            hint=f"known features: {', '.join(known) or 'none'}; rmgr nodes",
        )
    rooms = sorted((processes_on(here[name], needs.request) for name in able), reverse=True)
    if not rooms[0]:
        largest = max((here[name] for name in able), key=lambda node: (node.capacity.cores, node.capacity.memory_bytes, node.node))
        raise Infeasible(
            f"no node can ever run one of these processes: {needs.text}; the largest node of {_where(needs)}, {largest.node}, has "
            f"{told_cores(largest)} and {format_size(largest.capacity.memory_bytes)}"
            + told_resources(needs.request, [here[name] for name in able], largest),
            hint="ask for less with -c, --mem; rmgr nodes",
        )
    if rigid.nodes:
        _check_spread(needs, rooms)
    elif rigid.processes > sum(rooms):
        raise Infeasible(
            f"{needs.text} are more than {_where(needs)} ever has: its {_nodes(len(able))} room for {sum(rooms)}",
            hint=f"-n {sum(rooms)} at most, or fewer cores each (-c); rmgr nodes",
        )


def processes_on(node: NodeRecord, request: Request) -> int:
    """How many such processes the empty node takes. Features are not looked at."""
    capacity = node.capacity
    room = capacity.cores // max(1, request.cores)
    if request.memory_bytes:
        room = min(room, capacity.memory_bytes // request.memory_bytes)
    for name, count in request.resources.items():
        if count:
            room = min(room, capacity.resources.get(name, 0) // count)
    return room


def told_cores(node: NodeRecord) -> str:
    """`6 cores (and 2 that it keeps for calls)`: what an empty node has for work."""
    kept = node.attributes.call_cores
    return counted(node.capacity.cores, "core") + (f" (and {kept} that it keeps for calls)" if kept else "")


def told_resources(request: Request, nodes: Sequence[NodeRecord], largest: NodeRecord) -> str:
    """Of each resource that is asked for: how many the largest node has, and which node has most where that is another one."""
    told = ""
    for name, _ in needs_of(request.resources):
        has, most = largest.capacity.resources.get(name, 0), max(nodes, key=lambda node: node.capacity.resources.get(name, 0))
        told += f", {has} {name}"
        if most.capacity.resources.get(name, 0) > has:
            told += f" (most has {most.node}: {most.capacity.resources[name]})"
    return told


def _check_spread(needs: Needs, rooms: list[int]) -> None:
    """Processes spread evenly over exactly so many nodes, each with room for the largest share: that is how they are planned."""
    rigid = needs.rigid
    usable = [room for room in rooms if room]
    if rigid.nodes > len(usable):
        raise Infeasible(
            f"-N {rigid.nodes} is more than {_where(needs)} has for this: {counted(len(usable), 'node')}",
            hint=f"-N {len(usable)} at most, or without -N: wherever they fit; rmgr nodes",
        )
    most = -(-rigid.processes // rigid.nodes)
    if usable[rigid.nodes - 1] < most:
        able = sum(room >= most for room in usable)
        raise Infeasible(
            f"{needs.text}, spread over {counted(rigid.nodes, 'node')}, are {most} on a node; {_where(needs)} has {able or 'no'} such "
            f"{plural(able, 'node')}",
            hint="more nodes (-N), fewer processes (-n), fewer cores each (-c), or without -N: wherever they fit; rmgr nodes",
        )


def _check_names(option: str, names: Iterable[str], here: Iterable[str], known: dict[str, str], partition: str) -> None:
    for name in names:
        if name in known and known[name] != partition:
            raise Infeasible(
                f"{option}: node {name} is in partition {known[name]}, the queue's jobs run in {partition}",
                hint=f"--partition {known[name]}",
            )
        if name not in known:
            close = difflib.get_close_matches(name, sorted(here), 1, 0.5)
            told = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(here)) or 'none'}"
            raise NotFound(f"{option}: there is no node {name!r}", hint=f"{told}  (rmgr nodes lists them)")


def _where(needs: Needs) -> str:
    chosen = " (--nodelist, --exclude)" if needs.rigid.nodelist or needs.rigid.exclude else ""
    return f"partition {needs.queue.partition}{chosen}"


def _nodes(count: int) -> str:
    return f"{counted(count, 'node')} have" if count != 1 else "one node has"
