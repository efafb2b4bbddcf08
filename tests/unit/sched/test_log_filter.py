"""One partition cut out of an event log is a complete log: it replays to the same decisions, of jobs and of calls."""

from __future__ import annotations

from pathlib import Path

from rmgr.sched.catalogue import call_policy_named, policy_named
from rmgr.sched.engine import run_pass
from rmgr.sched.job import Job, Node
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.records import Call, Limits, Server
from rmgr.sched.state.cluster import ClusterState
from rmgr.sched.state.event_log import Entry, Opening, Recorder, decode, only
from rmgr.sim.replay import picks, verify

BATCH, CALLS = (Stage(policy_named("fcfs"), ("default",)),), (Stage(call_policy_named("loth+l"), ("calls",)),)


def recorded() -> list[Entry]:
    """Jobs and calls, a pass after each of them."""
    lines: list[str] = []
    tables = {"default": {"stage": [{"policy": "fcfs"}]}, "calls": {"stage": [{"policy": "loth+l", "parameters": {"load": "now"}}]}}
    recorder = Recorder(lines.append, policy="pipeline", parameters={}, about={}, pipelines=tables)
    state = ClusterState([Node(id=0), Node(id=1)])
    state.limits_changed("default", Limits(max_jobs_per_user=1))
    now = 0
    for name, speed in (("a", 4e8), ("b", 0.5e8)):
        state.server_changed(Server(name, speed, 0, (("c", 1e6),), partition="calls"))
    recorder.begin(state, seed=1, half_life_us=0)
    told = recorder.around(state, lambda: now)
    for number in range(1, 6):
        now = number
        told.job_submitted(Job(id=number, submit_us=number, user=f"u{number % 2}"))
        told.call_submitted(Call(number, number, 144_720_000, 1_000_000, "c", "calls"))
        plan = run_pass(state, frozenset(Cause), now=now, seed=1, pipeline=BATCH + CALLS)
        recorder.passed(now, frozenset(Cause), plan)
        state.apply(plan, now)
    recorder.end(now)
    return [decode(line) for line in lines]


def test_each_partition_replays_to_its_own_decisions() -> None:
    entries = recorded()
    batch, calls = verify(only(entries, "default"), BATCH), verify(only(entries, "calls"), CALLS)
    whole = verify(entries, BATCH + CALLS)
    assert (batch.decided + calls.decided, batch.told + calls.told) == (whole.decided, whole.told)
    assert (batch.decided, calls.told) == (2, 5)


def test_the_log_of_calls_names_its_policy_and_is_tried_under_another(tmp_path: Path) -> None:
    (opening, *_) = entries = list(only(recorded(), "calls"))
    assert isinstance(opening, Opening)
    assert (opening.policy, opening.parameters, list(opening.pipelines)) == ("loth+l", {"load": "now"}, ["calls"])
    assert (opening.state.nodes, opening.state.limits, [server.name for server in opening.state.servers]) == ((), (), ["a", "b"])
    found = picks(entries, (Stage(call_policy_named("rr")),))
    assert found.shares(found.recorded) != found.shares(found.replayed)
    assert found.shares(found.replayed) == {"a": 3, "b": 2}
