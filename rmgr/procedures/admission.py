"""Checks a request against the limits of its queue, its partition's nodes and its user, before anything is written.

A client checks with `admit`, and gateways check any client's request again with `check_admitted`: both are pure. `check_jobs` reads the
user's open jobs; gateways check them again, too (`daemons/gateway/door.py`).

A queue class belongs to the pipeline of a partition. A user who names one (`-q CLASS`) chooses it by hand: the job goes to the first place
queue of that partition that takes the work, and its record contains the class. What a class does not admit is refused at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import ConfigError, Infeasible, LimitReached, NotFound, PermissionDenied, StateConflict, UsageError, nearest
from rmgr.model.base import Request, checked_resources, needs_of
from rmgr.model.block import MAX_INDEX, PRIORITY_RANGE
from rmgr.model.node import NodeRecord
from rmgr.model.queue import BOUND, CORES, JOBS, CappedUse, ClusterSettings, Dispatch, PipelineSpec, QueueSpec, UserLimits
from rmgr.model.servers import CALLS
from rmgr.model.submission import FROM_START, Rigid, Submission, Terms, Work
from rmgr.model.units import counted, format_duration, format_size, plural
from rmgr.model.views import ClassView, QueueView
from rmgr.runtime import machine

if TYPE_CHECKING:
    from rmgr.sched.queue_class import Ladder, QueueClass

_MAX_CORES = 99_999
#: Policies that use queue classes, and whether they choose one for jobs that name none.
_LOOKING = {"queue_first_fit": False, "queue_select": True, "connection_reservation": True}
#: Words for "off" in a policy file (`rmgr/sched/parameters.py`).
_OFF = frozenset({"no", "false", "off", "0"})


def admit(draft: Submission, settings: ClusterSettings, nodes: Sequence[NodeRecord], *, partition: str = "", tasks: int = 1) -> Submission:
    """Returns `draft` with the defaults of its queue, if the cluster accepts it.

    Args:
        partition: where it must run if the draft names no queue; "" = wherever the queue is. tasks: how many it begins with.
    Raises: NotFound (unknown queue, partition or node), PermissionDenied, StateConflict (closed queue), Infeasible with
        the limit, the largest node, or what the partition has, UsageError for contradictory requests.
    """
    if draft.rigid is not None:
        check_shape(draft.rigid, tasks)
    queue = choose_queue(draft, settings, partition)
    _check_open(queue, draft.user)
    request = _with_defaults(draft.request, queue)
    rigid = draft.rigid
    if queue.dispatch is Dispatch.PLACE:
        rigid = rigid or Rigid()
        if draft.queue not in {"", queue.name}:
            rigid = replace(rigid, queue_class=draft.queue)
        needs = _check_placed(request, rigid, draft, queue, settings, tasks)
        check_nodes(needs, nodes)
    else:
        if rigid is not None:
            raise _needs_placing(rigid, queue, settings, draft.user)
        _check_limits(request, draft, queue, request.cores)
        _check_cap(request, draft.user, settings)
        _check_nodes(request, queue, nodes)
    priority = draft.priority or queue.default_priority
    _check_priority(priority, queue)
    return replace(draft, queue=queue.name, request=request, priority=priority, rigid=rigid)


def check_admitted(record: Submission, settings: ClusterSettings, *, tasks: int = 1) -> None:
    """Checks an admitted record again against the settings of its queue: users, state, limits, priority.

    Whether any node could ever run it concerns only its owner, and is not checked again. tasks: how many it begins with.
    Raises: as `admit`; StateConflict if it lacks a default of its queue. Cost: 5 us.
    """
    queue = settings.queue(record.queue)
    if queue is None:
        raise NotFound(f"there is no queue {record.queue!r}", hint="rmgr queues")
    _check_open(queue, record.user)
    if _with_defaults(record.request, queue) != record.request:
        raise StateConflict(f"the request lacks a default of queue {queue.name}: it has changed just now", hint="submit it again")
    if queue.dispatch is Dispatch.PLACE:
        if record.rigid is None:
            raise UsageError(f"the leader places the jobs of queue {queue.name}, and this is none", hint="rmgr version")
        _check_placed(record.request, record.rigid, record, queue, settings, tasks)
    else:
        if record.rigid is not None:
            raise _needs_placing(record.rigid, queue, settings, record.user)
        _check_limits(record.request, record, queue, record.request.cores)
        _check_cap(record.request, record.user, settings)
    _check_priority(record.priority, queue)


def check_changed(record: Submission, terms: Terms, settings: ClusterSettings, nodes: Sequence[NodeRecord] = ()) -> None:
    """Checks a changed record as `admit` does, as far as the changed `terms` matter. nodes: if none are given, they are not checked.

    Raises: as `admit`.
    """
    queue = settings.queue(record.queue)
    if queue is None:
        raise NotFound(f"there is no queue {record.queue!r}", hint="rmgr queues")
    if terms.queue is not None:
        _check_open(queue, record.user)
        if (record.rigid is not None) is not (queue.dispatch is Dispatch.PLACE):
            how = "the leader places the jobs" if queue.dispatch is Dispatch.PLACE else "Starters take the work"
            message = f"{how} of queue {queue.name}, and this was sent to another kind"
            raise UsageError(message, hint=f"rmgr rerun {record.id} -q {queue.name}; rmgr cancel {record.id}")
        if _with_defaults(record.request, queue) != record.request:
            raise UsageError(f"queue {queue.name} gives its work a time limit or memory: say them too", hint="-t TIME --mem SIZE")
    if terms.priority is not None or terms.queue is not None:
        _check_priority(record.priority, queue)
    if not terms.said().keys() & {"time_limit_us", "memory_bytes", "features", "queue", "cores"}:
        return
    if queue.dispatch is Dispatch.PLACE and record.rigid is not None:
        needs = _check_placed(record.request, record.rigid, record, queue, settings, tasks=1)
        if nodes:
            check_nodes(needs, nodes)
    else:
        _check_limits(record.request, record, queue, record.request.cores)
        if terms.cores is not None or terms.queue is not None:
            _check_cap(record.request, record.user, settings)
        _check_nodes(record.request, queue, nodes)


def _check_open(queue: QueueSpec, user: str) -> None:
    if queue.users and user not in queue.users:
        raise PermissionDenied(f"user {user} may not submit to queue {queue.name}", hint="rmgr queues lists the others")
    if queue.state == "closed":
        raise StateConflict(f"queue {queue.name} is closed", hint="rmgr queues lists the open ones")


def _check_placed(request: Request, rigid: Rigid, draft: Submission, queue: QueueSpec, settings: ClusterSettings, tasks: int) -> Needs:
    check_shape(rigid, tasks)
    needs = Needs(request=request, rigid=rigid, queue=queue)
    _check_limits(request, draft, queue, needs.cores)
    _check_partition_limits(request, queue, settings, needs.cores)
    check_class(request, rigid, queue, settings)
    return needs


def _check_cap(request: Request, user: str, settings: ClusterSettings) -> None:
    """Refuses pulled work whose tasks take more cores than the user may have at once: they would start on no node."""
    cap = settings.limits.of(CORES, user)
    if cap and request.cores > cap:
        raise Infeasible(
            f"each task takes {counted(request.cores, 'core')}, and {user} may have {counted(cap, 'core')} at once ({CORES})",
            hint=f"-c {cap}; or an operator: rmgr admin limit {user} --cores {request.cores}",
        )


def _check_priority(priority: int, queue: QueueSpec) -> None:
    most = min(queue.max_priority, PRIORITY_RANGE)
    if not -PRIORITY_RANGE <= priority <= most:
        possible = min(max(priority, -PRIORITY_RANGE), most)
        message = f"priority {priority} is not between {-PRIORITY_RANGE} and {most} (queue {queue.name})"
        raise UsageError(message, hint=f"--priority {possible}, or another queue: rmgr queues")


def choose_queue(draft: Submission, settings: ClusterSettings, partition: str = "") -> QueueSpec:
    """Returns the queue that the draft names, or the queue for jobs of the named queue class; without a name the fitting default.

    The default for a placed request is the partition's first open place queue. It is also the default for a command of one process if its
    partition's policy chooses among queue classes, since the policy can only choose for jobs that it sees. Otherwise, and for the tasks of
    a TaskQueue, it is the default queue.
    Raises: NotFound, StateConflict, Infeasible with what to put into the configuration.
    """
    if partition:
        _check_partition(partition, settings)
    if draft.queue and settings.queue(draft.queue) is None and (homes := homes_of(draft.queue, settings)):
        return _class_queue(draft, homes, partition, settings)
    if draft.queue:
        queue = find_queue(draft.queue, settings)
        if partition and queue.partition != partition:
            raise UsageError(
                f"queue {queue.name} is in partition {queue.partition}, not in {partition}", hint="name one of them: -q or --partition"
            )
        return queue
    default = find_queue("", settings)
    here = [default, *settings.queues] if not partition else [queue for queue in settings.queues if queue.partition == partition]
    if draft.rigid is None:
        placing = _entry([queue for queue in here if queue.dispatch is Dispatch.PLACE], draft.user, settings)
        if (
            draft.work is Work.COMMAND
            and placing is not None
            and _opens_to(placing, draft.user)
            and chosen_classes(settings, placing.partition)
        ):
            return placing
        if partition in {"", default.partition}:
            return default
    found = _entry([queue for queue in here if draft.rigid is None or queue.dispatch is Dispatch.PLACE], draft.user, settings)
    if found is None:
        raise _no_place_queue(partition)
    return found


def _class_queue(draft: Submission, homes: Sequence[str], partition: str, settings: ClusterSettings) -> QueueSpec:
    """Returns the queue for a job whose user names a queue class. homes: partitions that have the class."""
    if partition and partition not in homes:
        raise UsageError(
            f"{draft.queue} is a queue class of partition {', '.join(homes)}, not of {partition}",
            hint="name one of them: -q or --partition",
        )
    if not partition and len(homes) > 1:
        raise UsageError(
            f"{draft.queue} is a queue class of several partitions: {', '.join(homes)}", hint=f"--partition {homes[0]} says which is meant"
        )
    here = partition or homes[0]
    found = _entry(settings.placed()[here], draft.user, settings)
    assert found is not None, "a partition whose jobs are placed has a queue"
    return found


def _entry(able: Sequence[QueueSpec], user: str, settings: ClusterSettings) -> QueueSpec | None:
    """Returns the first open queue for the user, preferably one without the name of a class, in which the policy cannot choose any more.

    If none is open: the first that the user may use, or else the first, whose refusal says why; None if there are no queues.
    """
    opened = [queue for queue in able if _opens_to(queue, user)]
    plain = [queue for queue in opened if queue.name not in chosen_classes(settings, queue.partition)]
    mine = [queue for queue in able if not queue.users or user in queue.users]
    return next(iter((*plain, *opened, *mine, *able)), None)


def _opens_to(queue: QueueSpec, user: str) -> bool:
    return queue.state != "closed" and (not queue.users or user in queue.users)


def _check_partition(partition: str, settings: ClusterSettings) -> None:
    if partition == CALLS:
        raise Infeasible(
            f"--partition: partition {CALLS} is for calls of functions on servers: no job runs there",
            hint="leave it out; a function is called by rmgr call, rmgr functions lists them",
        )
    known = sorted({queue.partition for queue in settings.queues})
    if partition not in known:
        if settings.queue(partition) is not None:  # Slurm calls queues partitions
            hint = f"did you mean the queue: -q {partition}?"
        else:
            hint = nearest(partition, known, "rmgr queues -o queue,partition", cutoff=0.5)
        there = f"there {'are' if len(known) > 1 else 'is'} {', '.join(known)}"
        raise NotFound(f"--partition: no queue is in a partition {partition!r}; {there}", hint=hint)


def _no_place_queue(partition: str) -> Infeasible:
    where = f" of partition {partition}" if partition else ""
    lines = f'[queues.batch] with dispatch = "place"{f" and partition = {json.dumps(partition)}" if partition else ""}'
    return Infeasible(
        f"several processes, nodes and the like need a queue whose jobs the leader places, and there is none{where}",
        hint=f"its operator adds one: {lines}, to what rmgr config show --cluster prints, then rmgr config apply FILE",
    )


def _needs_placing(rigid: Rigid, queue: QueueSpec, settings: ClusterSettings, user: str) -> UsageError:
    opened = (spec for spec in settings.queues if spec.dispatch is Dispatch.PLACE and spec.state != "closed")
    placed = [spec.name for spec in opened if not spec.users or user in spec.users]
    return UsageError(
        f"Starters take the work of queue {queue.name} one process a task; {_wishes(rigid)} needs a queue whose jobs the leader places",
        hint=f"-q {placed[0]}, or no -q at all" if placed else _no_place_queue("").hint,
    )


def _wishes(rigid: Rigid) -> str:
    """Returns the options that make a request a placed one."""
    usual = Rigid()
    options = {
        f"-n {rigid.processes}": rigid.processes != usual.processes,
        f"-N {rigid.nodes}": rigid.nodes != usual.nodes,
        "--exclusive": rigid.exclusive,
        "--nodelist": rigid.nodelist,
        "--exclude": rigid.exclude,
        "--begin": rigid.begin_us,
        "--checkpoint-every": rigid.checkpoint_every_us,
        "--checkpoint-grace": rigid.checkpoint_grace_us != usual.checkpoint_grace_us,
        "--checkpoint": rigid.checkpoint,
        f"--max-moves {rigid.max_moves}": rigid.max_moves,
        f"--restart-from {rigid.restart}": rigid.restart != usual.restart,
    }
    return ", ".join(option for option, is_asked in options.items() if is_asked) or "what was asked for"


def find_queue(name: str, settings: ClusterSettings) -> QueueSpec:
    """Returns the queue of that name, "" = the default one. Raises NotFound with the existing ones."""
    wanted = name or settings.default_queue
    queue = settings.queue(wanted)
    if queue is None:
        known = [spec.name for spec in settings.queues]
        known += [one for partition in settings.placed() for one in class_names(settings, partition)]
        raise NotFound(f"there is no queue {wanted!r}; the queues are {', '.join(known)}", hint=nearest(wanted, known, "rmgr queues"))
    return queue


def _with_defaults(request: Request, queue: QueueSpec) -> Request:
    return replace(
        request,
        memory_bytes=request.memory_bytes or queue.default_memory_bytes,
        time_limit_us=request.time_limit_us or queue.default_time_us,
    )


def _check_limits(request: Request, draft: Submission, queue: QueueSpec, cores: int) -> None:
    """Checks a request against the limits of its queue. cores: of all its processes."""
    if not 1 <= request.cores <= _MAX_CORES:
        raise UsageError(f"cores = {request.cores} is not between 1 and {_MAX_CORES}", hint="-c: cores of one process")
    checked_resources(request.resources.items())
    if request.memory_bytes < 0 or request.time_limit_us < 0 or draft.retries < 0 or draft.backoff_us < 0 or draft.max_running < 0:
        raise UsageError("memory, time, retries, back-off and caps cannot be negative", hint="0, or leave it out, for no limit")
    hint = "rmgr queues shows the limits; choose another queue with -q"
    if queue.max_cores and cores > queue.max_cores:
        asked = f"{counted(cores, 'core')} {'are' if cores != 1 else 'is'}"
        raise Infeasible(f"{asked} more than queue {queue.name} allows ({queue.max_cores})", hint=hint)
    if queue.max_memory_bytes and request.memory_bytes > queue.max_memory_bytes:
        raise Infeasible(
            f"{format_size(request.memory_bytes)} of memory are more than queue {queue.name} allows "
            f"({format_size(queue.max_memory_bytes)})",
            hint=hint,
        )
    if queue.max_time_us and request.time_limit_us > queue.max_time_us:
        raise Infeasible(
            f"a time limit of {format_duration(request.time_limit_us / 1e6)} is more than queue {queue.name} allows "
            f"({format_duration(queue.max_time_us / 1e6)})",
            hint=hint,
        )


def _check_partition_limits(request: Request, queue: QueueSpec, settings: ClusterSettings, cores: int) -> None:
    """Refuses what the partition's policy file never lets run ([[partition]]). A file without limits costs nothing."""
    spec = settings.pipeline(queue.partition)
    if spec is None or '"partition": [' not in spec.document:
        return
    from rmgr.sched.pipeline import limits_of

    try:
        limits = limits_of(spec.tables(), queue.partition)
    except (ValueError, AttributeError, ConfigError):  # nothing is placed there, as `rmgr status` says
        return
    if limits is None:
        return
    where = f"partition {queue.partition}, by its policy {spec.name}"
    hint = "rmgr policy show; rmgr queues lists other queues (-q)"
    if limits.max_time_us and not 0 < request.time_limit_us <= limits.max_time_us:
        asked = f"a time limit of {format_duration(request.time_limit_us / 1e6)}" if request.time_limit_us else "a job without a time limit"
        raise Infeasible(
            f"{asked} never runs in {where}: the longest is {format_duration(limits.max_time_us / 1e6)}",
            hint=f"-t {format_duration(limits.max_time_us / 1e6)} or less; {hint}",
        )
    for most, whose in ((limits.max_cpus_per_user, "user"), (limits.max_cpus_per_account, "account")):
        if most and cores > most:
            raise Infeasible(f"{counted(cores, 'core')} never run in {where}: a {whose} may have {most} at once", hint=hint)


