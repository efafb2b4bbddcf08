"""The interface of a function that servers offer: what goes in and out, what a call costs, and how values become bytes.

    [[function]]
    name = "linsolve"
    version = 1
    call = "rmgr.runner.python.shipped:linsolve"
    arguments = ["in A float64[n,n]", "in b float64[n]", "out x float64[n]"]
    operations = "2/3*n**3 + 2*n**2"
    idempotent = true

One module serves client, gateway and server: they compute the same sizes and costs from the same text, and refuse the same things.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from rmgr.errors import UNREADABLE_TEXT, UsageError, ValueTooLarge
from rmgr.model.calls.formula import Formula, Number, parse

#: Of the encoded arguments, and the encoded answer, of one call.
MAX_BYTES = 1 << 30
PIECE_BYTES = 1 << 20
MOST_ARGUMENTS, MOST_DIMS, _MOST_NAME, _MOST_TEXT, _MOST_HEADER = 64, 8, 63, 16_384, 65_536
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DTYPE = re.compile(r"bool|u?int(?:8|16|32|64)|float(?:32|64)|complex(?:64|128)")
_ARGUMENT = re.compile(r"(?P<mode>\w+)\s+(?P<name>\w+)\s+(?P<kind>\w+)\s*(?:\[(?P<dims>[^\]]*)\])?")
_SCALARS = frozenset({"int", "float", "str", "bytes"})
_KEYS = {"name", "version", "call", "arguments", "operations", "bytes", "idempotent", "time", "memory", "users"}
_SIZES = {"bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "float32": 4, "complex128": 16}
_ALIGN = 64


@dataclass(frozen=True, slots=True)
class Argument:
    """One of them. mode: in, out, inout. kind: a dtype where dims are, else int, float, str or bytes. dims: names of sizes, or numbers."""

    mode: str
    name: str
    kind: str
    dims: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.mode} {self.name} {self.kind}{f'[{chr(44).join(self.dims)}]' if self.dims else ''}"

    def size(self, sizes: Mapping[str, Number]) -> int:
        """Bytes of an array of these sizes; 8 of a number, 0 of text, whose length nobody knows before."""
        if not self.dims:
            return 8 if self.kind in ("int", "float") else 0
        return math.prod(int(sizes[dim]) if not dim.isdigit() else int(dim) for dim in self.dims) * _SIZES.get(self.kind, 8)


class Cost(NamedTuple):
    """Of a call. bytes: both ways."""

    operations: int
    bytes: int


class Packed(NamedTuple):
    """Arguments on their way. sizes: JSON. size: bytes. pieces: at most 1 MiB each, anew each time."""

    sizes: str
    size: int
    pieces: Callable[[], Iterator[bytes | memoryview]]


@dataclass(frozen=True)
class Interface:
    """A function as it is offered. time_s, memory_bytes: limits of a call, 0 = none. users: who may call it, () = everybody."""

    name: str
    version: int
    call: str
    arguments: tuple[Argument, ...]
    operations: str
    bytes: str = ""
    idempotent: bool = False
    time_s: float = 0.0
    memory_bytes: int = 0
    users: tuple[str, ...] = ()

    # -- texts -------------------------------------------------------------------------------------------------------------------

    @classmethod
    def from_table(cls, table: Mapping[str, Any], where: str = "function") -> Interface:
        """From a `[[function]]` table. Raises: UsageError that names it, and what is wrong."""
        for key in table:
            if key not in _KEYS:
                close = difflib.get_close_matches(key, sorted(_KEYS), 1)
                raise UsageError(f"{where}: unknown key {key!r}", hint=f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(_KEYS))}")
        from rmgr.model.base.units import duration_us_of, parse_duration_us, parse_size, size_of

        time, memory = table.get("time", 0), table.get("memory", 0)
        try:
            made = cls(
                _typed(table, "name", str),
                _typed(table, "version", int, 1),
                _typed(table, "call", str),
                tuple(_argument(text) for text in _texts(table, "arguments")),
                _formula_text(table, "operations"),
                _formula_text(table, "bytes"),
                _typed(table, "idempotent", bool, False),
                (parse_duration_us(time) if isinstance(time, str) else duration_us_of(time)) / 1e6,
                parse_size(memory) if isinstance(memory, str) else size_of(memory),
                tuple(_texts(table, "users", needed=False)),
            )
            made.check()
        except UsageError as error:
            name = table.get("name")
            raise UsageError(f"{where}{f' {name}' if isinstance(name, str) else ''}: {error.message}", hint=error.hint) from None
        return made

    @classmethod
    def from_text(cls, text: bytes) -> Interface:
        """From its canonical JSON, as others send it. Raises: UsageError."""
        if len(text) > _MOST_TEXT:
            raise UsageError(f"an interface of {len(text):,} bytes: at most {_MOST_TEXT:,}")
        try:
            table = json.loads(text)
        except UNREADABLE_TEXT:
            raise UsageError("an interface that is no JSON") from None
        if not isinstance(table, dict):
            raise UsageError("an interface that is no table")
        made = cls.from_table(table)
        if made.text != text:
            raise UsageError(f"the interface of {made.id} is not in its canonical form")
        return made

    @cached_property
    def text(self) -> bytes:
        """Canonical JSON, without what only its server needs: where the function is, its limits."""
        table = {
            "name": self.name,
            "version": self.version,
            "call": self.call,
            "arguments": [str(argument) for argument in self.arguments],
            "operations": self.operations,
            "bytes": self.bytes,
            "idempotent": self.idempotent,
            "users": list(self.users),
        }
        return json.dumps(table, sort_keys=True, separators=(",", ":")).encode()

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of `text`."""
        return hashlib.sha256(self.text).digest()

    @property
    def id(self) -> str:
        """`linsolve@1`."""
        return f"{self.name}@{self.version}"

    def line(self) -> str:
        """For people: what `rmgr functions` prints of it."""
        arguments = ", ".join(map(str, self.arguments)) or "no arguments"
        again = "  idempotent" if self.idempotent else ""
        return f"{self.name} {self.version}  {arguments}  {self.operations} operations{again}"

    # -- sizes and costs -----------------------------------------------------------------------------------------------------

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """What a caller gives, in order."""
        return tuple(argument for argument in self.arguments if argument.mode != "out")

    @property
    def outputs(self) -> tuple[Argument, ...]:
        """What comes back, in order."""
        return tuple(argument for argument in self.arguments if argument.mode != "in")

    def check(self) -> None:
        """Raises: UsageError for what no function may be."""
        if not _NAME.fullmatch(self.name) or len(self.name) > _MOST_NAME:
            raise UsageError(f"{self.name!r} is no name of a function", hint="letters, digits and '_', a letter first, at most 63")
        if not 1 <= self.version < 1 << 31:
            raise UsageError(f"version {self.version}: a whole number from 1 on")
        if not re.fullmatch(r"[\w.]+:[\w.]+", self.call):
            raise UsageError(f"call = {self.call!r} names no function", hint='call = "module:function"')
        if len(self.arguments) > MOST_ARGUMENTS:
            raise UsageError(f"{len(self.arguments)} arguments: at most {MOST_ARGUMENTS}")
        names = [argument.name for argument in self.arguments]
        twice = next((name for name in names if names.count(name) > 1), "")
        if twice:
            raise UsageError(f"two arguments are named {twice}")
        known = self._bound()
        for argument in self.arguments:
            for dim in argument.dims:
                if not dim.isdigit() and dim not in known:
                    raise UsageError(f"{argument}: nothing that goes in says how large {dim} is", hint=f"a dimension {dim}, or in {dim} int")
        for name, formula in (("operations", self._operations), ("bytes", self._bytes)):
            unknown = sorted(formula.sizes - known) if formula is not None else []
            if unknown:
                raise UsageError(f"{name} = {formula.text!r}: nothing that goes in says how large {unknown[0]} is" if formula else name)
        if not self.bytes and not self.outputs and not self.inputs:
            return

    def _bound(self) -> set[str]:
        dims = {dim for argument in self.inputs for dim in argument.dims if not dim.isdigit()}
        return dims | {argument.name for argument in self.inputs if argument.kind in ("int", "float") and not argument.dims}

    @cached_property
    def _operations(self) -> Formula:
        return parse(self.operations)

    @cached_property
    def _bytes(self) -> Formula | None:
        return parse(self.bytes) if self.bytes else None

    def cost(self, sizes: Mapping[str, Any]) -> Cost:
        """Operations, and bytes both ways. Raises: UsageError for a size that is missing or no number, and a cost that cannot be."""
        numbers = {name: _number(name, sizes[name]) for name in self._bound() if name in sizes}
        unknown = sorted(sizes.keys() - self._bound() - {"bytes"})
        if unknown:
            raise UsageError(f"{self.id} has no size {unknown[0]}", hint=f"it has {', '.join(sorted(self._bound())) or 'none'}")
        operations = self._operations.value(numbers)
        if self._bytes is not None:
            return Cost(operations, self._bytes.value(numbers))
        missing = sorted({dim for argument in self.arguments for dim in argument.dims if not dim.isdigit()} - numbers.keys())
        if missing:
            raise UsageError(f"{self.id} needs {', '.join(missing)}", hint=f"--{missing[0]} NUMBER")
        both = sum(argument.size(numbers) * (1 + (argument.mode == "inout")) for argument in self.arguments)
        return Cost(operations, both + int(_number("bytes", sizes.get("bytes", 0))))

    # -- values on their way ---------------------------------------------------------------------------------------------------

    def pack(self, values: Sequence[Any]) -> Packed:
        """Checked and cast arguments. Arrays are not copied where they fit: leave them as they are until the call has ended.

        Raises: UsageError that names the argument, what is wanted and what was given; ValueTooLarge.
        """
        if len(values) != len(self.inputs):
            raise UsageError(f"{self.id} takes {len(self.inputs)} arguments, not {len(values)}: {self.line()}")
        sizes: dict[str, Number] = {}
        bodies = []
        for argument, value in zip(self.inputs, values, strict=True):
            bodies.append(_Body.of(argument, value, sizes, self.id))
        cost_sizes = {name: value for name, value in sizes.items() if name in self._bound()}
        loose = sum(len(body.data) for body in bodies if body.kind in ("str", "bytes"))
        known: dict[str, Any] = cost_sizes | ({"bytes": loose} if loose and self._bytes is None else {})
        self.cost(known)
        return _packed(bodies, json.dumps(known, sort_keys=True))

    def unpack(self, data: Any, values: Sequence[Any] = ()) -> Any:
        """The answer: one output as it is, several as a tuple, none as None. values: the arguments. Raises: UsageError."""
        sizes: dict[str, Number] = {}
        for argument, value in zip(self.inputs, values, strict=False):
            _Body.of(argument, value, sizes, self.id)
        found = _unpacked(self.outputs, data, sizes, self.id)
        return found[0] if len(found) == 1 else tuple(found) if found else None

    def unpack_arguments(self, data: Any) -> list[Any]:
        """What `pack` has packed: on the server, from a mapped file. Arrays are views; those of inout are copies that may be changed."""
        found = _unpacked(self.inputs, data, {}, self.id)
        return [
            value.copy() if argument.mode == "inout" and argument.dims else value for argument, value in zip(self.inputs, found, strict=True)
        ]

    def pack_answer(self, result: Any, arguments: Sequence[Any]) -> Packed:
        """The outputs that the function has returned: one as it is, several as a tuple or list. Raises: UsageError, ValueTooLarge."""
        count = len(self.outputs)
        values = [] if not count else [result] if count == 1 else list(result) if isinstance(result, tuple | list) else [result]
        if len(values) != count:
            raise UsageError(f"{self.id} has to return {count} values, and has returned {len(values)}")
        sizes: dict[str, Number] = {}
        for argument, value in zip(self.inputs, arguments, strict=True):
            _Body.of(argument, value, sizes, self.id)
        return _packed([_Body.of(argument, value, sizes, self.id) for argument, value in zip(self.outputs, values, strict=True)], "{}")


