"""Processors of nodes: whose they are, and when nothing is bound."""

from __future__ import annotations

import pytest

from rmgr.daemons.starter.execution.lanes import processors_of
from rmgr.errors import ConfigError


def test_each_node_has_processors_of_its_own() -> None:
    found = processors_of(("a", "b"), cores=2, mode="yes", has_all=False, available=[7, 1, 3, 5])
    assert found == {"a": (1, 3), "b": (5, 7)}


@pytest.mark.parametrize(
    ("mode", "cores", "has_all", "available"),
    [("no", 2, True, [0, 1]), ("auto", 2, False, [0, 1]), ("yes", 4, False, [0, 1]), ("auto", 1, True, [0])],
)
def test_nothing_is_bound_where_it_is_not_wanted_or_there_is_too_little(mode: str, cores: int, has_all: bool, available: list[int]) -> None:
    assert processors_of(("a",), cores=cores, mode=mode, has_all=has_all, available=available) == {}


def test_a_whole_machine_is_bound_by_itself_and_other_words_are_refused() -> None:
    assert processors_of(("a",), cores=2, mode="auto", has_all=True, available=[0, 1]) == {"a": (0, 1)}
    with pytest.raises(ConfigError, match="bind_cpus = 'maybe' is not known"):
        processors_of(("a",), cores=2, mode="maybe", has_all=True, available=[0, 1])
