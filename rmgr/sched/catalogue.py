"""Policies by their names in configuration and on the command line, each built from parameters that are checked here.

A new policy is one line in `POLICIES`; its parameters are the fields of its dataclass (`rmgr.sched.parameters`). A policy with a field
`order: Order` takes any order, ageing over it (`max_wait`), and the parameters of that order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rmgr.errors import ConfigError
from rmgr.sched.parameters import Kind, Parameter, parameters_of, read_values, record_type, shown, unknown
from rmgr.sched.policies.buddy_fcfs import BuddyFcfs
from rmgr.sched.policies.connection_reservation import ConnectionReservation
from rmgr.sched.policies.dqt import Dqt, weights_of
from rmgr.sched.policies.migration import Migration
from rmgr.sched.policies.orders import Ageing, FairShare, Fcfs, Ljf, Priority, Sjf, order_beneath_ageing
from rmgr.sched.policies.queue_first_fit import QueueFirstFit, QueueSelect
from rmgr.sched.policies.searches import Conservative, Easy, FirstFit, HeadBlocking
from rmgr.sched.policies.servers import Adaptive, Load, Loth, RoundRobin
from rmgr.sched.policy import Policy

ORDERS: Mapping[str, type[Any]] = {"fcfs": Fcfs, "sjf": Sjf, "ljf": Ljf, "priority": Priority, "fair_share": FairShare}
SEARCHES: Mapping[str, type[Any]] = {"head_blocking": HeadBlocking, "first_fit": FirstFit, "easy": Easy, "conservative": Conservative}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A named policy. summary: one line. preset: parameters that this name sets differently from the class's defaults."""

    policy: type[Any]
    summary: str
    preset: Mapping[str, object] = field(default_factory=dict)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Every parameter of the policy, with this name's defaults; `goes_with` marks those that only another order has."""
        own = [_preset(parameter, self.preset) for parameter in parameters_of(self.policy)]
        found: list[Parameter] = []
        if self.policy in SEARCHES.values():
            search = next(name for name, kind in SEARCHES.items() if kind is self.policy)
            what = "how the queue is searched for jobs that can start"
            found.append(Parameter(name="search", field="", kind=Kind.NAME, what=what, default=search, choices=tuple(SEARCHES)))
        for parameter in own:
            found.append(parameter)
            if parameter.kind is Kind.ORDER:
                found.append(MAX_WAIT)
        names = {parameter.name for parameter in found}
        default = next((parameter.default for parameter in found if parameter.kind is Kind.ORDER), None)
        if default is not None:
            for name, order in ORDERS.items():
                goes_with = "" if name == default else f"order={name}"
                found += [dataclasses.replace(p, goes_with=goes_with) for p in parameters_of(order) if p.name not in names]
        return tuple(found)


MAX_WAIT = Parameter(
    name="max_wait",
    field="",
    kind=Kind.DURATION,
    what="ageing: a job that has waited so long goes first, whatever the order; none: no ageing",
    least=1,
    optional=True,
)

POLICIES: Mapping[str, Entry] = {
    "fcfs": Entry(policy=HeadBlocking, summary="first come, first served; the head of the queue blocks it"),
    "sjf": Entry(policy=HeadBlocking, summary="smallest job (CPUs) first; the head blocks", preset={"order": "sjf"}),
    "ljf": Entry(policy=HeadBlocking, summary="largest job (CPUs) first; the head blocks", preset={"order": "ljf"}),
    "priority": Entry(policy=HeadBlocking, summary="the jobs' own priority; the head blocks", preset={"order": "priority"}),
    "fair_share": Entry(
        policy=HeadBlocking,
        summary="whose account, then whose user, has used least of its share; the head blocks",
        preset={"order": "fair_share"},
    ),
    "first_fit": Entry(policy=FirstFit, summary="every waiting job that fits starts, in order of arrival; large ones may starve"),
    "ljf_first_fit": Entry(policy=FirstFit, summary="every waiting job that fits starts, largest first", preset={"order": "ljf"}),
    "easy": Entry(policy=Easy, summary="EASY backfilling: the head has a reservation, others pass it where they do not delay it"),
    "conservative": Entry(policy=Conservative, summary="conservative backfilling: every job has a reservation that no start may break"),
    "queue_first_fit": Entry(
        policy=QueueFirstFit, summary="every waiting job that fits starts, queue after queue (paper 000, conventional)"
    ),
    "queue_select": Entry(
        policy=QueueSelect, summary="the strictest queue class that admits a job, then First-Fit in each (paper 000, proposal 1)"
    ),
    "connection_reservation": Entry(
        policy=ConnectionReservation, summary="queue_select, and overtaken jobs are promised what running jobs hold (paper 000, proposal 2)"
    ),
    "migration": Entry(
        policy=Migration, summary="First-Fit; jobs that passed the head give their nodes back when it then fits (paper 001)"
    ),
    "ljf_migration": Entry(policy=Migration, summary="migration, the largest jobs first (paper 001)", preset={"order": "ljf"}),
    "dqt": Entry(
        policy=Dqt, summary="gang time-sharing over nested partitions: every job gets slots at once, all its processes in the same"
    ),
    "buddy_fcfs": Entry(policy=BuddyFcfs, summary="first come, first served over binary buddies; the head blocks (paper 002, batch)"),
}

