"""Every text that names a module names an existing one: `-m rmgr...`, entry points, patches of tests, units, scripts, documents.

Nothing else finds these texts when a module moves: an import fails at once, a text fails only when its command is run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.places import TESTS
from tests.test_house import PACKAGE, STUBS, files, shown, tree_of, trees  # noqa: F401 - `trees` is in force here

_NAMED = re.compile(r"(?<![\w./-])rmgr(?:\.\w+)+(?::\w+)?")
_IMPORTED = re.compile(r"\bfrom (rmgr(?:\.\w+)+) import (\w+)")
#: Modules and packages directly in `rmgr`. Other texts that begin with `rmgr.` are files and services (`rmgr.toml`, `rmgr.v1.Leader`).
_ROOMS = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()} - {STUBS.name, "__init__"}


def named_in(path: Path) -> Iterator[tuple[str, int]]:
    """Yields (dotted name, line) of every text of a file that looks like a name in the package."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for found in [*_NAMED.findall(line), *(".".join(one) for one in _IMPORTED.findall(line))]:
            if found.split(".")[1] in _ROOMS:
                yield found, number


@cache
def has(module: Path, name: str) -> bool:
    """Whether `name` is defined, imported or assigned at the top of a module."""
    top = [node for block in tree_of(module).body for node in (ast.walk(block) if isinstance(block, (ast.If, ast.Try)) else [block])]
    for node in top:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.name == name:
            return True
        if isinstance(node, (ast.Import, ast.ImportFrom)) and name in {(alias.asname or alias.name).split(".")[0] for alias in node.names}:
            return True
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        if name in {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}:
            return True
    return False


def resolves(dotted: str) -> bool:
    """Whether a dotted name is a module, a package, or a top-level name of one; attributes below that are not checked."""
    at = PACKAGE
    for part in re.split(r"[.:]", dotted)[1:]:
        if part.startswith("__"):  # every module has these
            return True
        if (at / part / "__init__.py").exists():  # a directory that only holds what was compiled is gone
            at /= part
        elif (file := at / f"{part}.py").exists():
            at = file
        else:
            file = at / "__init__.py" if at.is_dir() else at
            return file.exists() and has(file, part)
    return True


def test_texts_that_name_modules_name_some_that_there_are() -> None:
    found = [
        f"{shown(path, line)} {name}"
        for path in files(".py", ".pyi", ".sh", ".toml", ".yml", ".md", ".service", "")
        if STUBS not in path.parents
        for name, line in named_in(path)
        if not resolves(name)
    ]
    assert found == []


def test_a_module_that_is_gone_is_found() -> None:
    assert resolves("rmgr.cli.main:main")
    assert resolves("rmgr.runner.spawner")
    assert resolves("rmgr.client.tasks.MAP_S")
    for gone in ("runner.spawned", "cli.main:begin"):
        assert not resolves(f"rmgr.{gone}")


def test_no_module_counts_the_directories_above_it() -> None:
    """Parents of `__file__` change when the module moves; `home.ROOT` and `home.source` do not."""
    found = [
        shown(path, node.lineno)
        for path in files(".py")
        if PACKAGE in path.parents and "__file__" in path.read_text(encoding="utf-8")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and node.attr in ("parents", "parent") and _is_own_file(node)
        if node.attr == "parents" or isinstance(node.value, ast.Attribute)
    ]
    assert found == []


def test_no_test_counts_the_directories_above_it() -> None:
    """Tests take paths from `tests/places.py`, which stay right when a test moves."""
    found = [
        shown(path, node.lineno)
        for path in files(".py", trees=("tests",))
        if path != TESTS / "places.py" and "__file__" in path.read_text(encoding="utf-8")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and node.attr in ("parents", "parent") and _is_own_file(node)
    ]
    assert found == []


def _is_own_file(node: ast.Attribute) -> bool:
    return any(isinstance(part, ast.Name) and part.id == "__file__" for part in ast.walk(node))
