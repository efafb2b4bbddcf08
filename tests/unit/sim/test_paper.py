"""`rmgr sim paper`: verdicts computed from numbers, exit codes, files written whole or not at all, errors for wrong names."""

from __future__ import annotations

import csv
import json
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from rmgr.cli.main import run
from rmgr.cli.sim.paper import parse_seed_count, told_check, tolerance
from rmgr.errors import RmgrError, UsageError
from rmgr.sched.policy import Stage
from rmgr.sim import papers
from rmgr.sim.engine.driver import simulate
from rmgr.sim.engine.outcome import Setting
from rmgr.sim.models.feitelson96 import feitelson96
from rmgr.sim.papers.paper001 import Paper001Run, measure
from rmgr.sim.papers.report import Figure, Line, PaperCheck, PaperReport, Point, Runs, Study, Table, Within, WithinBounds, spread
from rmgr.sim.runs.parallel import measured
from tests.harness.fair_time import FairTimer

Captured = pytest.CaptureFixture[str]


def a_check(**fields: object) -> PaperCheck:
    return PaperCheck(**{"id": "C9.1", "what": "it holds", "ours": 1, "rule": WithinBounds(above=0), **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({"ours": 1, "paper": 1, "rule": Within()}, "pass"),
        ({"ours": 1.0001, "paper": 1, "rule": Within()}, "fail"),
        ({"ours": 105, "paper": 100, "rule": Within(relative=0.05)}, "pass"),
        ({"ours": 106, "paper": 100, "rule": Within(relative=0.05)}, "fail"),
        ({"ours": {"a": 1}, "paper": {"a": 1, "b": 2}, "rule": Within(absolute=9)}, "fail"),  # a row is missing
        ({"ours": {"a": 0.2, "b": 0.0}, "rule": WithinBounds(above=0)}, "fail"),
        ({"ours": {"a": 0.2, "b": 0.0}, "rule": WithinBounds(at_least=0, below=0.3)}, "pass"),
        ({"ours": {}, "rule": WithinBounds(above=0)}, "fail"),  # nothing measured proves nothing
        ({"ours": float("nan"), "rule": WithinBounds(at_most=1)}, "fail"),
        ({"ours": -1, "required": False}, "reported"),
        ({"ours": -1, "expected": "an experiment"}, "expected"),
        ({"ours": 1, "expected": "an experiment"}, "fail"),  # it holds again: it does not belong to the list
    ],
)
def test_a_verdict_follows_from_the_numbers_and_the_rule(fields: dict[str, object], verdict: str) -> None:
    check = a_check(**fields)
    assert check.verdict == verdict
    assert PaperReport(paper="999", checks=(check,)).passes == (verdict != "fail")


def test_the_json_is_what_the_interface_says() -> None:
    check = a_check(id="C9.2", ours={"a": 2}, paper={"a": 3}, spread={"a": 0.5}, rule=Within(relative=0.1), required=False)
    table = Table(title="Figure 2: SR", columns=("name", "SR"), rows=(("a", 1.5), ("b", None)))
    assert PaperReport(paper="999", checks=(check,), tables=(table,)).document() == {
        "schema": "rmgr/1",
        "paper": "999",
        "checks": [
            {
                "id": "C9.2",
                "what": "it holds",
                "paper": {"a": 3},
                "ours": {"a": 2},
                "spread": {"a": 0.5},
                "tolerance": {"absolute": 0, "relative": 0.1},
                "verdict": "reported",
                "holds": False,
                "experiment": None,
            }
        ],
        "tables": [{"title": "Figure 2: SR", "columns": ["name", "SR"], "rows": [["a", 1.5], ["b", None]]}],
        "notes": [],
    }
    assert (table.file_name, table.csv()) == ("figure-2-sr.csv", "name,SR\na,1.5\nb,\n")
    with pytest.raises(ValueError, match="2 columns, and a row of 1"):
        Table(title="t", columns=("a", "b"), rows=((1,),))


def test_small_things() -> None:
    assert spread([3.0]) == 0
    assert spread([1.0, 3.0]) == pytest.approx(2**0.5)
    rules = (WithinBounds(at_least=1, below=3), Within(), Within(absolute=2, relative=0.05))
    assert [tolerance(rule.tolerance()) for rule in rules] == [">= 1 and < 3", "exactly", "+- 2 + 5 %"]
    assert (parse_seed_count("3"), parse_seed_count("3-4,9"), parse_seed_count("7-7")) == ((1, 2, 3), (3, 4, 9), (7,))
    for wrong in ("0", "1001", "-1", "a", ""):
        with pytest.raises(UsageError):
            parse_seed_count(wrong)


