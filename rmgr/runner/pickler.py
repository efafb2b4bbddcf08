"""How objects travel in the pickles of a program: by name what the program defines, all else by value.

Imported by clients and workers: standard library, cloudpickle, `modules`, `native`, `program`, `unpickling` only.
"""

from __future__ import annotations

import contextlib
import contextvars
import copyreg
import enum
import functools
import gc
import io
import os
import random
import re
import struct
import sys
import threading
import types
import typing
import weakref
from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle
from cloudpickle import cloudpickle as cp

from rmgr.runner import modules, native, unpickling
from rmgr.runner.modules import main_or
from rmgr.runner.program import Name, Program, annotations_of

PROTOCOL = 5
#: `inspect` finds classes by the file of their module, and programs their directory.
FILE = "__file__"
#: The longest text of a cell that a function brings.
_MOST_CELL = 64 * 1024
LRU = type(functools.lru_cache(None)(id))
#: Attributes that `functools.update_wrapper`, `lru_cache` and `singledispatch` set themselves.
_OF_WRAPPERS = frozenset(
    (*functools.WRAPPER_ASSIGNMENTS, "__wrapped__", "cache_parameters", "register", "dispatch", "registry", "_clear_cache")
)


def _reduce_code(code: types.CodeType) -> Any:
    """Keeps the name of the code's file, for tracebacks."""
    maker, arguments = cp._code_reduce(code)  # noqa: SLF001 - which leaves it out from 3.1.2 on
    named = (code.co_filename if isinstance(argument, str) and argument == "<dynamic-code>" else argument for argument in arguments)
    return maker, tuple(named)


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
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
        if not is_class and kind is not types.FunctionType and kind is not LRU:
            return self._reduce_other(thing, kind)
        name = self._program.name_of(thing)
        if name is not None and not self._defines(name):
            return self._name(*name)
        if kind is LRU:
            return unpickling.make_lru_cache, (thing.__wrapped__, thing.cache_parameters(), _own(thing))
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
        return unpickling.named, (self._program.number, module, qualname)

    def _reduce_other(self, thing: Any, kind: type) -> Any:
        name = self._program.name_of(thing)
        if name is not None:  # e.g. made by a decorator that is a class
            if not self._defines(name):
                return self._name(*name)
            if kind is typing.NewType:
                return unpickling.make_new_type, (thing.__qualname__, thing.__supertype__, thing.__module__)
        if issubclass(kind, types.ModuleType):
            return self._reduce_module(thing, kind)
        if issubclass(kind, _DESCRIPTORS) and kind not in _DESCRIPTORS and kind.__reduce_ex__ is object.__reduce_ex__:
            base = next(parent for parent in _DESCRIPTORS if issubclass(kind, parent))
            parts = (thing.fget, thing.fset, thing.fdel, thing.__doc__) if base is property else (thing.__func__,)
            return unpickling.make_descriptor, (kind, base, parts), dict(vars(thing))
        if kind is functools.cached_property:  # with a lock, up to Python 3.11
            return unpickling.make_cached_property, (thing.func, thing.attrname)
        if kind is functools.partialmethod:  # whose `__new__` needs its function, since Python 3.14
            return unpickling.make_partial_method, (thing.func, thing.args, thing.keywords)
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
                globals_of = ((module, self._program.namespace(module).copy()) for module in self._program.modules())
                self._known = {id(value): (module, name) for module, found in globals_of for name, value in found.items()}
            to = thing()
            if to is not None and (known := self._known.get(id(getattr(to, "__self__", to)))) is not None:
                self.needs.add(known)  # so that both are the same object
            return unpickling.make_reference, (kind, to)
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
            return unpickling.make_wrapt_wrapper, (None if kind is wrapper else kind, *shown)
        if self._versions is not None and kind is contextvars.ContextVar:
            with contextlib.suppress(LookupError):  # it has neither a value nor a default
                return unpickling.make_context_variable, (thing.name, thing.get())
            return unpickling.make_context_variable, (thing.name,)
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
        return (made, given, state, items, pairs, unpickling.set_attributes) if is_plain else reduced

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
            return unpickling.named_module, (self._program.number, name)
        if kind is types.ModuleType:
            return super().reducer_override(module)
        if sys.modules.get(name) is module:  # an instance of a subclass that has put itself there
            return cp.subimport, (name,)
        state = {key: value for key, value in given.items() if key not in _OF_MODULES}
        return kind.__new__, (kind, name), state, None, None, unpickling.set_attributes

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
            Pickler(io.BytesIO(), self._program, self._versions).dump(value)
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
            return unpickling.make_single_dispatch, (registry.pop(object), registry, _own(function))
        module = self._program.module_with(function.__globals__)
        if module is None:  # of another module, e.g. a decorator's result
            is_ours = main_or(function.__module__) in self._program.modules()
            return self._dynamic_function_reduce(function) if is_ours else super().reducer_override(function)
        self.needs.update(self._program.mentioned_by(function), self._program.perhaps_mentioned_by(function), [(module, FILE)])
        attributes, slots = _state_of_function(function)
        del slots["__globals__"], slots["__closure__"]
        if hasattr(function, "__type_params__"):
            slots["__type_params__"] = function.__type_params__
        if (cell := self._cell(function.__code__.co_filename)) is not None:
            slots[unpickling.CELL] = cell
        variables = [self._variables.setdefault(id(cell), _Variable(cell)) for cell in function.__closure__ or ()]
        closure = tuple(variables) if function.__closure__ is not None else None
        made_of = self._program.number, module, function.__code__, closure
        return unpickling.make_function, made_of, (attributes, slots), None, None, unpickling.fill_function

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
            self.needs.add((module, FILE))
        if maker is cp._make_skeleton_class:  # noqa: SLF001 - its arguments are those of `type`
            *first, options, tracker, extra = arguments
            options = {**options, "__qualname__": kind.__qualname__}
            arguments = (*first, options, tracker, extra)
            members = {name: value for name, value in state[0].items() if name != "__slots__"}
            if _is_struct(kind):
                maker = unpickling.make_struct
                arguments = (*first, options, _fields_of_struct(kind), _options_of_struct(kind), "__post_init__" in members, tracker)
                state = members, state[1]
            elif vars(kind).get("__slots__"):
                options["__slots__"] = kind.__slots__  # type: ignore[attr-defined]
                members = {name: value for name, value in members.items() if not isinstance(value, types.MemberDescriptorType)}
                state = members, state[1]
        else:  # an enumeration, of which cloudpickle leaves out second names and named sums
            bases, called, qualname, _, module, tracker, _ = arguments
            members = {name: member.value for name, member in kind.__members__.items()}  # type: ignore[attr-defined]
            maker = unpickling.make_enumeration
            arguments = bases, called, qualname, members, module, getattr(kind, "_boundary_", None), tracker
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
        return unpickling.make_class, (where, maker, arguments), state, None, None, unpickling.fill_class


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
    return unpickling.make_json_scanner, ({name: getattr(thing, name) for name in dir(type(thing)) if not name.startswith("_")},)


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
        return unpickling.make_variable, (), value, None, None, unpickling.bind_variable


class _Methods:
    """Methods of a class in a pickle: reading them sets them."""

    def __init__(self, kind: type, methods: dict[str, object]) -> None:
        self._given = kind, methods

    def __reduce__(self) -> tuple[Any, ...]:
        return unpickling.set_methods, self._given


def _known_by_members(kind: type) -> dict[str, dict[str, object]]:
    """Returns what members of an enumeration have besides their values, by name."""
    members: Mapping[str, object] = kind.__members__ if isinstance(kind, enum.EnumMeta) else {}
    own = {name: {key: value for key, value in vars(member).items() if not re.fullmatch("_.*_", key)} for name, member in members.items()}
    return {name: attributes for name, attributes in own.items() if attributes}


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
