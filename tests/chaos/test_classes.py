"""Queue classes on live nodes (seed 000): one workload under the conventional system and both proposals, against the simulator."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rmgr.bench.measuring import connected
from rmgr.bench.reality import (
    CLASS_CORES,
    CLASS_NODES,
    CONVENTIONAL,
    SYSTEMS,
    Played,
    WorkloadStage,
    compare,
    pipeline_with,
    simulated,
    system_document,
    system_workload,
)
from rmgr.dev.cluster import DevCluster
from rmgr.model.block import job_id
from rmgr.sched.job import Job as Request
from rmgr.sched.pipeline import pipeline_from
from rmgr.sched.queue_class import selected
from rmgr.sim.workload.jobs import Workload, WorkloadJob
from tests.harness.fair_time import FairTimer
from tests.harness.waiting import eventually

#: All times a sixth: twelve seconds of work for each system.
PACE = 0.17
#: Between the clocks of a job and of what is told of it (us).
SLACK_US = 2_000_000


@pytest.mark.long
def test_two_hundred_jobs_under_three_systems_as_in_the_simulator(zookeeper_parts: None, tmp_path: Path) -> None:
    decided: dict[str, list[Mapping[str, Any]]] = {}
    with DevCluster(tmp_path / "cluster", nodes=CLASS_NODES, cores=CLASS_CORES) as cluster, connected(cluster) as connection:
        stage = WorkloadStage(connection)
        for system in SYSTEMS:
            jobs, tables, known = system_workload(system, pace=PACE), system_document(system, PACE), logs_of(cluster)
            stage.use(pipeline_with(system, tables))
            with FairTimer() as timer:
                live = stage.play(jobs)
            found = compare(live, simulated(jobs, tables, nodes=CLASS_NODES, cores=CLASS_CORES))  # every job COMPLETED in both
            assert_never_over_committed(jobs, live)
            assert 0.9 * found.simulated_s < found.makespan_s < 2 * found.simulated_s + 10 + timer.withheld_s, found
            decided[system], has_gaps = decisions(cluster, tmp_path / f"{SYSTEMS[system]}.jsonl", live, known)
            routed = {one["job_id"]: one["to"] for one in decided[system] if one["do"] == "route"}
            chosen = {job_id(one.submission, 0): strictest(job, tables) for job, one in zip(jobs.jobs, live, strict=True)}
            expected = {} if system == CONVENTIONAL else chosen
            assert routed.items() <= expected.items() if has_gaps else routed == expected
    assert not [one for one in decided["proposal 1"] if one["do"] == "hold_cores"]
    assert [one for one in decided["proposal 2"] if one["do"] == "hold_cores"], "nobody has reserved"


def strictest(job: WorkloadJob, tables: Mapping[str, object]) -> str:
    """The class that paper 000 chooses for it."""
    shape = Request(id=1, submit_us=0, processes=job.processes, threads=job.threads, limit_us=job.estimate_us)
    found = selected(shape, pipeline_from(tables).queues)
    assert found is not None
    return found.name


def assert_never_over_committed(jobs: Workload, live: Sequence[Played]) -> None:
    """By the clocks of the Starters, which are one here."""
    changes = sorted(
        change
        for job, one in zip(jobs.jobs, live, strict=True)
        for change in ((one.start_us, 1, job.processors), (one.end_us, 0, -job.processors))
    )
    busy = 0
    for at_us, _, cores in changes:
        busy += cores
        assert busy <= CLASS_NODES * CLASS_CORES, f"{busy} cores in use after {at_us} us"


def logs_of(cluster: DevCluster) -> list[str]:
    """Names of the leaders' logs, oldest first."""
    return [one["log"] for one in json.loads(run(cluster, "admin", "export-events", "--list", "--json"))["logs"]]


def decisions(cluster: DevCluster, where: Path, live: Sequence[Played], known: Sequence[str]) -> tuple[list[Mapping[str, Any]], bool]:
    """Those in the leader's log since the `known` ones, which replays to them, as soon as all these jobs have ended in it.

    A leader that does not believe its state any more reads everything again and begins another log: what happened meanwhile is in none.
    Returns: also whether that was so.
    """

    def read(log: str) -> list[Mapping[str, Any]]:
        where.unlink(missing_ok=True)
        run(cluster, "admin", "export-events", "--log", log, "-o", str(where))
        return [json.loads(line) for line in where.read_text().splitlines()]

    def logs() -> list[str]:
        found = logs_of(cluster)
        return [log for log in found if log not in known] or found[-1:]

    def is_whole() -> bool:
        told = [read(log) for log in logs()]
        submitted_us = min((line["at"] for lines in told for line in lines if line.get("fact") == "job_submitted"), default=0)
        begun_us = next((line["at"] for line in told[-1] if "at" in line), 0) - submitted_us + SLACK_US
        ended = {job_id(one.submission, 0) for one in live if len(told) == 1 or one.end_us > begun_us}
        return ended <= {line["job_id"] for line in told[-1] if line.get("fact") == "job_ended"}

    eventually(is_whole, "the log to be whole")
    found: list[Mapping[str, Any]] = []
    for log in (since := logs()):
        made = [one for line in read(log) for one in line.get("decisions", ())]
        assert "are the recorded ones" in run(cluster, "sim", "replay", str(where), "--partial")
        alone = run(cluster, "admin", "export-events", "--log", log, "--partition", "default").splitlines()
        assert [one for line in alone for one in json.loads(line).get("decisions", ())] == made, "there is one partition"
        found += made
    return found, len(since) > 1


def run(cluster: DevCluster, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "rmgr.cli.main", *words], env=cluster.environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