def read_functions(text: str, where: str) -> list[Interface]:
    """The `[[function]]` tables of a TOML text. Raises: UsageError with file and, where it is known, line; two of one name and version."""
    import tomllib

    from rmgr.config import line_of

    try:
        document = tomllib.loads(text)
    except UNREADABLE_TEXT as error:
        raise UsageError(f"{where}: not valid TOML: {error}") from None
    unknown = sorted(document.keys() - {"function"})
    if unknown:
        raise UsageError(f"{where}:{line_of(text, unknown[0], '')}: unknown table or key {unknown[0]!r}", hint="[[function]]")
    tables = document.get("function", [])
    if not isinstance(tables, list) or not tables:
        raise UsageError(f"{where}: no [[function]] in it", hint='[[function]]  name = "f"  call = "module:f"  operations = "1"')
    lines = [number for number, line in enumerate(text.split("\n"), 1) if re.match(r"\s*\[\[\s*function\s*\]\]", line)]
    found: dict[str, Interface] = {}
    for at, table in enumerate(tables):
        made = Interface.from_table(table, f"{where}:{lines[at] if at < len(lines) else 1}: function")
        if made.id in found:
            raise UsageError(f"{where}: {made.id} stands there twice", hint="give one another version")
        found[made.id] = made
    return list(found.values())


