"""READMEs stay short enough to be read: the first page, the map of the house, a page for each room that people change."""

from __future__ import annotations

import re

import pytest

from tests.test_house import PACKAGE, ROOT, files

#: Lines of each README; a room has the last one.
LIMITS = {"README.md": 150, "rmgr/README.md": 120}
ROOM = 80
#: Pages of instructions, as long as what they explain.
UNLIMITED = {"deploy/README.md"}
#: Rooms that people change: each has a page.
ROOMS = {
    "rmgr/adapters",
    "rmgr/bench",
    "rmgr/cli",
    "rmgr/client",
    "rmgr/coord",
    "rmgr/daemons/gateway",
    "rmgr/daemons/leader",
    "rmgr/daemons/starter",
    "rmgr/runner",
    "rmgr/sched",
    "rmgr/sim",
    "tests",
}
READMES = {str(path.relative_to(ROOT)): path for path in files(".md") if path.name == "README.md"}


@pytest.mark.parametrize("name", sorted(READMES.keys() - UNLIMITED))
def test_a_readme_is_short(name: str) -> None:
    assert len(READMES[name].read_text(encoding="utf-8").splitlines()) <= LIMITS.get(name, ROOM)


def test_each_room_that_people_change_has_a_page_with_its_rules() -> None:
    assert {room for room in ROOMS if f"{room}/README.md" not in READMES} == set()
    pages = {name: path.read_text(encoding="utf-8") for name, path in READMES.items() if name not in UNLIMITED | LIMITS.keys()}
    assert [name for name, text in pages.items() if "\n## Rules\n" not in text] == []


def test_the_map_leads_to_the_page_of_every_room() -> None:
    text = (PACKAGE / "README.md").read_text(encoding="utf-8")
    linked = {str((PACKAGE / link).resolve().relative_to(ROOT)) for link in re.findall(r"\]\(([^)]*README\.md)\)", text)}
    assert linked == READMES.keys() - UNLIMITED - LIMITS.keys()


def test_the_map_names_every_package() -> None:
    rooms = (PACKAGE / "README.md").read_text(encoding="utf-8").partition("## Rooms")[2].partition("\n## ")[0]
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - {"v1"}
    assert {name for name in packages if f"| [{name}]({name}/README.md)" not in rooms} == set()
