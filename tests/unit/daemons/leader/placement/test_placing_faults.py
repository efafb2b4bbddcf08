"""Policies that fail inside the leader: they lose their decisions, are counted and told, and everything else goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

from rmgr.adapters.policy_files import recorded
from rmgr.coord.protocol import keys, paths
from rmgr.coord.views import answers
from rmgr.daemons.leader.placement import pipeline
from rmgr.daemons.leader.placement.orders import PlanExecution
from rmgr.daemons.leader.placement.passes import BENCH_S, Faults, Passes, PassLost
from rmgr.daemons.leader.placement.pipeline import named
from rmgr.model.cluster.queue import ClusterSettings, Dispatch, QueueSpec
from rmgr.model.tasks.block import job_id
from rmgr.model.tasks.submission import Rigid
from rmgr.runtime.story import Story
from rmgr.sched.draft import Draft
from rmgr.sched.job import Node
from rmgr.sched.pipeline import Configuration
from rmgr.sched.plan import Accepted, Decision, GangSet, HoldCores, Migrate, Noted, Plan, Reserve, Start, WakeAt, Why
from rmgr.sched.policies.first_fit import FirstFit
from rmgr.sched.policy import Cause, Policy, Stage
from rmgr.sched.records import Gang
from rmgr.sched.state.cluster import ClusterState
from rmgr.sched.state.event_log import Opening
from rmgr.sim.replay import verify
from rmgr.sim.runs.output import read_log
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
        monkeypatch.setattr(pipeline, "configuration", lambda _settings, _partition: found)
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
    context = bench.leader.context
    passes, policy = Passes(context, Faults(context), limit_s=2.0), Sleeps()
    plans: list[Plan] = []
    lost: list[str] = []

    def run() -> None:
        context.tree.tell(story(), "a pass", key=object())

    def story() -> Story[None]:
        stages = (Stage(policy, ("default",)),)
        try:
            plan, _ = yield from passes.run(ClusterState([Node(id=0)]), frozenset({Cause.TIMER}), stages, now_us=1)
        except PassLost as error:
            lost.append(str(error))
        else:
            plans.append(plan)

    try:
        run()
        assert policy.begun.wait(60)
        bench.advance(0.1)
        assert passes.is_running
        bench.advance(3.5)  # the loop was free all the time; now the pass is given up
        assert (lost, passes.is_running, plans) == (["policy sleeps is stuck with the old state"], False, [])
        assert passes.faults.counts["sleeps"] == 1
        assert "did not end" in passes.faults.last["sleeps"]
        run()
        for _ in range(600):
            bench.run()
            if plans:
                break
            time.sleep(0.1)
        assert [plan.decisions for plan in plans] == [()]  # it was not asked
        assert bench.now_s < passes.faults.benched["default"].until_s <= bench.now_s + BENCH_S
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
    assert list(bench.leader.placer.job_table.placed) == [job_id(number, 0)]
    assert not bench.leader.placer.job_table.waiting


def test_a_leader_whose_plan_is_never_carried_out_gives_way(place: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    bench = place(FirstFit())
    with monkeypatch.context() as broken:
        broken.setattr(PlanExecution, "_send", lambda self, *_, **__: setattr(self, "_left", 1))
        number = bench.submitter.submit(1, block=1, queue="batch")
        bench.advance(60.0)
        assert (bench.look.keys(paths.running_node("n1")), bench.deposed) == ([], [])
        bench.advance(120.0)
        assert bench.deposed == ["the plan of a pass is not carried out"]
    bench.lead(bench.connect())
    bench.advance(0.5)
    assert [key.submission for key in bench.look.keys(paths.running_node("n1"))] == [number]


def test_a_commit_whose_answer_cannot_be_taken_in_has_everything_read_again(
    place: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = place(FirstFit())
    raised: list[object] = []

    def raises(_self: PlanExecution, *given: object) -> None:
        raised.append(given)
        raise KeyError("what nobody thought of")

    with monkeypatch.context() as broken:
        broken.setattr(PlanExecution, "_answered", raises)
        numbers = [bench.submitter.submit(1, block=1, queue="batch")]
        bench.advance(0.2)
    numbers.append(bench.submitter.submit(1, block=1, queue="batch"))
    bench.advance(5.0)
    assert len(raised) == 1
    assert sorted(key.submission for node in ("n1", "n2") for key in bench.look.keys(paths.running_node(node))) == numbers
    assert bench.leader is not None
    assert sorted(bench.leader.placer.job_table.placed) == [job_id(number, 0) for number in numbers]
    assert (len(bench.events("placing_rebuilt")), bench.deposed) == (1, [])


@dataclass(frozen=True, slots=True)
class Gangs:
    """Shares nodes in time, which no leader carries out."""

    name: ClassVar[str] = "gangs"

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        waiting = [job.id for job in draft.by_arrival()]
        if waiting:
            assert isinstance(draft.gang("g", 1000, [waiting[:1]], WHY, {waiting[0]: ((0, 0, 1),)}), Accepted)


@dataclass(frozen=True, slots=True)
class Scribbles:
    """Writes decisions past the verbs that would refuse them."""

    name: ClassVar[str] = "scribbles"
    what: str = ""

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        waiting = [job.id for job in draft.by_arrival()]
        if not waiting:
            return
        nonsense: dict[str, Decision] = {
            "an unknown node": Start(waiting[0], ((99, 99, 1),), WHY),
            "an unknown job": Start(77, ((0, 0, 1),), WHY),
            "no placement": Start(waiting[0], "everywhere", WHY),  # type: ignore[arg-type]
            "a move of a job that waits": Migrate(waiting[0], WHY),
            "a gang": GangSet(Gang("g", 1000, ((waiting[0],),)), WHY),
            "no decision": ("nonsense", "default"),  # type: ignore[dict-item]
            "a promise nowhere": Reserve(waiting[0], 5, "nowhere", True, WHY),  # type: ignore[arg-type]
            "a hold of nothing": HoldCores(waiting[0], "all", WHY),  # type: ignore[arg-type]
            "a note of words": Noted("scribbles", "k", 0, ("x", object())),  # type: ignore[arg-type]
            "a time without end": WakeAt("soon", WHY),  # type: ignore[arg-type]
            "no job": Start("first", ((0, 0, 1),), WHY),  # type: ignore[arg-type]
        }
        draft.decisions.append(nonsense[self.what])


FAR = QueueSpec(name="far", partition="far", dispatch=Dispatch.PLACE)
BROKEN = [Raises(), Gangs(), *(Scribbles(what) for what in ("an unknown node", "an unknown job", "no placement", "a gang"))]
BROKEN += [Scribbles("a move of a job that waits"), Scribbles("no decision"), Scribbles("no job")]
BROKEN += [Scribbles(what) for what in ("a promise nowhere", "a hold of nothing", "a note of words", "a time without end")]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda policy: getattr(policy, "what", "") or policy.name)
def test_whatever_a_policy_decides_its_partition_alone_falls_back_to_fcfs(broken: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(_settings: ClusterSettings, partition: str) -> Configuration:
        policy = broken if partition == "default" else FirstFit()
        return Configuration(stages=(Stage(policy),), policies=(policy.name,))

    monkeypatch.setattr(pipeline, "configuration", found)
    bench = Bench(ClusterSettings(queues=(QueueSpec(name="default"), QueueSpec(name="batch", dispatch=Dispatch.PLACE), FAR)))
    try:
        bench.lead()
        bench.starter("n1", partition="default")
        bench.starter("f1", partition="far")
        bench.advance(0.5)
        for leader in ("the first", "its successor"):
            here = [bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid()) for _ in range(1)]
            there = bench.submitter.submit(1, block=1, queue="far", rigid=Rigid())
            bench.advance(1.0)
            on_far = [key.submission for key in bench.look.keys(paths.running_node("f1"))]
            assert there in on_far, leader
            bench.advance(1.0)
            on_n1 = [key.submission for key in bench.look.keys(paths.running_node("n1"))]
            assert set(here) <= set(on_n1), leader
            assert bench.leader is not None
            snapshot = replace(bench.leader.snapshot(), placing=bench.leader.placer.view())
            assert f"policy {broken.name} failed (" in snapshot.placing.partitions["default"].instead
            assert snapshot.placing.partitions["far"].instead == ""
            told = {queue.id: queue.policy for queue in answers.queues(snapshot)}
            assert told["batch"].endswith(" (failed)")
            assert not told["far"].endswith(" (failed)")
            status = answers.status(snapshot, zookeeper={"ok": True}, store={"ok": True}, now_us=0)
            assert [part.state for part in status.parts if part.id == "default"] == ["policy failed"]
            assert f"partition default: policy {broken.name} failed (" in " ".join(status.warnings)
            assert bench.count(bench.metrics.policy_faults) == len(bench.events("policy_failed"))
            assert bench.deposed == []
            bench.leader.close()
            bench.lead(bench.connect())
            bench.advance(0.5)
    finally:
        bench.close()


def test_the_log_of_a_fallback_replays_under_the_policy_that_placed(place: Callable[..., Bench], tmp_path: Path) -> None:
    bench = place(Raises())
    bench.submitter.submit(1, block=1, queue="batch")
    bench.advance(5.0)
    assert bench.leader is not None
    bench.leader.close()
    logs: dict[tuple[int, int], list[bytes]] = {}
    for key in bench.store.keys(keys.events_of()):
        found = bench.store.get(key)
        logs.setdefault(keys.parse_events(key)[:2], []).append(found[0])
    file = tmp_path / "last.jsonl"
    file.write_bytes(b"".join(logs[max(logs)]))
    opening = next(iter(read_log(file)))
    assert isinstance(opening, Opening)
    assert opening.policy == "fcfs"
    history = verify(read_log(file), recorded(opening.pipelines).stages)
    assert history.decided == 1


def test_a_policy_that_failed_is_tried_again_after_a_while_and_at_once_when_another_one_is_set(place: Callable[..., Bench]) -> None:
    bench = place(Raises())
    bench.submitter.submit(1, block=1, queue="batch")
    bench.advance(0.5)
    assert bench.leader is not None
    placer = bench.leader.placer
    assert list(placer.faults.benched) == ["default"]
    count = placer.faults.counts["raises"]
    bench.advance(BENCH_S + 1.0)
    bench.submitter.submit(1, block=1, queue="batch")
    bench.advance(0.5)
    assert placer.faults.counts["raises"] > count
    assert len(bench.events("policy_failed")) == 1  # the same error is told once
    assert list(placer.faults.benched) == ["default"]
    settings = replace(bench.leader.settings, pipelines=(named("default", "sjf", {}),))
    bench.leader.context.settings = settings
    placer.settings_changed()
    assert not placer.faults.benched
