"""Documents exist and are true: their references to sections, links, files and tests, and their copies from the code."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import click
import pytest

from rmgr.cli.bench import bench
from rmgr.config import MAX_NODES, WatchdogConfig
from rmgr.coord.decisions import keeping
from rmgr.coord.ops import leader
from rmgr.coord.protocol import multi, paths
from rmgr.daemons.leader.placement import passes as policy_process
from rmgr.daemons.leader.placement.passes import BENCH_S
from rmgr.daemons.starter.core.shares import AHEAD_S
from rmgr.daemons.starter.node import trouble
from rmgr.model import block, states
from rmgr.model.queue import ClusterSettings, QueueSpec
from tests.harness.run_stages import long_tests
from tests.test_house import PACKAGE, ROOT, STUBS, files, shown, tree_of, trees  # noqa: F401 - `trees` is in force here

DOCS = PACKAGE / "docs"
#: Documents whose sections code, tests and other documents name.
KNOWN = ("cli", "design", "papers", "performance", "protocol", "reliability")

_SECTION = r"(?:C\d+\.\d+|rules? \d+|\d+(?:\.\d+)*)"
#: `protocol.md 5.2`, `cli.md sections 5, 6`, `papers.md 1.3 to 1.5`, `papers.md, common rules`, `reliability.md rule 25`.
_REFERENCE = re.compile(
    r"\b(?P<document>design|protocol|papers|reliability|performance|cli|style)\.md\)?"
    rf"(?:,? (?:sections? )?(?P<sections>{_SECTION}(?:(?:, | and | to ){_SECTION})*|common rules)(?![\w%]))?"
)
_RULE = re.compile(r"\b[Rr]ule (\d+)\b")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_MODULE = re.compile(r"(?<![\w./*<>-])((?:[\w*]+/)*[\w*]+\.py)(?:::(\w+))?(?![\w*])")
_PATH = re.compile(r"`((?:deploy|proto|tests)/[\w./*-]*\w/?)(?=[`: ])")
_MULTI = re.compile(r"[A-Z][A-Z_]+")
#: Files that documents and docstrings name and that are a user's, or another project's.
_ELSEWHERE = {"FILE.py", "lib/run.py", "mine.py", "program.py", "x.py"}


def documents() -> list[Path]:
    return files(".md")


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of a document outside of its code blocks, with their numbers."""
    is_code = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield number, line


@cache
def headings(path: Path) -> tuple[str, ...]:
    return tuple(line.lstrip("#").strip() for _, line in prose(path) if re.match(r"#{1,6} ", line))


@cache
def sections(name: str) -> frozenset[str]:
    """What may stand behind `name.md` in a reference: numbers of its headings, names of checks, of rules."""
    path = DOCS / f"{name}.md"
    found = {match[1].rstrip(".") for heading in headings(path) if (match := re.match(r"(\d+(?:\.\d+)*\.?)\s", heading))}
    found |= {heading.lower() for heading in headings(path)}
    for _, line in prose(path):
        found |= set(re.findall(r"\bC\d+\.\d+\b", line))
        if match := re.match(r"(\d+)\. ", line):
            found.add(f"rule {match[1]}")
    return frozenset(found)


