"""Reads pickles of a program: `loads`, and the functions that such pickles call to build what they hold.

Pickles name these functions by this module.

Imported by clients and workers: standard library, cloudpickle, `program` only.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import io
import pickle
import sys
import traceback
import types
import typing
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from cloudpickle import cloudpickle as cp

from rmgr.runner import program as programs
from rmgr.runner.program import known

#: With what a function brings the text of its cell.
CELL = "_rmgr_cell"
#: How the note of an error begins that says which definitions could not be read.
UNREAD = "definitions of the program that the call needs could not be read, those of"


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


# -- what pickles call --------------------------------------------------------------------------------------------------------


def hold(data: bytes) -> None:
    """Takes definitions in front of a pickle that this process lacks."""
    number, groups = pickle.loads(data)  # noqa: S301 - part of what is being unpickled
    program = known(number)
    with programs.lock:
        for versions, group in groups:
            if wanted := program.newer(versions):
                try:
                    values = loads(group)
                except Exception as error:  # code of users raises anything
                    names = ", ".join(name for _, name, _ in versions[:10])
                    with contextlib.suppress(Exception):  # a class may refuse attributes
                        error.add_note(f"{UNREAD} {names}{', ...' * (len(versions) > 10)}")
                    raise
                program.take(wanted, values)


def named(number: str, module: str, qualname: str) -> object:
    return known(number).get(module, qualname)


def named_module(number: str, module: str) -> types.ModuleType:
    program = known(number)
    program.namespace(module)
    return sys.modules[module] if program.is_own else program.made[module]


def set_attributes(made: object, state: Any) -> None:
    """Sets attributes past what the class does when they are looked up or set, as `copy` and `pickle` do for other classes."""
    own, slots = state if isinstance(state, tuple) else (state, None)
    if own:
        object.__getattribute__(made, "__dict__").update(own)
    for name, value in (slots or {}).items():
        object.__setattr__(made, name, value)


def make_variable() -> types.CellType:
    return types.CellType()


def bind_variable(variable: types.CellType, value: tuple[object, ...]) -> None:
    if value:  # else not bound yet
        (variable.cell_contents,) = value


def make_function(number: str, module: str, code: types.CodeType, closure: tuple[types.CellType, ...] | None) -> types.FunctionType:
    return types.FunctionType(code, known(number).namespace(module), None, None, closure)


def fill_function(function: types.FunctionType, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    attributes, slots = state
    vars(function).update(attributes)
    slots.pop("_cloudpickle_submodules", None)  # imported by now
    if (cell := slots.pop(CELL, None)) is not None:
        _keep_cell(*cell)
    for name, value in slots.items():
        setattr(function, name, value)


def _keep_cell(name: str, text: str) -> None:
    import linecache

    linecache.cache.setdefault(name, (len(text), None, text.splitlines(keepends=True), name))


#: Classes just made and not yet set up: (program, module, qualified name, version).
_unfinished: weakref.WeakKeyDictionary[type, tuple[str, str, str, int]] = weakref.WeakKeyDictionary()


def make_class(where: tuple[str, str, str, int], maker: Callable[..., type], arguments: tuple[Any, ...]) -> type:
    """Returns the class that this process has, or else a new one that `fill_class` sets up."""
    number, module, qualname, version = where
    if module:
        program = known(number)
        found = program.look_up(module, qualname)
        if isinstance(found, type) and (program.is_here or 0 < version <= program.version_of(module, qualname)):
            return found
    tracker = next(argument for argument in reversed(arguments) if argument is not None)
    made = cp._DYNAMIC_CLASS_TRACKER_BY_ID.get(tracker)  # noqa: SLF001 - where cloudpickle keeps them, by id
    if made is not None:
        return made  # type: ignore[no-any-return]
    with _without(types.resolve_bases(arguments[0 if maker is make_enumeration else 2]), "__init_subclass__"):
        made = _skeleton(*arguments) if maker is cp._make_skeleton_class else maker(*arguments)  # noqa: SLF001 - as above
    _unfinished[made] = where
    return made


def _is_sent(kind: type) -> bool:
    """Returns whether a class came or went in a pickle: then its effects on new subclasses took place where the program made them."""
    return kind in cp._DYNAMIC_CLASS_TRACKER_BY_CLASS  # noqa: SLF001 - where cloudpickle keeps them


def make_enumeration(
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


def make_struct(
    metaclass: type,
    name: str,
    bases: tuple[Any, ...],
    members: dict[str, Any],
    fields: list[tuple[str, dict[str, Any]]],
    options: dict[str, Any],
    has_post_init: bool,
    tracker: str,
) -> type:
    """Makes a Struct of msgspec with its fields: they cannot be set later. `fill_class` sets their true annotations."""
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
    with programs.lock:
        hidden = {base: vars(base)[method] for base in having}
        try:
            for base in hidden:
                type.__delattr__(base, method)
            yield
        finally:
            for base, function in hidden.items():
                type.__setattr__(base, method, function)


def set_methods(made: type, methods: dict[str, object]) -> None:
    if made in _unfinished:
        _set(made, methods)


def _set(made: type, attributes: dict[str, object]) -> None:
    with _without([type(made)], "__setattr__"):
        cp._class_setstate(made, (attributes, {}))  # noqa: SLF001 - how cloudpickle sets up classes


def fill_class(made: type, state: Any) -> None:
    """Sets a class up, once in each process, so that later changes by the program stay."""
    where = _unfinished.pop(made, None)
    if where is None:
        return
    _, values, of_members = state
    _set(made, values)
    for member, attributes in of_members.items():
        vars(made.__members__[member]).update(attributes)  # type: ignore[attr-defined]
    number, module, name, version = where
    program = known(number)
    if module and "." not in name and not program.is_here and version > program.version_of(module, name):
        program.namespace(module)[name] = made  # at once, since making a subclass may use it


def make_lru_cache(function: Callable[..., Any], parameters: dict[str, Any], attributes: dict[str, Any]) -> object:
    made = functools.lru_cache(**parameters)(function)
    vars(made).update(attributes)
    return made


def make_new_type(name: str, of: Any, module: str) -> object:
    made = typing.NewType(name, of)  # type: ignore[misc]
    made.__module__ = module
    return made


def make_wrapt_wrapper(kind: Any, *parts: Any) -> object:
    import wrapt  # type: ignore[import-not-found,import-untyped,unused-ignore]

    base: Any = wrapt.FunctionWrapper
    made: object = base.__new__(kind or base)
    base.__init__(made, *parts)
    return made


def make_json_scanner(options: dict[str, Any]) -> object:
    from json.scanner import c_make_scanner  # type: ignore[attr-defined]

    return c_make_scanner(types.SimpleNamespace(**options))


#: What weak references refer to: the program holds it, and does not say here by what.
_referred: list[object] = []


def make_reference(kind: Any, to: Any) -> object:
    if to is None:
        return weakref.ref(set())  # dead
    _referred.append(to)
    return kind(to)


def make_context_variable(name: str, *value: object) -> contextvars.ContextVar[object]:
    return contextvars.ContextVar(name, default=value[0]) if value else contextvars.ContextVar(name)


def make_descriptor(kind: type, base: Any, given: tuple[object, ...]) -> object:
    """Makes an instance of a subclass of `property`, `classmethod` or `staticmethod`, without the subclass's own constructor."""
    made = base.__new__(kind)
    base.__init__(made, *given)
    return made


def make_cached_property(function: Callable[[Any], Any], name: str | None) -> object:
    made = functools.cached_property(function)
    made.attrname = name
    return made


def make_partial_method(function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> object:
    return functools.partialmethod(function, *args, **keywords)


def make_single_dispatch(function: Callable[..., Any], registry: dict[type, Callable[..., Any]], attributes: dict[str, Any]) -> object:
    made = functools.singledispatch(function)
    for kind, implementation in registry.items():
        made.register(kind, implementation)
    vars(made).update(attributes)
    return made
