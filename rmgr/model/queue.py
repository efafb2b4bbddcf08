"""Queues (named classes of work), partitions (sets of nodes), limits of each user, and the cluster-wide settings with all of them.

Limits are named numbers (`[limits]`), each with advice on what to do at it. Two of them are *caps*: cores that a user has at once, and
open jobs. Single users may have their own caps.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rmgr.errors import UNREADABLE_TEXT, ConfigError
from rmgr.model.base import Newer, newer


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLimits:
    """Limits of each user; 0 = no limit. The defaults allow two million waiting tasks of one honest user.

    ZooKeeper's quotas hold beside them (`coord/protocol/acl.py`): a heap of 1000 MiB allows two million waiting tasks, a smaller heap
    proportionally fewer.
    Limits of a gateway or daemon hold in each process of that kind; those of the cluster hold over all gateways.

    cores_of, jobs_of: caps of single users, in place of the general ones (0 = no limit for that user).
    """

    max_cores_per_user: int = 0  #: in use at once; Starters of pulled queues enforce it
    max_jobs_per_user: int = 0  #: open jobs: submissions that have not ended
    cores_of: dict[str, int] = field(default_factory=dict)
    jobs_of: dict[str, int] = field(default_factory=dict)

    requests_per_s: int = 5_000  #: to one gateway or daemon; bursts of twice as many
    sessions: int = 150  #: clients of one gateway at once
    streams: int = 75  #: followed logs and terminals, of one gateway or Starter
    tunnels: int = 38  #: connections through one gateway to a node
    calls: int = 48  #: calls to the store at once, of one gateway; questions to one daemon
    remote_calls: int = 96  #: of named functions on servers, through one gateway at once; more wait in the client
    lines: int = 192  #: direct lines to one Starter
    followed: int = 50_000  #: submissions that clients follow, through one gateway
    held_bytes: int = 64 * 1024 * 1024  #: unanswered requests and unread answers, of one gateway
    open_submissions: int = 50_000  #: not ended
    unfinished_tasks: int = 8_000_000  #: waiting or running
    zookeeper_bytes: int = 4 * 1024**3  #: records, arguments and outcomes in ZooKeeper
    store_bytes: int = 1024**4  #: written through one gateway, or by work of one Starter, within a day
    audit_lines: int = 120  #: of refusals per minute; the rest is counted in one line
    newer: Newer = newer()

    def of(self, name: str, user: str) -> int:
        """Returns the limit of that name for that user, 0 = none. Cost: 0.3 us."""
        own = self.cores_of if name == CORES else self.jobs_of if name == JOBS else {}
        return own[user] if user in own else int(getattr(self, name))

    @property
    def has_caps(self) -> bool:
        """Whether some user has a cap on cores or open jobs."""
        return bool(self.max_cores_per_user or self.max_jobs_per_user or any(self.cores_of.values()) or any(self.jobs_of.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class CappedUse:
    """`/usage`: what users with a cap use, as the leader counted last. Users who use nothing are left out.

    cores: in use, by user; nodes: number of nodes with them. jobs: open jobs. free: nodes with free cores; all nodes, if none has any.
    """

    cores: dict[str, int] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)
    jobs: dict[str, int] = field(default_factory=dict)
    free: int = 0
    newer: Newer = newer()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Description of a limit. where: gateway, daemon, starter, cluster. what: as errors name it. advice: what to type or do at it."""

    name: str
    where: str
    what: str
    advice: str


#: The caps.
CORES, JOBS = "max_cores_per_user", "max_jobs_per_user"
_RAISED = "an operator raises it: rmgr admin limit USER"
_WAIT = "wait a moment, or ask for less at once"
_SESSIONS = "end some, or name another gateway too: --gateway A:PORT,B:PORT"
_FOLLOWED = "close queues that are done (TaskQueue.close), or end some clients"
_ARGUMENTS = "wait for some; put large arguments into the store once (rmgr store put)"
_AUDIT = "see why requests are refused: rmgr limits"
#: Limits in the order shown: name, where it holds, what it limits, what to do at it.
_TABLE = (
    (CORES, "cluster", "cores at once", f"what waits runs as some become free; {_RAISED} --cores N"),
    (JOBS, "cluster", "open jobs", f"wait for some (rmgr wait), cancel some, or use --array; {_RAISED} --jobs N"),
    ("requests_per_s", "gateway, daemon", "requests a second", _WAIT),
    ("sessions", "gateway", "clients of one gateway at once", _SESSIONS),
    ("streams", "gateway, daemon", "logs and terminals followed at once", "end some (Ctrl-C)"),
    ("tunnels", "gateway", "ways to nodes through one gateway at once", "end some terminals"),
    ("calls", "gateway, daemon", "calls at once", _WAIT),
    ("remote_calls", "gateway", "calls of functions on servers at once", "wait for some; rmgr.call_async waits by itself"),
    ("lines", "Starter", "direct lines to one Starter at once", "none is needed: work goes the long way"),
    ("followed", "gateway", "submissions followed through one gateway", _FOLLOWED),
    ("held_bytes", "gateway", "bytes asked and not answered, or answered and not read", "read the answers"),
    ("open_submissions", "cluster", "submissions that have not ended", "wait for some (rmgr wait), cancel some, or use --array"),
    ("unfinished_tasks", "cluster", "tasks that wait or run", "wait for some (rmgr wait), or cancel some"),
    ("zookeeper_bytes", "cluster", "bytes of submissions in ZooKeeper", _ARGUMENTS),
    ("store_bytes", "gateway, Starter", "bytes written to the store within a day", "write less, or tomorrow; an operator can raise it"),
    ("audit_lines", "gateway, daemon", "lines of audit a minute", _AUDIT),
)
BOUNDS = tuple(Bound(name=name, where=where, what=what, advice=advice) for name, where, what, advice in _TABLE)
BOUND = {bound.name: bound for bound in BOUNDS}


