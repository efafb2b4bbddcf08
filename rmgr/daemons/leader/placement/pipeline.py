"""Pipelines of partitions, made from the settings with the catalogue's policies and installed plug-ins; and which queues are placed.

A partition without an entry in `ClusterSettings.pipelines` has the policy named by the first of its place queues, or else `easy`.
Partition `calls` has no queues: its only policy sends calls to servers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rmgr.adapters import policy_files
from rmgr.daemons.service.metaserver import default_pipeline
from rmgr.errors import ConfigError
from rmgr.model.node import LEAST_QUANTUM_US, MOST_QUANTUM_US
from rmgr.model.queue import DEFAULT_POLICY, ClusterSettings, Dispatch, PipelineSpec, QueueSpec
from rmgr.model.servers import CALLS
from rmgr.sched.catalogue import CALL_POLICIES, POLICIES, heeds_priority, policy_named, takes_orders
from rmgr.sched.draft import Draft
from rmgr.sched.parameters import Kind, shown
from rmgr.sched.pipeline import Configuration, Find, Make, refuse_unobeyed, served, stage_for_calls
from rmgr.sched.policy import Cause, Policy, Stage, sends_calls
from rmgr.sched.queue_class import QueueClass
from rmgr.sched.records import Limits

if TYPE_CHECKING:
    from rmgr.daemons.leader.term import Term

#: Parameter for an order, and the parameters that belong to an order.
_OF_ORDERS = frozenset({"order", "half_life", "shares"})


@dataclass(frozen=True, slots=True)
class ForeignPolicy:
    """Stands for a plug-in in the leader, which never imports it: a separate process runs it (`leader/placement/passes.py`)."""

    name: str

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:  # noqa: ARG002 - never run
        """Always raises ConfigError."""
        raise ConfigError(f"policy {self.name} is not run in the leader")


def configuration(settings: ClusterSettings, partition: str) -> Configuration:
    """Returns the stages, queue classes and limits of the partition. Runs no plug-in code: a plug-in's stage is a `ForeignPolicy`.

    Raises: ConfigError naming the partition and the fault: an unknown policy, an invalid document, no stage for the partition.
    """
    return _configuration(settings, partition, make=_make_policy)


def is_foreign(found: Configuration) -> bool:
    """Whether a stage is a plug-in's: then all stages run in a process of their own."""
    return any(isinstance(stage.policy, ForeignPolicy) for stage in found.stages)


def _make_policy(name: str, params: Mapping[str, object], queues: tuple[QueueClass, ...]) -> Policy:
    if name in POLICIES:
        return policy_named(name, params, records=queues)
    refuse_file(name)
    if name not in policy_files.plugins():
        policy_files.policy_class(name)  # raises, with the nearest name
    return ForeignPolicy(name)  # type: ignore[return-value]  # its name is that of the plug-in


def _configuration(settings: ClusterSettings, partition: str, *, find: Find | None = None, make: Make | None = None) -> Configuration:
    spec = pipeline_of(settings, partition)
    try:
        document = spec.tables()
        if partition == CALLS:
            return Configuration(stages=(stage_for_calls(document, CALLS),), policies=(spec.name,))
        found = served(document, partition, find=find, make=make)
    except ConfigError as error:
        raise ConfigError(f"partition {partition}, policy {spec.name}: {error.message}", hint=error.hint) from error
    if not found.stages:
        names = ", ".join(dict.fromkeys(str(name) for stage in document["stage"] for name in stage.get("partitions", ())))
        raise ConfigError(f"no [[stage]] serves partition {partition}, only {names}", hint="leave `partitions` of its stages out")
    return found


