"""Settings of a run beside its workload: machine, policies, execution, cadence, and what happens to the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rmgr.sched.job import Job as Request
from rmgr.sched.job import Node
from rmgr.sched.policy import Stage
from rmgr.sim.engine.execution import Execution, Recorded
from rmgr.sim.workload.events import Event, Failures


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The same setting and workload give the same result.

    Attributes:
        nodes: of the machine: how many with `cores` each, or every one of them.
        pipeline: stages of policies. policy: how it is named in results. seed: handed to every pass, and of all that the driver draws.
        tick_us: passes only at multiples of it; 0 = at every instant at which something happened.
        execution: how long a job runs where. partitions: queue -> partition; jobs of other queues go to `default`.
        events, failures: what happens beside the jobs. requeue: a job that loses a node waits again; else it has failed.
        usage_half_life_us: of the use that fair shares count, 0 = not counted.
        spells: every stretch of a job in a gang is kept, not only its stay.
        requests: job number -> what the scheduler is asked, where the workload's job does not say it all (a replayed log).
    """

    nodes: int | tuple[Node, ...]
    cores: int = 1
    pipeline: tuple[Stage, ...]
    policy: str
    seed: int = 0
    tick_us: int = 0
    execution: Execution = Recorded()
    partitions: Mapping[str, str] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    failures: Failures | None = None
    requeue: bool = True
    usage_half_life_us: int = 0
    spells: bool = False
    requests: Mapping[int, Request] = field(default_factory=dict)
