"""`rmgr sim run`: files and JSON as cli.md section 9 has them, the same bytes twice, and clear errors that leave nothing behind."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rmgr.cli.main import run
from tests.places import EXTRACTS

TRACE = str(EXTRACTS / "kth_first_2000.swf.gz")
SUMMARY = {
    "makespan",
    "mean_waiting_time",
    "max_waiting_time",
    "mean_turnaround_time",
    "mean_slowdown",
    "mean_bounded_slowdown",
    "utilisation",
    "jobs",
    "passes",
    "wall_seconds",
    "jobs_per_second",
}

Captured = pytest.CaptureFixture[str]


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


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