# -- reading tables -------------------------------------------------------------------------------------------------------------


def _typed(table: Mapping[str, Any], key: str, kind: type[Any], default: Any = None) -> Any:
    value = table.get(key, default)
    if type(value) is not kind:
        if value is None:
            raise UsageError(f"{key} is missing")
        raise UsageError(f"{key} = {value!r}: {kind.__name__} expected")
    return value


def _texts(table: Mapping[str, Any], key: str, *, needed: bool = True) -> list[str]:
    value = table.get(key, [] if not needed else None)
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise UsageError(f"{key} has to be a list of texts")
    return value


def _formula_text(table: Mapping[str, Any], key: str) -> str:
    value = table.get(key, "" if key == "bytes" else None)
    if type(value) is int and value >= 0:
        value = str(value)
    if not isinstance(value, str):
        raise UsageError(f"{key} is missing" if value is None else f"{key} = {value!r}: a formula or a whole number expected")
    if value:
        try:
            parse(value)
        except UsageError as error:
            raise UsageError(f"{key}: {error.message}") from None
    elif key == "operations":
        raise UsageError("operations is empty")
    return value


def _argument(text: str) -> Argument:
    found = _ARGUMENT.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"argument {text!r} is not understood", hint='as in "in A float64[n,n]", "in n int", "out x float64[n]"')
    mode, name, kind = found["mode"], found["name"], found["kind"]
    if mode not in {"in", "out", "inout"}:
        raise UsageError(f"argument {text!r}: {mode!r} is not in, out or inout")
    if not _NAME.fullmatch(name) or len(name) > _MOST_NAME:
        raise UsageError(f"argument {text!r}: {name!r} is no name")
    if found["dims"] is None:
        if kind not in _SCALARS:
            raise UsageError(f"argument {text!r}: {kind!r} is not int, float, str or bytes", hint=f"an array has dimensions: {kind}[n]")
        if mode == "inout":
            raise UsageError(f"argument {text!r}: only arrays can be inout")
        return Argument(mode, name, kind)
    if not _DTYPE.fullmatch(kind):
        raise UsageError(f"argument {text!r}: {kind!r} is no type of an array", hint="bool, int8..int64, uint8..uint64, float32, float64, complex64, complex128")
    dims = tuple(dim.strip() for dim in found["dims"].split(","))
    if len(dims) > MOST_DIMS or any(not (_NAME.fullmatch(dim) or (dim.isdigit() and len(dim) < 12)) for dim in dims):
        raise UsageError(f"argument {text!r}: a dimension is a name or a number, and there are at most {MOST_DIMS}")
    return Argument(mode, name, kind, dims)


