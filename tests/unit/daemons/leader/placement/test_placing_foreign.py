"""Policies of plug-ins in the leader: each in a process of its own, whose plans are vetted; whatever it burns is its partition's alone."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmgr.coord.protocol import paths
from rmgr.daemons.leader.placement import passes as placing_foreign
from rmgr.daemons.leader.placement import passes as policy_process
from rmgr.model.base.resources import Request
from rmgr.model.cluster.queue import ClusterSettings, Dispatch, PipelineSpec, QueueSpec
from rmgr.model.tasks.submission import Rigid
from tests.harness.fair_time import FairTimer
from tests.harness.leader_bench import Bench

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
MODULE = '''
from dataclasses import dataclass, field
from typing import ClassVar
from rmgr.sched.draft import Draft
from rmgr.sched.plan import Accepted, Start, Why
from rmgr.sched.policies.fair_share import FairShare
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
'''
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


FAR = QueueSpec(name="far", partition="far", dispatch=Dispatch.PLACE)


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
        return sorted(key.submission for node in nodes for key in self.bench.look.keys(paths.running_node(node)))

    def until(self, condition: Callable[[], bool], patience_s: float = 30.0) -> None:
        """The leader's clock goes as ours does."""
        began_s = at_s = time.monotonic()
        while not condition():
            assert time.monotonic() < began_s + patience_s, self.bench.log[-5:]
            time.sleep(0.005)  # a real process answers
            now_s = time.monotonic()
            self.bench.advance(now_s - at_s)
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


def test_a_plug_in_places_as_it_says_with_its_notes_and_reasons(world: Callable[[str], World]) -> None:
    it = world("good")
    first, second = it.submit("batch"), it.submit("batch")
    it.until(lambda: it.running("n1", "n2") == [first, second])
    more = [it.submit("batch") for _ in range(3)]
    it.until(lambda: len(it.running("n1", "n2")) == 4)
    assert it.bench.leader is not None
    placer = it.bench.leader.placer
    last = (more[2], 0)
    it.until(lambda: placer.view().jobs[last].reason == "waits for 1 core")
    assert placer.state is not None
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
    assert it.bench.leader.placer.state is not None
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
            it.until(lambda there=there: there in it.running("f1", "f2"))  # type: ignore[misc]
        assert timer.elapsed_s < 1.0, leader
        it.until(lambda here=here: here in it.running("n1", "n2"))  # type: ignore[misc]
        assert it.bench.leader is not None
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
    assert other.bench.leader is not None
    placer = other.bench.leader.placer
    other.until(lambda: placer.state is not None and placer.state.usage_half_life_us > 0)
    assert not placer.faults.counts


def test_the_processes_end_with_the_leadership(world: Callable[[str], World]) -> None:
    it = world("good")
    it.submit("batch")
    it.until(lambda: bool(it.running("n1", "n2")))
    assert it.bench.leader is not None
    part = it.bench.leader.placer._foreign._parts["default"]
    assert part.process._child is not None
    pid = part.process._child.pid
    it.bench.leader.close()
    end_s = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < end_s
        time.sleep(0.01)
