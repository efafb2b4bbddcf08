"""How every paper is repeated (`Study`), and its report: checks (the paper's value, ours, spread, tolerance, verdict), tables, figures.

A verdict is computed from the numbers, never typed: a check names its rule, and whether it is required. The JSON is cli.md section 9.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from rmgr.sim.runs.parallel import OnProgress, measured

Number: TypeAlias = int | float
#: A number, or numbers by the name of their row; None: the paper (or nobody) gives one.
Value: TypeAlias = Number | Mapping[str, Number] | None
Cell: TypeAlias = str | int | float | None
Verdict: TypeAlias = Literal["pass", "fail", "expected", "reported"]

_ONLY = ""  # the row of a value that is one number


# -- rules: when a check holds --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Within:
    """Every one of our values is as near to the paper's: |ours - paper| <= absolute + relative x |paper|. Both 0: exactly equal."""

    absolute: Number = 0
    relative: Number = 0

    def holds(self, paper: Mapping[str, Number], ours: Mapping[str, Number]) -> bool:
        """Rows that either side does not have do not hold, nor does nothing at all."""
        return bool(ours) and paper.keys() == ours.keys() and all(
            abs(ours[row] - paper[row]) <= self.absolute + self.relative * abs(paper[row]) for row in paper
        )

    def tolerance(self) -> dict[str, Number]:
        return {"absolute": self.absolute, "relative": self.relative} if self.relative else {"absolute": self.absolute}


@dataclass(frozen=True, slots=True)
class WithinBounds:
    """Every one of our values lies in these limits, those that are given; for orderings, ours are ratios or differences."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperCheck:
    """One statement of papers.md and what we found.

    Attributes:
        id: as in papers.md, `C1.4`; parts of a check take a letter, `C1.4b`. what: the statement, one line.
        paper, ours: the values, rows of the same names where there are several. spread: of ours, standard deviation over the seeds.
        rule: when it holds. required: a failure fails the report; else the verdict is "reported".
        ties, decided: of a claim that compares bars, how many seeds compare equals, and how many decide; None: of no such claim.
        expected: of a required check that is known not to hold, the experiment that shows why; if it holds after all, it fails.
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
        """What the rule says of the numbers, required or not."""
        return self.rule.holds(rows_of(self.paper), rows_of(self.ours))

    @property
    def verdict(self) -> Verdict:
        if not self.required:
            return "reported"
        if self.expected:
            return "fail" if self.holds else "expected"
        return "pass" if self.holds else "fail"

    def document(self) -> dict[str, Any]:
        """Its JSON. `holds` says what the rule finds, for reported checks too."""
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
    """The value as rows; one number is the row of no name."""
    if value is None:
        return {}
    return value if isinstance(value, Mapping) else {_ONLY: value}


# -- tables and figures ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Numbers under names. title: unique in its report, the csv file is named after it. rows: as long as columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        """Raises ValueError when a row is not as long as the columns."""
        wrong = next((row for row in self.rows if len(row) != len(self.columns)), None)
        if wrong is not None:
            raise ValueError(f"table {self.title!r}: {len(self.columns)} columns, and a row of {len(wrong)}: {wrong}")

    @property
    def file_name(self) -> str:
        """`Figure 2: SR` -> `figure-2-sr.csv`."""
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
    """Point of a line: mean over the seeds at x, and the smallest and largest of them."""

    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Lines to draw when matplotlib is there. title: unique, the file is named after it. lines: (name, points); logarithmic: the y axis."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[tuple[str, tuple[Point, ...]], ...]
    logarithmic: bool = False

    def document(self) -> dict[str, Any]:
        """For figures.json: what `rmgr sim plot` draws it from."""
        lines = [{"name": name, "points": [list(point) for point in points]} for name, points in self.lines]
        return {
            "title": self.title,
            "x_label": self.x_label,
            "y_label": self.y_label,
            "logarithmic": self.logarithmic,
            "lines": lines,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes:
    """Boxes side by side in each group. title: unique. boxes: (name, its values in each of the groups); 0 has a place on the axis."""

    title: str
    y_label: str
    groups: tuple[str, ...]
    boxes: tuple[tuple[str, tuple[tuple[float, ...], ...]], ...]

    def document(self) -> dict[str, Any]:
        """For figures.json, as `Figure.document`."""
        boxes = [{"name": name, "values": [list(values) for values in groups]} for name, groups in self.boxes]
        return {"title": self.title, "y_label": self.y_label, "groups": list(self.groups), "boxes": boxes}


def slug(title: str) -> str:
    """A title as a file name: lower case, words joined by `-`."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


# -- the report -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperReport:
    """Report that `rmgr sim paper` prints and writes. paper: "001". notes: errata and readings, a line each. figures: not in the JSON."""

    paper: str
    checks: tuple[PaperCheck, ...]
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    figures: tuple[Figure | Boxes, ...] = field(default=())

    @property
    def passes(self) -> bool:
        """No required check fails, and none that is listed as not holding holds."""
        return not any(check.verdict == "fail" for check in self.checks)

    def document(self) -> dict[str, Any]:
        return {
            "schema": "rmgr/1",
            "paper": self.paper,
            "checks": [check.document() for check in self.checks],
            "tables": [table.document() for table in self.tables],
            "notes": list(self.notes),
        }


# -- asked, run, reported -------------------------------------------------------------------------------------------------------


Run = TypeVar("Run", bound=Hashable)
Found = TypeVar("Found")


class Runs(Generic[Run, Found]):
    """What was measured, by what was run; a paper adds how its checks and tables ask.

    Before anything was run (`found` None) each run that somebody asks for is taken down in `asked`, and answered by `unknown`.
    measure: as in `measured`. remarks: notes on this extent of it.
    """

    remarks: tuple[str, ...] = ()

    def __init__(self, seeds: Sequence[int], unknown: Found, measure: Callable[[Run], Found], *, quick: bool = False) -> None:
        self.seeds, self.quick = tuple(seeds), quick
        self.asked: dict[Run, None] = {}
        self.found: Mapping[Run, Found] | None = None
        self._unknown, self._measure = unknown, measure

    def run(self, processes: int, on_progress: OnProgress) -> Mapping[Run, Found]:
        """Everything that was asked for, once. Raises: RmgrError for a run that failed."""
        return measured(self.asked, self._measure, processes=processes, on_progress=on_progress)

    def __getitem__(self, run: Run) -> Found:
        if self.found is None:
            self.asked[run] = None
            return self._unknown
        return self.found[run]


Of = TypeVar("Of", bound=Runs[Any, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Study(Generic[Of]):
    """A paper that can be repeated: its statements, and what is shown beside them. All of it is written from its `Runs`.

    runs: of these seeds; quick: less of it, at most some 80 s of a processor. seeds, quick_seeds: how many are run when nothing is said.
    checks: by id of papers.md, without the letters of parts. notes: errata and readings. expected: of required checks that are known
    not to hold, the experiment that shows why.
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
        """Writes the checks that are wanted twice: to learn which runs they need, and from what was measured.

        Args:
            wanted: None: all of them, with tables, figures and notes. processes: at a time.
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
    """Over the seeds. Raises StatisticsError for none."""
    return fmean(values)


def spread(values: Sequence[Number]) -> float:
    """Sample standard deviation over the seeds; 0 for one."""
    return stdev(values) if len(values) > 1 else 0.0


def _plain(value: Value) -> Any:
    return dict(value) if isinstance(value, Mapping) else value
