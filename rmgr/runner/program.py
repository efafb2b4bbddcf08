"""One program, one `__main__`, wherever its functions run: pickles that name what a program defines, and bring each definition once.

A *program* is a client process. What it defines where no node can import it (`__main__`, modules that pytest has rewritten, modules made at
run time) are its **names**. A pickle does not hold their values; it says `_named(program, module, name)`, and `hold(...)` in front of it
brings the definitions that its reader may lack, in **groups** that were pickled together. A worker serves one program: it sets each name in
its own `__main__` once for each version, so that functions, initializers and results share one dictionary of globals, as in the workers of
a process pool. What a worker has set itself stays until the program binds that name anew. Reading a pickle never changes a name that the
program itself has.

Imported by clients and workers: standard library, cloudpickle, rmgr.errors, `modules`, `native` only.
"""

from __future__ import annotations

import builtins
import contextlib
import contextvars
import copyreg
import dis
import enum
import functools
import gc
import io
import os
import pickle
import random
import re
import struct
import sys
import threading
import time
import traceback
import types
import typing
import weakref
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle
from cloudpickle import cloudpickle as cp

from rmgr.errors import PickleFailed
from rmgr.runner import modules, native
from rmgr.runner.modules import MAIN, SPAWNED_MAIN, main_or

PROTOCOL = 5
#: (module, name).
Name = tuple[str, str]
#: `inspect` finds classes by the file of their module, and programs their directory.
_FILE = "__file__"
_MISSING = object()
_SMALL_FRONT = 64 * 1024
_UNREAD = "definitions of the program that the call needs could not be read, those of"
_MAKE_IT_THERE = "make it in the function, or in an initializer of an Executor: it cannot travel"
#: With what a function brings the text of its cell, and the longest text.
_CELL, _MOST_CELL = "_rmgr_cell", 64 * 1024
_LRU = type(functools.lru_cache(None)(id))
#: Attributes that `functools.update_wrapper`, `lru_cache` and `singledispatch` set themselves.
_OF_WRAPPERS = frozenset(
    (*functools.WRAPPER_ASSIGNMENTS, "__wrapped__", "cache_parameters", "register", "dispatch", "registry", "_clear_cache")
)
_lock = threading.RLock()


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Names that were pickled together, so that shared objects stay shared. at: number of groups made before. needs: every name that one of
    them mentions. values: what they were bound to."""

    at: int
    versions: tuple[tuple[str, str, int], ...]
    data: bytes
    needs: frozenset[Name]
    values: dict[Name, object]


@dataclass(slots=True)
class _Bound:
    """A name as last sent or received. group: None if it would have to be pickled."""

    value: object
    version: int
    group: _Group | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a pickle depends on. A later pickle is the same as long as each name is bound to the same object."""

    bound: tuple[tuple[dict[str, Any], str, object], ...] = ()

    def holds(self) -> bool:
        """Returns whether no name was bound anew. Cost: 0.1 us a name."""
        return all(namespace.get(name, _MISSING) is value for namespace, name, value in self.bound)