def _check_nodes(request: Request, queue: QueueSpec, nodes: Sequence[NodeRecord]) -> None:
    """Refuses what no known node can ever run. If the partition has no nodes yet, nothing is refused: they may come."""
    here = [node for node in nodes if node.attributes.partition == queue.partition]
    wanted = set(request.features)
    if not here or any(node.capacity.fits(request) and wanted <= set(node.attributes.features) for node in here):
        return
    with_features = [node for node in here if wanted <= set(node.attributes.features)]
    if not with_features:
        known = sorted({feature for node in here for feature in node.attributes.features})
        raise Infeasible(
            f"no node of partition {queue.partition} has the features {', '.join(sorted(wanted))}",
            hint=f"known features: {', '.join(known) or 'none'}; rmgr nodes",
        )
    largest = max(with_features, key=lambda node: (node.capacity.cores, node.capacity.memory_bytes, node.node))
    need = counted(request.cores, "core") + (f" and {format_size(request.memory_bytes)}" if request.memory_bytes else "")
    need += "".join(f", {count} {name}" for name, count in needs_of(request.resources))
    raise Infeasible(
        f"no node can ever run this: it needs {need}; the largest node, {largest.node}, has {told_cores(largest)} "
        f"and {format_size(largest.capacity.memory_bytes)}{told_resources(request, with_features, largest)}",
        hint=unknown_resource(request, here) or "ask for less, or add a larger node; rmgr nodes",
    )


