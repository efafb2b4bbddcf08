"""Reads out of the settings what is placed: the place queues, and each partition's policies, queue classes and limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rmgr.daemons.leader.records.pipeline import classes_of, configuration, is_foreign, pipeline_of
from rmgr.errors import ConfigError
from rmgr.model.cluster.queue import ClusterSettings, PipelineSpec, QueueSpec
from rmgr.runtime.logger import Log
from rmgr.sched.policy import Stage
from rmgr.sched.queue_class import QueueClass
from rmgr.sched.records import Limits


class ServedPartitions:
    """Knows which queues are placed, and by whom. In the leader's loop.

    Args: settings: the cluster's, as they are now. changed: told each partition that has another pipeline than before.
    Attributes: queues: by name, without stopped ones. problems: partition -> why nobody places there. policies: partition -> names.
    limits, classes (of queues): of partitions that have any. every: stages of all partitions. stages: those that run in this process.
    foreign: partition -> (names, document) of a pipeline that has a process of its own. half_life_us: of use, 0 = nobody looks at it.
    """

    def __init__(self, settings: Callable[[], ClusterSettings], changed: Callable[[str], None], log: Log) -> None:
        self.settings = settings
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
        self._log = log
        self._specs: dict[str, PipelineSpec] = {}

    def read(self) -> None:
        """The settings may be others. Logs each pipeline that cannot be used."""
        settings = self.settings()
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
                self._log.error("pipeline_unusable", partition=partition, error=error.message)
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
        """Those with a place queue that is not stopped."""
        return {queue.partition for queue in self.queues.values()}

    def stage_names(self, partition: str) -> list[str]:
        """Policies that place in this partition, in order."""
        return [stage.policy.name for stage in self.every if partition in stage.partitions]
