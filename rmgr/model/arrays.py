"""Values of a call as bytes, one after another: arrays, int, float, str, bytes. No pickles; no copies except to change the order.

```
"RMGA" 0 0 0 1 | length of the header, 4 bytes little-endian | header, MessagePack | zeros to 64 | value | zeros to 64 | value ...
header: [[type, shape, order, bytes], ...]     type: int64 text, "" shape of a scalar; order "C" or "F"
```

Each value begins at a multiple of 64, so that a mapped file gives aligned arrays without a copy. Readers trust nothing:
they compare every length with the data before they build anything.

Clients check that values fit an interface (count, shapes, types, size) before they send, and servers before they run; both
check answers, too. Values that numpy casts safely are cast. Every error names the argument, what is wanted, and what was given.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from rmgr.errors import UsageError, ValueTooLarge
from rmgr.model.interface import ITEM_BYTES, MOST_ARGUMENTS, MOST_DIMENSIONS, SCALARS, Argument, Interface, Number
from rmgr.model.stream import UNREADABLE, msgpack_decoder

#: Most bytes of one message of a transfer; and of all values together, unless a server says otherwise.
PIECE_BYTES, MAX_BYTES = 1 << 20, 1 << 30
MAGIC, ALIGNED, MAX_HEADER = b"RMGA\0\0\0\x01", 64, 16 * 1024
_BEGIN = len(MAGIC) + 4

Buffer: TypeAlias = bytes | bytearray | memoryview


class ArraysError(ValueError):
    """The received bytes are not an encoding of values."""


class Item(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One value in the header. type: of an element, or one of `SCALARS`."""

    type: str
    shape: tuple[int, ...]
    order: str
    bytes: int


def numpy_of(what: str) -> Any:
    """Returns the module numpy. Raises: UsageError if it is not installed."""
    try:
        import numpy as np
    except ImportError:
        raise UsageError(f"{what} needs numpy, which is not installed here", hint="pip install 'numpy>=1.24'") from None
    return np


def encode(values: Sequence[Any], *, max_bytes: int = MAX_BYTES) -> list[Buffer]:
    """Returns values as consecutive buffers; those of arrays are views of their memory, which must not change until they are sent.

    Args:
        values: int (64 bits), float, str, bytes, or arrays of numpy of the types of `ITEM_BYTES`, native byte order, C or F contiguous.
    Raises: ValueTooLarge above `max_bytes`; UsageError for another value. Cost: O(values).
    """
    items: list[Item] = []
    bodies: list[Buffer] = []
    for value in values:
        item, body = _encoded(value)
        items.append(item)
        bodies.append(body)
    header = msgspec.msgpack.encode(items)
    if len(items) > MOST_ARGUMENTS or len(header) > MAX_HEADER:
        raise UsageError(f"{len(items)} values: at most {MOST_ARGUMENTS} travel together")
    parts: list[Buffer] = [MAGIC + len(header).to_bytes(4, "little") + header]
    size = len(parts[0])
    for body in bodies:
        parts += [bytes(-size % ALIGNED), body]
        size += -size % ALIGNED + len(body)
    if size > max_bytes:
        raise ValueTooLarge(f"arguments or answer of a call have {size} bytes, {max_bytes} are allowed", hint="call it in parts")
    return [part for part in parts if len(part)]


def pieces(parts: Iterable[Buffer]) -> Iterator[bytes]:
    """Yields the same bytes in pieces of 1 MiB. Cost: one copy."""
    piece = bytearray()
    for part in parts:
        view = memoryview(part)
        while view:
            taken = min(PIECE_BYTES - len(piece), len(view))
            piece += view[:taken]
            view = view[taken:]
            if len(piece) == PIECE_BYTES:
                yield bytes(piece)
                piece.clear()
    if piece:
        yield bytes(piece)


def header_of(data: Buffer, *, max_bytes: int = MAX_BYTES) -> tuple[tuple[Item, ...], int]:
    """Returns the checked items, and the bytes of all values together; needs only the first 16 KiB, and no numpy.

    Raises: ArraysError for a bad header, or one that announces more than `max_bytes`.
    """
    view = memoryview(data)
    length = int.from_bytes(view[len(MAGIC) : _BEGIN], "little")
    if bytes(view[: len(MAGIC)]) != MAGIC or length > MAX_HEADER or len(view) < _BEGIN + length:
        raise ArraysError("it does not begin as values do")
    try:
        items = tuple(msgpack_decoder(list[Item]).decode(view[_BEGIN : _BEGIN + length]))
    except UNREADABLE as error:
        raise ArraysError(f"its header does not decode: {str(error)[:200]}") from error
    size = _BEGIN + length
    if len(items) > MOST_ARGUMENTS:
        raise ArraysError(f"it has {len(items)} values, {MOST_ARGUMENTS} are the most")
    for item in items:
        _check(item)
        size += -size % ALIGNED + item.bytes
        if size > max_bytes:
            raise ArraysError(f"it announces more than {max_bytes} bytes")
    return items, size


