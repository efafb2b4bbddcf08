"""Pipelines of placing policies in a file of cluster settings: a policy's name with its parameters, or the tables of a policy file.

[pipelines.default]                   # of the partition `default`
policy = "easy"
parameters = { order = "sjf" }

[pipelines.large]                     # several stages, queue classes: as rmgr/sched/pipeline.py describes them
name = "classes.toml"
stage = [{ policy = "queue_select" }]
queue = [{ name = "small", max_cpus = 8 }]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rmgr.errors import ConfigError
from rmgr.model.cluster.queue import FAIR, FIFO, ClusterSettings, Dispatch, PipelineSpec, QueueSpec
from rmgr.model.cluster.servers import CALLS

#: Bytes of the settings' znode that all pipelines may have.
MAX_BYTES = 256 * 1024


def read_pipelines(tables: Any, where: Callable[[str], str]) -> tuple[PipelineSpec, ...]:
    """The tables [pipelines.PARTITION]. where: file and line of a section. Raises ConfigError; whether they can be used is not asked."""
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ConfigError(f"{where('pipelines')}: a pipeline is a table of its partition", hint='[pipelines.default]\npolicy = "easy"')
    return tuple(_pipeline(partition, dict(table), where(f"pipelines.{partition}")) for partition, table in tables.items())


def _pipeline(partition: str, table: dict[str, Any], where: str) -> PipelineSpec:
    name = table.pop("name", "")
    if "policy" in table:
        stage = {key: table.pop(key) for key in ("policy", "parameters", "shares") if key in table}
        if table:
            raise ConfigError(
                f"{where}: [pipelines.{partition}] has policy and {', '.join(sorted(table))}", hint="policy, or stage with the other tables"
            )
        name, table = name or stage["policy"], {"stage": [stage]}
    if not isinstance(name, str):
        raise ConfigError(f"{where}: name = {name!r} is no text", hint='name = "classes"')
    return PipelineSpec(partition=partition, document=text_of(table, where), name=name)


def text_of(document: Mapping[str, Any], where: str) -> str:
    """A document as it is recorded. Raises ConfigError for dates, which no policy takes, and for one that is too long."""
    try:
        text = json.dumps(document, sort_keys=True)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}", hint="numbers, text, true, false, lists and tables") from None
    if len(text) > MAX_BYTES:
        raise ConfigError(f"{where}: the pipeline has {len(text)} bytes, at most {MAX_BYTES} are kept", hint="leave out nodes")
    return text


def check_pipelines(settings: ClusterSettings, where: Callable[[str], str]) -> None:
    """Whether every partition with place queues has somebody who places there. Raises ConfigError."""
    from rmgr.daemons.leader.records.pipeline import checked, refuse_shared_names

    placed = settings.placed()
    for queue in settings.queues:
        if queue.partition == CALLS:
            raise ConfigError(
                f"{where(f'queues.{queue.name}')}: partition {CALLS} is for calls of functions on servers: it has no queues and no nodes",
                hint=f'partition = "default", or another name; rmgr policy show --partition {CALLS}',
            )
    for spec in settings.pipelines:
        if spec.partition == CALLS:
            try:
                checked(settings, CALLS)
            except ConfigError as error:
                raise ConfigError(f"{where(f'pipelines.{CALLS}')}: {error.message}", hint=error.hint) from error
        elif spec.partition not in placed:
            raise ConfigError(
                f"{where(f'pipelines.{spec.partition}')}: no queue places jobs in partition {spec.partition}",
                hint=f'partitions with queues of dispatch = "place": {", ".join(placed) or "none"}',
            )
    for partition, queues in placed.items():
        at = f"pipelines.{partition}" if settings.pipeline(partition) is not None else f"queues.{queues[0].name}"
        try:
            checked(settings, partition)
            refuse_shared_names(settings, partition)
        except ConfigError as error:
            raise ConfigError(f"{where(at)}: {error.message}", hint=error.hint) from error


def warn_of_pulls(settings: ClusterSettings, partitions: Iterable[str]) -> None:
    """Tells on stderr of pull queues of which nothing is pulled, in partitions that were checked."""
    from rmgr.daemons.leader.records.pipeline import idle_pulls

    for partition in partitions:
        if told := idle_pulls(settings, partition):
            sys.stderr.write(f"rmgr: warning: {told}\n")


def check_queue_policy(spec: QueueSpec, where: str) -> None:
    """Policies of the catalogue place jobs; what Starters pull has an order. Raises ConfigError."""
    if spec.dispatch is Dispatch.PULL and spec.policy not in {"", FAIR, FIFO}:
        raise ConfigError(
            f"{where}: queue {spec.name} is pulled by Starters, in the order fair or fifo; {spec.policy!r} could only place jobs",
            hint='dispatch = "place"',
        )


def document_of(settings: ClusterSettings) -> dict[str, Any]:
    """[pipelines] as JSON, by partition."""
    return {spec.partition: _table(spec) for spec in settings.pipelines}


def toml_of(settings: ClusterSettings, bare: Callable[[str], str]) -> list[str]:
    """[pipelines] as lines of a file. bare: a key as TOML writes it."""
    lines: list[str] = []
    for spec in settings.pipelines:
        lines += ["", f"[pipelines.{bare(spec.partition)}]"]
        lines += [f"{bare(key)} = {_literal(value, bare)}" for key, value in _table(spec).items()]
    return lines


def _table(spec: PipelineSpec) -> dict[str, Any]:
    """Short where it is one policy under its own name."""
    document = spec.tables()
    stages = document.get("stage", [])
    if list(document) == ["stage"] and len(stages) == 1 and "partitions" not in stages[0] and stages[0].get("policy") == spec.name:
        return {"policy": spec.name} | {key: value for key, value in stages[0].items() if key != "policy"}
    return ({"name": spec.name} if spec.name else {}) | document


def _literal(value: Any, bare: Callable[[str], str]) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{bare(key)} = {_literal(item, bare)}" for key, item in value.items()) + " }" if value else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(_literal(item, bare) for item in value) + "]"
    return json.dumps(value)
