"""READMEs stay short enough to be read, lead to every room, and say it in short sentences."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

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

#: Words of a sentence in a document; what stands in backticks is one word.
MOST_WORDS = 25
PLAIN = sorted(str(path.relative_to(ROOT)) for path in files(".md"))


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


#: A user, a process and a reader are "the user", "it" and "they"; names of tests and people are in backticks, or are names.
_SOMEBODY = re.compile(r"\b(he|his|him|himself|she|hers?|herself)\b", re.IGNORECASE)
#: Ann is the user of the examples.
_ANNS = re.compile(r"her work ends now")


@pytest.mark.parametrize("path", sorted(files(".md")), ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_speak_of_users_and_they(path: Path) -> None:
    text = re.sub(r"```.*?```|`[^`]*`", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert [line for line in text.splitlines() if _SOMEBODY.search(line)] == []


def test_first_lines_and_texts_for_users_speak_of_users_and_they() -> None:
    found = [f"{shown(path, line)} {text}" for path in sources() for line, text in _first_lines(tree_of(path)) if _SOMEBODY.search(text)]
    for path in sources():
        docstrings = {id(node.value) for node in ast.walk(tree_of(path)) if isinstance(node, ast.Expr)}
        found += [
            f"{shown(path, node.lineno)} {node.value}"
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
            if _SOMEBODY.search(_ANNS.sub("", node.value))
        ]
    assert found == []


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
