"""Interfaces of functions that servers offer: `[[function]]` in TOML, checked key by key; the same tables travel as canonical JSON.

```toml
[[function]]
name = "linsolve"
version = 1
call = "solvers:linsolve"                # only for the server, like time, memory and users
arguments = ["in A float64[n,n]", "in b float64[n]", "out x float64[n]"]
operations = "2/3*n**3 + 2*n**2"         # amount of computing; 0 = unknown
bytes = "8*n**2 + 16*n"                  # both ways together; default: by the shapes
idempotent = true                        # may run twice
time = "10m"                             # of one call; default: its caller's
memory = "2G"
users = ["ana"]                          # default: all
```

An argument is `in`, `out` or `inout`, a name, and a type: int, float, str, bytes, or a type of numbers with its shape. Each dimension is a
name, a number, or an expression. A name is a size; a dimension or scalar of an input binds it.

Formulas for the cost of a call, `2/3*n**3 + 2*n**2`, have numbers, names of sizes, `+ - * / // % **`, signs, parentheses, min max sqrt
log2 ceil, with Python's meaning. Python's grammar parses them, and only this file evaluates them. Any server may offer
formulas, which clients and gateways compute, so length, depth, exponents and every intermediate value are bounded.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
import operator
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from rmgr.errors import UNREADABLE_TEXT, ConfigError, NotFound, RmgrError, UsageError, meant, nearest
from rmgr.model.units import parse_duration_us, parse_size

#: dtype -> bytes of an element. Little-endian on the wire.
ITEM_BYTES = {
    "bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "float16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip
SCALARS = ("int", "float", "str", "bytes")
MOST_ARGUMENTS, MOST_DIMENSIONS, MOST_FUNCTIONS = 64, 8, 1000
#: Most bytes of one interface as it travels; and of all of a server, which are in each report of a gateway.
MOST_BYTES, ALL_BYTES = 16 * 1024, 256 * 1024
#: Name, among the sizes that a client sends, for the bytes of its texts, which no size of an interface counts.
LENGTHS = "+bytes"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_CALL = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII)
_ARGUMENT = re.compile(r"(in|out|inout)\s+([A-Za-z_]\w{0,63})\s+([a-z]\w*)\s*(?:\[([^\]]*)\])?", re.ASCII)
H = TypeVar("H")
_HOW = 'arguments look like "in A float64[n,n]", "inout b float64[n]", "in k int", "out text str"'


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument. shape: None for a scalar (`SCALARS`); () for an array of one element."""

    direction: Literal["in", "out", "inout"]
    name: str
    type: str
    shape: tuple[Expression, ...] | None

    @property
    def is_input(self) -> bool:
        return self.direction != "out"

    @property
    def is_output(self) -> bool:
        return self.direction != "in"

    def __str__(self) -> str:
        return f"{self.direction} {self.name} {self.typed}"

    @property
    def typed(self) -> str:
        """The type with its shape, as `float64[n,n]`."""
        return self.type if self.shape is None else f"{self.type}[{','.join(dimension.text for dimension in self.shape)}]"

    def size_bytes(self, sizes: Mapping[str, Number]) -> int:
        """Returns the bytes of one transfer; 0 for str and bytes. Raises: UsageError for sizes that give no valid shape."""
        if self.shape is None:
            return 8 if self.type in ("int", "float") else 0
        size = ITEM_BYTES[self.type]
        for dimension in self.shape:
            size *= dimension.cost(sizes)
        return size


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """What clients, gateways and servers agree on. bytes: None = by the shapes."""

    name: str
    version: int
    arguments: tuple[Argument, ...]
    operations: Expression
    bytes: Expression | None = None
    idempotent: bool = False

    @property
    def key(self) -> str:
        """Name and version, as `linsolve@1`."""
        return f"{self.name}@{self.version}"

    @property
    def inputs(self) -> tuple[Argument, ...]:
        return tuple(one for one in self.arguments if one.is_input)

    @property
    def outputs(self) -> tuple[Argument, ...]:
        return tuple(one for one in self.arguments if one.is_output)

    @property
    def sizes(self) -> tuple[str, ...]:
        """Names that arguments bind, in order."""
        return tuple(dict.fromkeys(name for one in self.inputs for name in _bound_by(one)))

    def cost(self, sizes: Mapping[str, Number], lengths: int = 0) -> Cost:
        """Returns the cost of a call. lengths: bytes of its str and bytes inputs. Raises: UsageError: missing size, or invalid cost."""
        missing = next((name for name in self.sizes if name not in sizes), None)
        if missing is not None:
            raise UsageError(f"{self.key} needs the size {missing}", hint=f"sizes: {', '.join(self.sizes)}")
        if self.bytes is not None:
            return Cost(self.operations.cost(sizes), self.bytes.cost(sizes))
        ways = lengths + sum(one.size_bytes(sizes) * (one.is_input + one.is_output) for one in self.arguments)
        if ways > LARGEST:
            raise UsageError(f"arguments of {self.key} have {ways:.3g} bytes: a cost cannot be above 1e18")
        return Cost(self.operations.cost(sizes), ways)

    def table(self) -> dict[str, Any]:
        """Returns the table as TOML or JSON have it; `interface_of` reads it."""
        table: dict[str, Any] = {"name": self.name, "version": self.version, "arguments": [str(one) for one in self.arguments]}
        table |= {"operations": self.operations.text, "idempotent": self.idempotent}
        return table | ({} if self.bytes is None else {"bytes": self.bytes.text})

    @property
    def digest(self) -> str:
        """Equal for equal interfaces, however they are spaced. Interfaces of one name and version with two digests are odd: not mixed."""
        return hashlib.sha256(repr(sorted(self.table().items())).encode()).hexdigest()


