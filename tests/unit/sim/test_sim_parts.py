"""The simulator's parts one by one: virtual time, streams, measures, checks of a finished run, files."""

from __future__ import annotations

import csv
import errno
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from rmgr.errors import RmgrError, UsageError
from rmgr.model.states import State
from rmgr.sim.engine.machine import Machine
from rmgr.sim.engine.outcome import JobOutcome, Result, Spell
from rmgr.sim.engine.validate import check, violations
from rmgr.sim.engine.world import Kernel, Rank
from rmgr.sim.runs import output
from rmgr.sim.runs.output import seconds, summary
from rmgr.sim.workload.jobs import SECOND, Workload, WorkloadJob, stream


def a_job(number: int, submit: int, run: int, processors: int, estimate: int | None = None) -> WorkloadJob:
    return WorkloadJob(
        number=number, submit_us=submit * SECOND, run_us=run * SECOND, estimate_us=(estimate or run) * SECOND, processors=processors,
        processes=processors,
    )


def ran(job: WorkloadJob, start: int, *cores: tuple[int, int]) -> JobOutcome:
    return JobOutcome(job=job, spells=(Spell(start * SECOND, start * SECOND + job.run_us, cores),))


# Four processors: 1 and 2 side by side, 3 waits for both, 4 is alone at the end.
JOBS = (a_job(1, 0, 10, 2), a_job(2, 0, 5, 2), a_job(3, 1, 20, 4, 60), a_job(4, 40, 1, 1))
OUTCOMES = (ran(JOBS[0], 0, (0, 1)), ran(JOBS[1], 0, (2, 3)), ran(JOBS[2], 10, (0, 3)), ran(JOBS[3], 40, (3, 3)))
WORKLOAD = Workload(name="four", jobs=JOBS, processors=4)
RESULT = Result(outcomes=OUTCOMES, processors=4, policy="fcfs", seed=0, passes=5, wall_seconds=0.5)


def test_events_of_one_instant_come_in_rank_then_serial_whatever_the_order_they_were_put_in() -> None:
    events = [(5, Rank.ARRIVAL, 2), (5, Rank.END, 9), (5, Rank.TIMER, 0), (5, Rank.ARRIVAL, 1), (3, Rank.TIMER, 4), (5, Rank.NODE, 3)]
    seen = []
    for order in (events, events[::-1]):
        kernel: Kernel[str] = Kernel()
        for time_us, rank, serial in order:
            kernel.put(time_us, rank, serial, "")
        taken = []
        while kernel.advance():
            while event := kernel.next():
                assert event[0] == kernel.now_us
                taken.append(event[:3])
        seen.append(taken)
    assert seen[0] == seen[1] == sorted(events)


def test_the_past_takes_no_events() -> None:
    kernel: Kernel[None] = Kernel()
    kernel.put(7, Rank.END, 1, None)
    assert kernel.advance()
    with pytest.raises(ValueError, match="before now"):
        kernel.put(6, Rank.END, 2, None)


def test_streams_of_one_seed_share_nothing_and_are_the_same_everywhere() -> None:
    assert stream(1, "sizes").random() == stream(1, "sizes").random() == 0.8978753182915887
    assert len({stream(seed, purpose).random() for seed in (1, 2) for purpose in ("sizes", "arrivals")}) == 4


def test_measures_of_a_run_worked_out_by_hand() -> None:
    found = summary(RESULT)
    assert found == {
        "makespan": 41,
        "mean_waiting_time": 2.25,
        "median_waiting_time": 0,
        "max_waiting_time": 9,
        "mean_turnaround_time": (10 + 5 + 29 + 1) / 4,
        "mean_slowdown": (1 + 1 + 29 / 20 + 1) / 4,
        "mean_bounded_slowdown": (1 + 1 + 29 / 20 + 1) / 4,
        "utilisation": (20 + 10 + 80 + 1) / (4 * 41),
        "jobs_waiting_zero": 3,
        "jobs": 4,
        "jobs_rejected": 0,
        "jobs_failed": 0,
        "jobs_cancelled": 0,
        "migrations": 0,
        "suspensions": 0,
        "preemptions": 0,
        "lost_to_nodes": 0,
        "passes": 5,
        "wall_seconds": 0.5,
        "jobs_per_second": 8.0,
    }


def test_whole_seconds_stay_integers() -> None:
    assert (seconds(3 * SECOND), seconds(2_500_000)) == (3, 2.5)
    assert isinstance(seconds(3 * SECOND), int)


def test_a_sound_run_has_no_violations() -> None:
    check(RESULT, WORKLOAD)


