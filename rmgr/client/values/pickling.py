"""Pickles arguments and values with the plain pickler where that does, functions and what the program defines with its own.

An object of `__main__` pickles by name, and a worker has of that `__main__` what pickles brought it: whatever mentions it goes
through `runner/program.py`.
"""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from rmgr.client.values.scattered import Payload, is_large, scattered
from rmgr.coord.protocol.ports import MAX_VALUE_BYTES
from rmgr.errors import PickleFailed, ValueTooLarge
from rmgr.runner import program

PROTOCOL = 5
#: Arguments of these types mention no module; larger ones are not searched for it (0.3 ms a MiB).
_PLAIN = frozenset({bytes, str, int, float, bool, type(None), bytearray})
_WORTH_A_LOOK = 64 * 1024
_NO_ARGUMENTS = pickle.dumps(((), {}), PROTOCOL)


class FutureHasNoValue(TypeError):
    """A Future stands where a value should."""


def dump_call(args: tuple[Any, ...], kwargs: dict[str, Any], function: str) -> Payload:
    """Payload of a call. `function`: its name, for errors. Raises PickleFailed naming the argument; ValueTooLarge; TypeError: a Future.

    A call never waits for another one: it is durable once it is submitted, and an argument whose value only this process will know
    would end that.
    """
    data: Payload
    try:
        if is_large((*args, *kwargs.values()) if kwargs else args):
            data = scattered((args, kwargs), PROTOCOL, is_plain=not kwargs and _PLAIN.issuperset(map(type, args)))
        else:
            data = pickle.dumps((args, kwargs), PROTOCOL)
            if (len(data) < _WORTH_A_LOOK or kwargs or not _PLAIN.issuperset(map(type, args))) and program.mentions(data):
                data = program.dumps((args, kwargs))
    except Exception:  # noqa: BLE001 - __reduce__ of user classes may raise anything; cloudpickle tells
        data = _dump_call_slowly(args, kwargs, function)
    if len(data) > MAX_VALUE_BYTES:
        raise ValueTooLarge(
            f"the arguments of {function} have {len(data)} bytes; the limit is {MAX_VALUE_BYTES}",
            hint="no value of the data store has more: split it, or pass the path of a file in a file system that the nodes share",
        )
    return data if data != _NO_ARGUMENTS else b""


def _dump_call_slowly(args: tuple[Any, ...], kwargs: dict[str, Any], function: str) -> bytes:
    named = [(f"argument {at}", value) for at, value in enumerate(args)] + [(f"argument {name!r}", value) for name, value in kwargs.items()]
    for name, value in named:
        if isinstance(value, Future):
            raise FutureHasNoValue(f"{name} of {function} is a Future: pass its value, future.result()")
    try:
        return program.dumps((args, kwargs))
    except FutureHasNoValue as error:
        raise FutureHasNoValue(f"an argument of {function} holds a Future: pass its value, future.result()") from error
    except Exception as error:  # noqa: BLE001 - as above
        for name, value in named:
            why = _why_not(value)
            if why:
                raise PickleFailed(
                    f"{name} of {function}, a {type(value).__qualname__}, cannot be pickled: {why}",
                    hint="pass plain data, or a key in the data store; open files, locks and connections cannot travel",
                ) from None
        raise PickleFailed(f"the arguments of {function} cannot be pickled: {type(error).__name__}: {error}") from None


def dump_function(function: Callable[..., Any]) -> tuple[bytes, program.Snapshot]:
    """A function by value where no import can find it, else by name; and what the pickle depends on. Raises PickleFailed naming it."""
    file = io.BytesIO()
    try:
        front, snapshot = program.dump(function, file)
        return front + file.getvalue(), snapshot
    except PickleFailed as error:
        raise PickleFailed(f"the function {name_of(function)} cannot be pickled: {error.message}", hint=error.hint) from error
    except Exception as error:  # noqa: BLE001 - as above
        raise PickleFailed(
            f"the function {name_of(function)} cannot be pickled: {type(error).__name__}: {error}",
            hint="it, or what it refers to, holds something that cannot travel: an open file, a lock, a connection",
        ) from None


def dump_value(value: Any, what: str) -> Payload:
    """Any object. Raises PickleFailed naming `what`; ValueTooLarge."""
    data: Payload
    try:
        data = scattered(value, PROTOCOL) if is_large((value,)) else program.plain_or_own(value)
    except Exception:  # noqa: BLE001 - as above
        try:
            data = program.dumps(value)
        except Exception as error:  # noqa: BLE001 - as above
            raise PickleFailed(f"{what}, a {type(value).__qualname__}, cannot be pickled: {type(error).__name__}: {error}") from None
    if len(data) > MAX_VALUE_BYTES:
        raise ValueTooLarge(f"{what} has {len(data)} bytes; the limit is {MAX_VALUE_BYTES}", hint="store it in parts, under several keys")
    return data


def name_of(function: object) -> str:
    """How errors and job lists call a function."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    module = getattr(function, "__module__", None)
    return name if module in {None, "builtins", "__main__"} else f"{module}.{name}"


def _why_not(value: object) -> str:
    try:
        program.dumps(value)
    except Exception as error:  # noqa: BLE001 - as above
        return f"{type(error).__name__}: {error}"
    return ""
