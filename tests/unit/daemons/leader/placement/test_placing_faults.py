"""Policies that fail in the leader or in their own process lose their decisions, and are counted and reported; all else goes on."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import psutil
import pytest

from rmgr.adapters.policy_files import recorded
from rmgr.coord.protocol import paths
from rmgr.coord.views import answers
from rmgr.daemons.leader.placement import passes as placing_foreign
from rmgr.daemons.leader.placement import passes as policy_process
from rmgr.daemons.leader.placement import pipeline
from rmgr.daemons.leader.placement.orders import PlanExecution
from rmgr.daemons.leader.placement.passes import BENCH_S, Faults, Passes, PassLost
from rmgr.daemons.leader.placement.pipeline import named
from rmgr.model.base import Request
from rmgr.model.block import job_id
from rmgr.model.queue import ClusterSettings, Dispatch, PipelineSpec, QueueSpec
from rmgr.model.submission import Rigid
from rmgr.runtime.story import Story
from rmgr.sched.draft import Draft
from rmgr.sched.job import Node
from rmgr.sched.pipeline import Configuration
from rmgr.sched.plan import Accepted, Decision, GangSet, HoldCores, Migrate, Noted, Plan, Reserve, Start, WakeAt, Why
from rmgr.sched.policies.searches import FirstFit
from rmgr.sched.policy import Cause, Policy, Stage
from rmgr.sched.records import Gang
from rmgr.sched.state.cluster import ClusterState
from rmgr.sched.state.event_log import End, Opening
from rmgr.sim.replay import verify
from rmgr.sim.runs.output import read_log
from tests.harness.fair_time import FairTimer
from tests.harness.leader_bench import Bench, placing
from tests.harness.waiting import eventually, stand_still

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
        bench = Bench(placing())
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
    assert bench.look.running("n1") == [number]
    faults = {name: (count, error) for name, count, error in bench.leader.placer.view().partitions["default"].faults}
    assert faults["raises"][0] >= 1
    assert "RuntimeError: no idea" in faults["raises"][1]
    assert bench.count(bench.metrics.policy_faults) >= 1
    assert len(bench.events("policy_failed")) == 1  # told once, counted every time


def test_nodes_are_never_given_twice_and_unknown_ones_never_named(place: Callable[..., Bench]) -> None:
    bench = place(Overcommits())
    numbers = [bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid()) for _ in range(4)]
    bench.advance(0.5)
    assert bench.look.running("n1") == numbers[:2]  # n1 has two cores
    assert bench.look.keys(paths.running_node("n2")) == []
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
    term = bench.leader.term
    passes, policy = Passes(term, Faults(term), limit_s=2.0), Sleeps()
    plans: list[Plan] = []
    lost: list[str] = []

    def run() -> None:
        term.tell(story(), "a pass", key=object())

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
    bench.leader.close()
    bench.lead(bench.connect())
    bench.advance(0.5)
    assert list(bench.leader.placer.job_table.placed) == [job_id(number, 0)]
    assert not bench.leader.placer.job_table.waiting


def test_a_leader_whose_plan_is_never_carried_out_gives_way(place: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    bench = place(FirstFit())
    with monkeypatch.context() as broken:
        broken.setattr(PlanExecution, "send", lambda self, *_, **__: setattr(self, "left", 1))
        number = bench.submitter.submit(1, block=1, queue="batch")
        bench.advance(60.0)
        assert (bench.look.keys(paths.running_node("n1")), bench.deposed) == ([], [])
        bench.advance(120.0)
        assert bench.deposed == ["the plan of a pass is not carried out"]
    bench.lead(bench.connect())
    bench.advance(0.5)
    assert bench.look.running("n1") == [number]


def test_a_commit_whose_answer_cannot_be_taken_in_has_everything_read_again(
    place: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = place(FirstFit())
    raised: list[object] = []

    def raises(_self: PlanExecution, *given: object) -> None:
        raised.append(given)
        raise KeyError("what nobody thought of")

    with monkeypatch.context() as broken:
        broken.setattr(PlanExecution, "answered", raises)
        numbers = [bench.submitter.submit(1, block=1, queue="batch")]
        bench.advance(0.2)
    numbers.append(bench.submitter.submit(1, block=1, queue="batch"))
    bench.advance(5.0)
    assert len(raised) == 1
    assert sorted(bench.look.running("n1", "n2")) == numbers
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
        draft.decisions.append(NONSENSE[self.what](waiting[0]))


NONSENSE: dict[str, Callable[[int], Decision]] = {
    "an unknown node": lambda job: Start(job, ((99, 99, 1),), WHY),
    "an unknown job": lambda job: Start(77, ((0, 0, 1),), WHY),
    "no placement": lambda job: Start(job, "everywhere", WHY),
    "a move of a job that waits": lambda job: Migrate(job, WHY),
    "a gang": lambda job: GangSet(Gang("g", 1000, ((job,),)), WHY),
    "no decision": lambda job: ("nonsense", "default"),
    "a promise nowhere": lambda job: Reserve(job, 5, "nowhere", True, WHY),
    "a hold of nothing": lambda job: HoldCores(job, "all", WHY),
    "a note of words": lambda job: Noted("scribbles", "k", 0, ("x", object())),
    "a time without end": lambda job: WakeAt("soon", WHY),
    "no job": lambda job: Start("first", ((0, 0, 1),), WHY),
}


FAR = QueueSpec(name="far", partition="far", dispatch=Dispatch.PLACE)
BROKEN = [Raises(), Gangs(), *map(Scribbles, NONSENSE)]


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
            here = bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid())
            there = bench.submitter.submit(1, block=1, queue="far", rigid=Rigid())
            bench.advance(1.0)
            assert there in bench.look.running("f1"), leader
            bench.advance(1.0)
            assert here in bench.look.running("n1"), leader
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
    bench.leader.close()
    file = bench.last_log(tmp_path / "last.jsonl")
    opening = next(iter(read_log(file)))
    assert isinstance(opening, Opening)
    assert opening.policy == "fcfs"
    history = verify(read_log(file), recorded(opening.pipelines).stages)
    assert history.decided == 1


def test_a_log_is_whole_when_another_policy_has_another_one_begin(place: Callable[..., Bench], tmp_path: Path) -> None:
    bench = place(Raises())
    bench.submitter.submit(1, block=1, queue="batch")
    bench.advance(5.0)
    *_, last = read_log(bench.last_log(tmp_path / "before.jsonl", before=1))
    assert isinstance(last, End)
    assert last.facts > 0


def test_a_policy_that_failed_is_tried_again_after_a_while_and_at_once_when_another_one_is_set(place: Callable[..., Bench]) -> None:
    bench = place(Raises())
    bench.submitter.submit(1, block=1, queue="batch")
    bench.advance(0.5)
    placer = bench.leader.placer
    assert list(placer.faults.benched) == ["default"]
    count = placer.faults.counts["raises"]
    bench.advance(BENCH_S + 1.0)
    bench.submitter.submit(1, block=1, queue="batch")
    bench.advance(0.5)
    assert placer.faults.counts["raises"] > count
    assert len(bench.events("policy_failed")) == 1  # the same error is told once
    assert list(placer.faults.benched) == ["default"]
    settings = replace(bench.leader.term.settings, pipelines=(named("default", "sjf", {}),))
    bench.leader.term.settings = settings
    placer.settings_changed()
    assert not placer.faults.benched


#: What a plug-in does in `plan`.
PLANS = {
    "good": "for job in draft.by_arrival():\n            if isinstance(draft.start(job.id, WHY), Accepted):\n"
    "                draft.note('began', job.id, (self.mark,))\n            else:\n"
    "                draft.leave_pending(job.id, Why('mine', 'waits for {} cores', (job.cpus,)))",
    "raises": "raise RuntimeError('no idea')",
    "loops": "while draft.waiting_count:\n            pass",
    "burns": "hog = bytearray(1 << 30)",
    "gangs": "ids = [job.id for job in draft.by_arrival()][:1]\n        if ids:\n"
    "            draft.gang('g', 1000, [ids], WHY, {ids[0]: ((max(draft.nodes), max(draft.nodes), 1),)})",
    "strange": "draft.decisions += [Start(job.id, ((99, 99, 1),), WHY) for job in draft.by_arrival()]",
    "rubbish": "draft.decisions += [object() for job in draft.by_arrival()]",
    "exits": "import os\n        os._exit(3)",
    "prints": "import os\n        os.write(1, b'x' * 100); os.write(2, b'x' * 100)\n        for job in draft.by_arrival():\n"
    "            draft.start(job.id, WHY)",
    "shares": "for job in draft.by_arrival():\n            draft.start(job.id, WHY)",
}
MODULE = """
from dataclasses import dataclass, field
from typing import ClassVar
from rmgr.sched.draft import Draft
from rmgr.sched.plan import Accepted, Start, Why
from rmgr.sched.policies.orders import FairShare
from rmgr.sched.policy import Cause, Order

