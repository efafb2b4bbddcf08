"""Benches of an idle cluster, of uneven work, of data and of placed jobs print rows of the right shape, at tiny sizes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from rmgr.bench import commands as bench_commands
from rmgr.bench import idle as bench_idle
from rmgr.bench import jobs as bench_jobs
from rmgr.bench import scale as bench_scale
from rmgr.bench import store as bench_store
from rmgr.bench import tasks as bench_tasks
from rmgr.bench.load.processes import children_of, cost_of, pss_bytes
from rmgr.bench.measuring import Bench, MeasuringPlan, two_slots
from rmgr.bench.tasks import Ran, shortest_s
from rmgr.cli.main import run
from rmgr.dev.cluster import DevCluster
from tests.harness.ended_sessions import LONG_S
from tests.integration.commands import Shell

ROW = {"system", "setup", "what", "rate", "unit", "spread", "ratio", "detail"}


@pytest.fixture
def tiny(zookeeper_parts: None) -> MeasuringPlan:
    return MeasuringPlan(repetitions=1, scale=0.001)


def test_a_cluster_without_work_is_counted_process_by_process(
    tiny: MeasuringPlan, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Daemons are executed: the program that forks a forked Starter's spawners would be counted, too.
    monkeypatch.setenv("RMGR_FORKED", "0")
    monkeypatch.setattr(bench_idle, "_NODES", 1)
    monkeypatch.setattr(bench_idle, "_WATCHDOGS", 1)
    monkeypatch.setattr(bench_idle, "_WARM_S", 0.05)
    assert run(["bench", "idle", "--json", "--repeat", "1", "--scale", "0.001"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["schema"], answer["bench"]) == ("rmgr/1", "idle")
    rows: list[dict[str, Any]] = answer["rows"]
    assert all(row.keys() == ROW for row in rows)
    for kind, unit in (("idle", "% of a core"), ("memory", "MiB PSS")):
        of_kind = [row for row in rows if row["what"].startswith(kind)]
        assert {row["unit"] for row in of_kind} == {unit}
        pool, ours, *parts = of_kind
        assert (pool["setup"], pool["ratio"], ours["system"]) == ("the same run", 1.0, "rmgr")
        names = [row["what"].partition(", ")[2] for row in parts]
        assert names == ["zookeeper zk1", "watchdog w1", "starter n1", "spawners and workers of n1"]
        assert ours["rate"] == pytest.approx(sum(row["rate"] for row in parts))
    assert [row["detail"]["processes"] for row in rows if row["what"].startswith("memory, spawners")] == [4]


@pytest.fixture(scope="module")
def slots(zookeeper_parts: None) -> Iterator[Bench]:
    """One cluster of two slots for several benches."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(DevCluster.__init__.__kwdefaults__, "session_timeout_s", LONG_S)
        with two_slots(MeasuringPlan(repetitions=1, scale=0.001)) as bench:
            yield bench


