"""Events beside the jobs of a simulation, worked by hand: failures, drains, fail-overs, windows, cancellations, limits."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from rmgr.adapters.policy_files import load
from rmgr.errors import RmgrError, UsageError
from rmgr.model.states import State
from rmgr.sched.catalogue import policy_named
from rmgr.sched.draft import Draft
from rmgr.sched.job import Node
from rmgr.sched.plan import Why
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.records import Limits
from rmgr.sched.state.event_log import Recorder
from rmgr.sim.engine.driver import simulate
from rmgr.sim.engine.execution import BySpeed, by_speed
from rmgr.sim.engine.outcome import Result, Setting
from rmgr.sim.engine.validate import check, violations
from rmgr.sim.runs.experiment import Experiment
from rmgr.sim.runs.output import summary, write_run
from rmgr.sim.workload.events import (
    Cancel,
    Event,
    FailOver,
    Failures,
    LimitsChange,
    NodesDrain,
    NodesFail,
    NodesRepaired,
    NodesUndrain,
    Window,
    read_events,
)
from rmgr.sim.workload.jobs import SECOND, Workload, WorkloadJob, read_trace
from tests.places import ROOT

HOUR = 3600 * SECOND
POLICIES = ROOT / "deploy" / "policies"


def a_job(number: int, submit: int, run: int, processors: int, **more: object) -> WorkloadJob:
    times = {"submit_us": submit * SECOND, "run_us": run * SECOND, "estimate_us": run * SECOND}
    return WorkloadJob(number=number, processors=processors, processes=processors, **times, **more)  # type: ignore[arg-type]


def a_workload(*jobs: WorkloadJob, processors: int = 4) -> Workload:
    return Workload(name="by hand", jobs=jobs, processors=processors)


def a_setting(policy: str = "fcfs", *events: Event, nodes: int | tuple[Node, ...] = 4, **more: object) -> Setting:
    return Setting(nodes=nodes, pipeline=(Stage(policy_named(policy)),), policy=policy, events=events, **more)  # type: ignore[arg-type]


def run(workload: Workload, setting: Setting) -> Result:
    result = simulate(workload, setting)
    check(result, workload, setting)
    return result


def spells(result: Result, number: int) -> list[tuple[int, int, str]]:
    return [(s.start_us // SECOND, s.end_us // SECOND, str(s.parting)) for s in result.outcomes[number - 1].spells]


def digest(result: Result, directory: Path) -> dict[str, str]:
    write_run(directory, result, workload_name="w")
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(directory.iterdir())}


def test_a_job_that_loses_a_node_starts_again_from_nothing_or_has_failed(tmp_path: Path) -> None:
    # Nodes 0-3: job 1 on 0-1, job 2 on 2-3. Node 1 fails at 5 s, is repaired at 12 s; 3 waits behind 1.
    workload = a_workload(a_job(1, 0, 10, 2), a_job(2, 0, 7, 2), a_job(3, 1, 2, 4))
    events = (NodesFail(5 * SECOND, ((1, 1),)), NodesRepaired(12 * SECOND, ((0, 1),)))
    again = run(workload, a_setting("fcfs", *events))
    assert spells(again, 1) == [(0, 5, "lost"), (7, 17, "ended")]
    assert again.outcomes[0].spells[1].cores == ((0, 0), (2, 2))  # the nodes that are left when job 2 ends
    assert spells(again, 3) == [(17, 19, "ended")]
    assert again.outcomes[0].wait_us == 2 * SECOND
    assert digest(again, tmp_path / "again").keys() == {"jobs.csv", "spells.csv", "schedule.json"}
    assert (tmp_path / "again" / "spells.csv").read_text().splitlines()[:3] == [
        "job_id,spell,starting_time,finish_time,ending,allocated_resources",
        "1,1,0,5,lost,0-1",
        "1,2,7,17,ended,0 2",
    ]
    failed = run(workload, a_setting("fcfs", *events, requeue=False))
    assert spells(failed, 1) == [(0, 5, "lost")]
    assert failed.outcomes[0].state is State.FAILED
    assert spells(failed, 3) == [(12, 14, "ended")]
    assert summary(failed) | {"wall_seconds": 0, "jobs_per_second": 0} == summary(failed) | {
        "jobs_failed": 1,
        "lost_to_nodes": 1,
        "jobs_rejected": 0,
        "wall_seconds": 0,
        "jobs_per_second": 0,
    }


def test_on_a_drained_node_what_runs_goes_on_and_nothing_starts() -> None:
    workload = a_workload(a_job(1, 0, 10, 2), a_job(2, 0, 4, 2), a_job(3, 5, 4, 3), a_job(4, 40, 1, 1))
    result = run(workload, a_setting("first_fit", NodesDrain(2 * SECOND, ((0, 1),)), NodesUndrain(30 * SECOND, ((1, 1),))))
    assert [spells(result, n) for n in (1, 2, 3, 4)] == [[(0, 10, "ended")], [(0, 4, "ended")], [(30, 34, "ended")], [(40, 41, "ended")]]
    assert result.outcomes[2].spells[0].cores == ((1, 3),)
    assert result.outcomes[3].spells[0].cores == ((1, 1),)  # node 0 is still drained


def test_nobody_runs_in_a_window_and_what_would_reach_into_it_waits() -> None:
    # The window [20, 30) of nodes 0-3 is known at 5 s: job 1 runs into it and is lost; job 2 would, and waits; job 3 fits before it.
    workload = a_workload(a_job(1, 0, 40, 2), a_job(2, 6, 15, 1), a_job(3, 6, 14, 1))
    result = run(workload, a_setting("first_fit", Window(5 * SECOND, 20 * SECOND, 30 * SECOND, ((0, 3),), "cooling")))
    assert spells(result, 1) == [(0, 20, "lost"), (30, 70, "ended")]
    assert spells(result, 2) == [(30, 45, "ended")]
    assert spells(result, 3) == [(6, 20, "ended")]


def test_a_job_is_cancelled_wherever_it_is(tmp_path: Path) -> None:
    workload = a_workload(a_job(1, 0, 10, 4), a_job(2, 1, 10, 4), a_job(3, 50, 1, 1), a_job(4, 2, 1, 4))
    workload = replace(workload, jobs=tuple(sorted(workload.jobs, key=lambda job: job.submit_us)))
    workload = replace(workload, jobs=tuple(replace(job, number=n) for n, job in enumerate(workload.jobs, 1)))
    cancels = (Cancel(4 * SECOND, 1), Cancel(3 * SECOND, 2), Cancel(5 * SECOND, 4), Cancel(60 * SECOND, 1))
    result = run(workload, a_setting("fcfs", *cancels))
    assert [spells(result, n) for n in (1, 2, 3, 4)] == [[(0, 4, "cancelled")], [], [(4, 5, "ended")], []]
    assert [outcome.state for outcome in result.outcomes] == [State.CANCELLED, State.CANCELLED, State.COMPLETED, State.CANCELLED]
    digest(result, tmp_path / "out")
    rows = [line.split(",") for line in (tmp_path / "out" / "jobs.csv").read_text().splitlines()]
    assert [row[7] for row in rows[1:]] == ["COMPLETED_KILLED", "COMPLETED_KILLED", "COMPLETED_SUCCESSFULLY", "COMPLETED_KILLED"]


def test_limits_hold_back_their_user_and_refuse_what_is_too_long() -> None:
    workload = a_workload(
        a_job(1, 0, 10, 1, user="u1"), a_job(2, 0, 10, 1, user="u1"), a_job(3, 0, 10, 1, user="u2"), a_job(4, 1, 100, 1, user="u2")
    )
    limits = Limits(max_jobs_per_user=1, max_time_us=50 * SECOND)
    result = run(workload, a_setting("fcfs", LimitsChange(0, "default", limits)))
    assert [spells(result, n) for n in (1, 2, 3, 4)] == [[(0, 10, "ended")], [(10, 20, "ended")], [(0, 10, "ended")], []]
    assert result.outcomes[3].state is State.FAILED
    assert summary(result)["jobs_rejected"] == 1


def test_cores_are_not_kept_for_a_promise_that_a_limit_forbids() -> None:
    # At 5 s jobs 2 and 3 of u1 have promises; 2 starts, and 3 may not run beside it: 4 takes the other core at once, not at 15 s.
    workload = a_workload(
        a_job(1, 0, 5, 2), a_job(2, 0, 10, 1, user="u1"), a_job(3, 0, 10, 1, user="u1"), a_job(4, 0, 10, 1, user="u2"), processors=2
    )
    for nodes in (2, (Node(id=0, cores=2),)):
        setting = a_setting("conservative", LimitsChange(0, "default", Limits(max_jobs_per_user=1)), nodes=nodes)
        result = run(workload, setting)
        assert [spells(result, n)[0][:2] for n in (1, 2, 3, 4)] == [(0, 5), (5, 15), (15, 25), (5, 15)]


def test_jobs_follow_others_after_their_think_time_or_wait_in_the_queue_for_their_end() -> None:
    # 2 is submitted 5 s after the end of 1, wherever that is; 3 is submitted at 1 s and may not start before 2 has ended.
    jobs = (a_job(1, 0, 10, 4), a_job(2, 0, 10, 1, after=1, think_us=5 * SECOND), a_job(3, 1, 1, 1, after=2), a_job(4, 2, 3, 1, after=1))
    result = run(a_workload(*jobs), a_setting("first_fit"))
    assert [spells(result, n) for n in (1, 2, 3, 4)] == [[(0, 10, "ended")], [(15, 25, "ended")], [(25, 26, "ended")], [(10, 13, "ended")]]
    assert result.outcomes[1].job.submit_us == 15 * SECOND
    assert [result.outcomes[n].job.submit_us for n in (2, 3)] == [1 * SECOND, 2 * SECOND]


def test_a_job_that_waits_for_one_still_to_come_keeps_its_own_place_in_the_queue() -> None:
    # 2 comes 5 s after the end of 1, at 15 s; 3, of 1 s, waits for its end and is before 4, of 20 s, when both can start at 25 s.
    jobs = (a_job(1, 0, 10, 4), a_job(2, 0, 10, 4, after=1, think_us=5 * SECOND), a_job(3, 1, 1, 4, after=2), a_job(4, 20, 3, 4))
    result = run(a_workload(*jobs), a_setting("fcfs"))
    assert [spells(result, n) for n in (3, 4)] == [[(25, 26, "ended")], [(26, 29, "ended")]]


def test_a_job_that_ends_later_than_64_bits_of_microseconds_is_named() -> None:
    jobs = [a_job(number, 0, 10**12, 4) for number in range(1, 11)]
    with pytest.raises(UsageError, match="job 10 ends 10000000000000 s after the first submit"):
        run(a_workload(*jobs), a_setting("fcfs"))


def test_dependencies_and_memory_come_from_the_trace(tmp_path: Path) -> None:
    # Job 20 is submitted 7 s after the end of 10, 40 waits for 30; 50 names a job that does not come before. 1 GB a process for 30.
    trace = tmp_path / "t.swf"
    line = "{} {} -1 {} 1 -1 -1 1 {} {} 1 1 1 -1 -1 -1 {} {}\n"
    rows = [(10, 0, 5, -1, -1, -1), (20, 1, 5, -1, 10, 7), (30, 2, 9, 1048576, -1, -1), (40, 3, 1, 1048576, 30, -1), (50, 4, 1, -1, 99, 5)]
    text = "".join(
        line.format(job, submit, run_s, run_s, kilobytes, before, think) for job, submit, run_s, kilobytes, before, think in rows
    )
    trace.write_text("; MaxProcs: 4\n" + text)
    plain = read_trace(trace)
    assert [(job.after, job.think_us) for job in plain.jobs] == [(0, -1)] * 5
    workload = read_trace(trace, dependencies=True)
    assert [(job.after, job.think_us) for job in workload.jobs] == [(0, -1), (1, 7 * SECOND), (0, -1), (3, -1), (0, -1)]
    assert workload.touched["wait for the end of another job"] == 2
    assert workload.touched["dependency dropped: its job does not come before"] == 1
    starts = [outcome.start_us // SECOND for outcome in run(workload, a_setting("first_fit")).outcomes]
    assert starts == [0, 12, 2, 11, 4]
    # Without them, on two nodes of 1 GB: 30 and 40 do not fit beside each other on one node, however many cores are free.
    nodes = (Node(id=0, cores=3, memory_bytes=1 << 30), Node(id=1, cores=1, memory_bytes=1 << 20))
    result = run(plain, a_setting("first_fit", nodes=nodes))
    assert [outcome.start_us // SECOND for outcome in result.outcomes] == [0, 1, 2, 11, 4]


def test_without_a_leader_nothing_starts_and_the_next_one_knows_everything() -> None:
    workload = a_workload(a_job(1, 0, 10, 4), a_job(2, 1, 2, 4), a_job(3, 11, 1, 4))
    result = run(workload, a_setting("fcfs", FailOver(5 * SECOND, 7 * SECOND)))
    assert [spells(result, n) for n in (1, 2, 3)] == [[(0, 10, "ended")], [(12, 14, "ended")], [(14, 15, "ended")]]


@pytest.mark.parametrize(
    "policy", ["easy", "conservative", "sjf", "fair_share", "migration", "ljf_migration", "hpc2500.toml", "easy_fair_share.toml"]
)
def test_a_fail_over_that_takes_no_time_changes_no_byte(policy: str, tmp_path: Path) -> None:
    """With failures and a window: a new leader at one pass, and at every pass; and the very same run again."""
    file = policy.endswith(".toml")
    experiment = Experiment(
        source="hpc2500" if policy.startswith("hpc") else "lublin99", policy=str(POLICIES / policy) if file else policy,
        nodes=None if file else 16, count=120, load=Fraction(6, 5), seed=3, mtbf_us=60 * HOUR, mttr_us=HOUR, configure=load,
    )
    workload = experiment.workload()
    setting = experiment.setting(workload)
    setting = replace(setting, events=(*setting.events, Window(2 * HOUR, 9 * HOUR, 11 * HOUR, ((3, 6),), "new disks")))
    lines: list[str] = []
    plain = digest(simulate(workload, setting, recorder=Recorder(lines.append, policy=policy, parameters={}, about={})), tmp_path / "plain")
    assert summary(run(workload, setting))["lost_to_nodes"] > 0
    instants = sorted({json.loads(line)["at"] for line in lines if '"pass"' in line})
    one = replace(setting, events=(*setting.events, FailOver(instants[len(instants) // 2], 0)))
    every = replace(setting, events=(*setting.events, *(FailOver(at_us, 0) for at_us in instants)))
    for name, changed in (("one", one), ("every", every), ("again", setting)):
        assert digest(simulate(workload, changed), tmp_path / name) == plain


def test_validation_knows_when_nodes_were_closed() -> None:
    """A run that was made without the failure and the window does not pass as one that was made with them."""
    workload = a_workload(a_job(1, 0, 10, 2), a_job(2, 3, 10, 2))
    result = simulate(workload, a_setting())
    down = (NodesFail(SECOND, ((3, 3),)), NodesRepaired(4 * SECOND, ((3, 3),)), Window(0, 9 * SECOND, 20 * SECOND, ((0, 0),), "w"))
    told = violations(result, workload, a_setting("fcfs", *down))
    assert told == [
        "core 3 is held by job 2 at 3000000 us, while its node has failed or is in maintenance",
        "core 0 is held by job 1 at 9000000 us, while its node has failed or is in maintenance",
    ]
    assert violations(result, workload, a_setting("fcfs", NodesFail(0, ((3, 3),)), NodesRepaired(3 * SECOND, ((3, 3),)))) == []


def test_failures_are_the_same_whatever_the_policy_and_nodes_fail_as_often_as_was_asked() -> None:
    drawn = Failures(100 * HOUR, 10 * HOUR).of(range(50), 7)
    events = [next(drawn) for _ in range(4000)]
    assert [event.at_us for event in events] == sorted(event.at_us for event in events)
    down: dict[int, int] = {}
    ups, downs = [], []
    since = dict.fromkeys(range(50), 0)
    for event in events:
        node = event.nodes[0][0]
        (downs if isinstance(event, NodesRepaired) else ups).append(event.at_us - since[node])
        since[node] = event.at_us
        assert down.get(node, 0) == int(isinstance(event, NodesRepaired))
        down[node] = int(isinstance(event, NodesFail))
    assert sum(ups) / len(ups) == pytest.approx(100 * HOUR, rel=0.1)
    assert sum(downs) / len(downs) == pytest.approx(10 * HOUR, rel=0.1)


def test_a_machine_that_is_never_whole_is_told_and_not_waited_for() -> None:
    workload = a_workload(a_job(1, 0, 10, 4))
    with pytest.raises(RmgrError, match="never whole enough"):
        simulate(workload, a_setting("fcfs", NodesDrain(0, ((0, 0),)), failures=Failures(HOUR, HOUR)))


def test_a_job_takes_as_long_as_the_slowest_of_its_nodes() -> None:
    nodes = tuple(Node(id=n, speed=speed) for n, speed in ((3, 1.0), (5, 0.8), (8, 2.0), (9, 0.5)))
    workload = a_workload(a_job(1, 0, 60, 2), a_job(2, 0, 60, 1), a_job(3, 0, 60, 1))
    execution = by_speed(nodes)
    assert isinstance(execution, BySpeed)
    result = run(workload, a_setting("fcfs", nodes=nodes, execution=execution))
    assert [spells(result, n) for n in (1, 2, 3)] == [[(0, 75, "ended")], [(0, 30, "ended")], [(0, 120, "ended")]]
    assert [outcome.spells[0].cores for outcome in result.outcomes] == [((0, 1),), ((2, 2),), ((3, 3),)]


def test_events_are_read_from_lines_of_json(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(
        '# a comment\n{"at": "1h", "event": "repair", "nodes": "0-1 3"}\n\n{"at": 0.5, "event": "fail", "nodes": 3}\n'
        '{"at": 7, "event": "fail_over", "for": "1m"}\n{"at": 9, "event": "cancel", "job": 17}\n'
        '{"at": 9, "event": "maintenance", "nodes": "2", "start": 10, "end": "1d", "name": "cooling"}\n'
        '{"at": 0, "event": "limits", "max_cpus_per_user": 8, "max_time": "2h"}\n'
    )
    assert read_events(path) == (
        LimitsChange(0, "default", Limits(max_cpus_per_user=8, max_time_us=2 * HOUR)),
        NodesFail(SECOND // 2, ((3, 3),)),
        FailOver(7 * SECOND, 60 * SECOND),
        Cancel(9 * SECOND, 17),
        Window(9 * SECOND, 10 * SECOND, 24 * HOUR, ((2, 2),), "cooling"),
        NodesRepaired(HOUR, ((0, 1), (3, 3))),
    )


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"at": 1, "event": "fail", "nodes": "0-"}', "line 2, field nodes: '0-' is not possible"),
        ('{"at": 1, "event": "fail", "nodes": "%s"}' % ("9" * 5001), "line 2, field nodes: '999"),
        ('{"at": 1, "event": "fail", "nodes": "\u0663"}', "line 2, field nodes: "),
        ('{"at": -1, "event": "fail", "nodes": "0"}', "line 2, field at: '-1'"),
        ('{"at": "soon", "event": "fail", "nodes": "0"}', "line 2, field at: 'soon'"),
        ('{"at": true, "event": "fail", "nodes": "0"}', "line 2, field at: 'True'"),
        ('{"at": 1, "event": "fial", "nodes": "0"}', "line 2, field event: 'fial'"),
        ('{"at": 1, "event": "cancel", "job": 0}', "line 2, field job: '0'"),
        ('{"at": 1, "event": "cancel"}', "line 2, field job: it is missing"),
        ('{"at": 1, "event": "cancel", "job": 1, "for": 3}', "line 2, field for: an event 'cancel' has no such field"),
        ('{"at": 9, "event": "maintenance", "nodes": "2", "start": 10, "end": 10}', "line 2, field start"),
        ('{"at": 9, "event": "limits", "max_jobs_per_user": 1.5}', "line 2, field max_jobs_per_user: '1.5'"),
        ('{"at": 1, "event": "fail", "nodes": "0"', "line 2: no JSON"),
        ("[]", "line 2: an event is an object"),
    ],
)
def test_a_wrong_field_is_told_with_its_line(line: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(f'{{"at": 1, "event": "cancel", "job": 1}}\n{line}\n')
    with pytest.raises(UsageError) as error:
        read_events(path)
    assert told in error.value.message
    assert error.value.hint


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (NodesFail(0, ((3, 4),)), "node 4, which the machine has not"),
        (Cancel(0, 2), "cancel job 2, and the workload has 1"),
        (LimitsChange(0, "gpu", Limits()), "partition 'gpu'"),
    ],
)
def test_events_of_what_is_not_there_are_told(event: Event, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        simulate(a_workload(a_job(1, 0, 10, 4)), a_setting("fcfs", event))


def test_jobs_that_wait_for_closed_nodes_are_told_so() -> None:
    with pytest.raises(RmgrError, match="leaves 1 job waiting for ever") as error:
        run(a_workload(a_job(1, 0, 9, 2), a_job(2, 1, 9, 3)), a_setting("easy", NodesDrain(SECOND, ((0, 1),))))
    assert error.value.hint == "2 of 4 nodes are down or drained, and nothing is to come that would open them"


def test_a_policy_that_only_ever_asks_for_another_pass_ends_the_run() -> None:
    class Dozing:
        name = "dozing"

        def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
            draft.wake_at(draft.now_us + 1, Why("dozing", "later"))

    with pytest.raises(RmgrError, match="policy dozing leaves 1 job waiting for ever") as error:
        run(a_workload(a_job(1, 0, 9, 2)), replace(a_setting(), pipeline=(Stage(Dozing()),), policy="dozing"))
    assert "it asked for 10,000 passes in a row" in error.value.hint
