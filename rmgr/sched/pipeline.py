"""Pipelines as configuration: tables of stages, queue classes, partitions and nodes become stages of policies and a simulated machine.

    [[stage]]                    # in this order; a later one sees the decisions of earlier ones
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

    [[partition]]                # limits of a partition, in the simulator and in a live cluster
    name = "batch"
    queues = ["1", "2"]          # jobs of these queues go there; of unnamed queues: to `default`, else to the first partition
    max_cpus_per_user = 64

    [[simulated.partition]]      # the simulator's machine (optional); a live cluster has its own
    name = "batch"
    nodes = 100
    cores = 4

    [[simulated.node]]           # more nodes of a partition, if they are not all alike
    partition = "batch"
    count = 28
    cores = 8
    site = "kyoto"

The simulator also takes a machine from [[partition]] and [[node]]; `rmgr policy set` refuses it there, because no leader obeys it.

One reader, two views: `pipeline_from` returns every partition of a file (the simulator), `served` one partition of it (the leader).

Pure: takes the mapping that a TOML parser returns, and returns values. Every error names the table (the second `[[queue]]`), the key,
the value with its unit and range, and the nearest name that exists.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from rmgr.errors import ConfigError
from rmgr.sched.catalogue import CALL_POLICIES, POLICIES, call_policy_named, policy_named
from rmgr.sched.job import Node
from rmgr.sched.parameters import Kind, about, parameters_of, read_values, record_of, shown, tables_of, unknown
from rmgr.sched.policies.orders import FairShare, order_beneath_ageing
from rmgr.sched.policy import Policy, Stage
from rmgr.sched.queue_class import QueueClass
from rmgr.sched.records import Limits

_STAGE_KEYS = ("policy", "partitions", "parameters", "shares")
SIMULATED = "simulated"
TABLES = ("stage", "queue", "partition", "node", SIMULATED)
#: Number of nodes in one file above which it must be a typing error.
MOST_NODES = 10_000_000
#: Two words for one limit: the cluster settings' name, and the older one in policy files.
_CORES, _CPUS = "max_cores_per_user", "max_cpus_per_user"


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Meaning of a policy file or of a catalogue name.

    stages: the pipeline. policies: the name of each stage's policy. queues: classes, in the order of the file.
    nodes: of the simulated machine, ids from 0 in the order of the file; () = not described. homes: queue -> partition of its jobs; the
    key "" stands for every other queue. limits: of partitions that have any. usage_half_life_us: half-life of the usage behind fair shares,
    0 = there are no fair shares. files: paths that it was read from.
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


#: Builds a policy from its name, its parameters and the queue classes of its partitions. Raises: ConfigError.
Make = Callable[[str, Mapping[str, object], tuple[QueueClass, ...]], Policy]
#: Finds the class of a policy that is not in the catalogue, by name. Raises: ConfigError.
Find = Callable[[str], type[Any]]


def configured(name: str, params: Mapping[str, object] | None = None, *, find: Find | None = None) -> Configuration:
    """Returns one policy of this name on every partition. Raises: ConfigError as `policy_named`."""
    stages = (Stage(_by_name(find)(name, params or {}, ())),)
    return Configuration(stages=stages, policies=(name,), usage_half_life_us=usage_half_life_us(stages))


def pipeline_from(document: Mapping[str, object], *, find: Find | None = None) -> Configuration:
    """Returns the pipeline that a configuration describes.

    Args:
        document: result of a TOML parser. find: finds policies that the catalogue does not have.
        Raises: ConfigError naming table, key, value, unit and range, and the nearest name.
    """
    document = with_machine(document)
    groups = groups_of(document)
    partitions = described(groups)
    nodes = nodes_of(document, groups)
    queues = _queues(document, partitions)
    stages, names = _stages(document, queues, partitions, _by_name(find))
    for partition in partitions:
        if stages and not any(partition in stage.partitions or not stage.partitions for stage in stages):
            raise ConfigError(
                f"no [[stage]] serves partition {partition}: its jobs would wait for ever", hint=f'partitions = ["{partition}"]'
            )
    return Configuration(
        stages=stages,
        policies=names,
        queues=queues,
        nodes=nodes,
        homes=_homes(document, queues, partitions),
        limits=limits_by_partition(document),
        usage_half_life_us=usage_half_life_us(stages),
    )


def served(document: Mapping[str, object], partition: str, *, find: Find | None = None, make: Make | None = None) -> Configuration:
    """Returns the part for one partition of a live cluster: its stages, its queue classes, its limits; no machine.

    Args: make: builds every policy, instead of `find`. A partition that no stage serves has no stages.
    Raises: ConfigError as `pipeline_from`.
    """
    document = with_machine(document)
    known = described(groups_of(document))
    queues = _queues(document, known)
    stages, names = _stages(document, queues, known, make or _by_name(find))
    mine = [(stage, name) for stage, name in zip(stages, names, strict=True) if partition in stage.partitions or not stage.partitions]
    stages = tuple(Stage(stage.policy, (partition,)) for stage, _ in mine)
    limits = limits_by_partition(document).get(partition)
    return Configuration(
        stages=stages,
        policies=tuple(name for _, name in mine),
        queues=tuple(queue for queue in queues if queue.partition in {"", partition}),
        limits={} if limits is None else {partition: limits},
        usage_half_life_us=usage_half_life_us(stages),
    )


def stage_for_calls(document: Mapping[str, object], partition: str) -> Stage:
    """Returns the single stage that sends calls to servers there. Only rmgr's own policies qualify: each pick is made within its RPC.

    Raises: ConfigError for policies of jobs, files, plug-ins, and any table besides the one stage.
    """
    for key in document:
        if key != "stage":
            raise ConfigError(f"[[{key}]]: calls have one policy and nothing else", hint=f"rmgr policy set loth+l --partition {partition}")
    stages, _ = _stages(document, (), (), _shipped_for_calls)
    if len(stages) > 1:
        raise ConfigError(f"calls have one policy, not {len(stages)} stages", hint=f"rmgr policy set loth+l --partition {partition}")
    if stages[0].partitions not in {(), (partition,)}:
        raise ConfigError(f"no [[stage]] serves partition {partition}", hint="leave `partitions` of its stage out")
    return Stage(stages[0].policy, (partition,))


def _shipped_for_calls(name: str, params: Mapping[str, object], _: tuple[QueueClass, ...]) -> Policy:
    if name in CALL_POLICIES or name in POLICIES:
        return call_policy_named(name, params)
    error = unknown("policy for calls", name, CALL_POLICIES)
    hint = f"{error.hint}; live calls have only rmgr's own: files and plug-ins are for rmgr sim calls SCENARIO --policy {name}"
    raise ConfigError(error.message, hint=hint)


def classes_of(document: Mapping[str, object], partition: str) -> tuple[QueueClass, ...]:
    """Returns the queue classes of one partition, in order; () if none are described. Raises: ConfigError for an invalid table."""
    document = with_machine(document)
    found = _queues(document, described(groups_of(document)))
    return tuple(queue for queue in found if queue.partition in {"", partition})


def limits_of(document: Mapping[str, object], partition: str) -> Limits | None:
    """Returns the limits of one partition, or None. Raises: ConfigError for an invalid table [[partition]]."""
    return limits_by_partition(document).get(partition)


def refuse_unobeyed(document: Mapping[str, object], partition: str, queues: Mapping[str, str]) -> None:
    """Refuses settings that a leader placing jobs in this partition would not obey.

    Args: queues: name -> partition, of the cluster's queues whose jobs are placed.
    Raises: ConfigError naming the table, the key, and what to do instead.
    """
    if document.get("node"):
        raise ConfigError("[[node]]: only the simulator obeys it, a cluster has its own nodes", hint=f"call it [[{SIMULATED}.node]]")
    limited: list[str] = []
    for where, entries in tables_of(document, "partition"):
        table, limits = partition_of(where, entries)
        machine = sorted(MACHINE & entries.keys())
        if machine:
            raise ConfigError(
                f"{where}: only the simulator obeys {', '.join(machine)}, a cluster has its own nodes",
                hint=f'[[{SIMULATED}.partition]] with name = "{table.name}" is the place for them',
            )
        if limits != Limits():
            limited.append(table.name)
        for queue in table.queues if table.name == partition else ():
            if queues.get(queue) != partition:
                there = f"is in partition {queues[queue]}" if queue in queues else "is no queue whose jobs are placed"
                raise ConfigError(
                    f"{where}: queue {queue} {there}; the cluster's settings say where the jobs of a queue go",
                    hint=f'[queues.{queue}] with partition = "{partition}" and dispatch = "place": rmgr config apply',
                )
    if limited and partition not in limited:
        raise ConfigError(
            f"it limits partition {', '.join(limited)}, and not {partition}, where it is to place",
            hint=f'[[partition]] with name = "{partition}", or --partition {limited[0]}',
        )


def fair_share_of(policy: Policy) -> FairShare | None:
    """Returns the fair shares by which a policy orders, also underneath ageing, or None."""
    order = order_beneath_ageing(policy)
    return order if isinstance(order, FairShare) else None


def usage_half_life_us(stages: Iterable[Stage]) -> int:
    """Returns the half-life with which the state must keep usage for these stages; 0 if none has fair shares.

    Raises: ConfigError if they have several half-lives, because usage is kept only once.
    """
    found: dict[int, str] = {}
    for stage in stages:
        if (fair := fair_share_of(stage.policy)) is not None:
            found[fair.half_life_us] = stage.policy.name
    if len(found) > 1:
        told = " and ".join(f"{shown(Kind.DURATION, us)} ({name})" for us, name in found.items())
        raise ConfigError(f"the stages have different half-lives: {told}", hint="use is kept once for a cluster: give one half_life")
    return next(iter(found), 0)


# -- tables -------------------------------------------------------------------------------------------------------------------


def _queues(document: Mapping[str, object], partitions: Collection[str]) -> tuple[QueueClass, ...]:
    queues = tuple(record_of(QueueClass, where, table) for where, table in tables_of(document, "queue"))
    check_names("queue", (queue.name for queue in queues))
    for queue in queues:
        check_partition(f"[[queue]] {queue.name}", queue.partition, partitions)
    return queues


def _stages(
    document: Mapping[str, object], queues: tuple[QueueClass, ...], partitions: Collection[str], make: Make
) -> tuple[tuple[Stage, ...], tuple[str, ...]]:
    """Returns the stages, and the name of each one's policy."""
    found = [_stage(where, table, queues, partitions, make) for where, table in tables_of(document, "stage")]
    if not found:
        raise ConfigError("the configuration has no [[stage]]: no policy would start a job", hint='[[stage]]\npolicy = "easy"')
    stages = tuple(stage for _, stage in found)
    _check_alone(stages, partitions or dict.fromkeys([name for stage in stages for name in stage.partitions] or ["default"]))
    return stages, tuple(name for name, _ in found)


