"""Paper 000, automatic queue selection and connection reservation, run again: its exact statements, figures 2 and 3, its future work.

Kawanami, Yoshihisa, Kanazawa: batch queues of an HPC2500 (papers.md 1). The log is not public; the workload is the stand-in of papers.md
1.6, drawn once a seed and the same for every system. Nothing is tuned until a claim holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import product

from rmgr.sched.queue_class import HPC2500
from rmgr.sim.papers.paper000 import claims, future, region, unit
from rmgr.sim.papers.paper000.runs import JOBS, LOADS, PROPOSAL_2, SYSTEMS, WARM_UP, Measured, Paper000Run, measured
from rmgr.sim.papers.report import Boxes, Figure, PaperCheck, PaperReport, Table, WithinBounds, is_selected
from rmgr.sim.runs.parallel import Piece, in_processes

PAPER = "000"
SEEDS = 5
QUICK_SEEDS = 2
CHECKS = ("C0.1", "C0.2", "C0.3", "C0.4", "C0.5", "C0.6", "C0.7", "C0.8", "C0.9", "C0.10", "C0.11")
_FIGURES = ("C0.8", "C0.9", "C0.10", "C0.11")
_SWEEP_SEEDS, _REGION_SEEDS = 2, 3


def report(
    seeds: Sequence[int],
    checks: Sequence[str] | None = None,
    on_progress: Callable[[int, int], None] = lambda _done, _all: None,
    processes: int = 1,
    *,
    quick: bool = False,
) -> PaperReport:
    """The whole reproduction, or the checks named.

    Args:
        seeds: of the workloads of the figures; the future work takes the first two. checks: ids, None = all, and the future work with them.
        on_progress: called with (runs done, all runs). processes: at a time. quick: the higher load alone, and no future work.
    Cost: 40 runs of 20,000 jobs for five seeds, 94 of 3,000 for the future work and 126 for the region: four minutes of two processors.
    """
    wanted = [check for check in CHECKS if checks is None or any(_without_letter(asked) == check for asked in checks)]
    loads = LOADS[-1:] if quick else LOADS
    cells = _cells(wanted, seeds, loads)
    whole = checks is None and not quick
    sweep = future.cells(seeds[:_SWEEP_SEEDS]) if whole else []
    asked = region.cells(seeds[:_REGION_SEEDS]) if whole else []
    found = _run([*cells, *sweep, *asked], on_progress, processes)
    runs = {(cell.system, cell.load, cell.seed): found[cell] for cell in cells}
    told = [*_units(wanted)]
    tables: list[Table] = []
    if "C0.6" in wanted:
        told.append(_limits([run for run in runs.values() if run.cell.system == PROPOSAL_2]))
    if any(check in wanted for check in _FIGURES):
        judged, verdicts = claims.judged(runs, loads, seeds)
        told += judged
        tables += [*claims.figure_tables(runs, loads, seeds), verdicts]
    if asked:
        tables += region.tables(found, seeds[:_REGION_SEEDS])
    if sweep:
        tables += future.tables(found, seeds[:_SWEEP_SEEDS])
    told = [check for check in told if is_selected(check.id, checks)]
    told.sort(key=lambda check: (CHECKS.index(_without_letter(check.id)), check.id))
    figures: list[Figure | Boxes] = []
    for load in loads if checks is None else ():
        shown = {system: [runs[system, load, seed] for seed in seeds] for system in SYSTEMS}
        figures += claims.boxes(shown, f"load {float(load):g}")
    if asked:
        figures += region.figures(found, seeds[:_REGION_SEEDS])
    if sweep:
        figures += future.figures(found, seeds[:_SWEEP_SEEDS])
    return PaperReport(paper=PAPER, checks=tuple(told), tables=tuple(tables), notes=NOTES, figures=tuple(figures))


NOTES = (
    f"workload: {JOBS:,} jobs of the stand-in model hpc2500, on 11 nodes x 128 CPUs; the first {float(WARM_UP):.0%} of them are left out",
    f"every system gets the same jobs; loads {', '.join(f'{float(load):g}' for load in LOADS)} of the machine",
    "tables: means over the seeds; sd: standard deviation over them; in the table of claims 1 = holds, nothing = a tie",
    "conventional: the user names the queue, First-Fit in each queue over all CPUs; conventional_partitioned: queues on nodes of their own",
    f"'clearly above': more than {claims.CLEARLY:.0%} above; 'about equal': within {claims.CLEARLY:.0%}; of equals each is the lowest",
    "C0.8 to C0.11 depend on Kyoto's log, which is not public: they are reported, and nothing is tuned until they hold",
    "papers.md 1.4: the order between queues is open; here small queues first, so that they hardly ever wait in any system",
    (
        "C0.7: in s128, d32, d128 a job that came while another waited, and that no job of its own queue overtakes, never reserves (head "
        "reservation is for d512 only, as the paper has it): a stream of other queues can starve it; head_trigger of a class cures that"
    ),
    (
        "future work: a job with a reservation starts on what it is promised and nowhere else; in queues of small jobs, where First-Fit "
        "finds room soon, that makes the longest waits longer, not shorter"
    ),
)


def _cells(wanted: Sequence[str], seeds: Sequence[int], loads: Sequence[Fraction]) -> list[Paper000Run]:
    """The runs that these checks need."""
    systems = SYSTEMS if any(check in wanted for check in _FIGURES) else (PROPOSAL_2,) if "C0.6" in wanted else ()
    return [Paper000Run(system=system, load=load, seed=seed) for seed, load, system in product(seeds, loads, systems)]


def _run(cells: Sequence[Paper000Run], on_progress: Callable[[int, int], None], processes: int) -> dict[Paper000Run, Measured]:
    found: dict[Paper000Run, Measured] = {}
    pieces = [Piece(name=f"{c.system}, load {float(c.load):g}, seed {c.seed}", function=measured, arguments=(c,)) for c in cells]
    on_progress(0, len(pieces))
    for _, answer in in_processes(pieces, processes, reuse=True):
        found[answer.cell] = answer
        on_progress(len(found), len(pieces))
    return found


def _units(wanted: Sequence[str]) -> Iterator[PaperCheck]:
    if "C0.1" in wanted:
        yield unit.selection()
    if "C0.2" in wanted:
        yield from unit.constants()
    if not {"C0.3", "C0.4", "C0.5"}.isdisjoint(wanted):
        yield from unit.choices()
    if "C0.7" in wanted:
        yield from unit.starvation()


def _limits(runs: Sequence[Measured]) -> PaperCheck:
    """C0.6."""
    most = {queue.name: max(run.held.get(queue.name, 0) for run in runs) for queue in HPC2500}
    return PaperCheck(
        id="C0.6",
        what="the most reservations of a queue at one instant, less its limit of table 4 (ss8, s8: none), in all runs of proposal 2",
        ours={queue.name: most[queue.name] - queue.max_reservations for queue in HPC2500},
        rule=WithinBounds(at_most=0),
    )


def _without_letter(check_id: str) -> str:
    return check_id.rstrip("abcdefghijklmnopqrstuvwxyz")