#: Policies that choose servers for calls. They place no jobs; the policies above send no calls.
CALL_POLICIES: Mapping[str, Entry] = {
    "rr": Entry(policy=RoundRobin, summary="calls go to the servers in turn (paper 004)"),
    "load": Entry(policy=Load, summary="calls go where load is least for the performance (paper 004)"),
    "load+l": Entry(policy=Load, summary="load, counting calls sent since the measurement (paper 004)", preset={"add_load": True}),
    "loth": Entry(policy=Loth, summary="calls go where computing and transfer together are expected to end first (paper 004)"),
    "loth+l": Entry(policy=Loth, summary="loth, counting calls sent since the measurement as load (paper 004)", preset={"add_load": True}),
    "loth+t": Entry(policy=Loth, summary="loth, sharing links among calls sent since the measurement", preset={"share_link": True}),
    "loth+lt": Entry(policy=Loth, summary="loth, counting both (paper 004)", preset={"add_load": True, "share_link": True}),
    "adaptive": Entry(policy=Adaptive, summary="loth while calls are quick, in proportion to performance while they hinder each other"),
}


def takes_orders(name: str) -> bool:
    """Whether the name is a policy of rmgr's own that composes with any order."""
    return name in POLICIES and any(parameter.kind is Kind.ORDER for parameter in POLICIES[name].parameters)


def heeds_priority(policy: object) -> bool:
    """Whether the policy is one of rmgr's own and looks at the jobs' priority."""
    return isinstance(order_beneath_ageing(policy), Priority) or (isinstance(policy, Dqt) and len(weights_of(policy.weights)) > 1)


def call_policy_named(name: str, params: Mapping[str, object] | None = None) -> Policy:
    """Returns the policy for calls with this name. Raises: as `policy_named`."""
    entry = CALL_POLICIES.get(name)
    if entry is None:
        if name in POLICIES:
            raise ConfigError(f"{name} places jobs, it chooses no servers for calls", hint=f"for calls: {', '.join(CALL_POLICIES)}")
        raise unknown("policy for calls", name, CALL_POLICIES)
    return built(entry.policy, {**entry.preset, **(params or {})}, name=name)


def policy_named(
    name: str,
    params: Mapping[str, object] | None = None,
    *,
    plugins: Mapping[str, type[Any]] | None = None,
    records: Iterable[object] = (),
) -> Policy:
    """Returns the policy with this name.

    Args:
        params: its parameters, as text or as TOML values. `order` and `search` replace that half of a composed policy: any order
            composes with any search, and `max_wait` (`12h`, `3600` seconds) with all of them.
        plugins: the user's own policies, by name; a name of the catalogue always means the catalogue's policy.
        records: values from other tables of the configuration (queue classes): a field `tuple[T, ...]` takes those of type T.
        Raises: ConfigError for an unknown name or parameter (with the nearest known one), or an invalid or out-of-range value.
    """
    entry = POLICIES.get(name)
    if entry is not None:
        return built(entry.policy, {**entry.preset, **(params or {})}, name=name, records=records)
    if plugins and name in plugins:
        return built(plugins[name], params or {}, name=name, records=records)
    if name in CALL_POLICIES:
        hint = "for jobs: rmgr policy list; for calls: rmgr policy set NAME --partition calls"
        raise ConfigError(f"{name} chooses servers for calls, it places no jobs", hint=hint)
    raise unknown("policy", name, (*POLICIES, *(plugins or ())))


