"""Paper 002 again: gang time-sharing with the distributed queue tree (Hori, Ishikawa, Konaka, Maeda, Tomokiyo; papers.md section 3).

This room holds what is run and asked for (`cells.py`), the statements (`checks.py`, `exact.py`), and the tables
and figures (`tables.py`). It measures with `rmgr.sim.gangs` and decides nothing itself: every verdict is computed from the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rmgr.sim.gangs import SLOTS
from rmgr.sim.papers.paper002.cells import HEIGHTS, Paper002Runs, measure
from rmgr.sim.papers.paper002.checks import CHECKS as _CHECKS
from rmgr.sim.papers.paper002.tables import figures, of_figures, tables
from rmgr.sim.papers.report import Figure, PaperCheck, PaperReport, Table
from rmgr.sim.runs.parallel import measured

CHECKS = tuple(_CHECKS)
SEEDS = 5
QUICK_SEEDS, QUICK_HEIGHTS = 2, (7, 8)

#: Where the paper contradicts itself or is silent, and what we read.
NOTES = (
    "The recursions of M, N and A say '0 for i >= w^h'; with P = w^h processors that bound does not fit: 0 below the leaves is used here.",
    "A second reading: the printed bound is right and the tree has h levels and P = w^(h-1). It fits worse (papers.md 3.4).",
    "TQLB is printed with B = 0 at the root; the guarantee of one slot in every max-TQLB slots needs the root's queue (table 1: 6, not 4).",
    "Sizes are powers of two up to half of the machine: with tasks of the whole machine FCFS's queue at low load grows to 33-62, not 13.",
    "By the text a task that comes to an empty queue waits for the next round (next_round); the numbers here are of this_round.",
    "The bound of RETR in 5.2 is stated without a margin for the first and the last round; the last term of C2.11 is that margin.",
    "The arrows of figure 2 are lost in the text we have; the states' table follows its four descriptions.",
    "Figures 8 to 10 print no numbers: the paper's column of C2.7 to C2.9 is the load, or what its text says.",
    "The paper does not say how large tasks are on the trees of figures 8 to 10. Here sizes go up to half of the machine, at most 256.",
    "Of the largest sizes that were tried (64, 128, 256, half; a table shows them) 128 and 256 agree with figures 8 to 10 at every height:",
    "256, the nearer to half, was chosen by its results, as k = 0..6 was for 2^7. With 64 FCFS saturates above .70 at 2^10 and 2^11; with",
    "half of each machine C2.7 and C2.7c do not hold there, nor C2.9b at 2^11. C2.15 reports the verdicts with half of each machine.",
    "DQT at heights 10 and 11 is run with two seeds. Switching is charged to every slot: an upper bound; a task may run twice in a row.",
    "An arrival delays others by its own quanta only inside one queue. Where a subtree is early and goes round again, as the paper's rule",
    "has it, a newcomer takes quanta of its repeated rounds, too, and who lost them waits for a round of the parents. What holds, and is",
    "tested: with arrivals in nearly every slot everybody runs again within twice the largest max-TQLB.",
    "Messages are counted, not sent: in rmgr one leader publishes the tree with its front, and every node computes the same slots from it.",
)


def report(
    seeds: Sequence[int],
    checks: Sequence[str] | None = None,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
    processes: int = 1,
    *,
    quick: bool = False,
    heights: Sequence[int] = HEIGHTS,
    slots: int = SLOTS,
) -> PaperReport:
    """Runs what the checks need, each run once; None: all of them, tables and figures too.

    Args:
        processes: at a time. quick: two heights, and of the tables those of the figures.
        heights: of figures 8 to 10. slots: of each run; fewer give a look, not a result.
    Raises: RmgrError for a run that failed.
    """
    if quick:
        heights = QUICK_HEIGHTS
    asking = Paper002Runs(seeds, heights=heights, slots=slots)
    _written(asking, checks, quick)
    measures = measured(asking.asked, measure, processes=processes, on_progress=on_progress)
    found, shown, drawn = _written(Paper002Runs(seeds, measures, heights=heights, slots=slots), checks, quick)
    notes = NOTES if checks is None else ()
    if slots != SLOTS:
        notes = (*notes, f"{slots:,} slots were run, not {SLOTS:,}: a look, not a result.")
    return PaperReport(paper="002", checks=found, tables=shown, notes=notes, figures=drawn)


def _written(
    runs: Paper002Runs, checks: Sequence[str] | None, quick: bool
) -> tuple[tuple[PaperCheck, ...], tuple[Table, ...], tuple[Figure, ...]]:
    found = tuple(_all_of(runs, CHECKS if checks is None else checks))
    return (found, of_figures(runs) if quick else tables(runs), figures(runs)) if checks is None else (found, (), ())


def _all_of(runs: Paper002Runs, names: Sequence[str]) -> Iterator[PaperCheck]:
    for name in names:
        yield from _CHECKS[name](runs)