WHY = Why("plug-in", "because")
{top}

@dataclass(frozen=True, slots=True)
class Mine:
    name: ClassVar[str] = "the_{name}_one"
    mark: int = 7
    {order}

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        {plan}
"""
TOPS = {"import_loops": "while True:\n    pass", "import_raises": "raise SystemExit(3)"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A distribution with all of them, as `pip install` leaves it."""
    where = tmp_path_factory.mktemp("plugins")
    info = where / "plug_ins-1.0.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: plug-ins\nVersion: 1.0\n")
    lines = ["[rmgr.policies]"]
    for name in (*PLANS, *TOPS):
        order = "order: Order = field(default_factory=FairShare)" if name == "shares" else ""
        text = MODULE.format(name=name, plan=PLANS.get(name, "pass"), top=TOPS.get(name, ""), order=order)
        where.joinpath(f"plug_{name}.py").write_text(text)
        lines.append(f"{name} = plug_{name}:Mine")
    info.joinpath("entry_points.txt").write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(where))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(where), os.environ.get("PYTHONPATH", "")]))
        yield


class World:
    """A leader with a plug-in in partition default and FCFS in partition far; its clock is moved by hand, the processes are real."""

    def __init__(self, name: str) -> None:
        document = json.dumps({"stage": [{"policy": name}]})
        specs = (PipelineSpec(partition="default", document=document, name=name), PipelineSpec(partition="far", document=FCFS, name="fcfs"))
        queues = (QueueSpec(name="default"), QueueSpec(name="batch", dispatch=Dispatch.PLACE), FAR)
        self.bench = Bench(ClusterSettings(queues=queues, pipelines=specs))
        self.bench.lead()
        self.nodes = self.bench.starter("n1", "n2")
        self.bench.starter("f1", "f2", partition="far")
        self.bench.advance(0.5)

    def submit(self, queue: str) -> int:
        request = Request(time_limit_us=60_000_000)
        return self.bench.submitter.submit(1, block=1, queue=queue, rigid=Rigid(), request=request)

    def running(self, *nodes: str) -> list[int]:
        return sorted(self.bench.look.running(*nodes))

    def until(self, condition: Callable[[], bool], patience_s: float = 30.0) -> None:
        """The leader's clock goes as ours does, and stands still with the machine."""
        began_s = at_s = time.monotonic()
        while not condition():
            assert time.monotonic() < began_s + patience_s, self.bench.log[-5:]
            time.sleep(0.005)  # a real process answers
            now_s = time.monotonic()
            self.bench.advance(min(now_s - at_s, 0.5))
            at_s = now_s

    def close(self) -> None:
        if self.bench.leader is not None:
            self.bench.leader.close()
        self.bench.close()


