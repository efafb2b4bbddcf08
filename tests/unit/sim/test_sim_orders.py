"""The simulator carries out each decision of a policy: jobs move, stop, wait for named cores, change queues, are refused."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

from rmgr.errors import RmgrError
from rmgr.model.states import State
from rmgr.sched.draft import Draft
from rmgr.sched.job import Node
from rmgr.sched.plan import Accepted, Why
from rmgr.sched.policies.searches import Conservative, FirstFit
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.records import Share
from rmgr.sched.state.event_log import Recorder, decode
from rmgr.sim.engine import driver
from rmgr.sim.engine.driver import simulate
from rmgr.sim.engine.execution import UNIT, Execution, Grid, Recorded, by_speed
from rmgr.sim.engine.outcome import JobOutcome, Result, Setting
from rmgr.sim.engine.validate import check
from rmgr.sim.replay import verify
from rmgr.sim.runs.output import summary, write_run
from rmgr.sim.workload.events import Cancel, Event, FailOver, NodesFail
from rmgr.sim.workload.jobs import SECOND, Workload, WorkloadJob

WHY = Why("test", "as the test says")
Script = Callable[[Draft, int], None]


@dataclass(frozen=True, slots=True)
class Scripted:
    """First-Fit, after what a script does at its times (whole seconds; each asked for with a wake)."""

    name: ClassVar[str] = "scripted"
    script: tuple[tuple[int, Script], ...]

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        for at, act in self.script:
            if draft.now_us == at * SECOND:
                act(draft, at)
        FirstFit().plan(draft, causes)
        for at, _ in self.script:
            if at * SECOND > draft.now_us:
                draft.wake_at(at * SECOND, WHY)
                break


def a_job(number: int, submit: int, run: int, processors: int, queue: str = "") -> WorkloadJob:
    times = {"submit_us": submit * SECOND, "run_us": run * SECOND, "estimate_us": run * SECOND}
    return WorkloadJob(number=number, processors=processors, processes=processors, queue=queue, **times)


def run(
    *jobs: WorkloadJob, script: dict[int, Script], execution: Execution | None = None, events: tuple[Event, ...] = (), **more: object
) -> Result:
    workload = Workload(name="by hand", jobs=jobs, processors=4)
    policy = Scripted(tuple(sorted(script.items())))
    setting = Setting(nodes=4, pipeline=(Stage(policy),), policy="scripted", execution=execution or Recorded(), events=events, **more)
    lines: list[str] = []
    result = simulate(workload, setting, recorder=Recorder(lines.append, policy="scripted", parameters={}, about={}))
    check(result, workload, setting)
    assert not result.faults
    verify(map(decode, lines), setting.pipeline)  # the log says everything that happened
    return result


def spells(result: Result, number: int) -> list[tuple[float, float, str]]:
    return [(s.start_us / SECOND, s.end_us / SECOND, str(s.parting)) for s in result.outcomes[number - 1].spells]


def migrate(number: int) -> Script:
    return lambda draft, _: None if isinstance(draft.migrate(number, WHY), Accepted) else pytest.fail("refused")


def test_a_job_that_migrates_goes_on_where_it_was_with_a_penalty_and_one_that_is_preempted_begins_again() -> None:
    # 1 runs on nodes 0-1, 2 on 2-3. At 4 s job 1 leaves for 3, which is the first in the queue then; the penalty is 2 s.
    def swap(draft: Draft, _: int) -> None:
        assert isinstance(draft.migrate(1, WHY), Accepted)
        assert isinstance(draft.start(3, WHY), Accepted)

    jobs = (a_job(1, 0, 10, 2), a_job(2, 0, 20, 2), a_job(3, 1, 5, 2))
    result = run(*jobs, script={4: swap}, execution=Recorded(penalty_us=2 * SECOND))
    assert spells(result, 1) == [(0, 4, "migrated"), (9, 17, "ended")]
    assert spells(result, 3) == [(4, 9, "ended")]
    assert result.outcomes[0].wait_us == 5 * SECOND
    assert summary(result)["migrations"] == 1

    def throw_out(draft: Draft, _: int) -> None:
        assert isinstance(draft.preempt(1, WHY), Accepted)
        assert isinstance(draft.start(3, WHY), Accepted)

    assert spells(run(*jobs, script={4: throw_out}), 1) == [(0, 4, "preempted"), (9, 19, "ended")]


def test_on_a_grid_what_is_left_moves_and_is_counted_on_the_new_nodes() -> None:
    # Speeds 1, 1, .5, .5 (mean .75): 60 s of work take 45 s on node 0. At 15 s a third is done; 40 s and 1 s of penalty are left:
    # on node 2 at half speed 41 s x .75 / .5 = 61.5 s.
    grid = Grid(specs=(UNIT, UNIT, UNIT // 2, UNIT // 2), sites=(0, 0, 1, 1), delay_us=0, penalty_us=SECOND)

    def away(draft: Draft, _: int) -> None:
        assert isinstance(draft.migrate(1, WHY), Accepted)
        assert isinstance(draft.start(1, WHY, ((2, 2, 1),)), Accepted)

    result = run(a_job(1, 0, 60, 1), script={15: away}, execution=grid)
    assert spells(result, 1) == [(0, 15, "migrated"), (15, 76.5, "ended")]
    assert [spell.cores for spell in result.outcomes[0].spells] == [((0, 0),), ((2, 2),)]


def test_a_suspended_job_goes_on_in_place_and_others_run_meanwhile() -> None:
    def stop(draft: Draft, _: int) -> None:
        assert isinstance(draft.suspend(1, WHY), Accepted)

    def resume(draft: Draft, _: int) -> None:
        assert isinstance(draft.resume(1, WHY), Accepted)

    result = run(a_job(1, 0, 10, 4), a_job(2, 1, 3, 4), script={4: stop, 7: resume})
    assert spells(result, 1) == [(0, 4, "suspended"), (7, 13, "ended")]
    assert spells(result, 2) == [(4, 7, "ended")]
    assert summary(result)["suspensions"] == 1


@pytest.mark.parametrize(("how", "after", "end"), [("migrate", "migrated", 20), ("preempt", "preempted", 24)])
def test_a_job_may_leave_while_it_is_suspended(how: str, after: str, end: int) -> None:
    def leave(draft: Draft, _: int) -> None:
        assert isinstance(getattr(draft, how)(1, WHY), Accepted)

    stop: Script = lambda draft, _: None if isinstance(draft.suspend(1, WHY), Accepted) else pytest.fail("refused")  # noqa: E731
    result = run(a_job(1, 0, 10, 4), a_job(2, 1, 10, 4), script={4: stop, 6: leave})
    assert spells(result, 1) == [(0, 4, after), (14, end, "ended")]


def test_what_befalls_a_suspended_job() -> None:
    stop: Script = lambda draft, _: None if isinstance(draft.suspend(1, WHY), Accepted) else pytest.fail("refused")  # noqa: E731
    jobs = (a_job(1, 0, 10, 2), a_job(2, 0, 10, 2))
    lost = run(*jobs, script={4: stop}, events=(NodesFail(6 * SECOND, ((0, 0),)),))
    assert spells(lost, 1) == [(0, 4, "lost"), (10, 20, "ended")]
    cancelled = run(*jobs, script={4: stop}, events=(Cancel(6 * SECOND, 1),))
    assert spells(cancelled, 1) == [(0, 4, "cancelled")]
    assert cancelled.outcomes[0].state is State.CANCELLED


def test_cores_that_are_promised_from_a_run_wait_for_their_job() -> None:
    # Job 3 needs 4 cores: those of 1 (ends at 6 s) and 2 (ends at 9 s). Job 4 would fit at 6 s, and may not.
    def promise(draft: Draft, _: int) -> None:
        assert isinstance(draft.hold(3, (Share(1, ((0, 1, 1),)), Share(2, ((2, 3, 1),))), WHY), Accepted)

    def start(draft: Draft, _: int) -> None:
        assert isinstance(draft.start(3, WHY), Accepted)

    jobs = (a_job(1, 0, 6, 2), a_job(2, 0, 9, 2), a_job(3, 1, 5, 4), a_job(4, 2, 1, 2))
    result = run(*jobs, script={2: promise, 9: start})
    assert [spells(result, n) for n in (3, 4)] == [[(9, 14, "ended")], [(14, 15, "ended")]]


def test_jobs_are_routed_and_refused() -> None:
    def sort_out(draft: Draft, _: int) -> None:
        assert isinstance(draft.route(2, "small", WHY), Accepted)
        assert isinstance(draft.reject(3, WHY), Accepted)

    result = run(a_job(1, 0, 10, 4), a_job(2, 1, 1, 1, queue="any"), a_job(3, 1, 1, 1, queue="any"), script={1: sort_out})
    assert [outcome.queue for outcome in result.outcomes] == ["", "small", "any"]
    assert [(outcome.state, bool(outcome.spells)) for outcome in result.outcomes] == [
        (State.COMPLETED, True),
        (State.COMPLETED, True),
        (State.FAILED, False),
    ]
    assert summary(result)["jobs_rejected"] == 1


def test_with_jobs_that_move_a_fail_over_at_every_pass_changes_no_byte(tmp_path: Path) -> None:
    jobs = tuple(a_job(n, n, 7 + n % 5, 1 + n % 3) for n in range(1, 40))

    def shuffle(draft: Draft, at: int) -> None:
        for run_ in list(draft.running())[: at % 3]:
            (draft.migrate if at // 4 % 2 else draft.suspend)(run_.job.id, WHY)
        for stopped in list(draft.suspended()):
            if stopped.since_us < draft.now_us:
                draft.resume(stopped.run.job.id, WHY)

    script = dict.fromkeys(range(3, 400, 4), shuffle)
    seen = []
    for name, events in (
        ("plain", ()),
        ("again", ()),
        ("leaders", tuple(FailOver(at * SECOND, 0) for at in range(3, 400, 4))),
    ):
        result = run(*jobs, script=script, events=events, execution=Recorded(penalty_us=SECOND))
        write_run(tmp_path / name, replace(result, passes=0), workload_name="w")
        seen.append([hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted((tmp_path / name).iterdir())])
    assert summary(result)["migrations"] > 5
    assert summary(result)["suspensions"] > 5
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) == 3


def test_conservative_waits_for_the_end_of_overdue_runs_and_not_for_every_microsecond() -> None:
    # Half as fast as requested: 1 is overdue from 10 s on, and ends at 20 s.
    nodes = tuple(Node(id=n, speed=0.5) for n in range(4))
    setting = Setting(nodes=nodes, pipeline=(Stage(Conservative()),), policy="conservative", execution=by_speed(nodes))
    workload = Workload(name="by hand", jobs=(a_job(1, 0, 10, 4), a_job(2, 1, 10, 4)), processors=4)
    result = simulate(workload, setting)
    assert [spells(result, n) for n in (1, 2)] == [[(0, 20, "ended")], [(20, 40, "ended")]]
    assert result.passes < 20


@dataclass(frozen=True, slots=True)
class Sleepless:
    """First-Fit that wakes every microsecond."""

    name: ClassVar[str] = "sleepless"

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        FirstFit().plan(draft, causes)
        draft.wake_at(draft.now_us + 1, WHY)


def test_a_policy_that_wakes_for_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "MOST_IDLE", 500)
    workload = Workload(name="by hand", jobs=(a_job(1, 0, 10, 4),), processors=4)
    with pytest.raises(RmgrError, match=r"asks again and again for passes in which nothing starts: 500 until 50[0-9] us"):
        simulate(workload, Setting(nodes=4, pipeline=(Stage(Sleepless()),), policy="sleepless"))


def test_outcomes_are_a_sequence_of_values() -> None:
    outcomes = run(a_job(1, 0, 10, 4), a_job(2, 1, 3, 4), script={}).outcomes
    assert len(outcomes) == 2
    assert outcomes == tuple(outcomes) == outcomes[:]
    assert outcomes[-1].start_us == 10 * SECOND
    assert isinstance(outcomes[0], JobOutcome)
