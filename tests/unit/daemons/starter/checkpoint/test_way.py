"""The table of checkpoint steps: each state answers each event, each edge is reachable, and no job ends that was to go on."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmgr.daemons.starter.checkpoint.checkpoint import Checkpoints
from rmgr.daemons.starter.checkpoint.way import (
    STEPS,
    CheckpointEffect,
    CheckpointEvent,
    CheckpointKind,
    CheckpointPhase,
    CheckpointStep,
    OpenCheckpoint,
    kind_of,
    next_step,
)
from rmgr.model.tasks.submission import Rigid
from rmgr.runtime.story import Stories

P, K, E, F = CheckpointPhase, CheckpointKind, CheckpointEvent, CheckpointEffect
STOPS = (K.STOP, K.POLICY, K.PREEMPT)
State = tuple[CheckpointPhase, CheckpointKind]
#: Effects after which the attempt does not go on.
ENDS = {F.PREEMPT, F.END, F.END_SILENT, F.LEAVE, F.LEAVE_UNSTORED}


def after(state: State, event: CheckpointEvent) -> tuple[State, CheckpointStep | None]:
    """As `Checkpoints` does it: an order that kills makes a stop one of that kind before it is looked up."""
    phase, kind = state
    if event is E.KILL:
        if kind is K.GO_ON or next_step(phase, event, K.PREEMPT) is None:
            return state, None
        kind = K.PREEMPT
    step = next_step(phase, event, kind)
    return ((step.phase, kind) if step is not None else state), step


def reachable(*, without: frozenset[CheckpointEvent] = frozenset(), start: State | None = None) -> set[State]:
    seen: set[State] = {start} if start is not None else {(P.BEGUN, kind) for kind in K}
    new = set(seen)
    while new:
        new = {after(state, event)[0] for state in new for event in E if event not in without} - seen
        seen |= new
    return seen


def test_each_state_has_an_answer_to_each_event() -> None:
    for phase, event, kind in product(P, E, K):
        step = next_step(phase, event, kind)
        if phase is P.OVER:
            assert step is None, "what is over stays so"
        elif event is E.FORGOTTEN:
            assert step == (P.OVER, F.NOTHING), "a block that is gone takes its checkpoint with it"
        elif step is not None:
            assert (step.phase, step.effect) != (phase, F.NOTHING) or event is E.ANSWERED, "an edge that does nothing is none"


def test_no_edge_is_there_in_vain() -> None:
    taken = {(state[0], event, after(state, event)[0][1] if event is E.KILL else state[1]) for state in reachable() for event in E}
    assert [key for key in STEPS if key not in taken and key[1] is not E.FORGOTTEN] == []


def test_each_checkpoint_can_end_by_itself() -> None:
    for state in reachable():
        ends = {phase for phase, _ in reachable(start=state, without=frozenset({E.FORGOTTEN}))}
        assert ends & {P.OVER, P.LEAVING}, state


def test_a_job_that_goes_on_is_never_ended_and_one_that_a_policy_moves_only_when_it_has_answered() -> None:
    assert [key for key, step in STEPS.items() if key[2] is K.GO_ON and step.effect in ENDS] == []
    silent = [step.effect for (_, event, kind), step in STEPS.items() if kind is K.POLICY and event is E.SILENT]
    assert silent == [F.WITHDRAW]


def test_what_leaves_has_ended() -> None:
    for (phase, event, kind), step in STEPS.items():
        if step.effect in {F.LEAVE, F.LEAVE_UNSTORED, F.TELL_CANCELLED, F.TELL_LOST}:
            assert (phase, kind is not K.GO_ON) == (P.COPYING, True)
        if step.phase is P.COPYING and phase is not P.COPYING and kind is not K.GO_ON:
            assert event is E.ENDED, "the attempt's end is known when what it saved is copied"


@given(st.sampled_from(list(K)), st.lists(st.sampled_from(list(E)), max_size=30))
def test_whatever_happens_it_takes_the_table(kind: CheckpointKind, events: list[CheckpointEvent]) -> None:
    state: State = (P.BEGUN, kind)
    refused = left = 0
    for event in events:
        state, step = after(state, event)
        refused += step is not None and step.effect in {F.REFUSE, F.REFUSE_SILENT}
        left += step is not None and step.effect in {F.LEAVE, F.LEAVE_UNSTORED}
        assert state in REACHABLE
    assert refused + left <= 1, "it ends once"


REACHABLE = reachable()


def test_production_has_a_method_for_each_effect_and_runs_the_table() -> None:
    some = Checkpoints(Mock(), Path("/nonexistent"))
    assert set(some._effects) == set(F)
    seen: list[tuple[CheckpointEffect, Any]] = []
    for effect in F:
        some._effects[effect] = lambda _case, detail, effect=effect: seen.append((effect, detail))
    block = Mock()
    case = some._case(block, "periodic", 0)
    assert some._open[block] is case
    assert case.kind is K.GO_ON
    assert some.happened(case, E.SAVES)
    assert not some.happened(case, E.COPIED, "too early")
    assert some.happened(case, E.UNFIT, "too large")
    assert seen == [(F.MEASURE, ""), (F.REFUSE, "too large")]
    assert case.is_over
    assert block not in some._open


def test_periodic_checkpoints_of_a_job_that_shares_its_cores_count_served_time() -> None:
    timers: list[tuple[float, Callable[[], None]]] = []
    served_us: list[int | None] = [0]
    loop = Mock(after=lambda delay_s, call: timers.append((delay_s, call)))
    jobs = Mock(stories=Stories(loop), served_us=lambda _block: served_us[0])
    some = Checkpoints(Mock(jobs=jobs), Path("/nonexistent"))
    begun: list[OpenCheckpoint] = []
    some._begin = begun.append  # type: ignore[method-assign]
    some._case = Mock()  # type: ignore[method-assign]
    block = Mock(live=True)
    block.info.record.rigid = Rigid(checkpoint=True, checkpoint_every_us=10_000_000)
    some.started(block)

    def wakes(now_served_us: int | None) -> tuple[int, float]:
        served_us[0] = now_served_us
        _, call = timers.pop()
        call()
        return len(begun), timers[-1][0]

    assert timers[0][0] == 10
    assert wakes(4_000_000) == (0, 6)
    assert wakes(9_900_000) == (0, 0.5)
    assert wakes(10_200_000) == (1, 10)
    assert wakes(15_200_000) == (1, 5)
    assert wakes(20_200_000) == (2, 10)
    assert wakes(None) == (3, 10)  # the time on the wall, where it has its cores for itself


@pytest.mark.parametrize(
    ("order", "kind"),
    [
        ({}, K.GO_ON),
        ({"unsaved": "go-on"}, K.GO_ON),
        ({"kill": "1"}, K.GO_ON),
        ({"then": "stop"}, K.STOP),
        ({"then": "stop", "unsaved": "go-on"}, K.POLICY),
        ({"then": "stop", "unsaved": "go-on", "kill": "1"}, K.PREEMPT),
    ],
)
def test_the_kind_is_what_was_asked(order: dict[str, str], kind: CheckpointKind) -> None:
    case = OpenCheckpoint(block=Mock(), number=1, why="", grace_us=0, made_us=0, kind=kind_of(order))
    assert (case.kind, case.is_stop, case.kills) == (kind, kind is not K.GO_ON, kind is K.PREEMPT)