# -- whether a partition could ever run a placed request: its shape, the nodes that it names, the capacity of known nodes ----------


_MAX_PROCESSES = 9_999_999


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """A placed request, before it is admitted to its queue."""

    request: Request
    rigid: Rigid
    queue: QueueSpec

    @property
    def cores(self) -> int:
        """Cores of all processes."""
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
    """Refuses contradictory shapes. Raises UsageError with what to type."""
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
    """Refuses what the known nodes can never run. If the partition has no nodes yet, nothing is refused: they may come.

    Raises: NotFound for an unknown node, Infeasible with what the partition has. Cost: O(nodes log nodes).
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
            hint=unknown_resource(needs.request, here.values()) or "ask for less with -c, --mem; rmgr nodes",
        )
    if rigid.nodes:
        _check_spread(needs, rooms)
    elif rigid.processes > sum(rooms):
        raise Infeasible(
            f"{needs.text} are more than {_where(needs)} ever has: its {_nodes(len(able))} room for {sum(rooms)}",
            hint=f"-n {sum(rooms)} at most, or fewer cores each (-c); rmgr nodes",
        )


def processes_on(node: NodeRecord, request: Request) -> int:
    """Returns how many of these processes the empty node can hold. Ignores features."""
    capacity = node.capacity
    room = capacity.cores // max(1, request.cores)
    if request.memory_bytes:
        room = min(room, capacity.memory_bytes // request.memory_bytes)
    for name, count in request.resources.items():
        if count:
            room = min(room, capacity.resources.get(name, 0) // count)
    return room


def told_cores(node: NodeRecord) -> str:
    """Returns `6 cores (and 2 that it keeps for calls)`: what an empty node has for work."""
    kept = node.attributes.call_cores
    return counted(node.capacity.cores, "core") + (f" (and {kept} that it keeps for calls)" if kept else "")


def told_resources(request: Request, nodes: Sequence[NodeRecord], largest: NodeRecord) -> str:
    """Returns for each requested resource how many the largest node has, and which node has most if it is another one."""
    message = ""
    for name, _ in needs_of(request.resources):
        has, most = largest.capacity.resources.get(name, 0), max(nodes, key=lambda node: node.capacity.resources.get(name, 0))
        message += f", {has} {name}"
        if most.capacity.resources.get(name, 0) > has:
            message += f" (most has {most.node}: {most.capacity.resources[name]})"
    return message


def unknown_resource(request: Request, nodes: Iterable[NodeRecord]) -> str:
    """Returns the hint about a requested resource that no node has at all, with the name that was probably meant; "" if there is none."""
    known = {name for node in nodes for name, count in node.capacity.resources.items() if count}
    lacking = next((name for name, _ in needs_of(request.resources) if name not in known), "")
    meant = f": {nearest(lacking, known)}" if known else ", nor anything else to count"
    return f"no node has {lacking!r}{meant}  (rmgr nodes lists what they have)" if lacking else ""


def _check_spread(needs: Needs, rooms: list[int]) -> None:
    """Checks processes spread evenly over exactly `rigid.nodes` nodes, each with room for the largest share, as the planner does."""
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
            raise NotFound(f"{option}: there is no node {name!r}", hint=f"{nearest(name, here, cutoff=0.5)}  (rmgr nodes lists them)")


def _where(needs: Needs) -> str:
    chosen = " (--nodelist, --exclude)" if needs.rigid.nodelist or needs.rigid.exclude else ""
    return f"partition {needs.queue.partition}{chosen}"


def _nodes(count: int) -> str:
    return f"{counted(count, 'node')} have" if count != 1 else "one node has"


# -- open jobs of a user -------------------------------------------------------------------------------------------------------


#: Time within which the leader counts again; time limit of reading its counts.
_COUNTED_S, _READ_S = 2.0, 10.0


def check_jobs(coordinator: Coordinator, limits: UserLimits, user: str, *, new: int = 1) -> None:
    """Checks the user's cap on jobs with the counts in ZooKeeper; see `check_cap`."""

    def has() -> int:
        found = coordinator.get(paths.USAGE, timeout_s=_READ_S).result(_READ_S + 1.0)
        return decode_record(found.data, CappedUse, paths.USAGE).jobs.get(user, 0) if found is not None else 0

    check_cap(has, limits, user, new=new)


