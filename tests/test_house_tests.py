"""Tests are in folders that mirror the rooms of `rmgr`, and name nothing that is private there."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.places import ROOT, TESTS

#: Rooms of `tests/unit` without a room in `rmgr`: tests of documents and deploy/, of the whole source, of commands of administrators.
OF_NO_PACKAGE = {"documents", "house", "cli/admin"}
FOLDERS = {str(path.parent.relative_to(TESTS)) for kind in ("unit", "integration") for path in (TESTS / kind).rglob("test_*.py")}


def test_every_test_stands_in_a_room() -> None:
    loose = [path.name for kind in ("unit", "integration") for path in (TESTS / kind).glob("test_*.py")]
    assert loose == [], "into the room of what they test: tests/README.md lists them"


def test_the_rooms_of_unit_tests_are_those_of_the_package() -> None:
    rooms = {folder.removeprefix("unit/") for folder in FOLDERS if folder.startswith("unit/")}
    assert {room for room in rooms - OF_NO_PACKAGE if not (ROOT / "rmgr" / room / "__init__.py").exists()} == set()


def test_the_page_of_the_tests_names_every_room_of_real_processes() -> None:
    page = (TESTS / "README.md").read_text(encoding="utf-8")
    rooms = {folder.removeprefix("integration/") for folder in FOLDERS if folder.startswith("integration/")}
    assert {room for room in rooms if f"`{room}`" not in page} == set()


#: Of named tuples, of `os`, of gRPC, and of what libraries look for in an Executor and in what a notebook shows.
PUBLIC = {"_replace", "_exit", "_server", "_health_pb2_async", "_max_workers", "_broken", "_shutdown", "_repr_html_"}
#: What a file itself defines; and what it reads of others (`x._y`), imports (`import _y`) or replaces (`setattr(x, "_y", ...)`).
OWN = re.compile(r"\b(?:self\.|def |class )(_[a-zA-Z]\w*)")
NAMED = re.compile(r"(?<!\bself)(?<!\bcls)\.(_[a-zA-Z]\w*)|^from rmgr.* import .*\b(_[a-zA-Z]\w*)|setattr\(.*[\".](_[a-zA-Z]\w*)\"")
#: Lists the private names of libraries that the package uses.
LIST = "test_source.py"


def private_names(text: str) -> Iterator[tuple[str, int]]:
    """Yields (name, line) of each private attribute of something else that a text reads, imports or replaces."""
    own = set(OWN.findall(text))
    for number, line in enumerate(text.splitlines(), 1):
        for name in (name for found in NAMED.findall(line) for name in found if name):
            if name not in PUBLIC and name not in own:
                yield name, number


def test_a_test_without_processes_names_nothing_that_is_private_in_the_package() -> None:
    some = [path for kind in ("unit", "property", "papers") for path in (TESTS / kind).rglob("*.py") if path.name != LIST]
    found = [f"{path.relative_to(TESTS)}:{line}: {name}" for path in some for name, line in private_names(path.read_text(encoding="utf-8"))]
    assert found == [], "what a test needs of it is public, and documented"