def decode(data: Buffer, *, max_bytes: int = MAX_BYTES) -> list[Any]:
    """Returns the values. Arrays are views of `data`, which may be a mapped file, and read-only if it is.

    Raises: ArraysError for anything that `encode` does not make; UsageError without numpy, if there are arrays. Cost: O(values).
    """
    view = memoryview(data)
    items, size = header_of(view[: _BEGIN + MAX_HEADER], max_bytes=max_bytes)
    if len(view) != size:
        raise ArraysError(f"it has {len(view)} bytes and announces {size}")
    at = _BEGIN + int.from_bytes(view[len(MAGIC) : _BEGIN], "little")
    values: list[Any] = []
    for item in items:
        at += -at % ALIGNED
        values.append(_decoded(item, view[at : at + item.bytes]))
        at += item.bytes
    return values


def _encoded(value: Any) -> tuple[Item, Buffer]:
    if isinstance(value, str | bytes):
        body = value.encode() if isinstance(value, str) else value
        return Item(type(value).__name__, (), "C", len(body)), body
    if type(value) in (int, float):
        try:
            return Item(type(value).__name__, (), "C", 8), struct.pack("<q" if type(value) is int else "<d", value)
        except struct.error:
            raise UsageError(f"{value} does not fit into 64 bits") from None
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if str(dtype) not in ITEM_BYTES or shape is None or len(shape) > MOST_DIMENSIONS:
        raise UsageError(f"{type(value).__name__} of {dtype} cannot travel", hint=f"types: {', '.join((*SCALARS, *ITEM_BYTES))}")
    order = "C" if value.flags.c_contiguous else "F"
    row = (value if order == "C" else value.T).reshape(-1)  # a view, because it is contiguous
    return Item(str(dtype), tuple(shape), order, value.nbytes), memoryview(row.view("uint8")) if value.size else b""


def _check(item: Item) -> None:
    if item.type in SCALARS:
        if item.shape or item.order != "C" or item.bytes < 0 or (item.type in ("int", "float") and item.bytes != 8):
            raise ArraysError(f"a value of type {item.type} has shape {item.shape} and {item.bytes} bytes")
        return
    if item.type not in ITEM_BYTES or item.order not in ("C", "F") or len(item.shape) > MOST_DIMENSIONS:
        raise ArraysError(f"no array has type {item.type:.40}, order {item.order:.40} and {len(item.shape)} dimensions")
    if any(not 0 <= length < 1 << 48 for length in item.shape) or math.prod(item.shape) * ITEM_BYTES[item.type] != item.bytes:
        raise ArraysError(f"an array of {item.type} and shape {item.shape} has not {item.bytes} bytes")


def _decoded(item: Item, body: memoryview) -> Any:
    match item.type:
        case "bytes":
            return bytes(body)
        case "str":
            try:
                return str(body, "utf-8")
            except UnicodeDecodeError:
                raise ArraysError("a text is no UTF-8") from None
        case "int" | "float":
            return struct.unpack("<q" if item.type == "int" else "<d", body)[0]
    np = numpy_of("a call with arrays")
    if item.type == "bool" and item.bytes and int(np.frombuffer(body, "uint8").max()) > 1:
        raise ArraysError("an array of bool has bytes that are neither 0 nor 1")
    array = np.frombuffer(body, np.dtype(item.type).newbyteorder("<")) if item.bytes else np.empty(0, item.type)
    try:
        return array.reshape(item.shape, order=item.order)
    except ValueError as error:  # a shape with 0 that is too large for numpy
        raise ArraysError(f"no array has shape {item.shape}: {error}") from None


# -- values that fit an interface ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """Values that fit, as they travel. sizes: bound by them. operations, bytes: cost of the call (bytes: both ways)."""

    values: tuple[Any, ...]
    sizes: dict[str, Number]
    operations: int
    bytes: int