def check_cap(has_jobs: Callable[[], int], limits: UserLimits, user: str, *, new: int = 1) -> None:
    """Checks that `user` may submit `new` more jobs. Cost: nothing without a cap, else one read; at the cap it waits for another count.

    The leader counts once a second: a user who submits many jobs within a second, past the gateways, may exceed the cap by these.
    Raises: LimitReached with the user, the cap, and what to do; Unavailable.
    """
    cap = limits.of(JOBS, user)
    if not cap or has_jobs() + new <= cap:
        return
    machine.sleep(_COUNTED_S)  # no user is refused because of jobs that have ended meanwhile
    if (has := has_jobs()) + new > cap:
        more = "" if new == 1 else f", and {new} more are to be submitted"
        message = f"{user} has {has} of the {cap} open jobs that {user} may have at once ({JOBS}){more}"
        raise LimitReached(message, hint=f"{BOUND[JOBS].advice}; rmgr limits")


# -- queue classes: which a partition has, and whether they admit a request ----------------------------------------------------


def chosen_classes(settings: ClusterSettings, partition: str) -> frozenset[str]:
    """Returns the queue classes among which the partition's policy chooses for jobs that name none; empty if it does not choose."""
    document = _document(settings, partition)
    stages = _stages(document, partition)
    if not any(_selects(stage) for stage in stages):
        return frozenset()
    return frozenset(_names(document, partition))


