"""Tests are in folders that mirror the rooms of `rmgr`."""

from __future__ import annotations

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
