"""`rmgr sim run` and `sweep`: files and JSON as in cli.md section 9, the same bytes twice, errors that leave no files."""

from __future__ import annotations

import csv
import hashlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rmgr.cli.main import run
from rmgr.cli.sim.runs import parse_seeds
from rmgr.errors import UsageError
from tests.harness.waiting import eventually
from tests.places import EXTRACTS

TRACE = str(EXTRACTS / "kth_first_2000.swf.gz")
SUMMARY = {
    "makespan", "mean_waiting_time", "max_waiting_time", "mean_turnaround_time", "mean_slowdown", "mean_bounded_slowdown", "utilisation",
    "jobs", "passes", "wall_seconds", "jobs_per_second",
}

Captured = pytest.CaptureFixture[str]


def test_two_runs_give_the_same_bytes(tmp_path: Path, capsys: Captured) -> None:
    for name in ("a", "b"):
        assert run(["sim", "run", TRACE, "--policy", "first_fit", "--out", str(tmp_path / name), "--validate", "--seed", "7"]) == 0
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    assert sorted(digests(tmp_path / "a")) == ["jobs.csv", "manifest.json", "schedule.json"]
    told = capsys.readouterr().out
    assert "kth_first_2000 under first_fit on 100 processors" in told
    assert "Lars Malinowsky" in told
    assert f"again         rmgr sim run {TRACE} --policy first_fit" in told