class Program:
    """A program as this process knows it.

    is_here: this process is the program, and its own names win. is_own: this process is the program or its worker, and `__main__` is the
    program's.
    """

    def __init__(self, number: str, *, is_here: bool, is_own: bool) -> None:
        self.number = number
        self.is_here = is_here
        self.is_own = is_own
        self._bound: dict[Name, _Bound] = {}
        self.names_of: dict[int, list[Name]] = {}  # the same the other way: by id of the value
        self._left_out: dict[Name, tuple[object, str]] = {}  # values that cannot be pickled, and why
        self._modules: dict[str, types.ModuleType] = {}  # made here
        self._groups = 0  # made so far
        self._last_version = 0
        self.last_front: tuple[list[_Group], bytes] = ([], b"")
        #: "group": of the workers that have its values as they were last looked at, "" as long as none had changed in place.
        self.workers: dict[str, Any] = {"group": ""}
        self.looked = object()  # another one after each look

    # -- names -------------------------------------------------------------------------------------------------------

    def modules(self) -> Iterable[str]:
        """Returns the names of modules that only the program has."""
        return modules.unimportable() if self.is_here else (MAIN, *self._modules)

    def namespace(self, module: str) -> dict[str, Any]:
        """Returns the globals here of one of its modules."""
        if self.is_own and module in sys.modules:
            return vars(sys.modules[module])
        made = self._modules.get(module)
        if made is None:
            made = self._modules[module] = types.ModuleType(module)
            vars(made)["__builtins__"] = builtins
            if self.is_own and not self.is_here:
                sys.modules[module] = made  # functions in it may be pickled by name, for a process pool in a task
        return vars(made)

    def name_of(self, thing: object) -> tuple[str, str] | None:
        """Returns (module, qualified name) of a function or class that its module has under that name, else None."""
        if (qualname := text_of(thing, "__qualname__")) is None or (module := text_of(thing, "__module__")) is None:
            return None
        module = main_or(module)
        return (module, qualname) if self.has(thing, module, qualname) else None

    def has(self, thing: object, module: str, qualname: str) -> bool:
        """Returns whether one of its modules has this object under that name."""
        return module in self.modules() and self._look_up(module, qualname) is thing

    def module_with(self, namespace: dict[str, Any]) -> str | None:
        """Returns the module with these globals."""
        for module in self.modules():
            if module in sys.modules and self.is_own:
                if vars(sys.modules[module]) is namespace:
                    return module
            elif module in self._modules and vars(self._modules[module]) is namespace:
                return module
        return None

    def _look_up(self, module: str, qualname: str) -> object:
        first, *rest = qualname.split(".")
        found: object = self.namespace(module).get(first, _MISSING)
        for step in rest:
            found = vars(found).get(step, _MISSING) if isinstance(found, type) else _MISSING
            found = getattr(found, "__func__", found)  # of a class method
        return found

    def get(self, module: str, qualname: str) -> object:
        """Returns the object that a pickle names. Raises: AttributeError if it is not here."""
        found = self._look_up(module, qualname)
        if found is _MISSING:
            raise AttributeError(f"{module} of this program has no {qualname!r}")
        return found

    # -- reading -----------------------------------------------------------------------------------------------------

    def load(self, versions: tuple[tuple[str, str, int], ...], data: bytes) -> None:
        """Sets those names of a group that are newer than this process's; a program keeps all names that it has itself."""
        if self.is_here:
            wanted = [entry for entry in versions if entry[1] not in self.namespace(entry[0])]
        else:
            wanted = [entry for entry in versions if entry[2] > self.version_of(entry[0], entry[1])]
        if not wanted:
            return
        try:
            values: dict[Name, object] = loads(data)
        except Exception as error:  # code of users raises anything
            names = ", ".join(name for _, name, _ in versions[:10])
            with contextlib.suppress(Exception):  # a class may refuse attributes
                error.add_note(f"{_UNREAD} {names}{', ...' * (len(versions) > 10)}")
            raise
        for module, name, version in wanted:
            self._last_version = max(self._last_version, version)
            self.namespace(module)[name] = values[module, name]
            self._bind((module, name), _Bound(values[module, name], version))

    def version_of(self, module: str, name: str) -> int:
        """Returns the last version received of a name, 0 if none."""
        bound = self._bound.get((module, name))
        return bound.version if bound is not None else 0

    # -- writing -----------------------------------------------------------------------------------------------------

    def groups_of(self, needs: Iterable[Name], strict: Iterable[Name] = ()) -> tuple[list[_Group], Snapshot]:
        """Returns the groups, oldest first, of all names that `needs` reach.

        Args:
            strict: names without which the work cannot run. Other names are left out if they cannot be pickled: a class may have a
                method that uses a connection, and is not called there.
        Raises: PickleFailed naming one of `strict`.
        """
        with _lock:
            must = self._reached(strict)
            seen: dict[Name, object] = {}
            todo = [*needs, *must]
            fresh: set[Name] = set()
            while todo:
                name = todo.pop()
                if name in seen:
                    continue
                value = seen[name] = self.namespace(name[0]).get(name[1], _MISSING)
                if value is _MISSING or (name not in must and self._is_left_out(name, value)):
                    continue
                bound = self._bound.get(name)
                if bound is not None and bound.value is value and bound.group is not None:
                    todo.extend(bound.group.needs)
                else:
                    fresh.add(name)
                    todo.extend(self._mentioned(value))
            if fresh:
                alone = {name for name in fresh if name[1] == _FILE}  # nearly all need it; nothing large must come with it
                self._make_group(alone or fresh, must)
                return self.groups_of(needs, strict)
            groups = {group for name in seen if name in self._bound and (group := self._bound[name].group) is not None}
            bound_now = [(self.namespace(name[0]), name[1], value) for name, value in seen.items()]
            bound_now.append((self.workers, "group", self.workers["group"]))
            return sorted(groups, key=lambda group: group.at), Snapshot(tuple(bound_now))

    def look_again(self) -> None:
        """Forgets what was pickled if a value has changed in place since: later work has values as they are now, in fresh workers, as in a
        new pool of processes. Workers that have them keep theirs, with what an initializer has made of them: names keep their versions.
        Cost: pickles what was sent."""
        if not self.is_here:
            return
        with _lock:
            self.looked = object()
            can_travel = [name for name, (value, _) in self._left_out.items() if self._can_travel(name, value)]
            for name in can_travel:
                del self._left_out[name]
            groups = {bound.group for bound in self._bound.values() if bound.group is not None}
            if can_travel or any(map(self._has_changed, groups)):
                for bound in self._bound.values():
                    bound.group = None  # all of them: groups name what other groups have
                self.workers["group"] = os.urandom(16).hex()

    def _has_changed(self, group: _Group) -> bool:
        try:
            versions = {(module, name): version for module, name, version in group.versions}
            return self._pickled(group.values, versions, group.at)[0] != group.data
        except Exception:  # noqa: BLE001 - __reduce__ of user classes may raise anything
            return True

    def _can_travel(self, name: Name, value: object) -> bool:
        """Returns whether a value that was left out can be pickled by now."""
        try:
            self._pickled({name: value}, {name: 0})
        except Exception:  # noqa: BLE001 - __reduce__ of user classes may raise anything
            return False
        return self.namespace(name[0]).get(name[1], _MISSING) is value

    def _is_left_out(self, name: Name, value: object) -> bool:
        return self._left_out.get(name, (_MISSING, ""))[0] is value

    def explain(self, error: BaseException) -> None:
        """Adds to an error of a call, which has not found a name, why the name did not travel; to one of definitions that could not be
        read, which of them. Cost: nothing for other errors; reads all values that were sent."""
        notes = getattr(error, "__notes__", ())
        if isinstance(error, NameError) and (found := _NOT_DEFINED.match(str(error))):
            told = [why for (_, name), (_, why) in self._left_out.items() if name == found[1]]
        elif any(note.startswith(_UNREAD) for note in notes if isinstance(note, str)):
            told = [why for name, bound in list(self._bound.items()) if (why := self._why_unread(name, bound.value))]
        else:
            return
        for why in told:
            if why not in notes:
                error.add_note(why)

    def _why_unread(self, name: Name, value: object) -> str:
        """Returns why no process could read a value, "" if it can be read."""
        try:
            loads(self._pickled({name: value}, {name: 0})[0])
        except Exception as why:  # noqa: BLE001 - code of users
            kind = type(value).__qualname__
            told = f"{name[1]}, a {kind} of {name[0]}, can be pickled, and not be read again: {type(why).__name__}: {why}"
            return f"{told}\nhint: {_MAKE_IT_THERE}"
        return ""

    def _make_group(self, names: set[Name], must: set[Name]) -> None:
        """Pickles names together, with further names that they turn out to need. Raises: PickleFailed."""
        while True:
            values = {name: self.namespace(name[0])[name[1]] for name in names}
            versions = {name: self._next_version(name, value) for name, value in values.items()}
            try:
                data, found = self._pickled(values, versions)
            except Exception as error:  # noqa: BLE001 - __reduce__ of user classes may raise anything
                names = names - self._leave_out(values, versions, must, error)
                if not names:
                    return
                continue
            more = {name for name in found - names if self._is_fresh(name)}
            if not more:
                break
            names = names | more
        group = _Group(self._groups, tuple((*name, versions[name]) for name in values), data, frozenset(found | names), values)
        self._groups += 1
        for name, value in values.items():
            self._bind(name, _Bound(value, versions[name], group))
        for name in [name for name in self._bound if name[1] not in self.namespace(name[0])]:
            self._unbind(name)  # it may be large

    def _bind(self, name: Name, bound: _Bound) -> None:
        known = self._bound.get(name)
        if known is None or known.value is not bound.value:
            self._unbind(name)
            self.names_of.setdefault(id(bound.value), []).append(name)
        self._bound[name] = bound

    def _unbind(self, name: Name) -> None:
        if (bound := self._bound.pop(name, None)) is not None:
            names = self.names_of[id(bound.value)]
            names.remove(name)
            if not names:
                del self.names_of[id(bound.value)]

    def still_binds(self, name: Name, value: object, before: int | None) -> bool:
        """Returns whether a name that was sent or received is still bound to that value. before: not if its group has that number or a
        later one."""
        bound = self._bound[name]
        if bound.value is not value or (before is not None and bound.group is not None and bound.group.at >= before):
            return False
        return self.namespace(name[0]).get(name[1]) is value

    def _is_fresh(self, name: Name) -> bool:
        value = self.namespace(name[0]).get(name[1], _MISSING)
        if value is _MISSING or self._is_left_out(name, value):
            return False
        bound = self._bound.get(name)
        return bound is None or bound.value is not value or bound.group is None

    def _next_version(self, name: Name, value: object) -> int:
        """Returns the version of a name as it is bound now.

        The program counts in nanoseconds of its clock. A worker, whose clock may differ, counts on from the versions that it has seen, so
        that the program's next version is newer.
        """
        bound = self._bound.get(name)
        if bound is not None and bound.value is value:
            return bound.version
        self._last_version = max(self._last_version + 1, time.time_ns() if self.is_here else 0)
        return self._last_version

    def _pickled(self, values: Mapping[Name, object], versions: Mapping[Name, int], at: int | None = None) -> tuple[bytes, set[Name]]:
        file = io.BytesIO()
        pickler = _Pickler(file, self, versions, at)
        pickler.dump(dict(values))
        return file.getvalue(), pickler.needs

    def _leave_out(self, values: Mapping[Name, object], versions: Mapping[Name, int], must: set[Name], error: Exception) -> set[Name]:
        """Returns names that cannot be pickled. Raises: PickleFailed for one of `must`; `error` if each can be pickled alone."""
        bad: set[Name] = set()
        for name, value in values.items():
            try:
                self._pickled({name: value}, {name: versions[name]})
            except Exception as why:
                told = f"{name[1]}, a {type(value).__qualname__} of {name[0]}, cannot be pickled: {type(why).__name__}: {why}"
                if name in must:
                    raise PickleFailed(told, hint=_MAKE_IT_THERE) from why
                self._left_out[name] = value, f"{told}\nhint: {_MAKE_IT_THERE}"
                bad.add(name)
        if not bad:
            raise error
        return bad

    # -- what code mentions ----------------------------------------------------------------------------------------------

    def _reached(self, names: Iterable[Name]) -> set[Name]:
        """Returns these names and those that their functions mention, recursively; not through classes."""
        found: set[Name] = set()
        todo = list(names)
        while todo:
            name = todo.pop()
            if name in found:
                continue
            found.add(name)
            value = self.namespace(name[0]).get(name[1])
            if type(value) is types.FunctionType:
                todo.extend(self.mentioned_by(value))
        return found

    def _mentioned(self, value: object) -> Iterator[Name]:
        """Yields names mentioned by functions and by methods of classes, so that all are pickled in one go."""
        if type(value) is types.FunctionType:
            yield from self.mentioned_by(value)
        elif isinstance(value, type):
            for member in vars(value).values():
                function = getattr(member, "__func__", getattr(member, "fget", member))
                if isinstance(function, types.FunctionType):
                    yield from self.mentioned_by(function)
        elif type(value) is _LRU:
            yield from self._mentioned(value.__wrapped__)

    def needed_by(self, function: types.FunctionType) -> set[Name]:
        """Returns its own name if it has one, else the names that its code uses."""
        name = self.name_of(function)
        return {(name[0], name[1].partition(".")[0])} if name is not None else self.mentioned_by(function)

    def mentioned_by(self, function: types.FunctionType) -> set[Name]:
        """Returns names of the program that the code of a function uses."""
        module = self.module_with(function.__globals__)
        if module is None:
            return set()
        return {(module, name) for name in _globals_of(function.__code__) if name in function.__globals__}

    def names_in(self, module: str) -> set[Name]:
        """Returns the names that one of its modules has, without Python's own."""
        return {(module, name) for name in self.namespace(module) if not name.startswith("__")}

    def perhaps_mentioned_by(self, thing: types.FunctionType | type) -> set[Name]:
        """Returns names that its code may look up as text, those of modules that it imports, and those in its annotations; it may well run
        without them."""
        module = main_or(thing.__module__)
        if isinstance(thing, types.FunctionType):
            module = self.module_with(thing.__globals__) or ""
        if module not in self.modules():
            return set()
        if isinstance(thing, types.FunctionType):
            where = {module} if _looks_up(thing.__code__) else set()
            where.update(imported for imported in _imports_of(thing.__code__) if imported in self.modules())
            found = {name for one in where for name in self.names_in(one)}
        else:
            found = set()
        namespace = self.namespace(module)
        texts = [text for text in annotations_of(thing).values() if isinstance(text, str)]
        found.update((module, name) for text in texts for name in _WORD.findall(text) if name in namespace)
        return found