class Cost(NamedTuple):
    """Cost of one call: operations, and bytes both ways."""

    operations: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function that a server runs. call: "module:callable". time_us, memory_bytes: 0 = no limit of its own. users: () = all."""

    interface: Interface
    call: str
    time_us: int = 0
    memory_bytes: int = 0
    users: tuple[str, ...] = ()


def read_functions(text: str, file: str) -> tuple[Function, ...]:
    """Reads the functions of a TOML text. Raises: ConfigError naming file, line, column, and what is expected. Cost: O(length)."""
    try:
        document = tomllib.loads(text)
    except UNREADABLE_TEXT as error:
        raise ConfigError(f"{file} is no TOML: {error}") from error
    tables = document.pop("function", [])
    if document:
        raise ConfigError(f"{file}: nothing is called {next(iter(document))!r:.80} here", hint="it has [[function]] tables alone")
    if not isinstance(tables, list) or not tables or len(tables) > MOST_FUNCTIONS:
        raise ConfigError(f"{file} has no [[function]] tables, or more than {MOST_FUNCTIONS}")
    functions: list[Function] = []
    for number, table in enumerate(tables):
        try:
            functions.append(_function(table))
            twice = next((one for one in functions[:-1] if one.interface.key == functions[-1].interface.key), None)
            if twice is not None:
                raise _Wrong("version", f"{twice.interface.key} is there twice")
        except _Wrong as wrong:
            line, column = _place(text, number, wrong)
            raise ConfigError(f"{file}, line {line}, column {column}: {wrong.message}", hint=wrong.hint) from None
    count = sum(len(encode_interface(one.interface)) for one in functions)
    if count > ALL_BYTES:
        raise ConfigError(f"the interfaces of {file} have {count:,} bytes, {ALL_BYTES:,} are the most", hint="two servers may share them")
    return tuple(functions)


def interface_of(table: object, where: str) -> Interface:
    """Returns the interface of a peer's table. Raises: ConfigError that begins with `where`."""
    try:
        return _interface(table, _SENT)
    except _Wrong as wrong:
        raise ConfigError(f"{where}: {wrong.message}", hint=wrong.hint) from None


