"""Reads a scenario: servers, links and clients from TOML, checked key by key.

```toml
name = "two_servers"
about = "one line"
requests = 50                     # of all clients together: then a replication ends
refresh = "60s"                   # how often servers and links are measured
throughput = "capacity"           # what a measurement says of a link: its capacity, or capacity / (transfers there + 1) ("available")

[[server]]
name = "A"
speed = 400e6                     # operations/s of a call alone
slots = 1
discipline = "fcfs"               # or "shared": calls share the slots
background = 0.10                 # utilisation by other work: Poisson arrivals, exponential sizes
background_operations = 14.5e6    # their mean

[[link]]                          # between each client and this server
server = "A"
capacity = 1.08e6                 # bytes/s
own = true                        # one link a client; false: one link for all clients
discipline = "fcfs"
service = "exponential"           # or "fixed": how the time of a transfer alone is distributed about bytes / capacity
background = 0.0
background_bytes = 2.9e6

[[client]]
name = "c"                        # with count above 1: c1, c2, ...
count = 4
kind = "open"                     # or "closed": the next request waits for the answer; "many": all at once, by `call_many`
operations = 144_720_000
bytes = 2_892_000
function = ""
window = "predicted"              # of "many": predicted, one, all

[[case]]
name = "A"
interval = "24.265s"              # mean time between requests of a client, exponential
```
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from rmgr.errors import UNREADABLE_TEXT, ConfigError, UsageError
from rmgr.sched.parameters import Kind, about, parameters_of, read_values, record_of, tables_of, unknown

Discipline = Literal["fcfs", "shared"]
_RATE = about("of one alone, a second", least=1e-6, most=1e30)
_BACKGROUND = about("utilisation by other work", least=0, most=0.99)
_AMOUNT = about("", least=0, most=1e30)
_WHOLE = about("", least=0, most=10**18)
_COUNT = about("", least=1, most=1_000_000)
_REFRESH = about("how often servers and links are measured", most=10**15)
_TABLES = ("server", "link", "client", "case")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """A server. truth: (function, operations/s) where a function runs at another speed than the declared one."""

    name: str
    speed: float = field(metadata=_RATE)
    slots: int = field(default=1, metadata=_COUNT)
    discipline: Discipline = "fcfs"
    background: float = field(default=0.0, metadata=_BACKGROUND)
    background_operations: float = field(default=0.0, metadata=_AMOUNT)
    functions: tuple[str, ...] = ()
    calibrated: float = field(default=0.0, metadata=_AMOUNT)
    truth: tuple[tuple[str, float], ...] = ()

    def speed_of(self, function: str) -> float:
        """Operations/s that a call of this function really has alone."""
        return dict(self.truth).get(function, self.speed)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPlan:
    """The network of a server."""

    server: str
    capacity: float = field(metadata=_RATE)
    own: bool = True
    discipline: Discipline = "fcfs"
    service: Literal["exponential", "fixed"] = "exponential"
    background: float = field(default=0.0, metadata=_BACKGROUND)
    background_bytes: float = field(default=0.0, metadata=_AMOUNT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPlan:
    """Clients of one kind."""

    name: str
    count: int = field(default=1, metadata=about("", least=1, most=10_000))
    kind: Literal["open", "closed", "many"] = "open"
    operations: int = field(default=0, metadata=_WHOLE)
    bytes: int = field(default=0, metadata=_WHOLE)
    function: str = ""
    window: Literal["predicted", "one", "all"] = "predicted"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}{number}" for number in range(1, self.count + 1)) if self.count > 1 else (self.name,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Rate of requests: mean seconds between requests of one client."""

    name: str
    interval_us: int = field(metadata=about("mean time between requests of a client", least=1, most=10**15))

    @property
    def interval_s(self) -> float:
        return self.interval_us / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """All of it, checked: every server has one link, names are unique."""

    name: str
    about: str = ""
    requests: int = field(default=50, metadata=_COUNT)
    refresh_us: int = field(default=60_000_000, metadata=_REFRESH)
    throughput: Literal["capacity", "available"] = "capacity"
    servers: tuple[ServerPlan, ...] = ()
    links: tuple[LinkPlan, ...] = ()
    clients: tuple[ClientPlan, ...] = ()
    cases: tuple[Case, ...] = ()

    def case(self, name: str) -> Case:
        """Raises: UsageError for an unknown one."""
        found = next((case for case in self.cases if case.name == name), None)
        if found is None:
            raise UsageError(f"scenario {self.name} has no case {name}", hint=f"known: {', '.join(case.name for case in self.cases)}")
        return found


