"""Queue classes at admission: what no class of a partition admits is refused at once, as the leader would refuse it. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rmgr.errors import ConfigError, Infeasible
from rmgr.model.placing import Rigid
from rmgr.model.queue import ClusterSettings, QueueSpec
from rmgr.model.resources import Request

if TYPE_CHECKING:
    from rmgr.sched.queue_class import QueueClass


def check_class(request: Request, rigid: Rigid, queue: QueueSpec, settings: ClusterSettings) -> None:
    """For a partition whose policy chooses among queue classes. A queue with the name of a class is that class.

    Raises: Infeasible naming what was asked for, and the limits of the classes. Cost: 100 us there, nothing elsewhere.
    """
    from rmgr.sched.job import Job

    ladder = _ladder(settings, queue.partition)
    named = tuple(known for known in ladder if known.name == queue.name)
    job = Job(
        id=0,
        submit_us=1,  # no class looks at it
        processes=rigid.processes,
        threads=request.cores,
        limit_us=request.time_limit_us,
        partition=queue.partition,
    )
    open_to = named or ladder
    if not open_to or any(known.admits(job) for known in open_to):
        return
    shape = f"{job.processes} processes x {job.threads} threads ({job.cpus} CPUs)"
    limits = "; ".join(f"{known.name}: {known.limits}" for known in open_to)
    raise Infeasible(f"no queue class of partition {queue.partition} admits {shape} for their time limit", hint=limits)


def _ladder(settings: ClusterSettings, partition: str) -> tuple[QueueClass, ...]:
    from rmgr.sched.pipeline import classes_of
    from rmgr.sched.queue_class import HPC2500

    spec = settings.pipeline(partition)
    if spec is None:
        return HPC2500
    try:
        return classes_of(json.loads(spec.document), partition) or HPC2500
    except (ValueError, AttributeError, ConfigError):  # nobody places there, and `rmgr status` says so
        return ()
