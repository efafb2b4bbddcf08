"""The report of paper 004: runs what is asked, then reads checks and tables from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rmgr.sim.papers.paper004.asked import Runs, run
from rmgr.sim.papers.paper004.checks import CHECKS as _CHECKS
from rmgr.sim.papers.paper004.tables import tables
from rmgr.sim.papers.report import PaperCheck, PaperReport, Table

CHECKS = tuple(_CHECKS)
#: Replications, as in the paper.
SEEDS = 50
QUICK_SEEDS = 50

#: Where the paper contradicts itself or is silent, and what we read.
NOTES = (
    "The text gives the 400-Mops server 0.20 MB/s; LOTH's 4.13 s (table 4) is impossible then. Decoded: the fast server's link is fast.",
    "The columns of utilisation in table 4 are swapped: A(400) holds the 40-Mops server, B(40) the 400-Mops one (their RR and LOTH rows).",
    "The text's background of 0.10 is that of the fast server; the slow one has 0.247 in every LOTH row.",
    "A transfer takes 3.27 s on the fast link and 17 s on the slow one, exponential (papers.md: 3.27 and 16.2 to 17); queues are FCFS.",
    "Clients go on asking until the first 50 requests have their answers, so that the last ones meet the same load as the others.",
    "LOAD's quarter of calls to the slow server does not follow from (L + 1) / P with P = 400 : 40 under any reading of L that was tried.",
    "+T counts 1 + the calls of all clients to a server since it was measured; the other reading would turn its effect round.",
    "ninf_tnet is the network that the decoding leaves out: as M/M/1 the ratio of the cases is the paper's, the level 18 % low.",
    "Table 3 comes from real machines: the model has no disks, no other users and no overload of the local workstation (C4.7e).",
    "error: sum of |predicted - actual| over the sum of actual times.",
    "distance from truth: |operations/s believed in / true ones - 1|, mean over the calls.",
)


def report(
    seeds: Sequence[int],
    checks: Sequence[str] | None = None,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
    processes: int = 1,
    *,
    quick: bool = False,
) -> PaperReport:
    """Runs what the checks need, each run once; None: all of them, and the tables.

    Args:
        seeds: of the replications. processes: at a time. quick: no tables.
    Raises: RmgrError for a run that failed.
    """
    asking = Runs(seeds)
    _written(asking, checks, quick)
    found = run(tuple(asking.asked), seeds, processes=processes, on_progress=on_progress)
    written, shown = _written(Runs(seeds, found), checks, quick)
    return PaperReport(paper="004", checks=written, tables=shown, notes=NOTES if checks is None else ())


def _written(runs: Runs, checks: Sequence[str] | None, quick: bool) -> tuple[tuple[PaperCheck, ...], tuple[Table, ...]]:
    found = tuple(check for name in (CHECKS if checks is None else checks) for check in _CHECKS[name](runs))
    return found, tuple(tables(runs)) if checks is None and not quick else ()
