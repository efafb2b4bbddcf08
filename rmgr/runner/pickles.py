"""Writes pickles that name what a program defines, and brings the definitions that their readers may lack, in groups.

Imported by clients and workers: standard library, rmgr.errors, `pickler`, `program`, `unpickling` only.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import pickle
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rmgr.errors import PickleFailed
from rmgr.runner import program as programs
from rmgr.runner.modules import MAIN, SPAWNED_MAIN
from rmgr.runner.pickler import FILE, LRU, PROTOCOL, Pickler
from rmgr.runner.program import MISSING, Bound, Group, Name, Program, become, mentions, mine
from rmgr.runner.unpickling import UNREAD, hold, loads

_SMALL_FRONT = 64 * 1024
_MAKE_IT_THERE = "make it in the function, or in an initializer of an Executor: it cannot travel"
_NOT_DEFINED = re.compile(r"name '(\w+)' is not defined")


def plain_or_own(value: object) -> bytes:
    """Returns the plain pickle of an object if that suffices, else as `dumps`. Raises: as `dumps`."""
    try:
        data = pickle.dumps(value, PROTOCOL)
    except Exception:  # noqa: BLE001 - __reduce__ of user classes may raise anything
        return dumps(value)
    return dumps(value) if mentions(data) else data


def dumps(value: object) -> bytes:
    """Returns a pickle of any object for processes of this program and others. Raises: whatever pickling raises; PickleFailed."""
    file = io.BytesIO()
    front, _ = dump(value, file)
    return front + file.getvalue()


def dump(value: object, file: Any) -> tuple[bytes, Snapshot]:
    """Writes the pickle of an object to `file`; returns what must stand in front of it, and what it depends on. Raises: as `dumps`."""
    sent = definitions()
    program = sent.program
    pickler = Pickler(file, program)
    pickler.dump(value)
    strict: set[Name] = set()
    if program.is_here:
        strict.update(*map(program.needed_by, _functions_in(value)))
        strict.update(name for name in pickler.named if isinstance(program.namespace(name[0]).get(name[1]), type))
    groups, snapshot = sent.groups_of(pickler.needs, strict)
    return sent.front(groups), snapshot


def _functions_in(value: object) -> Iterator[types.FunctionType]:
    """Yields the plain functions in a callable, whose names must not be left out."""
    if type(value) is types.FunctionType:
        yield value
    elif isinstance(value, functools.partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            yield from _functions_in(part)
    elif isinstance(value, tuple) and value and callable(value[0]):  # an initializer and its arguments
        yield from _functions_in(value[0])


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a pickle depends on. A later pickle is the same as long as each name is bound to the same object."""

    bound: tuple[tuple[dict[str, Any], str, object], ...] = ()

    def holds(self) -> bool:
        """Returns whether no name was bound anew. Cost: 0.1 us a name."""
        return all(namespace.get(name, MISSING) is value for namespace, name, value in self.bound)