def _number(name: str, value: Any) -> Number:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UsageError(f"{name} = {value!r} is no number")
    return value


# -- bytes ------------------------------------------------------------------------------------------------------------------------
#
# A message: 4 bytes, the length of a JSON header, little-endian; the header, one entry a value; then the values, each at the next multiple
# of 64 bytes. An entry of an array is [dtype, shape, order], of a scalar ["int", text], ["float", hex], of text and bytes [kind, length].


class _Body(NamedTuple):
    kind: str
    entry: list[Any]
    data: memoryview | bytes

    @classmethod
    def of(cls, argument: Argument, value: Any, sizes: dict[str, Number], function: str) -> _Body:
        """A value for its place; binds the sizes that it shows. Raises: UsageError."""
        if argument.dims:
            return cls._array(argument, value, sizes, function)
        wanted = f"{function}: {argument.name} has to be {argument.kind}"
        if argument.kind in ("int", "float"):
            number = _scalar(value)
            if number is None or (argument.kind == "int" and number != int(number)):
                raise UsageError(f"{wanted}, and is {type(value).__name__} {str(value)[:60]!r}")
            exact: Number = int(number) if argument.kind == "int" else float(number)
            if argument.kind == "int" and not -(1 << 63) <= exact < 1 << 63:
                raise UsageError(f"{wanted} of 64 bits, and is larger")
            _bind(sizes, argument.name, exact, f"{function}: {argument.name}")
            return cls(argument.kind, [argument.kind, exact if argument.kind == "int" else float(exact).hex()], b"")
        data = value.encode("utf-8", "surrogateescape") if isinstance(value, str) and argument.kind == "str" else value
        if not isinstance(data, bytes | bytearray | memoryview) or (argument.kind == "str") != isinstance(value, str):
            raise UsageError(f"{wanted}, and is {type(value).__name__}")
        view = memoryview(data).cast("B")
        return cls(argument.kind, [argument.kind, len(view)], view)

    @classmethod
    def _array(cls, argument: Argument, value: Any, sizes: dict[str, Number], function: str) -> _Body:
        numpy = _numpy()
        array = numpy.asarray(value)
        wanted = f"{function}: {argument.name} has to be {argument.kind}[{','.join(argument.dims)}]"
        if array.dtype.kind not in "biufc" or not numpy.can_cast(array.dtype, argument.kind, "safe"):
            raise UsageError(f"{wanted}, and is {array.dtype}", hint=f"{argument.name}.astype({argument.kind!r}) casts it")
        if array.ndim != len(argument.dims):
            raise UsageError(f"{wanted}, and has the shape {array.shape}")
        for dim, extent in zip(argument.dims, array.shape, strict=True):
            if dim.isdigit():
                if int(dim) != extent:
                    raise UsageError(f"{wanted}, and has the shape {array.shape}")
            else:
                _bind(sizes, dim, int(extent), f"{wanted}, and has the shape {array.shape}")
        order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        array = numpy.asarray(array, dtype=numpy.dtype(argument.kind).newbyteorder("<"), order=order)
        flat = array.T if order == "F" else array
        data = memoryview(numpy.ascontiguousarray(flat).reshape(-1).view(numpy.uint8)) if array.size else memoryview(b"")
        return cls(argument.kind, [argument.kind, list(array.shape), order], data)