def encode_interface(interface: Interface) -> bytes:
    """Returns the interface's table as canonical JSON: two interfaces are equal if their bytes are."""
    return json.dumps(interface.table(), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def decode_interface(text: bytes) -> Interface:
    """Reads an interface. Raises: ConfigError if it is invalid, or not in the form of `encode_interface`."""
    if len(text) > MOST_BYTES:
        raise ConfigError(f"an interface: {len(text):,} bytes, {MOST_BYTES:,} are the most")
    try:
        table = json.loads(text)
    except UNREADABLE_TEXT:
        raise ConfigError("an interface: it is no JSON") from None
    made = interface_of(table, "an interface")
    if encode_interface(made) != text:
        raise ConfigError(f"an interface: {made.key} is not in its canonical form")
    return made


@lru_cache(maxsize=4096)
def readable(text: bytes) -> Interface | str:
    """Returns the interface of `decode_interface`, or its error message."""
    try:
        return decode_interface(text)
    except ConfigError as error:
        return error.message


def offers(holders: Iterable[tuple[H, Iterable[bytes]]]) -> dict[str, list[tuple[Interface, list[H]]]]:
    """Returns which holders offer which interface, by name@version; leaves out unreadable ones.

    Only the first of a list counts, the others are odd: most holders offer it, or it came first among equals. Cost: O(interfaces).
    """
    found: dict[str, dict[bytes, tuple[Interface, list[H]]]] = {}
    for holder, texts in holders:
        for text in dict.fromkeys(texts):
            interface = readable(text)
            if isinstance(interface, Interface):
                found.setdefault(interface.key, {}).setdefault(text, (interface, []))[1].append(holder)
    return {key: sorted(several.values(), key=lambda one: -len(one[1])) for key, several in found.items()}


def named(name: str, known: Iterable[Interface]) -> Interface:
    """Returns the interface for `linsolve` (its highest version) or `linsolve@1`. Raises: NotFound, with the nearest name."""
    by_name: dict[str, Interface] = {}
    for one in sorted(known, key=lambda one: (one.version, one.digest)):
        by_name[one.key] = by_name[one.name] = one
    if name in by_name:
        return by_name[name]
    names = sorted({one.name for one in by_name.values()})
    close = meant(name, by_name)
    raise NotFound(f"no server offers a function {name[:80]!r}{close}", hint=f"rmgr functions; known: {', '.join(names) or 'none'}")


def function_line(interface: Interface, servers: Sequence[str]) -> str:
    """Returns the line that `rmgr functions` prints."""
    idempotent = "  idempotent" if interface.idempotent else ""
    cost = f"{interface.operations.text} operations{idempotent}"
    return f"{interface.name} {interface.version}  {', '.join(map(str, interface.arguments))}  {cost}  {' '.join(servers)}".rstrip()


# -- reading ----------------------------------------------------------------------------------------------------------------------

_SENT = ("name", "version", "arguments", "operations", "bytes", "idempotent")
_OWN = ("call", "time", "memory", "users")


class _Wrong(Exception):
    """An invalid table. key: in the table. text, offset: the wrong value, and the position in it."""

    def __init__(self, key: str, message: str, *, hint: str = "", text: str = "", offset: int = 0) -> None:
        super().__init__(message)
        self.key, self.message, self.hint, self.text, self.offset = key, message, hint, text, offset


def _function(table: object) -> Function:
    interface = _interface(table, (*_SENT, *_OWN))
    assert isinstance(table, dict)
    call, users = _text(table, "call", ""), table.get("users", [])
    if not _CALL.fullmatch(call):
        raise _Wrong("call", f"call is {call!r:.80}", hint='call = "module:callable" is needed', text=call)
    if not isinstance(users, list) or not all(isinstance(user, str) and user for user in users):
        raise _Wrong("users", "users is a list of names")
    time_us, memory_bytes = (_measured(table, key, read) for key, read in (("time", parse_duration_us), ("memory", parse_size)))
    return Function(interface=interface, call=call, time_us=time_us, memory_bytes=memory_bytes, users=tuple(users))


def _measured(table: Mapping[str, Any], key: str, read: Any) -> int:
    text = _text(table, key, "0")
    try:
        return int(read(text))
    except RmgrError as error:
        raise _Wrong(key, error.message, hint=error.hint, text=text) from None


def _interface(table: object, keys: Sequence[str]) -> Interface:
    if not isinstance(table, dict):
        raise _Wrong("", "a table is expected")
    strange = next((str(key) for key in table if key not in keys), None)
    if strange is not None:
        raise _Wrong(strange, f"a function has no {strange!r:.80}", hint=nearest(strange, keys))
    name, version, idempotent = _text(table, "name", ""), table.get("version", 1), table.get("idempotent", False)
    if not _NAME.fullmatch(name):
        raise _Wrong("name", f"{name!r:.80} cannot be the name of a function", hint="at most 64 letters, digits and '_'", text=name)
    if type(version) is not int or not 1 <= version <= 1_000_000:
        raise _Wrong("version", f"version is {version!r:.40}", hint="a whole number from 1 on is expected")
    if not isinstance(idempotent, bool):
        raise _Wrong("idempotent", f"idempotent is {idempotent!r:.40}", hint="true or false")
    written = table.get("arguments", [])
    if not isinstance(written, list) or len(written) > MOST_ARGUMENTS or not all(isinstance(one, str) for one in written):
        raise _Wrong("arguments", f"arguments is a list of at most {MOST_ARGUMENTS} texts", hint=_HOW)
    arguments = tuple(_argument(one) for one in written)
    twice = next((one.name for at, one in enumerate(arguments) if one.name in {other.name for other in arguments[:at]}), None)
    if twice is not None:
        raise _Wrong("arguments", f"two arguments are called {twice}")
    operations = _expression(table, "operations", "0")
    size = _expression(table, "bytes", "0") if "bytes" in table else None
    interface = Interface(
        name=name, version=version, arguments=arguments, operations=operations, bytes=size, idempotent=idempotent
    )
    bound = set(interface.sizes)
    for one, text in zip(arguments, written, strict=True):
        for dimension in one.shape or ():
            _check_bound(dimension, bound, "arguments", text)
    _check_bound(operations, bound, "operations", _text(table, "operations", ""))
    if size is not None:
        _check_bound(size, bound, "bytes", _text(table, "bytes", ""))
    count = len(encode_interface(interface))
    if count > MOST_BYTES:
        raise _Wrong("arguments", f"the interface of {name} has {count:,} bytes, {MOST_BYTES:,} are the most")
    return interface


def _argument(text: str) -> Argument:
    found = _ARGUMENT.fullmatch(text.strip())
    if found is None:
        raise _Wrong("arguments", f"{text!r:.80} is no argument", hint=_HOW, text=text)
    direction, name, kind, inside = found.groups()
    at = text.index(text.strip())
    if inside is None and kind in SCALARS:
        return Argument(direction, name, kind, None)  # type: ignore[arg-type]  # the pattern has these three
    if kind not in ITEM_BYTES:
        types = ", ".join((*SCALARS, *ITEM_BYTES))
        raise _Wrong("arguments", f"{kind} is no type of {name}", hint=types, text=text, offset=at + found.start(3))
    if inside is None:
        hint = f"{kind}[n], or {kind}[] of one element"
        raise _Wrong("arguments", f"{kind} is no array without its shape", hint=hint, text=text, offset=at + found.start(3))
    shape: list[Expression] = []
    offset = at + found.start(4)
    for part in inside.split(",") if inside.strip() else ():
        try:
            shape.append(parse(part))
        except ExpressionError as error:
            raise _Wrong("arguments", error.message, hint=error.hint, text=text, offset=offset + error.column - 1) from None
        offset += len(part) + 1
    if len(shape) > MOST_DIMENSIONS:
        raise _Wrong("arguments", f"{name} has more than {MOST_DIMENSIONS} dimensions", text=text)
    return Argument(direction, name, kind, tuple(shape))  # type: ignore[arg-type]


def _bound_by(argument: Argument) -> tuple[str, ...]:
    """Returns the sizes that a value of the argument binds."""
    if argument.shape is None:
        return (argument.name,) if argument.type in ("int", "float") else ()
    return tuple(dimension.text for dimension in argument.shape if (dimension.text,) == dimension.names)


def _check_bound(expression: Expression, bound: set[str], key: str, text: str) -> None:
    free = next((name for name in expression.names if name not in bound), None)
    if free is not None:
        raise _Wrong(
            key, f"nothing binds the size {free}", hint="a dimension or scalar of an input must: in A float64[n,n], in n int",
            text=text, offset=max(text.find(free, text.find("[") + 1), 0),
        )  # fmt: skip


def _expression(table: Mapping[str, Any], key: str, default: str) -> Expression:
    text = _text(table, key, default)
    try:
        return parse(text)
    except ExpressionError as error:
        raise _Wrong(key, f"{key}: {error.message}", hint=error.hint, text=text, offset=error.column - 1) from None


def _text(table: Mapping[str, Any], key: str, default: str) -> str:
    """Returns a text, or an integer as text."""
    value = table.get(key, default)
    if type(value) is int and key not in ("name", "call") and abs(value) < 10**MOST_CHARACTERS:
        return str(value)
    if not isinstance(value, str):
        raise _Wrong(key, f"{key} is {value!r:.40}, a text is expected")
    return value


def _place(text: str, number: int, wrong: _Wrong) -> tuple[int, int]:
    """Returns line and column of the fault in table `number`, as near as its text can be found."""
    lines = text.splitlines()
    heads = [at for at, line in enumerate(lines) if re.match(r"\s*\[\[\s*[\"']?function[\"']?\s*\]\]", line)]
    first = heads[number] if number < len(heads) else 0
    end = heads[number + 1] if number + 1 < len(heads) else len(lines)
    key = next((at for at in range(first, end) if re.match(rf"\s*[\"']?{re.escape(wrong.key)}[\"']?\s*=", lines[at])), first)
    for at in range(key, end) if wrong.text else ():
        begin = lines[key].find("=") + 1 if at == key else 0
        column = lines[at].find(wrong.text, begin)
        if column >= 0:
            return at + 1, column + wrong.offset + 1
    return key + 1, len(lines[key]) - len(lines[key].lstrip()) + 1 if lines else 1


# -- formulas ------------------------------------------------------------------------------------------------------------------


MOST_CHARACTERS, DEEPEST, LARGEST_EXPONENT = 200, 20, 8
#: Largest cost, and largest intermediate value.
LARGEST, LARGEST_ON_THE_WAY = 10**18, 10**36

Number: TypeAlias = int | float
#: A number, a name, or an operation on others.
_Tree: TypeAlias = "int | float | str | tuple[str, tuple[_Tree, ...]]"

_FUNCTIONS: dict[str, tuple[Callable[..., Number], int, int]] = {  # name: (function, fewest arguments, most arguments)
    "min": (min, 2, 8), "max": (max, 2, 8), "sqrt": (math.sqrt, 1, 1), "log2": (math.log2, 1, 1), "ceil": (math.ceil, 1, 1),
}  # fmt: skip
_OPERATORS: dict[str, Callable[[Number, Number], Number]] = {
    "Add": operator.add, "Sub": operator.sub, "Mult": operator.mul, "Div": operator.truediv, "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
}  # fmt: skip


class ExpressionError(UsageError):
    """Text that does not parse. column: from 1."""

    def __init__(self, text: str, column: int, why: str) -> None:
        super().__init__(f"{text!r:.80}, column {column}: {why}", hint="numbers, sizes, + - * / // % **, min max sqrt log2 ceil")
        self.column = column


@dataclass(frozen=True, slots=True)
class Expression:
    """text: in one canonical spacing and bracketing. names: the sizes that it needs, ascending."""

    text: str
    names: tuple[str, ...]
    _tree: _Tree

    def value(self, sizes: Mapping[str, Number]) -> Number:
        """Returns the value. Raises: UsageError: no finite number, an exponent above 8, a value above 1e36; KeyError: missing size."""
        try:
            return _value(self._tree, sizes)
        except (ArithmeticError, ValueError) as error:
            raise UsageError(f"{self.text} has no value with {_told(sizes, self.names)}: {error}") from None

    def cost(self, sizes: Mapping[str, Number]) -> int:
        """Returns the value, rounded to an integer. Raises: as `value`; UsageError below 0 and above 1e18."""
        value = self.value(sizes)
        if not 0 <= value <= LARGEST:
            what = "negative" if value < 0 else "above 1e18"
            raise UsageError(f"{self.text} is {value:g} with {_told(sizes, self.names)}: a cost cannot be {what}")
        return round(value)


def parse(text: str) -> Expression:
    """Parses an expression. Raises: ExpressionError, which names the column. Cost: O(length)."""
    if len(text) > MOST_CHARACTERS:
        raise ExpressionError(text, MOST_CHARACTERS + 1, f"an expression has at most {MOST_CHARACTERS} characters")
    strange = next((at for at, sign in enumerate(text) if not (sign == " " or "!" <= sign <= "~")), None)
    if strange is not None:
        raise ExpressionError(text, strange + 1, f"{text[strange]!r} means nothing here")
    try:
        parsed = ast.parse(text.lstrip(), mode="eval").body
    except SyntaxError as error:
        raise ExpressionError(text, (error.offset or 1) + len(text) - len(text.lstrip()), error.msg) from None
    except (ValueError, RecursionError, MemoryError):
        raise ExpressionError(text, 1, "it cannot be read") from None
    names: set[str] = set()
    tree = _checked(parsed, text, names, 0)
    return Expression(re.sub(r" (\*\*|//|[*/%]) ", r"\1", ast.unparse(parsed)), tuple(sorted(names)), tree)


def _checked(node: ast.expr, text: str, names: set[str], depth: int) -> _Tree:
    """Returns the node as a tree of allowed operations. depth: of brackets, signs and powers; a chain of sums is flat."""

    def error(why: str) -> ExpressionError:
        return ExpressionError(text, node.col_offset + 1 + len(text) - len(text.lstrip()), why)

    if depth > DEEPEST:
        raise error(f"an expression is at most {DEEPEST} deep")
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            if not value <= LARGEST_ON_THE_WAY:
                raise error("a number is at most 1e36")
            return value
        case ast.Name(id=name) if name not in _FUNCTIONS:
            names.add(name)
            return name
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=operand):
            inner = _checked(operand, text, names, depth + 1)
            return ("Sub" if isinstance(sign, ast.USub) else "Add", (0, inner))
        case ast.BinOp(op=op, left=left, right=right) if isinstance(op, ast.Pow) or type(op).__name__ in _OPERATORS:
            deeper = depth + isinstance(op, ast.Pow)
            return (type(op).__name__, (_checked(left, text, names, deeper), _checked(right, text, names, depth + 1)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            _, least, most = _FUNCTIONS[name]
            if not least <= len(args) <= most:
                raise error(f"{name} takes {least if least == most else f'{least} to {most}'}, not {len(args)}")
            return (name, tuple(_checked(part, text, names, depth + 1) for part in args))
        case _:
            raise error(f"{ast.unparse(node)[:40]} is not allowed")


def _value(tree: _Tree, sizes: Mapping[str, Number]) -> Number:
    if isinstance(tree, str):
        return _bounded(sizes[tree])
    if not isinstance(tree, tuple):
        return tree
    name, parts = tree
    values = [_value(part, sizes) for part in parts]
    if name in _FUNCTIONS:
        return _bounded(_FUNCTIONS[name][0](*values))
    left, right = values
    return _bounded(_power(left, right) if name == "Pow" else _OPERATORS[name](left, right))


def _power(base: Number, exponent: Number) -> Number:
    if abs(exponent) > LARGEST_EXPONENT:
        raise ValueError(f"an exponent of {exponent:g}, {LARGEST_EXPONENT} is the largest")
    power = base**exponent
    if isinstance(power, complex):
        raise ValueError(f"{base:g} ** {exponent:g} is no real number")  # noqa: TRY004 - as of sqrt(-1)
    return power


def _bounded(value: Number) -> Number:
    if not abs(value) <= LARGEST_ON_THE_WAY:  # neither NaN
        raise ValueError("it is too large, or no number")
    return value


def _told(sizes: Mapping[str, Number], names: tuple[str, ...]) -> str:
    return ", ".join(f"{name} = {sizes[name]}" for name in names if name in sizes) or "nothing"
