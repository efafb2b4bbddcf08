"""Nodes, their records, ephemeral entries of processes, orders to Starters; and gangs, whose jobs share nodes in time."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from rmgr.model.base import Capacity, Newer, NodeAttributes, newer


class NodeState(StrEnum):
    """State of a node as shown to people; the record itself knows only up and fenced."""

    UP = "up"
    DRAINING = "draining"
    DRAINED = "drained"
    QUARANTINED = "quarantined"  #: too many failures of the node itself: it takes no work for a while
    FENCED = "fenced"
    LOST = "lost"  #: its Starter's entry is gone; not yet fenced
    DOWN = "down"  #: ended in good order


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """`/nodes/<node>`: its znode version is the Starter fence; written only by REGISTER and FENCE, never deleted.

    guid: of the Starter process that registered it; incarnation: counts registrations.
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
    born: str = ""  #: identifies the start of that process on its host, whatever its clock says; "" = not known
    registered_us: int = 0
    reason: str = ""  #: why it was fenced
    version: str = ""  #: rmgr version of the Starter
    key_id: str = ""  #: of the Starter's signing key, "" in an open cluster
    protocol: int = 1  #: that it speaks, see `model/version.py`
    life: str = ""  #: changes when all that ran on the node was killed: by a new process, or after a fence
    takes_handed: bool = False  #: it looks for blocks that Submitters hand over while it shows its idle marker
    line: str = ""  #: host:port for direct lines (`adapters/rpc/line.py`), "" = none
    metrics: str = ""  #: host:port of its Starter's measurements and `/healthz`
    takes_left: bool = False  #: it claims output keys of handed blocks if the Submitter does not
    freezer: str = ""  #: method that stops work between slots (a `Freezer`), "" = none
    leaves: bool = False  #: its Starter records when it ends in good order; gone without that, it has died
    forgotten: bool = False  #: the admin hides it; its znode stays, because its version is a fence
    newer: Newer = newer()


@dataclass(frozen=True, slots=True, kw_only=True)
class StarterEntry:
    """`/starters/s-..`: ephemeral: a Starter process with these nodes is alive."""

    guid: str
    nodes: tuple[str, ...]
    endpoint: str
    host: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitterEntry:
    """`/submitters/s-..`: ephemeral: a live Submitter, which looks after the submissions that name its guid.

    user: whose submissions only; a gateway writes it for its client. "" = a client without a user, or the previous release.
    """

    guid: str
    host: str
    pid: int
    since_us: int
    user: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """`/drains/<node>`: an operator wants no new work there, or has resumed the node. user, since_us: the operator, and when."""

    node: str
    reason: str
    user: str
    since_us: int
    is_over: bool = False  #: the node was resumed: kept only to show by whom


class TroubleKind(StrEnum):
    """Why a Starter takes no work."""

    QUARANTINE = "quarantine"
    DISK = "disk"
    STORE = "store"
    QUOTA = "quota"  #: of ZooKeeper
    TRUST = "trust"  #: its clock, or the end of its certificate; the reason says what to do
    OTHER = "other"
    USERS = "users"  #: not a trouble of the node: work of some users cannot run there
    ASIDE = "aside"  #: not a trouble of the node: its Starter met an unexpected error, and set aside what it concerned


#: Troubles with which a node still takes work.
TAKES_WORK = frozenset({TroubleKind.USERS, TroubleKind.ASIDE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """`/troubles/<node>`: why its Starter takes no new work there, or none of some users. Outdated if the node has another incarnation.

    until_us: when it tries again by itself (wall clock), 0 = when the cause is gone.
    refused: users whose work cannot run there, whatever `kind` is: user -> why, and what to type. barred: those of them who are kept away
    for a while because their own slots failed: that may be their doing.
    """

    format: int = 1
    node: str
    incarnation: int
    kind: str  #: a `TroubleKind`, or one of a newer release
    reason: str
    since_us: int
    until_us: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    barred: tuple[str, ...] = ()
    newer: Newer = newer()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRecord:
    """`/epoch`: its znode version is the leader fence; written only by TAKE-OVER, never deleted."""

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
    """`/meta`: the cluster that this tree belongs to."""

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
    UPDATE = "update"  #: the time limit of a submission has changed: its record must be read again
    START = "start"  #: the leader has put a job here: `extra["block"]` names it under /running
    LOST = "lost"  #: from leaders of older releases: the head of a job sees by itself which of its nodes are lost


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxOrder:
    """`/inbox/<node>/<guid>`: an order to a Starter; deleted with the commit that obeys it.

    index: one task, or -1 for every task of the submission. extra: depends on the order; in any order, `block` names the only block under
    /running that is meant, so not its next attempt.
    """

    order: OrderKind
    submission: int
    index: int = -1
    reason: str = ""
    detail: str = ""
    signal: int = 0
    extra: dict[str, str] = field(default_factory=dict)


# -- gangs: the record from which every node computes which jobs have which of its cores in which slot ----------------------

#: Time between the pass that sets a record and its first slot (us), in which readers must learn of it.
LEAD_US = 200_000
#: Shortest and longest slot of live gangs (us).
LEAST_QUANTUM_US, MOST_QUANTUM_US = 50_000, 60_000_000
#: Most leaves of a live tree.
MOST_LEAVES = 1_024
#: `[starter] freezer`: use the first method that this machine has.
AUTO = "auto"


class Freezer(StrEnum):
    """How a node stops work between its slots; "" in its record: it cannot, and takes no jobs of gangs."""

    V2 = "v2"  #: `cgroup.freeze` of a control group of version 2
    SIGNALS = "signals"  #: SIGSTOP to all its processes, repeated until no new one is found


@dataclass(frozen=True, slots=True, kw_only=True)
class GangClock:
    """Gang time: CLOCK_BOOTTIME of the machine of `node`'s Starter in that incarnation, plus `offset_us`."""

    node: str
    incarnation: int
    offset_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRecord:
    """`/gangs/<partition>`: written with the PLACE that starts its jobs, never deleted; its version is the generation.

    slot_us, origin_us: slot k begins at origin_us + k x slot_us in gang time. slot: the one at whose beginning queues and front hold;
    readers do not act on the record before it. width: of the tree. leaves: (node, cores), from the left.
    queues: (tree node, (job, adjacent entries) in order of service). front: (tree node, entries still to serve in this round, whether it
    completed a round in this phase) of every running tree node. late: (job, tree node, entries) that wait for the root's next round.
    next_round: newcomers to an empty queue wait for it. attempts: (job, attempt, slots served before `slot`). memory_share: a job without
    a memory request gets 1/memory_share of its cores' part of the node's memory; 0: memory is not counted.
    Jobs are the scheduler's ids (`job_id` in `model/block.py`). set_us: gang time of the writing, from which a leader continues if it
    reaches no reference; 0 = unknown.
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
