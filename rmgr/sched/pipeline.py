"""Pipelines as configuration: tables of stages, queue classes, partitions and nodes -> stages of policies and the machine they serve.

    [[stage]]                    # in this order; a later one sees what an earlier one decided
    policy = "easy"              # of the catalogue, of a plug-in, or a FILE.py
    partitions = ["batch"]       # default: every partition
    [stage.parameters]           # as `--param`
    order = "fair_share"
    half_life = "7d"
    [stage.shares]               # the same as the parameter `shares`
    physics = 3

    [[queue]]                    # classes for queue_select and connection_reservation: the fields of `QueueClass`
    name = "ss8"
    max_cpus = 8
    max_time = "2h"

    [[partition]]                # the simulated machine (optional): partitions with their limits ...
    name = "batch"
    nodes = 100
    cores = 4
    queues = ["1", "2"]          # jobs of these queues go there; of no named queue: to `default`, else to the first partition
    max_cpus_per_user = 64

    [[node]]                     # ... and further nodes of a partition, where they are not all alike
    partition = "batch"
    count = 28
    cores = 8
    site = "kyoto"

Pure: a mapping in (what a TOML parser answers), values out. Every error names the table (the second `[[queue]]`), the key, the value with
its unit and range, and the nearest name that exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from rmgr.errors import ConfigError
from rmgr.sched.catalogue import POLICIES, policy_named
from rmgr.sched.job import Node
from rmgr.sched.parameters import Kind, about, parameters_of, read_values, shown, unknown
from rmgr.sched.policies.ageing import Ageing
from rmgr.sched.policies.fair_share import FairShare
from rmgr.sched.policy import Policy, Stage
from rmgr.sched.queue_class import QueueClass
from rmgr.sched.records import Limits

Record = TypeVar("Record")

TABLES = ("stage", "queue", "partition", "node")
_STAGE_KEYS = ("policy", "partitions", "parameters", "shares")
#: More nodes than this in one file are a slip of the keyboard.
MOST_NODES = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """A table [[node]]: `count` identical nodes."""

    count: int = field(metadata=about("how many nodes", unit="nodes", least=1, most=MOST_NODES))
    partition: str = "default"
    cores: int = field(default=1, metadata=about("cores of a node", unit="cores", least=1, most=100_000))
    memory_bytes: int = field(default=0, metadata=about("memory of a node; 0: not counted"))
    speed: float = field(default=1.0, metadata=about("relative speed of a node", least=0.001, most=1000))
    site: str = field(default="", metadata=about("where the nodes stand"))
    features: tuple[str, ...] = field(default=(), metadata=about("what jobs may ask for"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTable:
    """A table [[partition]]: its nodes, where they are all alike. Its limits are further keys of it."""

    name: str = field(metadata=about("the partition's name"))
    nodes: int = field(default=0, metadata=about("how many nodes; further ones in [[node]]", unit="nodes", least=0, most=MOST_NODES))
    cores: int = field(default=1, metadata=about("cores of a node", unit="cores", least=1, most=100_000))
    memory_bytes: int = field(default=0, metadata=about("memory of a node; 0: not counted"))
    speed: float = field(default=1.0, metadata=about("relative speed of a node", least=0.001, most=1000))
    site: str = field(default="", metadata=about("where the nodes stand"))
    features: tuple[str, ...] = field(default=(), metadata=about("what jobs may ask for"))
    queues: tuple[str, ...] = field(default=(), metadata=about("queues whose jobs go to this partition"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What a policy file or a name of the catalogue stands for.

    stages: the pipeline. policies: the name of each stage's policy. queues: classes, in the order of the file.
    nodes: of the simulated machine, ids from 0 in the order of the file; () = not described. homes: queue -> partition of its jobs; ""
    for every other queue. limits: of partitions that have any. usage_half_life_us: of the use that fair shares look at, 0 = they are not
    used. files: paths that it was read from.
    """

    stages: tuple[Stage, ...]
    policies: tuple[str, ...]
    queues: tuple[QueueClass, ...] = ()
    nodes: tuple[Node, ...] = ()
    homes: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, Limits] = field(default_factory=dict)
    usage_half_life_us: int = 0
    files: tuple[str, ...] = ()

    @property
    def partitions(self) -> tuple[str, ...]:
        """Partitions of the described machine, in order; () = not described."""
        return tuple(dict.fromkeys(node.partition for node in self.nodes))


#: Finds a policy's class by a name that is not in the catalogue. Raises: ConfigError.
Find = Callable[[str], type[Any]]