def annotations_of(thing: types.FunctionType | type) -> Mapping[str, object]:
    """Returns its own annotations; as text if they name what is not there, as they may since Python 3.14 computes them late."""
    if sys.version_info < (3, 14) and isinstance(thing, type):
        own: Mapping[str, object] = vars(thing).get("__annotations__", {})  # asking it would give it some, and make another pickle of it
        return own
    try:
        return getattr(thing, "__annotations__", {})
    except Exception:
        if sys.version_info < (3, 14):
            raise
        import annotationlib  # type: ignore[import-not-found,unused-ignore]

        return annotationlib.get_annotations(thing, format=annotationlib.Format.STRING)


def text_of(thing: object, attribute: str) -> str | None:
    """Returns an attribute that is text, else None: `__getattr__` of users' classes may return or raise anything."""
    try:
        found = getattr(thing, attribute, None)
    except Exception:  # noqa: BLE001 - as above
        return None
    return found if isinstance(found, str) else None


def _reduce_code(code: types.CodeType) -> Any:
    """Keeps the name of the code's file, for tracebacks."""
    maker, arguments = cp._code_reduce(code)  # noqa: SLF001 - which leaves it out from 3.1.2 on
    named = (code.co_filename if isinstance(argument, str) and argument == "<dynamic-code>" else argument for argument in arguments)
    return maker, tuple(named)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Names what the program defines; objects without a name travel by value, with the program's globals instead of a copy.

    Args:
        versions: of the group being pickled, whose names are defined here; None: everything is named.
        at: number of the group being pickled, if it was pickled before: groups made later had no names then.
    """

    dispatch_table = ChainMap({types.CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table)

    def __init__(self, file: Any, program: Program, versions: Mapping[Name, int] | None = None, at: int | None = None) -> None:
        super().__init__(file, PROTOCOL)
        self._program = program
        self._versions = versions
        self.needs: set[Name] = set()
        #: Without these the pickle cannot be read.
        self.named: set[Name] = set()
        self._cells: dict[str, tuple[str, str] | None] = {}
        self._variables: dict[int, _Variable] = {}
        #: Where the instances of a class lie in modules, by id. Each is held, so ids stay theirs.
        self._homes: dict[type, dict[int, tuple[types.ModuleType, str, object]]] = {}
        self._guarded: dict[type, bool] = {}
        self._ways: dict[type, Callable[[Any], Any] | None] = {}
        #: Names of the program by id of their values.
        self._known: dict[int, Name] | None = None
        self._at = at

    def reducer_override(self, thing: Any) -> Any:
        """Returns how functions, classes and shared objects are pickled; everything else is left to pickle."""
        if self._versions is not None and id(thing) in self._program.names_of and (other := self._other_name(thing)) is not None:
            return self._name(*other)
        kind = type(thing)
        is_class = isinstance(thing, type)
        if not is_class and kind is not types.FunctionType and kind is not _LRU:
            return self._reduce_other(thing, kind)
        name = self._program.name_of(thing)
        if name is not None and not self._defines(name):
            return self._name(*name)
        if kind is _LRU:
            return _cached, (thing.__wrapped__, thing.cache_parameters(), _own(thing))
        if not is_class:
            return self._reduce_function(thing)
        return self._reduce_class(thing, name)

    def _other_name(self, thing: Any) -> Name | None:
        """Returns the name of an object that another group defines: an object that two names share stays one object."""
        names, own = reversed(self._program.names_of[id(thing)]), self._versions or {}
        return next((name for name in names if name not in own and self._program.still_binds(name, thing, self._at)), None)

    def _defines(self, name: tuple[str, str]) -> bool:
        return self._versions is not None and (name[0], name[1].partition(".")[0]) in self._versions

    def _name(self, module: str, qualname: str) -> Any:
        self.needs.add(name := (module, qualname.partition(".")[0]))
        self.named.add(name)
        return _named, (self._program.number, module, qualname)

    def _reduce_other(self, thing: Any, kind: type) -> Any:
        name = self._program.name_of(thing)
        if name is not None:  # e.g. made by a decorator that is a class
            if not self._defines(name):
                return self._name(*name)
            if kind is typing.NewType:
                return _new_type, (thing.__qualname__, thing.__supertype__, thing.__module__)
        if issubclass(kind, types.ModuleType):
            return self._reduce_module(thing, kind)
        if issubclass(kind, _DESCRIPTORS) and kind not in _DESCRIPTORS and kind.__reduce_ex__ is object.__reduce_ex__:
            base = next(parent for parent in _DESCRIPTORS if issubclass(kind, parent))
            parts = (thing.fget, thing.fset, thing.fdel, thing.__doc__) if base is property else (thing.__func__,)
            return _descriptor, (kind, base, parts), dict(vars(thing))
        if kind is functools.cached_property:  # with a lock, up to Python 3.11
            return _cached_property, (thing.func, thing.attrname)
        if kind is functools.partialmethod:  # whose `__new__` needs its function, since Python 3.14
            return _partial_method, (thing.func, thing.args, thing.keywords)
        if kind in _WEAK:
            return kind, (dict(thing),)
        if kind in _BINARY:
            for stream in (sys.stdout, sys.stderr):
                if getattr(stream, "buffer", None) is thing:
                    return getattr, (stream, "buffer")
        if self._versions is not None and kind in _EACH_ITS_OWN:  # as after a fork
            return _EACH_ITS_OWN[kind], ()
        if self._versions is not None and kind is _ENVIRON:
            return getattr, (os, "environ" if thing is os.environ else "environb")
        if self._versions is not None and kind in _REFERENCES:
            if self._known is None:
                names = [(module, name) for module in self._program.modules() for name in self._program.namespace(module)]
                self._known = {id(self._program.namespace(module)[name]): (module, name) for module, name in names}
            to = thing()
            if (known := self._known.get(id(getattr(to, "__self__", to)))) is not None:
                self.needs.add(known)  # so that both are the same object
            return _reference, (kind, to)
        if kind not in self._ways:
            self._ways[kind] = self._way_of(kind)
        if (way := self._ways[kind]) is not None and (made := way(thing)) is not None:
            return made
        if kind is struct.Struct:
            return struct.Struct, (thing.format,)
        if self._versions is not None and isinstance(thing, threading.local) and kind.__reduce_ex__ is object.__reduce_ex__:
            state = {name: value for name, value in vars(thing).items() if self._can_travel(value)}
            return copyreg.__newobj_ex__, (kind, *_given_to_local(thing)), state  # type: ignore[attr-defined]
        if (wrapper := _of_wrapt("FunctionWrapper")) is not None and issubclass(kind, wrapper):  # it claims to be what it wraps
            shown = thing.__wrapped__, thing._self_wrapper, thing._self_enabled  # noqa: SLF001 - it has no other names
            return _wrapper_of_wrapt, (None if kind is wrapper else kind, *shown)
        if self._versions is not None and kind is contextvars.ContextVar:
            with contextlib.suppress(LookupError):  # it has neither a value nor a default
                return _context_variable, (thing.name, thing.get())
            return _context_variable, (thing.name,)
        reduced: Any = super().reducer_override(thing)
        if reduced is not NotImplemented:
            return reduced
        reduced = self._reduce_instance(thing, kind)
        if (is_guarded := self._guarded.get(kind)) is None:
            is_guarded = self._guarded[kind] = kind not in self.dispatch_table and _is_guarded(kind)
        if not is_guarded:
            return reduced
        whole: Any = object.__reduce_ex__(thing, PROTOCOL) if reduced is NotImplemented else reduced
        made, given, state, items, pairs = (*whole, None, None, None)[:5]
        is_plain = isinstance(state, dict) or (isinstance(state, tuple) and len(state) == 2)
        return (made, given, state, items, pairs, _set_attributes) if is_plain else reduced

    def _way_of(self, kind: Any) -> Callable[[Any], Any] | None:
        called = kind.__module__, kind.__name__
        way = _ANYWHERE.get(called) or (_OF_GLOBALS.get(called) if self._versions is not None else None)
        if way is None and kind.__reduce_ex__ is object.__reduce_ex__ and any(base.__module__ == "argparse" for base in kind.__mro__):
            return _part_of_parser
        return way or (native.function if native.is_of_ctypes(kind) else None)

    def _reduce_module(self, module: types.ModuleType, kind: Any) -> Any:
        if kind is not types.ModuleType and (kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not object.__reduce__):
            return NotImplemented
        name, given = str(modules.namespace_of(module).get("__name__")), modules.namespace_of(module)
        if name in self._program.modules():
            self.needs.update(self._program.names_in(name))
            return _module, (self._program.number, name)
        if kind is types.ModuleType:
            return super().reducer_override(module)
        if sys.modules.get(name) is module:  # an instance of a subclass that has put itself there
            return cp.subimport, (name,)
        state = {key: value for key, value in given.items() if key not in _OF_MODULES}
        return kind.__new__, (kind, name), state, None, None, _set_attributes

    def _reduce_instance(self, thing: Any, kind: Any) -> Any:
        """Returns how an object is pickled that gives itself a name of the program, or for which a `__new__` would look in its class, which
        is not complete yet. All others are left to pickle."""
        if _is_mere_identity(thing, kind) and (home := self._home_of(thing, kind)) is not None:
            return getattr, home
        gives_name = isinstance(kind.__reduce__, types.FunctionType) or isinstance(kind.__reduce_ex__, types.FunctionType)
        if not gives_name and not isinstance(kind.__new__, types.FunctionType):
            return NotImplemented  # nearly all objects
        if kind in self.dispatch_table:  # by `copyreg`
            return NotImplemented
        base: Any = next(parent for parent in kind.__mro__ if parent.__module__ == "builtins")
        if gives_name:
            reduced = thing.__reduce_ex__(PROTOCOL)
            module = main_or(thing.__module__)
            if not isinstance(reduced, str) or not self._program.has(thing, module, reduced):
                return reduced
            if not self._defines((module, reduced)):
                return self._name(module, reduced)
            if base is not object and not hasattr(base, "__getnewargs__"):  # a list, a dictionary
                return reduced
        else:
            if _needs_arguments(kind, base):
                return base.__new__, (kind, *(() if base is object else base.__getnewargs__(thing))), thing.__getstate__()
            name = self._program.name_of(kind)
            if name is None or not self._defines(name) or base is not object or isinstance(kind.__getstate__, types.FunctionType):
                return NotImplemented
        arguments = () if base is object else base.__getnewargs__(thing)
        return base.__new__, (kind, *arguments), thing.__getstate__()

    def _can_travel(self, value: object) -> bool:
        try:
            _Pickler(io.BytesIO(), self._program, self._versions).dump(value)
        except Exception:  # noqa: BLE001 - __reduce__ of user classes may raise anything
            return False
        return True

    def _home_of(self, thing: object, kind: type) -> tuple[types.ModuleType, str] | None:
        """Returns the module that nodes have, and the name there, of an object that is nothing but itself: `dataclasses.MISSING`.

        Cost: the first time for each class a look at its module; for `object`, which does not tell its module, at all (2 ms).
        """
        if kind not in self._homes:
            homes, private = self._homes.setdefault(kind, {}), self._program.modules()
            for where in list(sys.modules) if kind is object else [kind.__module__]:
                module = sys.modules.get(where)
                if isinstance(module, types.ModuleType) and main_or(where) not in private:
                    members = list(modules.namespace_of(module).items())
                    homes.update((id(value), (module, name, value)) for name, value in members if type(value) is kind)
        found = self._homes[kind].get(id(thing))
        return found and found[:2]

    def _reduce_function(self, function: types.FunctionType) -> Any:
        if function.__globals__ is vars(functools) and hasattr(function, "dispatch"):
            registry = dict(function.registry)  # type: ignore[attr-defined]
            return _single_dispatch, (registry.pop(object), registry, _own(function))
        module = self._program.module_with(function.__globals__)
        if module is None:  # of another module, e.g. a decorator's result
            is_ours = main_or(function.__module__) in self._program.modules()
            return self._dynamic_function_reduce(function) if is_ours else super().reducer_override(function)
        self.needs.update(self._program.mentioned_by(function), self._program.perhaps_mentioned_by(function), [(module, _FILE)])
        attributes, slots = _state_of_function(function)
        del slots["__globals__"], slots["__closure__"]
        if hasattr(function, "__type_params__"):
            slots["__type_params__"] = function.__type_params__
        if (cell := self._cell(function.__code__.co_filename)) is not None:
            slots[_CELL] = cell
        variables = [self._variables.setdefault(id(cell), _Variable(cell)) for cell in function.__closure__ or ()]
        closure = tuple(variables) if function.__closure__ is not None else None
        return _function, (self._program.number, module, function.__code__, closure), (attributes, slots), None, None, _fill_function

    def _cell(self, name: str) -> tuple[str, str] | None:
        """Returns (name, text) of the cell of a notebook that has this code: no file has it, and `inspect.getsource` needs it."""
        if name not in self._cells:
            kept = sys.modules["linecache"].cache.get(name) if "linecache" in sys.modules else None  # (size, time, lines, name)
            text = "".join(kept[2]) if kept is not None and len(kept) == 4 and kept[1] is None else ""
            self._cells[name] = (name, text) if 0 < len(text) <= _MOST_CELL else None
        return self._cells[name]

    def _reduce_class(self, kind: type, name: tuple[str, str] | None) -> Any:
        if kind.__module__ == "_wrappers" and _of_wrapt(kind.__name__) is kind:  # a name that nobody can import
            return getattr, (sys.modules["wrapt"], kind.__name__)
        if (of_ctypes := native.is_of_ctypes(kind)) and (made := native.made_type(kind)) is not None:
            return made
        reduced = super().reducer_override(kind)
        if reduced is NotImplemented and name is not None:
            reduced = cp._dynamic_class_reduce(kind)  # noqa: SLF001 - cloudpickle takes its module for one that can be imported
        if not isinstance(reduced, tuple) or reduced[-1] is not cp._class_setstate:  # noqa: SLF001 - how it sets up classes
            return reduced
        maker, arguments, state, *_ = reduced
        if sys.version_info >= (3, 14) and state[0].pop("__annotations_cache__", vars(kind).get("__annotate_func__")):
            state[0]["__annotations__"] = annotations_of(kind)  # cloudpickle keeps them if somebody looked at them
        self.needs.update(self._program.perhaps_mentioned_by(kind))
        if (module := main_or(kind.__module__)) in self._program.modules():
            self.needs.add((module, _FILE))
        if maker is cp._make_skeleton_class:  # noqa: SLF001 - its arguments are those of `type`
            *first, options, tracker, extra = arguments
            options = {**options, "__qualname__": kind.__qualname__}
            arguments = (*first, options, tracker, extra)
            members = {name: value for name, value in state[0].items() if name != "__slots__"}
            if _is_struct(kind):
                maker = _struct
                arguments = (*first, options, _fields_of_struct(kind), _options_of_struct(kind), "__post_init__" in members, tracker)
                state = members, state[1]
            elif vars(kind).get("__slots__"):
                options["__slots__"] = kind.__slots__  # type: ignore[attr-defined]
                members = {name: value for name, value in members.items() if not isinstance(value, types.MemberDescriptorType)}
                state = members, state[1]
        else:  # an enumeration, of which cloudpickle leaves out second names and named sums
            bases, called, qualname, _, module, tracker, _ = arguments
            members = {name: member.value for name, member in kind.__members__.items()}  # type: ignore[attr-defined]
            maker, arguments = _enumeration, (bases, called, qualname, members, module, getattr(kind, "_boundary_", None), tracker)
            state = {name: value for name, value in state[0].items() if name not in members}, state[1]
        methods: dict[str, object] = {name: value for name, value in state[0].items() if isinstance(value, _METHODS)}
        values = {name: value for name, value in state[0].items() if name not in methods and name != "__slotnames__"}  # kept by `copyreg`
        if values.get("__annotations__") == {}:
            del values["__annotations__"]  # made when somebody asked for them
        state = _Methods(kind, methods), native.members(kind, values) if of_ctypes else values, _known_by_members(kind)
        version = 0
        if name is not None and self._versions is not None:
            version = self._versions.get(name, 0)
        where = (self._program.number, *(name or ("", "")), version)
        return _class, (where, maker, arguments), state, None, None, _fill_class


def _is_mere_identity(thing: object, kind: Any) -> bool:
    """Returns whether an object has no state, so that all it tells is whether it is this one, and Python would pickle it as a new one."""
    if kind is object:
        return True
    if kind.__new__ is not object.__new__ or kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not object.__reduce__:
        return False
    if kind.__basicsize__ == object.__basicsize__ and not kind.__dictoffset__:  # `__slots__ = ()`
        return True
    if not kind.__dictoffset__ or object.__getattribute__(thing, "__dict__"):
        return False
    return not any(isinstance(member, types.MemberDescriptorType) for parent in kind.__mro__ for member in vars(parent).values())


@functools.lru_cache(maxsize=1024)
def _needs_arguments(kind: Any, base: Any) -> bool:
    """Returns whether Python would pickle objects of a class and could not read them, because its `__new__` takes more than its built-in
    base keeps of an object."""
    if kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not object.__reduce__:
        return False
    keeps = getattr(base, "__getnewargs__", None)
    if getattr(kind, "__getnewargs__", None) is not keeps or hasattr(kind, "__getnewargs_ex__") or (base is not object and keeps is None):
        return False
    made = kind.__new__
    must = made.__code__.co_argcount - len(made.__defaults__ or ())
    return bool(must > 1 + (keeps is not None) or made.__code__.co_kwonlyargcount > len(made.__kwdefaults__ or {}))


def _is_guarded(kind: Any) -> bool:
    """Returns whether reading an object's pickle would ask the object itself for attributes that it does not have yet, or set them through
    it: its class says how they are looked up, or how those of `__slots__` are set."""
    if kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not object.__reduce__:
        return False
    members = {name: member for parent in reversed(kind.__mro__) for name, member in vars(parent).items()}
    if "__setstate__" in members:
        return False
    if "__getattr__" in members or isinstance(members["__getattribute__"], types.FunctionType):
        return True
    has_slots = any(isinstance(member, types.MemberDescriptorType) for member in members.values())
    return has_slots and isinstance(members["__setattr__"], types.FunctionType)


def _of_wrapt(name: str) -> Any:
    """Returns a class of wrapt, None if it is not loaded: a program may have another module of that name, or None in its place."""
    found = modules.namespace_of(module).get(name) if isinstance(module := sys.modules.get("wrapt"), types.ModuleType) else None
    return found if isinstance(found, type) and found.__module__ in {"_wrappers", "wrapt.wrappers"} else None


def _is_struct(kind: type) -> bool:
    return "msgspec" in sys.modules and isinstance(kind, type(sys.modules["msgspec"].Struct))


def _fields_of_struct(kind: Any) -> list[tuple[str, dict[str, object]]]:
    """Returns the fields that a Struct adds to those of its bases, each with the arguments of its `msgspec.field`."""
    names, encoded, defaults = kind.__struct_fields__, kind.__struct_encode_fields__, kind.__struct_defaults__
    own: list[tuple[str, dict[str, object]]] = []
    for name in annotations_of(kind):
        if name not in names:  # a variable of the class
            continue
        at = names.index(name)
        arguments: dict[str, object] = {"name": encoded[at]}
        default = defaults[at - len(names)] if len(names) - at <= len(defaults) else sys.modules["msgspec"].NODEFAULT
        if hasattr(type(default), "factory"):
            arguments["default_factory"] = default.factory
        elif default is not sys.modules["msgspec"].NODEFAULT:
            arguments["default"] = default
        own.append((name, arguments))
    return own


def _options_of_struct(kind: Any) -> dict[str, object]:
    config, own = kind.__struct_config__, [name for name in annotations_of(kind) if name in kind.__struct_fields__]
    options = {option: getattr(config, option) for option in dir(config) if not option.startswith("_")}
    return {**options, "tag": False if config.tag is None else config.tag, "kw_only": bool(own) and own[0] not in kind.__match_args__}


def _given_to_local(thing: threading.local) -> tuple[tuple[object, ...], dict[str, object]]:
    """Returns the arguments with which each further thread makes its own values; only the garbage collector knows them."""
    held = gc.get_referents(thing)
    args = next((one for one in held if type(one) is tuple), ())
    return args, next((one for one in held if type(one) is dict and one and all(type(key) is str for key in one)), {})


class _Suppress:
    """`argparse.SUPPRESS` in a pickle: it is known by its identity, which a text does not keep."""

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (sys.modules["argparse"], "SUPPRESS")


def _part_of_parser(thing: Any) -> Any:
    marked = modules.namespace_of(sys.modules["argparse"])["SUPPRESS"]
    state = {name: _Suppress() if value is marked else value for name, value in vars(thing).items()}
    return copyreg.__newobj__, (type(thing),), state  # type: ignore[attr-defined]


def _fresh_pool(thing: Any) -> Any:
    begin = [getattr(thing, name, None) for name in ("_initializer", "_initargs")]  # Python 3.14 keeps them elsewhere
    return type(thing), (thing._max_workers, thing._thread_name_prefix, begin[0], begin[1] or ())  # noqa: SLF001 - as it was made


def _fresh_queue(thing: Any) -> Any:
    return (type(thing), ()) if thing.empty() else object.__reduce_ex__(thing, PROTOCOL)


def _scanner(thing: Any) -> Any:
    return _json_scanner, ({name: getattr(thing, name) for name in dir(type(thing)) if not name.startswith("_")},)


def _constraints(thing: Any) -> Any:
    kind: Any = type(thing)
    given = {name: value for name in dir(kind) if not name.startswith("_") and (value := getattr(thing, name)) is not None}
    return functools.partial(kind, **given), ()


#: Of these a global is the worker's own, as after a fork.
_OF_GLOBALS: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("concurrent.futures.thread", "ThreadPoolExecutor"): _fresh_pool,
    ("_queue", "SimpleQueue"): _fresh_queue,
    ("asyncio.unix_events", "_UnixSelectorEventLoop"): lambda loop: (type(loop), ()),
}
#: How else objects of classes are pickled that may not be loaded. Constraints: in annotations of a Struct.
_ANYWHERE: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("ctypes", "CDLL"): native.library,
    ("ctypes", "PyDLL"): native.library,
    ("_json", "Scanner"): _scanner,
    ("msgspec", "Meta"): _constraints,
}
#: Kinds of weak references.
_REFERENCES = (weakref.ref, weakref.WeakMethod)
_EACH_ITS_OWN: dict[type, Callable[[], object]] = {
    type(threading.Lock()): threading.Lock,
    type(threading.RLock()): threading.RLock,
    random.SystemRandom: random.SystemRandom,
}
#: Of `os.environ` and `os.environb`: a global of this type is the worker's own.
_ENVIRON = type(os.environ)
#: Classes whose subclasses Python does not pickle.
_DESCRIPTORS = (property, classmethod, staticmethod)
#: What the streams of a process write to.
_BINARY = (io.BufferedWriter, io.FileIO)
#: What each module has, as Python has set it.
_OF_MODULES = frozenset({"__name__", "__builtins__", "__loader__", "__spec__"})
#: Dictionaries with a reference to themselves, which cannot be pickled.
_WEAK = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary)


def _own(wrapper: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(wrapper).items() if name not in _OF_WRAPPERS}


#: Set before a class's other attributes, which may be instances of it, whose rebuilding may call its `__new__`.
_METHODS = (types.FunctionType, classmethod, staticmethod, property)


class _Variable:
    """A variable of closures in a pickle: functions that share it still do when it is read."""

    def __init__(self, cell: types.CellType) -> None:
        self._cell = cell

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            value: tuple[object, ...] = (self._cell.cell_contents,)
        except ValueError:  # not bound yet
            value = ()
        return _variable, (), value, None, None, _bind


class _Methods:
    """Methods of a class in a pickle: reading them sets them."""

    def __init__(self, kind: type, methods: dict[str, object]) -> None:
        self._given = kind, methods

    def __reduce__(self) -> tuple[Any, ...]:
        return _set_methods, self._given


def _known_by_members(kind: type) -> dict[str, dict[str, object]]:
    """Returns what members of an enumeration have besides their values, by name."""
    members: Mapping[str, object] = kind.__members__ if isinstance(kind, enum.EnumMeta) else {}
    own = {name: {key: value for key, value in vars(member).items() if not re.fullmatch("_.*_", key)} for name, member in members.items()}
    return {name: attributes for name, attributes in own.items() if attributes}


# -- functions that pickles call ------------------------------------------------------------------------------------------


def hold(data: bytes) -> None:
    """Takes definitions in front of a pickle that this process lacks."""
    number, groups = pickle.loads(data)  # noqa: S301 - part of what is being unpickled
    program = _known(number)
    with _lock:
        for versions, group in groups:
            program.load(versions, group)


def _named(number: str, module: str, qualname: str) -> object:
    return _known(number).get(module, qualname)


def _module(number: str, module: str) -> types.ModuleType:
    program = _known(number)
    program.namespace(module)
    return sys.modules[module] if program.is_own else program._modules[module]  # noqa: SLF001 - of this module


def _set_attributes(made: object, state: Any) -> None:
    """Sets attributes past what the class does when they are looked up or set, as `copy` and `pickle` do for other classes."""
    own, slots = state if isinstance(state, tuple) else (state, None)
    if own:
        object.__getattribute__(made, "__dict__").update(own)
    for name, value in (slots or {}).items():
        object.__setattr__(made, name, value)


def _variable() -> types.CellType:
    return types.CellType()


def _bind(variable: types.CellType, value: tuple[object, ...]) -> None:
    if value:  # else not bound yet
        (variable.cell_contents,) = value


def _function(number: str, module: str, code: types.CodeType, closure: tuple[types.CellType, ...] | None) -> types.FunctionType:
    return types.FunctionType(code, _known(number).namespace(module), None, None, closure)


def _fill_function(function: types.FunctionType, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    attributes, slots = state
    vars(function).update(attributes)
    slots.pop("_cloudpickle_submodules", None)  # imported by now
    if (cell := slots.pop(_CELL, None)) is not None:
        _keep_cell(*cell)
    for name, value in slots.items():
        setattr(function, name, value)


def _keep_cell(name: str, text: str) -> None:
    import linecache

    linecache.cache.setdefault(name, (len(text), None, text.splitlines(keepends=True), name))


#: Classes just made and not yet set up: (program, module, qualified name, version).
_unfinished: weakref.WeakKeyDictionary[type, tuple[str, str, str, int]] = weakref.WeakKeyDictionary()


def _class(where: tuple[str, str, str, int], maker: Callable[..., type], arguments: tuple[Any, ...]) -> type:
    """Returns the class that this process has, or else a new one that `_fill_class` sets up."""
    number, module, qualname, version = where
    if module:
        program = _known(number)
        found = program._look_up(module, qualname)  # noqa: SLF001 - of this module
        if isinstance(found, type) and (program.is_here or 0 < version <= program.version_of(module, qualname)):
            return found
    tracker = next(argument for argument in reversed(arguments) if argument is not None)
    known = cp._DYNAMIC_CLASS_TRACKER_BY_ID.get(tracker)  # noqa: SLF001 - where cloudpickle keeps them, by id
    if known is not None:
        return known  # type: ignore[no-any-return]
    with _without(types.resolve_bases(arguments[0 if maker is _enumeration else 2]), "__init_subclass__"):
        made = _skeleton(*arguments) if maker is cp._make_skeleton_class else maker(*arguments)  # noqa: SLF001 - as above
    _unfinished[made] = where
    return made


def _is_sent(kind: type) -> bool:
    """Returns whether a class came or went in a pickle: then its effects on new subclasses took place where the program made them."""
    return kind in cp._DYNAMIC_CLASS_TRACKER_BY_CLASS  # noqa: SLF001 - where cloudpickle keeps them


def _enumeration(
    bases: tuple[type, ...], name: str, qualname: str, members: dict[str, object], module: str, boundary: object, tracker: str
) -> type:
    """Makes an enumeration like `cp._make_skeleton_enum`."""
    metaclass: Any = type(bases[-1])
    namespace = metaclass.__prepare__(name, bases)
    for member, value in members.items():
        namespace[member] = value
    made: type = metaclass.__new__(metaclass, name, bases, namespace, **({} if boundary is None else {"boundary": boundary}))
    made.__module__, made.__qualname__ = module, qualname
    return cp._lookup_class_or_track(tracker, made)  # type: ignore[no-any-return] # noqa: SLF001 - as above


def _skeleton(metaclass: type, name: str, bases: tuple[Any, ...], options: dict[str, Any], tracker: str, extra: object) -> type:
    """Makes an empty class like `cp._make_skeleton_class`, without the effects of the program's own metaclass."""
    maker = next(kind for kind in metaclass.__mro__ if not _is_sent(kind))
    if metaclass.__name__ == "_TypedDictMeta":  # which would not take the bases that it has given the class
        plain = (base for base in types.resolve_bases(bases) if type(base) is not metaclass and base is not dict)
        return _new_class(type, metaclass, name, (*plain, dict), options, tracker)
    if maker is metaclass:
        return cp._make_skeleton_class(metaclass, name, bases, options, tracker, extra)  # type: ignore[no-any-return] # noqa: SLF001
    return _new_class(maker, metaclass, name, bases, options, tracker)


