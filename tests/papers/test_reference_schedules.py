"""Start times equal, job by job, reference schedules (papers.md section 6) and a bare loop on random workloads."""

from __future__ import annotations

import csv
import gzip
import json
import os
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmgr.sim.engine.outcome import Result
from rmgr.sim.engine.validate import Plain, bare_starts
from rmgr.sim.runs.experiment import Experiment, carry_out
from rmgr.sim.runs.output import summary
from rmgr.sim.workload.jobs import SECOND, Workload, WorkloadJob
from tests.places import EXTRACTS, ROOT

#: The whole traces and schedules stand beside a developer's checkout, not in it.
SHARED = Path(os.environ.get("RMGR_SHARED", ROOT.parent / "shared"))
TRACES = {"kth": "KTH-SP2-1996-2.1-cln.swf.gz", "nasa": "NASA-iPSC-1993-3.1-cln.swf.gz"}
SHORT = {"kth": "kth_first_2000.swf.gz", "nasa": "nasa_first_600.swf.gz"}
#: reference's name -> ours
POLICIES = {"fcfs": "fcfs", "ff": "first_fit", "easy": "easy"}
ALL_POLICIES = {**POLICIES, "sjf": "sjf", "ljf": "ljf", "ljf_ff": "ljf_first_fit"}

has_shared = pytest.mark.skipif(not (SHARED / "reference" / "reference.json").is_file(), reason="no ../shared beside this checkout")