def class_names(settings: ClusterSettings, partition: str) -> tuple[str, ...]:
    """Returns the queue classes of the partition, chosen by its policy or by users; in the order of the file."""
    document = _document(settings, partition)
    looks = any(stage.get("policy") in _LOOKING for stage in _stages(document, partition))
    return tuple(_names(document, partition)) if looks or document.get("queue") else ()


def homes_of(name: str, settings: ClusterSettings) -> list[str]:
    """Returns the partitions with a queue class of that name."""
    return [partition for partition in sorted(settings.placed()) if name in class_names(settings, partition)]


def ladder_of(settings: ClusterSettings, partition: str) -> Ladder:
    """Returns the partition's queue classes, () if there are none or nothing is placed there. Cost: 1 ms the first time, then 5 us."""
    if not class_names(settings, partition):
        return ()
    spec = settings.pipeline(partition)
    return _ladder("" if spec is None else spec.document, partition)


def class_view(found: QueueClass, partition: str, policy: str, state: str) -> QueueView:
    """Returns a queue class as `rmgr queues` shows it, as far as the settings tell. state: of the queue for its jobs."""
    limits = {
        "max_cpus": found.max_cpus,
        "max_processes": found.max_processes,
        "max_threads": found.max_threads,
        "max_time_s": found.max_time_us // 1_000_000,
    }
    return QueueView(
        id=found.name,
        partition=partition,
        dispatch=Dispatch.PLACE,
        policy=policy,
        state=state,
        pending=0,
        running=0,
        limits={name: most for name, most in limits.items() if most},
        of_class=ClassView(
            limits=found.limits,
            threshold=found.reservation_threshold if found.max_reservations else 0,
            max_reservations=found.max_reservations,
            head_trigger=found.head_trigger and found.max_reservations > 0,
            is_known=False,
        ),
    )


