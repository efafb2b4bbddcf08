"""`rmgr sim plot`: contents of the pictures, the same bytes twice, and clear errors that leave no files."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from rmgr.cli.main import run
from rmgr.errors import UsageError
from rmgr.model.states import State
from rmgr.sim.engine.outcome import JobOutcome, Parting, Result, Spell
from rmgr.sim.papers import report
from rmgr.sim.plots import pictures
from rmgr.sim.plots.canvas import Figure, PolyCollection, encoded, moment, styled, unit_for
from rmgr.sim.plots.curves import (
    Steps,
    bin_length,
    binned,
    busy,
    compare_runs,
    compare_sweep,
    cut,
    distribution,
    load,
    utilisation,
    waiting,
    waits,
)
from rmgr.sim.plots.gantt import Leaves, Slots, gantt, matrix_of_live, occupancy, reaches
from rmgr.sim.plots.pictures import draw_table, is_drawable
from rmgr.sim.plots.reading import QueueTree, TimeWindow, labels_of, read_live, read_run, read_sweep
from rmgr.sim.runs.output import write_run
from rmgr.sim.workload.jobs import SECOND, WorkloadJob

Captured = pytest.CaptureFixture[str]
SPELLS = list[tuple[int, int, tuple[tuple[int, int], ...]]]


def outcome(number: int, submit: int, size: int, *spells: tuple[int, int, tuple[tuple[int, int], ...]]) -> JobOutcome:
    """A job and its stretches of running, in seconds."""
    ran = sum(end - start for start, end, _ in spells)
    job = WorkloadJob(
        number=number, submit_us=submit * SECOND, run_us=ran * SECOND or 1, estimate_us=ran * SECOND or 1, processors=size, processes=size
    )
    made = [Spell(start * SECOND, end * SECOND, cores, Parting.MIGRATED) for start, end, cores in spells[:-1]]
    made += [Spell(start * SECOND, end * SECOND, cores) for start, end, cores in spells[-1:]]
    return JobOutcome(job=job, spells=tuple(made), state=State.COMPLETED if spells else State.FAILED)


#  cores   0    10   20   30   40     job 2 waits 0..10 and, migrated, 20..30; job 4 is refused
#  3       1    .    .    .
#  2       1    2    .    2
#  1       1    2    3    3
#  0       .    .    3    3
SMALL = (
    outcome(1, 0, 3, (0, 10, ((1, 3),))),
    outcome(2, 0, 2, (10, 20, ((1, 2),)), (30, 40, ((2, 3),))),
    outcome(3, 20, 2, (20, 40, ((0, 1),))),
    outcome(4, 25, 9),
)


def written(
    directory: Path, outcomes: tuple[JobOutcome, ...] = SMALL, *, policy: str = "easy", processors: int = 4, **more: object
) -> Path:
    """A directory as `rmgr sim run --out` leaves it."""
    result = Result(outcomes=outcomes, processors=processors, policy=policy, seed=0, passes=1, wall_seconds=1.0)
    manifest = {"experiment": {"policy": policy, "params": {}, "processors": processors, **more}}
    write_run(directory, result, workload_name="small", manifest=manifest)
    return directory


def many(count: int, processors: int = 16) -> tuple[JobOutcome, ...]:
    """Jobs of one core, one after the other on each core, each 90 s of 100 s; each core begins 5 s after the one below."""
    made = []
    for at in range(count):
        core, start = at % processors, at // processors * 100 + at % processors * 5
        made.append(outcome(at + 1, max(0, start - 50), 1, (start, start + 90, ((core, core),))))
    return tuple(made)


def sweep_directory(directory: Path, loads: tuple[float, ...] = (0.5, 0.75, 1.0), seeds: int = 3) -> Path:
    """A finished sweep over two policies: the wait grows with load, and by a tenth with the seed."""
    directory.mkdir()
    rows = [
        {
            "name": f"{policy}-load{load}-seed{seed}",
            "policy": policy,
            "load": load,
            "seed": seed,
            "mean_waiting_time": factor * load * (1 + seed / 10) * 3600,
            "mean_bounded_slowdown": factor * load * 10,
            "utilisation": load * 0.9,
            "jobs": 100,
        }
        for policy, factor in (("fcfs", 4), ("easy", 1))
        for load in loads
        for seed in range(1, seeds + 1)
    ]
    with (directory / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    (directory / "manifest.json").write_text(json.dumps({"runs": [{"source": "traces/kth.swf.gz"}]}))
    return directory


def texts(figure: Figure) -> str:
    """Every word in a picture."""
    axes = [text for each in figure.axes for text in (each.get_title(loc="left"), each.get_xlabel(), each.get_ylabel())]
    legends = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return "\n".join([*axes, *legends])


# -- numbers behind the pictures ----------------------------------------------------------------------------------------------


def test_curves_count_busy_processors_and_waiting_jobs(tmp_path: Path) -> None:
    small = read_run(written(tmp_path / "r"))
    assert [list(column) for column in busy(small)] == [[0, 10, 20, 30, 40], [3, 2, 2, 4, 0]]
    assert [list(column) for column in waiting(small)] == [[0, 10, 20, 30], [1, 0, 1, 0]]


def test_bins_keep_the_area_and_know_the_least_and_the_most() -> None:
    curve = Steps(np.array([0.0, 1.0, 4.0, 9.0]), np.array([2.0, 6.0, 0.0, 1.0]))
    assert [list(column) for column in cut(curve, 2, 8)] == [[2, 4, 8], [6, 0, 0]]
    bins = binned(curve, 0.0, 10.0, 4.0)
    assert list(bins.edges) == [0, 4, 8, 10]
    assert list(bins.mean) == [5.0, 0.0, 0.5]
    assert list(bins.low) == [2, 0, 0]
    assert list(bins.high) == [6, 0, 1]
    assert bin_length(400 * 3600) == 3600


def test_occupancy_is_the_share_of_each_cell_that_is_covered() -> None:
    chance = np.random.default_rng(1)
    rows = np.arange(8)
    left = chance.uniform(-1, 5, 8)
    right = left + chance.uniform(0, 5, 8)
    found = occupancy(left, right, rows / 2, (rows + 1) / 2, bins=6, rows=4)
    covered = np.array([[max(0.0, min(r, b + 1) - max(lo, b)) for b in range(6)] for lo, r in zip(left, right, strict=True)])
    assert found == pytest.approx((covered[::2] + covered[1::2]) / 2, abs=1e-12)


def test_the_distribution_of_waits_begins_with_those_that_do_not_wait() -> None:
    values, shares = distribution(np.array([0.0, 0.0, 5.0, 5.0, 7.0]))
    assert (list(values), list(shares)) == ([0, 5, 7], [0.4, 0.8, 1.0])
    values, shares = distribution(np.arange(1.0, 50_001.0))
    assert (values[0], shares[0], values[-1], shares[-1]) == (0, 0, 50_000, 1)
    assert len(values) == 2000


def test_times_get_the_unit_that_keeps_them_short() -> None:
    assert [unit_for(span).sign for span in (100, 7200, 86_400, 5 * 86_400)] == ["s", "min", "h", "d"]
    assert [moment(time) for time in (0, 90, 100 * 86_400 + 4 * 3600)] == ["0", "1 min 30 s", "100 d 4 h"]


def test_runs_are_named_by_what_tells_them_apart(tmp_path: Path) -> None:
    runs = [read_run(written(tmp_path / f"{p}{s}", policy=p, seed=s)) for p, s in (("easy", 1), ("fcfs", 1), ("easy", 2))]
    assert labels_of(runs[:2]) == ["easy", "fcfs"]
    assert labels_of(runs) == ["easy, seed 1", "fcfs, seed 1", "easy, seed 2"]
    assert labels_of([runs[0], runs[0]])  # twice the same directory has some names, too


# -- pictures -----------------------------------------------------------------------------------------------------------------


def test_gantt_draws_every_stretch_and_marks_jobs_with_several(tmp_path: Path) -> None:
    small = read_run(written(tmp_path / "r", load=0.7, seed=3))
    with styled():
        figure = gantt(small)
        axes = figure.axes[0]
        plain, hatched = (c for c in axes.collections if isinstance(c, PolyCollection))
        boxes = [[tuple(map(float, path.get_extents().get_points().ravel())) for path in c.get_paths()] for c in (plain, hatched)]
        assert boxes == [[(0, 1, 10, 4), (20, 0, 40, 2)], [(10, 1, 20, 3), (30, 2, 40, 4)]]
        assert hatched.get_hatch() == "////"
        assert (axes.get_xlim(), axes.get_ylim()) == ((0, 40), (0, 4))
        told = texts(figure)
    assert "Schedule of small under easy\n4 jobs; 4 processors; load 0.7; seed 3" in told
    assert "time since the first submit (s)" in told
    assert "several stretches" in told


def test_gantt_of_very_many_jobs_is_an_image_of_what_is_in_use(tmp_path: Path) -> None:
    run_ = read_run(written(tmp_path / "r", many(6400), processors=16))
    with styled():
        figure = gantt(run_)
        image = figure.axes[0].images[0].get_array()
        assert np.asarray(image).mean() == pytest.approx(6400 * 90 / (16 * run_.end), rel=1e-9)
        assert "Processors in use, small under easy\n6,400 jobs; 16 processors; a dot is 1 processor x" in texts(figure)
        part = gantt(run_, TimeWindow(20_000, 21_000))
        assert not part.axes[0].images, "a short part is drawn one by one"
        assert part.axes[0].get_xlabel() == "time since 5 h after the first submit (min)"
        assert part.axes[0].get_xlim() == pytest.approx((2000 / 60, 3000 / 60))
        assert "from 5 h 33 min 20 s to 5 h 50 min: 173 jobs" in texts(part)


def test_utilisation_has_two_curves_on_one_axis_of_time(tmp_path: Path) -> None:
    small = read_run(written(tmp_path / "r"))
    with styled():
        figure = utilisation(small)
        above, below = figure.axes
        assert above.lines[0].get_ydata().tolist() == [0.75, 0.5, 0.5, 1, 1]
        assert below.lines[0].get_ydata().tolist() == [1, 0, 1, 0, 0]
        assert above.get_xlim() == below.get_xlim() == (0, 40)
        assert (above.get_ylabel(), below.get_ylabel()) == ("processors in use", "jobs waiting")
        assert "mean utilisation 68.8% (dashed)" in texts(figure)
        binned_ = utilisation(read_run(written(tmp_path / "m", many(6400), processors=16)))
        assert "mean of 2 min\nleast to most within 2 min" in texts(binned_)


def test_waits_stand_on_a_logarithmic_axis_and_their_legend_below(tmp_path: Path) -> None:
    runs = [read_run(written(tmp_path / policy, policy=policy)) for policy in ("easy", "fcfs")]
    with styled():
        figure = waits(runs)
        encoded(figure, "png")  # lays it out
        axes = figure.axes[0]
        assert axes.get_xscale() == "log"
        assert [text.get_text() for text in axes.get_xticklabels()] == ["10 s"]
        assert "easy: mean 6.67 s, 67% do not wait\nfcfs: mean 6.67 s, 67% do not wait" in texts(figure)
        legend, below = figure.legends[0].get_window_extent(), axes.get_tightbbox()
        assert legend.y1 <= below.y0, "the legend covers no data"
    with pytest.raises(UsageError, match="no job that was submitted from 50 s"):
        waits([read_run(written(tmp_path / "late", (*SMALL[:3], outcome(4, 60, 1)), policy="x"))], TimeWindow(50, 70))


def test_bars_compare_runs_and_sweeps(tmp_path: Path) -> None:
    with styled():
        figure = compare_runs([read_run(written(tmp_path / policy, policy=policy)) for policy in ("easy", "fcfs")])
        assert [axes.get_xlabel() for axes in figure.axes] == [
            "mean wait (s)", "mean bounded slowdown (tau 10 s)", "utilisation of the machine"
        ]
        assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["easy", "fcfs"]
        assert figure.axes[0].patches[0].get_width() == pytest.approx(20 / 3)
        assert "4 jobs; 4 processors" in texts(figure)
        swept = compare_sweep(read_sweep(sweep_directory(tmp_path / "sweep")))
        assert [text.get_text() for text in swept.axes[0].get_yticklabels()][:2] == ["fcfs, load 0.5", "fcfs, load 0.75"]


def test_load_has_a_median_line_and_a_band_for_each_policy(tmp_path: Path) -> None:
    with styled():
        figure = load(read_sweep(sweep_directory(tmp_path / "sweep")))
        lines = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
        assert [line.get_xdata().tolist() for line in lines] == [[0.5, 0.75, 1.0]] * 2
        assert lines[0].get_ydata() == pytest.approx([4 * 0.5 * 1.2, 4 * 0.75 * 1.2, 4 * 1.2])  # hours, of the middle seed
        band = figure.axes[0].collections[0].get_paths()[0].get_extents()
        assert (band.y0, band.y1) == pytest.approx((4 * 0.5 * 1.1, 4 * 1.3))
        assert "mean wait (h)" in texts(figure)
        assert "Load and wait, kth\n100 jobs; 3 seeds; line: median of the seeds, band: least to most" in texts(figure)
    without = sweep_directory(tmp_path / "own")  # each policy at the load that the workload has
    rows = [line.split(",") for line in (without / "results.csv").read_text().splitlines()]
    kept = [rows[0], *([*row[:2], "", *row[3:]] for row in rows[1:] if row[2] == "0.5")]
    (without / "results.csv").write_text("".join(",".join(row) + "\n" for row in kept))
    assert [picture.name for picture in pictures.pictures(pictures.read([without]))] == ["compare"]
    with styled():
        assert "Comparison, kth\n100 jobs; 3 seeds" in texts(compare_sweep(read_sweep(without)))
    with pytest.raises(UsageError, match="1 load, and a curve needs two"):
        load(read_sweep(sweep_directory(tmp_path / "one", loads=(0.5,))))


def test_tables_and_figures_of_reports_are_drawn(tmp_path: Path) -> None:
    table = {"title": "Waits", "columns": ["limit", "queue", "wait"], "rows": [[1, "s", 5.0], [2, "s", 4.0], [1, "p", None], [2, "p", 3]]}
    words = {"title": "Names", "columns": ["policy", "SR"], "rows": [["ff", 1.5], ["ljf", 2.5]]}
    two = {"title": "Two", "columns": ["threshold", "limit", "wait"], "rows": [[x, y, x * y] for x in (1, 2) for y in (3, 4)]}
    with styled():
        assert texts(draw_table(two)).splitlines()[-2:] == ["limit 3", "limit 4"]
    spread = {"title": "Waits", "columns": ["queue", "new", "new sd"], "rows": [["s", 5.0, 1.0], ["p", None, None], ["d", 2.0, 0.0]]}
    with styled():
        panels = [axes for axes in draw_table(spread).axes if axes.axison]
        assert [axes.get_xlabel() for axes in panels] == ["new"]
        assert [list(line.get_xdata()) for line in panels[0].lines] == [[4.0, 6.0]]
    assert not is_drawable({"title": "Prose", "columns": ["a", "b"], "rows": [["x", "y"]]})
    points = (report.Point(0, 1, 0.5, 2), report.Point(5, 3, 2, 4))
    figure = report.Figure(title="SR against penalty", x_label="penalty (min)", y_label="SR", lines=(report.Line("minimal", points),))
    with styled():
        drawn = draw_table(table, paper="000")
        assert drawn.axes[0].lines[0].get_xydata().tolist() == [[1, 5], [2, 4]]
        assert [text.get_text() for text in draw_table(words).axes[0].get_yticklabels()] == ["ff", "ljf"]
        new = report.Box("new", ((0.0, 5.0), (10.0, 99.0)))
        waits = report.Boxes(title="Waits", y_label="wait (s)", groups=("ss8", "d512"), boxes=(new,))
        found = pictures.figures([figure, waits])
        assert [picture.name for picture in found] == ["sr-against-penalty", "waits"]
        assert "wait (s)\nnew" in texts(found[1].draw())
        assert "penalty (min)\nSR\nminimal" in texts(found[0].draw())
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "report.json").write_text(json.dumps({"paper": "000", "tables": [table, words]}))
    document = report.PaperReport(paper="000", checks=(), figures=(figure, waits)).figures_document()
    (tmp_path / "paper" / "figures.json").write_text(json.dumps(document))
    results = pictures.read([tmp_path / "paper"])
    assert results.reports[0][1] == (figure, waits)
    assert [picture.name for picture in pictures.pictures(results, ("tables", "figures"))] == [
        "paper000-table-waits", "paper000-table-names", "paper000-sr-against-penalty", "paper000-waits"
    ]
    (tmp_path / "paper" / "figures.json").write_text('{"figures": [{"title": "x"}]}')
    with pytest.raises(UsageError, match=r"figures\.json holds no figures"):
        pictures.read([tmp_path / "paper"])


# -- the command --------------------------------------------------------------------------------------------------------------


def test_one_run_gets_three_pictures_and_the_same_bytes_twice(tmp_path: Path, capsys: Captured) -> None:
    small = written(tmp_path / "r")
    assert run(["sim", "plot", str(small), "--format", "both"]) == 0
    told = capsys.readouterr().out.splitlines()
    names = [f"{kind}.{form}" for kind in ("gantt", "utilisation", "waits") for form in ("png", "svg")]
    assert told == [str(small / "plots" / name) for name in names]
    environment = {**os.environ, "MPLBACKEND": "TkAgg", "PYTHONHASHSEED": "5"}  # another process, with a wish for a display
    command = [sys.executable, "-m", "rmgr.cli.main", "sim", "plot", str(small), "--format", "both", "--out", str(tmp_path / "again")]
    subprocess.run(command, check=True, env=environment, timeout=120, capture_output=True)
    for name in names:
        first = (small / "plots" / name).read_bytes()
        assert first == (tmp_path / "again" / name).read_bytes()
        assert b"<dc:date>" not in first
        if name.endswith(".svg"):
            assert ET.fromstring(first).tag == "{http://www.w3.org/2000/svg}svg"
    assert run(["sim", "plot", str(small)]) == 1
    assert "gantt.png exists already (and 2 more)" in capsys.readouterr().err
    assert run(["sim", "plot", str(small), "--kind", "gantt", "--overwrite", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pictures"] == [str(small / "plots" / "gantt.png")]


def test_several_directories_share_pictures_where_it_makes_sense(tmp_path: Path, capsys: Captured) -> None:
    runs = [str(written(tmp_path / policy, policy=policy)) for policy in ("easy", "first_fit")]
    swept = str(sweep_directory(tmp_path / "sweep"))
    assert run(["sim", "plot", *runs, swept, "--out", str(tmp_path / "p"), "--json"]) == 0
    found = [Path(path).name for path in json.loads(capsys.readouterr().out)["pictures"]]
    single = [f"{kind}-{name}.png" for kind in ("gantt", "utilisation") for name in ("easy", "first-fit")]
    assert found == [*single, "waits.png", "compare.png", "load-sweep.png"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (("jobs.csv", ",20,20,40,", ",20,2o,40,"), "jobs.csv, line 4, column execution_time: '2o' is not a number"),
        (("jobs.csv", "3,small,3,20", "3,small,3,-20"), "line 4, column submission_time: '-20' is below 0"),
        (("jobs.csv", ",0-1\n", ",0~1\n"), "line 4, column allocated_resources: '0~1' is not a range"),
        (("jobs.csv", ",0-1\n", "\n"), "jobs.csv, line 4: 14 columns; column allocated_resources is missing"),
        (("jobs.csv", "REJECTED,,,,,,,\n", "REJEC"), "line 5: it ends in the middle"),
        (("jobs.csv", "requested_time", "asked"), None),
        (("jobs.csv", "waiting_time", "waited"), "line 1: there is no column waiting_time"),
        (("schedule.json", '"jobs": 4', '"jobs": 9'), "holds 4 jobs, and schedule.json says 9"),
        (("schedule.json", '"jobs": 4,', '"jobs": 4'), "schedule.json, line "),
        (("spells.csv", "\n2,2,30,40", "\n7,2,30,40"), "spells.csv, line 4, column job_id: jobs.csv has no job 7"),
        (("spells.csv", "\n2,2,30,40", "\n2,2,30,20"), "spells.csv, line 4, column finish_time: the spell ends before"),
    ],
)
def test_damaged_results_are_told_by_file_line_and_column(
    damage: tuple[str, str, str], message: str | None, tmp_path: Path, capsys: Captured
) -> None:
    small = written(tmp_path / "r")
    name, good, bad = damage
    text = (small / name).read_text()
    assert good in text
    (small / name).write_text(text.replace(good, bad, 1))
    if name == "jobs.csv":
        (small / "spells.csv").unlink()
    assert run(["sim", "plot", str(small), "--kind", "gantt"]) == (2 if message else 0)
    assert (message or "") in capsys.readouterr().err
    assert (small / "plots").exists() == (message is None)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["{tmp}/nowhere"], 2, "nowhere does not exist"),
        (["{tmp}/run/jobs.csv"], 2, "jobs.csv is no directory"),
        (["{tmp}/empty"], 2, "empty is empty: there is no jobs.csv, results.csv, report.json or calls.csv"),
        (["{tmp}"], 2, "holds no results"),
        (["{tmp}/unfinished"], 2, "is a sweep that has not ended"),
        (["{tmp}/run", "--kind", "gannt"], 2, "gantt"),
        (["{tmp}/run", "--kind", "load"], 2, "--kind load draws sweeps"),
        (["{tmp}/sweep", "--kind", "waits"], 2, "draws single runs"),
        (["{tmp}/run", "--from", "2d", "--to", "1d"], 2, "--to 86400 s is not after"),
        (["{tmp}/run", "--from", "2d"], 2, "ends 40 s after its first submit"),
        (["{tmp}/run", "--kind", "compare", "--from", "1"], 2, "--from and --to cut single runs"),
        (["{tmp}/run", "--out", "{tmp}/no/where"], 2, "mkdir -p"),
        (["{tmp}/run", "--out", "{tmp}/run/jobs.csv"], 2, "is no directory"),
        (["{tmp}/run", "{tmp}/run"], 2, "two pictures would have the name"),
    ],
)
def test_errors_name_what_is_wrong_and_leave_nothing(words: list[str], code: int, message: str, tmp_path: Path, capsys: Captured) -> None:
    written(tmp_path / "run")
    sweep_directory(tmp_path / "sweep")
    (tmp_path / "empty").mkdir()
    (tmp_path / "unfinished" / "runs").mkdir(parents=True)
    assert run(["sim", "plot", *(word.format(tmp=tmp_path) for word in words)]) == code
    assert message in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.png"))


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        (",mean_waiting_time,", ",waits,", "line 1: there is no column mean_waiting_time"),
        ("easy,0.5,2,", "easy,half,2,", "line 12, column load: 'half' is not a number"),
        ("easy,1.0,3,", "easy,1.0,,", "line 19, column seed: '' is not a number"),
    ],
)
def test_a_damaged_sweep_is_told_by_line_and_column(good: str, bad: str, message: str, tmp_path: Path, capsys: Captured) -> None:
    path = sweep_directory(tmp_path / "sweep") / "results.csv"
    text = path.read_text()
    assert good in text
    path.write_text(text.replace(good, bad, 1))
    assert run(["sim", "plot", str(path.parent)]) == 2
    assert message in capsys.readouterr().err


def test_without_matplotlib_the_error_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError('No module named matplotlib')\n")
    command = [sys.executable, "-m", "rmgr.cli.main", "sim", "plot", str(written(tmp_path / "r"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])}
    ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "pip install 'matplotlib>=3.8,<4'" in ended.stderr
    assert not (tmp_path / "r" / "plots").exists()


def test_the_command_knows_every_kind_and_form_without_importing_them() -> None:
    from rmgr.cli.sim import runs as sim_runs

    assert pictures.KINDS == sim_runs.KINDS
    assert tuple(pictures.FORMS) == sim_runs.FORMS
    assert "rmgr.sim.plots" not in sim_runs.__dict__


#: Figure 1 of paper 002: processors and number of jobs of its queues.
FIGURE_1 = ((4, 2), (2, 2), (2, 1), (1, 1), (1, 2), (1, 3), (1, 2))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    sizes = [size for size, count in FIGURE_1 for _ in range(count)]
    lines = [f"{at} 0 0 12 {size} -1 -1 {size} 40 -1 1 1 1 1 1 -1 -1 -1" for at, size in enumerate(sizes, 1)]
    path = tmp_path / "figure1.swf"
    path.write_text("\n".join(["; MaxProcs: 4", *lines]) + "\n")
    return path


def test_matrix_and_front_show_the_slots_of_a_run(trace: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "out"
    assert run(["sim", "run", str(trace), "--policy", "dqt", "--spells", "--validate", "--out", str(out)]) == 0
    assert run(["sim", "plot", str(out), "--kind", "matrix", "--kind", "front", "--from", "2", "--to", "9"]) == 0
    assert {path.name for path in (out / "plots").iterdir()} == {"matrix.png", "front.png"}
    found = read_run(out)
    slots = Slots(found, TimeWindow(2, 9), 200)
    assert slots.start.tolist() == [2, 3, 4, 5, 6, 7, 8]
    rows = [sorted((first, last) for _, first, last in row) for row in slots.rows]
    assert rows[:5] == [[(0, 1), (2, 3)], [(0, 1), (2, 2), (3, 3)], [(0, 0), (1, 1), (2, 2), (3, 3)], [(0, 0), (1, 1), (2, 3)], [(0, 3)]]
    header = (out / "jobs.csv").read_text().splitlines()[0]
    assert header.endswith(",served,turns")
    assert capsys.readouterr().err == ""


def test_jobs_that_never_met_have_slots_too(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(["sim", "run", str(trace), "--policy", "dqt", "--count", "1", "--spells", "--out", str(out)]) == 0
    assert run(["sim", "plot", str(out), "--kind", "matrix"]) == 0
    assert len(Slots(read_run(out), TimeWindow(), 200).rows) == 12


def test_a_run_without_its_stretches_says_how_to_keep_them(trace: Path, tmp_path: Path, capsys: Captured) -> None:
    for policy, end in (("dqt", "a"), ("fcfs", "b")):
        out = tmp_path / end
        assert run(["sim", "run", str(trace), "--policy", policy, "--out", str(out)]) == 0
        assert run(["sim", "plot", str(out), "--kind", "matrix"]) == 2
        assert "--policy dqt --spells --out DIR" in capsys.readouterr().err
        assert not (out / "spells.csv").exists()


def test_slots_are_as_long_as_the_file_of_a_pipeline_says(trace: Path, tmp_path: Path) -> None:
    pipeline, out = tmp_path / "gang.toml", tmp_path / "out"
    pipeline.write_text('[[stage]]\npolicy = "dqt"\n[stage.parameters]\nquantum = "4s"\nwidth = 4\n')
    assert run(["sim", "run", str(trace), "--policy", str(pipeline), "--spells", "--out", str(out)]) == 0
    found = read_run(out)
    assert (found.quantum, found.trees) == (4.0, (QueueTree(4, ((0, 3),)),))
    starts = Slots(found, TimeWindow(), 200).start
    assert {round(later - earlier) % 4 for earlier, later in pairwise(starts.tolist())} == {0}


def test_a_job_with_a_gap_between_its_cores_stands_in_the_partition_that_holds_all_of_them() -> None:
    rows = [[(0, 0, 2), (0, 4, 6), (1, 7, 7)], [(1, 7, 7)]]
    assert reaches(rows) == {0: (0, 6), 1: (7, 7)}


def test_each_partition_of_a_file_has_a_tree_of_its_own(tmp_path: Path) -> None:
    # main has the cores 0-4 and debug 5-7: neither begins where a tree over all 8 cores would have a node of that size
    jobs = enumerate([(2, 0), (4, 0), (2, 1)], 1)
    lines = [f"{at} 0 0 12 {size} -1 -1 {size} 40 -1 1 1 1 1 {queue} -1 -1 -1" for at, (size, queue) in jobs]
    trace, pipeline, out = tmp_path / "two.swf", tmp_path / "two.toml", tmp_path / "out"
    trace.write_text("\n".join(["; MaxProcs: 8", *lines]) + "\n")
    pipeline.write_text(
        '[[stage]]\npolicy = "dqt"\n[[partition]]\nname = "main"\n[[partition]]\nname = "debug"\nqueues = ["q1"]\n'
        '[[simulated.partition]]\nname = "main"\nnodes = 5\n[[simulated.partition]]\nname = "debug"\nnodes = 3\n'
    )
    assert run(["sim", "run", str(trace), "--policy", str(pipeline), "--spells", "--validate", "--out", str(out)]) == 0
    assert run(["sim", "plot", str(out), "--kind", "front"]) == 0
    found = read_run(out)
    assert found.trees == (QueueTree(2, ((0, 4),), "main"), QueueTree(2, ((5, 7),), "debug"))
    main, debug = (Leaves(tree) for tree in found.trees)
    at = reaches(Slots(found, TimeWindow(), 7).rows)
    assert [at[place] for place in sorted(at)] == [(0, 1), (0, 3), (5, 6)]
    node = debug.home(5, 6)
    assert node is not None
    assert (debug.tree.depth[node], debug.spans(node)) == (1, [(5, 7)])
    assert main.home(5, 6) is None


def test_a_partition_with_gaps_between_its_cores_is_drawn_where_they_are() -> None:
    leaves = Leaves(QueueTree(2, ((0, 1), (6, 7))))
    assert (leaves.spans(0), leaves.spans(2)) == ([(0, 2), (6, 8)], [(6, 8)])
    assert (leaves.home(1, 6), leaves.home(6, 7), leaves.home(3, 3)) == (0, 2, None)


def live(**changes: object) -> dict[str, object]:
    """What `rmgr queues --tree --matrix 3 --json` says of a node of two cores and one of one."""
    rows = [["1", "1", "1"], ["2", "2", None], ["a", "4_7", "1"]]
    return {
        "partition": "default", "policy": "dqt", "generation": 7, "quantum_seconds": 0.5, "slot": 120,
        "leaves": [{"node": "n1", "cores": 2}, {"node": "n2", "cores": 1}],
        "matrix": [{"slot": 120 + at, "cores": cores} for at, cores in enumerate(rows)],
    } | changes  # fmt: skip


def test_slots_of_a_live_cluster_are_drawn_from_its_json(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "slots.json"
    path.write_text(json.dumps({"schema": "rmgr/1", "trees": [live()]}))
    assert run(["sim", "plot", str(path), "--kind", "matrix"]) == 0
    assert [file.name for file in (tmp_path / "plots").iterdir()] == ["matrix.png"]
    assert run(["sim", "plot", str(path), "--out", str(tmp_path / "again")]) == 0, "nothing else can be drawn of it"
    (found,) = read_live(path)
    axes = matrix_of_live(found).axes[0]
    assert [text.get_text() for text in axes.texts][:5] == ["1", "2", "a", "4_7", "1"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["n1", "n2"]
    assert axes.get_ylim() == (123, 120)
    path.write_text(json.dumps({"trees": [live(), live(partition="debug")]}))
    assert run(["sim", "plot", str(path), "--kind", "matrix", "--out", str(tmp_path / "two")]) == 0
    assert {file.name for file in (tmp_path / "two").iterdir()} == {"matrix-default.png", "matrix-debug.png"}
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"trees": [', "slots.json, line 1, column 12"),
        ('{"queues": []}', "slots.json holds no slots: there is no list `trees`"),
        ('{"trees": []}', "slots.json: no partition shared its cores in time"),
        ('{"trees": [3]}', "slots.json, trees[0]: it is no queue tree"),
        (json.dumps({"trees": [live(matrix=[])]}), "trees[0]: partition default has no slots in it: it was written without --matrix"),
        (json.dumps({"trees": [live(leaves=[{"node": "n1", "cores": 2}])]}), "trees[0].matrix[0]: 3 cores, and the leaves have 2"),
        ('{"trees": [{"partition": "default", "policy": "dqt"}]}', "trees[0]: there is no 'generation'"),
    ],
)
def test_a_file_without_slots_says_which_what_and_what_to_type(tmp_path: Path, capsys: Captured, text: str, says: str) -> None:
    path = tmp_path / "slots.json"
    path.write_text(text)
    assert run(["sim", "plot", str(path), "--kind", "matrix"]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "rmgr queues --tree --matrix 20 --json > slots.json" in error
    assert not (tmp_path / "plots").exists()


def test_what_cannot_be_drawn_of_live_slots_is_said(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "slots.json"
    path.write_text(json.dumps({"trees": [live()]}))
    for options, says in ((["--kind", "gantt"], "draws single runs"), (["--from", "3"], "not slots of a live cluster")):
        assert run(["sim", "plot", str(path), *options]) == 2
        assert says in capsys.readouterr().err
