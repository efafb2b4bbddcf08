"""Recorded logs replay to the same decisions, also beside another policy; errors name the defect of a damaged log."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from rmgr.cli.main import run
from rmgr.errors import RmgrError, UsageError
from rmgr.sched.job import Job, Node, Running
from rmgr.sched.pipeline import configured
from rmgr.sched.plan import Decision, GangSet, HoldCores, Migrate, Noted, Reserve, Route, Start, Why
from rmgr.sched.records import Gang, Hold, Limits, Maintenance, Share, Suspended
from rmgr.sched.state.cluster import Snapshot
from rmgr.sched.state.event_log import AS_TOLD, End, Fact, LogError, Opening, Passed, decision, decode, described, encode
from rmgr.sim.engine.driver import simulate
from rmgr.sim.replay import recorded, under, verify
from rmgr.sim.runs.output import new_log, read_log, reproducible, summary

Captured = pytest.CaptureFixture[str]
WORDS = ["sim", "run", "lublin99", "--count", "300", "--nodes", "32", "--load", "1.1", "--mtbf", "3d", "--mttr", "3h", "--seed", "4"]
EVENTS = (
    '{"at": "1h", "event": "maintenance", "nodes": "0-3", "start": "5h", "end": "9h", "name": "disks"}\n'
    '{"at": "2h", "event": "drain", "nodes": "9"}\n{"at": "6h", "event": "undrain", "nodes": "9"}\n'
    '{"at": "3h", "event": "fail_over", "for": 0}\n{"at": "4h", "event": "cancel", "job": 10}\n'
    '{"at": 1, "event": "limits", "max_jobs_per_user": 20}\n'
)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("log")
    (directory / "events").write_text(EVENTS)
    path = directory / "easy.log.gz"
    assert run([*WORDS, "--policy", "easy", "--events", str(directory / "events"), "--record", str(path), "--json"]) == 0
    return path


def test_under_its_own_policy_a_log_decides_what_it_decided(log: Path, tmp_path: Path, capsys: Captured) -> None:
    capsys.readouterr()
    assert run(["sim", "replay", str(log), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["replay"]
    assert told["identical"] is True
    assert told["passes"] > 500
    assert told["facts"] > 600
    # The same as text; one decision of it changed: the first difference is told, with exit 1.
    lines = gzip.decompress(log.read_bytes()).decode().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if '"do":"start"' in line and i > 400)
    lines[at] = lines[at].replace('"placement":[[', '"placement":[[1')
    wrong = tmp_path / "wrong.log"
    wrong.write_text("".join(lines))
    assert run(["sim", "replay", str(wrong)]) == 1
    error = capsys.readouterr().err
    assert f"pass {json.loads(lines[at])['pass']} at {json.loads(lines[at])['at']} us: decision" in error
    assert "another release" in error


def test_the_recorded_world_under_the_recorded_policy_is_the_recorded_run(log: Path) -> None:
    """All that a replay under another policy rests on: jobs, times, nodes, failures, windows, limits and cancellations are complete."""
    found = configured("easy")
    history = verify(read_log(log), None)
    world = recorded(history, name="log")
    assert world.left_out == 0
    again = simulate(world.workload, under(world, found.stages, "easy", 0))
    ours, theirs = (reproducible(summary(result)) for result in (again, world.result))
    assert theirs["lost_to_nodes"] > 0
    assert theirs["jobs_cancelled"] == 1
    differing = {key for key in ours if ours[key] != theirs[key]}
    assert differing <= {"passes"}, {key: (ours[key], theirs[key]) for key in differing}


def test_another_policy_stands_beside_the_recorded_one(log: Path, tmp_path: Path, capsys: Captured) -> None:
    capsys.readouterr()
    assert run(["sim", "replay", str(log), "--policy", "fcfs", "--validate", "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    assert "300 jobs as recorded and under fcfs" in told
    assert "mean wait (s)" in told
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["jobs.csv", "manifest.json", "schedule.json", "spells.csv"]
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert list(manifest["inputs"]) == [str(log)]
    assert (manifest["experiment"]["recorded"]["policy"], manifest["experiment"]["policy"]) == ("easy", "fcfs")
    assert run(["sim", "replay", str(log), "--policy", "fcfs", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["replayed"]["summary"]["mean_waiting_time"] > answer["recorded"]["summary"]["mean_waiting_time"]
    assert answer["replayed"]["summary"]["jobs"] == answer["recorded"]["summary"]["jobs"] == 300


def test_the_columns_of_a_comparison_have_whole_names(log: Path, capsys: Captured) -> None:
    capsys.readouterr()
    assert run(["sim", "replay", str(log), "--policy", "connection_reservation"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()[1:]
    assert head.split() == ["easy", "connection_reservation", "change"]
    assert {len(row) for row in rows} == {len(head)}


def test_a_log_of_jobs_that_shared_cores_is_not_compared_with_another_policy(tmp_path: Path, capsys: Captured) -> None:
    # a job is on its nodes while others have their turn: that time is not how long it runs
    path = tmp_path / "dqt.log"
    assert run(["sim", "run", "lublin99", "--count", "20", "--nodes", "4", "--policy", "dqt", "--record", str(path)]) == 0
    assert run(["sim", "replay", str(path)]) == 0
    capsys.readouterr()
    assert run(["sim", "replay", str(path), "--policy", "easy"]) == 2
    assert "its jobs shared cores in time" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda lines: lines[:200], "has no end: it was cut off after line 200"),
        (lambda lines: [*lines[:200], lines[200][:25]], "line 201: no JSON"),
        (lambda lines: [*lines[:-2], lines[-1]], "passes stand before it"),
        (lambda lines: [lines[0], "[" * 100_000], "line 2: no JSON"),
        (lambda lines: lines[1:], "line 1, field log: a log begins with it"),
        (lambda lines: [], "cut off after line 0"),
        (
            lambda lines: [lines[0], lines[1].replace('"processes":', '"proceses":'), *lines[2:]],
            "field job.proceses: Job has no such field",
        ),
        (lambda lines: [lines[0], lines[1].replace('"id":1', '"id":"1"'), *lines[2:]], "line 2: field job.id: int is expected, not '1'"),
        (lambda lines: [lines[0], lines[1].replace("job_submitted", "job_sent"), *lines[2:]], "field fact: 'job_sent' is none of"),
        (lambda lines: [lines[0].replace("events/1", "events/9"), *lines[1:]], "this release reads rmgr/events/1"),
    ],
)
def test_a_damaged_log_is_told_by_line_and_field(change: object, told: str, log: Path, tmp_path: Path, capsys: Captured) -> None:
    lines = gzip.decompress(log.read_bytes()).decode().splitlines(keepends=True)
    path = tmp_path / "damaged.log"
    path.write_text("".join(change(lines)))  # type: ignore[operator]
    assert run(["sim", "replay", str(path)]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert "Traceback" not in error


def test_of_a_log_that_was_cut_off_what_is_there_can_be_replayed(log: Path, tmp_path: Path, capsys: Captured) -> None:
    short = tmp_path / "short.log.gz"
    short.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
    assert run(["sim", "replay", str(short)]) == 2
    assert "ends in the middle" in capsys.readouterr().err
    assert run(["sim", "replay", str(short), "--partial"]) == 0
    assert "decisions are the recorded ones" in capsys.readouterr().out
    assert run(["sim", "replay", str(short), "--partial", "--policy", "sjf"]) == 0
    assert "whose end is not in the log" in capsys.readouterr().err


def test_a_log_takes_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    with pytest.raises(RmgrError, match="starves"), new_log(path) as write:
        write("x\n")
        raise RmgrError("the policy starves them")
    assert list(tmp_path.iterdir()) == []
    path.write_text("mine")
    with pytest.raises(UsageError, match="exists already"), new_log(path) as write:
        write("x\n")
    assert path.read_text() == "mine"


WHY = Why("easy", "ends before the reservation of job {}", (7,))
JOB = Job(id=3, submit_us=5, processes=2, threads=4, features=("gpu",), after=(1, 2), restarts=1)
DECISIONS: tuple[Decision, ...] = (
    Start(3, ((0, 1, 1), (4, 4, 2)), WHY, "batch"),
    Reserve(3, 99, (), keep=True, why=WHY, policy="easy"),
    Migrate(3, WHY),
    HoldCores(9, Hold(9, (Share(3, ((0, 1, 4),)),), (), "connection_reservation"), WHY),
    Noted("migration", "passed", 3, (1, 2)),
    Noted("migration", "passed", 3, None),
    Route(3, "ss8", WHY),
    GangSet(Gang("dqt", 1000, 5, 2, 2, ((0, 1, 2), (4, 4, 1)), ((1, ((1, 1), (2, 3))),), ((0, 0, False),), ((6, 4, 1),)), WHY),
)


def test_every_record_and_decision_comes_back_as_it_was() -> None:
    run_ = Running(JOB, 5, 10, ((0, 1, 1),))
    snapshot = Snapshot(
        nodes=(Node(id=0, cores=4, speed=0.5, closed=True), Node(id=1)), waiting=(JOB,), running=(run_,), suspended=(Suspended(run_, 7),),
        windows=(Maintenance(1, 5, 9, (0, 1), "disks"),), limits=(("default", Limits(max_cpus_per_user=3)),),
    )
    entries = (
        Opening("easy", {"order": "sjf"}, 7, snapshot, AS_TOLD, 9, {"source": "x"}),
        Fact(5, "job_submitted", {"job": JOB}),
        Fact(6, "job_started", {"job_id": 3, "placement": ((0, 1, 1),), "now": 6, "partition": "default"}),
        Fact(6, "limits_changed", {"partition": "default", "limits": None}, "by hand"),
        End(9, 3, 0),
    )
    for entry in entries:
        assert decode(encode(entry)) == entry
    passed = decode(encode(Passed(6, 1, ("timer",), described(DECISIONS))))
    assert isinstance(passed, Passed)
    made = tuple(map(decision, passed.decisions))
    assert described(made) == described(DECISIONS)
    assert [replace_why(one) for one in made] == [replace_why(one) for one in DECISIONS]
    with pytest.raises(LogError, match="field do: 'stop' is none of start, reserve"):
        decision({"do": "stop"})


def replace_why(one: Decision) -> Decision:
    return one if isinstance(one, Noted) else one._replace(why=WHY)  # type: ignore[return-value]


def test_a_leaders_log_is_followed_by_its_facts(tmp_path: Path) -> None:
    """As a leader writes it: starts are told when they happened, later than they were decided, and times count from 1970."""
    base = 1_700_000_000_000_000
    job = Job(id=42, submit_us=base, processes=2, limit_us=90_000_000, user="ann")
    entries = [
        Opening("easy", {}, 0, Snapshot(nodes=(Node(id=0), Node(id=1))), AS_TOLD),
        Fact(base, "job_submitted", {"job": job}),
        Fact(base, "job_submitted", {"job": replace(job, id=43)}),
        Passed(base, 1, ("job_submitted",), ()),
        Fact(base + 5, "job_started", {"job_id": 42, "placement": ((0, 1, 1),), "now": base + 5}),
        Fact(base + 60_000_005, "job_ended", {"job_id": 42, "now": base + 60_000_005}),
        Fact(base + 60_000_009, "job_started", {"job_id": 43, "placement": ((0, 1, 1),), "now": base + 60_000_009}),
        Fact(base + 80_000_009, "job_ended", {"job_id": 43, "now": base + 80_000_009}),
    ]
    path = tmp_path / "leader.log"
    path.write_text("".join(encode(entry) + "\n" for entry in entries))
    world = recorded(verify(read_log(path, whole=False), None), name="leader")
    assert [job.run_us for job in world.workload.jobs] == [60_000_000, 20_000_000]
    assert [outcome.wait_us for outcome in world.result.outcomes] == [5, 60_000_009]
    again = simulate(world.workload, under(world, configured("ljf").stages, "ljf", 0))
    assert [outcome.wait_us for outcome in again.outcomes] == [0, 60_000_000]
    assert Fraction(summary(again)["makespan"]) == 80


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, b"x"])
def test_what_is_no_json_is_not_written_into_a_log(value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        encode(Fact(1, "node_changed", {"node": value}))


def test_numbers_of_any_size_come_back_as_they_were() -> None:
    node = Node(id=1, cores=1, memory_bytes=1 << 70, speed=1e-7, name="Ω\n")
    line = encode(Fact(1, "node_changed", {"node": node}))
    assert json.loads(line)["node"]["memory_bytes"] == 1 << 70
    for one in (node, replace(node, memory_bytes=1 << 62, speed=1e22)):
        fact = Fact(1, "node_changed", {"node": one})
        assert decode(encode(fact)) == fact


def test_the_same_sentence_has_its_nouns_in_the_number_of_each_time() -> None:
    text = "needs {} x {} cores, {} nodes are free"
    assert [str(Why("r", text, (1, count, 2))) for count in (1, 4, 1)] == [
        "r: needs 1 x 1 core, 2 nodes are free", "r: needs 1 x 4 cores, 2 nodes are free", "r: needs 1 x 1 core, 2 nodes are free"
    ]