def fit_inputs(interface: Interface, values: Sequence[Any], *, max_bytes: int = MAX_BYTES) -> Fitting:
    """Casts and checks the inputs of a call, in the order of `interface.inputs`.

    Raises: UsageError naming argument, wanted, given; ValueTooLarge if the inputs, or the answer by its shapes, have more
    than `max_bytes`; UsageError without numpy. Cost: O(bytes) if something is cast, else O(arguments).
    """
    sizes: dict[str, Number] = {}
    fitting = _fit(interface, "takes", interface.inputs, values, sizes)
    cost = interface.cost(sizes, lengths=sum(len(one) for one in fitting if isinstance(one, str | bytes)))
    inputs = sum(_bytes_of(one) for one in fitting)
    answer = sum(argument.size_bytes(sizes) for argument in interface.outputs)
    for what, size in (("arguments", inputs), ("answer", answer)):
        if size > max_bytes:
            message = f"{interface.key}: its {what} would have {size:,} bytes, {max_bytes:,} are allowed"
            raise ValueTooLarge(message, hint="call it in parts, or submit a task that reads its input by key: rmgr store put")
    return Fitting(values=fitting, sizes=sizes, operations=cost.operations, bytes=cost.bytes)


def fit_outputs(interface: Interface, values: Sequence[Any], sizes: Mapping[str, Number]) -> tuple[Any, ...]:
    """Casts and checks the outputs of a call with these sizes, in the order of `interface.outputs`. Raises: UsageError as `fit_inputs`."""
    return _fit(interface, "returns", interface.outputs, values, dict(sizes))


def _fit(
    interface: Interface, verb: str, arguments: Sequence[Argument], values: Sequence[Any], sizes: dict[str, Number]
) -> tuple[Any, ...]:
    if len(values) != len(arguments):
        wanted = ", ".join(f"{one.name} {one.typed}" for one in arguments) or "nothing"
        raise UsageError(f"{interface.key} {verb} {len(arguments)} values, not {len(values)}", hint=wanted)
    made = [_cast(interface, argument, value) for argument, value in zip(arguments, values, strict=True)]
    named = [(argument, value) for argument, value in zip(arguments, made, strict=True) if argument.shape is None]
    for argument, value in named:
        if argument.type in ("int", "float") and argument.is_input:
            _bind(interface, argument, sizes, argument.name, value)
    shaped = [(argument, value) for argument, value in zip(arguments, made, strict=True) if argument.shape is not None]
    for argument, value in shaped:
        for dimension, length in zip(argument.shape or (), value.shape, strict=True):
            if (dimension.text,) == dimension.names:
                _bind(interface, argument, sizes, dimension.text, length, value.shape)
    for argument, value in shaped:
        for dimension, length in zip(argument.shape or (), value.shape, strict=True):
            if dimension.value(sizes) != length:
                _bind(interface, argument, {dimension.text: dimension.value(sizes)}, dimension.text, length, value.shape)
    return tuple(made)


def _bind(
    interface: Interface, argument: Argument, sizes: dict[str, Number], name: str, value: Number, shape: Sequence[int] | None = None
) -> None:
    known = sizes.setdefault(name, value)
    if known is not value and known != value:  # the same NaN, which is not a size, may pass
        given = value if shape is None else f"{argument.type}[{','.join(map(str, shape))}]"
        raise UsageError(f"{interface.key}: argument {argument.name} is {given}, {argument.typed} with {name} = {known} is wanted")


def _cast(interface: Interface, argument: Argument, value: Any) -> Any:
    """Returns the value in the argument's type, an array contiguous and in native order."""

    def error(given: str, hint: str = "") -> UsageError:
        return UsageError(f"{interface.key}: argument {argument.name} is {given}, {argument.typed} is wanted", hint=hint)

    given = type(value).__name__
    if argument.shape is None:
        try:
            match argument.type:
                case "int" if given not in ("bool", "bool_"):
                    number = operator.index(value)
                    if not -(1 << 63) <= number < 1 << 63:
                        raise error("an int beyond 64 bits")
                    return number
                case "float" if given not in ("bool", "bool_") and not isinstance(value, str | bytes):
                    return float(value)
                case "str" if isinstance(value, str):
                    value.encode()
                    return str(value)
                case "bytes" if isinstance(value, bytes | bytearray | memoryview):
                    return bytes(value)
        except (TypeError, ValueError, OverflowError):
            pass
        raise error(given)
    np = numpy_of(f"argument {argument.name} of {interface.key}")
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as cause:
        raise error(f"{given} that is no array", hint=str(cause)[:200]) from None
    shown = f"{array.dtype}[{','.join(map(str, array.shape))}]"
    if array.dtype.hasobject:
        raise error(f"an array of objects ({shown})", hint="objects do not travel: give it a type of numbers, with astype")
    if len(argument.shape) != array.ndim:
        raise error(shown)
    if not np.can_cast(array.dtype, argument.type, "safe"):
        raise error(shown, hint=f"{array.dtype} is not cast to {argument.type} without loss: use astype")
    return np.asarray(array, argument.type, order="F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C")


def _bytes_of(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode())
    return len(value) if isinstance(value, bytes) else getattr(value, "nbytes", 8)