def checked(settings: ClusterSettings, partition: str) -> Configuration:
    """Returns the configuration that an operator is about to set; imports plug-ins.

    Raises: ConfigError also for settings that the leader would not obey.
    """
    if partition == CALLS:
        return _configuration(settings, CALLS)
    spec = pipeline_of(settings, partition)
    places = {queue.name: name for name, queues in settings.placed().items() for queue in queues}
    try:
        refuse_unobeyed(spec.tables(), partition, places)
    except ConfigError as error:
        raise ConfigError(f"partition {partition}, policy {spec.name}: {error.message}", hint=error.hint) from error
    found = _configuration(settings, partition, find=installed)
    for stage in found.stages:
        quantum_us = getattr(stage.policy, "quantum_us", LEAST_QUANTUM_US)
        if not LEAST_QUANTUM_US <= quantum_us <= MOST_QUANTUM_US:
            raise ConfigError(
                f"partition {partition}, policy {stage.policy.name}: quantum {shown(Kind.DURATION, quantum_us)}; nodes turn every "
                f"{shown(Kind.DURATION, LEAST_QUANTUM_US)} to {shown(Kind.DURATION, MOST_QUANTUM_US)}",
                hint=f"rmgr policy set {stage.policy.name} --param quantum=500ms; rmgr sim run takes any quantum",
            )
        if sends_calls(stage.policy):
            raise ConfigError(
                f"partition {partition}: {stage.policy.name} chooses servers for calls, it places no jobs",
                hint=f"rmgr policy list names those that do; partition {CALLS} has rmgr's own for calls: {', '.join(CALL_POLICIES)}",
            )
    mine = found.usage_half_life_us
    for other in settings.placed() if mine else ():
        try:
            its = _configuration(settings, other, find=installed).usage_half_life_us
        except ConfigError:
            continue  # nothing is placed there, as is reported where it is set
        if its and its != mine:
            raise ConfigError(
                f"partition {partition}, policy {spec.name}: half_life {shown(Kind.DURATION, mine)}, and partition {other} has "
                f"{shown(Kind.DURATION, its)}: use is kept once for a cluster",
                hint=f"half_life = {shown(Kind.DURATION, its)}",
            )
    return found


def shares_time(policy: object) -> bool:
    """Whether the policy lets its jobs share nodes in time."""
    return bool(getattr(policy, "shares_time", False))


def idle_pulls(settings: ClusterSettings, partition: str) -> str:
    """Returns a warning about pull queues in a partition whose jobs share nodes in time, "" if there are none. Raises: ConfigError."""
    pulled = [queue.name for queue in settings.queues if queue.partition == partition and queue.dispatch is Dispatch.PULL]
    if not pulled or not any(shares_time(stage.policy) for stage in configuration(settings, partition).stages):
        return ""
    return (
        f"partition {partition}: nothing of queue {', '.join(pulled)} is pulled on nodes that jobs share in time; "
        "give pulled work a partition of its own: rmgr config apply"
    )


def idle_priority(settings: ClusterSettings, name: str) -> str:
    """Returns a warning about priorities in a place queue whose policy ignores them, "" if it does not, or if that is unknown."""
    queue = settings.queue(name)
    if queue is None or queue.dispatch is not Dispatch.PLACE:
        return ""
    try:
        stages = configuration(settings, queue.partition).stages
    except ConfigError:
        return ""  # nothing is placed there, as is reported where it is set
    if any(isinstance(stage.policy, ForeignPolicy) or heeds_priority(stage.policy) for stage in stages):
        return ""
    policy = settings.policy_of(queue)
    message = f"policy {policy} of partition {queue.partition} does not look at priorities"
    stages_told = pipeline_of(settings, queue.partition).tables()["stage"]
    if len(stages_told) > 1 or not takes_orders(policy):
        return f"{message}; rmgr policy list NAME says which of them take order=priority"
    kept = {name: value for name, value in stages_told[0].get("parameters", {}).items() if name not in _OF_ORDERS}
    words = "".join(f" --param {name}={value}" for name, value in ({"order": "priority"} | kept).items())
    where = f" --partition {queue.partition}" if len(settings.placed()) > 1 else ""
    return f"{message}; an operator makes it: rmgr policy set {policy}{words}{where}"


def classes_of(found: Configuration) -> tuple[QueueClass, ...]:
    """Returns the queue classes that a partition's policies consider, in the order of the file. A plug-in gets all of them."""
    own = (queue for stage in found.stages for queue in getattr(stage.policy, "queues", ()))
    given = found.queues if is_foreign(found) else ()
    return tuple({queue.name: queue for queue in (*own, *given)}.values())


def refuse_shared_names(settings: ClusterSettings, partition: str) -> None:
    """Refuses a queue class with the name of a queue: `-q NAME` could mean either. Raises: ConfigError."""
    known = {queue.name: queue for queue in settings.queues}
    for found in classes_of(configuration(settings, partition)):
        if queue := known.get(found.name):
            raise ConfigError(
                f"partition {partition}, policy {pipeline_of(settings, partition).name}: queue class {found.name} has the name of a queue "
                f"(of partition {queue.partition}), so -q {found.name} could mean either",
                hint=f"call the class otherwise, or take [queues.{found.name}] out: rmgr config show --cluster, rmgr config apply FILE; "
                "jobs are sent to a class by -q CLASS, it needs no queue",
            )