def squared(cell: int) -> int:
    return cell * cell


@pytest.mark.parametrize("processes", [1, 2])
def test_every_cell_is_measured_once_in_any_number_of_processes(processes: int) -> None:
    told: list[tuple[int, int]] = []
    assert measured([3, 1, 2, 3, 1], squared, processes=processes, on_progress=lambda *at: told.append(at)) == {3: 9, 1: 1, 2: 4}
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]


class Stubborn:
    """A policy that never ends, as a pass sees it: what leaves the process must go through it."""

    name = "stubborn"

    def plan(self, draft: object, causes: object) -> None:
        while True:
            pass


def endless() -> int:
    workload = feitelson96(10, seed=1)
    while True:
        with suppress(RmgrError):  # what a pass takes for a fault of the policy ends only this run
            simulate(workload, Setting(nodes=1024, pipeline=(Stage(Stubborn()),), policy="stubborn"))


def test_processes_end_in_the_middle_of_a_pass() -> None:
    interrupted = 0.0

    def fail(done: int, _total: int) -> None:
        nonlocal interrupted
        if done:
            while len(children()) < 2:
                assert timer.elapsed_s < 60
            interrupted = timer.elapsed_s
            raise KeyboardInterrupt

    def children() -> list[psutil.Process]:
        return [child for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())]

    with FairTimer() as timer, pytest.raises(KeyboardInterrupt):
        measured([1, 2, 3], answers_once, processes=2, on_progress=fail)
    assert timer.elapsed_s - interrupted < 4  # it unwound; a process that does not is killed after 5 s
    assert children() == []


def answers_once(cell: int) -> int:
    """The first cell is answered, so that progress is told; the others never."""
    return 0 if cell == 1 else endless()


# -- the command ------------------------------------------------------------------------------------------------------------------


def a_paper(monkeypatch: pytest.MonkeyPatch, ours: float) -> None:
    """Paper 999: one check that ours is above 0, one table, one figure."""
    figure = Figure(title="Figure 1", x_label="x", y_label="y", lines=(Line("a", (Point(1, 2, 1, 3), Point(2, 3, 3, 3))),))

    class Squares(Runs[int, int]):
        def __init__(self, seeds: Sequence[int], *, quick: bool = False) -> None:
            super().__init__(seeds, 0, squared, quick=quick)

    def checks(runs: Squares) -> Iterator[PaperCheck]:
        assert all(runs[seed] in {0, seed * seed} for seed in runs.seeds)
        yield a_check(ours=ours)

    def tables(runs: Squares) -> Iterator[Table]:
        if not runs.quick:
            yield Table(title="Table 1", columns=("seed", "square"), rows=tuple((seed, runs[seed]) for seed in runs.seeds))

    def figures(runs: Squares) -> Iterator[Figure]:
        if not runs.quick:
            yield figure

    module = types.ModuleType("paper999")
    module.STUDY = Study(  # type: ignore[attr-defined]
        paper="999", runs=Squares, seeds=3, quick_seeds=2, checks={"C9.1": checks}, tables=tables, figures=figures, notes=("so",)
    )
    monkeypatch.setitem(sys.modules, "paper999", module)
    monkeypatch.setattr(papers, "PAPERS", {**papers.PAPERS, "999": ("paper999", "a test")})


