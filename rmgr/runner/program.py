"""One program, one `__main__`, wherever its functions run: what a process knows of a program, and which program it is.

A *program* is a client process. What it defines where no node can import it (`__main__`, modules that pytest has rewritten, modules made at
run time) are its **names**. A pickle does not hold their values; it says `named(program, module, name)`, and `hold(...)` in front of it
brings the definitions that its reader may lack, in **groups** that were pickled together. A worker serves one program: it sets each name in
its own `__main__` once for each version, so that functions, initializers and results share one dictionary of globals, as in the workers of
a process pool. What a worker has set itself stays until the program binds that name anew. Reading a pickle never changes a name that the
program itself has.

`pickles` writes such pickles and chooses their groups, `pickler` says how each object travels, `unpickling` reads them.

Imported by clients and workers: standard library, `modules` only.
"""

from __future__ import annotations

import builtins
import dis
import functools
import os
import re
import sys
import threading
import time
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rmgr.runner import modules
from rmgr.runner.modules import MAIN, SPAWNED_MAIN, main_or

#: (module, name).
Name = tuple[str, str]
#: (module, name, version).
Version = tuple[str, str, int]
MISSING = object()
#: Held while definitions are read or pickled. A forked child gets another one, so import the module, not this name.
lock = threading.RLock()
_WORD = re.compile(r"[^\W\d]\w*")
_GLOBAL_OPS = frozenset(
    {"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME", "LOAD_CLASSDICT_OR_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"}
)


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Names that were pickled together, so that shared objects stay shared. at: number of groups made before. needs: every name that one of
    them mentions. values: what they were bound to."""

    at: int
    versions: tuple[Version, ...]
    data: bytes
    needs: frozenset[Name]
    values: dict[Name, object]


@dataclass(slots=True)
class Bound:
    """A name as last sent or received. group: None if it would have to be pickled."""

    value: object
    version: int
    group: Group | None = None


class Program:
    """A program as this process knows it.

    is_here: this process is the program, and its own names win. is_own: this process is the program or its worker, and `__main__` is the
    program's.
    """

    def __init__(self, number: str, *, is_here: bool, is_own: bool) -> None:
        self.number = number
        self.is_here = is_here
        self.is_own = is_own
        self.bound: dict[Name, Bound] = {}
        self.names_of: dict[int, list[Name]] = {}  # the same the other way: by id of the value
        self.made: dict[str, types.ModuleType] = {}  # made here
        self._last_version = 0
        #: "group": of the workers that have its values as they were last looked at, "" as long as none had changed in place.
        self.workers: dict[str, Any] = {"group": ""}

    # -- names -------------------------------------------------------------------------------------------------------

    def modules(self) -> Iterable[str]:
        """Returns the names of modules that only the program has."""
        return modules.unimportable() if self.is_here else (MAIN, *self.made)

    def namespace(self, module: str) -> dict[str, Any]:
        """Returns the globals here of one of its modules."""
        if self.is_own and module in sys.modules:
            return vars(sys.modules[module])
        made = self.made.get(module)
        if made is None:
            made = self.made[module] = types.ModuleType(module)
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
        return module in self.modules() and self.look_up(module, qualname) is thing

    def module_with(self, namespace: dict[str, Any]) -> str | None:
        """Returns the module with these globals."""
        for module in self.modules():
            if module in sys.modules and self.is_own:
                if vars(sys.modules[module]) is namespace:
                    return module
            elif module in self.made and vars(self.made[module]) is namespace:
                return module
        return None

    def look_up(self, module: str, qualname: str) -> object:
        """Returns what one of its modules has under that name, else MISSING."""
        first, *rest = qualname.split(".")
        found: object = self.namespace(module).get(first, MISSING)
        for step in rest:
            found = vars(found).get(step, MISSING) if isinstance(found, type) else MISSING
            found = getattr(found, "__func__", found)  # of a class method
        return found

    def get(self, module: str, qualname: str) -> object:
        """Returns the object that a pickle names. Raises: AttributeError if it is not here."""
        found = self.look_up(module, qualname)
        if found is MISSING:
            raise AttributeError(f"{module} of this program has no {qualname!r}")
        return found

    # -- versions ----------------------------------------------------------------------------------------------------

    def newer(self, versions: Iterable[Version]) -> list[Version]:
        """Returns those whose name this process lacks, or has in an older version; a program keeps all names that it has itself."""
        if self.is_here:
            return [entry for entry in versions if entry[1] not in self.namespace(entry[0])]
        return [entry for entry in versions if entry[2] > self.version_of(entry[0], entry[1])]

    def take(self, versions: Iterable[Version], values: Mapping[Name, object]) -> None:
        """Sets these names to the values that came for them."""
        for module, name, version in versions:
            self._last_version = max(self._last_version, version)
            self.namespace(module)[name] = values[module, name]
            self.bind((module, name), Bound(values[module, name], version))

    def version_of(self, module: str, name: str) -> int:
        """Returns the last version received of a name, 0 if none."""
        bound = self.bound.get((module, name))
        return bound.version if bound is not None else 0

    def next_version(self, name: Name, value: object) -> int:
        """Returns the version of a name as it is bound now.

        The program counts in nanoseconds of its clock. A worker, whose clock may differ, counts on from the versions that it has seen, so
        that the program's next version is newer.
        """
        bound = self.bound.get(name)
        if bound is not None and bound.value is value:
            return bound.version
        self._last_version = max(self._last_version + 1, time.time_ns() if self.is_here else 0)
        return self._last_version

    def bind(self, name: Name, bound: Bound) -> None:
        """Remembers what a name is bound to."""
        known = self.bound.get(name)
        if known is None or known.value is not bound.value:
            self.unbind(name)
            self.names_of.setdefault(id(bound.value), []).append(name)
        self.bound[name] = bound

    def unbind(self, name: Name) -> None:
        """Forgets a name."""
        if (bound := self.bound.pop(name, None)) is not None:
            names = self.names_of[id(bound.value)]
            names.remove(name)
            if not names:
                del self.names_of[id(bound.value)]

    def still_binds(self, name: Name, value: object, before: int | None) -> bool:
        """Returns whether a name that was sent or received is still bound to that value. before: not if its group has that number or a
        later one."""
        bound = self.bound[name]
        if bound.value is not value or (before is not None and bound.group is not None and bound.group.at >= before):
            return False
        return self.namespace(name[0]).get(name[1]) is value

    # -- what code mentions ----------------------------------------------------------------------------------------------

    def reached(self, names: Iterable[Name]) -> set[Name]:
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


# -- which program is which -------------------------------------------------------------------------------------------------

_programs: dict[str, Program] = {}
_mine: Program | None = None


def mine() -> Program:
    """Returns the program that this process is, or works for."""
    global _mine
    if _mine is None:
        with lock:
            if _mine is None:
                _mine = Program(os.urandom(8).hex(), is_here=True, is_own=True)
                _programs[_mine.number] = _mine
    return _mine


def become(program: Program) -> None:
    """Makes this process a worker of that program."""
    global _mine
    _mine = _programs[program.number] = program


def known(number: str) -> Program:
    """Returns the program with that number, as far as this process knows it."""
    program = _programs.get(number)
    if program is None:
        with lock:
            program = _programs.setdefault(number, Program(number, is_here=False, is_own=False))
    return program


def _forked() -> None:
    """Separates a child from its parent: its new names are its own. It can still read pickles meant for its parent."""
    global _mine, lock
    lock = threading.RLock()
    if _mine is not None and _mine.is_here:
        _mine = None


os.register_at_fork(after_in_child=_forked)


def mentions(data: bytes | bytearray) -> bool:
    """Returns whether a pickle may name something that only its program has. Cost: 0.3 ms a MiB."""
    program = mine() if _mine is None else _mine
    if not program.is_here:
        return any(module.encode() in data for module in (*program.modules(), SPAWNED_MAIN))
    for module in modules.unimportable_encoded():  # noqa: SIM110 - written out: every call is asked this
        if module in data:
            return True
    return False