def _check_alone(stages: Iterable[Stage], partitions: Iterable[str]) -> None:
    """Refuses another stage in the partition of a policy whose gang owns the nodes."""
    for partition in partitions:
        there = [stage.policy for stage in stages if not stage.partitions or partition in stage.partitions]
        for policy in there:
            other = next((one for one in there if one is not policy), None)
            if getattr(policy, "alone", False) and other is not None:
                raise ConfigError(
                    f"{policy.name} cannot share partition {partition} with {other.name}: the nodes belong to its gang",
                    hint=f'give {policy.name} a partition of its own: partitions = ["NAME"] in its [[stage]]',
                )


def _stage(
    where: str, table: Mapping[str, object], queues: tuple[QueueClass, ...], partitions: Iterable[str], make: Make
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
        check_partition(where, partition, partitions)
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
        return name, Stage(make(name, params, mine), tuple(chosen))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message}", hint=error.hint) from error


def _by_name(find: Find | None) -> Make:
    """Returns a maker for policies of the catalogue and of the classes that `find` knows."""

    def make(name: str, params: Mapping[str, object], queues: tuple[QueueClass, ...]) -> Policy:
        plugins = {name: find(name)} if find is not None and name not in POLICIES else {}
        return policy_named(name, params, plugins=plugins, records=queues)

    return make


