"""A call of a named function in a worker of a server: arguments from one file, the answer into another, the result as JSON.

Nothing that travelled is unpickled. The server's own TOML file names the function, as `module:callable`.

    python -m rmgr.runner.python.served '{"calls": ["solvers:lin"], "measures": true}'

tells, before a server offers anything, which of these cannot be called, and how fast linpack is.
"""

from __future__ import annotations

import importlib
import mmap
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from rmgr.model import arrays
from rmgr.model.arrays import fit_inputs, fit_outputs
from rmgr.model.interface import Interface, decode_interface
from rmgr.model.stream import UNREADABLE, json_decoder
from rmgr.runner.current import TaskTerminated
from rmgr.runner.host.files import write_whole
from rmgr.runner.remote import format_traceback, summary

S = TypeVar("S")

#: Size of linpack, as in paper 004; shortest total time and number of its measurements, of which the best counts.
LINPACK_N, _MEASURED_S, _FEWEST = 600, 0.5, 3


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of a call. bytes: size of the answer's file."""

    kind: Literal["OK", "FAILED"]
    error: str = ""
    traceback: str = ""
    bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 50)] = 0


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What a server asks before it offers anything. calls: module:callable. measures: also measure the speed."""

    calls: tuple[str, ...]
    sys_path: tuple[str, ...] = ()
    measures: bool = False


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """troubles: of calls that cannot be made. mops: million operations a second, 0 if not measured. numpy: whether it is there."""

    troubles: dict[str, str] = {}
    mops: float = 0.0
    numpy: bool = True


def answer_of(data: bytes | str) -> Answer:
    """Decodes the result of `call`, from a process that a function may have spoilt. Raises: ValueError."""
    return _decoded(data, Answer)


def found_of(data: bytes | str) -> Found:
    """Decodes the output of `look`, from a process that a function may have spoilt. Raises: ValueError."""
    return _decoded(data, Found)


def _decoded(data: bytes | str, kind: type[S]) -> S:
    try:
        return json_decoder(kind).decode(data)
    except UNREADABLE as error:
        raise ValueError(f"it makes no sense: {str(error)[:200]}") from None


def call(reference: str, interface: bytes, arguments: str, answer: str, most_bytes: int) -> bytes:
    """Makes a call in the worker. Returns an `Answer` as JSON. Raises: exceptions that end the call from outside (`TaskTerminated`).

    Args:
        reference: module:callable. interface: canonical JSON. arguments, answer: files. most_bytes: of the answer.
    """
    try:
        return msgspec.json.encode(_called(reference, interface, arguments, answer, most_bytes))
    except TaskTerminated:
        raise
    except BaseException as error:  # noqa: BLE001 - a function raises anything, SystemExit and KeyboardInterrupt too
        return msgspec.json.encode(Answer(kind="FAILED", error=summary(error), traceback=format_traceback(error)))


def _called(reference: str, text: bytes, arguments: str, answer: str, most_bytes: int) -> Answer:
    function, interface = load(reference), _interface(text)
    given = _mapped(arguments)
    room = max(arrays.MAX_BYTES, len(given))  # the server has accepted so many
    fitting = fit_inputs(interface, arrays.decode(given, max_bytes=room), max_bytes=room)
    result = function(*fitting.values)
    count = len(interface.outputs)
    values = [result] if count == 1 else [] if not count else list(result) if isinstance(result, tuple | list) else [result]
    parts = arrays.encode(fit_outputs(interface, values, fitting.sizes), max_bytes=most_bytes)
    fd = os.open(answer, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        for part in parts:
            write_whole(fd, memoryview(part))
        return Answer(kind="OK", bytes=os.fstat(fd).st_size)
    finally:
        os.close(fd)


@lru_cache(256)
def _interface(text: bytes) -> Interface:
    return decode_interface(text)


def _mapped(path: str) -> memoryview:
    """Maps a file, whose pages are read when used. Private: changes by a function in place stay in this process."""
    with open(path, "rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE))


def load(reference: str) -> Callable[..., object]:
    """Returns the callable that `module:callable` names. Raises: whatever its import raises; AttributeError, TypeError."""
    module, _, name = reference.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{reference} is a {type(found).__name__}, and cannot be called")
    return found  # type: ignore[no-any-return]


def warm(calls: Sequence[str]) -> None:
    """Imports the modules of a worker's calls before the first one comes; a failure is left to its call."""
    for reference in calls:
        with suppress(Exception):
            load(reference)
    with suppress(ImportError):
        importlib.import_module("numpy")


def measured_mops() -> float:
    """Returns million operations a second of linpack on one core. Raises: ImportError without numpy."""
    import numpy as np

    from rmgr.runner.python.shipped import linpack

    rng = np.random.default_rng(1)
    matrix, right = rng.random((LINPACK_N, LINPACK_N)), rng.random(LINPACK_N)
    operations = 2 * LINPACK_N**3 / 3 + 2 * LINPACK_N**2
    best_s, spent_s, count = float("inf"), 0.0, 0
    while spent_s < _MEASURED_S or count < _FEWEST:
        begun_s = time.perf_counter()
        linpack(matrix, right)
        took_s = time.perf_counter() - begun_s
        best_s, spent_s, count = min(best_s, took_s), spent_s + took_s, count + 1
    return operations / best_s / 1e6


def look(asked: Question) -> Found:
    """Imports the functions to be called, and measures the speed. Cost: a second or two."""
    sys.path.extend(asked.sys_path)
    troubles: dict[str, str] = {}
    for reference in asked.calls:
        try:
            load(reference)
        except BaseException as error:  # noqa: BLE001 - a module raises anything
            troubles[reference] = summary(error)
    try:
        importlib.import_module("numpy")
    except ImportError:
        return Found(troubles=troubles, numpy=False)
    return Found(troubles=troubles, mops=measured_mops() if asked.measures else 0.0)


def main(arguments: Sequence[str]) -> None:
    """Prints the result of `look` as the last line."""
    found = look(msgspec.json.decode(arguments[0], type=Question))
    sys.stdout.write("\n" + msgspec.json.encode(found).decode() + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
