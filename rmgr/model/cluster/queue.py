"""Queues (named classes of work), partitions (sets of nodes), and the cluster-wide settings that hold them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rmgr.errors import UNREADABLE_TEXT, ConfigError
from rmgr.model.base.version import Newer, newer
from rmgr.model.cluster.limits import UserLimits


class Dispatch(StrEnum):
    """Way of a queue's work to nodes."""

    PULL = "pull"  #: Starters take it
    PLACE = "place"  #: the leader's policy places it


#: Values that were not shared are for their owner only, or may be read by every user.
PRIVATE, SHARED = "private", "shared"
#: Who places in a partition where nobody was named.
DEFAULT_POLICY = "easy"
#: In which order Starters take the blocks of a pull queue: users in turn, each one's by priority, then arrival; or all by these.
FAIR, FIFO = "fair", "fifo"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSpec:
    """A named class of work: defaults and limits; lives in one partition. 0 = no limit."""

    name: str
    partition: str = "default"
    dispatch: Dispatch = Dispatch.PULL
    policy: str = ""  #: of a partition whose pipeline nobody set: that of its first place queue
    state: str = "open"  #: open | closed (refuses submissions) | stopped (starts nothing)
    default_time_us: int = 0
    max_time_us: int = 0
    max_cores: int = 0
    max_memory_bytes: int = 0
    default_memory_bytes: int = 0
    default_priority: int = 0
    max_priority: int = 1_000_000
    max_pending_blocks: int = 10_000
    rank: int = 0  #: Starters look at queues of higher rank first
    backfill_pull: bool = False  #: let later blocks start on a node that drains for a large one
    order: str = FAIR  #: fair | fifo: of pull queues
    users: tuple[str, ...] = ()  #: who may submit; empty = everyone
    newer: Newer = newer()

    @property
    def is_fair(self) -> bool:
        """Starters take turns among its users."""
        return self.dispatch is Dispatch.PULL and FIFO not in (self.order, self.policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSpec:
    """Policies that place the jobs of a partition. document: a pipeline as JSON (of a policy file, rmgr/sched/pipeline.py)."""

    partition: str
    document: str
    name: str = ""  #: what it was set as: a policy's name, or a file's
    newer: Newer = newer()

    def tables(self) -> dict[str, Any]:
        """What `document` says. Raises: ConfigError when it is no JSON object."""
        try:
            tables = json.loads(self.document)
        except UNREADABLE_TEXT as error:
            raise ConfigError(f"the stored pipeline of {self.partition} is not valid JSON: {error}", hint="rmgr policy set NAME") from error
        if not isinstance(tables, dict):
            raise ConfigError(f"the stored pipeline of {self.partition} is no table", hint="rmgr policy set NAME")
        return tables


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """`/config`: what all processes of a cluster agree on; changed by `rmgr config apply`, taken up at run time."""

    format: int = 1
    queues: tuple[QueueSpec, ...] = (QueueSpec(name="default"), QueueSpec(name="batch", dispatch=Dispatch.PLACE, policy=DEFAULT_POLICY))
    default_queue: str = "default"
    retention_us: int = 3_600_000_000  #: ended submissions stay in ZooKeeper this long, then only in the history
    grace_us: int = 1_000_000  #: between the loss of a Starter's entry and its fencing
    mass_loss_share: float = 0.5  #: more of the Starters lost in one window: requeue slowly (rule 21)
    mass_requeue_per_s: float = 50.0  #: blocks a second while it lasts
    max_losses: int = 5  #: losses alone in a block before a task is POISON
    max_fragments: int = 1000  #: fragments of a submission in ZooKeeper before a page is written
    log_retention_us: int = 7 * 24 * 3_600_000_000  #: captured output expires this long after it was written; 0 = never
    history_retention_us: int = 365 * 24 * 3_600_000_000  #: summaries of ended submissions are kept this long; 0 = for ever
    operators: tuple[str, ...] = ()
    pipelines: tuple[PipelineSpec, ...] = ()  #: of partitions with place queues; of others the policy that their first queue names
    barrier_us: int = 30_000_000  #: a job of several nodes whose start is not complete by then goes back to its queue
    limits: UserLimits = UserLimits()  #: of each user
    values: str = PRIVATE  #: what users may do with each other's values that were not shared with them (secured clusters)
    extra: dict[str, str] = field(default_factory=dict)
    changed_by: str = ""  #: who has changed them last, "" = nobody, or by an older release
    changed_us: int = 0  #: and when
    newer: Newer = newer()

    @property
    def log_ttl_s(self) -> float | None:
        """How long captured output that is written now is kept (seconds), or None: for ever."""
        return self.log_retention_us / 1e6 if self.log_retention_us else None

    def pipeline(self, partition: str) -> PipelineSpec | None:
        """Who places in that partition, None where nobody was set."""
        return next((found for found in self.pipelines if found.partition == partition), None)

    def placed(self) -> dict[str, tuple[QueueSpec, ...]]:
        """Queues with `dispatch = place` by partition, in their order."""
        found: dict[str, tuple[QueueSpec, ...]] = {}
        for queue in self.queues:
            if queue.dispatch is Dispatch.PLACE:
                found[queue.partition] = (*found.get(queue.partition, ()), queue)
        return found

    def policy_of(self, queue: QueueSpec) -> str:
        """What decides in that queue: of a place queue that of its partition, by the name it was set as."""
        if queue.dispatch is Dispatch.PULL:
            return FAIR if queue.is_fair else FIFO
        found = self.pipeline(queue.partition)
        first = self.placed().get(queue.partition, (queue,))[0]
        return (found.name or "(set)") if found is not None else first.policy or DEFAULT_POLICY

    def queue(self, name: str) -> QueueSpec | None:
        """The queue of that name, None when there is none."""
        return next((queue for queue in self.queues if queue.name == name), None)
