"""What there is too much of may only become less: circles of imports, loose types, silenced checks, names that stand for several classes.

Each number below is about what there is. Who makes it smaller writes the smaller one; nobody writes a larger one.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.test_house import PACKAGE, ROOT, sources, tree_of

#: In comments and code of the package, without the generated stubs. A little less is let pass: so not every change touches the number.
MOST = {"type: ignore": 105, "noqa": 195, "Any": 1195}
_SLACK = 25
#: Public names that two classes have, and why they may: both are names that users write. Nobody adds to it.
SHARED_CLASS_NAMES = {
    "Infeasible": "rmgr.Infeasible is raised at users; rmgr.sched.plan.Infeasible is what a policy is told",
    "Request": "rmgr.checkpoint.Request is what a program is asked; Submission.request is a field of records",
}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    return {module_of(path): path for path in sources()}


def imported(statement: ast.Import | ast.ImportFrom, known: Mapping[str, Path]) -> Iterator[str]:
    """Modules of the package that one statement imports."""
    for alias in statement.names:
        if isinstance(statement, ast.Import):
            name = alias.name
        else:
            name = f"{statement.module}.{alias.name}"
            name = name if name in known else statement.module or ""
        if name in known:
            yield name


def statements(body: list[ast.stmt], *, is_late: bool = False) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """(import, whether it is for typing alone or inside a function) of a block and all blocks in it."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node, is_late
            continue
        late = is_late or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        is_typing = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        yield from statements(getattr(node, "body", []), is_late=late or is_typing)
        for part in ("orelse", "finalbody"):
            yield from statements(getattr(node, part, []), is_late=late)
        for part in (*getattr(node, "handlers", []), *getattr(node, "cases", [])):
            yield from statements(part.body, is_late=late)


def arrows(*, late: bool) -> dict[str, set[str]]:
    """Module -> modules that it imports; late: also those that it imports for typing alone or inside functions."""
    known = modules()
    found: dict[str, set[str]] = {name: set() for name in known}
    for name, path in known.items():
        for statement, is_late in statements(tree_of(path).body):
            if late or not is_late:
                found[name].update(target for target in imported(statement, known) if target != name)
    return found


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of two or more modules each of which reaches all others (Tarjan's strongly connected components)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for target in sorted(graph[name]):
            if target not in order:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], order[target])
        if low[name] == order[name]:
            group = sorted(stack[stack.index(name) :])
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(group)

    for name in sorted(graph):
        if name not in order:
            visit(name)
    return sorted(found)


def test_modules_import_no_circle_when_they_are_loaded() -> None:
    assert circles(arrows(late=False)) == []


def test_there_is_no_circle_at_all() -> None:
    found = circles(arrows(late=True))
    listed = "\n".join(" ".join(name.removeprefix("rmgr.") for name in group) for group in found)
    mend = "move what both need below both, or let the lower one ask for it by an argument or a Protocol"
    assert found == [], f"imports for typing and inside functions count: {mend}\n{listed}"


def test_a_circle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": set(), "e": {"a"}, "f": {"g"}, "g": {"f"}}
    assert circles(graph) == [["a", "b", "c"], ["f", "g"]]
    source = ast.parse("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import b\ndef f():\n    import c\nimport d\n")
    assert [(node.names[0].name, late) for node, late in statements(source.body)] == [
        ("TYPE_CHECKING", False),
        ("b", True),
        ("c", True),
        ("d", False),
    ]


@cache
def counts() -> Counter[str]:
    found: Counter[str] = Counter()
    for path in sources():
        for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
            if token.type == tokenize.COMMENT:
                found["type: ignore"] += "type: ignore" in token.string
                found["noqa"] += "noqa" in token.string
            elif token.type == tokenize.NAME:
                found["Any"] += token.string == "Any"
    return found


@pytest.mark.parametrize("what", MOST)
def test_loose_types_and_silenced_checks_only_shrink(what: str) -> None:
    found, most = counts()[what], MOST[what]
    assert found <= most, f"{found} times {what!r} in rmgr, at most {most} were there: say it in types, or mend what the check found"
    assert found >= most - _SLACK, f"only {found} times {what!r}: write down the smaller number"


def test_a_public_name_stands_for_one_class() -> None:
    where: dict[str, list[str]] = defaultdict(list)
    for path in sources():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].append(str(path.relative_to(PACKAGE)))
    shared = {name: files for name, files in sorted(where.items()) if len(files) > 1}
    more = {name: files for name, files in shared.items() if name not in SHARED_CLASS_NAMES}
    assert more == {}, "say in the name what each of them is"
    assert SHARED_CLASS_NAMES.keys() <= shared.keys(), "take off the list what is unique by now"