def built(kind: type[Any], given: Mapping[str, object], *, name: str, records: Iterable[object] = ()) -> Policy:
    """Builds a policy of this class. name: appears in errors. Raises: as `policy_named`."""
    given = dict(given)
    if kind in SEARCHES.values() and "search" in given:
        kind = _one_of("search", given.pop("search"), SEARCHES)
    own = parameters_of(kind)
    fields: dict[str, Any] = {}
    arranged = next((parameter for parameter in own if parameter.kind is Kind.ORDER), None)
    takes = [p for p in own if p.kind is not Kind.ORDER]
    if arranged is not None:
        mine = {p.name for p in takes}
        default = arranged.default if arranged.default is not None else Fcfs()
        wanted = given.pop(arranged.name, None)
        order = type(default) if wanted is None else _one_of("order", wanted, ORDERS)
        of_order = [p for p in parameters_of(order) if p.name not in mine]
        waits = MAX_WAIT.read(given.pop("max_wait"), name) if "max_wait" in given and "max_wait" not in mine else None
        _refuse_others(name, given, takes, of_order, str(wanted or shown(Kind.ORDER, default)), kind in SEARCHES.values())
        names = {p.name for p in of_order}
        values = read_values(name, of_order, {key: given.pop(key) for key in tuple(given) if key in names})
        base = default if wanted is None and not values else _made(name, order, values)
        fields[arranged.field] = base if waits is None else Ageing(max_wait_us=waits, base=base)
    fields |= _described(name, takes, records, given)
    fields |= read_values(name, [p for p in takes if p.field not in fields], given)
    made: Policy = _made(name, kind, fields)
    return made


def _made(name: str, kind: type[Any], fields: Mapping[str, Any]) -> Any:
    try:
        return kind(**fields)
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError) as error:  # raised by a user class's own checks
        raise ConfigError(f"{name} cannot be made: {error}", hint=f"rmgr policy list {name}") from error


def _described(name: str, takes: Iterable[Parameter], records: Iterable[object], given: Mapping[str, object]) -> dict[str, Any]:
    """Returns the fields that hold records from other tables."""
    found: dict[str, Any] = {}
    for parameter in takes:
        kind = record_type(parameter.held)
        if kind is None:
            continue
        if parameter.name in given:
            raise ConfigError(f"{parameter.name} of {name} cannot be set by a parameter", hint="it comes from the tables of a FILE.toml")
        of_kind = tuple(record for record in records if isinstance(record, kind))
        if of_kind:
            found[parameter.field] = of_kind
        elif parameter.required:
            raise ConfigError(f"{name} needs tables that describe its {parameter.name}", hint="--policy FILE.toml; see deploy/policies")
    return found


def _refuse_others(
    name: str, given: Mapping[str, object], own: Iterable[Parameter], of_order: Iterable[Parameter], order: str, searchable: bool
) -> None:
    """Raises: ConfigError for a parameter that neither the policy nor its order has."""
    known = ["order", *(["search"] if searchable else []), "max_wait", *(p.name for p in own), *(p.name for p in of_order)]
    for key in given:
        if key not in known:
            having = [other for other, kind in ORDERS.items() if any(p.name == key for p in parameters_of(kind))]
            if having:
                raise ConfigError(f"{name} has order {order}, which has no {key}", hint=f"order={having[0]} has")
            raise unknown(f"parameter of {name}", key, known)


def _one_of(what: str, name: object, among: Mapping[str, type[Any]]) -> type[Any]:
    if not isinstance(name, str) or name not in among:
        raise unknown(what, str(name), among)
    return among[name]


def _preset(parameter: Parameter, preset: Mapping[str, object]) -> Parameter:
    default = preset.get(parameter.name, parameter.default)
    if parameter.kind is Kind.ORDER:
        what = parameter.what or "the order in which the queue is looked at"
        return dataclasses.replace(parameter, default=shown(Kind.ORDER, default), choices=tuple(ORDERS), what=what)
    return dataclasses.replace(parameter, default=default)