def pipeline_of(settings: ClusterSettings, partition: str) -> PipelineSpec:
    """Returns the pipeline set for the partition, or the policy of its first place queue, or `easy`."""
    found = settings.pipeline(partition)
    if found is not None:
        return found
    if partition == CALLS:
        return default_pipeline()
    queues = settings.placed().get(partition, ())
    return named(partition, (queues[0].policy if queues else "") or DEFAULT_POLICY, {})


def named(partition: str, policy: str, params: Mapping[str, str]) -> PipelineSpec:
    """Returns a pipeline of one policy for all jobs of a partition."""
    stage: dict[str, object] = {"policy": policy} | ({"parameters": dict(params)} if params else {})
    return PipelineSpec(partition=partition, document=json.dumps({"stage": [stage]}, sort_keys=True), name=policy)


def installed(name: str) -> type[Any]:
    """Returns the class of a plug-in; refuses files, which exist on one machine only. Raises: ConfigError."""
    refuse_file(name)
    return policy_files.policy_class(name)


def refuse_file(name: str) -> None:
    """Refuses the name of a file. Raises: ConfigError."""
    if policy_files.is_file(name):
        raise ConfigError(
            f"{name} is a file, and the WatchDogs cannot have it: any of them may lead",
            hint=f"install it on every WatchDog as an entry point of group {policy_files.GROUP}, then name that",
        )


class ServedPartitions:
    """Knows which queues are placed, and by which policies. In the leader's loop.

    Args: changed: called with each partition whose pipeline has changed.
    Attributes: queues: by name, without stopped ones. problems: partition -> why nothing is placed. policies: partition -> names.
    limits, classes (of queues): of partitions that have any. every: stages of all partitions. stages: those that run in this process.
    foreign: partition -> (names, document) of a pipeline with its own process. half_life_us: of use, 0 if no policy considers it.
    """

    def __init__(self, term: Term, changed: Callable[[str], None]) -> None:
        self._term = term
        self.queues: dict[str, QueueSpec] = {}
        self.problems: dict[str, str] = {}
        self.policies: dict[str, str] = {}
        self.limits: dict[str, Limits] = {}
        self.classes: dict[str, tuple[QueueClass, ...]] = {}
        self.every: tuple[Stage, ...] = ()
        self.stages: tuple[Stage, ...] = ()
        self.foreign: dict[str, tuple[str, dict[str, Any]]] = {}
        self.half_life_us = 0
        self._changed = changed
        self._specs: dict[str, PipelineSpec] = {}

    def read(self) -> None:
        """Reads the settings again. Logs each unusable pipeline."""
        settings = self._term.settings
        placed = settings.placed()
        self.queues = {queue.name: queue for queues in placed.values() for queue in queues if queue.state != "stopped"}
        stages: list[Stage] = []
        self.policies, self.problems, self.limits, self.classes, self.foreign, self.half_life_us = {}, {}, {}, {}, {}, 0
        for partition in placed:
            spec = pipeline_of(settings, partition)
            if self._specs.get(partition) != spec:
                self._changed(partition)
                self._specs[partition] = spec
            try:
                found = configuration(settings, partition)
            except ConfigError as error:
                self.problems[partition] = error.message
                self._term.log.error("pipeline_unusable", partition=partition, error=error.message)
                continue
            self.policies[partition] = ", ".join(found.policies)
            stages += [Stage(stage.policy, (partition,)) for stage in found.stages]
            if is_foreign(found):
                self.foreign[partition] = (self.policies[partition], spec.tables())
            self.limits |= found.limits
            self.classes[partition] = classes_of(found)
            self.half_life_us = self.half_life_us or found.usage_half_life_us
        self.every = tuple(stages)
        self.stages = tuple(stage for stage in stages if stage.partitions[0] not in self.foreign)

    @property
    def partitions(self) -> set[str]:
        """Partitions with a place queue that is not stopped."""
        return {queue.partition for queue in self.queues.values()}

    def stage_names(self, partition: str) -> list[str]:
        """Returns the policies that place in this partition, in order."""
        return [stage.policy.name for stage in self.every if partition in stage.partitions]
