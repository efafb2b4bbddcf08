"""Gangs on real nodes: the record from which every node computes by itself which jobs have which of its cores in which slot."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rmgr.model.base.ids import Newer, newer

#: Between the pass that sets a record and its first slot (us): so long its readers have to learn of it.
LEAD_US = 200_000
#: Slots of live gangs (us).
LEAST_QUANTUM_US, MOST_QUANTUM_US = 50_000, 60_000_000
#: Leaves of a live tree.
MOST_LEAVES = 1_024


#: `[starter] freezer`: the first method that this machine has.
AUTO = "auto"


class Freezer(StrEnum):
    """How a node stops work between its slots; "" in its record: it cannot, and takes no job of a gang."""

    V2 = "v2"  #: `cgroup.freeze` of a control group of version 2
    SIGNALS = "signals"  #: SIGSTOP to all processes of it, again until no new one is found


@dataclass(frozen=True, slots=True, kw_only=True)
class GangClock:
    """Gang time: CLOCK_BOOTTIME of the machine of `node`'s Starter of that incarnation, plus `offset_us`."""

    node: str
    incarnation: int
    offset_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRecord:
    """`/gangs/<partition>`: written with the PLACE that starts its jobs, never deleted; its version is the generation.

    slot_us, origin_us: slot k lasts from origin_us + k x slot_us in gang time. slot: queues and front hold for the beginning of this one,
    and no reader acts on the record before it. width: of the tree. leaves: (node, cores), from the left.
    queues: (tree node, (job, adjacent entries) in order of service). front: (tree node, entries still to be served in this round, has
    completed a round in this phase) of every tree node that runs. late: (job, tree node, entries) that wait for the root's next round.
    next_round: newcomers to an empty queue do so. attempts: (job, attempt, slots served before `slot`). memory_share: a job that asks for
    no memory has 1/so much of what its cores have of their node's; 0: it is not counted.
    Jobs are the scheduler's ids (`model/tasks/placing.py`). set_us: gang time when it was written, by which a leader that can ask no
    reference goes on; 0 = nobody knew.
    """

    format: int = 1
    policy: str
    slot_us: int
    origin_us: int
    slot: int
    width: int
    leaves: tuple[tuple[str, int], ...]
    clock: GangClock
    queues: tuple[tuple[int, tuple[tuple[int, int], ...]], ...] = ()
    front: tuple[tuple[int, int, bool], ...] = ()
    late: tuple[tuple[int, int, int], ...] = ()
    next_round: bool = False
    attempts: tuple[tuple[int, int, int], ...] = ()
    set_us: int = 0
    memory_share: int = 0
    newer: Newer = newer()
