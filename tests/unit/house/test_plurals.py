"""Numbers that people read agree with their nouns: `1 task`, `2 tasks`."""

from __future__ import annotations

import pytest

from rmgr.model.base.units import counted, plural
from rmgr.sched.plan import Why


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
