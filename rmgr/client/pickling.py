"""What travels from a program: arguments and values as pickles, functions and local modules stored by their content.

The plain pickler makes the pickles where it can; `runner/pickles.py` makes those of functions and of objects that the program defines.

An object of `__main__` pickles by name, but a worker has only the part of that `__main__` that pickles brought to it, so every pickle
that mentions `__main__` goes through `runner/pickles.py`.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.machinery
import io
import operator
import pickle
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from rmgr.client.content import Payload, is_large, put_content, renew_content, scattered
from rmgr.coord.contents import TRUSTED_S
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import MAX_VALUE_BYTES, Encoding, Store
from rmgr.errors import NotFound, PickleFailed, RmgrError, UsageError, ValueTooLarge
from rmgr.model.submission import MAX_FUNCTION_BYTES, MAX_INITIALIZER_BYTES, MAX_MODULE_BYTES
from rmgr.runner import pickles, program
from rmgr.runner.modules import being_imported
from rmgr.runner.pickles import Snapshot
from rmgr.runner.unpickling import loads
from rmgr.runtime import machine

if TYPE_CHECKING:
    import zipfile
    from pathlib import Path

PROTOCOL = 5
#: Arguments of these types mention no module, so large ones are not searched for one (0.3 ms per MiB).
_PLAIN = frozenset({bytes, str, int, float, bool, type(None), bytearray})
_WORTH_A_LOOK = 64 * 1024
#: Errors of unpickling, which runs code of users. Ctrl-C is not one: it belongs to the user.
RAISED = (Exception, SystemExit, GeneratorExit)
_PLAIN_DATA = "pass plain data, or a key in the data store; open files, locks and connections cannot travel"
_NO_ARGUMENTS = pickle.dumps(((), {}), PROTOCOL)
#: Plain functions whose pickles are remembered, and hashes remembered as stored.
_MAX_FUNCTIONS = 256
_MAX_KNOWN = 10_000
_MISSING = object()
_STAMP = (1980, 1, 1, 0, 0, 0)
_SKIPPED = frozenset({"__pycache__", ".git", ".mypy_cache", ".pytest_cache", ".ruff_cache"})


class FutureHasNoValue(TypeError):
    """Raised for a Future in place of a value."""


def dump_call(args: tuple[Any, ...], kwargs: dict[str, Any], function: str) -> Payload:
    """Returns the payload of a call. `function`: its name for errors.

    A Future as argument is refused: a submitted call is durable and waits for no other, but a value that only this process will know
    is neither. Raises PickleFailed naming the argument; ValueTooLarge; TypeError for a Future.
    """
    data: Payload
    try:
        if is_large((*args, *kwargs.values()) if kwargs else args):
            data = scattered((args, kwargs), PROTOCOL, is_plain=not kwargs and _PLAIN.issuperset(map(type, args)))
        else:
            data = pickle.dumps((args, kwargs), PROTOCOL)
            if (len(data) < _WORTH_A_LOOK or kwargs or not _PLAIN.issuperset(map(type, args))) and program.mentions(data):
                data = pickles.dumps((args, kwargs))
    except Exception:  # noqa: BLE001 - __reduce__ of user classes may raise anything; cloudpickle says what
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
        return pickles.dumps((args, kwargs))
    except FutureHasNoValue as error:
        raise FutureHasNoValue(f"an argument of {function} holds a Future: pass its value, future.result()") from error
    except Exception as error:  # noqa: BLE001 - as above
        for name, value in named:
            if (why := _why_not(value)) is not None:
                message = f"{name} of {function}, a {type(value).__qualname__}, cannot be pickled: {_message_of(why)}"
                raise PickleFailed(message, hint=_hint(why, _PLAIN_DATA)) from None
        message = f"the arguments of {function} cannot be pickled: {type(error).__name__}: {error}"
        raise PickleFailed(message, hint=_PLAIN_DATA) from None


def dump_function(function: Callable[..., Any]) -> tuple[bytes, Snapshot]:
    """Pickles a function, by value if no import can find it, else by name; returns also what the pickle depends on. Raises PickleFailed."""
    file = io.BytesIO()
    try:
        front, snapshot = pickles.dump(function, file)
        return front + file.getvalue(), snapshot
    except PickleFailed as error:
        raise PickleFailed(f"the function {name_of(function)} cannot be pickled: {error.message}", hint=error.hint) from error
    except Exception as error:  # noqa: BLE001 - as above
        raise PickleFailed(
            f"the function {name_of(function)} cannot be pickled: {_message_of(error)}",
            hint=_hint(error, "it, or what it refers to, holds something that cannot travel: an open file, a lock, a connection"),
        ) from None


def dump_initializer(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Pickles an initializer with its arguments. Raises PickleFailed naming the argument, or the function."""
    file = io.BytesIO()
    try:
        return pickles.dump((function, args), file)[0] + file.getvalue()
    except Exception:
        _dump_call_slowly(args, {}, f"the initializer {name_of(function)}")
        dump_function(function)
        raise


