"""A sweep as it was written: results.csv with its policies, loads and seeds, and what its manifest says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmgr.errors import UsageError
from rmgr.sim.plots.parts.reading import MANIFEST, counted, policy_name, read_columns, read_json

RESULTS = "results.csv"
#: Of a run, that pictures of sweeps and comparisons show.
MEASURES = ("mean_waiting_time", "mean_bounded_slowdown", "utilisation")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResults:
    """path: of results.csv. title: its workload. rows: one a run, numbers as floats; `load` is None where none was asked for."""

    path: Path
    title: str
    rows: Sequence[Mapping[str, Any]]

    @property
    def loads(self) -> list[float | None]:
        """In ascending order."""
        return sorted({row["load"] for row in self.rows}, key=lambda load: -1.0 if load is None else load)

    @property
    def facts(self) -> list[str]:
        """For the second line of a title."""
        jobs = {int(row["jobs"]) for row in self.rows if "jobs" in row}
        told = [counted(jobs.pop(), "job")] if len(jobs) == 1 else []
        return [*told, counted(len({row["seed"] for row in self.rows}), "seed")]

    def groups(self) -> dict[tuple[str, float | None], list[Mapping[str, Any]]]:
        """(policy, load) -> its runs, one a seed; in the order of the file."""
        found: dict[tuple[str, float | None], list[Mapping[str, Any]]] = {}
        for row in self.rows:
            found.setdefault((row["policy"], row["load"]), []).append(row)
        return found


def read_sweep(directory: Path) -> SweepResults:
    """Raises: UsageError for a sweep that has not ended, or damage (file, line and column are named)."""
    path = directory / RESULTS
    if not path.exists():
        raise UsageError(
            f"{directory} is a sweep that has not ended: {RESULTS} is not there", hint="the same rmgr sim sweep command goes on"
        )
    table = read_columns(path)
    if not table.lines:
        raise UsageError(f"{path} holds no run, so there is nothing to draw")
    loads = table.numbers("load", empty=True, least=0).tolist()
    columns: dict[str, Sequence[Any]] = {
        "name": table.texts("name"),
        "policy": [policy_name(policy) for policy in table.texts("policy")],
        "load": [None if text == "" else load for text, load in zip(table.texts("load"), loads, strict=True)],
    }
    columns |= {name: table.numbers(name, least=0).tolist() for name in ("seed", *MEASURES)}
    if "jobs" in table.by_name:
        columns["jobs"] = table.numbers("jobs", least=0).tolist()
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    return SweepResults(path=path, title=_source(directory), rows=rows)


def _source(directory: Path) -> str:
    """The workload as the manifest names it, without directories and suffixes; the directory's name without one."""
    manifest = directory / MANIFEST
    runs = read_json(manifest).get("runs") if manifest.is_file() else None
    source = runs[0].get("source", "") if isinstance(runs, list) and runs and isinstance(runs[0], dict) else ""
    name = Path(str(source)).name
    for suffix in (".gz", ".swf", ".txt"):
        name = name.removesuffix(suffix)
    return name or directory.absolute().name