def _new_class(
    maker: type, metaclass: type, name: str, bases: tuple[Any, ...], members: dict[str, Any], tracker: str, **options: object
) -> type:
    """Makes a class as `maker`, a base of its metaclass, would."""
    resolved = types.resolve_bases(bases)
    namespace = {sys.intern(key): value for key, value in members.items()}
    if resolved is not bases:
        namespace["__orig_bases__"] = bases
    made: type = maker.__new__(metaclass, name, resolved, namespace, **options)
    maker.__init__(made, name, resolved, namespace, **options)  # type: ignore[misc]
    return cp._lookup_class_or_track(tracker, made)  # type: ignore[no-any-return] # noqa: SLF001


def _struct(
    metaclass: type,
    name: str,
    bases: tuple[Any, ...],
    members: dict[str, Any],
    fields: list[tuple[str, dict[str, Any]]],
    options: dict[str, Any],
    has_post_init: bool,
    tracker: str,
) -> type:
    """Makes a Struct of msgspec with its fields: they cannot be set later. `_fill_class` sets their true annotations."""
    import msgspec

    maker = next(kind for kind in metaclass.__mro__ if not _is_sent(kind))
    members = {**members, "__annotations__": dict.fromkeys((field for field, _ in fields), Any)}
    members.update((field, msgspec.field(**arguments)) for field, arguments in fields)
    if has_post_init:  # msgspec calls what it finds now
        members["__post_init__"] = lambda made: type(made).__post_init__(made)
    return _new_class(maker, metaclass, name, bases, members, tracker, **options)


