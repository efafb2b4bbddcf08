"""READMEs stay short enough to be read, lead to every room, and say it in short sentences."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.test_house import PACKAGE, ROOT, files, shown, sources, tree_of

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
    "rmgr/procedures",
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


# -- plain English --------------------------------------------------------------------------------------------------------------

#: Words of a sentence, in READMEs and documents for users; what stands in backticks is one word.
MOST_WORDS = 25
PLAIN = sorted({*READMES, "rmgr/docs/cli.md", "rmgr/docs/guide.md", "rmgr/docs/policies.md"})


def sentences(text: str) -> Iterator[str]:
    """Sentences of the prose: no code, no tables, no headings; each item of a list begins anew."""
    for paragraph in re.split(r"\n\s*\n", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)):
        lines = [line for line in paragraph.splitlines() if not line.startswith(("|", "#"))]
        for item in re.split(r"\n(?=\s*(?:- |\d+\. ))", "\n".join(lines)):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "X", " ".join(item.split())))
            yield from re.split(r"(?<=[.:;?!])\s+", plain)


@pytest.mark.parametrize("name", PLAIN)
def test_sentences_are_short(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert [line for line in sentences(text) if len(re.findall(r"[\w'’/-]+", line)) > MOST_WORDS] == []


def test_a_long_sentence_is_found_and_code_is_not_counted() -> None:
    long = " ".join(["word"] * (MOST_WORDS + 1))
    assert list(sentences(f"Short. {long}.\n\n```\n{long}\n```\n\n| {long} |\n")) == ["Short.", f"{long}.", ""]


#: Openings that make a first line a riddle: it says what the thing does or is ("Maps a caller's certificate to a user").
_RIDDLES = re.compile(r"(What|Of|Those|It|As|How|Who|Whose|Where|When|Which|Why|That|There)\b")


def test_first_lines_of_modules_and_public_classes_name_their_subject() -> None:
    found = [
        f"{shown(path, line)} {text}"
        for path in sources()
        for line, text in _first_lines(tree_of(path))
        if _RIDDLES.match(text)
    ]
    assert found == []


def _first_lines(module: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, first line of the docstring) of a module and of its public classes."""
    for node in (module, *module.body):
        if isinstance(node, ast.Module) or (isinstance(node, ast.ClassDef) and not node.name.startswith("_")):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text.splitlines()[0]
