"""Policies that fail inside the leader: they lose their decisions, are counted and told, and everything else goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import pytest

from rmgr.coord import paths
from rmgr.daemons import leader_place
from rmgr.daemons.leader_desk import Desk
from rmgr.daemons.placing_orders import Orders
from rmgr.daemons.placing_pass import BENCH_S, Faults, Passes
from rmgr.model.placing import Rigid, job_id
from rmgr.model.queue import ClusterSettings, Dispatch, QueueSpec
from rmgr.sched.draft import Draft
from rmgr.sched.job import Node
from rmgr.sched.pipeline import Configuration
from rmgr.sched.plan import Plan, Why
from rmgr.sched.policies.first_fit import FirstFit
from rmgr.sched.policy import Cause, Policy, Stage
from rmgr.sched.state import ClusterState
from tests.harness.leader_bench import Bench

WHY = Why("test", "because")


@dataclass(frozen=True, slots=True)
class Raises:
    name: ClassVar[str] = "raises"

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        for job in draft.by_arrival():
            draft.start(job.id, WHY)
        raise RuntimeError("no idea")


@dataclass(frozen=True, slots=True)
class Overcommits:
    name: ClassVar[str] = "overcommits"

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        for job in list(draft.by_arrival()):
            draft.start(job.id, WHY, ((0, 0, 1),))
            draft.start(job.id, WHY, ((99, 99, 1),))


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def begin(*policies: Policy) -> Bench:
        stages = tuple(Stage(policy) for policy in policies)
        found = Configuration(stages=stages, policies=tuple(policy.name for policy in policies))
        monkeypatch.setattr(leader_place, "configuration", lambda _settings, _partition: found)
        bench = Bench(ClusterSettings(queues=(QueueSpec(name="default"), QueueSpec(name="batch", dispatch=Dispatch.PLACE))))
        made.append(bench)
        bench.lead()
        bench.starter("n1", "n2")
        bench.advance(0.5)
        return bench

    yield begin
    for bench in made:
        bench.close()


def test_a_policy_that_raises_loses_its_decisions_and_the_next_one_goes_on(place: Callable[..., Bench]) -> None:
    bench = place(Raises(), FirstFit())
    number = bench.submitter.submit(1, block=1, queue="batch")
    bench.advance(0.5)
    assert [key.submission for key in bench.look.keys(paths.running_node("n1"))] == [number]
    assert bench.leader is not None
    faults = {name: (count, error) for name, count, error in bench.leader.placer.view().partitions["default"].faults}
    assert faults["raises"][0] >= 1
    assert "RuntimeError: no idea" in faults["raises"][1]
    assert bench.count(bench.metrics.policy_faults) >= 1
    assert len(bench.events("policy_failed")) == 1  # told once, counted every time


def test_nodes_are_never_given_twice_and_unknown_ones_never_named(place: Callable[..., Bench]) -> None:
    bench = place(Overcommits())
    numbers = [bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid()) for _ in range(4)]
    bench.advance(0.5)
    running = [key.submission for key in bench.look.keys(paths.running_node("n1"))]
    assert running == numbers[:2]  # n1 has two cores
    assert bench.look.keys(paths.running_node("n2")) == []
    assert bench.leader is not None
    assert {bench.leader.placer.view().jobs[number, 0].state for number in numbers[2:]} == {"waiting"}


class Sleeps:
    """A policy that sleeps until it is let."""

    name: ClassVar[str] = "sleeps"

    def __init__(self) -> None:
        self.begun, self.let = threading.Event(), threading.Event()

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        self.begun.set()
        assert self.let.wait(60)


def test_a_policy_that_sleeps_is_left_behind_and_left_out_for_a_while() -> None:
    bench = Bench()
    bench.lead()
    assert bench.leader is not None
    desk: Desk = bench.leader.nodes._desk
    passes, policy = Passes(desk, Faults(), limit_s=2.0), Sleeps()
    plans: list[Plan] = []
    lost: list[str] = []

    def run(then: Callable[[Plan, float], None] = lambda plan, _: plans.append(plan)) -> None:
        passes.run(ClusterState([Node(id=0)]), frozenset({Cause.TIMER}), (Stage(policy),), now_us=1, then=then, lost=lost.append)

    try:
        state_free = threading.Event()
        run()
        assert policy.begun.wait(60)
        bench.advance(0.1)
        assert passes.is_running
        bench.advance(3.5)  # the loop was free all the time; now the pass is given up
        assert (lost, passes.is_running, plans) == (["sleeps"], False, [])
        assert passes.faults.counts["sleeps"] == 1
        assert "did not end" in passes.faults.last["sleeps"]
        run(lambda plan, _: (plans.append(plan), state_free.set()))  # type: ignore[func-returns-value]
        for _ in range(600):
            bench.run()
            if state_free.wait(0.1):
                break
        assert [plan.decisions for plan in plans] == [()]  # it was not asked
        assert passes.faults.benched_until_s["sleeps"] > bench.now_s
        assert passes.faults.benched_until_s["sleeps"] <= bench.now_s + BENCH_S
    finally:
        policy.let.set()
        passes.close()
        bench.close()


def test_a_job_that_was_placed_by_a_dead_leader_is_not_placed_again(place: Callable[..., Bench]) -> None:
    bench = place(FirstFit())
    number = bench.submitter.submit(1, block=1, queue="batch")
    bench.advance(0.5)
    assert bench.leader is not None
    bench.leader.close()
    bench.lead(bench.connect())
    bench.advance(0.5)
    assert list(bench.leader.placer.book.placed) == [job_id(number, 0)]
    assert not bench.leader.placer.book.waiting


def test_a_leader_whose_plan_is_never_carried_out_gives_way(place: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    bench = place(FirstFit())
    with monkeypatch.context() as broken:
        broken.setattr(Orders, "_commit", lambda *_: None)
        number = bench.submitter.submit(1, block=1, queue="batch")
        bench.advance(60.0)
        assert (bench.look.keys(paths.running_node("n1")), bench.deposed) == ([], [])
        bench.advance(120.0)
        assert bench.deposed == ["the plan of a pass is not carried out"]
    bench.lead(bench.connect())
    bench.advance(0.5)
    assert [key.submission for key in bench.look.keys(paths.running_node("n1"))] == [number]
