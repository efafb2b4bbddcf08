"""Replications over processes: one cell is a policy in a case with some seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rmgr.errors import RmgrError
from rmgr.sched.catalogue import call_policy_named
from rmgr.sched.policy import Policy
from rmgr.sim.calls.scenario import Scenario
from rmgr.sim.calls.world import Replication, replicate
from rmgr.sim.runs.cells import measured

#: (name, parameters) -> the policy for calls.
Make: TypeAlias = Callable[[str, Mapping[str, object]], Policy]
#: Seeds that one process takes at a time.
CHUNK = 25


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy, by name and parameters, in one case. make: the policy of a name; a function of a module, for other processes."""

    scenario: Scenario
    case: str
    policy: str
    params: tuple[tuple[str, str], ...]
    seeds: tuple[int, ...]
    make: Make = call_policy_named

    def __str__(self) -> str:
        return f"{self.policy} in case {self.case} of {self.scenario.name}"


def run_cell(cell: Cell) -> tuple[Replication, ...]:
    """Its replications, in order of seeds. Raises: RmgrError for a policy that fails."""
    case = cell.scenario.case(cell.case)
    try:
        return tuple(replicate(cell.scenario, case, cell.make(cell.policy, dict(cell.params)), seed=seed) for seed in cell.seeds)
    except RuntimeError as error:
        raise RmgrError(f"{cell}: {error}") from error


def replications(
    scenario: Scenario,
    policies: Iterable[tuple[str, tuple[tuple[str, str], ...]]],
    seeds: Sequence[int],
    *,
    make: Make = call_policy_named,
    processes: int = 1,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Mapping[tuple[str, str], tuple[Replication, ...]]:
    """(policy, case) -> its replications, in order of seeds.

    Args:
        policies: (name, parameters); a name stands once. make: as in `Cell`. processes: at a time.
    Raises: RmgrError for a policy that fails.
    """
    chunks = [tuple(seeds[at : at + CHUNK]) for at in range(0, len(seeds), CHUNK)]
    wanted = [(name, params, case.name) for name, params in policies for case in scenario.cases]
    cells = [Cell(scenario, case, name, params, chunk, make) for name, params, case in wanted for chunk in chunks]
    found = measured(cells, run_cell, processes=processes, on_progress=on_progress)
    return {
        (name, case): tuple(one for chunk in chunks for one in found[Cell(scenario, case, name, params, chunk, make)])
        for name, params, case in wanted
    }
