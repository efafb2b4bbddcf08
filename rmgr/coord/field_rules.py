"""Rules of `coord/validity.py`: the values that one field may have. Each rule is a function from a value to its fault. Pure.

A rule returns None or a `FieldFault`: the place inside the value, the value found there, and what is allowed. Rules are strict about types
(True is no number), because a record may be built by hand; they never raise, whatever they are given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from itertools import compress
from operator import attrgetter, is_not
from typing import Any, TypeAlias

from msgspec import UNSET, UnsetType

from rmgr.model.submission import MAX_PATH_BYTES, MAX_STEP_BYTES, path_fault

#: Most characters of a value in an error.
_SHOWN = 60
#: Types of immutable defaults; and a value that no field has.
_FIXED, _NOWHERE = (int, str, bytes, Enum, UnsetType, type(None)), object()
#: Most nesting, and most values, of fields that a newer release wrote into a record.
_DEPTH, _ITEMS = 8, 1000


@dataclass(frozen=True, slots=True)
class FieldFault:
    """path: of the field below the record (`command.argv[3]`). value: found there. what: is allowed there."""

    path: str
    value: object
    what: str


Rule: TypeAlias = Callable[[Any], FieldFault | None]


def shown(value: object) -> str:
    """Returns a value for an error: short and in one line, however large it is."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, str | bytes) and len(value) > _SHOWN:
        unit = "characters" if isinstance(value, str) else "bytes"
        return f"{value[:_SHOWN]!r}... ({len(value)} {unit})"
    if isinstance(value, str | bytes | int | float | None):
        return repr(value)
    return f"a {type(value).__name__}"


def at(path: str, fault: FieldFault) -> FieldFault:
    """Returns the same fault with `path` in front of its own path."""
    join = "" if not fault.path or fault.path.startswith("[") else "."
    return FieldFault(f"{path}{join}{fault.path}", fault.value, fault.what)


def whole(least: int, most: int) -> Rule:
    """Allows an integer in a range."""
    what = f"a whole number from {least} to {most}"

    def rule(value: Any) -> FieldFault | None:
        return None if type(value) is int and least <= value <= most else FieldFault("", value, what)

    return rule


def real(least: float, most: float) -> Rule:
    """Allows a number in a range, never NaN."""
    what = f"a number from {least:g} to {most:g}"

    def rule(value: Any) -> FieldFault | None:
        return None if type(value) in {int, float} and least <= value <= most else FieldFault("", value, what)

    return rule


def flag(value: Any) -> FieldFault | None:
    """Allows True and False."""
    return None if type(value) is bool else FieldFault("", value, "true or false")


def text(most: int, least: int = 0) -> Rule:
    """Allows all characters but NUL and surrogates, which neither file names nor a store's keys can have."""
    what = f"text of {least} to {most} characters without NUL"

    def rule(value: Any) -> FieldFault | None:
        if not isinstance(value, str) or not least <= len(value) <= most or "\0" in value:
            return FieldFault("", value, what)
        if not value.isascii() and not value.isprintable():  # surrogates are not printable; few other texts need the test
            try:
                value.encode()
            except UnicodeEncodeError:
                return FieldFault("", value, what)
        return None

    return rule


def file_name(least: int = 0) -> Rule:
    """Allows a name that a file can have, of at least `least` characters."""
    what = f"a file name of {least} to {MAX_PATH_BYTES} bytes, {MAX_STEP_BYTES} between two '/', in UTF-8 without NUL"

    def rule(value: Any) -> FieldFault | None:
        fits = isinstance(value, str) and len(value) >= least and (not value or not path_fault(value))
        return None if fits else FieldFault("", value, what)

    return rule


def words(pattern: str, what: str) -> Rule:
    """Allows text that matches a pattern as a whole; digits are only 0-9."""
    match = re.compile(pattern, re.ASCII).fullmatch

    def rule(value: Any) -> FieldFault | None:
        return None if isinstance(value, str) and match(value) else FieldFault("", value, what)

    return rule


