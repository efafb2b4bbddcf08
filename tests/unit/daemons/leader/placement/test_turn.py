"""One turn of placement: its steps, in the order that the placer runs them, and what ends it early."""

from __future__ import annotations

import pytest

from rmgr.coord.protocol import paths
from rmgr.daemons.leader.placement.placer import FACTS, ORDER, Turn, TurnStep, in_order, run_turn
from rmgr.errors import StateConflict
from rmgr.model.cluster.queue import ClusterSettings, Dispatch, QueueSpec
from rmgr.model.tasks.submission import Rigid
from rmgr.sched.state.cluster import ClusterState
from tests.harness.leader_bench import Bench

SETTINGS = ClusterSettings(queues=(QueueSpec(name="default"), QueueSpec(name="batch", dispatch=Dispatch.PLACE)))

TURN = Turn(ClusterState([]), frozenset(), 1)


class Recorded:
    """Every step is taken by a function that notes it, and answers as it is told to."""

    def __init__(self, ends: TurnStep | None = None, raises: TurnStep | None = None) -> None:
        self.taken: list[TurnStep] = []
        self.conflicts: list[str] = []
        self._ends, self._raises = ends, raises

    def run(self) -> TurnStep:
        def action(step: TurnStep) -> bool:
            self.taken.append(step)
            if step is self._raises:
                raise StateConflict("it contradicts the state")
            return step is not self._ends

        steps = in_order({step: lambda _, step=step: action(step) for step in reversed(ORDER)})  # type: ignore[misc]
        return run_turn(TURN, steps, self.conflicts.append)


def test_facts_come_before_what_follows_from_them_and_ends_before_arrivals() -> None:
    whole = Recorded()
    assert whole.run() is TurnStep.MEASURE
    assert whole.taken == list(ORDER)
    assert [step for step in ORDER if step in FACTS] == [
        TurnStep.TELL_ENDS, TurnStep.TELL_STOPS, TurnStep.TELL_NODES, TurnStep.TELL_ARRIVALS,
    ]  # fmt: skip
    at = {step: index for index, step in enumerate(ORDER)}
    assert at[TurnStep.OPEN_LOG] < min(at[step] for step in FACTS)
    assert max(at[step] for step in FACTS) < at[TurnStep.KEEP_PROMISES] < at[TurnStep.ASK_JOBS] < at[TurnStep.PASS]


@pytest.mark.parametrize("step", ORDER)
def test_a_step_that_ends_the_turn_is_its_last_one(step: TurnStep) -> None:
    ended = Recorded(ends=step)
    assert ended.run() is step
    assert ended.taken == list(ORDER[: ORDER.index(step) + 1])
    assert ended.conflicts == []


@pytest.mark.parametrize("step", ORDER)
def test_a_fact_that_contradicts_the_state_ends_the_turn_and_anything_else_is_a_defect(step: TurnStep) -> None:
    broken = Recorded(raises=step)
    if step in FACTS:
        assert broken.run() is step
        assert broken.conflicts == ["it contradicts the state"]
    else:
        with pytest.raises(StateConflict):
            broken.run()
    assert broken.taken == list(ORDER[: ORDER.index(step) + 1])


def test_a_step_without_an_action_is_refused_when_the_table_is_made() -> None:
    with pytest.raises(KeyError, match="PASS"):
        in_order({step: lambda _: True for step in ORDER if step is not TurnStep.PASS})


# -- the placer ----------------------------------------------------------------------------------------------------------------


def test_the_placer_tells_an_end_then_a_node_then_an_arrival_then_lets_policies_plan(bench: Bench) -> None:
    """All three have happened before the turn begins; the log of the scheduler has them in the order of the table."""
    placer = bench.lead().placer
    starter = bench.starter("n1")
    first = bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid(processes=2))
    bench.advance(1)
    (key,) = bench.look.keys(paths.running_node("n1"))
    assert key.submission == first
    told: list[str] = []
    log = placer.updates.log
    log.told = lambda _, fact, *arguments, **named: told.append(fact)  # type: ignore[method-assign]
    log.passed = lambda *_: told.append("a pass")  # type: ignore[method-assign]
    placer._due = True  # the turn waits until everything has been read
    bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid(processes=2))
    bench.starter("n2")
    starter.complete("n1", key)
    bench.advance(1)
    assert told == []
    placer._turn()
    bench.advance(1)
    assert told[:4] == ["job_ended", "node_changed", "job_submitted", "a pass"]
