"""The runs that checks and tables need: the same functions first say which, then read what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rmgr.sim.calls.runs import CHUNK, Cell, Summary, run_cell, summed
from rmgr.sim.calls.scenario import Scenario, scenario_named
from rmgr.sim.calls.world import Replication
from rmgr.sim.runs.parallel import measured

_ANY = {"A": 1.0, "B": 1.0, "fast": 1.0, "slow": 1.0, "vector": 1.0, "workstation": 1.0}
#: What stands for a summary before anything was run.
UNKNOWN = Summary(
    computing_s=1.0,
    transfer_s=1.0,
    total_s=1.0,
    half_width_s=0.0,
    spread_s=0.0,
    busy=_ANY,
    chosen=_ANY,
    throughput=_ANY,
    response_s={},
    requests_per_s=1.0,
    makespan_s=1.0,
    error=0.0,
    belief=0.0,
)


@dataclass(frozen=True, slots=True)
class Group:
    """One policy in one case, over all seeds."""

    scenario: Scenario
    case: str
    policy: str
    params: tuple[tuple[str, str], ...]


class Runs:
    """Summaries of groups. Before anything was run (`found` None) it takes down what is asked, and answers `UNKNOWN`."""

    def __init__(self, seeds: Sequence[int], found: Mapping[Group, Summary] | None = None) -> None:
        self.seeds = tuple(seeds)
        self.asked: dict[Group, None] = {}
        self._found = found
        self._scenarios: dict[str, Scenario] = {}

    def of(self, scenario: str, policy: str, case: str, *, change: Mapping[str, Any] | None = None, **params: str) -> Summary:
        """change: fields of the scenario that are replaced."""
        known = self._scenarios.setdefault(scenario, scenario_named(scenario))
        group = Group(replace(known, **change) if change else known, case, policy, tuple(sorted(params.items())))
        if self._found is None:
            self.asked[group] = None
            return UNKNOWN
        return self._found[group]

    def windowed(self, window: str) -> Summary:
        """`call_many` with this window."""
        clients = self._scenarios.setdefault("ninf_many", scenario_named("ninf_many")).clients
        change = {"clients": tuple(replace(client, window=window) for client in clients)}  # type: ignore[arg-type]  # one of its words
        return self.of("ninf_many", "loth+lt", "at once", change=change)


def run(
    asked: Sequence[Group], seeds: Sequence[int], *, processes: int, on_progress: Callable[[int, int], None]
) -> Mapping[Group, Summary]:
    """Runs every group once, in chunks of seeds. Raises: RmgrError for a run that failed."""
    chunks = [tuple(seeds[at : at + CHUNK]) for at in range(0, len(seeds), CHUNK)]
    cells = {(group, chunk): Cell(group.scenario, group.case, group.policy, group.params, chunk) for group in asked for chunk in chunks}
    found = measured(cells.values(), run_cell, processes=processes, on_progress=on_progress)
    together: dict[Group, list[Replication]] = {group: [] for group in asked}
    for (group, _), cell in cells.items():
        together[group] += found[cell]
    return {group: summed(replications) for group, replications in together.items()}
