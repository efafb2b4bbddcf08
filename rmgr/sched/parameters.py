"""Parameters as data: kind, unit, default and range, taken from a dataclass's fields; values from text (`--param`) or TOML.

One description serves the command line, configuration files, `rmgr policy list` and error messages. A field `max_wait_us: int` is the
parameter `max_wait`, a duration; `memory_bytes: int` is `memory`, a size; `int`, `float`, `bool`, `str`, enumerations and tuples of names
keep their meaning. `field(default=..., metadata=about("what it does", least=1))` adds what the type cannot express.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from enum import Enum, StrEnum
from fractions import Fraction
from functools import lru_cache
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from rmgr.errors import ConfigError, UsageError, meant
from rmgr.model.units import MAX_DURATION_US, MAX_SIZE_BYTES, parse_duration_us, parse_size
from rmgr.sched.policy import Order

Record = TypeVar("Record")
_METADATA = "rmgr.parameter"
#: Larger integers fit into no record.
_MOST_INTEGER = (1 << 63) - 1
_MOST_NUMBER = 1.7e308
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_EXACT = re.compile(r"[+-]?\d{1,18}(\.\d{1,18}|/\d{1,18})?", re.ASCII)
_YES = frozenset({"yes", "true", "on", "1"})
_NO = frozenset({"no", "false", "off", "0"})
_LENGTHS = (("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000))
_SIZES = (("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10))


class Kind(StrEnum):
    """How a value is written."""

    DURATION = "duration"  #: `12h`, or seconds as a number; held in us
    SIZE = "size"  #: `2G`, or bytes
    INTEGER = "integer"
    NUMBER = "number"
    SWITCH = "switch"  #: yes | no
    NAME = "name"
    NAMES = "names"  #: `a,b` or a list
    SHARES = "shares"  #: `a:3,b:1` or a table of integers
    ORDER = "order"  #: an order of the catalogue
    TABLES = "tables"  #: records from other tables of a configuration: queue classes
    OTHER = "other"  #: cannot be written as text: a type of the policy's own


class FieldRules(NamedTuple):
    """Properties of a field that its type does not express."""

    what: str
    unit: str
    least: float | None
    most: float | None
    choices: tuple[str, ...]


def about(
    what: str, *, unit: str = "", least: float | None = None, most: float | None = None, choices: Iterable[str] = ()
) -> dict[str, FieldRules]:
    """Returns metadata of a dataclass field. unit: shown with values (not of durations, sizes). least, most: inclusive, as held."""
    return {_METADATA: FieldRules(what, unit, least, most, tuple(choices))}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter. default: as held; `required` if there is none. optional: `none` is a value. held: type of the held value.

    goes_with: the choice that has the parameter (`order=fair_share`), "" = always there.
    """

    name: str
    field: str
    kind: Kind
    what: str = ""
    unit: str = ""
    default: Any = None
    required: bool = False
    optional: bool = False
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    held: Any = None
    goes_with: str = ""

    def read(self, value: object, where: str) -> Any:
        """Returns the value to hold. where: owner's name for errors. Raises: ConfigError with value, unit, range and the nearest name."""
        if self.optional and (value is None or value == "none"):
            return None
        try:
            found = self._converted(value)
        except UsageError as error:
            raise ConfigError(f"{self.name} of {where} is {_given(value)}: {error.message}", hint=error.hint) from None
        for _, number in found if self.kind is Kind.SHARES else (("", found),):
            if (self.least is not None and number < self.least) or (self.most is not None and number > self.most):
                raise ConfigError(f"{self.name} of {where} is {_given(value)}: it must be {self.range}", hint=self.what)
        return found

    @property
    def range(self) -> str:
        """The range in words, as `from 1 to 10 cores`; "" if every value of the kind is allowed."""
        unit = f" {self.unit}" if self.unit else ""
        low, high = (None if bound is None else shown(self.kind, bound) for bound in (self.least, self.most))
        if low is not None and high is not None:
            return f"from {low} to {high}{unit}"
        return f"at least {low}{unit}" if low is not None else f"at most {high}{unit}" if high is not None else ""

    def described(self) -> dict[str, Any]:
        """Returns the description as JSON: durations in seconds; least, most, choices and summary only if present."""
        told: dict[str, Any] = {"kind": str(self.kind), "default": self._plain(self.default)}
        unit = {Kind.DURATION: "s", Kind.SIZE: "bytes"}.get(self.kind, self.unit)
        optional = {"unit": unit, "least": self._plain(self.least), "most": self._plain(self.most)}
        optional |= {"choices": list(self.choices), "goes_with": self.goes_with, "summary": self.what}
        told |= {key: value for key, value in optional.items() if value not in (None, "", [])}
        return told | ({"required": True} if self.required else {})

    def _converted(self, value: Any) -> Any:
        """Converts the value. Raises: UsageError saying what is expected."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        text = value.strip() if isinstance(value, str) else None
        match self.kind:
            case Kind.DURATION if text is not None:
                return parse_duration_us(text)
            case Kind.DURATION if number and abs(value) <= MAX_DURATION_US / 1e6:
                return round(value * 1_000_000)
            case Kind.SIZE if text is not None:
                return parse_size(text)
            case Kind.SIZE if number and abs(value) <= MAX_SIZE_BYTES and value == math.floor(value):
                return int(value)
            case Kind.INTEGER if number and abs(value) <= _MOST_INTEGER and value == math.floor(value):
                return int(value)
            case Kind.INTEGER if text is not None and _INTEGER.fullmatch(text):
                return int(text)
            case Kind.NUMBER if text is not None or number:
                return self._number(value)
            case Kind.SWITCH if isinstance(value, bool):
                return value
            case Kind.SWITCH if text is not None and text.lower() in _YES | _NO:
                return text.lower() in _YES
            case Kind.NAME | Kind.ORDER if text is not None:
                return self._name(text)
            case Kind.NAMES if text is not None or (isinstance(value, list | tuple) and all(isinstance(word, str) for word in value)):
                words = [word.strip() for word in text.split(",")] if text is not None else value
                return tuple(self._name(word) for word in words if word)
            case Kind.SHARES:
                return _shares(value if text is None else text)
        raise UsageError(_EXPECTED[self.kind].format(name=self.name) + (f", {self.range}" if self.range else ""))

    def _number(self, value: Any) -> Any:
        is_exact = self.held is Fraction
        if is_exact and isinstance(value, str) and not _EXACT.fullmatch(value.strip()):
            raise UsageError(_EXPECTED[Kind.NUMBER])  # 1e1000000000 would be computed to its last digit
        found: Any = math.nan
        with suppress(ValueError, ZeroDivisionError, OverflowError):
            found = Fraction(value) if is_exact else float(value)
        if not abs(found) <= _MOST_NUMBER:
            raise UsageError(_EXPECTED[Kind.NUMBER])
        return found

    def _name(self, text: str) -> Any:
        if self.choices and text not in self.choices:
            raise UsageError(f"it is none of {', '.join(self.choices)}{meant(text, self.choices)}")
        if isinstance(self.held, type) and issubclass(self.held, Enum):
            return self.held(text)
        return text

    def _plain(self, value: Any) -> Any:
        """Returns the value as JSON shows it."""
        if self.kind is Kind.DURATION and isinstance(value, int | float) and not isinstance(value, bool):
            return value / 1e6
        if self.kind is Kind.SHARES:
            return dict(value) if isinstance(value, tuple) else value
        if value is None or isinstance(value, bool | int | float):
            return value
        if self.kind in {Kind.NAMES, Kind.TABLES} and isinstance(value, tuple):
            return [shown(self.kind, item) for item in value]
        return shown(self.kind, value)


def _given(value: object) -> str:
    """Returns a value for an error. Python refuses to write integers of more than 4,300 digits, which TOML can give as 0x..."""
    return f"a number of {value.bit_length()} bits" if isinstance(value, int) and value.bit_length() > 200 else repr(value)


_EXPECTED = {
    Kind.DURATION: "a duration is expected, as 90 (seconds), 15m or 12h",
    Kind.SIZE: "a size is expected, as 512M or 2G",
    Kind.INTEGER: "a whole number is expected",
    Kind.NUMBER: "a number is expected",
    Kind.SWITCH: "yes or no is expected",
    Kind.NAME: "a name is expected",
    Kind.NAMES: "names are expected, as a,b",
    Kind.SHARES: "shares are expected, as physics:3,chemistry:1 or a table of whole numbers",
    Kind.ORDER: "the name of an order is expected",
    Kind.TABLES: "{name} comes from the tables of a FILE.toml",
    Kind.OTHER: "no text can say {name}: set it in a policy file",
}


def parameters_of(kind: type) -> tuple[Parameter, ...]:
    """Returns the parameters of a dataclass in the order of its fields; any other class has none."""
    if not dataclasses.is_dataclass(kind):
        return ()
    hints = _hints(kind)
    return tuple(_parameter(item, hints.get(item.name)) for item in dataclasses.fields(kind) if item.init)


def read_values(where: str, parameters: Iterable[Parameter], given: Mapping[str, object], *, called: str = "parameter") -> dict[str, Any]:
    """Returns field -> value for these parameters. Raises: ConfigError for an unknown key (with the nearest) or a bad value."""
    known = {parameter.name: parameter for parameter in parameters}
    for key in given:
        if key not in known:
            raise unknown(f"{called} of {where}", key, known)
    for name, parameter in known.items():
        if parameter.required and name not in given:
            raise ConfigError(f"{where} needs {name}", hint=parameter.what or f"a {parameter.kind}")
    return {known[key].field: known[key].read(value, where) for key, value in given.items()}


def record_of(kind: type[Record], where: str, table: Mapping[str, object]) -> Record:
    """Builds a dataclass from a table of its fields. Raises: ConfigError."""
    values = read_values(where, parameters_of(kind), table, called="key")
    try:
        return kind(**values)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def tables_of(document: Mapping[str, object], key: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yields each table of an array with its name in errors: its number and, if it has one, its name."""
    found = document.get(key, [])
    if not isinstance(found, list) or not all(isinstance(table, Mapping) for table in found):
        raise ConfigError(f"{key} is no array of tables", hint=f"write [[{key}]], once for each")
    for number, table in enumerate(found, 1):
        name = table.get("policy" if key == "stage" else "name")
        yield f"[[{key}]] {number}" + (f" ({name})" if isinstance(name, str) and name else ""), table


