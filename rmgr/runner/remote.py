"""Values and exceptions on their way out of a worker: pickled so that the client gets what the task meant, or says why not.

Imported by clients too (an exception's pickle names `rebuild` here): standard library, cloudpickle, rmgr.errors only.
"""

from __future__ import annotations

import pickle
import traceback

from rmgr.errors import PickleFailed, RemoteError, RemoteTraceback
from rmgr.runner import program

_PROTOCOL = 5
#: Frames of the runner itself, left out of tracebacks.
_OWN_FILES = ("rmgr/runner/python/worker.py", "rmgr/runner/python/calls.py")


def rebuild(error: BaseException, text: str) -> BaseException:
    """An exception that was raised in a task, with its traceback there as its cause."""
    error.__cause__ = RemoteTraceback(text)
    return error


class _Travelling:
    """Pickles as `rebuild(error, text)`."""

    def __init__(self, error: object, text: str) -> None:
        self.error = error
        self.text = text

    def __reduce__(self) -> tuple[object, ...]:
        return rebuild, (self.error, self.text)


class _Uncalled:
    """Pickles as an exception of the same class, arguments and attributes, whose constructor is not called when it is built again.

    What builds it is Python's own (`__new__` of its built-in base): clients of any release can read it. Exceptions among its arguments,
    as those of a group, travel in the same way where they need it.
    """

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> tuple[object, ...]:
        kind = type(self.error)
        base = next(parent for parent in kind.__mro__ if parent.__module__ == "builtins")
        args = tuple(_portable(arg) for arg in self.error.args)
        return base.__new__, (kind, *args), {**self.error.__dict__, "args": args}


def _portable(arg: object) -> object:
    """An argument of an exception, where exceptions that cannot be built again by their constructor are `_Uncalled`."""
    if isinstance(arg, list | tuple) and type(arg) in {list, tuple}:
        return type(arg)(_portable(part) for part in arg)
    if isinstance(arg, BaseException) and _pickled(arg, arg) is None:
        return _Uncalled(arg)
    return arg


def _pickled(carried: object, error: BaseException, text: str = "") -> bytes | None:
    """The pickle of `carried` with its traceback, or None where what comes out of it is not of the type of `error`."""
    for dumps in (_plain, program.dumps):
        try:
            data = dumps(_Travelling(carried, text))
            if type(pickle.loads(data)).__name__ == type(error).__name__:  # noqa: S301 - our own bytes: does it survive?
                return data
        except BaseException:  # noqa: BLE001, S112 - classes of users raise anything here, SystemExit too
            continue
    return None


def _plain(value: object) -> bytes:
    """As the plain pickler does it. Raises: PickleFailed where another process would look for what only its program has."""
    data = pickle.dumps(value, _PROTOCOL)
    if program.mentions(data):
        raise PickleFailed("it mentions what only its program has")
    return data


def dump_value(value: object) -> bytes:
    """Pickle of a result: the plain pickler, the program's for what it cannot (objects of `__main__`, lambdas).

    Raises: PickleFailed, saying what and why.
    """
    try:
        data = pickle.dumps(value, _PROTOCOL)
        return program.dumps(value) if program.mentions(data) else data
    except Exception:  # noqa: BLE001 - __reduce__ of user classes may raise anything
        try:
            return program.dumps(value)
        except Exception as error:  # noqa: BLE001 - as above
            raise PickleFailed(
                f"the result, a {_name(type(value))}, cannot be pickled: {type(error).__name__}: {error}",
                hint="return plain data, or write a file and return its name",
            ) from None


def dump_exception(error: BaseException) -> tuple[bytes, str]:
    """(pickle of `error` with its traceback, one line "Type: message").

    One whose constructor takes other arguments than `args` is built again without calling it. What does not survive pickling at all is
    replaced by a `RemoteError` that keeps its type's name, its message and its traceback.
    """
    text = format_traceback(error)
    line = summary(error)
    for carried in (error, _Uncalled(error)):
        data = _pickled(carried, error, text)
        if data is not None:
            return data, line
    carrier = RemoteError(line, type_name=_name(type(error)), traceback=text)
    return pickle.dumps(_Travelling(carrier, text), _PROTOCOL), line


def format_traceback(error: BaseException) -> str:
    """Traceback text without the runner's own frames."""
    try:
        shown = traceback.TracebackException.from_exception(error, compact=True)
        for part in (shown, shown.__cause__, shown.__context__):
            if part is not None:
                part.stack = traceback.StackSummary.from_list([line for line in part.stack if not line.filename.endswith(_OWN_FILES)])
        return "".join(shown.format())
    except BaseException:  # noqa: BLE001 - __str__ of user classes, recursion
        return f"{_name(type(error))} (its traceback cannot be shown)\n"


def summary(error: BaseException) -> str:
    """ "Type: message", one line of valid Unicode, at most 500 characters."""
    try:
        message = " ".join(str(error).split())
    except BaseException:  # noqa: BLE001 - __str__ of user classes
        message = "(its message cannot be shown)"
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    text = text.encode("utf-8", "backslashreplace").decode()  # a file's name may have halves of characters, which no message carries
    return text if len(text) <= 500 else text[:497] + "..."


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ in {"builtins", "__main__"} else f"{kind.__module__}.{kind.__qualname__}"
