"""`rmgr sim plot --kind matrix|front`: slots of the queue tree as pictures, and what is said of runs that have none."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from rmgr.cli.main import run

pytest.importorskip("matplotlib")
from rmgr.sim.plots.gantt import Leaves, Slots, matrix_of_live, reaches
from rmgr.sim.plots.reading import QueueTree, TimeWindow, read_live, read_run

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
