"""Whether values fit an interface: count, shapes, types, size. Clients ask before they send, servers before they run, both of answers, too.

What numpy casts safely is cast. Every error names the argument, what is wanted, and what was given.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rmgr.errors import UsageError, ValueTooLarge
from rmgr.model.calls.arrays import MAX_BYTES, numpy_of
from rmgr.model.calls.expressions import Number
from rmgr.model.calls.interface import Argument, Interface


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """Values that fit, as they travel. sizes: what they bind. operations, bytes: what the call costs (bytes: both ways)."""

    values: tuple[Any, ...]
    sizes: dict[str, Number]
    operations: int
    bytes: int


def fit_inputs(interface: Interface, values: Sequence[Any], *, max_bytes: int = MAX_BYTES) -> Fitting:
    """The inputs of a call, in the order of `interface.inputs`.

    Raises: UsageError naming argument, wanted, given; ValueTooLarge where the inputs, or the answer that the shapes promise, have more
    than `max_bytes`; UsageError without numpy. Cost: O(bytes) where something is cast, else O(arguments).
    """
    sizes: dict[str, Number] = {}
    fitting = _fit(interface, "takes", interface.inputs, values, sizes)
    cost = interface.cost(sizes, lengths=sum(len(one) for one in fitting if isinstance(one, str | bytes)))
    inputs = sum(_bytes_of(one) for one in fitting)
    answer = sum(argument.size_bytes(sizes) for argument in interface.outputs)
    for what, size in (("arguments", inputs), ("answer", answer)):
        if size > max_bytes:
            told = f"{interface.key}: its {what} would have {size:,} bytes, {max_bytes:,} are allowed"
            raise ValueTooLarge(told, hint="call it in parts, or submit a task that reads its input by key: rmgr store put")
    return Fitting(values=fitting, sizes=sizes, operations=cost.operations, bytes=cost.bytes)


def fit_outputs(interface: Interface, values: Sequence[Any], sizes: Mapping[str, Number]) -> tuple[Any, ...]:
    """The outputs of a call whose inputs bound these sizes, in the order of `interface.outputs`. Raises: UsageError as `fit_inputs`."""
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
    if known is not value and known != value:  # NaN may pass that is no size
        given = value if shape is None else f"{argument.type}[{','.join(map(str, shape))}]"
        raise UsageError(f"{interface.key}: argument {argument.name} is {given}, {argument.typed} with {name} = {known} is wanted")


def _cast(interface: Interface, argument: Argument, value: Any) -> Any:
    """The value in the type of the argument, an array contiguous and in native order."""

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