def blob(most: int, least: int = 0) -> Rule:
    """Allows bytes."""
    what = f"{least} to {most} bytes"

    def rule(value: Any) -> FieldFault | None:
        return None if isinstance(value, bytes) and least <= len(value) <= most else FieldFault("", value, what)

    return rule


def member(kind: type[Enum], *some: Enum) -> Rule:
    """Allows a value of an enum, or only those in `some`."""
    allowed = frozenset(some or kind)
    what = f"one of {', '.join(sorted(str(item.value) or repr('') for item in allowed))}"

    def rule(value: Any) -> FieldFault | None:
        return None if isinstance(value, kind) and value in allowed else FieldFault("", value, what)

    return rule


def one_of(*allowed: object) -> Rule:
    """Allows these values."""
    what = f"one of {', '.join(map(repr, allowed))}"

    def rule(value: Any) -> FieldFault | None:
        return None if any(type(value) is type(item) and value == item for item in allowed) else FieldFault("", value, what)

    return rule


def optional(inner: Rule, empty: object = None) -> Rule:
    """Allows `empty`, and what `inner` allows."""

    def rule(value: Any) -> FieldFault | None:
        return None if value is empty or (type(value) is type(empty) and value == empty) else inner(value)

    return rule


def many(inner: Rule, most: int, least: int = 0) -> Rule:
    """Allows a tuple with `least` to `most` items, each as `inner` allows."""
    what = f"{least} to {most} items"

    def rule(value: Any) -> FieldFault | None:
        if not isinstance(value, tuple | list) or not least <= len(value) <= most:
            return FieldFault("", value, what)
        for number, item in enumerate(value):
            if (fault := inner(item)) is not None:
                return at(f"[{number}]", fault)
        return None

    return rule


def blobs(most_bytes: int, most: int) -> Rule:
    """Like `many(blob(most_bytes), most)`, but five times as fast for the arguments of 256 tasks."""
    each = many(blob(most_bytes), most)

    def rule(value: Any) -> FieldFault | None:
        are_bytes = type(value) is tuple and len(value) <= most and {*map(type, value)} <= {bytes}
        return None if are_bytes and max(map(len, value), default=0) <= most_bytes else each(value)

    return rule


def row(*inner: Rule) -> Rule:
    """Allows a tuple of exactly these."""
    what = f"{len(inner)} items"

    def rule(value: Any) -> FieldFault | None:
        if not isinstance(value, tuple | list) or len(value) != len(inner):
            return FieldFault("", value, what)
        for number, (item, of_item) in enumerate(zip(value, inner, strict=True)):
            if (fault := of_item(item)) is not None:
                return at(f"[{number}]", fault)
        return None

    return rule


def mapping(key: Rule, value: Rule, most: int) -> Rule:
    """Allows a dictionary with at most `most` entries."""
    what = f"at most {most} entries"

    def rule(found: Any) -> FieldFault | None:
        if not isinstance(found, Mapping) or len(found) > most:
            return FieldFault("", found, what)
        for name, item in found.items():
            fault = key(name) or value(item)
            if fault is not None:
                return at(f"[{shown(name)}]", fault)
        return None

    return rule


