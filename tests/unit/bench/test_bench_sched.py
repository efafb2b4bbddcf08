"""Benches of the scheduler print JSON of the right shape at tiny sizes, and do not measure a failing policy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rmgr.bench import sched as bench_sched
from rmgr.bench.measuring import MeasuringPlan
from rmgr.cli.main import run
from rmgr.errors import RmgrError
from rmgr.sim.engine.validate import bare_starts

ROW = {"system", "setup", "what", "rate", "unit", "spread", "ratio", "detail"}


def rows_of(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert run(["bench", *words, "--json", "--repeat", "1", "--scale", "0.001"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["schema"], answer["bench"]) == ("rmgr/1", words[0])
    rows: list[dict[str, Any]] = answer["rows"]
    for found in rows:
        assert found.keys() == ROW
        assert found["spread"][0] <= found["rate"] <= found["spread"][1]
        assert found["rate"] > 0
    return rows


def test_simulations_stand_beside_a_bare_loop_of_the_same_run(capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(capsys, "sim")
    assert [(row["system"], row["what"].partition(",")[0]) for row in rows] == [
        ("bare event loop", "fcfs"), ("rmgr", "fcfs"),
        ("bare event loop", "first_fit"), ("rmgr", "first_fit"),
        ("bare event loop", "easy"), ("rmgr", "easy"),
        ("rmgr", "conservative"),
    ]  # fmt: skip
    assert [row["ratio"] for row in rows if row["system"] != "rmgr"] == [1.0, 1.0, 1.0]
    assert all(row["unit"] == "jobs/s" for row in rows)


def test_a_trace_is_simulated_instead(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    trace = tmp_path / "three.swf"
    jobs = ("1 0 0 60 2 0 0 2 90", "2 5 0 60 4 0 0 4 90", "3 9 0 60 1 0 0 1 90")
    trace.write_text("; MaxProcs: 4\n" + "".join(f"{job} 0 1 1 1 1 1 1 -1 -1\n" for job in jobs))
    rows = rows_of(capsys, "sim", "--trace", str(trace))
    assert {row["what"].partition(", ")[2] for row in rows} == {"3 jobs of three on 4 processors"}


def test_many_jobs_are_measured_in_processes_whose_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_sched, "LARGE_POLICIES", ("easy",))
    large = MeasuringPlan(large=True, scale=0.0002)
    rows = [*bench_sched.sim(large), *bench_sched.passes(large)]
    assert [row.what.partition(", ")[0] for row in rows] == ["easy", "easy pass"]
    assert all(row.detail["peak_mib"] > 10 for row in rows)


def test_passes_are_timed_along_two_curves_and_in_two_other_scenes(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row for row in rows_of(capsys, "pass") if "easy" in row["what"]]
    assert [row["setup"].rpartition("; by ")[2] for row in rows[:7]] == ["queue length"] * 3 + ["nodes"] * 4
    assert all(row["detail"].keys() == {"first_ms", "growth"} and row["unit"] == "ms" for row in rows[:7])
    assert [rows[0]["ratio"], rows[3]["ratio"]] == [1.0, 1.0]
    assert len(rows) == 9
    assert all(row["what"].startswith("first easy pass") for row in rows[7:])


def test_the_first_pass_on_an_empty_machine_starts_what_fits_and_leaves_the_rest() -> None:
    passing = bench_sched.Passing("first_fit", 50, 2, seed=0, scene=bench_sched.EMPTY)
    passing.next_ms()
    assert 0 < len(passing.running) < 50
    assert passing.pending + len(passing.running) == 50


def test_a_policy_that_fails_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("always")

    monkeypatch.setattr("rmgr.sched.policies.searches.Easy.plan", fails)
    with pytest.raises(RmgrError, match="easy fails, so its time says nothing: ZeroDivisionError: always"):
        bench_sched.timed("easy", 5, 2, repetitions=1)
    with pytest.raises(RmgrError, match="easy"):
        bench_sched.simulated(bench_sched.workload_of(MeasuringPlan(scale=0.001)), "easy")


def test_the_bare_loop_refuses_what_it_cannot_do() -> None:
    assert bare_starts([(0, 5, 3, 9), (0, 5, 2, 9), (1, 1, 1, 2)], 4, "easy") == [0, 5, 1]
    with pytest.raises(ValueError, match="conservative"):
        bare_starts([], 1, "conservative")
