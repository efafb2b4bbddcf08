"""Policies printed in rmgr/docs/policies.md and pipelines of deploy/policies load, type-check, and do what they say."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import rmgr
from rmgr.adapters.policy_files import load
from rmgr.cli.main import run
from rmgr.sched.catalogue import POLICIES
from rmgr.sched.engine import run_pass
from rmgr.sched.job import Job, Node
from rmgr.sched.plan import Send, Start
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.queue_class import HPC2500
from rmgr.sched.records import Call, Limits, Server
from rmgr.sched.state.cluster import ClusterState
from rmgr.sim.models.hpc2500 import hpc2500
from tests.places import EXTRACTS, ROOT

HOUR_US = 3_600_000_000
TEXT = (Path(rmgr.__file__).parent / "docs/policies.md").read_text("utf-8")
NAMES = ("keep_room", "nearest")
SOURCES = dict(zip(NAMES, re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL), strict=True))
SUBMITTED = frozenset({Cause.JOB_SUBMITTED})


@pytest.fixture
def example(request: pytest.FixtureRequest) -> Iterator[types.ModuleType]:
    module = types.ModuleType(request.param)
    sys.modules[request.param] = module  # dataclasses look their module up
    exec(SOURCES[request.param], module.__dict__)
    yield module
    del sys.modules[request.param]


def test_every_policy_of_the_document_type_checks(tmp_path: Path) -> None:
    assert len(SOURCES["keep_room"].splitlines()) <= 40, "as the guide says"
    for name, source in SOURCES.items():
        (tmp_path / f"{name}.py").write_text(source, "utf-8")
    files = [str(tmp_path / f"{name}.py") for name in NAMES]
    argv = [sys.executable, "-m", "mypy", "--strict", "--cache-dir=.mypy_cache/readme", *files]  # a cache of its own: other options
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert "2 source files" in done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if str(tmp_path) in line or tmp_path.name in line] == []


@pytest.mark.parametrize("example", ["keep_room"], indirect=True)
def test_the_policy_of_the_document_does_what_it_says(example: types.ModuleType) -> None:
    # 8 nodes. Jobs 1 (5 nodes) and 2 (2 nodes) are long, 3 (2 nodes) is short: 2 would leave 1 < 2 free, 3 may have them.
    state = ClusterState(Node(id=i) for i in range(8))
    for job_id, processes, limit_us in ((1, 5, 2 * HOUR_US), (2, 2, 2 * HOUR_US), (3, 2, HOUR_US)):
        state.job_submitted(Job(id=job_id, submit_us=0, processes=processes, limit_us=limit_us))
    plan = run_pass(state, SUBMITTED, now=0, seed=0, pipeline=(Stage(example.KeepRoom()),))
    assert plan.faults == ()
    assert [d.job_id for d in plan.decisions if isinstance(d, Start)] == [1, 3]
    assert str(plan.why(2)) == "keep_room: would leave 1 core free for short jobs"


@pytest.mark.parametrize("example", ["nearest"], indirect=True)
def test_the_server_selection_of_the_readme_sends_calls_to_the_nearest_server(example: types.ModuleType) -> None:
    state = ClusterState()
    state.server_changed(Server("A", 400e6, 0, (("c", 0.20e6),), partition="calls"))
    state.server_changed(Server("B", 40e6, 9, (("c", 1.08e6),), partition="calls", functions=("f",)))
    for call_id, function in ((1, "f"), (2, ""), (3, "g"), (4, "f")):
        excluded = ("A", "B") if call_id == 4 else ()
        state.call_submitted(Call(call_id, 0, 144_720_000, 2_892_000, "c", "calls", function, excluded))
    plan = run_pass(state, SUBMITTED, now=0, seed=0, pipeline=(Stage(example.Nearest()),))
    assert plan.faults == ()
    assert [(d.job_id, d.to) for d in plan.decisions if isinstance(d, Send)] == [(1, "B"), (2, "B"), (3, "A")]
    assert str(plan.why(4, "calls")) == "nearest: no open server offers f"


EXAMPLES = ROOT / "deploy" / "policies"
TRACE = str(EXTRACTS / "kth_first_2000.swf.gz")
#: file -> (workload, cores of the machine, nodes)
RUNS = {
    "hpc2500.toml": (["hpc2500", "--count", "400", "--load", "1.1"], 1408, 11),
    "grid_migration.toml": (["lublin99", "--count", "400", "--load", "0.9", "--tick", "10m"], 1024, 1024),
    "easy_fair_share.toml": ([TRACE, "--count", "400", "--load", "0.9"], 128, 128),
}

Captured = pytest.CaptureFixture[str]


def test_every_example_is_run_here() -> None:
    assert sorted(path.name for path in EXAMPLES.iterdir()) == sorted(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_an_example_runs_and_its_schedule_is_valid(name: str, capsys: Captured) -> None:
    words, processors, nodes = RUNS[name]
    path = str(EXAMPLES / name)
    assert sum(node.cores for node in load(path, {}).nodes) == processors
    assert run(["sim", "run", *words, "--policy", path, "--validate", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["faults"] == {}
    assert answer["experiment"]["nodes"] == nodes
    assert answer["summary"]["jobs"] == 400
    if name == "grid_migration.toml":
        assert answer["summary"]["migrations"] > 0


def test_the_classes_of_the_example_are_those_of_the_paper_but_for_the_trigger_that_keeps_them_from_starving() -> None:
    queues = load(str(EXAMPLES / "hpc2500.toml"), {}).queues
    assert tuple(replace(queue, head_trigger=queue.name == "d512") for queue in queues) == HPC2500
    assert {queue.name for queue in queues if queue.head_trigger} == {"s128", "d32", "d128", "d512"}


def test_limits_and_shares_of_the_example_are_in_force() -> None:
    found = load(str(EXAMPLES / "easy_fair_share.toml"), {})
    hour_us = 3_600_000_000
    assert found.limits == {
        "batch": Limits(max_cpus_per_user=100, max_time_us=36 * hour_us),
        "debug": Limits(max_jobs_per_user=2, max_time_us=hour_us),
    }
    assert found.homes == {"debug": "debug", "": "batch"}
    assert found.usage_half_life_us == 7 * 24 * hour_us


def test_a_machine_is_described_once(capsys: Captured) -> None:
    assert run(["sim", "run", "lublin99", "--policy", str(EXAMPLES / "easy_fair_share.toml"), "--nodes", "64"]) == 2
    assert "describes the machine" in capsys.readouterr().err


def test_queues_tied_to_partitions_each_with_a_stage_of_its_own(tmp_path: Path, capsys: Captured) -> None:
    """Papers.md 1.8: small queues have nodes of their own; in each partition another policy, and a job never leaves its own."""
    pipeline = tmp_path / "partitioned.toml"
    pipeline.write_text(
        '[[stage]]\npolicy = "first_fit"\npartitions = ["small"]\n'
        '[[stage]]\npolicy = "easy"\npartitions = ["large"]\n[stage.parameters]\norder = "sjf"\n'
        '[[partition]]\nname = "small"\nnodes = 1\ncores = 128\nqueues = ["ss8", "s8"]\n'
        '[[partition]]\nname = "large"\nnodes = 10\ncores = 128\nqueues = ["s128", "d32", "d128", "d512"]\n'
    )
    out = tmp_path / "out"
    words = ["sim", "run", "hpc2500:user", "--count", "300", "--load", "1", "--policy", str(pipeline), "--validate", "--out", str(out)]
    assert run([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["faults"] == {}
    with (out / "jobs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["success"] for row in rows} == {"1"}
    jobs = hpc2500(300, processors=1408, seed=0, kind="user").jobs
    on_small = {int(row["job_id"]) for row in rows if int(row["allocated_resources"].split("-")[0].split()[0]) < 128}
    assert on_small == {job.number for job in jobs if job.queue in {"ss8", "s8"}}


def test_every_name_of_the_contract_is_there() -> None:
    """Cli.md, section 9."""
    names = "fcfs sjf ljf first_fit ljf_first_fit priority fair_share easy conservative queue_select connection_reservation migration"
    assert {*names.split(), "ljf_migration", "dqt"} <= set(POLICIES)


@pytest.mark.parametrize("name", RUNS)
def test_an_example_keeps_the_laws_of_policies(name: str, capsys: Captured) -> None:
    assert run(["policy", "check", str(EXAMPLES / name), "--worlds", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lawful"] is True


@pytest.mark.parametrize(
    ("parameter", "said"),
    [
        ("width=1", "width of dqt is '1': it must be from 2 to 64"),
        ("quantum=5ms", "quantum of dqt is '5ms': it must be from 10ms to 1h"),
        ("quantum=2h", "quantum of dqt is '2h': it must be from 10ms to 1h"),
        ("allocation=best", "none of rr, max, min, apa, bf, bf_apa"),
        ("weights=100:2,0:1", "0 stands after 100; sort them by priority, as 0:1,100:2,1000:4"),
        ("weights=0:9", "0:9 has no weight from 1 to 8"),
    ],
)
def test_bad_parameters_of_dqt_are_refused_with_what_to_type(parameter: str, said: str, capsys: Captured) -> None:
    assert run(["sim", "run", "lublin99", "--nodes", "4", "--count", "5", "--policy", "dqt", "--param", parameter]) == 2
    assert said in capsys.readouterr().err


def test_dqt_shares_its_partition_with_no_other_stage(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "two.toml"
    file.write_text('[[stage]]\npolicy = "dqt"\n[[stage]]\npolicy = "easy"\n')
    assert run(["sim", "run", "lublin99", "--nodes", "4", "--count", "5", "--policy", str(file)]) == 2
    told = capsys.readouterr().err
    assert "dqt cannot share partition default with easy" in told
    assert "give dqt a partition of its own" in told