SHIPPED = Path(__file__).parent / "scenarios"


def scenario_named(name: str) -> Scenario:
    """A shipped scenario by its name, or that of a file. Raises: UsageError naming file, key and what is expected."""
    shipped = sorted(path.stem for path in SHIPPED.glob("*.toml"))
    if name in shipped:
        return read_scenario(SHIPPED / f"{name}.toml")
    if not name.endswith(".toml") and not Path(name).exists():
        error = unknown("scenario", name, shipped)
        raise UsageError(error.message, hint=f"FILE.toml, or one of {', '.join(shipped)}")
    return read_scenario(Path(name))


def read_scenario(path: Path) -> Scenario:
    """Raises: UsageError for a file that cannot be read, or says something impossible."""
    try:
        tables = tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="a scenario is a TOML file; see rmgr sim calls --help") from error
    except UNREADABLE_TEXT as error:
        raise UsageError(f"{path} is no TOML: {error}") from error
    try:
        return _checked(_made(tables))
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", hint=error.hint) from None


def _made(document: Mapping[str, object]) -> Scenario:
    own = {parameter.name: parameter for parameter in parameters_of(Scenario) if parameter.kind is not Kind.TABLES}
    for key in document:
        if key not in own and key not in _TABLES:
            raise unknown("key of scenario", key, (*own, *_TABLES))
    return Scenario(
        **read_values("scenario", own.values(), {key: value for key, value in document.items() if key in own}),
        servers=tuple(_server(where, table) for where, table in tables_of(document, "server")),
        links=tuple(record_of(LinkPlan, where, table) for where, table in tables_of(document, "link")),
        clients=tuple(record_of(ClientPlan, where, table) for where, table in tables_of(document, "client")),
        cases=tuple(record_of(Case, where, table) for where, table in tables_of(document, "case")),
    )


def _server(where: str, table: Mapping[str, object]) -> ServerPlan:
    """Returns the server; `truth` is a table of operations/s by function. Raises: ConfigError."""
    truth = table.get("truth", {})
    if not isinstance(truth, Mapping):
        raise ConfigError(f"truth of {where} is {truth!r:.40}: a table of operations/s by function is expected")
    server = record_of(ServerPlan, where, {key: value for key, value in table.items() if key != "truth"})
    speed = next(parameter for parameter in parameters_of(ServerPlan) if parameter.name == "speed")
    return replace(server, truth=tuple(sorted((name, speed.read(value, f"{name} on {where}")) for name, value in truth.items())))


def _checked(scenario: Scenario) -> Scenario:
    names = [server.name for server in scenario.servers]
    clients = [name for client in scenario.clients for name in client.names]
    for what, found in (("server", names), ("client", clients), ("case", [case.name for case in scenario.cases])):
        if not found:
            raise UsageError(f"there is no [[{what}]]")
        if "" in found:
            raise UsageError(f"a {what} has no name")
        twice = next((name for name in found if found.count(name) > 1), None)
        if twice is not None:
            raise UsageError(f"two {what}s are called {twice}")
    linked = [link.server for link in scenario.links]
    for name in names:
        if linked.count(name) != 1:
            raise UsageError(f"server {name} has {linked.count(name)} links", hint=f'one [[link]] with server = "{name}" is needed')
    for name in linked:
        if name not in names:
            raise UsageError(f"a link leads to server {name}, which is not there", hint=f"known: {', '.join(names)}")
    parts: list[ServerPlan | LinkPlan] = [*scenario.servers, *scenario.links]
    for part in parts:
        size = part.background_operations if isinstance(part, ServerPlan) else part.background_bytes
        if part.background and size <= 0:
            unit = "background_operations" if isinstance(part, ServerPlan) else "background_bytes"
            raise UsageError(f"background {part.background:g} needs {unit}, the mean size of the other work")
    for client in scenario.clients:
        if not any(not server.functions or not client.function or client.function in server.functions for server in scenario.servers):
            raise UsageError(f"no server offers function {client.function} of client {client.name}")
    return scenario