def test_a_paper_that_passes_writes_everything_and_ends_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    a_paper(monkeypatch, 0.25)
    assert run(["sim", "paper", "999", "--jobs", "1", "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr()
    assert "C9.1   pass  it holds" in told.out
    assert "1 pass, 0 fail, 0 reported; 3 runs, seeds 1-3" in told.out
    assert json.loads((tmp_path / "out" / "report.json").read_text())["paper"] == "999"
    assert list(csv.reader((tmp_path / "out" / "table-1.csv").open())) == [["seed", "square"], ["1", "1"], ["2", "4"], ["3", "9"]]
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["seeds"] == [1, 2, 3]
    assert (tmp_path / "out" / "figure-1.png").exists() or "matplotlib is missing" in told.err

    assert run(["sim", "paper", "999", "--out", str(tmp_path / "out")]) == 2  # never overwritten
    assert "exists already" in capsys.readouterr().err


def test_what_is_listed_as_not_holding_is_told_with_its_experiment_and_ties_are_counted() -> None:
    lines = list(told_check(a_check(ours=-1, expected="table 1", ties={"": 1}, decided={"": 2})))
    assert lines[:2] == ["C9.1   expected (does not hold)  it holds", "       listed as not holding: table 1"]
    assert lines[-1].split() == ["-1", "2", "1", ">", "0"]
    again = a_check(ours=1, expected="table 1")
    assert (again.verdict, next(iter(told_check(again)))) == ("fail", "C9.1   fail (holds)  it holds")


def test_a_required_check_that_fails_ends_with_1_and_wrong_names_with_2(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    a_paper(monkeypatch, -0.25)
    assert run(["sim", "paper", "999", "--check", "c9.1", "--seeds", "2-3", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [(check["id"], check["verdict"]) for check in document["checks"]] == [("C9.1", "fail")]
    assert document["tables"] == []
    for words, told in (
        (["998"], "did you mean 999?"),
        (["paper_001"], "did you mean 001?"),
        (["001", "--check", "C1.11"], "did you mean C1.1?"),
        (["999", "--seeds", "x"], "not a list of seeds"),
    ):
        assert run(["sim", "paper", *words]) == 2
        assert told in capsys.readouterr().err


def test_all_papers_in_one_table_and_in_one_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    a_paper(monkeypatch, 0.25)
    monkeypatch.setattr(papers, "PAPERS", {"999": papers.PAPERS["999"]})
    out = tmp_path / "papers"
    assert run(["sim", "paper", "all", "--jobs", "1", "--out", str(out)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].split() == ["paper", "checks", "pass", "fail", "expected", "reported:", "hold", "do", "not", "runs", "time"]
    assert [line.split()[:8] for line in told[1:3]] == [[name, "1", "1", "0", "0", "0", "0", "3"] for name in ("999", "all")]
    assert json.loads((out / "999" / "report.json").read_text())["paper"] == "999"
    pytest.importorskip("matplotlib")
    assert run(["sim", "plot", str(out)]) == 0
    assert (out / "plots" / "paper999-figure-1.png").exists()
    capsys.readouterr()

    a_paper(monkeypatch, -0.25)
    monkeypatch.setattr(papers, "PAPERS", {"999": papers.PAPERS["999"]})
    assert run(["sim", "paper", "all", "--quick", "--jobs", "1"]) == 1
    assert "C9.1   fail      it holds" in capsys.readouterr().out
    assert run(["sim", "paper", "all", "--quick", "--json"]) == 1
    assert [each["paper"] for each in json.loads(capsys.readouterr().out)["papers"]] == ["999"]
    assert run(["sim", "paper", "all", "--check", "C9.1"]) == 2
    assert "one paper" in capsys.readouterr().err


def test_sim_run_and_sim_sweep_play_the_grid_of_the_paper(tmp_path: Path, capsys: Captured) -> None:
    words = ["feitelson96", "--count", "700", "--sites", "10", "--tick", "10m", "--json"]
    found = measure(Paper001Run(algorithm="FCFS/FF+mig", interval=500, seed=4, jobs=700))
    assert run(["sim", "run", *words, "--policy", "migration", "--seed", "4", "--validate"]) == 0
    single = json.loads(capsys.readouterr().out)
    assert found.migrations > 0
    assert (single["summary"]["migrations"], single["summary"]["utilisation"]) == (found.migrations, found.utilisation)
    assert {key: single["experiment"][key] for key in ("sites", "delay_seconds", "penalty_seconds")} == {
        "sites": 10,
        "delay_seconds": 600,
        "penalty_seconds": 60,
    }
    sweep = ["sim", "sweep", *words, "--policy", "first_fit,migration", "--seeds", "4", "--out", str(tmp_path / "grid")]
    assert run(sweep) == 0
    rows = {row["policy"]: row for row in json.loads(capsys.readouterr().out)["runs"]}
    assert rows["migration"]["utilisation"] == found.utilisation
    assert rows["first_fit"]["migrations"] == 0
    for wrong, told in ((["--cores", "2"], "one core"), (["--nodes", "5"], "cannot stand in 10 sites")):
        assert run(["sim", "run", *words[:-1], "--policy", "fcfs", *wrong]) == 2
        assert told in capsys.readouterr().err
