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

import math
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from rmgr.errors import UNREADABLE_TEXT, RmgrError, UsageError
from rmgr.model.base.units import parse_duration_us
from rmgr.sched.parameters import unknown

Made = TypeVar("Made")
Discipline = Literal["fcfs", "shared"]
_MOST_REQUESTS = 1_000_000
_MOST_CLIENTS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """A server. truth: (function, operations/s) where a function runs at another speed than the declared one."""

    name: str
    speed: float
    slots: int = 1
    discipline: Discipline = "fcfs"
    background: float = 0.0
    background_operations: float = 0.0
    functions: tuple[str, ...] = ()
    calibrated: float = 0.0
    truth: tuple[tuple[str, float], ...] = ()

    def speed_of(self, function: str) -> float:
        """Operations/s that a call of this function really has alone."""
        return dict(self.truth).get(function, self.speed)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPlan:
    """The network of a server."""

    server: str
    capacity: float
    own: bool = True
    discipline: Discipline = "fcfs"
    service: Literal["exponential", "fixed"] = "exponential"
    background: float = 0.0
    background_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPlan:
    """Clients of one kind."""

    name: str
    count: int = 1
    kind: Literal["open", "closed", "many"] = "open"
    operations: int = 0
    bytes: int = 0
    function: str = ""
    window: Literal["predicted", "one", "all"] = "predicted"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}{number}" for number in range(1, self.count + 1)) if self.count > 1 else (self.name,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Rate of requests: mean seconds between requests of one client."""

    name: str
    interval_us: int

    @property
    def interval_s(self) -> float:
        return self.interval_us / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """All of it, checked: every server has one link, names are unique."""

    name: str
    about: str = ""
    requests: int = 50
    refresh_us: int = 60_000_000
    throughput: Literal["capacity", "available"] = "capacity"
    servers: tuple[ServerPlan, ...] = field(default=(), metadata={"key": "server"})
    links: tuple[LinkPlan, ...] = field(default=(), metadata={"key": "link"})
    clients: tuple[ClientPlan, ...] = field(default=(), metadata={"key": "client"})
    cases: tuple[Case, ...] = field(default=(), metadata={"key": "case"})

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
        return _checked(_made(Scenario, tables, "scenario"))
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", hint=error.hint) from None


def _checked(scenario: Scenario) -> Scenario:
    names = [server.name for server in scenario.servers]
    clients = [name for client in scenario.clients for name in client.names]
    for what, found in (("server", names), ("client", clients), ("case", [case.name for case in scenario.cases])):
        if not found:
            raise UsageError(f"there is no [[{what}]]")
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


#: field -> (least, most); both are allowed.
_RANGES: Mapping[str, tuple[float, float]] = {
    "requests": (1, _MOST_REQUESTS),
    "refresh_us": (0, 1e15),
    "interval_us": (1, 1e15),
    "speed": (1e-6, 1e30),
    "capacity": (1e-6, 1e30),
    "slots": (1, 1_000_000),
    "background": (0.0, 0.99),
    "background_operations": (0, 1e30),
    "background_bytes": (0, 1e30),
    "calibrated": (0, 1e30),
    "count": (1, _MOST_CLIENTS),
    "operations": (0, 1e18),
    "bytes": (0, 1e18),
}


def _made(kind: type[Made], table: object, where: str) -> Made:
    if not isinstance(table, dict):
        raise UsageError(f"{where}: a table is expected, not {table!r:.40}")
    hints = get_type_hints(kind)
    parts = {_key(part): part for part in fields(kind)}  # type: ignore[arg-type]  # every kind here is a dataclass
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in parts:
            error = unknown(f"key of {where}", key, parts)
            raise UsageError(error.message, hint=error.hint)
        name = parts[key].name
        values[name] = _value(name, hints[name], value, f"{where}.{key}" if where != "scenario" else key)
    missing = next((key for key, part in parts.items() if part.default is MISSING and part.name not in values), None)
    if missing is not None:
        raise UsageError(f"{where} needs {missing}")
    return kind(**values)


def _key(part: Any) -> str:
    return str(part.metadata.get("key", part.name.removesuffix("_us")))


def _value(name: str, hint: Any, value: Any, where: str) -> Any:
    """A value of the field's type, in its range. Raises: UsageError."""
    origin, arguments = get_origin(hint), get_args(hint)
    if name == "truth":
        if not isinstance(value, dict):
            raise UsageError(f"{where}: a table of operations/s by function is expected")
        return tuple(sorted((str(function), _value("speed", float, speed, f"{where}.{function}")) for function, speed in value.items()))
    if origin is tuple:
        if not isinstance(value, list):
            raise UsageError(f"{where}: a list is expected, not {value!r:.40}")
        return tuple(
            _value(name, str, one, where) if arguments[0] is str else _made(arguments[0], one, f"{where}[{at}]")
            for at, one in enumerate(value)
        )
    if origin is Literal:
        if value not in arguments:
            raise UsageError(f"{where} is {value!r:.40}, it must be {' or '.join(arguments)}")
        return value
    if name.endswith("_us"):
        try:
            value = parse_duration_us(value) if isinstance(value, str) else round(value * 1_000_000)
        except (RmgrError, TypeError, ValueError, OverflowError):
            raise UsageError(f"{where} is {value!r:.40}: a duration is expected, as 60s or 24.265") from None
    elif hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    elif hint is int and isinstance(value, float) and value == math.floor(value):
        value = int(value)
    if type(value) is not hint or (hint is str and not value and name == "name"):
        raise UsageError(f"{where} is {value!r:.40}: {_EXPECTED[hint]} is expected")
    low, high = _RANGES.get(name, (-math.inf, math.inf))
    if isinstance(value, int | float) and not low <= value <= high:
        raise UsageError(f"{where} is {table_value(name, value)}: from {table_value(name, low)} to {table_value(name, high)} is allowed")
    return value


_EXPECTED: Mapping[Any, str] = {str: "a name", int: "a whole number", float: "a number", bool: "true or false"}


def table_value(name: str, value: float) -> str:
    """A number as the file has it: durations in seconds."""
    return f"{value / 1e6:g} s" if name.endswith("_us") else f"{value:g}"
