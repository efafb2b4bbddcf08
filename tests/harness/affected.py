"""Test files that a change can break: those that reach a changed module by imports, or by naming a module that they start.

`tests/run.sh --changed` runs them for what git shows as changed since HEAD, `--changed=REV` for all that has come since REV.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict, deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.places import ROOT

_TREES = ("rmgr", "tests")
#: A module named in a string: processes are started (`-m rmgr.cli.main`), and commands and policies loaded, by such names.
_NAMED = re.compile(r"\brmgr(?:\.\w+)+")
#: Tests that read the whole tree, so that any change can break them.
_OF_ALL = re.compile(r"tests/(test_house\w*|test_documents|unit/(house|documents)/test_\w+)\.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--changed`."""
    parser.addoption("--changed", nargs="?", const="HEAD", default=None, metavar="REV", help="run what the change since REV can break")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out the files that the change cannot break."""
    rev: str | None = config.getoption("--changed")
    if rev is None or collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    found: frozenset[str] | None = getattr(config, "_affected", None)
    if found is None:
        found = affected(ROOT, changed_since(rev))
        config._affected = found  # type: ignore[attr-defined]
    return str(collection_path.relative_to(ROOT)) not in found or None


def changed_since(rev: str) -> list[str]:
    """Files of the checkout that differ from `rev`, untracked ones among them. Raises: CalledProcessError."""
    commands = (["git", "diff", "--name-only", rev], ["git", "ls-files", "--others", "--exclude-standard"])
    said = [subprocess.run(one, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout for one in commands]
    return sorted(set("".join(said).splitlines()))


def affected(root: Path, changed: list[str]) -> frozenset[str]:
    """Test files below `root` that one of the `changed` files can break, paths from `root`. Cost: one parse of the tree, 5 s."""
    files = {str(path.relative_to(root)): path for tree in _TREES for path in (root / tree).rglob("*.py")}
    modules = {_module_of(name): name for name in files}
    users: dict[str, set[str]] = defaultdict(set)  #: file -> files that import or name it
    for name, path in files.items():
        for module in _needs(ast.parse(path.read_text(encoding="utf-8"))):
            for used in _packages(module):
                if used in modules and modules[used] != name:
                    users[modules[used]].add(name)
        if path.name == "conftest.py":  # no file imports it, but it applies to its whole folder
            users[name].update(other for other in files if other.startswith(f"{Path(name).parent}/"))
    reached = {name for name in changed if name in files}
    waiting = deque(sorted(reached))
    while waiting:
        for user in users[waiting.popleft()] - reached:
            reached.add(user)
            waiting.append(user)
    return frozenset(
        name for name in files if Path(name).name.startswith("test_") and (name in reached or (changed and _OF_ALL.match(name)))
    )


def _needs(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _NAMED.findall(node.value)


def _packages(dotted: str) -> Iterator[str]:
    """Yields `a`, `a.b`, `a.b.c`: importing a module also runs its packages. The last part may be a name in the module."""
    parts = dotted.split(".")
    yield from (".".join(parts[: count + 1]) for count in range(len(parts)))


def _module_of(name: str) -> str:
    parts = Path(name).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
