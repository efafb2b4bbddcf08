"""SECURITY.md says who could try what, what stops it, and which test shows it: every test that it names is there."""

from __future__ import annotations

import ast
import re
from functools import cache

from tests.harness.run_stages import long_tests
from tests.places import TESTS

HEAD = "| who | could try | what stops it | test |"
WHO = {"nobody", "user", "task", "Starter", "WatchDog", "store", "ZooKeeper", "gateway", "server"}
_NAMED = re.compile(r"`([a-z]+/[\w/]*\btest_\w+\.py)::(test_\w+)`")


def lines() -> list[list[str]]:
    """The table's cells, line by line."""
    document = (TESTS.parent / "SECURITY.md").read_text()
    assert document.count(HEAD) == 1
    body = document.split(HEAD, 1)[1].lstrip("\n").splitlines()[1:]
    end = next(number for number, line in enumerate(body) if not line.startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body[:end]]


@cache
def functions_of(file: str) -> frozenset[str]:
    """Names of the functions of a file of tests."""
    tree = ast.parse((TESTS / file).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_every_line_says_who_what_and_what_stops_it() -> None:
    found = lines()
    for cells in found:
        assert len(cells) == 4, cells
        assert all(cells), cells
        assert set(cells[0].split(", ")) <= WHO, cells
    assert {who for cells in found for who in cells[0].split(", ")} == WHO
    said = [tuple(cells[:2]) for cells in found]
    assert len(set(said)) == len(said)


def test_every_test_that_is_named_is_there() -> None:
    missing = []
    for cells in lines():
        named = _NAMED.findall(cells[3])
        rest = _NAMED.sub("", cells[3]).replace("**open**", "").strip(", ")
        assert not rest, f"tests are named as `folder/room/test_file.py::test_name`, or **open**: {cells[3]}"
        assert named or "**open**" in cells[3], cells
        missing += [f"{file}::{name}" for file, name in named if not (TESTS / file).exists() or name not in functions_of(file)]
    assert not missing, f"SECURITY.md names tests that are not there: {missing}"


def test_the_daily_run_shows_every_line() -> None:
    named = [(cells[1], _NAMED.findall(cells[3])) for cells in lines()]
    without = [what for what, tests in named if tests and all(name in long_tests(TESTS / file) for file, name in tests)]
    assert without == [], "tests/long.sh alone runs their tests: mark one of them `long` no more, or write a short one"