def started(result: Result) -> list[int]:
    return [outcome.start_us // SECOND for outcome in result.outcomes]


def ran(source: str, policy: str, factor: str = "1") -> Result:
    return _ran(source, policy, factor)  # in one way: to `cache`, an argument left out is another one than its default


@cache
def _ran(source: str, policy: str, factor: str) -> Result:
    return carry_out(Experiment(source=source, policy=policy, interarrival=Fraction(factor)), jobs_of(source, factor), validate=True)


@cache
def jobs_of(source: str, factor: str) -> Workload:
    """The same whatever the policy is."""
    return Experiment(source=source, policy="fcfs", interarrival=Fraction(factor)).workload()


def differences(ours: list[int], theirs: list[int]) -> dict[int, tuple[int, int]]:
    assert len(ours) == len(theirs)
    return {job: (a, b) for job, (a, b) in enumerate(zip(ours, theirs, strict=True), 1) if a != b}


@has_shared
@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_start_of_a_whole_trace_is_the_reference_one(trace: str, policy: str) -> None:
    with gzip.open(SHARED / "reference" / f"starts_{trace}_{policy}.csv.gz", "rt") as file:
        theirs = [int(row["start"]) for row in csv.DictReader(file)]
    result = ran(str(SHARED / "traces" / TRACES[trace]), POLICIES[policy])
    assert differences(started(result), theirs) == {}


@has_shared
@pytest.mark.parametrize(
    ("trace", "policy", "factor"),
    [
        *((trace, policy, "1") for trace in TRACES for policy in ALL_POLICIES),
        *((trace, policy, factor) for trace, factor in (("kth", "0.9"), ("nasa", "0.5")) for policy in ALL_POLICIES if policy != "ljf"),
    ],
)
def test_measures_of_whole_traces_are_the_reference_ones(trace: str, policy: str, factor: str) -> None:
    traces = json.loads((SHARED / "reference" / "reference.json").read_text())["traces"][trace]
    theirs = (traces["results"] if factor == "1" else traces[f"scaled_interarrival_{factor}"])[policy]["batched"]
    ours = summary(ran(str(SHARED / "traces" / TRACES[trace]), ALL_POLICIES[policy], factor))
    assert {
        "jobs": ours["jobs"],
        "avg_wait": round(ours["mean_waiting_time"], 2),
        "median_wait": ours["median_waiting_time"],
        "max_wait": ours["max_waiting_time"],
        "avg_response": round(ours["mean_turnaround_time"], 2),
        "avg_bounded_slowdown_tau10": round(ours["mean_bounded_slowdown"], 4),
        "avg_slowdown": round(ours["mean_slowdown"], 4),
        "makespan": ours["makespan"],
        "utilisation": round(ours["utilisation"], 5),
        "jobs_waiting_zero": ours["jobs_waiting_zero"],
    } == pytest.approx(theirs, abs=1e-4)


@has_shared
@pytest.mark.parametrize(
    ("policy", "params", "wait", "slowdown"), [("conservative", {}, 7325.61, 87.93), ("easy", {"backfill": "shortest"}, 5963.48, 68.01)]
)
def test_c5_1_backfilling_of_which_the_other_simulator_tells(policy: str, params: dict[str, str], wait: float, slowdown: float) -> None:
    experiment = Experiment(source=str(SHARED / "traces" / TRACES["kth"]), policy=policy, params=params)
    ours = summary(carry_out(experiment, jobs_of(experiment.source, "1")))
    # It has a pass for each event, arrivals before ends: a few start times differ (papers.md 6).
    assert ours["mean_waiting_time"] == pytest.approx(wait, rel=0.005)
    assert ours["mean_bounded_slowdown"] == pytest.approx(slowdown, rel=0.005)


@pytest.mark.parametrize("trace", SHORT)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_start_of_an_extract_that_later_jobs_cannot_change_is_the_reference_one(trace: str, policy: str) -> None:
    with gzip.open(EXTRACTS / f"{trace}_starts.csv.gz", "rt") as file:
        theirs = [row[policy] for row in csv.DictReader(file)]  # "" from the first submit after the extract on
    ours = started(ran(str(EXTRACTS / SHORT[trace]), POLICIES[policy]))
    known = [at for at, start in enumerate(theirs) if start]
    assert len(known) >= (1880 if trace == "kth" else 591)
    assert differences([ours[at] for at in known], [int(theirs[at]) for at in known]) == {}


def a_workload(jobs: list[Plain], processors: int) -> Workload:
    made = [
        WorkloadJob(
            number=number, submit_us=submit * SECOND, run_us=run * SECOND, estimate_us=estimate * SECOND, processors=size, processes=size
        )
        for number, (submit, run, size, estimate) in enumerate(jobs, 1)
    ]
    return Workload(name="random", jobs=tuple(made), processors=processors)


@st.composite
def plain_jobs(draw: st.DrawFn) -> tuple[list[Plain], int]:
    """Few times and sizes, so that ends, arrivals and estimates often fall on one instant."""
    processors = draw(st.integers(1, 8))
    count = draw(st.integers(1, 25))
    submits = sorted(draw(st.lists(st.integers(0, 12), min_size=count, max_size=count)))
    jobs = []
    for submit in submits:
        run = draw(st.integers(1, 6))
        jobs.append((submit - submits[0], run, draw(st.integers(1, processors)), run + draw(st.integers(0, 4))))
    return jobs, processors


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=60, deadline=None)
@given(plain_jobs())
def test_the_engine_starts_jobs_when_a_bare_loop_does(policy: str, drawn: tuple[list[Plain], int]) -> None:
    jobs, processors = drawn
    workload = a_workload(jobs, processors)
    result = carry_out(Experiment(source="", policy=POLICIES[policy]), workload, validate=True)
    assert started(result) == bare_starts(jobs, processors, POLICIES[policy])


@pytest.mark.parametrize("policy", ["fcfs", "ff"])  # easy promises nodes, not counts: its starts may differ
def test_nodes_of_several_cores_change_no_start_of_jobs_that_may_spread(policy: str) -> None:
    source = str(EXTRACTS / SHORT["kth"])
    experiment = Experiment(source=source, policy=POLICIES[policy], nodes=25, cores=4, count=800)
    apart = Experiment(source=source, policy=POLICIES[policy], count=800)
    results = [carry_out(e, e.workload(), validate=True) for e in (experiment, apart)]
    assert differences(*map(started, results)) == {}