def dump_value(value: Any, what: str) -> Payload:
    """Pickles any object. Raises PickleFailed naming `what`; ValueTooLarge."""
    data: Payload
    try:
        data = scattered(value, PROTOCOL) if is_large((value,)) else pickles.plain_or_own(value)
    except Exception:  # noqa: BLE001 - as above
        try:
            data = pickles.dumps(value)
        except Exception as error:  # noqa: BLE001 - as above
            message = f"{what}, a {type(value).__qualname__}, cannot be pickled: {_message_of(error)}"
            raise PickleFailed(message, hint=_hint(error, "")) from None
    if len(data) > MAX_VALUE_BYTES:
        raise ValueTooLarge(f"{what} has {len(data)} bytes; the limit is {MAX_VALUE_BYTES}", hint="store it in parts, under several keys")
    return data


def load(data: bytes, encoding: Encoding, what: str) -> object:
    """Returns the object that bytes of the store encode. Raises PickleFailed naming `what`."""
    if encoding is not Encoding.PICKLE:
        return data
    try:
        return loads(data)
    except RAISED as error:  # as above
        raise unreadable(what, error) from error


def unreadable(what: str, error: BaseException) -> PickleFailed:
    """Returns the error for a value that cannot be unpickled."""
    why = f"{what} cannot be unpickled here: {type(error).__name__}: {error}"
    return PickleFailed(why, hint="is the module that defines it importable here?")


def name_of(function: object) -> str:
    """Returns the function's name as errors and job lists show it."""
    while isinstance(function, functools.partial):
        function = function.func
    name = program.text_of(function, "__qualname__") or type(function).__qualname__
    module = program.text_of(function, "__module__")
    return name if module in {None, "builtins", "__main__"} else f"{module}.{name}"


def stays_here(what: str, instead: str) -> NoReturn:
    """Raises PickleFailed, for `__reduce__` of an object that belongs to one process. instead: what the user should do."""
    raise PickleFailed(f"{what} stays in its process", hint=f"{instead}; an object that holds one leaves it out in __getstate__")


def _why_not(value: object) -> Exception | None:
    try:
        pickles.dumps(value)
    except Exception as error:  # noqa: BLE001 - as above
        return error
    return None


def _message_of(error: Exception) -> str:
    return error.message if isinstance(error, RmgrError) else f"{type(error).__name__}: {error}"


def _hint(error: Exception, otherwise: str) -> str:
    return error.hint if isinstance(error, RmgrError) and error.hint else otherwise


# -- functions -----------------------------------------------------------------------------------------------------------------