def configured(name: str, params: Mapping[str, object] | None = None, *, find: Find | None = None) -> Configuration:
    """One policy of this name on every partition. Raises: ConfigError as `policy_named`."""
    stages = (Stage(_policy(name, params or {}, (), find)),)
    return Configuration(stages=stages, policies=(name,), usage_half_life_us=usage_half_life_us(stages))


def pipeline_from(document: Mapping[str, object], *, find: Find | None = None) -> Configuration:
    """The pipeline that a configuration describes.

    Args:
        document: what a TOML parser answers. find: policies that the catalogue does not have.
    Raises: ConfigError naming table, key, value, unit and range, and the nearest name.
    """
    for key in document:
        if key not in TABLES:
            raise unknown("table of a pipeline", key, TABLES)
    queues = tuple(_record(QueueClass, where, table) for where, table in _tables(document, "queue"))
    _check_names("queue", (queue.name for queue in queues))
    nodes = _nodes(document)
    partitions = dict.fromkeys(node.partition for node in nodes)
    for queue in queues:
        _check_partition(f"[[queue]] {queue.name}", queue.partition, partitions)
    stages: list[Stage] = []
    names: list[str] = []
    for where, table in _tables(document, "stage"):
        name, stage = _stage(where, table, queues, partitions, find)
        names.append(name)
        stages.append(stage)
    for partition in partitions:
        if stages and not any(partition in stage.partitions or not stage.partitions for stage in stages):
            raise ConfigError(
                f"no [[stage]] serves partition {partition}: its jobs would wait for ever", hint=f'partitions = ["{partition}"]'
            )
    if not stages:
        raise ConfigError("the configuration has no [[stage]]: no policy would start a job", hint='[[stage]]\npolicy = "easy"')
    return Configuration(
        stages=tuple(stages),
        policies=tuple(names),
        queues=queues,
        nodes=nodes,
        homes=_homes(document, queues, tuple(partitions)),
        limits=_limits(document),
        usage_half_life_us=usage_half_life_us(stages),
    )


def usage_half_life_us(stages: Iterable[Stage]) -> int:
    """The half-life with which the state must keep use for these stages; 0 when none has fair shares.

    Raises: ConfigError when they have several: use is kept once.
    """
    found: dict[int, str] = {}
    for stage in stages:
        order = getattr(stage.policy, "order", None)
        while isinstance(order, Ageing):
            order = order.base
        if isinstance(order, FairShare):
            found[order.half_life_us] = stage.policy.name
    if len(found) > 1:
        told = " and ".join(f"{shown(Kind.DURATION, us)} ({name})" for us, name in found.items())
        raise ConfigError(f"the stages have different half-lives: {told}", hint="use is kept once for a cluster: give one half_life")
    return next(iter(found), 0)


# -- tables -------------------------------------------------------------------------------------------------------------------


