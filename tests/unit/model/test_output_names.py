"""Placeholders in names of output files: expanded on the node and by who fetches the files, and those of other systems."""

from __future__ import annotations

import pytest

from rmgr.model.tasks.output_names import expand, has_own_name, unknown_placeholder


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("o/%x.%j.%a.%t.%N.%%.%q", "o/a_b.42.5.2.n1.%.%q"),
        ("/d/%j-%a.%t.%x@%N%%%q", "/d/42-5.2.a_b@n1%%q"),
        ("plain", "plain"),
    ],
)
def test_placeholders_are_replaced_and_others_stay(pattern: str, name: str) -> None:
    assert expand(pattern, job=42, index=5, attempt=2, name="a/b", node="n1") == name


def test_the_array_index_gives_each_task_a_file_of_its_own() -> None:
    assert has_own_name("x-%a.txt")
    assert not has_own_name("x-%j.txt")
    assert not has_own_name("100%%a")


@pytest.mark.parametrize(("pattern", "found"), [("x-%A_%a", "%A"), ("%j-%4j", "%4j"), ("%j.%a.%t.%x.%N.%%A", ""), ("plain", "")])
def test_placeholders_of_other_systems_are_found(pattern: str, found: str) -> None:
    assert unknown_placeholder(pattern) == found
