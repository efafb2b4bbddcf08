"""How every paper is repeated (`Study`), and its report: checks (the paper's value, ours, spread, tolerance, verdict), tables, figures.

A verdict is computed from the numbers, never typed: a check names its rule and whether it is required. cli.md section 9 has the JSON.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from rmgr.sim.runs.parallel import OnProgress, measured

Number: TypeAlias = int | float
#: A number, numbers by the name of their row, or None if there is no value.
Value: TypeAlias = Number | Mapping[str, Number] | None
Cell: TypeAlias = str | int | float | None
Verdict: TypeAlias = Literal["pass", "fail", "expected", "reported"]

_ONLY = ""  # row name of a value that is a single number


# -- rules: when a check holds --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Within:
    """Each of our values is close to the paper's: |ours - paper| <= absolute + relative x |paper|. Both 0: exactly equal."""

    absolute: Number = 0
    relative: Number = 0

    def holds(self, paper: Mapping[str, Number], ours: Mapping[str, Number]) -> bool:
        """Returns whether the rule holds; it does not if one side lacks a row, or without any rows."""
        return bool(ours) and paper.keys() == ours.keys() and all(
            abs(ours[row] - paper[row]) <= self.absolute + self.relative * abs(paper[row]) for row in paper
        )

    def tolerance(self) -> dict[str, Number]:
        return {"absolute": self.absolute, "relative": self.relative} if self.relative else {"absolute": self.absolute}


@dataclass(frozen=True, slots=True)
class WithinBounds:
    """Each of our values lies within the given limits. For orderings, our values are ratios or differences."""

    above: Number | None = None
    at_least: Number | None = None
    below: Number | None = None
    at_most: Number | None = None

    def holds(self, _paper: Mapping[str, Number], ours: Mapping[str, Number]) -> bool:
        return bool(ours) and all(self._in(value) for value in ours.values())

    def tolerance(self) -> dict[str, Number]:
        limits = {"above": self.above, "at_least": self.at_least, "below": self.below, "at_most": self.at_most}
        return {name: limit for name, limit in limits.items() if limit is not None}

    def _in(self, value: Number) -> bool:
        return (
            (self.above is None or value > self.above)
            and (self.at_least is None or value >= self.at_least)
            and (self.below is None or value < self.below)
            and (self.at_most is None or value <= self.at_most)
        )


Rule: TypeAlias = Within | WithinBounds


# -- checks ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PaperCheck:
    """One statement of papers.md and what we found.

    Attributes:
        id: as in papers.md, `C1.4`; parts of a check take a letter, `C1.4b`. what: the statement, one line.
        paper, ours: the values; if there are several, rows with the same names. spread: standard deviation of ours over the seeds.
        rule: when the check holds. required: a failure fails the report; else the verdict is "reported".
        ties, decided: for a claim that compares bars, how many seeds have equal bars, and how many decide; None for other checks.
        expected: the experiment that shows why a required check does not hold; if the check holds after all, its verdict is "fail".
    """

    id: str
    what: str
    ours: Value
    rule: Rule
    paper: Value = None
    spread: Value = None
    required: bool = True
    expected: str = ""
    ties: Value = None
    decided: Value = None

    @property
    def holds(self) -> bool:
        """Returns whether the rule holds for the numbers, required or not."""
        return self.rule.holds(rows_of(self.paper), rows_of(self.ours))

    @property
    def verdict(self) -> Verdict:
        if not self.required:
            return "reported"
        if self.expected:
            return "fail" if self.holds else "expected"
        return "pass" if self.holds else "fail"

    def document(self) -> dict[str, Any]:
        """Returns the check's JSON. `holds` is the result of the rule, also for reported checks."""
        counted = {} if self.ties is None else {"ties": _plain(self.ties), "decided": _plain(self.decided)}
        return {
            "id": self.id,
            "what": self.what,
            "paper": _plain(self.paper),
            "ours": _plain(self.ours),
            "spread": _plain(self.spread),
            "tolerance": self.rule.tolerance(),
            "verdict": self.verdict,
            "holds": self.holds,
            "experiment": self.expected or None,
            **counted,
        }


def rows_of(value: Value) -> Mapping[str, Number]:
    """Returns the value as rows; a single number is the row named ""."""
    if value is None:
        return {}
    return value if isinstance(value, Mapping) else {_ONLY: value}


# -- tables and figures ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Named columns of numbers. title: unique in its report; names the CSV file. rows: each as long as columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        """Raises: ValueError for a row that is not as long as the columns."""
        wrong = next((row for row in self.rows if len(row) != len(self.columns)), None)
        if wrong is not None:
            raise ValueError(f"table {self.title!r}: {len(self.columns)} columns, and a row of {len(wrong)}: {wrong}")

    @property
    def file_name(self) -> str:
        """Returns the name of the CSV file: `Figure 2: SR` -> `figure-2-sr.csv`."""
        return f"{slug(self.title)}.csv"

    def csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(["" if cell is None else cell for cell in row] for row in self.rows)
        return text.getvalue()

    def document(self) -> dict[str, Any]:
        return {"title": self.title, "columns": list(self.columns), "rows": [list(row) for row in self.rows]}


