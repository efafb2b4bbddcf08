"""Values and exceptions on their way out of a worker: pickled so that the client gets what the task meant, or an explanation.

Imported by clients too (an exception's pickle names `rebuild` here): standard library, cloudpickle, rmgr.errors only.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import stat
import traceback
import types
from typing import Any

from rmgr.errors import PickleFailed, RemoteError, RemoteTraceback
from rmgr.runner import pickles
from rmgr.runner.pickler import PROTOCOL
from rmgr.runner.unpickling import loads

#: Frames of the runner itself, left out of tracebacks.
_OWN_FILES = (
    *(f"rmgr/runner/{name}.py" for name in ("pickler", "pickles", "program", "unpickling")),
    *(f"rmgr/runner/python/{name}.py" for name in ("calls", "served", "worker")),
)
#: Matches a line of a traceback that names a place, also inside a group; most bytes of a file that is read for source lines.
_FRAME, _MOST_SOURCE_BYTES = re.compile(r'([\s|]*)File "([^"]+)", line (\d{1,9}), in '), 4 * 1024 * 1024
#: Most exceptions of a chain that travel; the traceback's text has the rest.
_CHAIN = 50
#: Methods of a class that define how it is pickled.
_OWN_PICKLING = frozenset({"__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__"})
_REDUCES = frozenset({"__reduce__", "__reduce_ex__"})
#: Their fields are their arguments.
_GROUPS = frozenset({BaseExceptionGroup, ExceptionGroup})
#: Exceptions by which users' code may end a process.
_ENDS = (SystemExit, KeyboardInterrupt, GeneratorExit)
#: Fields that Python itself gives an exception, and those of `__slots__`.
_FIELDS = (types.MemberDescriptorType, types.GetSetDescriptorType)
#: Attributes of every exception, and `AttributeError.obj`, which may be anything.
_NOT_MEMBERS = frozenset({"args", "obj"})


def rebuild(error: BaseException, text: str) -> BaseException:
    """Returns an exception of a task with its remote traceback as its cause, or if it has a cause, as that of the first one."""
    last, seen = error, {id(error)}
    while last.__cause__ is not None and id(last.__cause__) not in seen:
        last = last.__cause__
        seen.add(id(last))
    _fill(last, {"__cause__": RemoteTraceback(with_sources(text)), "__suppress_context__": last.__suppress_context__})
    return error


def with_sources(text: str) -> str:
    """Adds source lines to a traceback that its node lacked and this process has: of scripts, and of cells of a notebook."""
    lines, told = text.split("\n"), []
    for at, line in enumerate(lines):
        told.append(line)
        frame = _FRAME.match(line)
        if frame and not (at + 1 < len(lines) and lines[at + 1].startswith(f"{frame[1]}  ")):
            source = _source(frame[2], int(frame[3]))
            told += [f"{frame[1]}  {source}"] if source else []
    return "\n".join(told)


def _source(name: str, number: int) -> str:
    import linecache

    with contextlib.suppress(OSError, ValueError):  # not a name that a file can have
        if name not in linecache.cache:
            found = os.stat(name)
            if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_SOURCE_BYTES:
                return ""
        return linecache.getline(name, number).strip()
    return ""


def _chained(error: BaseException, state: dict[str, Any]) -> BaseException:
    """Rebuilds an exception that defines its own pickling, with cause, context and notes."""
    _fill(error, state)
    return error


def _fill(error: BaseException, state: dict[str, Any]) -> None:
    """Sets what an exception had, past what its class has in the way: a `__setattr__` that refuses it, a property of that name."""
    for name, value in state.items():
        member: Any = next((found for parent in type(error).__mro__ if isinstance(found := vars(parent).get(name), _FIELDS)), None)
        if member is None:
            vars(error)[name] = value
        else:
            member.__set__(error, value)


class _Travelling:
    """Pickles as `rebuild(error, text)`."""

    def __init__(self, error: object, text: str) -> None:
        self.error = error
        self.text = text

    def __reduce__(self) -> tuple[object, ...]:
        return rebuild, (self.error, self.text)


class _Carrier:
    """Carries an exception and its chain: each exception is one object, however often it occurs.

    checks: attributes and arguments that cannot be pickled are left out, or replaced by their text. Cost: a pickle of each.
    """

    def __init__(self, *, checks: bool) -> None:
        self.checks = checks
        self._met: dict[int, _Carried] = {}

    def carry(self, error: BaseException) -> _Carried | None:
        """Returns an object that pickles as the exception, None beyond the longest chain."""
        carried = self._met.get(id(error))
        if carried is None and len(self._met) < _CHAIN:
            carried = self._met[id(error)] = _Carried(self, error)
        return carried

    def argument(self, value: object) -> object:
        """Returns an argument of an exception as it travels; it may contain exceptions, as in a group."""
        if isinstance(value, BaseException):
            return self.carry(value) or str(value)
        if type(value) in {list, tuple}:
            return type(value)(self.argument(part) for part in value)  # type: ignore[call-arg, attr-defined]
        if type(value) is dict:
            return {key: self.argument(part) for key, part in value.items()}
        return value if not self.checks or _travels(value) else repr(value)

    def state(self, error: BaseException, attributes: dict[str, object]) -> dict[str, object]:
        """Returns attributes, cause and context as they travel."""
        state = {name: self.argument(value) for name, value in attributes.items() if not self.checks or _travels(value)}
        for name in ("__cause__", "__context__"):
            linked = getattr(error, name)
            if linked is not None and (carried := self.carry(linked)) is not None:
                state[name] = carried
        if error.__suppress_context__:
            state["__suppress_context__"] = True
        return state


class _Carried:
    """Pickles as an exception of the same class, arguments, attributes and chain. Rebuilding does not call its constructor, which may build
    a message from its arguments, or take others. An exception that defines its own pickling is rebuilt by that.

    An exception that cannot be rebuilt so is carried with checks, and filled past what its class has in the way.
    """

    def __init__(self, carrier: _Carrier, error: BaseException) -> None:
        self._carrier = carrier
        self._error = error

    def __reduce__(self) -> tuple[object, ...]:
        error, kind = self._error, type(self._error)
        if _pickles_itself(kind, _REDUCES if self._carrier.checks else _OWN_PICKLING):
            notes = getattr(error, "__notes__", None)
            return _chained, (error, self._carrier.state(error, {} if notes is None else {"__notes__": notes}))
        base = next(parent for parent in kind.__mro__ if parent.__module__ == "builtins")
        given: tuple[object, ...] = BaseException.args.__get__(error)  # type: ignore[attr-defined] # not what a property says
        args = tuple(self._carrier.argument(arg) for arg in given)
        state = {"args": args, **self._carrier.state(error, {**_members(error), **vars(error)})}
        if isinstance(error, BaseExceptionGroup):  # whose own constructor may take more
            args = error.message, self._carrier.argument(list(error.exceptions))
        # It is built by Python's own methods (`__new__` of its built-in base, `BaseException.__setstate__`).
        return base.__new__, (kind, *args), state, *((None, None, _fill) if self._carrier.checks else ())


def _pickles_itself(kind: type, methods: frozenset[str]) -> bool:
    return any(methods & vars(parent).keys() for parent in kind.__mro__ if parent.__module__ != "builtins")


def _members(error: BaseException) -> dict[str, object]:
    """Returns fields that are not in `__dict__`: of built-in exceptions (`errno`, `filename`, `code`, ...), and those of `__slots__`."""
    found: dict[str, object] = {}
    for parent in type(error).__mro__:
        if parent in {BaseException, object} or parent in _GROUPS:
            continue
        for name, member in vars(parent).items():
            if isinstance(member, _FIELDS) and not name.startswith("__") and name not in _NOT_MEMBERS:
                with contextlib.suppress(AttributeError):  # a slot that is empty
                    value = member.__get__(error)
                    if value is not None or parent.__module__ != "builtins":
                        found.setdefault(name, value)
    return found


def _travels(value: object) -> bool:
    try:
        loads(pickles.dumps(value))
    except BaseException:  # noqa: BLE001 - __reduce__ of user classes may raise anything
        return False
    return True


def _pickled(error: BaseException, text: str, *, checks: bool) -> bytes | None:
    """Returns the pickle of an exception with its traceback, None if it does not load as the type of `error`."""
    try:
        data = pickles.plain_or_own(_Travelling(_Carrier(checks=checks).carry(error), text))
        read = loads if checks else pickle.loads
        survives = type(read(data)).__name__ == type(error).__name__
    except BaseException:  # noqa: BLE001 - classes of users raise anything here, SystemExit too
        return None
    return data if survives else None


def dump_value(value: object) -> bytes:
    """Returns the pickle of a result: by the plain pickler, or the program's if that fails (objects of `__main__`, lambdas).

    Raises: PickleFailed, saying what and why.
    """
    try:
        return pickles.plain_or_own(value)
    except (Exception, *_ENDS) as error:  # noqa: BLE001 - __reduce__ of user classes may raise anything
        hint = "return plain data, or write a file and return its name"
        if isinstance(value, types.CoroutineType):
            hint = "an async function only makes a coroutine: call asyncio.run(f(...)) in a plain one"
        raise PickleFailed(f"the result, a {_name(type(value))}, cannot be pickled: {summary(error)}", hint=hint) from None


def dump_exception(error: BaseException) -> tuple[bytes, str]:
    """Returns (pickle of `error` with its traceback, one line "Type: message").

    The exception arrives with its arguments, attributes, notes, cause and context, except those that cannot be pickled. If it cannot be
    pickled at all, a `RemoteError` replaces it, with its type's name, its message and its traceback.
    """
    text = format_traceback(error)
    line = summary(error)
    for checks in (False, True):
        data = _pickled(error, text, checks=checks)
        if data is not None:
            return data, line
    carrier = RemoteError(line, type_name=_name(type(error)), traceback=text)
    return pickle.dumps(_Travelling(carrier, text), PROTOCOL), line


def format_traceback(error: BaseException) -> str:
    """Returns the text of a traceback without the runner's own frames."""
    try:
        shown = traceback.TracebackException.from_exception(error, compact=True)
        for part in (shown, shown.__cause__, shown.__context__):
            if part is not None:
                part.stack = traceback.StackSummary.from_list([line for line in part.stack if not line.filename.endswith(_OWN_FILES)])
        return "".join(shown.format())
    except BaseException:  # noqa: BLE001 - __str__ of user classes, recursion
        return f"{_name(type(error))} (its traceback cannot be shown)\n"


def summary(error: BaseException) -> str:
    """Returns "Type: message", one line of valid Unicode, at most 500 characters."""
    try:
        message = " ".join(str(error).split())
    except BaseException:  # noqa: BLE001 - __str__ of user classes
        message = "(its message cannot be shown)"
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    text = text.encode("utf-8", "backslashreplace").decode()  # a file's name may contain lone surrogates, which no message carries
    return text if len(text) <= 500 else text[:497] + "..."


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ in {"builtins", "__main__"} else f"{kind.__module__}.{kind.__qualname__}"
