"""`rmgr bench gang` reads stamps rightly and prints rows of the right shape, at a tiny size on a real cluster."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rmgr.bench import gang as bench_gang
from rmgr.bench.load import turns
from rmgr.bench.reality import Played
from rmgr.cli.main import run
from rmgr.errors import Unavailable
from tests.harness.fair_time import undisturbed
from tests.harness.waiting import eventually

MS = 1_000_000


def leave(directory: Path, name: str, *stamps_ms: float) -> None:
    (directory / name).write_bytes(b"".join(turns.WORD.pack(round(at * MS)) for at in stamps_ms) + bytes(64))


def test_an_offset_is_the_first_stamp_of_a_turn_less_the_boundary(tmp_path: Path) -> None:
    # slots of 100 ms from 1000 ms on; turns of job 0 at 1000, 1200, ..., of job 1 between them; n2 is 3 ms behind, and once early
    leave(tmp_path, "job0.n1", 1001, 1201, 1260, 1401, 1601)  # at 1260 it had waited for a processor: no turn
    leave(tmp_path, "job0.n2", 1004, 1204, 1398, 1604)
    leave(tmp_path, "job1.n1", 1101, 1302, 1502, 1702)
    leave(tmp_path, "job1.n2", 1104, 1305, 1505, 1704)
    found = bench_gang.switches_of(tmp_path, 1000 * MS, 100 * MS)
    assert found.offsets == pytest.approx([1, 4, 2, 5, 1, -2, 2, 5])
    assert found.spreads == pytest.approx([3, 3, 3, 3])


def test_stamps_of_too_few_turns_are_no_figure(tmp_path: Path) -> None:
    leave(tmp_path, "job0.n1", 1001, 1201)
    with pytest.raises(Unavailable, match="no rank had three turns"):
        bench_gang.switches_of(tmp_path, 1000 * MS, 100 * MS)


def test_a_bare_loop_that_stood_still_takes_its_turns_afterwards(tmp_path: Path) -> None:
    origin_ns, quantum_ns, slots = turns.now_ns() + 500 * MS, 100 * MS, 8
    words = [sys.executable, turns.__file__, "loop", str(tmp_path), str(quantum_ns), str(origin_ns), str(slots), "n0"]
    with subprocess.Popen(words, start_new_session=True) as loop:
        eventually(lambda: (tmp_path / "job1.n0").exists() and bench_gang.stretches(tmp_path / "job1.n0"), "both have had a turn")
        loop.send_signal(signal.SIGSTOP)
        time.sleep(slots * quantum_ns / 1e9)  # all of its slots go by
        loop.send_signal(signal.SIGCONT)
        assert loop.wait(60) == 0
    assert bench_gang.switches_of(tmp_path, origin_ns, quantum_ns).offsets


def test_use_and_shares_are_those_of_the_jobs_that_were_played() -> None:
    jobs = bench_gang.coming(24, 8)
    asked = sum(job.processes * job.run_us for job in jobs.jobs[:-1]) / 8
    assert asked / jobs.jobs[-1].submit_us == pytest.approx(bench_gang.LOAD, abs=0.001)
    ends = [Played(number=job.number, start_us=0, end_us=10_000_000 + job.number, attempts=1) for job in jobs.jobs]
    used = sum(job.processes * job.run_us for job in jobs.jobs) / 8
    assert bench_gang.utilisation(jobs, ends) == pytest.approx(used / 10_000_024)
    live, virtual = ([Played(number=1, start_us=0, end_us=end, attempts=1) for end in stays] for stays in ((1000, 2500), (2000, 1000)))
    assert bench_gang.farthest(live, virtual) == pytest.approx(0.2)


@pytest.mark.usefixtures("guests")
@undisturbed
def test_jobs_that_share_cores_are_measured_beside_bare_loops(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench_gang, "_NODES", 2)
    monkeypatch.setattr(bench_gang, "_SIZES", (2,))
    monkeypatch.setattr(bench_gang, "_SLOTS", {0.2: 8})
    monkeypatch.setattr(bench_gang, "_COUNTED", (2, 0.2))
    monkeypatch.setattr(bench_gang, "_TURNING_S", 2.0)
    monkeypatch.setattr(bench_gang, "_IDLE_S", 2.0)
    monkeypatch.setattr(bench_gang, "_LEAVES", 16)
    monkeypatch.setattr(bench_gang, "_JOBS", 20)
    monkeypatch.setattr(bench_gang, "_MODEL_JOBS", 3)
    monkeypatch.setattr(bench_gang, "_EQUALS", 2)
    capsys.readouterr()  # what a disturbed attempt has said
    assert run(["bench", "gang", "--json", "--repeat", "1"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["schema"], answer["bench"]) == ("rmgr/1", "gang")
    rows = answer["rows"]
    switches = [row for row in rows if "boundary" in row["what"]]
    assert [row["system"] for row in switches] == ["a bare loop a node", "rmgr"] * 2
    assert all(row["rate"] > 0 and row["detail"]["boundaries"] >= 2 for row in switches)
    assert [(row["system"], row["unit"]) for row in rows[4:]] == [
        ("an idle cluster", "a second"), ("rmgr", "a second"), ("rmgr", "ms"), ("one after the other", "s"), ("rmgr", "s"),
        ("rmgr", "a second"), ("plain Linux", "a second"), ("plain Linux", "a second"), ("rmgr", "a second"), ("rmgr", "a second"),
        ("rmgr", "s"), ("rmgr", "s"), ("the simulator", ""), ("rmgr", ""), ("rmgr", "%"), ("rmgr", "ms"), ("rmgr", "ms"),
    ]  # fmt: skip
    assert all(row["rate"] > 0 for row in rows[4:])
