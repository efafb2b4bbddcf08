"""Many simulations of one paper: each cell is measured once, over processes, with progress; what is not asked for is not run."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from rmgr.sim.runs.parallel import Piece, StillWanted, in_processes

Cell = TypeVar("Cell", bound=Hashable)
Measures = TypeVar("Measures")
#: Called with (finished runs, all runs) at the beginning and whenever one ends.
OnProgress = Callable[[int, int], None]


def measured(
    cells: Iterable[Cell],
    measure: Callable[[Cell], Measures],
    *,
    processes: int = 1,
    on_progress: OnProgress = lambda _done, _total: None,
) -> dict[Cell, Measures]:
    """What `measure` finds for each cell.

    Args:
        cells: frozen values that decide one run; asked for twice, they are run once. In the order in which they are begun.
        measure: a function of a module, so that another process can call it; its answer is picklable and small.
        processes: at a time; 1 runs them here.
    Raises: RmgrError for a run that failed. KeyboardInterrupt ends the processes.
    """
    wanted = list(dict.fromkeys(cells))
    found: dict[Cell, Measures] = {}
    on_progress(0, len(wanted))
    if processes <= 1:
        for cell in wanted:
            found[cell] = measure(cell)
            on_progress(len(found), len(wanted))
        return found
    pieces = (Piece(name=str(cell), function=_one, arguments=(measure, cell)) for cell in wanted)
    for piece, answer in in_processes(pieces, min(processes, len(wanted)), reuse=True):
        found[piece.arguments[1]] = answer
        on_progress(len(found), len(wanted))
    return {cell: found[cell] for cell in wanted}


def _one(still_wanted: StillWanted, measure: Callable[[Cell], Measures], cell: Cell) -> Measures:
    still_wanted()
    return measure(cell)