def state_of(partition: str, settings: ClusterSettings) -> str:
    """Returns the state of a class: open as long as any of its queues is open."""
    states = [queue.state for queue in settings.placed().get(partition, ())]
    return "open" if "open" in states else next(iter(states), "closed")


def class_views(settings: ClusterSettings) -> list[QueueView]:
    """Returns all queue classes as far as the settings tell; only the leader knows which jobs are in them."""
    found = []
    for partition, queues in sorted(settings.placed().items()):
        policy, state = settings.policy_of(queues[0]), state_of(partition, settings)
        found += [class_view(known, partition, policy, state) for known in ladder_of(settings, partition)]
    return found


def check_class(request: Request, rigid: Rigid, queue: QueueSpec, settings: ClusterSettings) -> None:
    """Checks that the named class, or any class to choose from, admits the request. A queue with the name of a class counts as the class.

    Raises: NotFound for an unknown class; Infeasible with the request, the limits, and which classes admit it.
    Cost: 100 us in a partition with classes, a lookup elsewhere.
    """
    named = rigid.queue_class or (queue.name if queue.name in class_names(settings, queue.partition) else "")
    if not named and not chosen_classes(settings, queue.partition):
        return
    ladder = ladder_of(settings, queue.partition)
    if not ladder and not rigid.queue_class:
        return  # nothing is placed there, as `rmgr status` says
    open_to = tuple(known for known in ladder if named in {"", known.name})
    if not open_to:
        names = ", ".join(known.name for known in ladder) or "none"
        raise NotFound(f"partition {queue.partition} has no queue class {named!r}", hint=f"its classes: {names} (rmgr queues)")
    from rmgr.sched.job import Job

    job = Job(
        id=0,
        submit_us=1,  # no class considers it
        processes=rigid.processes,
        threads=request.cores,
        limit_us=request.time_limit_us,
        partition=queue.partition,
    )
    if not any(known.admits(job) for known in open_to):
        raise _refusal(job.wanted, job.wanted_cpus, named, open_to, tuple(known for known in ladder if known.admits(job)), queue)