@contextlib.contextmanager
def _without(kinds: Iterable[type], method: str) -> Iterator[None]:
    """Hides a method of these classes and their bases, as far as they came in a pickle, while the block runs."""
    having = {base for kind in kinds for base in kind.__mro__ if method in vars(base) and _is_sent(base)}
    if not having:
        yield
        return
    with _lock:
        hidden = {base: vars(base)[method] for base in having}
        try:
            for base in hidden:
                type.__delattr__(base, method)
            yield
        finally:
            for base, function in hidden.items():
                type.__setattr__(base, method, function)


def _set_methods(made: type, methods: dict[str, object]) -> None:
    if made in _unfinished:
        _set(made, methods)


def _set(made: type, attributes: dict[str, object]) -> None:
    with _without([type(made)], "__setattr__"):
        cp._class_setstate(made, (attributes, {}))  # noqa: SLF001 - how cloudpickle sets up classes


def _fill_class(made: type, state: Any) -> None:
    """Sets a class up, once in each process, so that later changes by the program stay."""
    where = _unfinished.pop(made, None)
    if where is None:
        return
    _, values, known = state
    _set(made, values)
    for member, attributes in known.items():
        vars(made.__members__[member]).update(attributes)  # type: ignore[attr-defined]
    number, module, name, version = where
    program = _known(number)
    if module and "." not in name and not program.is_here and version > program.version_of(module, name):
        program.namespace(module)[name] = made  # at once, since making a subclass may use it