def test_data_and_uneven_work_are_measured_beside_the_standard_library(
    tiny: MeasuringPlan, slots: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 10 inputs of 1 MiB, 100 and 10 results; 10 + 10 tasks of 20 ms at most; a late Starter that finds everything claimed.
    monkeypatch.setattr(bench_tasks, "_LONG_S", (0.01, 0.02))
    bench = slots
    with bench_store.ProcessPoolExecutor(2) as pool:
        inputs = bench_store._inputs(tiny, bench, pool, bench_store.SETUP)
        assert [(row.system, row.unit) for row in inputs] == [
            ("ProcessPoolExecutor(2).map", "MB/s"), ("rmgr TaskQueue.submit", "MB/s"), ("rmgr", "MiB PSS"),
            ("files, each with fsync", "MB/s"), ("rmgr Values.put", "MB/s"),
            ("ProcessPoolExecutor(2).map", "MB/s"), ("rmgr TaskQueue.map", "MB/s"), ("what must be done, in one thread", "MB/s"),
        ]  # fmt: skip
        assert bench.connection.store.keys("bench/") == []
        results = bench_store._results(tiny, bench, pool)
        assert [row.ratio for row in results if row.system.startswith("Process")] == [1.0, 1.0]
        assert all(row.detail["growth"] > 0 for row in results if row.system.startswith("rmgr"))
        assert {row.what.partition(" ")[0] for row in results} == {"10", "100"}
        uneven = bench_tasks._measure_uneven(tiny, bench, pool, "short ones first", sorted)
        assert [row.system for row in uneven] == ["ProcessPoolExecutor(2).submit", "rmgr TaskQueue.map"]
        assert all(row.ratio is not None and row.ratio >= 1 and row.rate >= row.detail["ideal_s"] for row in uneven)
        late_starter_is_timed_to_its_first_task(bench)


def test_tasks_by_keys_are_measured_beside_a_bare_program_and_the_pool(
    slots: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_store, "two_slots", lambda _plan, **_: nullcontext(slots))
    assert run(["bench", "keyed", "--json", "--repeat", "1", "--scale", "0.001", "--size", "100"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["rows"]
    assert all(row.keys() == ROW and row["rate"] > 0 for row in rows if "processor" not in row["what"])
    rates = [(row["what"].rsplit(", ", 2)[1], row["system"].split(" ")[0]) for row in rows if row["unit"] == "tasks/s"]
    bare = [(name, "a") for name in ("in and out", "in", "out") for _ in range(2)]
    for name in ("in and out", "in", "out", "neither"):
        assert [one for one in rates if one[0] == name] == [(name, "ProcessPoolExecutor(2).map"), *[one for one in bare if one[0] == name],
                                                            (name, "rmgr")]  # fmt: skip
    assert sum(row["what"].endswith("the loop of submit by itself") for row in rows) == 4
    parts = {row["what"].rsplit(" ", 1)[1] for row in rows if row["unit"] == "ms a task"}
    assert parts == {"client", "starter", "spawners", "zookeeper"}
    floor, alone = (row for row in rows if row["unit"] == "ms")
    assert alone["detail"]["above_it_ms"] == pytest.approx(alone["rate"] - floor["rate"])
    assert rows[-1]["unit"] == "MiB PSS"
    assert run(["bench", "keyed", "--size", "65M"]) == 2


def late_starter_is_timed_to_its_first_task(bench: Bench) -> None:
    start_s, wait_s = bench_tasks._join_late(bench, "late1", [0.001] * 20 + [0.4] * 100, 20)
    assert start_s > 0
    assert 0 < wait_s < 10
    assert bench.cluster.process("late1").find() is None


def test_virtual_starters_run_every_task_once_and_their_cost_is_counted(tiny: MeasuringPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_scale, "_TOGETHER", 1)  # two processes of one Starter each
    monkeypatch.setattr(bench_scale, "_SETTLE_S", 0.0)
    found = bench_scale._measured(tiny, 2, 60)
    (used,) = found
    assert used["tasks"] == 60
    assert all(value > 0 for what, value in used.items() if what != "refused")
    monkeypatch.setattr(bench_scale, "losses", lambda _plan: [])
    monkeypatch.setattr(bench_scale, "_measured", lambda _plan, starters, _tasks: found * 3 if starters == 1 else found)
    rows = bench_scale.scale(tiny)
    assert [row.ratio for row in rows if row.setup == "the same run"] == [1.0] * len(bench_scale._COSTS)
    growth = [row.ratio for row in rows if row.system == "2 Starters" and row.unit != "tasks/s"]
    assert growth == [1.0 if any(used[part] for part in parts) else None for _, _, parts in bench_scale._COSTS.values()]
    assert [row.unit for row in rows[-2:]] == ["tasks/s", "tasks/s"]


def test_no_schedule_is_shorter_than_its_longest_task_or_its_share() -> None:
    assert shortest_s([4.0, 1.0, 1.0], 2) == 4.0
    assert shortest_s([1.0, 1.0, 1.0], 2) == 1.5
    assert Ran(3.0, (1.0, 1.0, 1.0)).over_ideal == 2.0


def test_whole_commands_are_measured_beside_a_python_that_does_nothing(
    tiny: MeasuringPlan, slots: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench_commands, "_TIMES", 1)
    monkeypatch.setattr(bench_commands, "two_slots", lambda _plan: nullcontext(slots))
    try:
        base, *ours = bench_commands.commands(tiny)
    finally:  # it leaves the node drained, and work that waits for it
        sh = Shell(tmp_path, slots.cluster.environment())
        sh.ok("cancel", "--state", "INITIAL,RUNNING")
        sh.ok("resume", "n1")
    assert (base.system, base.ratio, base.unit) == ("python -c pass", 1.0, "ms")
    assert [row.system for row in ours] == ["rmgr --help", "rmgr status", "rmgr jobs", "rmgr submit --parsable -- true"]
    assert all(row.detail["cpu_ms"] > base.detail["cpu_ms"] for row in ours)
    # A session begins and ends, and the work is recorded; others of the cluster may write meanwhile.
    at_least = {"rmgr status": 2, "rmgr jobs": 2, "rmgr submit --parsable -- true": 3}
    assert all(row.detail["zookeeper_transactions"] >= at_least.get(row.system, 0) for row in ours)


def test_a_process_is_measured_by_its_pid() -> None:
    before = cost_of(os.getpid())
    assert sum(range(200_000)) > 0
    used = cost_of(os.getpid()) - before
    assert 0 < used.cpu_s < 10
    assert pss_bytes(os.getpid()) > 1 << 20
    gone = os.fork()
    if gone == 0:
        os._exit(0)
    os.waitpid(gone, 0)
    assert (pss_bytes(gone), children_of(gone)) == (0, [])
    with pytest.raises(ProcessLookupError):
        cost_of(gone)


def test_placed_jobs_are_counted_with_what_each_costs(
    zookeeper_parts: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_jobs, "_WARM", 1)
    monkeypatch.setattr(bench_jobs, "_CORES", (2,))
    assert run(["bench", "jobs", "--json", "--repeat", "1", "--scale", "0.001"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["schema"], answer["bench"]) == ("rmgr/1", "jobs")
    rates, times = answer["rows"][:3], answer["rows"][3:]
    parts = ("leader", "zookeeper", "starters", "spawners", "jobs", "client")
    for row in rates:
        assert row["unit"] == "jobs/s"
        assert row["rate"] > 0
        assert row["detail"]["in_all_us"] == pytest.approx(sum(row["detail"][f"{part}_us"] for part in parts))
        assert row["detail"]["transactions"] > 0.05
    assert [row["unit"] for row in times] == ["ms"] * 6
    first, _, last, _, gap, _ = (row["rate"] for row in times)
    assert gap > 0
    assert 0 < first < last
