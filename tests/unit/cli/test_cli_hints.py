"""Errors name the id, the cause and the next command: every error raised by a command has a hint."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from rmgr import errors
from tests.places import ROOT

KINDS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.RmgrError)}
#: Where people's words are read. (click's own errors get theirs from `with_hint`; an empty one is caught beside it.)
READERS = ("cli", "procedures", "client/commands")


def told_without_hint(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS and node.args:
            has_hint = any(keyword.arg in {"hint", None} for keyword in node.keywords)
            if not has_hint and ast.unparse(node.args[0]) not in {"''", '""'}:
                yield node.lineno, ast.unparse(node)


@pytest.mark.parametrize("room", READERS)
def test_what_is_wrong_is_told_with_what_to_type(room: str) -> None:
    paths = sorted((ROOT / "rmgr" / room).rglob("*.py"))
    assert paths
    found = [f"{path.relative_to(ROOT)}:{line} {told}" for path in paths for line, told in told_without_hint(path.read_text("utf-8"))]
    assert found == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("raise UsageError('no')", 1),
        ("raise NotFound('no', hint='rmgr jobs')", 0),
        ("kind(message, hint=hint)", 0),
        ("RmgrError(*told)", 1),
    ],
)
def test_an_error_without_a_hint_is_seen(source: str, count: int) -> None:
    assert len(list(told_without_hint(source))) == count
