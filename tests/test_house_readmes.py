"""READMEs link to every room, and each room that people change has a page with its rules."""

from __future__ import annotations

import re

from tests.test_house import PACKAGE, ROOT, files

#: Pages that belong to no room: the front page, the map, instructions.
OTHERS = {"README.md", "rmgr/README.md", "deploy/README.md"}
#: Rooms that people change; each has a page.
ROOMS = {
    "rmgr/adapters", "rmgr/bench", "rmgr/cli", "rmgr/client", "rmgr/coord", "rmgr/daemons/gateway", "rmgr/daemons/leader",
    "rmgr/daemons/server", "rmgr/daemons/starter", "rmgr/procedures", "rmgr/runner", "rmgr/sched", "rmgr/sim", "rmgr/submitter", "tests",
}
READMES = {str(path.relative_to(ROOT)): path for path in files(".md") if path.name == "README.md"}


def test_each_room_that_people_change_has_a_page_with_its_rules() -> None:
    assert {room for room in ROOMS if f"{room}/README.md" not in READMES} == set()
    pages = {name: path.read_text(encoding="utf-8") for name, path in READMES.items() if name not in OTHERS}
    assert [name for name, text in pages.items() if "\n## Rules\n" not in text] == []


def test_the_map_leads_to_the_page_of_every_room() -> None:
    text = (PACKAGE / "README.md").read_text(encoding="utf-8")
    linked = {str((PACKAGE / link).resolve().relative_to(ROOT)) for link in re.findall(r"\]\(([^)]*README\.md)\)", text)}
    assert linked == READMES.keys() - OTHERS


def test_the_map_names_every_package() -> None:
    rooms = (PACKAGE / "README.md").read_text(encoding="utf-8").partition("## Rooms")[2].partition("\n## ")[0]
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - {"v1"}
    assert {name for name in packages if f"| [{name}]({name}/README.md)" not in rooms} == set()