def extra(value: Any) -> FieldFault | None:
    """Allows what a newer release wrote (`model/version.py`): any JSON that every release can write again."""
    if value is UNSET:
        return None
    left, level = _ITEMS, [value]
    for _ in range(_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below += item.values()
            elif isinstance(item, list):
                below += item
            elif isinstance(item, int) and item.bit_length() > 64:
                return FieldFault("", item, "numbers of 64 bits")
        left -= len(below)
        if not below or left < 0:
            break
        level = below
    else:
        return FieldFault("", value, f"values at most {_DEPTH} deep")
    return None if left >= 0 and isinstance(value, dict) else FieldFault("", value, f"at most {_ITEMS} fields of a newer release")


@dataclass(frozen=True, slots=True)
class _FieldColumns:
    """The fields of one kind of record in columns, as they are checked.

    values: a record -> its fields, in order. usual: the default of each field if it is immutable and its rule allows it. Most
    fields of most records have their default, and comparing identities costs a tenth of a rule.
    """

    values: Callable[[object], tuple[object, ...]]
    usual: tuple[object, ...]
    rules: tuple[Rule, ...]
    names: tuple[str, ...]
    indices: range

    @classmethod
    def of(cls, kind: type, rules: tuple[tuple[str, Rule], ...]) -> _FieldColumns:
        defaults = _defaults(kind)
        fixed = {name for name, value in defaults.items() if isinstance(value, _FIXED) or value == ()}
        usual = [defaults[name] if name in fixed else _NOWHERE for name, _ in rules]
        usual = [_NOWHERE if rule(value) is not None else value for value, (_, rule) in zip(usual, rules, strict=True)]
        names = tuple(name for name, _ in rules)
        values = attrgetter(*names) if len(names) > 1 else lambda record: tuple(getattr(record, name) for name in names)
        return cls(values, tuple(usual), tuple(rule for _, rule in rules), names, range(len(names)))


def _defaults(kind: type) -> dict[str, object]:
    """Returns the defaults of a record's fields. Every command asks for some: `inspect.signature` would take four times as long."""
    if is_dataclass(kind):
        return {one.name: one.default for one in fields(kind)}
    defaults: tuple[object, ...] = kind.__struct_defaults__  # type: ignore[attr-defined]  # of the last fields
    return dict(zip(reversed(kind.__struct_fields__), reversed(defaults), strict=False))  # type: ignore[attr-defined]


class Rulebook:
    """The rules of records: field by field, and of all fields together. everywhere: of fields with the same meaning in every record."""

    def __init__(self, **everywhere: Rule) -> None:
        self._everywhere = everywhere
        self._fields: dict[type, tuple[tuple[str, Rule], ...]] = {}
        self._wholes: dict[type, tuple[Rule, ...]] = {}
        self.asked: dict[type, _FieldColumns] = {}

    def add(self, kind: type, /, *together: Rule, **fields: Rule) -> None:
        """Adds rules of a record. together: of the whole record, checked once each field alone is valid."""
        common = {name: rule for name, rule in self._everywhere.items() if hasattr(kind, name)}
        self._fields[kind] = (*common.items(), *fields.items())
        self._wholes[kind] = together

    def kinds(self) -> dict[type, frozenset[str]]:
        """Returns the records that have rules, and the fields of each with a rule."""
        return {kind: frozenset(name for name, _ in rules) for kind, rules in self._fields.items()}

    def of(self, kind: type) -> Rule:
        """Allows a valid record of that kind."""

        def rule(value: Any) -> FieldFault | None:
            return self.fault(value) if isinstance(value, kind) else FieldFault("", value, f"a {kind.__name__}")

        return rule

    def knows(self, record: object) -> bool:
        """Returns whether there are rules for the record."""
        return self._kind(record) is not None

    def fault(self, record: object) -> FieldFault | None:
        """Returns the first faulty field. Cost: 0.02 us per field with its default, 0.05-0.2 us per other plain field."""
        kind = type(record) if type(record) in self._fields else self._kind(record)
        if kind is None:
            return FieldFault("", record, "a record that rmgr writes")
        columns = self.asked.get(kind)
        if columns is None:
            columns = self.asked[kind] = _FieldColumns.of(kind, self._fields[kind])
        values = columns.values(record)
        for index in compress(columns.indices, map(is_not, values, columns.usual)):
            if (fault := columns.rules[index](values[index])) is not None:
                return at(columns.names[index], fault)
        for rule in self._wholes[kind]:
            if (fault := rule(record)) is not None:
                return fault
        return None

    def _kind(self, record: object) -> type | None:
        """Returns the record's class, or a base with rules (for a block with fields of a newer release)."""
        return next((kind for kind in type(record).__mro__ if kind in self._fields), None)


#: Filled by `validity.py`.
BOOK = Rulebook(format=whole(1, 1), newer=extra)
