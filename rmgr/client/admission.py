"""What may be submitted: the limits of the queue and the largest node, checked before anything is written. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace

from rmgr.errors import Infeasible, NotFound, PermissionDenied, StateConflict, UsageError
from rmgr.model.block import PRIORITY_RANGE
from rmgr.model.node import NodeRecord
from rmgr.model.queue import ClusterSettings, Dispatch, QueueSpec
from rmgr.model.resources import Request
from rmgr.model.submission import Submission
from rmgr.model.units import format_duration, format_size

_MAX_CORES = 99_999


def admit(draft: Submission, settings: ClusterSettings, nodes: Sequence[NodeRecord]) -> Submission:
    """`draft` with the defaults of its queue, if the cluster accepts it.

    Raises: NotFound (unknown queue), PermissionDenied, StateConflict (closed queue, no placing policy), Infeasible naming
        the limit or the largest node, UsageError.
    """
    queue = find_queue(draft.queue, settings)
    if queue.users and draft.user not in queue.users:
        raise PermissionDenied(f"user {draft.user} may not submit to queue {queue.name}", hint="rmgr queues lists the others")
    if queue.state == "closed":
        raise StateConflict(f"queue {queue.name} is closed", hint="rmgr queues lists the open ones")
    if queue.dispatch is Dispatch.PLACE:
        raise StateConflict(
            f"queue {queue.name} is placed by the leader, and there is no placing policy yet", hint="submit to a queue with dispatch = pull"
        )
    request = _with_defaults(draft.request, queue)
    _check_limits(request, draft, queue)
    _check_nodes(request, queue, nodes)
    priority = draft.priority or queue.default_priority
    if not -PRIORITY_RANGE <= priority <= min(queue.max_priority, PRIORITY_RANGE):
        raise UsageError(
            f"priority {priority} is not between {-PRIORITY_RANGE} and {min(queue.max_priority, PRIORITY_RANGE)} (queue {queue.name})"
        )
    return replace(draft, queue=queue.name, request=request, priority=priority)


def find_queue(name: str, settings: ClusterSettings) -> QueueSpec:
    """The queue of that name, "" = the default one. Raises NotFound naming those there are."""
    wanted = name or settings.default_queue
    queue = settings.queue(wanted)
    if queue is None:
        known = [spec.name for spec in settings.queues]
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


def _check_limits(request: Request, draft: Submission, queue: QueueSpec) -> None:
    if not 1 <= request.cores <= _MAX_CORES:
        raise UsageError(f"cores = {request.cores} is not between 1 and {_MAX_CORES}")
    if request.memory_bytes < 0 or request.time_limit_us < 0 or draft.retries < 0 or draft.backoff_us < 0 or draft.max_running < 0:
        raise UsageError("memory, time, retries, back-off and caps cannot be negative")
    hint = "rmgr queues shows the limits; choose another queue with -q"
    if queue.max_cores and request.cores > queue.max_cores:
        raise Infeasible(f"{request.cores} cores are more than queue {queue.name} allows ({queue.max_cores})", hint=hint)
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
    need = f"{request.cores} cores" + (f" and {format_size(request.memory_bytes)}" if request.memory_bytes else "")
    need += "".join(f", {name} {count}" for name, count in sorted(request.resources.items()))
    raise Infeasible(
        f"no node can ever run this: it needs {need}; the largest node, {largest.node}, has {largest.capacity.cores} cores "
        f"and {format_size(largest.capacity.memory_bytes)}",
        hint="ask for less, or add a larger node; rmgr nodes",
    )