@pytest.mark.parametrize(
    ("at", "wrong", "told"),
    [
        (2, ran(JOBS[2], 9, (0, 3)), "core 0 is held by jobs 1 and 3 at 9000000 us"),
        (2, ran(JOBS[2], 0, (0, 3)), "job 3 starts at 0 us, before its submit"),
        (3, ran(JOBS[3], 40, (4, 4)), "job 4 held cores [(4, 4)] of a machine of 4"),
        (3, ran(JOBS[3], 40, (0, 1)), "job 4 asked for 1 processors and held 2"),
        (3, JobOutcome(job=JOBS[3], spells=()), "job 4 never ran"),
        (3, JobOutcome(job=JOBS[3], spells=(Spell(40 * SECOND, 42 * SECOND, ((0, 0),)),)), "completed after 2000000 us"),
        (3, replace(OUTCOMES[3], state=State.RUNNING), "job 4 has not ended"),
        (1, OUTCOMES[0], "the outcomes are not theirs"),
    ],
)
def test_every_kind_of_wrong_schedule_is_found(at: int, wrong: JobOutcome, told: str) -> None:
    outcomes = (*OUTCOMES[:at], wrong, *OUTCOMES[at + 1 :])
    found = violations(replace(RESULT, outcomes=outcomes), WORKLOAD)
    assert any(told in sentence for sentence in found), found
    with pytest.raises(RmgrError, match="not valid"):
        check(replace(RESULT, outcomes=outcomes), WORKLOAD)


def test_files_have_the_columns_of_the_contract_and_integers_without_a_point(tmp_path: Path) -> None:
    output.write_run(tmp_path / "out", RESULT, workload_name="four")
    rows = list(csv.DictReader((tmp_path / "out" / "jobs.csv").read_text().splitlines()))
    assert rows[2] == {
        "job_id": "3",
        "workload_name": "four",
        "profile": "3",
        "submission_time": "1",
        "requested_number_of_resources": "4",
        "requested_time": "60",
        "success": "1",
        "final_state": "COMPLETED_SUCCESSFULLY",
        "starting_time": "10",
        "execution_time": "20",
        "finish_time": "30",
        "waiting_time": "9",
        "turnaround_time": "29",
        "stretch": "1.45",
        "allocated_resources": "0-3",
    }
    assert [row["allocated_resources"] for row in rows] == ["0-1", "2-3", "0-3", "3"]
    written = json.loads((tmp_path / "out" / "schedule.json").read_text())
    assert written | {"wall_seconds": 0.5, "jobs_per_second": 8.0} == summary(RESULT)
    assert written["wall_seconds"] is None  # never the same twice, so not in a file that must be


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    digests = []
    for name, wall in (("a", 0.5), ("b", 0.7)):
        output.write_run(tmp_path / name, replace(RESULT, wall_seconds=wall), workload_name="four")
        digests.append([hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted((tmp_path / name).iterdir())])
    assert digests[0] == digests[1]


def test_an_existing_name_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match="exists already"):
        output.write_run(tmp_path / "out", RESULT, workload_name="four")
    assert list((tmp_path / "out").iterdir()) == []
    with pytest.raises(UsageError, match="is no directory"):
        output.refuse_existing(tmp_path / "missing" / "out")


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object, **_more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(output, "write_json", full)
    with pytest.raises(RmgrError, match="the disk is full"):
        output.write_run(tmp_path / "out", RESULT, workload_name="four")
    assert list(tmp_path.iterdir()) == []


def test_ranges_are_written_as_people_read_them() -> None:
    assert output.ranges_text(((0, 3), (7, 7), (9, 10))) == "0-3 7 9-10"


def test_cores_are_handed_out_lowest_first_and_come_back() -> None:
    machine = Machine(nodes=3, cores=4)
    assert machine.processors == 12
    first = machine.take(((0, 0, 3),), 1)  # cores 0-2 of node 0
    second = machine.take(((0, 1, 1),), 1)  # one core each of nodes 0 and 1
    assert (first, second) == (((0, 2),), ((3, 4),))
    assert machine.take(((2, 2, 2),), 2) == ((8, 11),)  # the whole of node 2
    machine.give(first)
    assert machine.take(((0, 0, 1), (1, 1, 3)), 1) == ((0, 0), (5, 7))
    machine.give(second)
    assert machine.take(((0, 0, 3),), 1) == ((1, 3),)
    with pytest.raises(ValueError, match="node 2 has 0 free cores, not 1"):
        machine.take(((2, 2, 1),), 1)
    with pytest.raises(ValueError, match="node 0 is not free"):
        machine.take(((0, 0, 4),), 1)


def test_a_node_of_one_core_is_its_own_number() -> None:
    assert Machine(nodes=10).take(((0, 3, 1), (4, 4, 1), (7, 7, 1)), 1) == ((0, 4), (7, 7))


@pytest.mark.parametrize(("nodes", "cores"), [(0, 1), (1, 0), (-5, 4), (10**9, 1), (1, 10**9)])
def test_a_machine_that_nobody_has_is_refused(nodes: int, cores: int) -> None:
    with pytest.raises(UsageError, match="a machine cannot have"):
        Machine(nodes, cores)
