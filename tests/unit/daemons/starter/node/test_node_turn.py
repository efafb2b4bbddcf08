"""The order in which a node acts: each mode has its steps, and what must come before what does."""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import product

import pytest

from rmgr.daemons.starter.node.node import NodeAgent
from rmgr.daemons.starter.node.turn import STEPS, NodeMode, NodeStep, mode_of, steps_of

#: Of each pair the first stands before the second, in every mode that has both.
BEFORE = [
    (NodeStep.BAR, NodeStep.BEGIN),
    (NodeStep.GIVE_BACK_REFUSED, NodeStep.BEGIN),
    (NodeStep.REOPEN, NodeStep.BEGIN),
    (NodeStep.BEGIN, NodeStep.CLAIM),
    (NodeStep.CLAIM, NodeStep.COMMIT),
    (NodeStep.REST, NodeStep.COMMIT),
    (NodeStep.COMMIT, NodeStep.MARK_IDLE),
    (NodeStep.COMMIT, NodeStep.SPLIT),
    (NodeStep.BEGIN, NodeStep.SPLIT),
]


def test_each_step_has_one_place() -> None:
    assert [step for step, _ in STEPS] == list(NodeStep)
    assert all(modes for _, modes in STEPS), "a step of no mode is none"


@pytest.mark.parametrize("mode", list(NodeMode))
def test_the_order_holds_in_each_mode(mode: NodeMode) -> None:
    steps = steps_of(mode)
    for first, second in BEFORE:
        if first in steps and second in steps:
            assert steps.index(first) < steps.index(second), (first, second)


def test_each_mode_either_begins_work_or_lets_it_go_on_and_either_claims_or_rests() -> None:
    for mode in NodeMode:
        steps = set(steps_of(mode))
        assert len(steps & {NodeStep.BEGIN, NodeStep.GRANT}) == 1
        assert len(steps & {NodeStep.CLAIM, NodeStep.REST}) == 1
        assert {NodeStep.COMMIT, NodeStep.OBEY} <= steps, "what has ended is always told, and orders are always obeyed"
    assert [mode for mode in NodeMode if NodeStep.CLAIM in steps_of(mode)] == [NodeMode.WORKS]
    assert [mode for mode in NodeMode if NodeStep.BEGIN in steps_of(mode)] == [NodeMode.WORKS, NodeMode.BEHIND]


def test_every_state_of_a_node_has_a_mode() -> None:
    for drains, full, behind in product((False, True), repeat=3):
        mode = mode_of(drains=drains, full=full, behind=behind)
        assert (mode is NodeMode.WORKS) == (not (drains or full or behind))
        assert (NodeStep.BEGIN in steps_of(mode)) == (not (drains or full))
        assert (mode is NodeMode.DRAINS) == drains


def test_the_node_has_something_to_do_for_each_step() -> None:
    source = ast.parse(textwrap.dedent(inspect.getsource(NodeAgent._steps)))
    tables = [node for node in ast.walk(source) if isinstance(node, ast.Dict)]
    named = {ast.unparse(key) for key in tables[0].keys if key is not None}
    assert named == {f"NodeStep.{step.name}" for step in NodeStep}