def _cached(function: Callable[..., Any], parameters: dict[str, Any], attributes: dict[str, Any]) -> object:
    made = functools.lru_cache(**parameters)(function)
    vars(made).update(attributes)
    return made


def _new_type(name: str, of: Any, module: str) -> object:
    made = typing.NewType(name, of)  # type: ignore[misc]
    made.__module__ = module
    return made


def _wrapper_of_wrapt(kind: Any, *parts: Any) -> object:
    import wrapt  # type: ignore[import-not-found,import-untyped,unused-ignore]

    base: Any = wrapt.FunctionWrapper
    made: object = base.__new__(kind or base)
    base.__init__(made, *parts)
    return made


def _json_scanner(options: dict[str, Any]) -> object:
    from json.scanner import c_make_scanner  # type: ignore[attr-defined]

    return c_make_scanner(types.SimpleNamespace(**options))


#: What weak references refer to: the program holds it, and does not say here by what.
_referred: list[object] = []


def _reference(kind: Any, to: Any) -> object:
    if to is None:
        return weakref.ref(set())  # dead
    _referred.append(to)
    return kind(to)


def _context_variable(name: str, *value: object) -> contextvars.ContextVar[object]:
    return contextvars.ContextVar(name, default=value[0]) if value else contextvars.ContextVar(name)