class Point(NamedTuple):
    """Point of a line: mean over the seeds at x, and their smallest and largest value."""

    x: float
    y: float
    low: float
    high: float

    @classmethod
    def of(cls, x: float, values: Sequence[float]) -> Point:
        return cls(x, mean(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """values: in each of the groups, perhaps none."""

    name: str
    values: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Lines to draw if matplotlib is installed. title: unique; names the file. logarithmic: the y axis."""

    title: str
    x_label: str
    y_label: str
    logarithmic: bool = False
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes:
    """Boxes side by side in each group. title: unique."""

    title: str
    y_label: str
    groups: tuple[str, ...]
    boxes: tuple[Box, ...]


def slug(title: str) -> str:
    """Returns a title as a file name: lower case, words joined by `-`."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


# -- the report -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperReport:
    """Report that `rmgr sim paper` prints and writes. paper: "001". notes: errata and readings, one per line. figures: not in the JSON."""

    paper: str
    checks: tuple[PaperCheck, ...]
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    figures: tuple[Figure | Boxes, ...] = field(default=())

    @property
    def passes(self) -> bool:
        """Returns whether no required check fails. A check that is listed as not holding fails if it holds."""
        return not any(check.verdict == "fail" for check in self.checks)

    def document(self) -> dict[str, Any]:
        return {
            "schema": "rmgr/1",
            "paper": self.paper,
            "checks": [check.document() for check in self.checks],
            "tables": [table.document() for table in self.tables],
            "notes": list(self.notes),
        }

    def figures_document(self) -> dict[str, Any]:
        """Returns figures.json, from which `rmgr sim plot` draws them."""
        return {"figures": msgspec.to_builtins(self.figures)}


# -- asked, run, reported -------------------------------------------------------------------------------------------------------


Run = TypeVar("Run", bound=Hashable)
Found = TypeVar("Found")


class Runs(Generic[Run, Found]):
    """Runs and their measurements. A paper's subclass adds the questions of its checks and tables.

    Before anything has run (`found` is None), each run that is asked for is recorded in `asked` and answered by `unknown`.
    measure: as in `measured`. remarks: notes on this set of runs.
    """

    remarks: tuple[str, ...] = ()

    def __init__(self, seeds: Sequence[int], unknown: Found, measure: Callable[[Run], Found], *, quick: bool = False) -> None:
        self.seeds, self.quick = tuple(seeds), quick
        self.asked: dict[Run, None] = {}
        self.found: Mapping[Run, Found] | None = None
        self._unknown, self._measure = unknown, measure

    def run(self, processes: int, on_progress: OnProgress) -> Mapping[Run, Found]:
        """Measures each run that was asked for once. Raises: RmgrError for a run that failed."""
        return measured(self.asked, self._measure, processes=processes, on_progress=on_progress)

    def __getitem__(self, run: Run) -> Found:
        if self.found is None:
            self.asked[run] = None
            return self._unknown
        return self.found[run]


Of = TypeVar("Of", bound=Runs[Any, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Study(Generic[Of]):
    """A paper that can be repeated: its checks, and the tables and figures beside them, all written from its `Runs`.

    runs: makes the `Runs` from seeds; with quick=True fewer runs, at most about 80 s of processor time. seeds, quick_seeds: default
    numbers of seeds. checks: by id of papers.md, without the letters of parts. notes: errata and readings. expected: id of a required
    check that is known not to hold -> the experiment that shows why.
    """

    paper: str
    runs: Callable[..., Of]
    seeds: int
    quick_seeds: int
    checks: Mapping[str, Callable[[Of], Iterator[PaperCheck]]]
    tables: Callable[[Of], Iterable[Table]]
    figures: Callable[[Of], Iterable[Figure | Boxes]]
    notes: tuple[str, ...]
    expected: Mapping[str, str] = field(default_factory=dict)

    def report(
        self,
        runs: Of,
        wanted: Sequence[str] | None = None,
        *,
        processes: int = 1,
        on_progress: OnProgress = lambda _done, _total: None,
    ) -> PaperReport:
        """Writes the wanted checks twice: first to learn which runs they need, then from the measurements.

        Args:
            wanted: ids of checks; None means all of them, with tables, figures and notes. processes: how many run at a time.
        Raises: RmgrError for a run that failed.
        """
        self._written(runs, wanted)
        runs.found = runs.run(processes, on_progress)
        return self._written(runs, wanted)

    def _written(self, runs: Of, wanted: Sequence[str] | None) -> PaperReport:
        names = self.checks if wanted is None else wanted
        checks = tuple(replace(one, expected=self.expected.get(one.id, "")) for name in names for one in self.checks[name](runs))
        if wanted is not None:
            return PaperReport(paper=self.paper, checks=checks, notes=runs.remarks)
        tables, figures = tuple(self.tables(runs)), tuple(self.figures(runs))
        return PaperReport(paper=self.paper, checks=checks, tables=tables, notes=(*self.notes, *runs.remarks), figures=figures)


# -- over the seeds -------------------------------------------------------------------------------------------------------------


def mean(values: Iterable[Number]) -> float:
    """Returns the mean over the seeds. Raises: StatisticsError without values."""
    return fmean(values)


def spread(values: Sequence[Number]) -> float:
    """Returns the sample standard deviation over the seeds; 0 for a single seed."""
    return stdev(values) if len(values) > 1 else 0.0


def over_seeds(
    values: Sequence[Number] | Mapping[str, Sequence[Number]], middle: Callable[[Sequence[Number]], Number] = mean
) -> dict[str, Any]:
    """Returns `ours` and `spread` of a check: the mean, or another middle, of one value per seed, or of each row of such values."""
    if isinstance(values, Mapping):
        return {"ours": {row: middle(its) for row, its in values.items()}, "spread": {row: spread(its) for row, its in values.items()}}
    return {"ours": middle(values), "spread": spread(values)}


def _plain(value: Value) -> Any:
    return dict(value) if isinstance(value, Mapping) else value