def _scalar(value: Any) -> Number | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    item = getattr(value, "item", None)  # a number of numpy's
    found = item() if callable(item) and getattr(value, "shape", None) == () else None
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None


def _bind(sizes: dict[str, Number], name: str, value: Number, where: str) -> None:
    if sizes.setdefault(name, value) != value:
        raise UsageError(f"{where}: {name} is {sizes[name]} elsewhere, and {value} here")


def _packed(bodies: Sequence[_Body], sizes: str) -> Packed:
    header = json.dumps([body.entry for body in bodies], separators=(",", ":")).encode()
    if len(header) > _MOST_HEADER:
        raise ValueTooLarge(f"a call whose header has {len(header):,} bytes: at most {_MOST_HEADER:,}")
    parts: list[memoryview | bytes] = [struct.pack("<I", len(header)) + header]
    size = 4 + len(header)
    for body in bodies:
        if len(body.data):
            pad = -size % _ALIGN
            parts += [bytes(pad), body.data]
            size += pad + len(body.data)
    if size > MAX_BYTES:
        raise ValueTooLarge(f"a call of {size:,} bytes: at most {MAX_BYTES:,} travel with one")
    return Packed(sizes, size, lambda: _pieces(parts))


def _pieces(parts: Sequence[memoryview | bytes]) -> Iterator[bytes | memoryview]:
    small = bytearray()
    for part in parts:
        view = memoryview(part)
        at = 0
        while at < len(view):
            take = min(PIECE_BYTES - len(small), len(view) - at)
            small += view[at : at + take]
            at += take
            if len(small) == PIECE_BYTES:
                yield bytes(small)
                small.clear()
    if small:
        yield bytes(small)