# -- queues and settings -------------------------------------------------------------------------------------------------------


class Dispatch(StrEnum):
    """How work of a queue reaches nodes."""

    PULL = "pull"  #: Starters take it
    PLACE = "place"  #: the leader's policy places it


#: Values that were not shared: only for their owner, or readable by every user.
PRIVATE, SHARED = "private", "shared"
#: Policy of a partition without a configured one.
DEFAULT_POLICY = "easy"
#: Order in which Starters take the blocks of a pull queue: users in turn, each user's by priority, then arrival; or all by these.
FAIR, FIFO = "fair", "fifo"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSpec:
    """A named class of work: defaults and limits; lives in one partition. 0 = no limit."""

    name: str
    partition: str = "default"
    dispatch: Dispatch = Dispatch.PULL
    policy: str = ""  #: of a partition without a set pipeline: the policy of its first place queue
    state: str = "open"  #: open | closed (refuses submissions) | stopped (starts nothing)
    default_time_us: int = 0
    max_time_us: int = 0
    max_cores: int = 0
    max_memory_bytes: int = 0
    default_memory_bytes: int = 0
    default_priority: int = 0
    max_priority: int = 1_000_000
    max_pending_blocks: int = 10_000
    rank: int = 0  #: Starters look first at queues of higher rank
    backfill_pull: bool = False  #: let later blocks start on a node that drains for a large one
    order: str = FAIR  #: fair | fifo: of pull queues
    users: tuple[str, ...] = ()  #: who may submit; empty = everybody
    newer: Newer = newer()

    @property
    def is_fair(self) -> bool:
        """Whether Starters take turns among its users."""
        return self.dispatch is Dispatch.PULL and FIFO not in (self.order, self.policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSpec:
    """Policies that place the jobs of a partition. document: a pipeline as JSON (of a policy file, rmgr/sched/pipeline.py)."""

    partition: str
    document: str
    name: str = ""  #: the name of the policy or file that set it
    newer: Newer = newer()

    def tables(self) -> dict[str, Any]:
        """Returns the tables of `document`. Raises: ConfigError if it is not a JSON object."""
        try:
            tables = json.loads(self.document)
        except UNREADABLE_TEXT as error:
            raise ConfigError(f"the stored pipeline of {self.partition} is not valid JSON: {error}", hint="rmgr policy set NAME") from error
        if not isinstance(tables, dict):
            raise ConfigError(f"the stored pipeline of {self.partition} is no table", hint="rmgr policy set NAME")
        return tables


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """`/config`: settings of all processes of a cluster; changed by `rmgr config apply`, applied at run time."""

    format: int = 1
    queues: tuple[QueueSpec, ...] = (QueueSpec(name="default"), QueueSpec(name="batch", dispatch=Dispatch.PLACE, policy=DEFAULT_POLICY))
    default_queue: str = "default"
    retention_us: int = 3_600_000_000  #: ended submissions stay in ZooKeeper this long, afterwards only in the history
    grace_us: int = 1_000_000  #: between the loss of a Starter's entry and its fencing
    mass_loss_share: float = 0.5  #: a loss of more than this share of Starters in one window: requeue slowly (rule 21)
    mass_requeue_per_s: float = 50.0  #: blocks per second meanwhile
    max_losses: int = 5  #: losses alone in a block until a task is POISON
    max_fragments: int = 1000  #: fragments of a submission in ZooKeeper before a page is written
    log_retention_us: int = 7 * 24 * 3_600_000_000  #: captured output expires this long after it was written; 0 = never
    history_retention_us: int = 365 * 24 * 3_600_000_000  #: summaries of ended submissions are kept this long; 0 = for ever
    operators: tuple[str, ...] = ()
    pipelines: tuple[PipelineSpec, ...] = ()  #: of partitions with place queues; other partitions have the policy of their first queue
    barrier_us: int = 30_000_000  #: after this time, a job of several nodes that has not started completely goes back to its queue
    limits: UserLimits = UserLimits()  #: of each user
    values: str = PRIVATE  #: what users may do with others' values that were not shared with them (secured clusters)
    extra: dict[str, str] = field(default_factory=dict)
    changed_by: str = ""  #: who changed them last, "" = nobody, or an older release
    changed_us: int = 0  #: when that was
    newer: Newer = newer()

    @property
    def log_ttl_s(self) -> float | None:
        """How long captured output written now is kept (s), None: for ever."""
        return self.log_retention_us / 1e6 if self.log_retention_us else None

    def pipeline(self, partition: str) -> PipelineSpec | None:
        """Returns the pipeline set for that partition, None if none was set."""
        return next((found for found in self.pipelines if found.partition == partition), None)

    def placed(self) -> dict[str, tuple[QueueSpec, ...]]:
        """Returns queues with `dispatch = place` by partition, in their order."""
        found: dict[str, tuple[QueueSpec, ...]] = {}
        for queue in self.queues:
            if queue.dispatch is Dispatch.PLACE:
                found[queue.partition] = (*found.get(queue.partition, ()), queue)
        return found

    def policy_of(self, queue: QueueSpec) -> str:
        """Returns what decides in that queue; for a place queue, its partition's policy, by the name it was set as."""
        if queue.dispatch is Dispatch.PULL:
            return FAIR if queue.is_fair else FIFO
        found = self.pipeline(queue.partition)
        first = self.placed().get(queue.partition, (queue,))[0]
        return (found.name or "(set)") if found is not None else first.policy or DEFAULT_POLICY

    def queue(self, name: str) -> QueueSpec | None:
        """Returns the queue of that name, None if there is none."""
        return next((queue for queue in self.queues if queue.name == name), None)