FCFS = json.dumps({"stage": [{"policy": "fcfs"}]})


@pytest.fixture
def world(installed: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], World]]:
    monkeypatch.setattr(placing_foreign, "POLICY_LIMIT_S", 1.0)
    made: list[World] = []

    def begin(name: str) -> World:
        made.append(World(name))
        return made[-1]

    yield begin
    for one in made:
        one.close()


def test_what_a_leader_stands_still_is_none_of_the_time_of_its_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(line: socket.socket) -> None:
        with line:
            line.recv(1 << 16)
            stand_still(3)
            line.sendall(placing_foreign.LENGTH.pack(2) + b"{}")

    def started(_words: list[str], *, stdin: int, **_: Any) -> Any:
        threading.Thread(target=answer, args=(socket.socket(fileno=os.dup(stdin)),)).start()
        return SimpleNamespace(kill=lambda: None, wait=lambda: 0)

    monkeypatch.setattr(placing_foreign, "START_S", 0.0)
    monkeypatch.setattr(placing_foreign, "subprocess", SimpleNamespace(Popen=started, DEVNULL=subprocess.DEVNULL))
    process = placing_foreign.PolicyProcess(2.5)
    assert process.ask({}) == {}
    process.end()


def test_a_plug_in_places_as_it_says_with_its_notes_and_reasons(world: Callable[[str], World]) -> None:
    it = world("good")
    first, second = it.submit("batch"), it.submit("batch")
    it.until(lambda: it.running("n1", "n2") == [first, second])
    more = [it.submit("batch") for _ in range(3)]
    it.until(lambda: len(it.running("n1", "n2")) == 4)
    placer = it.bench.leader.placer
    last = (more[2], 0)
    it.until(lambda: placer.view().jobs[last].reason == "waits for 1 core")
    notes = placer.state.partitions["default"].notes
    assert set(notes) == {"the_good_one"}
    assert set(notes["the_good_one"]["began"].values()) == {(7,)}
    [key] = [key for key in it.bench.look.keys(paths.running_node("n1")) if key.submission == first]
    it.nodes.complete("n1", key)
    it.until(lambda: more[2] in it.running("n1", "n2"))
    assert not placer.faults.counts
    it.bench.leader.close()  # its successor has the notes, and goes on
    it.bench.lead(it.bench.connect())
    it.until(lambda: it.bench.leader is not None and it.bench.leader.placer.state is not None)
    assert set(it.bench.leader.placer.state.partitions["default"].notes) == {"the_good_one"}


