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
from rmgr.sched.pipeline import Configuration, pipeline_from


def configuration(settings: ClusterSettings, partition: str) -> Configuration:
    """The pipeline of that partition. Cost: a plug-in is imported at its first use.

    Raises: ConfigError naming the partition and what is wrong: no such policy here, a document that is none.
    """
    spec = pipeline_of(settings, partition)
    try:
        return pipeline_from(document_of(spec), find=installed)
    except ConfigError as error:
        raise ConfigError(f"partition {partition}, policy {spec.name}: {error.message}", hint=error.hint) from error


def checked(settings: ClusterSettings, partition: str) -> Configuration:
    """The same, for whoever is about to set it. Raises: ConfigError also where none of its stages serves the partition."""
    found = configuration(settings, partition)
    if not any(not stage.partitions or partition in stage.partitions for stage in found.stages):
        served = ", ".join(dict.fromkeys(name for stage in found.stages for name in stage.partitions))
        raise ConfigError(f"no [[stage]] serves partition {partition}, only {served}", hint="leave `partitions` of its stages out")
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