def _homes(document: Mapping[str, object], queues: tuple[QueueClass, ...], partitions: tuple[str, ...]) -> dict[str, str]:
    """Returns queue -> partition that its jobs go to."""
    homes = {queue.name: queue.partition for queue in queues if queue.partition}
    for where, table in tables_of(document, "partition"):
        partition, _ = partition_of(where, table)
        for queue in partition.queues:
            if homes.setdefault(queue, partition.name) != partition.name:
                raise ConfigError(f"{where}: the jobs of queue {queue} go to partition {homes[queue]} already", hint="name it once")
    if partitions and "default" not in partitions:
        homes[""] = partitions[0]
    return homes


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
    """A table [[partition]]: its nodes, if they are all alike. Its limits are further keys of the table."""

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


def with_machine(document: Mapping[str, object]) -> Mapping[str, object]:
    """Merges the tables of [simulated] into the others. Raises: ConfigError for a table that no pipeline has."""
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
    """Returns the nodes of every [[partition]] and [[node]], in that order."""
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
    """Returns the partitions that have nodes, in order."""
    return tuple(dict.fromkeys(group.partition for group in groups))


def nodes_of(document: Mapping[str, object], groups: Iterable[NodeGroup]) -> tuple[Node, ...]:
    """Returns every node, with ids from 0. Raises: ConfigError for a partition without nodes."""
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


def partition_of(where: str, table: Mapping[str, object]) -> tuple[PartitionTable, Limits]:
    """Splits a table [[partition]] into its own keys and those of its limits."""
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
    """Checks that a named partition stands in the file, if the file describes partitions. Raises: ConfigError."""
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
