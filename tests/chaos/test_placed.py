"""Placed jobs under kills: rows 2, 3, 9 and 35 of the fault matrix."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
from breakable import Chaos

from tests.harness.waiting import eventually

pytestmark = pytest.mark.chaos

#: What a Starter dies at: with its order read, with its job running, with its output stored, with its end committed.
MOMENTS = ("job_taken", "running", "output_written", "after_complete")
#: What happens to leaders.
LEADERS = ("before_place=kill", "after_place:3=kill", "before_place=stop")
CLUMSY = """
import time
from dataclasses import dataclass
from typing import ClassVar
from rmgr.sched.plan import Why

WHY = Why("clumsy", "because")

@dataclass(frozen=True, slots=True)
class Raises:
    name: ClassVar[str] = "raises"
    def plan(self, draft, causes):
        for job in draft.by_arrival():
            draft.start(job.id, WHY)
        raise RuntimeError("no idea")

@dataclass(frozen=True, slots=True)
class Sleeps:
    name: ClassVar[str] = "sleeps"
    def plan(self, draft, causes):
        time.sleep(60)

@dataclass(frozen=True, slots=True)
class Overcommits:
    name: ClassVar[str] = "overcommits"
    def plan(self, draft, causes):
        for job in list(draft.by_arrival()):
            for _ in range(3):
                draft.start(job.id, WHY, ((0, 0, 1),))
                draft.start(job.id, WHY, ((0, 0, 9),))

@dataclass(frozen=True, slots=True)
class Unknown:
    name: ClassVar[str] = "unknown"
    def plan(self, draft, causes):
        for job in list(draft.by_arrival()):
            draft.start(job.id, WHY, ((99, 99, 1),))
            draft.start(job.id + 1, WHY)
"""
NAMES = {"raises": "Raises", "sleeps": "Sleeps", "overcommits": "Overcommits", "unknown": "Unknown"}


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables with which a program finds the clumsy policies, as if they were installed."""
    where = tmp_path_factory.mktemp("plugins")
    described = where / "clumsy-1.0.dist-info"
    described.mkdir()
    (where / "clumsy.py").write_text(CLUMSY)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: clumsy\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[rmgr.policies]\n" + "".join(f"{name} = clumsy:{kind}\n" for name, kind in NAMES.items()))
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(where), os.environ.get("PYTHONPATH")]))}


@pytest.fixture
def chaos(pair: Chaos) -> Chaos:
    return pair


def test_leaders_that_die_and_stop_around_placements_lose_and_double_nothing(chaos: Chaos, plugins: dict[str, str]):
    # Three leaders, one after another: killed before its first PLACE, killed after its third, stopped with a plan in its hands.
    name = f"w{time.monotonic_ns()}"
    doomed = {f"{name}-{at}": {"RMGR_FAILPOINT": f"leader.{what}"} for at, what in enumerate(LEADERS)}
    stopped, heir = list(doomed)[-1], f"{name}-heir"
    chaos.succeed(**doomed, **{heir: plugins})
    epoch = chaos.epoch()
    jobs = chaos.submit(12, 0.3, "-q", "batch")
    wide = [chaos.submit_job(2, 0.3, "-N", "2") for _ in range(2)]
    eventually(lambda: chaos.cluster.process(stopped).state == "stopped", "the last of them has stopped")
    assert [chaos.cluster.process(each).state for each in doomed] == ["dead", "dead", "stopped"]
    late = chaos.submit(2, 0.3, "-q", "batch")
    eventually(lambda: chaos.leader() == heir, "another WatchDog leads")
    eventually(lambda: chaos.spans(late), "it places")
    chaos.cluster.kill(stopped, signal.SIGCONT)
    tasks = chaos.finish()
    assert {view.attempt for view in tasks.values()} == {1}, "and each ran once, or the ledger would tell"
    assert len(chaos.spans(jobs)) == 12
    assert all({span.node for span in chaos.spans(number)} == {"n1", "n2"} for number in wide)
    assert (chaos.epoch(), chaos.leader()) == (epoch + 3, heir), "the one that woke took nothing back"
    assert chaos.cluster.process(stopped).state == "running", "it lives on as a candidate"


def test_jobs_of_a_killed_node_run_elsewhere_beside_pulled_work(chaos: Chaos):
    jobs = chaos.submit(8, 1.0, "-q", "batch", "-c", "2")
    chaos.submit(30, 0.2)
    eventually(lambda: chaos.started() >= 4, "both kinds run")

    def busy() -> str:
        """Where one has just begun: it goes on for a while."""
        now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        return next((span.node for span in chaos.spans(jobs) if not span.ended and now_s - span.start < 0.4), "")

    chaos.cluster.kill(eventually(busy, "a job begins"))
    chaos.finish()
    assert any(view.attempt > 1 for view in chaos.tasks(jobs))


def test_a_starter_killed_at_any_moment_of_a_job_loses_nothing(chaos: Chaos):
    doomed = {f"d{at}": f"starter.{moment}=kill" for at, moment in enumerate(MOMENTS)}
    for name, failpoint in doomed.items():
        chaos.add_node(name, cores=2, RMGR_FAILPOINT=failpoint)
    eventually(lambda: doomed.keys() <= chaos.up(), "they are up")
    number = chaos.submit(16, 1.0, "-q", "batch", "--env", "PAD=20000")  # more output than rides inside a commit
    eventually(lambda: all(chaos.cluster.process(name).state == "dead" for name in doomed), "all failpoints have killed their Starters")
    chaos.finish()
    again = [view for view in chaos.tasks(number) if view.attempt > 1]
    assert {view.attempts[0].reason for view in again} == {"NODE_LOST"}
    assert {view.attempts[0].node for view in again} >= {"d0", "d1", "d2"}


@pytest.mark.parametrize(
    ("names", "error"),
    [(("raises", "overcommits", "unknown", "fcfs"), "raises: RuntimeError: no idea"), ((*NAMES, "fcfs"), "did not end within")],
    ids=["raise", "sleep"],
)
def test_policies_that_raise_sleep_overcommit_or_invent_nodes_are_replaced_by_fcfs(
    chaos: Chaos, plugins: dict[str, str], names: tuple[str, ...], error: str
):
    chaos.succeed(**{f"w{time.monotonic_ns()}": plugins})
    pipeline = chaos.directory / f"clumsy{len(names)}.toml"
    pipeline.write_text("".join(f'[[stage]]\npolicy = "{name}"\n' for name in names))
    assert chaos.rmgr("policy", "set", str(pipeline)).returncode == 2, "who does not have them cannot set them"
    done = chaos.rmgr("policy", "set", str(pipeline), **plugins)
    assert done.returncode == 0, done.stderr
    try:
        leader = chaos.leader()
        chaos.submit(4, 0.3, "-q", "batch")
        chaos.submit(6, 0.1)
        chaos.submit_job(2, 0.2, "-N", "2")
        tasks = chaos.finish()
        assert {view.attempt for view in tasks.values()} == {1}
        (placing,) = json.loads(chaos.rmgr("status", "--json").stdout)["policies"]
        (fault,) = placing["faults"]
        assert (fault["policy"], fault["count"]) == (", ".join(names), 1)
        assert error in fault["error"], placing
        assert "fcfs places jobs in its place" in chaos.rmgr("status").stdout
        assert chaos.leader() == leader
    finally:
        assert chaos.rmgr("policy", "set", "easy").returncode == 0