def _refusal(
    shape: tuple[int, int], cpus: int, named: str, open_to: tuple[QueueClass, ...], others: tuple[QueueClass, ...], queue: QueueSpec
) -> Infeasible:
    message = f"{counted(shape[0], 'process')} x {counted(shape[1], 'thread')} ({counted(cpus, 'CPU')})"
    if not named:
        limits = "; ".join(f"{known.name}: {known.limits}" for known in open_to)
        return Infeasible(f"no queue class of partition {queue.partition} admits {message} for their time limit", hint=limits)
    able = f"-q {others[0].name} admits it" if others else "no class of this partition admits it: rmgr queues"
    return Infeasible(f"queue class {named} does not admit {message} for their time limit: it allows {open_to[0].limits}", hint=able)


@lru_cache(maxsize=8)
def _ladder(document: str, partition: str) -> Ladder:
    from rmgr.sched.pipeline import classes_of
    from rmgr.sched.queue_class import HPC2500

    if not document:
        return HPC2500
    try:
        return classes_of(PipelineSpec(partition=partition, document=document).tables(), partition) or HPC2500
    except (ValueError, AttributeError, ConfigError):
        return ()


def _document(settings: ClusterSettings, partition: str) -> dict[str, Any]:
    """Returns the tables of the partition's pipeline, as far as they are readable."""
    spec = settings.pipeline(partition)
    if spec is None:
        queues = settings.placed().get(partition, ())
        return {"stage": [{"policy": queues[0].policy if queues else ""}]}
    try:
        return spec.tables()
    except ConfigError:  # nothing is placed there, as `rmgr status` says
        return {}


def _stages(document: dict[str, Any], partition: str) -> list[dict[str, Any]]:
    """Returns the stages that serve the partition."""
    stages = (stage for stage in document.get("stage", []) if isinstance(stage, dict))
    return [stage for stage in stages if not stage.get("partitions") or partition in stage["partitions"]]


def _names(document: dict[str, Any], partition: str) -> list[str]:
    if not document.get("queue"):
        from rmgr.sched.queue_class import HPC2500

        return [known.name for known in HPC2500]
    tables = [table for table in document["queue"] if isinstance(table, dict) and table.get("partition", "") in {"", partition}]
    return [str(table.get("name", "")) for table in tables]


def _selects(stage: dict[str, Any]) -> bool:
    policy = str(stage.get("policy"))
    if policy == "connection_reservation":
        return str((stage.get("parameters") or {}).get("select", "yes")).lower() not in _OFF
    return _LOOKING.get(policy, False)
