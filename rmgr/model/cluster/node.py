"""Nodes, their records, the ephemeral entries of processes, orders to Starters; and gangs, whose jobs share nodes in time."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from rmgr.model.base.ids import Newer, newer
from rmgr.model.base.resources import Capacity, NodeAttributes


class NodeState(StrEnum):
    """State of a node as shown to people; the record itself knows only up and fenced."""

    UP = "up"
    DRAINING = "draining"
    DRAINED = "drained"
    QUARANTINED = "quarantined"  #: too many failures of the node itself: it takes no work for a while
    FENCED = "fenced"
    LOST = "lost"  #: its Starter's entry is gone, not yet fenced
    DOWN = "down"  #: ended in good order


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """`/nodes/<node>`: its znode version is the Starter fence; written by REGISTER and FENCE only, never deleted.

    guid: of the Starter process that registered it; incarnation counts registrations.
    """

    format: int = 1
    node: str
    incarnation: int
    state: NodeState
    guid: str
    capacity: Capacity
    attributes: NodeAttributes = NodeAttributes()
    endpoint: str = ""  #: gRPC host:port of its Starter
    host: str = ""
    pid: int = 0
    registered_us: int = 0
    reason: str = ""  #: why it was fenced
    version: str = ""  #: rmgr version of the Starter
    key_id: str = ""  #: of the Starter's signing key, "" in an open cluster
    protocol: int = 1  #: that it speaks, see `model/base/version.py`
    life: str = ""  #: another one since all that ran on the node was killed: a new process, or after a fence
    takes_handed: bool = False  #: it looks for blocks that a Submitter hands it while it shows its idle marker
    line: str = ""  #: host:port for direct lines (`adapters/rpc/line.py`), "" = it has none
    metrics: str = ""  #: host:port of its Starter's measurements and `/healthz`
    takes_left: bool = False  #: of these it claims the output keys if the Submitter does not
    freezer: str = ""  #: how it stops work between slots (a `Freezer`), "" = it cannot
    leaves: bool = False  #: its Starter writes down that it ends in good order: gone without that word, it has died
    forgotten: bool = False  #: the admin wants to see no more of it; its znode stays, because its version is a fence
    newer: Newer = newer()


@dataclass(frozen=True, slots=True, kw_only=True)
class StarterEntry:
    """`/starters/s-..`: ephemeral: a Starter process is alive, standing for these nodes."""

    guid: str
    nodes: tuple[str, ...]
    endpoint: str
    host: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitterEntry:
    """`/submitters/s-..`: ephemeral: a Submitter lives, and looks after the submissions that name its guid.

    user: whose submissions alone; a gateway writes it for its client. "" = it has come without one, or by the release before.
    """

    guid: str
    host: str
    pid: int
    since_us: int
    user: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """`/drains/<node>`: an operator wants no new work there, or has resumed the node. user, since_us: who has, since when."""

    node: str
    reason: str
    user: str
    since_us: int
    is_over: bool = False  #: the node was resumed: nothing follows from it, people are told


class TroubleKind(StrEnum):
    """Reason that keeps a Starter from taking work."""

    QUARANTINE = "quarantine"
    DISK = "disk"
    STORE = "store"
    OTHER = "other"
    USERS = "users"  #: none at all, but work of some users cannot run there
    ASIDE = "aside"  #: none at all, but its Starter met what no code of it expected, and ended or left what it concerned


#: Troubles with which a node takes work all the same.
TAKES_WORK = frozenset({TroubleKind.USERS, TroubleKind.ASIDE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """`/troubles/<node>`: why its Starter takes no new work there, or none of some users. Old if the node's record has another incarnation.

    until_us: when it will try again by itself (wall clock), 0 = when the cause is gone.
    refused: users whose work cannot run there, whatever `kind`: user -> why, and what to type.
    """

    format: int = 1
    node: str
    incarnation: int
    kind: str  #: a `TroubleKind`, or one that a newer release knows
    reason: str
    since_us: int
    until_us: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    newer: Newer = newer()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRecord:
    """`/epoch`: its znode version is the leader fence; written by TAKE-OVER only, never deleted."""

    format: int = 1
    epoch: int = 0
    leader: str = ""  #: guid of the WatchDog
    endpoint: str = ""
    host: str = ""
    pid: int = 0
    since_us: int = 0
    candidate: str = ""  #: name of its entry in /watchdogs
    version: str = ""  #: rmgr version of the WatchDog
    protocol: int = 1
    metrics: str = ""  #: host:port of its measurements and `/healthz`


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """`/meta`: which cluster this tree belongs to."""

    format: int = 1
    cluster_id: str
    created_us: int = 0
    protocol: int = 1  #: that every process of the cluster speaks; raised by the leader once all daemons do
    oldest: int = 1  #: the oldest protocol that may join
    store_bound_us: int = 0  #: when a data store was first seen bound to this cluster; 0 = not yet
    newer: Newer = newer()


class OrderKind(StrEnum):
    """Kind of an inbox order to a Starter."""

    CANCEL = "cancel"
    SIGNAL = "signal"
    SUSPEND = "suspend"
    RESUME = "resume"
    CHECKPOINT = "checkpoint"
    UPDATE = "update"  #: the time limit of a submission was changed: its record is read again
    START = "start"  #: the leader has put a job here: `extra["block"]` names it under /running
    LOST = "lost"  #: a node of the job's allocation is gone: the attempt ends NODE_LOST


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxOrder:
    """`/inbox/<node>/<guid>`: an order to a Starter; deleted with the commit that obeys it.

    index: one task, or -1 for every task of the submission. extra: by order; `block` in any of them names the block under /running that
    alone is meant: not the next attempt.
    """

    order: OrderKind
    submission: int
    index: int = -1
    reason: str = ""
    detail: str = ""
    signal: int = 0
    extra: dict[str, str] = field(default_factory=dict)


# -- gangs: the record from which every node computes by itself which jobs have which of its cores in which slot -------------

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
    Jobs are the scheduler's ids (`job_id` in `model/tasks/block.py`). set_us: gang time when it was written, by which a leader that can
    ask no reference goes on; 0 = nobody knew.
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
