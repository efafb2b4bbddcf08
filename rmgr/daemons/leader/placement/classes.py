"""Queue classes as the placing leader knows them: whose jobs wait and run in each, which cores they were promised, how often they reserved.

Called in the leader's loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import msgspec

from rmgr.daemons.leader.core.metrics import LeaderMetrics
from rmgr.daemons.leader.records.job_table import JobTable
from rmgr.daemons.leader.records.served import ServedPartitions
from rmgr.daemons.leader.records.view import label
from rmgr.model.views import ClassView, PromiseView, QueueView
from rmgr.procedures.queue_classes import class_view, state_of
from rmgr.sched.policies.connection_reservation import ConnectionReservation, Trigger, fired_in
from rmgr.sched.policies.queue_first_fit import QueueSelect
from rmgr.sched.policy import Stage
from rmgr.sched.queue_class import QueueClass
from rmgr.sched.records import Cores
from rmgr.sched.state.cluster import ClusterState
from rmgr.sched.state.partition import Partition

#: So long after something has happened the metrics tell it: counting is O(jobs).
MEASURED_S = 1.0
_NEVER = (0,) * len(Trigger)


def views_of(
    state: ClusterState | None, promised: Mapping[int, int], served: ServedPartitions, job_table: JobTable, stages: Iterable[Stage]
) -> tuple[QueueView, ...]:
    """Every class of every partition, in the order of its file. Cost: O(jobs).

    Args: promised: job -> the start that it was promised (us). stages: that place now.
    """
    if not any(served.classes.values()):
        return ()
    waiting = Counter((one.partition, job_table.class_of(job)) for job, one in job_table.waiting.items())
    running = Counter((one.partition, job_table.class_of(job)) for job, one in job_table.placed.items())
    views = []
    for partition, ladder in sorted(served.classes.items()):
        part = state.partitions.get(partition) if state is not None else None
        is_open = state_of(partition, served.settings())
        for queue in ladder:
            view = class_view(queue, partition, served.policies.get(partition, ""), is_open)
            assert view.of_class is not None
            told = msgspec.structs.replace(view.of_class, is_known=True, chosen=_chosen(stages, partition, queue))
            if part is not None:
                told = _told(job_table, part, queue, told, promised)
            where = (partition, queue.name)
            views.append(msgspec.structs.replace(view, pending=waiting[where], running=running[where], of_class=told))
    return tuple(views)


def _told(job_table: JobTable, part: Partition, queue: QueueClass, view: ClassView, expected: Mapping[int, int]) -> ClassView:
    """What the scheduler's records say of it."""
    records = job_table.submissions
    promised = [
        PromiseView(
            job=label(job, records),
            cores=sum(_count(share.cores) for share in (*hold.held, *hold.waits_for)),
            held=sum(_count(share.cores) for share in hold.held),
            waits_for=tuple(label(share.run_id, records) for share in hold.waits_for),
            expected_start_us=expected.get(job, 0),
        )
        for job, hold in sorted(part.holds.items())
        if job_table.class_of(job) == queue.name
    ]
    fired = part.notes.get(ConnectionReservation.name, {}).get(fired_in(queue.name), {}).get(0, _NEVER)
    return msgspec.structs.replace(view, promised=tuple(promised), fired=fired)


def _count(cores: Cores) -> int:
    return sum(count * (last - first + 1) for first, last, count in cores)


def _chosen(stages: Iterable[Stage], partition: str, queue: QueueClass) -> str:
    """By whom it is chosen for a job."""
    for stage in stages:
        policy = stage.policy
        if partition in stage.partitions and isinstance(policy, QueueSelect | ConnectionReservation) and getattr(policy, "select", True):
            affinity = policy.thread_affinity and queue.is_for_threads
            other = ", or, as thread_affinity has it, the one for few processes of many threads" if affinity else ""
            return f"by {policy.name}: the strictest that admits it{other}"
    return "by users only (-q)"


class Later(Protocol):
    """Calls in the leader's loop, in so many seconds."""

    def after(self, delay_s: float, what: Callable[[], None]) -> object: ...


class ClassMetrics:
    """Puts what is told of classes into a leader's metrics, a moment after something has happened. In the leader's loop.

    Args: views: what is told of them now (`views_of`).
    """

    def __init__(self, served: ServedPartitions, views: Callable[[], Iterable[QueueView]], loop: Later, metrics: LeaderMetrics) -> None:
        self._served = served
        self._views = views
        self._loop = loop
        self._metrics = metrics
        self._is_due = False

    def soon(self) -> None:
        """Something has happened. Costs nothing where there are no classes."""
        if not self._is_due and any(self._served.classes.values()):
            self._is_due = True
            self._loop.after(MEASURED_S, self._measure)

    def _measure(self) -> None:
        self._is_due = False
        self.clear()
        metrics = self._metrics
        for view in self._views():
            told, where = view.of_class, (view.partition, view.id)
            assert told is not None
            metrics.class_waiting.labels(*where).set(view.pending)
            metrics.class_running.labels(*where).set(view.running)
            metrics.class_promised.labels(*where).set(sum(promise.cores for promise in told.promised))
            for trigger, count in zip(Trigger, told.fired, strict=True):
                metrics.class_reservations.labels(*where, trigger.name.lower()).set(count)

    def clear(self) -> None:
        """Nothing is known any more."""
        metrics = self._metrics
        for metric in (metrics.class_waiting, metrics.class_running, metrics.class_promised, metrics.class_reservations):
            metric.clear()
