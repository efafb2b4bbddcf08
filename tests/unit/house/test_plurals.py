"""What people read counts as they do: `1 task`, `2 tasks`; in every sentence of the source, whoever says it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from rmgr.model.base.units import counted, plural
from rmgr.sched.plan import Why
from tests.places import ROOT

PACKAGE = ROOT / "rmgr"

#: Nothing here is read by users: measurements of the project itself, and the simulator.
ELSEWHERE = re.compile(r"v1/|bench/|sim/")

#: Nouns that are no verbs, so that a number stands before them wherever something stands before them.
NOUNS = (
    "attempts blocks certificates chunks clients connections cores days entries failures hours items jobs members minutes nodes policies "
    "processes processors pieces queues ranks rows submissions tasks threads times tokens users watchdogs znodes CPUs"
)
_NO_ADJECTIVE = "and|of|or|is|in|to|at|on|for|not|no|has|names|places|shares|lost"
_COUNTED = re.compile(rf" (?:(?!(?:{_NO_ADJECTIVE}) )[a-z]+ )?({NOUNS.replace(' ', '|')})\b")

#: Never 1, or a number with a fraction, or a bound that is told as it stands.
NEVER_ONE = {
    "found.nodes_up": "adapters/cassandra/schema.py",
    "places.most": "adapters/gateway/bounds.py",
    "len(rows)": "adapters/store_rules.py",
    "_hours(total.core_us)": "cli/listing/report.py",
    "view.moves": "cli/listing/show.py",
    "rigid.nodes": "procedures/feasible.py",
    "most": "coord/validity/rules.py",
    "len(inner)": "coord/validity/rules.py",
    "len(record.shares)": "coord/validity/work.py",
    "nodes": "dev/cluster.py",
    "found['jobs_per_second']": "cli/sim/run.py",
}


def _sentences(tree: ast.AST, is_guarded: bool = False) -> Iterator[tuple[int, ast.expr, str]]:
    """Line, expression and what follows it in an f-string; not of what is said only where the number is looked at."""
    for node in ast.iter_child_nodes(tree):
        is_looked_at = is_guarded or (isinstance(tree, (ast.If, ast.IfExp)) and node is not tree.test and _is_of_a_number(tree.test))
        if isinstance(node, ast.JoinedStr):
            for first, second in zip(node.values, node.values[1:], strict=False):
                if isinstance(first, ast.FormattedValue) and isinstance(second, ast.Constant) and not is_looked_at:
                    yield node.lineno, first.value, str(second.value)
        yield from _sentences(node, is_looked_at)


def _is_of_a_number(test: ast.expr) -> bool:
    constants = [part.comparators[0] for part in ast.walk(test) if isinstance(part, ast.Compare)]
    return any(isinstance(constant, ast.Constant) and type(constant.value) is int for constant in constants)


def _is_fixed(expression: ast.expr) -> bool:
    """A constant of the source, which is never 1."""
    names = [node.id for node in ast.walk(expression) if isinstance(node, ast.Name)]
    return bool(names) and all(name.isupper() for name in names)


def test_no_sentence_puts_a_plural_behind_a_number_that_may_be_one() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {{{ast.unparse(value)}}}{follows[:30]}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if not ELSEWHERE.match(str(path.relative_to(PACKAGE)))
        for line, value, follows in _sentences(ast.parse(path.read_text("utf-8")))
        if _COUNTED.match(follows) and not _is_fixed(value) and NEVER_ONE.get(ast.unparse(value)) != str(path.relative_to(PACKAGE))
    ]
    assert found == [], "\n".join(found)


@pytest.mark.parametrize(
    ("noun", "one", "more"),
    [
        ("task", "1 task", "2,000 tasks"),
        ("process", "1 process", "2,000 processes"),
        ("policy", "1 policy", "2,000 policies"),
        ("day", "1 day", "2,000 days"),
    ],
)
def test_a_number_and_its_noun_agree(noun: str, one: str, more: str) -> None:
    assert (counted(1, noun), counted(2000, noun), plural(0, noun)) == (one, more, more.split()[1])


@pytest.mark.parametrize(
    ("text", "facts", "told"),
    [
        ("needs {} x {} cores, {} are free", (4, 1, 0), "needs 4 x 1 core, 0 are free"),
        ("needs {} x {} cores, {} are free", (1, 2, 1), "needs 1 x 2 cores, 1 are free"),
        ("room for {} such processes", (1,), "room for 1 such process"),
        ("user {} may run {} jobs at once", ("1", 1), "user 1 may run 1 job at once"),
    ],
)
def test_reasons_of_the_scheduler_agree(text: str, facts: tuple[object, ...], told: str) -> None:
    assert str(Why("rule", text, facts)) == f"rule: {told}"