def _descriptor(kind: type, base: Any, given: tuple[object, ...]) -> object:
    """Makes an instance of a subclass of `property`, `classmethod` or `staticmethod`, without the subclass's own constructor."""
    made = base.__new__(kind)
    base.__init__(made, *given)
    return made


def _cached_property(function: Callable[[Any], Any], name: str | None) -> object:
    made = functools.cached_property(function)
    made.attrname = name
    return made


def _state_of_function(function: types.FunctionType) -> Any:
    """Returns what cloudpickle keeps of a function."""
    try:
        return cp._function_getstate(function)  # noqa: SLF001
    except Exception:  # its annotations: see `annotations_of`
        if sys.version_info < (3, 14):
            raise
        twin = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
        for name in ("__qualname__", "__kwdefaults__", "__module__", "__doc__"):
            setattr(twin, name, getattr(function, name))
        twin.__annotations__ = {**annotations_of(function)}
        vars(twin).update(vars(function))
        return cp._function_getstate(twin)  # noqa: SLF001


def _partial_method(function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> object:
    return functools.partialmethod(function, *args, **keywords)


def _single_dispatch(function: Callable[..., Any], registry: dict[type, Callable[..., Any]], attributes: dict[str, Any]) -> object:
    made = functools.singledispatch(function)
    for kind, implementation in registry.items():
        made.register(kind, implementation)
    vars(made).update(attributes)
    return made


# -- which program is which -------------------------------------------------------------------------------------------------

_programs: dict[str, Program] = {}
_mine: Program | None = None


def mine() -> Program:
    """Returns the program that this process is, or works for."""
    global _mine
    if _mine is None:
        with _lock:
            if _mine is None:
                _mine = Program(os.urandom(8).hex(), is_here=True, is_own=True)
                _programs[_mine.number] = _mine
    return _mine


def serve(number: str, group: str = "") -> None:
    """Makes this process a worker of a program ("" = of no known one): its `__main__` is the program's from now on.

    group: of workers that have the same values; its own calls go to such workers, too."""
    global _mine
    main = sys.modules[MAIN] = sys.modules[SPAWNED_MAIN] = types.ModuleType(MAIN)
    vars(main)["__builtins__"] = builtins
    _mine = Program(number, is_here=False, is_own=True)
    _mine.workers["group"] = group
    _programs[number] = _mine
    sys.meta_path.insert(0, _Spawning())


class _Spawning:
    """Sees the import of what starts processes by `spawn` or `forkserver`: from then on definitions go with what multiprocessing sends.

    Elsewhere such a process imports the program's file to find them. A node may lack it, a prompt has none, and a pool waits for ever
    for processes that find nothing. A forked process has what the worker has.
    """

    def find_spec(self, name: str, _path: object, _target: object = None) -> None:
        if name in {"multiprocessing.popen_spawn_posix", "multiprocessing.popen_forkserver"}:
            _send_definitions()


def _send_definitions() -> None:
    from multiprocessing import spawn
    from multiprocessing.reduction import ForkingPickler

    ForkingPickler.reducer_override = _defined  # type: ignore[method-assign, assignment]
    # Else each process runs the file that `__main__` names, which only the program's machine may have.
    prepared = spawn.get_preparation_data
    spawn.get_preparation_data = lambda name: {key: data for key, data in prepared(name).items() if not key.startswith("init_main_")}


def _defined(_pickler: pickle.Pickler, thing: object) -> object:
    program = mine()
    if isinstance(thing, types.FunctionType | type) and program.name_of(thing) is not None:
        return _spawned, (program.number, dumps(thing))
    return NotImplemented


def _spawned(number: str, data: bytes) -> object:
    """What multiprocessing has sent: in a process that a task has started, or back in its worker."""
    import multiprocessing

    if mine().number != number and multiprocessing.parent_process() is not None:
        serve(number)
        _send_definitions()
    return loads(data)


def _known(number: str) -> Program:
    program = _programs.get(number)
    if program is None:
        with _lock:
            program = _programs.setdefault(number, Program(number, is_here=False, is_own=False))
    return program


def _forked() -> None:
    """Separates a child from its parent: its new names are its own. It can still read pickles meant for its parent."""
    global _mine, _lock
    _lock = threading.RLock()
    if _mine is not None and _mine.is_here:
        _mine = None


os.register_at_fork(after_in_child=_forked)


# -- what code mentions -------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def _globals_of(code: types.CodeType) -> frozenset[str]:
    """Returns globals that code and the functions in it use."""
    names = {instruction.argval for instruction in dis.get_instructions(code) if instruction.opname in _GLOBAL_OPS}
    if any(instruction.opname == "IMPORT_NAME" for instruction in dis.get_instructions(code)):
        names.add("__package__")  # for a relative import
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _globals_of(constant)
    return frozenset(names)


@functools.lru_cache(maxsize=4096)
def _imports_of(code: types.CodeType) -> frozenset[str]:
    """Returns what code and the functions in it may import: modules, packages that hold them, and words that may be a module's name."""
    words = {instruction.argval for instruction in dis.get_instructions(code) if instruction.opname == "IMPORT_NAME"}
    names = {".".join(parts[:end]) for parts in (word.split(".") for word in words) for end in range(1, len(parts) + 1)}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _imports_of(constant)
        elif isinstance(constant, str) and constant != MAIN:  # of `import_module`
            names.add(constant)
    return frozenset(names)


@functools.lru_cache(maxsize=4096)
def _looks_up(code: types.CodeType) -> bool:
    """Returns whether the code may look up names that only its data contain."""
    names = set(code.co_names)
    by_text = bool(names & {"globals", "eval", "exec"}) or {"modules", "__name__"} <= names
    return by_text or any(_looks_up(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))


_NOT_DEFINED = re.compile(r"name '(\w+)' is not defined")
_WORD = re.compile(r"[^\W\d]\w*")
_GLOBAL_OPS = frozenset(
    {"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME", "LOAD_CLASSDICT_OR_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"}
)


# -- pickles ------------------------------------------------------------------------------------------------------------------


def mentions(data: bytes | bytearray) -> bool:
    """Returns whether a pickle may name something that only its program has. Cost: 0.3 ms a MiB."""
    program = mine() if _mine is None else _mine
    if not program.is_here:
        return any(module.encode() in data for module in (*program.modules(), SPAWNED_MAIN))
    for module in modules.unimportable_encoded():  # noqa: SIM110 - written out: every call is asked this
        if module in data:
            return True
    return False


def plain_or_own(value: object) -> bytes:
    """Returns the plain pickle of an object if that suffices, else as `dumps`. Raises: as `dumps`."""
    try:
        data = pickle.dumps(value, PROTOCOL)
    except Exception:  # noqa: BLE001 - __reduce__ of user classes may raise anything
        return dumps(value)
    return dumps(value) if mentions(data) else data


def loads(data: bytes) -> Any:
    """Returns what a pickle holds. An exception whose constructor does not take what `Exception` keeps of it is built without it.

    Raises: whatever unpickling raises.
    """
    try:
        return pickle.loads(data)  # noqa: S301 - unpickled where the user's work is, and nowhere else
    except (ImportError, pickle.UnpicklingError, EOFError):
        raise
    except Exception as error:
        if any(frame.f_code.co_name == "<module>" for frame, _ in traceback.walk_tb(error.__traceback__)):
            raise  # a module raised it while it was imported, and would be imported again
        unpickler = _Lenient(io.BytesIO(data))
        with contextlib.suppress(Exception):
            value = unpickler.load()
            if unpickler.has_helped:
                return value
        raise


_InPython: Any = pickle._Unpickler  # noqa: SLF001 - the one that can be told how to read


class _Lenient(_InPython):  # type: ignore[misc]
    """Reads exceptions that Python pickles and cannot unpickle: with constructors that take other arguments than `args`, or frozen ones."""

    dispatch = dict(_InPython.dispatch)
    has_helped = False

    def load_reduce(self) -> None:
        args, made = self.stack.pop(), self.stack[-1]
        try:
            self.stack[-1] = made(*args)
        except Exception:
            if not (isinstance(made, type) and issubclass(made, BaseException)):
                raise
            if any(vars(kind).get("__slots__") for kind in made.__mro__):
                raise  # its pickle does not hold what is in them
            base: Any = next(parent for parent in made.__mro__ if parent.__module__ == "builtins")
            self.stack[-1] = error = base.__new__(made, *args)
            base.__init__(error, *args)
            self.has_helped = True

    def load_build(self) -> None:
        *_, made, state = self.stack
        try:
            super().load_build()
        except Exception:
            if not (isinstance(made, BaseException) and isinstance(state, dict)):
                raise
            vars(made).update(state)
            self.has_helped = True

    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.BUILD[0]] = load_build