@pytest.mark.parametrize("name", [name for name in (*PLANS, *TOPS) if name not in {"good", "prints", "shares"}])
def test_whatever_a_plug_in_burns_others_place_at_once_and_fcfs_places_instead(
    world: Callable[[str], World], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_process, "START_S", 0.5)
    it = world(name)
    for leader in ("the first", "its successor"):
        here, there = it.submit("batch"), it.submit("far")
        with FairTimer() as timer:
            it.until(lambda there=there: there in it.running("f1", "f2"))
        assert timer.elapsed_s < 1.0, leader
        it.until(lambda here=here: here in it.running("n1", "n2"))
        told = it.bench.leader.placer.view().partitions["default"].instead
        assert told.startswith(f"policy {name} failed ("), told
        assert "fcfs places jobs in its place until" in told
        assert it.bench.deposed == []
        it.bench.leader.close()
        it.bench.lead(it.bench.connect())
    assert it.bench.count(it.bench.metrics.policy_faults) == 2


def test_what_a_plug_in_prints_goes_nowhere_and_use_is_kept_for_its_order(world: Callable[[str], World]) -> None:
    it = world("prints")
    number = it.submit("batch")
    it.until(lambda: it.running("n1", "n2") == [number])
    other = world("shares")
    number = other.submit("batch")
    other.until(lambda: other.running("n1", "n2") == [number])
    placer = other.bench.leader.placer
    other.until(lambda: placer.state is not None and placer.state.usage_half_life_us > 0)
    assert not placer.faults.counts


def test_the_processes_end_with_the_leadership(world: Callable[[str], World]) -> None:
    before = set(psutil.Process().children())
    it = world("good")
    it.submit("batch")
    it.until(lambda: bool(it.running("n1", "n2")))
    (child,) = set(psutil.Process().children()) - before
    it.bench.leader.close()
    eventually(lambda: not child.is_running(), "it ends")
