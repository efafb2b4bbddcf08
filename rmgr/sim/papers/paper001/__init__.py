"""Paper 001 again: migration against starvation on a grid (Iwakiri, Yamamori, Yoshihara, Aikawa; papers.md section 2).

`runs` measures, `checks` judges, `tables` draws. It may use the simulator below `papers`; it must not import another paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from rmgr.sim.papers.paper001.checks import CHECKS as _CHECKS
from rmgr.sim.papers.paper001.runs import JOBS, LEAST_SEEDS, Paper001Runs, measure
from rmgr.sim.papers.paper001.tables import figures, tables
from rmgr.sim.papers.report import Figure, PaperCheck, PaperReport, Table
from rmgr.sim.runs.parallel import measured

CHECKS = tuple(_CHECKS)
SEEDS = 6
QUICK_SEEDS = 3

#: Required checks that are known not to hold: the experiment that shows why (papers.md 7).
EXPECTED: Mapping[str, str] = {
    "C1.8c": "table Readings: of 36 none comes near; followers that are counted and those that are moved do not explain it",
    "C1.9": "tables Figure 5 and Calibrations: at load .42 (6) counts who waits for jobs that were there before, which nobody may move",
    "C1.9b": "table Readings: 93 and 78 without migration are met, 0 with it by no reading: see C1.9; by (1) itself it is 0 (C1.9e)",
}

#: Where the paper contradicts itself or is silent, and what we read.
NOTES = (
    "(1) is printed N_top >= N_follow + N_idle, so the head could start only when it need not wait; its text says <=, which we use.",
    "4.2 says N_top is never below the nodes of the suspended followers; with <= it can be, for whole jobs go. Utilisation rises anyway.",
    "(5) is a ratio of means; the mean of the jobs' own ratios ranks the algorithms otherwise (C1.10): short jobs that are suspended pay.",
    "(6) also counts a job that waits for its own size while the next 50 find free nodes, even under plain FCFS: no algorithm reaches 0.",
    "(6') counts it only if a later job started before it while it waited at the head: 0 for FCFS, SJF, LJF by construction.",
    "With migration the head changes more often, so more of the starved jobs were passed as head: (6') may rise where (6) falls.",
    "Followers are the jobs that passed this head; with followers=any, that passed any head, there are more migrations; with strict, that",
    "passed it while it was the head, fewer. All of them are suspended (2.3, figure 1); 4.2 speaks for the fewest: rows with an m.",
    "The paper gives neither speeds, sites' sizes, delay nor the model's constants: Spec uniform [0.5, 1.5], delay 10 min, papers.md 2.3.",
    "What is left of CommTime after a migration is not said: the same share as of CalcTime; the delay of (3) is paid at each start.",
    "Penalty 60 is called 20 times the mean run time: 1,024 x 60 / 20 = 3,072 min; CalcTime is calibrated to that, (2) and (3) included.",
    "A suspended job goes back to its own place in the queue, and all its waiting counts; the last 50 jobs are not judged by (6).",
)


def report(
    seeds: Sequence[int],
    checks: Sequence[str] | None = None,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
    processes: int = 1,
    *,
    quick: bool = False,
    jobs: int = JOBS,
) -> PaperReport:
    """Runs what the checks need, each run once; None: all of them, tables and figures too.

    Args:
        seeds: to fewer than three (papers.md 2.5) the next ones are added, and a note says so; for C1.4 to fewer than six.
        processes: at a time. quick: three inter-arrival times and two penalties, our reading alone. jobs: fewer give a look, not a result.
    Raises: RmgrError for a run that failed.
    """
    asking = Paper001Runs(seeds, jobs=jobs, quick=quick)
    _written(asking, checks)
    measures = measured(asking.asked, measure, processes=processes, on_progress=on_progress)
    found, shown, drawn = _written(Paper001Runs(seeds, measures, jobs, quick=quick), checks)
    notes = NOTES if checks is None else ()
    if len(seeds) < LEAST_SEEDS:
        notes = (*notes, f"{LEAST_SEEDS} seeds were run, not {len(seeds)}: fewer say nothing (papers.md 2.5).")
    return PaperReport(paper="001", checks=found, tables=shown, notes=notes, figures=drawn)


def _written(runs: Paper001Runs, checks: Sequence[str] | None) -> tuple[tuple[PaperCheck, ...], tuple[Table, ...], tuple[Figure, ...]]:
    found = tuple(_all_of(runs, CHECKS if checks is None else checks))
    return (found, tables(runs), figures(runs)) if checks is None else (found, (), ())


def _all_of(runs: Paper001Runs, names: Sequence[str]) -> Iterator[PaperCheck]:
    for name in names:
        for check in _CHECKS[name](runs):
            yield replace(check, expected=EXPECTED.get(check.id, ""))
