"""The pipelines of deploy/policies: each is read, describes its machine, and runs a small workload to a valid schedule without a fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmgr.adapters.policy_files import load
from rmgr.cli.main import run
from rmgr.sched.queue_class import HPC2500
from rmgr.sched.records import Limits

EXAMPLES = Path(__file__).resolve().parents[2] / "deploy" / "policies"
#: file -> (workload, cores of the machine, nodes)
RUNS = {
    "hpc2500.toml": (["hpc2500", "--count", "400", "--load", "1.1"], 1408, 11),
    "grid_migration.toml": (["lublin99", "--count", "400", "--load", "0.9", "--tick", "10m"], 1024, 1024),
    "easy_fair_share.toml": (["lublin99", "--count", "400", "--load", "0.9"], 128, 128),
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


def test_the_classes_of_the_example_are_those_of_the_paper() -> None:
    assert load(str(EXAMPLES / "hpc2500.toml"), {}).queues == HPC2500


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