def dumps(value: object) -> bytes:
    """Returns a pickle of any object for processes of this program and others. Raises: whatever pickling raises; PickleFailed."""
    file = io.BytesIO()
    front, _ = dump(value, file)
    return front + file.getvalue()


def dump(value: object, file: Any) -> tuple[bytes, Snapshot]:
    """Writes the pickle of an object to `file`; returns what must stand in front of it, and what it depends on. Raises: as `dumps`."""
    program = mine()
    pickler = _Pickler(file, program)
    pickler.dump(value)
    strict: set[Name] = set()
    if program.is_here:
        strict.update(*map(program.needed_by, _functions_in(value)))
        strict.update(name for name in pickler.named if isinstance(program.namespace(name[0]).get(name[1]), type))
    groups, snapshot = program.groups_of(pickler.needs, strict)
    return _front(program, groups), snapshot


def _functions_in(value: object) -> Iterator[types.FunctionType]:
    """Yields the plain functions in a callable, whose names must not be left out."""
    if type(value) is types.FunctionType:
        yield value
    elif isinstance(value, functools.partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            yield from _functions_in(part)
    elif isinstance(value, tuple) and value and callable(value[0]):  # an initializer and its arguments
        yield from _functions_in(value[0])


def _front(program: Program, groups: list[_Group]) -> bytes:
    """Returns opcodes that call `hold`, drop its result, and leave the rest to the following pickle. They use no memo, so that they can
    precede any pickle."""
    if not groups:
        return b""
    known, front = program.last_front  # a program passes objects of the same classes again and again
    if known == groups:
        return front
    data = pickle.dumps((program.number, [(group.versions, group.data) for group in groups]), PROTOCOL)
    call = b"c" + hold.__module__.encode() + b"\n" + hold.__name__.encode() + b"\n"
    front = b"\x80\x05" + call + b"\x8e" + len(data).to_bytes(8, "little") + data + b"\x85R0"
    if len(front) < _SMALL_FRONT:
        program.last_front = groups, front
    return front