def unknown(what: str, name: str, known: Iterable[str]) -> ConfigError:
    """Returns the error for an unknown name; it suggests the nearest known one, and its hint lists all."""
    names = tuple(known)
    return ConfigError(f"no {what} is called {name!r}{meant(name, names)}", hint=f"known: {', '.join(names) or 'none'}")


def shown(kind: Kind, value: Any) -> str:
    """Returns a held value as text, the way it is written."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if kind in {Kind.DURATION, Kind.SIZE} and isinstance(value, int | float):
        return _in_units(int(value), _LENGTHS, "us") if kind is Kind.DURATION else _in_units(int(value), _SIZES, "")
    if kind is Kind.SHARES:
        return ",".join(f"{name}:{share}" for name, share in value) if isinstance(value, tuple) else str(value)
    if kind is Kind.ORDER:
        return str(getattr(value, "name", value))
    if isinstance(value, Enum):
        return str(value.value)
    if kind is Kind.OTHER:
        return type(value).__name__
    if kind is Kind.TABLES and not isinstance(value, tuple):
        return str(getattr(value, "name", value))
    if isinstance(value, tuple | list):
        return ",".join(shown(kind, item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _in_units(value: int, units: tuple[tuple[str, int], ...], least: str) -> str:
    if not value:
        return "0"
    return next((f"{value // length}{unit}" for unit, length in units if not value % length), f"{value}{least}")


def _shares(value: object) -> tuple[tuple[str, int], ...]:
    """Returns (name, share), sorted by name."""
    if isinstance(value, str):
        pairs = [word.rpartition(":") for word in value.split(",") if word.strip()]
        if all(colon and name.strip() and _INTEGER.fullmatch(share.strip()) for name, colon, share in pairs):
            return tuple(sorted({name.strip(): int(share) for name, _, share in pairs}.items()))
    elif isinstance(value, Mapping) and all(isinstance(share, int) and not isinstance(share, bool) for share in value.values()):
        return tuple(sorted((str(name), share) for name, share in value.items()))
    raise UsageError(_EXPECTED[Kind.SHARES])


# -- from fields to parameters ------------------------------------------------------------------------------------------------


def _parameter(item: dataclasses.Field[Any], hint: Any) -> Parameter:
    told: FieldRules = item.metadata.get(_METADATA) or FieldRules("", "", None, None, ())
    required = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
    default = None
    if not required:
        default = item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
    options = get_args(hint) if get_origin(hint) in {Union, UnionType} else ()
    optional = NoneType in options
    if optional and len(options) == 2:
        hint = next(option for option in options if option is not NoneType)
    kind, choices = _kind(item.name, hint)
    name = item.name
    if kind in {Kind.DURATION, Kind.SIZE}:
        name = name.rpartition("_")[0]
    least = told.least if told.least is not None or kind not in {Kind.DURATION, Kind.SIZE, Kind.SHARES} else kind is Kind.SHARES
    return Parameter(
        name=name,
        field=item.name,
        kind=kind,
        what=told.what,
        unit=told.unit,
        default=default,
        required=required,
        optional=optional,
        least=None if least is None else least + 0,
        most=told.most,
        choices=told.choices or choices,
        held=hint,
    )


def _kind(name: str, hint: Any) -> tuple[Kind, tuple[str, ...]]:
    if hint is int:
        return Kind.DURATION if name.endswith("_us") else Kind.SIZE if name.endswith("_bytes") else Kind.INTEGER, ()
    if isinstance(hint, type) and issubclass(hint, Enum):
        return Kind.NAME, tuple(str(member.value) for member in hint)
    if get_origin(hint) is Literal:
        return Kind.NAME, tuple(map(str, get_args(hint)))
    plain = {float: Kind.NUMBER, Fraction: Kind.NUMBER, bool: Kind.SWITCH, str: Kind.NAME, Order: Kind.ORDER}
    tuples = {tuple[str, ...]: Kind.NAMES, tuple[tuple[str, int], ...]: Kind.SHARES}
    return plain.get(hint) or tuples.get(hint) or (Kind.TABLES if record_type(hint) is not None else Kind.OTHER), ()


def record_type(hint: Any) -> type | None:
    """Returns the dataclass in `tuple[SomeDataclass, ...]`, or None for other types."""
    arguments: tuple[Any, ...] = get_args(hint)
    first = arguments[0] if arguments else None
    if arguments[1:] == (Ellipsis,) and isinstance(first, type) and dataclasses.is_dataclass(first):
        return first
    return None


@lru_cache(maxsize=512)
def _hints(kind: type) -> Mapping[str, Any]:
    """Returns the resolved annotations of a class. Cached: resolving takes 0.3 ms and happens for every policy that is built."""
    try:
        return get_type_hints(kind)
    except NameError:  # one annotation names something imported for type checkers only: keep the others
        return {item.name: found for item in dataclasses.fields(kind) if (found := _hint(kind, item)) is not None}


def _hint(kind: type, item: dataclasses.Field[Any]) -> Any:
    try:
        alone = SimpleNamespace(__annotations__={item.name: item.type})
        names = getattr(vars(kind).get("__init__"), "__globals__", {})  # globals of the class's module, where dataclasses write the method
        return get_type_hints(alone, names)[item.name]
    except NameError:
        return None