class Functions:
    """Functions that this process has uploaded, each once, named by the hash of their pickle. Thread-safe.

    A plain function is pickled again only if something it refers to was rebound (a global of it or of a function that it calls, a
    closure's variable, a default), because what it holds may be large. Other callables (bound methods, partials, objects)
    carry state that may change in place and are pickled at each use; equal bytes are still uploaded only once.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._pickled: OrderedDict[int, tuple[weakref.ref[Any], tuple[Any, ...], Snapshot, str]] = OrderedDict()
        self._stored: OrderedDict[str, float] = OrderedDict()  #: id -> time of the last check that it is stored

    def register(self, function: Callable[..., Any], *, timeout_s: float = 30.0) -> str:
        """Uploads `function` if the store lacks it; returns its id (sha256 of its pickle).

        Raises: PickleFailed, StoreUnavailable. Cost: a dictionary look-up for an unchanged plain function.
        """
        if not callable(function):
            raise UsageError(f"{function!r} is not a function", hint="give a function, or the id that connect().register(f) returned")
        if not program.mine().is_here:
            _check_ends(function)
        if type(function) is not types.FunctionType and not _is_of_module(function):
            return self._upload(dump_function(function)[0], function, timeout_s)
        refers = _refers(function)
        with self._lock:
            known = self._pickled.get(id(function))
            is_known = known is not None and known[0]() is function and _is_same(known[1], refers) and known[2].holds()
            if known is not None and is_known and self._is_stored(known[3]):
                return known[3]
        data, snapshot = dump_function(function)
        digest = self._upload(data, function, timeout_s)
        with self._lock:
            number = id(function)
            self._pickled[number] = (weakref.ref(function, lambda _: self._pickled.pop(number, None)), refers, snapshot, digest)
            while len(self._pickled) > _MAX_FUNCTIONS:
                self._pickled.popitem(last=False)
        return digest

    def check(self, digest: str, *, timeout_s: float = 30.0) -> str:
        """Returns `digest` if the store has a function of that id. Raises NotFound, UsageError."""
        with self._lock:
            if self._is_stored(digest):
                return digest
        if not renew_content(self._store, keys.function(digest), timeout_s=timeout_s):
            raise NotFound(f"there is no function {digest}", hint="its id is what connect().register(f) returned")
        self._remember(digest)
        return digest

    def initializer(self, data: bytes, *, timeout_s: float = 30.0) -> str:
        """Uploads a pickled initializer with its arguments; returns its id. Raises: ValueTooLarge, StoreUnavailable."""
        if len(data) > MAX_INITIALIZER_BYTES:
            raise ValueTooLarge(
                f"the initializer has {len(data)} bytes with its arguments; the limit is {MAX_INITIALIZER_BYTES}",
                hint="put large data into the data store and have the initializer get it by its key",
            )
        return self._put(data, timeout_s)

    def _put(self, data: bytes, timeout_s: float) -> str:
        digest = hashlib.sha256(data).hexdigest()
        with self._lock:
            if self._is_stored(digest):
                return digest
        put_content(self._store, keys.function(digest), data, timeout_s=timeout_s)
        self._remember(digest)
        return digest

    def _upload(self, data: bytes, function: Callable[..., Any], timeout_s: float) -> str:
        if len(data) > MAX_FUNCTION_BYTES:
            raise ValueTooLarge(
                f"the function {name_of(function)} has {len(data)} bytes with all that it holds; the limit is {MAX_FUNCTION_BYTES}",
                hint="put large data into the data store and pass its key",
            )
        return self._put(data, timeout_s)

    def _is_stored(self, digest: str) -> bool:
        """Returns whether the function was stored when last checked, not long ago. Under the lock."""
        known_s = self._stored.get(digest)
        return known_s is not None and machine.monotonic() - known_s < TRUSTED_S

    def _remember(self, digest: str) -> None:
        with self._lock:
            self._stored[digest] = machine.monotonic()
            while len(self._stored) > _MAX_KNOWN:
                self._stored.popitem(last=False)


def _check_ends(function: object) -> None:
    """Raises UsageError in a worker that is importing the module of `function`: each worker would do so, and make its call, without end."""
    if isinstance(function, functools.partial):
        for part in (function.func, *function.args):
            _check_ends(part)
        return
    module = program.text_of(function, "__module__")
    if module is not None and (begun := being_imported(module)) is not None:
        raise UsageError(
            f"importing the module {begun} calls {name_of(function)} on the cluster, and the node that runs the call imports {begun}",
            hint='put what makes calls into a function, or below `if __name__ == "__main__":`',
        )


def _is_of_module(function: object) -> bool:
    """Returns whether the function is of a C module, which has no state of its own."""
    return type(function) is types.BuiltinFunctionType and isinstance(function.__self__, types.ModuleType)


def _refers(function: Callable[..., Any]) -> tuple[Any, ...]:
    """Returns the function's own parts that change its pickle, without the function itself (no cycle)."""
    if not isinstance(function, types.FunctionType):
        return ()
    cells = [None if (value := _content(cell)) is function else value for cell in function.__closure__ or ()]
    parts = function.__code__, function.__defaults__, function.__kwdefaults__, *cells
    return (*parts, pickles.definitions().looked) if cells else parts  # what they hold may change in place


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return _MISSING


