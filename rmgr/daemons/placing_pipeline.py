"""Who places in a partition: the pipeline that its settings name, made of the catalogue's policies and of installed plug-ins.

A partition without an entry in `ClusterSettings.pipelines` has the policy that the first of its place queues names, else `easy`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rmgr.adapters import policy_files
from rmgr.errors import ConfigError
from rmgr.model.queue import DEFAULT_POLICY, ClusterSettings, PipelineSpec
from rmgr.sched.parameters import Kind, shown
from rmgr.sched.pipeline import Configuration, refuse_unobeyed, served


def configuration(settings: ClusterSettings, partition: str) -> Configuration:
    """The stages, queue classes and limits of that partition. Cost: a plug-in is imported at its first use.

    Raises: ConfigError naming the partition and what is wrong: no such policy here, a document that is none, no stage for it.
    """
    spec = pipeline_of(settings, partition)
    try:
        document = document_of(spec)
        found = served(document, partition, find=installed)
    except ConfigError as error:
        raise ConfigError(f"partition {partition}, policy {spec.name}: {error.message}", hint=error.hint) from error
    if not found.stages:
        names = ", ".join(dict.fromkeys(str(name) for stage in document["stage"] for name in stage.get("partitions", ())))
        raise ConfigError(f"no [[stage]] serves partition {partition}, only {names}", hint="leave `partitions` of its stages out")
    return found


def checked(settings: ClusterSettings, partition: str) -> Configuration:
    """The same, for an operator who is about to set it. Raises: ConfigError also for what the leader would not obey."""
    found = configuration(settings, partition)
    spec = pipeline_of(settings, partition)
    places = {queue.name: name for name, queues in settings.placed().items() for queue in queues}
    try:
        refuse_unobeyed(document_of(spec), partition, places)
    except ConfigError as error:
        raise ConfigError(f"partition {partition}, policy {spec.name}: {error.message}", hint=error.hint) from error
    mine = found.usage_half_life_us
    for other in settings.placed() if mine else ():
        try:
            its = configuration(settings, other).usage_half_life_us
        except ConfigError:
            continue  # nobody places there, and that is told where it is set
        if its and its != mine:
            raise ConfigError(
                f"partition {partition}, policy {spec.name}: half_life {shown(Kind.DURATION, mine)}, and partition {other} has "
                f"{shown(Kind.DURATION, its)}: use is kept once for a cluster",
                hint=f"half_life = {shown(Kind.DURATION, its)}",
            )
    return found


def pipeline_of(settings: ClusterSettings, partition: str) -> PipelineSpec:
    """What is set for that partition, else what its first place queue names, else `easy`."""
    found = settings.pipeline(partition)
    if found is not None:
        return found
    queues = settings.placed().get(partition, ())
    return named(partition, (queues[0].policy if queues else "") or DEFAULT_POLICY, {})


def named(partition: str, policy: str, params: Mapping[str, str]) -> PipelineSpec:
    """One policy for all jobs of a partition."""
    stage: dict[str, object] = {"policy": policy} | ({"parameters": dict(params)} if params else {})
    return PipelineSpec(partition=partition, document=json.dumps({"stage": [stage]}, sort_keys=True), name=policy)


def document_of(spec: PipelineSpec) -> dict[str, Any]:
    """Its tables. Raises: ConfigError when it is no JSON object."""
    try:
        document = json.loads(spec.document)
    except ValueError as error:
        raise ConfigError(f"the stored pipeline is not valid JSON: {error}", hint="rmgr policy set NAME") from error
    if not isinstance(document, dict):
        raise ConfigError("the stored pipeline is no table", hint="rmgr policy set NAME")
    return document


def installed(name: str) -> type[Any]:
    """The class of a plug-in; a file of somebody's machine is none of the leader's. Raises: ConfigError."""
    if policy_files.is_file(name):
        raise ConfigError(
            f"{name} is a file, and the WatchDogs cannot have it: any of them may lead",
            hint=f"install it on every WatchDog as an entry point of group {policy_files.GROUP}, then name that",
        )
    return policy_files.policy_class(name)