def test_json_has_the_summary_that_the_file_has(tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "out"
    assert run(["sim", "run", TRACE, "--policy", "fcfs", "--count", "300", "--out", str(out), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "rmgr/1"
    assert set(answer["summary"]) >= SUMMARY
    written = json.loads((out / "schedule.json").read_text())
    measured = {key: answer["summary"][key] for key in ("wall_seconds", "jobs_per_second")}
    assert written | measured == answer["summary"]
    assert answer["summary"]["jobs"] == 300
    assert len((out / "jobs.csv").read_text().splitlines()) == 301
    assert answer["experiment"]["nodes"] == 100


def test_arrivals_are_stretched_to_the_load_that_was_asked_for(capsys: Captured) -> None:
    assert run(["sim", "run", TRACE, "--policy", "fcfs", "--load", ".5", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["workload"]["offered_load"] == pytest.approx(0.5, rel=1e-4)


def test_passes_only_at_ticks(tmp_path: Path, capsys: Captured) -> None:
    assert run(["sim", "run", TRACE, "--policy", "easy", "--count", "200", "--tick", "10m", "--out", str(tmp_path / "o")]) == 0
    capsys.readouterr()
    rows = [line.split(",") for line in (tmp_path / "o" / "jobs.csv").read_text().splitlines()[1:]]
    assert {int(row[8]) % 600 for row in rows} == {0}


@pytest.mark.parametrize(
    ("words", "code", "message", "hint"),
    [
        (["--policy", "esay"], 2, "esay", "easy"),
        (["--policy", "easy", "--param", "odrer=sjf"], 2, "odrer", "order"),
        (["--policy", "easy", "--param", "order"], 2, "NAME=VALUE", ""),
        (["--policy", "easy", "--load", "0"], 2, "'0' is not a factor", "above 0"),
        (["--policy", "easy", "--load", ".7", "--interarrival", ".9"], 2, "both stretch", ""),
        (["--policy", "easy", "--nodes", "0"], 2, "0", ""),
        (["--policy", "easy", "--cores", "7"], 2, "100 processors are no whole number of nodes with 7 cores", "--nodes"),
        (["--policy", "easy", "--out", "{existing}"], 2, "exists already", "never mixed"),
        (["--policy", "easy", "--out", "{existing}/no/where"], 2, "is no directory", "mkdir"),
    ],
)
def test_errors_name_what_is_wrong_and_what_to_do(
    words: list[str], code: int, message: str, hint: str, tmp_path: Path, capsys: Captured
) -> None:
    words = [word.format(existing=tmp_path) for word in words]
    assert run(["sim", "run", TRACE, *words, "--json"]) == code
    error = json.loads(capsys.readouterr().out)["error"]
    assert message in error["message"]
    assert hint in f"{error['message']} {error['hint']}"
    assert list(tmp_path.iterdir()) == []


FULL = """
import resource, sys
from rmgr.cli.main import run
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.parametrize("option", ["--out", "--record"])
def test_on_a_full_disk_nothing_half_written_passes_for_a_result(option: str, tmp_path: Path) -> None:
    words = ["sim", "run", TRACE, "--policy", "fcfs", option, str(tmp_path / "place")]
    found = subprocess.run([sys.executable, "-c", FULL, *words], capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 1
    assert "could not be written: the disk is full" in found.stderr
    assert "Traceback" not in found.stderr
    assert list(tmp_path.iterdir()) == []


def test_events_on_the_command_line(tmp_path: Path, capsys: Captured) -> None:
    """Failures, a drain and a fail-over: the same bytes twice, what happened in the summary, spells of jobs that ran more than once."""
    events = tmp_path / "events.jsonl"
    events.write_text('{"at": "1d", "event": "drain", "nodes": "0-9"}\n{"at": "2d", "event": "fail_over", "for": "1h"}\n')
    words = [
        "sim",
        "run",
        TRACE,
        "--policy",
        "easy",
        "--count",
        "300",
        "--events",
        str(events),
        "--mtbf",
        "60d",
        "--mttr",
        "6h",
        "--validate",
    ]
    for name in ("a", "b"):
        assert run([*words, "--out", str(tmp_path / name)]) == 0
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    assert "spells.csv" in digests(tmp_path / "a")
    assert "runs lost with their nodes" in capsys.readouterr().out
    events.write_text('{"at": 1, "event": "drain", "nodes": "0-9"}\n{"at": 1, "event": "drain", "node": "0-9"}\n')
    assert run([*words, "--out", str(tmp_path / "c")]) == 2
    assert "line 2, field nodes: it is missing" in capsys.readouterr().err
    assert run(["sim", "run", TRACE, "--policy", "easy", "--mtbf", "1d"]) == 2
    assert "--mttr" in capsys.readouterr().err


def test_a_damaged_trace_leaves_no_results(tmp_path: Path, capsys: Captured) -> None:
    short = tmp_path / "short.swf.gz"
    short.write_bytes(Path(TRACE).read_bytes()[:9000])
    assert run(["sim", "run", str(short), "--policy", "fcfs", "--out", str(tmp_path / "out")]) == 2
    assert "ends in the middle" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_misspelt_model_is_told_by_its_nearest_name(capsys: Captured) -> None:
    assert run(["sim", "run", "Lublin89", "--policy", "fcfs"]) == 2
    assert "no model and no file is called 'Lublin89'; did you mean lublin99?" in capsys.readouterr().err


def test_a_queue_of_the_policy_file_that_no_job_is_in_is_told(tmp_path: Path, capsys: Captured) -> None:
    trace, pipeline = tmp_path / "two.swf", tmp_path / "two.toml"
    trace.write_text("; MaxProcs: 4\n" + "".join(f"{at} {at} 0 9 1 -1 -1 1 9 -1 1 1 1 1 {at} -1 -1 -1\n" for at in (1, 2)))
    text = '[[stage]]\npolicy = "fcfs"\n[[partition]]\nname = "main"\n[[partition]]\nname = "debug"\nqueues = ["NAME"]\n'
    text += "".join(f'[[simulated.partition]]\nname = "{name}"\nnodes = 2\n' for name in ("main", "debug"))
    for queue, told in (("2", "no job of two is in queue 2 of"), ("q2", "")):
        pipeline.write_text(text.replace("NAME", queue))
        assert run(["sim", "run", str(trace), "--policy", str(pipeline)]) == 0
        error = capsys.readouterr().err
        assert told in error
        assert ("the queues of its jobs: q1, q2" in error) == bool(told)


@pytest.mark.parametrize("more", [["--json"], []])
def test_a_full_disk_behind_stdout_is_told_without_a_traceback(more: list[str]) -> None:
    words = [sys.executable, "-m", "rmgr.cli.main", "sim", "run", TRACE, "--policy", "fcfs", "--count", "5", *more]
    with Path("/dev/full").open("w") as full:
        found = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert found.returncode == 1
    assert "No space left on device" in found.stderr
    assert "Traceback" not in found.stderr


WORDS = ["sim", "sweep", "--policy", "fcfs,easy", "--load", ".7", "--seeds", "1-2", "lublin99", "--count", "1500", "--jobs", "2"]


def digests(directory: Path) -> dict[str, str]:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_sweep_that_was_interrupted_goes_on_to_the_same_bytes(tmp_path: Path, capsys: Captured) -> None:
    for attempt in range(10):
        out = tmp_path / f"stopped{attempt}"
        words = [sys.executable, "-m", "rmgr.cli.main", *WORDS, "--out", str(out)]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            eventually(lambda out=out, process=process: list(out.glob("runs/[!.]*")) or process.poll() is not None)
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=120)
        if process.returncode != 0:  # else it was through before it heard of it: we were held up
            break
    assert process.returncode == 130, told
    assert "the same command goes on" in told
    assert "Traceback" not in told
    kept = digests(out)
    assert "results.csv" not in kept
    assert not [name for name in kept if "partial" in name]
    assert run([*WORDS, "--out", str(out)]) == 0
    assert run([*WORDS, "--out", str(tmp_path / "whole")]) == 0
    capsys.readouterr()
    assert digests(out) == digests(tmp_path / "whole")
    assert kept.items() <= digests(out).items()

    rows = list(csv.DictReader((out / "results.csv").read_text().splitlines()))
    assert [row["name"] for row in rows[:3]] == ["fcfs-load0.7-seed1", "fcfs-load0.7-seed2", "easy-load0.7-seed1"]
    assert len(rows) == 4
    submits = [(out / "runs" / f"{policy}-load0.7-seed1" / "jobs.csv").read_text().splitlines() for policy in ("fcfs", "easy")]
    asked = [[line.split(",")[:6] for line in lines] for lines in submits]
    assert asked[0] == asked[1]  # common random numbers

    # It is finished: again, it only reads. Another sweep is refused and changes nothing.
    before = digests(out)
    assert run([*WORDS, "--out", str(out), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 4
    assert run([*WORDS, "--seeds", "1-3", "--out", str(out)]) == 2
    assert "holds another sweep: its runs differ" in capsys.readouterr().err
    assert digests(out) == before


LAZY = """
from dataclasses import dataclass
from typing import ClassVar

@dataclass(frozen=True)
class Lazy:
    name: ClassVar[str] = "lazy"
    def plan(self, draft, causes): ...
"""


def test_a_failed_run_ends_the_sweep_and_says_which(tmp_path: Path, capsys: Captured) -> None:
    lazy = tmp_path / "lazy.py"
    lazy.write_text(LAZY)
    assert run(["sim", "sweep", "--policy", str(lazy), "lublin99", "--count", "5", "--out", str(tmp_path / "out")]) == 1
    told = capsys.readouterr().err
    assert "run lazy.py-seed0" in told
    assert "leaves 5 jobs waiting for ever" in told
    assert not (tmp_path / "out" / "results.csv").exists()


def test_a_wrong_name_or_a_directory_of_something_else_is_told_before_anything_runs(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "bad.swf").write_text("; MaxProcs: 4\n1 0 -1 x 1 -1 -1 1 5 -1 1 1 1 -1 -1 -1 -1 -1\n")
    words = ["sim", "sweep", "--policy", "fcfs", str(tmp_path / "mine" / "bad.swf"), "--out", str(tmp_path / "out")]
    assert run(words) == 2
    assert "line 2, field 4 (run time)" in capsys.readouterr().err
    for words, told in (
        (["--policy", "fcfs,esay", "--out", str(tmp_path / "out")], "esay"),
        (["--policy", "fcfs", "--out", str(tmp_path / "mine")], "is no sweep"),
        (["--policy", "fcfs,fcfs", "--out", str(tmp_path / "out")], "stands in it twice"),
        (["--policy", "fcfs", "--load", "a", "--out", str(tmp_path / "out")], "not a factor"),
    ):
        assert run(["sim", "sweep", "lublin99", *words]) == 2
        assert told in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [tmp_path / "mine"]


def test_seeds_are_lists_and_ranges() -> None:
    assert parse_seeds("1-3,7") == (1, 2, 3, 7)
    for wrong in ("", "x", "3-1", "1-", "-1", "0-999999"):
        with pytest.raises(UsageError):
            parse_seeds(wrong)
