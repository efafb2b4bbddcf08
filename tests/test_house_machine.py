"""Daemons and client take clocks, waits, threads and randomness only from `rmgr.runtime.machine`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmgr.runtime import machine
from tests.test_house import PACKAGE, ROOT, tree_of, trees  # noqa: F401 - `trees` is in force here

ROOMS = ("client", "daemons", "procedures")
#: What reads a clock, waits, starts a thread or draws random numbers: module -> its names, or None for the whole module.
_REFUSED: dict[str, frozenset[str] | None] = {
    "time": frozenset({
        "monotonic", "monotonic_ns", "time", "time_ns", "perf_counter", "perf_counter_ns", "process_time", "thread_time", "sleep",
        "clock_gettime", "clock_gettime_ns",
    }),
    "datetime": frozenset({"datetime.now", "datetime.utcnow", "datetime.today", "date.today"}),
    "random": None,
    "secrets": None,
    "uuid": frozenset({"uuid1", "uuid4"}),
    "os": frozenset({"urandom", "getrandom"}),
    "threading": frozenset({"Thread", "Timer"}),
    "concurrent.futures": frozenset({"ThreadPoolExecutor", "ProcessPoolExecutor", "thread.ThreadPoolExecutor"}),
    "rmgr.adapters.rpc.server": frozenset({"SteadyThreads"}),
}  # fmt: skip
#: Allowed exceptions, "file: name" -> reason.
LISTED: dict[str, str] = {
    "rmgr/client/reach.py: time.monotonic": "a command's deadline, never on a virtual clock; `machine` would cost each command 8 ms",
}


def is_refused(name: str) -> bool:
    """Whether only `machine` may use a name. name: a full dotted name, as `time.monotonic`."""
    for module, names in _REFUSED.items():
        if name.startswith(f"{module}.") and (names is None or name.removeprefix(f"{module}.") in names):
            return True
    return False


def without_annotations(tree: ast.AST) -> Iterator[ast.AST]:
    """Yields all nodes except annotations, which read no clock."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST):
                yield node
                yield from without_annotations(node)


def dotted(node: ast.AST) -> str:
    """Returns "a.b.c" for an expression `a.b.c`, and "" for any other expression."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return node.id if isinstance(node, ast.Name) else ""


def direct(tree: ast.Module) -> list[tuple[int, str]]:
    """Returns (line, name) of each use that bypasses `machine` in one file, under any imported name."""
    known: dict[str, str] = {}  # local name -> full name
    found: list[tuple[int, str]] = []
    nodes = list(without_annotations(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            known |= {alias.asname or alias.name.partition(".")[0]: alias.name if alias.asname else alias.name.partition(".")[0]
                      for alias in node.names}  # fmt: skip
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            if node.module == machine.__name__ and not {alias.name for alias in node.names}.isdisjoint(machine.OFFERED):
                found.append((node.lineno, "a name of machine.py is imported: it would stay this machine's for ever"))
    for node in nodes:
        if isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Load):
            first, _, rest = dotted(node).partition(".")
            whole = f"{known.get(first, '')}.{rest}".rstrip(".") if first in known else ""
            if is_refused(whole):
                found.append((node.lineno, whole))
    return found


def bound_at_import(tree: ast.Module) -> list[tuple[int, str]]:
    """Returns (line, name) of what a file takes from `machine` while it is imported: default arguments, class fields, constants."""
    found: list[tuple[int, str]] = []

    def look(node: ast.AST, *, runs: bool) -> None:
        if isinstance(node, ast.Attribute) and dotted(node.value) == "machine" and node.attr in machine.OFFERED and runs:
            found.append((node.lineno, f"machine.{node.attr} at import"))
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns"):
                continue
            is_later = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and field == "body"
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    # Defaults of an inner function are evaluated when the outer one runs, often late enough; they are refused all the same.
                    look(child, runs=(runs and not is_later) or isinstance(child, ast.arguments))

    look(tree, runs=True)
    return found


def past_the_door(path: Path) -> list[str]:
    tree = tree_of(path)
    return [f"{path.relative_to(ROOT)}:{line}: {what}" for line, what in [*direct(tree), *bound_at_import(tree)]]


@pytest.mark.parametrize("room", ROOMS)
def test_clocks_threads_and_randomness_come_through_the_door(room: str) -> None:
    found = [each for path in sorted((PACKAGE / room).rglob("*.py")) for each in past_the_door(path)]
    places = {f"{each.partition(':')[0]}: {each.rpartition(': ')[2]}" for each in found}
    assert [each for each in found if f"{each.partition(':')[0]}: {each.rpartition(': ')[2]}" not in LISTED] == [], (
        "ask rmgr.runtime.machine instead (machine.monotonic(), machine.Thread(...)); a parameter `clock` is None by default"
    )
    gone = [place for place in LISTED if place.startswith(f"rmgr/{room}/") and place not in places]
    assert gone == [], "these no longer go past the door: take them off the list"


@pytest.mark.parametrize(
    "source",
    [
        "import time\nx = time.monotonic()",
        "import time as t\nx = t.time_ns()",
        "from time import sleep\nsleep(1)",
        "import time\ndef f(clock=time.monotonic): ...",
        "import datetime as d\nx = d.datetime.now()",
        "from datetime import datetime, UTC\nx = datetime.now(UTC)",
        "import random\nx = random.uniform(0, 1)",
        "from random import Random\nx = Random(1)",
        "import os\nx = os.urandom(1)",
        "import uuid\nx = uuid.uuid4()",
        "from secrets import token_hex\nx = token_hex()",
        "import threading\nthreading.Thread(target=print)",
        "from threading import Timer\nTimer(1, print)",
        "from concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor(1)",
        "from rmgr.runtime.machine import monotonic\nmonotonic()",
    ],
)
def test_the_look_finds_each_way_past(source: str) -> None:
    assert direct(ast.parse(source)) != [], source


@pytest.mark.parametrize(
    "source",
    [
        "from rmgr.runtime import machine\ndef f(clock=machine.monotonic): ...",
        "from rmgr.runtime import machine\nclass A:\n    at: float = field(default_factory=machine.monotonic)",
        "from rmgr.runtime import machine\nNOW = machine.wall_us()",
        "from rmgr.runtime import machine\ndef f():\n    def g(clock=machine.monotonic): ...",
    ],
)
def test_the_look_finds_what_is_bound_at_import(source: str) -> None:
    assert bound_at_import(ast.parse(source)) != [], source


def test_the_look_lets_types_and_calls_pass() -> None:
    source = (
        "import threading\nfrom rmgr.runtime import machine\n\nclass A:\n    thread: threading.Thread | None = None\n\n"
        "    def f(self, lock: threading.Thread) -> threading.Timer:\n        self.x: threading.Thread = machine.Thread()\n"
        "        return lambda: machine.monotonic()\n"
    )
    assert direct(ast.parse(source)) == [] == bound_at_import(ast.parse(source))


def test_another_machine_stands_for_this_one_and_goes_again() -> None:
    class Other:
        def __getattr__(self, name: str) -> object:
            return lambda *_: name

    before = {name: getattr(machine, name) for name in machine.OFFERED}
    with pytest.raises(ValueError, match="over"), machine.replaced(Other()):
        assert [getattr(machine, name)() for name in machine.OFFERED] == list(machine.OFFERED)
        raise ValueError("over")
    assert {name: getattr(machine, name) for name in machine.OFFERED} == before