def _tables(document: Mapping[str, object], key: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Each table of an array with how it is called in errors: its number and, where it has one, its name."""
    found = document.get(key, [])
    if not isinstance(found, list) or not all(isinstance(table, Mapping) for table in found):
        raise ConfigError(f"{key} is no array of tables", hint=f"write [[{key}]], once for each")
    for number, table in enumerate(found, 1):
        name = table.get("policy" if key == "stage" else "name")
        yield f"[[{key}]] {number}" + (f" ({name})" if isinstance(name, str) and name else ""), table


def _stage(
    where: str, table: Mapping[str, object], queues: tuple[QueueClass, ...], partitions: Iterable[str], find: Find | None
) -> tuple[str, Stage]:
    for key in table:
        if key not in _STAGE_KEYS:
            error = unknown(f"key of {where}", key, _STAGE_KEYS)
            raise ConfigError(error.message, hint=f"{error.hint}; a policy's own go into [stage.parameters]")
    name = table.get("policy")
    if not isinstance(name, str):
        raise ConfigError(f"{where} names no policy", hint='policy = "easy"; rmgr policy list shows them')
    chosen = table.get("partitions", [])
    if not isinstance(chosen, list) or not all(isinstance(item, str) for item in chosen):
        raise ConfigError(f"{where}: partitions is {chosen!r}: a list of names is expected", hint='partitions = ["batch"]')
    for partition in chosen:
        _check_partition(where, partition, partitions)
    params: dict[str, object] = {}
    for key in ("parameters", "shares"):
        values = table.get(key, {})
        if not isinstance(values, Mapping):
            raise ConfigError(f"{where}: {key} is {values!r}: a table is expected", hint=f"[stage.{key}]")
        params |= values if key == "parameters" else {"shares": values} if values else {}
    mine = tuple(queue for queue in queues if not chosen or queue.partition in {"", *chosen})
    if queues and not mine and name in POLICIES and any(p.kind is Kind.TABLES for p in POLICIES[name].parameters):
        raise ConfigError(
            f"{where}: no [[queue]] is in its partitions ({', '.join(chosen)})", hint="partition of a queue: none is every one"
        )
    try:
        return name, Stage(_policy(name, params, mine, find), tuple(chosen))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message}", hint=error.hint) from error


def _policy(name: str, params: Mapping[str, object], queues: tuple[QueueClass, ...], find: Find | None) -> Policy:
    plugins = {name: find(name)} if find is not None and name not in POLICIES else {}
    return policy_named(name, params, plugins=plugins, records=queues)


def _record(kind: type[Record], where: str, table: Mapping[str, object]) -> Record:
    """A dataclass from a table of its fields."""
    values = read_values(where, parameters_of(kind), table, called="key")
    try:
        return kind(**values)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


# -- the machine --------------------------------------------------------------------------------------------------------------


def _nodes(document: Mapping[str, object]) -> tuple[Node, ...]:
    """Nodes of every [[partition]] and [[node]], ids from 0 in that order."""
    tables = [(where, _partition(where, table)[0]) for where, table in _tables(document, "partition")]
    _check_names("partition", (table.name for _, table in tables))
    shared = [item.name for item in fields(NodeGroup) if item.name not in {"count", "partition"}]
    groups = [
        NodeGroup(count=table.nodes, partition=table.name, **{name: getattr(table, name) for name in shared})
        for _, table in tables
        if table.nodes
    ]
    described = [table.name for _, table in tables]
    for where, table in _tables(document, "node"):
        group = _record(NodeGroup, where, table)
        _check_partition(where, group.partition, described)
        groups.append(group)
    for where, partition in tables:
        if all(group.partition != partition.name for group in groups):
            raise ConfigError(f"{where} has no nodes", hint=f'nodes = 100, or a [[node]] with partition = "{partition.name}"')
    if sum(group.count for group in groups) > MOST_NODES:
        raise ConfigError(f"the configuration describes more than {MOST_NODES:,} nodes")
    nodes: list[Node] = []
    for group in groups:
        values = {name: getattr(group, name) for name in shared}
        for _ in range(group.count):
            nodes.append(Node(id=len(nodes), name=f"node{len(nodes)}", partition=group.partition, **values))
    return tuple(nodes)


def _partition(where: str, table: Mapping[str, object]) -> tuple[PartitionTable, Limits]:
    """A table [[partition]]: its own keys, and those of its limits."""
    own = parameters_of(PartitionTable)
    limits = tuple(replace(parameter, least=0) for parameter in parameters_of(Limits))
    values = read_values(where, (*own, *limits), table, called="key")
    of_limits = {parameter.field: values.pop(parameter.field) for parameter in limits if parameter.field in values}
    return PartitionTable(**values), Limits(**of_limits)


def _limits(document: Mapping[str, object]) -> dict[str, Limits]:
    found = (_partition(where, table) for where, table in _tables(document, "partition"))
    return {partition.name: limits for partition, limits in found if limits != Limits()}


def _homes(document: Mapping[str, object], queues: tuple[QueueClass, ...], partitions: tuple[str, ...]) -> dict[str, str]:
    """Where the jobs of each queue go."""
    homes = {queue.name: queue.partition for queue in queues if queue.partition}
    for where, table in _tables(document, "partition"):
        partition, _ = _partition(where, table)
        for queue in partition.queues:
            if homes.setdefault(queue, partition.name) != partition.name:
                raise ConfigError(f"{where}: the jobs of queue {queue} go to partition {homes[queue]} already", hint="name it once")
    if partitions and "default" not in partitions:
        homes[""] = partitions[0]
    return homes


def _check_partition(where: str, partition: str, described: Iterable[str]) -> None:
    """A partition that is named stands in the file, where the file has partitions."""
    known = tuple(described)
    if known and partition and partition not in known:
        error = unknown("partition", partition, known)
        raise ConfigError(f"{where}: {error.message}", hint=error.hint)


def _check_names(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigError(f"[[{what}]] {name} stands twice in the configuration", hint="one table for each")
        seen.add(name)
