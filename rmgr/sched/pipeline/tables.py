"""The tables of a pipeline's configuration, and the machine that they describe: [[partition]], [[node]], [simulated]. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

from rmgr.errors import ConfigError
from rmgr.sched.job import Node
from rmgr.sched.parameters import about, parameters_of, read_values, unknown
from rmgr.sched.records import Limits

Record = TypeVar("Record")

SIMULATED = "simulated"
TABLES = ("stage", "queue", "partition", "node", SIMULATED)
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


#: Keys that describe nodes, in [[partition]] and [[node]]; keys that describe a machine.
_SHARED = tuple(item.name for item in fields(NodeGroup) if item.name not in {"count", "partition"})
MACHINE = frozenset(parameter.name for parameter in parameters_of(PartitionTable)) - {"name", "queues"}


def tables_of(document: Mapping[str, object], key: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Each table of an array with how it is called in errors: its number and, where it has one, its name."""
    found = document.get(key, [])
    if not isinstance(found, list) or not all(isinstance(table, Mapping) for table in found):
        raise ConfigError(f"{key} is no array of tables", hint=f"write [[{key}]], once for each")
    for number, table in enumerate(found, 1):
        name = table.get("policy" if key == "stage" else "name")
        yield f"[[{key}]] {number}" + (f" ({name})" if isinstance(name, str) and name else ""), table


def record_of(kind: type[Record], where: str, table: Mapping[str, object]) -> Record:
    """A dataclass from a table of its fields."""
    values = read_values(where, parameters_of(kind), table, called="key")
    try:
        return kind(**values)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def with_machine(document: Mapping[str, object]) -> Mapping[str, object]:
    """The document with the tables of [simulated] put to the others. Raises: ConfigError for a table that no pipeline has."""
    for key in document:
        if key not in TABLES:
            raise unknown("table of a pipeline", key, TABLES)
    simulated = document.get(SIMULATED)
    if simulated is None:
        return document
    if not isinstance(simulated, Mapping):
        raise ConfigError(f"{SIMULATED} is {simulated!r}: a table is expected", hint=f"[[{SIMULATED}.partition]], [[{SIMULATED}.node]]")
    for key in simulated:
        if key not in ("partition", "node"):
            raise unknown(f"table of [{SIMULATED}]", key, ("partition", "node"))
    merged: list[Mapping[str, object]] = [table for _, table in tables_of(document, "partition")]
    for called, table in tables_of(simulated, "partition"):
        where = called.replace("[[", f"[[{SIMULATED}.")
        for key in table:
            if key not in {"name", *MACHINE}:
                raise unknown(f"key of {where}", key, ("name", *sorted(MACHINE)))
        at = next((at for at, other in enumerate(merged) if other.get("name") == table.get("name")), None)
        if at is None:
            merged.append(table)
            continue
        twice = sorted(MACHINE & table.keys() & merged[at].keys())
        if twice:
            raise ConfigError(f"{where}: {', '.join(twice)} stands in [[partition]], too", hint=f"leave it in [[{SIMULATED}.partition]]")
        merged[at] = {**merged[at], **table}
    nodes = [table for part in (document, simulated) for _, table in tables_of(part, "node")]
    return {**{key: value for key, value in document.items() if key != SIMULATED}, "partition": merged, "node": nodes}


def groups_of(document: Mapping[str, object]) -> list[NodeGroup]:
    """The nodes of every [[partition]] and [[node]], in that order."""
    tables = [partition_of(where, table)[0] for where, table in tables_of(document, "partition")]
    check_names("partition", (table.name for table in tables))
    groups = [
        NodeGroup(count=table.nodes, partition=table.name, **{name: getattr(table, name) for name in _SHARED})
        for table in tables
        if table.nodes
    ]
    known = [table.name for table in tables]
    for where, table in tables_of(document, "node"):
        group = record_of(NodeGroup, where, table)
        check_partition(where, group.partition, known)
        groups.append(group)
    if sum(group.count for group in groups) > MOST_NODES:
        raise ConfigError(f"the configuration describes more than {MOST_NODES:,} nodes")
    return groups


def described(groups: Iterable[NodeGroup]) -> tuple[str, ...]:
    """Partitions that have nodes, in order."""
    return tuple(dict.fromkeys(group.partition for group in groups))


def nodes_of(document: Mapping[str, object], groups: Iterable[NodeGroup]) -> tuple[Node, ...]:
    """Every node, ids from 0. Raises: ConfigError for a partition without nodes."""
    known = described(groups)
    for where, table in tables_of(document, "partition"):
        name = partition_of(where, table)[0].name
        if name not in known:
            raise ConfigError(f"{where} has no nodes", hint=f'nodes = 100, or a [[node]] with partition = "{name}"')
    nodes: list[Node] = []
    for group in groups:
        values = {name: getattr(group, name) for name in _SHARED}
        for _ in range(group.count):
            nodes.append(Node(id=len(nodes), name=f"node{len(nodes)}", partition=group.partition, **values))
    return tuple(nodes)


#: Two words for one limit: that of the cluster's settings, and the older one of policies.
_CORES, _CPUS = "max_cores_per_user", "max_cpus_per_user"


def partition_of(where: str, table: Mapping[str, object]) -> tuple[PartitionTable, Limits]:
    """A table [[partition]]: its own keys, and those of its limits."""
    if _CORES in table:
        if _CPUS in table:
            raise ConfigError(f"{where}: {_CORES} and {_CPUS} are the same limit", hint=f"leave {_CPUS} out")
        table = {_CPUS if key == _CORES else key: value for key, value in table.items()}
    own = parameters_of(PartitionTable)
    limits = tuple(replace(parameter, least=0) for parameter in parameters_of(Limits))
    values = read_values(where, (*own, *limits), table, called="key")
    of_limits = {parameter.field: values.pop(parameter.field) for parameter in limits if parameter.field in values}
    return PartitionTable(**values), Limits(**of_limits)


def limits_by_partition(document: Mapping[str, object]) -> dict[str, Limits]:
    found = (partition_of(where, table) for where, table in tables_of(document, "partition"))
    return {partition.name: limits for partition, limits in found if limits != Limits()}


def check_partition(where: str, partition: str, described: Iterable[str]) -> None:
    """A partition that is named stands in the file, where the file has partitions."""
    known = tuple(described)
    if known and partition and partition not in known:
        error = unknown("partition", partition, known)
        raise ConfigError(f"{where}: {error.message}", hint=error.hint)


def check_names(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigError(f"[[{what}]] {name} stands twice in the configuration", hint="one table for each")
        seen.add(name)