class Definitions:
    """The definitions of this process's program that it has pickled, in groups."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._left_out: dict[Name, tuple[object, str]] = {}  # values that cannot be pickled, and why
        self._groups = 0  # made so far
        self._last_front: tuple[list[Group], bytes] = ([], b"")
        self.looked = object()  # another one after each look

    def groups_of(self, needs: Iterable[Name], strict: Iterable[Name] = ()) -> tuple[list[Group], Snapshot]:
        """Returns the groups, oldest first, of all names that `needs` reach.

        Args:
            strict: names without which the work cannot run. Other names are left out if they cannot be pickled: a class may have a
                method that uses a connection, and is not called there.
        Raises: PickleFailed naming one of `strict`.
        """
        with programs.lock:
            must = self.program.reached(strict)
            seen: dict[Name, object] = {}
            todo = [*needs, *must]
            fresh: set[Name] = set()
            while todo:
                name = todo.pop()
                if name in seen:
                    continue
                value = seen[name] = self.program.namespace(name[0]).get(name[1], MISSING)
                if value is MISSING or (name not in must and self._is_left_out(name, value)):
                    continue
                bound = self.program.bound.get(name)
                if bound is not None and bound.value is value and bound.group is not None:
                    todo.extend(bound.group.needs)
                else:
                    fresh.add(name)
                    todo.extend(self._mentioned(value))
            if fresh:
                alone = {name for name in fresh if name[1] == FILE}  # nearly all need it; nothing large must come with it
                self._make_group(alone or fresh, must)
                return self.groups_of(needs, strict)
            groups = {group for name in seen if name in self.program.bound and (group := self.program.bound[name].group) is not None}
            bound_now = [(self.program.namespace(name[0]), name[1], value) for name, value in seen.items()]
            bound_now.append((self.program.workers, "group", self.program.workers["group"]))
            return sorted(groups, key=lambda group: group.at), Snapshot(tuple(bound_now))

    def front(self, groups: list[Group]) -> bytes:
        """Returns opcodes that call `hold`, drop its result, and leave the rest to the following pickle. They use no memo, so that they can
        precede any pickle."""
        if not groups:
            return b""
        known, front = self._last_front  # a program passes objects of the same classes again and again
        if known == groups:
            return front
        data = pickle.dumps((self.program.number, [(group.versions, group.data) for group in groups]), PROTOCOL)
        call = b"c" + hold.__module__.encode() + b"\n" + hold.__name__.encode() + b"\n"
        front = b"\x80\x05" + call + b"\x8e" + len(data).to_bytes(8, "little") + data + b"\x85R0"
        if len(front) < _SMALL_FRONT:
            self._last_front = groups, front
        return front

    def look_again(self) -> None:
        """Forgets what was pickled if a value has changed in place since: later work has values as they are now, in fresh workers, as in a
        new pool of processes. Workers that have them keep theirs, with what an initializer has made of them: names keep their versions.
        Cost: pickles what was sent."""
        if not self.program.is_here:
            return
        with programs.lock:
            self.looked = object()
            can_travel = [name for name, (value, _) in self._left_out.items() if self._can_travel(name, value)]
            for name in can_travel:
                del self._left_out[name]
            groups = {bound.group for bound in self.program.bound.values() if bound.group is not None}
            if can_travel or any(map(self._has_changed, groups)):
                for bound in self.program.bound.values():
                    bound.group = None  # all of them: groups name what other groups have
                self.program.workers["group"] = os.urandom(16).hex()

    def _has_changed(self, group: Group) -> bool:
        try:
            versions = {(module, name): version for module, name, version in group.versions}
            return self._pickled(group.values, versions, group.at)[0] != group.data
        except Exception:  # noqa: BLE001 - __reduce__ of user classes may raise anything
            return True

    def _can_travel(self, name: Name, value: object) -> bool:
        """Returns whether a value that was left out can be pickled by now."""
        if self.program.namespace(name[0]).get(name[1], MISSING) is not value:
            return False
        try:
            self._pickled({name: value}, {name: 0})
        except Exception:  # noqa: BLE001 - __reduce__ of user classes may raise anything
            return False
        return True

    def _is_left_out(self, name: Name, value: object) -> bool:
        return self._left_out.get(name, (MISSING, ""))[0] is value

    def explain(self, error: BaseException) -> None:
        """Adds to an error of a call, which has not found a name, why the name did not travel; to one of definitions that could not be
        read, which of them. Cost: nothing for other errors; reads all values that were sent."""
        notes = getattr(error, "__notes__", ())
        if type(error) is NameError and (found := _NOT_DEFINED.match(str(error))):
            told = [why for (_, name), (_, why) in self._left_out.copy().items() if name == found[1]]
        elif any(note.startswith(UNREAD) for note in notes if isinstance(note, str)):
            told = [why for name, bound in list(self.program.bound.items()) if (why := self._why_unread(name, bound.value))]
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
            values = {name: self.program.namespace(name[0])[name[1]] for name in names}
            versions = {name: self.program.next_version(name, value) for name, value in values.items()}
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
        group = Group(self._groups, tuple((*name, versions[name]) for name in values), data, frozenset(found | names), values)
        self._groups += 1
        for name, value in values.items():
            self.program.bind(name, Bound(value, versions[name], group))
        for name in [name for name in self.program.bound if name[1] not in self.program.namespace(name[0])]:
            self.program.unbind(name)  # it may be large

    def _is_fresh(self, name: Name) -> bool:
        value = self.program.namespace(name[0]).get(name[1], MISSING)
        if value is MISSING or self._is_left_out(name, value):
            return False
        bound = self.program.bound.get(name)
        return bound is None or bound.value is not value or bound.group is None

    def _pickled(self, values: Mapping[Name, object], versions: Mapping[Name, int], at: int | None = None) -> tuple[bytes, set[Name]]:
        file = io.BytesIO()
        pickler = Pickler(file, self.program, versions, at)
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

    def _mentioned(self, value: object) -> Iterator[Name]:
        """Yields names mentioned by functions and by methods of classes, so that all are pickled in one go."""
        if type(value) is types.FunctionType:
            yield from self.program.mentioned_by(value)
        elif isinstance(value, type):
            for member in vars(value).values():
                function = getattr(member, "__func__", getattr(member, "fget", member))
                if isinstance(function, types.FunctionType):
                    yield from self.program.mentioned_by(function)
        elif type(value) is LRU:
            yield from self._mentioned(value.__wrapped__)


_definitions: Definitions | None = None


def definitions() -> Definitions:
    """Returns those of the program that this process is, or works for."""
    global _definitions
    program = mine()
    if _definitions is None or _definitions.program is not program:
        with programs.lock:
            if _definitions is None or _definitions.program is not program:
                _definitions = Definitions(program)
    return _definitions


# -- processes that serve a program ------------------------------------------------------------------------------------------


def serve(number: str, group: str = "") -> None:
    """Makes this process a worker of a program ("" = of no known one): its `__main__` is the program's from now on.

    group: of workers that have the same values; its own calls go to such workers, too."""
    main = sys.modules[MAIN] = sys.modules[SPAWNED_MAIN] = types.ModuleType(MAIN)
    vars(main)["__builtins__"] = builtins
    program = Program(number, is_here=False, is_own=True)
    program.workers["group"] = group
    become(program)
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
        return spawned, (program.number, dumps(thing))
    return NotImplemented


def spawned(number: str, data: bytes) -> object:
    """What multiprocessing has sent: in a process that a task has started, or back in its worker."""
    import multiprocessing

    if mine().number != number and multiprocessing.parent_process() is not None:
        serve(number)
        _send_definitions()
    return loads(data)