def words(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of comments and docstrings of a module, of the prose of a document."""
    if path.suffix == ".md":
        yield from prose(path)
        return
    for node in ast.walk(tree_of(path)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node, clean=False):
            text = node.body[0]
            assert isinstance(text, ast.Expr)
            assert isinstance(text.value, ast.Constant)
            yield from enumerate(str(text.value.value).splitlines(), text.lineno)
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        before, mark, comment = f" {line}".partition(" #")
        if mark and before.count('"') % 2 == 0:
            yield number, comment


def referring() -> list[Path]:
    return [path for path in files(".py", ".md", ".toml", ".proto", ".sh", ".yml") if STUBS not in path.parents and path != Path(__file__)]


def references() -> Iterator[tuple[Path, int, str, str]]:
    """(file, line, document, section) of every reference; section "" = the document as a whole."""
    for path in referring():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for match in _REFERENCE.finditer(line):
                named = match["sections"] or ""
                for section in re.findall(rf"{_SECTION}|common rules", named) or [""]:
                    yield path, number, match["document"], section.replace("rules ", "rule ")


def slug(heading: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@cache
def everything() -> tuple[str, ...]:
    """Every file of the project, from its root."""
    return tuple(str(path.relative_to(ROOT)) for path in files())


@cache
def by_last_name() -> dict[str, list[str]]:
    """Every file, by what stands behind the last `/`."""
    found: dict[str, list[str]] = {}
    for path in everything():
        found.setdefault(path.rpartition("/")[2], []).append(path)
    return found


@cache
def there_are(name: str) -> list[str]:
    """Files that a name stands for: its end, `*` for any letters."""
    if "*" in name:
        return [path for path in everything() if fnmatch(f"/{path}", f"*/{name}")]
    return [path for path in by_last_name().get(name.rpartition("/")[2], []) if f"/{path}".endswith(f"/{name}")]


@cache
def named_tests(path: str) -> frozenset[str]:
    return frozenset(node.name for node in ast.walk(tree_of(ROOT / path)) if isinstance(node, (ast.FunctionDef, ast.ClassDef)))


def test_every_reference_to_a_section_of_a_document_leads_there() -> None:
    found = [
        f"{shown(path, number)} {document}.md {section}"
        for path, number, document, section in references()
        if document in KNOWN and not ((DOCS / f"{document}.md").exists() and (not section or section in sections(document)))
    ]
    assert found == []


def test_references_are_seen_in_all_their_forms() -> None:
    seen = re.compile(_REFERENCE)
    forms = {
        "as cli.md sections 5, 6 have it": "5, 6",
        "(papers.md 1.3 to 1.5)": "1.3 to 1.5",
        "(papers.md, common rules)": "common rules",
        "reliability.md rule 25": "rule 25",
        "papers.md C0.3, C0.4: x": "C0.3, C0.4",
        "papers.md 2.2, paper 001": "2.2",
        "[design.md](design.md) 2, 3": "2, 3",
        "protocol.md (SUBMIT)": None,
    }
    assert {text: list(seen.finditer(text))[-1]["sections"] for text in forms} == forms


def test_a_section_that_is_gone_is_found() -> None:
    assert {"1", "3", "6"} <= sections("protocol")
    assert not {"9", "5.2", "rule 1"} & sections("protocol")
    assert {"1.4", "2.6", "C0.10", "common rules"} <= sections("papers")
    assert not {"1.99", "C0.12"} & sections("papers")


def test_every_relative_link_leads_somewhere() -> None:
    wrong = []
    for path in documents():
        for number, line in prose(path):
            for target in _LINK.findall(line):
                if re.match(r"[a-z]+:", target):
                    continue
                name, _, anchor = target.partition("#")
                to = (path.parent / name).resolve() if name else path
                if not to.exists() or (anchor and anchor not in map(slug, headings(to))):
                    wrong.append(f"{shown(path, number)} {target}")
    assert wrong == []


def test_files_and_tests_that_texts_name_are_there() -> None:
    wrong = []
    for path in files(".py", ".md"):
        if STUBS in path.parents or not _MODULE.search(path.read_text(encoding="utf-8")):
            continue  # few files name any, and to parse all takes seconds
        for number, line in words(path):
            for name, test in _MODULE.findall(line):
                at = there_are(name.replace("NNN", "*"))
                if name not in _ELSEWHERE and (not at or (test and not any(test in named_tests(one) for one in at))):
                    wrong.append(f"{shown(path, number)} {name}{'::' if test else ''}{test}")
    assert wrong == []


def test_paths_of_the_project_that_documents_name_are_there() -> None:
    wrong = [
        f"{shown(path, number)} {name}"
        for path in documents()
        for number, line in prose(path)
        for name in _PATH.findall(line)
        if not any(ROOT.glob(name.rstrip("/")))
    ]
    assert wrong == []


# -- design.md ----------------------------------------------------------------------------------------------------------------


def test_the_design_shows_the_layers_that_are_enforced() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers" and "rmgr.model" in contract["layers"])
    drawn = (DOCS / "design.md").read_text(encoding="utf-8").partition("## 4. ")[2].split("```")[1]
    assert drawn.strip() == " > ".join(layers).replace("rmgr.", "")


# -- reliability.md -----------------------------------------------------------------------------------------------------------


def matrix() -> dict[int, str]:
    """Row -> its line of the matrix of faults."""
    text = (DOCS / "reliability.md").read_text(encoding="utf-8").partition("## 7. ")[2].partition("### 7.1")[0]
    rows = (line for line in text.splitlines() if re.match(r"\| \d", line))
    return {int(number): line for line in rows for number in line.split("|")[1].split(", ")}


def test_rules_and_rows_that_code_and_tests_name_are_there() -> None:
    known = sections("reliability")
    wrong = [
        f"{shown(path, number)} rule {rule}"
        for path in files(".py", trees=("rmgr",))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for rule in _RULE.findall(line)
        if f"rule {rule}" not in known
    ]
    assert wrong == []
    facts = (DOCS / "reliability.md").read_text(encoding="utf-8").partition("## 0. ")[2].partition("## 1. ")[0]
    assert re.findall(r"^\| (\d+) ", facts, re.MULTILINE) == [str(number) for number in range(1, 11)]
    assert list(matrix()) == list(range(1, 43))


def test_each_row_of_the_matrix_names_its_tests_and_they_name_it() -> None:
    rows = matrix()
    assert [number for number, line in rows.items() if "::test_" not in line and "not shown" not in line and number != 39] == []
    claimed = {}
    for path in files(".py", trees=("tests",)):
        match = re.search(r"rows? ([\d, toand]+) of the fault matrix", ast.get_docstring(tree_of(path)) or "")
        if match and path.name.startswith("test_"):
            spans = re.findall(r"(\d+)(?: to (\d+))?", match[1])
            claimed[path.name] = {row for low, high in spans for row in range(int(low), int(high or low) + 1)}
    assert claimed
    assert {f"{name}: row {row}" for name, said in claimed.items() for row in said if name not in rows[row]} == set()


def test_each_fault_has_a_test_that_the_daily_run_runs(tmp_path: Path) -> None:
    without = []
    for number, line in matrix().items():
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?", line)
        if named and all(name in long_tests(ROOT / file) for file, name in named):
            without.append(number)
    assert without == [], "of these rows tests/long.sh runs all tests that are named: mark one of them `long` no more, or write a short one"
    sample = tmp_path / "test_sample.py"
    sample.write_text(
        "import pytest\n@pytest.mark.long\ndef test_a(): ...\n"
        "@pytest.mark.parametrize('n', [1, pytest.param(2, marks=pytest.mark.long)])\ndef test_b(n): ...\n"
    )
    assert long_tests(sample) == {"test_a"}
    sample.write_text("import pytest\npytestmark = [pytest.mark.chaos, pytest.mark.long]\ndef test_a(): ...\n")
    assert long_tests(sample) == {"test_a"}


# -- protocol.md --------------------------------------------------------------------------------------------------------------


def test_the_protocol_shows_the_tree_of_the_code() -> None:
    written = (DOCS / "protocol.md").read_text(encoding="utf-8").split("## 2. Znodes", 1)[1].split("```")[1]
    own = [line.removeprefix("    ").rstrip() for line in (paths.__doc__ or "").splitlines() if line.startswith("    ")]
    assert written.strip().splitlines() == own


def multis() -> set[str]:
    """Names of all multis that the package builds."""
    found: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        if STUBS in path.parents:
            continue
        for node in ast.walk(tree_of(path)):
            called = (getattr(node.func, "id", "") or getattr(node.func, "attr", "")) if isinstance(node, ast.Call) else ""
            if isinstance(node, ast.Call) and called in {"Multi", "set_record", "give_back"}:
                found |= {str(word.value.value) for word in node.keywords if word.arg == "name" and isinstance(word.value, ast.Constant)}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and called in {"put", "remove", "of_node"}:
                found |= {str(name.value) for name in node.args[:1] if isinstance(name, ast.Constant)}
            elif isinstance(node, ast.FunctionDef) and node.name in {"set_record", "give_back"}:
                defaults = (*node.args.defaults, *node.args.kw_defaults)
                found |= {d.value for d in defaults if isinstance(d, ast.Constant) and isinstance(d.value, str) and d.value}
    return found


def test_the_protocol_lists_the_multis_of_the_code() -> None:
    text = (DOCS / "protocol.md").read_text(encoding="utf-8")
    tables = text.partition("## 3. Multis")[2].partition("\n## 4.")[0] + text.partition("## 6. Placed jobs")[2]
    rows = [line for line in tables.splitlines() if line.startswith("| ")]
    listed = {name for row in rows for name in _MULTI.findall(row.split("|")[1])}
    assert listed - {"RESERVE"} == multis() - {"RESERVE"}
    assert "RESERVE" in listed


def test_the_numbers_of_the_protocol_are_those_of_the_code() -> None:
    queue, settings = QueueSpec(name="any"), ClusterSettings()
    said = (
        f"at most {block.MAX_TASKS} tasks",
        f"inline up to {block.MAX_INLINE_BYTES // 1024} KiB",
        f"a fragment up to {block.MAX_INLINE_OUTCOMES // 1024} KiB, one value up to {block.MAX_INLINE_VALUE // 1024} KiB",
        f"a znode {multi.MAX_ZNODE_BYTES // 1024} KiB (`/jobs/<partition>` {multi.MAX_PLACING_BYTES // 1024} KiB",
        f"`/gangs/<partition>` {multi.MAX_GANGS_BYTES // 1024} KiB, `/usage` {multi.MAX_USAGE_BYTES // 1024} KiB)",
        f"a multi {multi.MAX_OPS} operations (the start of one job and UPDATE {multi.MAX_OPS_OF_ONE_JOB:,})",
        f"{multi.MAX_MULTI_BYTES // 1024} KiB; a queue `max_pending_blocks` ({queue.max_pending_blocks:,})",
        f"After a loss at most {leader.SINGLE_AFTER_LOSS} tasks",
        f"that has not acted for {keeping.PATIENCE_S:g} s",
        f"Beyond {settings.max_fragments:,} fragments",
        f"not complete within {settings.barrier_us / 1e6:g} s",
        f"as many tasks as last about {AHEAD_S:g} s",
    )
    text = " ".join((DOCS / "protocol.md").read_text(encoding="utf-8").split())
    assert [sentence for sentence in said if sentence not in text] == []
    assert settings.max_losses == 5  # "the fifth"


def test_the_numbers_of_rules_are_those_of_the_code() -> None:
    settings = ClusterSettings()
    assert settings.mass_loss_share == 0.5  # "more than half"
    said = {
        "reliability.md": (
            f"come back at {settings.mass_requeue_per_s:g} a second",
            f"WatchDogs: every {WatchdogConfig().resync_s:g} s",
            "L = 2/3 T",
        ),
        "design.md": (f"({policy_process.POLICY_LIMIT_S:g} s, {policy_process.MOST_BYTES >> 20} MiB a pass)", f"up to {MAX_NODES} virtual"),
    }
    for name, sentences in said.items():
        text = " ".join((DOCS / name).read_text(encoding="utf-8").split())
        assert [sentence for sentence in sentences if sentence not in text] == [], name
    assert BENCH_S == 5 * 60  # "for five minutes"
    assert (trouble.OWN, trouble.WINDOW_S) == (5, 60)  # "five in 60 s"


def test_the_reasons_that_the_protocol_lists_are_those_of_the_code() -> None:
    rows = [line for _, line in prose(DOCS / "protocol.md") if line.startswith(("| a loss:", "| its own failure:"))]
    assert [set(_MULTI.findall(row.split("|")[1])) for row in rows] == [set(states.LOSSES), set(states.OWN_FAILURES)]


# -- performance.md, decisions --------------------------------------------------------------------------------------------------


def test_figures_name_benches_that_there_are() -> None:
    figures = (DOCS / "performance.md", *(DOCS / "decisions").glob("*.md"))
    named = {name for path in figures for name in re.findall(r"\bbench (\w+)[` ]", path.read_text(encoding="utf-8"))}
    known = next(param.metavar for param in bench.params if isinstance(param, click.Argument))
    assert known is not None
    assert named - set(known.removesuffix("...").split("|")) == set()
    assert len(named) > 10


def test_each_decision_has_its_context_and_a_number_or_says_that_there_is_none() -> None:
    for path in (DOCS / "decisions").glob("*.md"):
        rows = [line for _, line in prose(path) if line.startswith("| ")][1:]
        assert rows, path.name
        cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]
        assert [row for row in cells if len(row) != 3 or not all(row)] == [], path.name
        assert [row for row in cells if not (row[2].startswith("-") or re.search(r"\d|tests/", row[2]))] == [], path.name


# -- papers.md ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", ["000", "001", "002", "004"])
def test_the_papers_list_the_checks_of_the_code(number: str) -> None:
    from rmgr.sim.papers import paper_named

    listed = sections("papers")
    own = [check for check in paper_named(number).checks if check.startswith("C")]
    assert [check for check in own if check not in listed] == []
    of_paper = {check for check in listed if check.startswith(f"C{int(number)}.")}
    assert of_paper == set(own)
