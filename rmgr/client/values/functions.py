"""Functions in the data store: pickled, named by their content, uploaded once.

A plain function is pickled again only when something it refers to was bound anew (a global of it or of a function that it calls,
a closure's variable, a default): what it holds may be large. Anything else that can be called (bound methods, partials, objects)
carries state that may change in place, and is pickled at each use; equal bytes are uploaded once all the same.
"""

from __future__ import annotations

import hashlib
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from rmgr.client.values.content import put_once
from rmgr.client.values.pickling import dump_function, name_of
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Store
from rmgr.errors import NotFound, UsageError, ValueTooLarge
from rmgr.model.tasks.submission import MAX_FUNCTION_BYTES, MAX_INITIALIZER_BYTES
from rmgr.runner.program import Snapshot

#: Plain functions whose pickle is remembered, and hashes known to be in the store.
_MAX_FUNCTIONS = 256
_MAX_KNOWN = 10_000
_MISSING = object()


class Functions:
    """Functions that this process has uploaded. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._pickled: OrderedDict[int, tuple[weakref.ref[Any], tuple[Any, ...], Snapshot, str]] = OrderedDict()
        self._stored: OrderedDict[str, None] = OrderedDict()

    def register(self, function: Callable[..., Any], *, timeout_s: float = 30.0) -> str:
        """Uploads `function` if the store lacks it; returns its id (sha256 of its pickle).

        Raises: PickleFailed, StoreUnavailable. Cost: a dictionary look-up for a plain function that has not changed.
        """
        if not callable(function):
            raise UsageError(f"{function!r} is not a function", hint="give a function, or the id that connect().register(f) returned")
        if type(function) is not types.FunctionType and not _is_of_module(function):
            return self._upload(dump_function(function)[0], function, timeout_s)
        refers = _refers(function)
        with self._lock:
            known = self._pickled.get(id(function))
            if known is not None and known[0]() is function and _same(known[1], refers) and known[2].holds():
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
        """`digest` if a function of that id is in the store. Raises NotFound, UsageError."""
        with self._lock:
            if digest in self._stored:
                return digest
        if self._store.head(keys.function(digest), timeout_s=timeout_s) is None:
            raise NotFound(f"there is no function {digest}", hint="its id is what connect().register(f) returned")
        self._remember(digest)
        return digest

    def initializer(self, data: bytes, *, timeout_s: float = 30.0) -> str:
        """Uploads an initializer with its arguments, pickled; returns its id. Raises: ValueTooLarge, StoreUnavailable."""
        if len(data) > MAX_INITIALIZER_BYTES:
            raise ValueTooLarge(
                f"the initializer has {len(data)} bytes with its arguments; the limit is {MAX_INITIALIZER_BYTES}",
                hint="put large data into the data store and have the initializer get it by its key",
            )
        return self._put(data, timeout_s)

    def _put(self, data: bytes, timeout_s: float) -> str:
        digest = hashlib.sha256(data).hexdigest()
        with self._lock:
            if digest in self._stored:
                return digest
        if self._store.head(keys.function(digest), timeout_s=timeout_s) is None:
            put_once(self._store, keys.function(digest), data, timeout_s=timeout_s)
        self._remember(digest)
        return digest

    def _upload(self, data: bytes, function: Callable[..., Any], timeout_s: float) -> str:
        if len(data) > MAX_FUNCTION_BYTES:
            raise ValueTooLarge(
                f"the function {name_of(function)} has {len(data)} bytes with all that it holds; the limit is {MAX_FUNCTION_BYTES}",
                hint="put large data into the data store and pass its key",
            )
        return self._put(data, timeout_s)

    def _remember(self, digest: str) -> None:
        with self._lock:
            self._stored[digest] = None
            while len(self._stored) > _MAX_KNOWN:
                self._stored.popitem(last=False)


def _is_of_module(function: object) -> bool:
    """A function of a module in C: it has no state of its own."""
    return type(function) is types.BuiltinFunctionType and isinstance(function.__self__, types.ModuleType)


def _refers(function: Callable[..., Any]) -> tuple[Any, ...]:
    """What of the function itself changes its pickle; the function is left out (no cycle)."""
    if not isinstance(function, types.FunctionType):
        return ()
    code = function.__code__
    cells = [_content(cell) for cell in function.__closure__ or ()]
    return tuple(None if value is function else value for value in (code, function.__defaults__, function.__kwdefaults__, *cells))


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return _MISSING


def _same(old: tuple[Any, ...], new: tuple[Any, ...]) -> bool:
    return len(old) == len(new) and all(one is other for one, other in zip(old, new, strict=True))
