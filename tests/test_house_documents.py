"""Names in backticks that documents give are names of today: something in the tree is called so, or says so.

A class, option, metric, event or file that is renamed takes the documents along, or a test says where its old name stands.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.test_documents import DOCS, prose
from tests.test_house import PACKAGE, ROOT, files, shown, sources, tree_of

#: They tell of the past: what was decided, what has changed.
_OF_THE_PAST = {ROOT / "CHANGELOG.md", *(DOCS / "decisions").glob("*.md")}
_QUOTED = re.compile(r"`([^`]+)`")
_WORD = re.compile(r"[A-Za-z_][\w-]*")
#: `Class.attribute`, `module.name`; neither `file.py` nor `a/b.c`.
_DOTTED = re.compile(r"(?<![\w./-])(\w+)\.(\w+)(?!\.\w|\w|/)")
#: Not of a name's own: tests that are named by file have a test of their own, `name_*` and `*_name` stand for several.
_LEFT_OUT = re.compile(r"\S*\.py::\w+|[\w-]*\*[\w-]*|\S*NNN\S*")
#: Settings are written without the units that fields have: `history_retention = "90d"` is `history_retention_us`.
_UNITS = ("_us", "_s", "_bytes")

#: Names that are nobody's here, and whose they are.
_OTHERS = {
    "of programs that administrators use": {"cacert", "connect-to", "curl", "hidepid", "journalctl", "zookeeperd"},
    "of Prometheus and ruff": {"noqa", "server_name", "tls_config"},
    "of ZooKeeper": {"commitLogCount", "maxbuffer"},
    "of Kazoo and Slurm, in lists of their faults": {"Election", "LockingQueue", "SlurmdTimeout"},
    "of devices": {"nvidia0", "shm"},
    "examples": {"KeepRoom", "demo", "n7", "rmgr-2", "short_us", "taskq-0000000007"},
    "forms": {"Cn", "ES"},
    "Python's": {"False"},
    "of the script that runs the tests": {"RMGR_MOST_RERUNS"},
}


def documents() -> list[Path]:
    return [path for path in files(".md") if path not in _OF_THE_PAST]


def quoted(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text in backticks) of a document."""
    for number, line in prose(path):
        for text in _QUOTED.findall(line):
            yield number, _LEFT_OUT.sub(" ", text)


def names_of(node: ast.AST) -> Iterator[str]:
    """Names that one node of a module's tree defines or uses, and words of its literals."""
    for field in ("name", "id", "attr", "arg", "asname", "module"):
        if isinstance(name := getattr(node, field, None), str):
            yield from name.split(".")
    if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
        text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
        for word in _WORD.findall(text):
            yield word.strip("-")
            yield from word.split("-")


def docstrings(tree: ast.Module) -> set[int]:
    """Ids of the nodes of docstrings: what they call things proves nothing."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node, clean=False):
            text = node.body[0]
            assert isinstance(text, ast.Expr)
            found.add(id(text.value))
    return found


@cache
def known() -> frozenset[str]:
    """Names and words of literals of the package, words of every other file that is no document and no test, names of all files."""
    found = set().union(*_OTHERS.values())
    for path in files():
        found |= {part for word in path.relative_to(ROOT).parts for part in (word, *re.findall(r"\w+", word))}
        if path.suffix == ".md" or (ROOT / "tests") in path.parents:
            continue
        if path.suffix == ".py":
            texts = docstrings(tree := tree_of(path))
            found |= {name for node in ast.walk(tree) if id(node) not in texts for name in names_of(node)}
            continue
        text = path.read_bytes().decode("utf-8", "ignore")
        found |= {part for word in _WORD.findall(text) for part in (word.strip("-"), *word.split("-"))}
    return frozenset(found | {name.removesuffix(unit) for name in found for unit in _UNITS})


@cache
def members() -> dict[str, frozenset[str]]:
    """Class -> its names and the names of its bases' members, "" where a base is another's. Module -> all its names."""
    own: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    modules: dict[str, set[str]] = {}
    for path in sources():
        tree = tree_of(path)
        module = path.parent.name if path.stem == "__init__" else path.stem
        modules.setdefault(path.parent.name, set()).add(path.stem)
        modules.setdefault(module, set()).update(name for node in ast.walk(tree) for name in names_of(node))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                own.setdefault(node.name, set()).update(name for part in ast.walk(node) for name in names_of(part))
                bases.setdefault(node.name, set()).update(getattr(base, "id", getattr(base, "attr", "")) for base in node.bases)

    def inherited(name: str, seen: frozenset[str]) -> set[str]:
        return own.get(name, set()).union(*(inherited(base, seen | {base}) for base in bases.get(name, set()) - seen))

    return {name: frozenset(found) for name, found in modules.items()} | {name: frozenset(inherited(name, frozenset())) for name in own}


def wrong_in(text: str) -> Iterator[str]:
    """Words of a text in backticks that nothing is called by, and members that their class or module does not have."""
    for word in _WORD.findall(text):
        if word.strip("-") not in known():
            yield word
    for owner, member in _DOTTED.findall(text):
        if owner[:1].isupper() and owner in members() and member not in members()[owner]:
            yield f"{owner}.{member}"


def test_names_in_backticks_are_names_of_today() -> None:
    found = [f"{shown(path, number)} {name}" for path in documents() for number, text in quoted(path) for name in wrong_in(text)]
    assert found == []


def test_every_exception_is_still_needed() -> None:
    said = {word.strip("-") for path in documents() for _, text in quoted(path) for word in _WORD.findall(text)}
    assert {name for names in _OTHERS.values() for name in names} - said == set()


def test_a_name_that_is_gone_is_found() -> None:
    assert list(wrong_in("TaskQueue.submit_call and --max-fails write leadership_began")) == []
    gone = ["submit_nobody", "most-fails", "reign_began"]
    assert list(wrong_in("TaskQueue.submit_nobody and --most-fails write reign_began")) == [*gone, "TaskQueue.submit_nobody"]
    assert (PACKAGE / "README.md") in documents()