def _unpacked(arguments: Sequence[Argument], data: Any, sizes: dict[str, Number], function: str) -> list[Any]:
    """Values of a message, arrays as views of it. Raises: UsageError for what `_packed` does not write."""
    view = memoryview(data).cast("B")
    try:
        (length,) = struct.unpack_from("<I", view)
        if length > _MOST_HEADER:
            raise ValueError("a header that is too large")
        entries = json.loads(bytes(view[4 : 4 + length]))
        if not isinstance(entries, list) or len(entries) != len(arguments):
            raise ValueError(f"{len(arguments)} values were expected")
        at = 4 + length
        found = []
        for argument, entry in zip(arguments, entries, strict=True):
            value, at = _value(argument, entry, view, at, sizes)
            found.append(value)
        if at != len(view):
            raise ValueError("bytes are left over")
    except (*UNREADABLE_TEXT, struct.error, TypeError, KeyError, IndexError, OverflowError) as error:
        raise UsageError(f"{function}: the values that came are not what its interface says: {error}") from None
    return found


def _value(argument: Argument, entry: Any, view: memoryview, at: int, sizes: dict[str, Number]) -> tuple[Any, int]:
    if entry[0] != argument.kind:
        raise ValueError(f"{argument.name} is {str(entry[0])[:40]}")
    if argument.kind == "int":
        if type(entry[1]) is not int:
            raise ValueError(f"{argument.name} is no whole number")
        _bind(sizes, argument.name, entry[1], argument.name)
        return entry[1], at
    if argument.kind == "float":
        number = float.fromhex(entry[1])
        if argument.mode != "out":
            _bind(sizes, argument.name, number, argument.name)
        return number, at
    if not argument.dims:
        size = entry[1]
        if type(size) is not int or size < 0:
            raise ValueError(f"{argument.name} has no length")
        at += -at % _ALIGN if size else 0
        data = bytes(view[at : at + size])
        if len(data) != size:
            raise ValueError(f"{argument.name} is cut off")
        return data.decode("utf-8", "surrogateescape") if argument.kind == "str" else data, at + size
    _, shape, order = entry
    if len(shape) != len(argument.dims) or any(type(extent) is not int or not 0 <= extent < 1 << 40 for extent in shape) or order not in ("C", "F"):
        raise ValueError(f"{argument.name} has no shape")
    for dim, extent in zip(argument.dims, shape, strict=True):
        if dim.isdigit():
            if int(dim) != extent:
                raise ValueError(f"{argument.name} has another shape")
        else:
            _bind(sizes, dim, extent, argument.name)
    numpy = _numpy()
    dtype = numpy.dtype(argument.kind).newbyteorder("<")
    count = math.prod(shape)
    at += -at % _ALIGN if count else 0
    end = at + count * dtype.itemsize
    if end > len(view):
        raise ValueError(f"{argument.name} is cut off")
    flat = numpy.frombuffer(view[at:end], dtype=dtype)
    return flat.reshape(shape, order=order), end


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        raise UsageError("arrays need numpy, which is not installed here", hint="pip install 'rmgr[calls]'") from None
    return numpy
