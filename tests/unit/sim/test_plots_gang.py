"""`rmgr sim plot --kind matrix|front`: slots of the queue tree as pictures, and what is said of runs that have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmgr.cli.main import run

pytest.importorskip("matplotlib")
from rmgr.sim.plots.matrix import Slots
from rmgr.sim.plots.parts.reading import read_run
from rmgr.sim.plots.parts.window import TimeWindow

Captured = pytest.CaptureFixture[str]
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


def test_a_run_without_its_stretches_says_how_to_keep_them(trace: Path, tmp_path: Path, capsys: Captured) -> None:
    for policy, end in (("dqt", "a"), ("fcfs", "b")):
        out = tmp_path / end
        assert run(["sim", "run", str(trace), "--policy", policy, "--out", str(out)]) == 0
        assert run(["sim", "plot", str(out), "--kind", "matrix"]) == 2
        assert "--policy dqt --spells --out DIR" in capsys.readouterr().err
        assert not (out / "spells.csv").exists()