def _is_same(old: tuple[Any, ...], new: tuple[Any, ...]) -> bool:
    return len(old) == len(new) and all(map(operator.is_, old, new))


# -- modules -------------------------------------------------------------------------------------------------------------------


def ship(store: Store, modules: Iterable[ModuleType | str], *, timeout_s: float = 30.0) -> tuple[str, ...]:
    """Uploads modules and packages (objects or names) that workers lack; returns their ids for `PythonEnvironment.modules`.

    Raises: UsageError for a module that cannot be shipped; ValueTooLarge; StoreUnavailable.
    """
    digests = []
    for module in modules:
        data = pack(module)
        digest = hashlib.sha256(data).hexdigest()
        put_content(store, keys.module(digest), data, timeout_s=timeout_s)
        digests.append(digest)
    return tuple(digests)


def pack(module: ModuleType | str) -> bytes:
    """Packs a module or package as a zip file for sys.path; the same files give the same bytes (sorted, without timestamps)."""
    import zipfile

    if isinstance(module, str):
        try:
            module = importlib.import_module(module)
        except ImportError as error:
            message = f"the module {module!r} cannot be shipped: it cannot be imported here: {error}"
            raise UsageError(message, hint="install it here, or leave it out of modules=[...]") from error
    if not isinstance(module, ModuleType):
        raise UsageError(f"{module!r} is not a module", hint="modules=[mypackage], or its name")
    name = module.__name__
    if where := getattr(getattr(module, "__loader__", None), "archive", ""):
        told = f"the module {name} cannot be shipped: it lies in the archive {where}"
        raise UsageError(told, hint="unpack that archive, or let the nodes have it in the same place")
    parents = name.split(".")[:-1]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for depth in range(len(parents)):
            _add(archive, "/".join([*parents[: depth + 1], "__init__.py"]), b"")
        for path, inside in sorted(_files(module), key=lambda pair: pair[1]):
            if path.suffix in importlib.machinery.EXTENSION_SUFFIXES or path.name.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)):
                raise UsageError(
                    f"the module {name} cannot be shipped: {path.name} is compiled",
                    hint="install it where the work runs, or point --python at an environment that has it",
                )
            _add(archive, "/".join([*parents, inside]), path.read_bytes())
    data = out.getvalue()
    if len(data) > MAX_MODULE_BYTES:
        raise ValueTooLarge(
            f"the module {name} has {len(data)} bytes packed; the limit is {MAX_MODULE_BYTES}", hint="install it where the work runs"
        )
    return data


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    import zipfile

    info = zipfile.ZipInfo(name, _STAMP)
    info.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(info, data)


def _files(module: ModuleType) -> Iterator[tuple[Path, str]]:
    """Yields (file, its name below the module's parent)."""
    from pathlib import Path

    short = module.__name__.rpartition(".")[2]
    for entry in getattr(module, "__path__", None) or ():
        root = Path(entry)
        for path in root.rglob("*"):
            below = path.relative_to(root)
            if path.is_file() and not _SKIPPED.intersection(below.parts) and path.suffix != ".pyc":
                yield path, f"{short}/{below.as_posix()}"
    if not hasattr(module, "__path__"):
        source = getattr(module, "__file__", None)
        if not source or not source.endswith((".py", *importlib.machinery.EXTENSION_SUFFIXES)):
            message = f"the module {module.__name__} cannot be shipped: it has no source file"
            raise UsageError(message, hint="install it where the work runs")
        yield Path(source), Path(source).name
