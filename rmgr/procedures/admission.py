"""Checks a request against the limits of its queue and the largest node before anything is written. Pure.

A client asks with `admit`, and gateways ask again with `check_admitted`, whoever made the request.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import replace

from rmgr.errors import ConfigError, Infeasible, NotFound, PermissionDenied, StateConflict, UsageError
from rmgr.model.base.resources import Request, checked_resources, needs_of
from rmgr.model.base.units import counted, format_duration, format_size
from rmgr.model.cluster.limits import CORES
from rmgr.model.cluster.node import NodeRecord
from rmgr.model.cluster.queue import ClusterSettings, Dispatch, QueueSpec
from rmgr.model.cluster.servers import CALLS
from rmgr.model.tasks.block import PRIORITY_RANGE
from rmgr.model.tasks.placing import Rigid
from rmgr.model.tasks.submission import Submission, Terms, Work
from rmgr.procedures.feasible import Needs, check_nodes, check_shape, told_cores, told_resources
from rmgr.procedures.queue_classes import check_class, chosen_classes, class_names, homes_of

_MAX_CORES = 99_999


def admit(draft: Submission, settings: ClusterSettings, nodes: Sequence[NodeRecord], *, partition: str = "", tasks: int = 1) -> Submission:
    """`draft` with the defaults of its queue, if the cluster accepts it.

    Args:
        partition: where it shall run, when the draft names no queue; "" = wherever the queue is. tasks: how many it begins with.
    Raises: NotFound (unknown queue, partition or node), PermissionDenied, StateConflict (closed queue), Infeasible naming
        the limit, the largest node, or what the partition has, UsageError for what contradicts itself.
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
    """What `admit` refuses by the settings of its queue, of a record that says that it was admitted: users, state, limits, priority.

    Whether a node could ever run it concerns its owner alone, and is not asked again. tasks: how many it begins with.
    Raises: as `admit`; StateConflict when it lacks a default of its queue. Cost: 5 us.
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
    """What `admit` refuses of a record whose `terms` were changed, as far as these say something of it. nodes: none = not asked.

    Raises: as `admit`.
    """
    queue = settings.queue(record.queue)
    if queue is None:
        raise NotFound(f"there is no queue {record.queue!r}", hint="rmgr queues")
    if terms.queue is not None:
        _check_open(queue, record.user)
        if (record.rigid is not None) is not (queue.dispatch is Dispatch.PLACE):
            how = "the leader places the jobs" if queue.dispatch is Dispatch.PLACE else "Starters take the work"
            told = f"{how} of queue {queue.name}, and this was sent to another kind"
            raise UsageError(told, hint=f"rmgr rerun {record.id} -q {queue.name}; rmgr cancel {record.id}")
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
    """Of pulled work: a task that takes more cores than its user may have at once starts on no node."""
    cap = settings.limits.of(CORES, user)
    if cap and request.cores > cap:
        raise Infeasible(
            f"each task takes {counted(request.cores, 'core')}, and {user} may have {counted(cap, 'core')} at once ({CORES})",
            hint=f"-c {cap}; or an operator: rmgr admin limit {user} --cores {request.cores}",
        )


def _check_priority(priority: int, queue: QueueSpec) -> None:
    most = min(queue.max_priority, PRIORITY_RANGE)
    if not -PRIORITY_RANGE <= priority <= most:
        raise UsageError(f"priority {priority} is not between {-PRIORITY_RANGE} and {most} (queue {queue.name})")


def choose_queue(draft: Submission, settings: ClusterSettings, partition: str = "") -> QueueSpec:
    """The queue that the draft names, or in which the jobs of the queue class that it names stand; without one where it belongs.

    A placed request: the default place queue, which is the first open one of the partition. A command of one process: that, too, where
    the policy of its partition chooses among queue classes (it can only choose for what it sees); else, and for the tasks of a
    TaskQueue, the default queue.
    Raises: NotFound, StateConflict, Infeasible saying what to put into the configuration.
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
    """Where a job stands whose user names a queue class. homes: partitions that have it."""
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
    """The first open queue that takes work of the user; rather one that has not the name of a class: a job in that has chosen already.

    Where none is open the first that the user may use, else the first, whose refusal says why; None of no queue.
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
        close = difflib.get_close_matches(partition, known, 1, 0.5)
        if settings.queue(partition) is not None:  # Slurm's word for a queue
            hint = f"did you mean the queue: -q {partition}?"
        else:
            hint = f"did you mean {close[0]!r}?" if close else "rmgr queues -o queue,partition"
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
    """The options that make a request a placed one."""
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
    """The queue of that name, "" = the default one. Raises NotFound naming those there are."""
    wanted = name or settings.default_queue
    queue = settings.queue(wanted)
    if queue is None:
        known = [spec.name for spec in settings.queues]
        known += [one for partition in settings.placed() for one in class_names(settings, partition)]
        close = difflib.get_close_matches(wanted, known, 1)
        raise NotFound(
            f"there is no queue {wanted!r}; the queues are {', '.join(known)}",
            hint=f"did you mean {close[0]!r}?" if close else "rmgr queues",
        )
    return queue


def _with_defaults(request: Request, queue: QueueSpec) -> Request:
    return replace(
        request,
        memory_bytes=request.memory_bytes or queue.default_memory_bytes,
        time_limit_us=request.time_limit_us or queue.default_time_us,
    )


def _check_limits(request: Request, draft: Submission, queue: QueueSpec, cores: int) -> None:
    """cores: of all its processes."""
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
    """What the policy file of the partition never lets run ([[partition]]). A file that limits nothing costs nothing."""
    spec = settings.pipeline(queue.partition)
    if spec is None or '"partition": [' not in spec.document:
        return
    from rmgr.sched.pipeline import limits_of

    try:
        limits = limits_of(spec.tables(), queue.partition)
    except (ValueError, AttributeError, ConfigError):  # nobody places there, and `rmgr status` says so
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
    """Refuses what no known node can ever run. Without any node in the partition nothing is known: they may come."""
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
        hint="ask for less, or add a larger node; rmgr nodes",
    )
