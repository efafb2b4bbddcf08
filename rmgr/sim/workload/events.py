"""Events of a simulated cluster besides its jobs: failures and repairs, drains, fail-overs, maintenance, cancellations, limits.

They are drawn (`Failures`), or read from a file of JSON lines (`read_events`), where every error names line and field:

```
{"at": 3600,  "event": "fail",        "nodes": "0-3 7"}
{"at": "2h",  "event": "repair",      "nodes": "0-3 7"}
{"at": "1d",  "event": "drain",       "nodes": "8"}            and "undrain"
{"at": 90000, "event": "fail_over",   "for": 30}
{"at": 0,     "event": "maintenance", "nodes": "0-9", "start": "7d", "end": "7d4h", "name": "new cooling"}
{"at": 500.5, "event": "cancel",      "job": 17}
{"at": 0,     "event": "limits",      "max_cpus_per_user": 64, "max_jobs_per_user": 4, "max_cpus_per_account": 0, "max_time": "12h"}
```
Times: seconds after the first submit as a number, or a duration as text. Jobs: numbers of jobs.csv. The default partition is `default`.
Empty lines and lines that begin with `#` are skipped; lines may be in any order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from heapq import heapify, heapreplace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from rmgr.errors import UNREADABLE_TEXT, UsageError, nearest
from rmgr.model.units import parse_duration_us
from rmgr.sched.records import Limits
from rmgr.sim.workload.jobs import stream

#: Node ids as inclusive ranges ((0, 3), (7, 7)).
NodeRanges: TypeAlias = tuple[tuple[int, int], ...]
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)
_LATEST_S = 10**12
_HINT = "rmgr sim run --help shows one line of each kind"


class NodesFail(NamedTuple):
    """Failure of nodes: running jobs are lost, nothing starts there until the repair. drawn: by the failure model."""

    at_us: int
    nodes: NodeRanges
    drawn: bool = False


class NodesRepaired(NamedTuple):
    at_us: int
    nodes: NodeRanges
    drawn: bool = False


class NodesDrain(NamedTuple):
    """Drain of nodes: running jobs go on, nothing starts there any more."""

    at_us: int
    nodes: NodeRanges


class NodesUndrain(NamedTuple):
    at_us: int
    nodes: NodeRanges


class FailOver(NamedTuple):
    """Death of the leader. There is no pass until another leader takes over, `for_us` later, from the records alone."""

    at_us: int
    for_us: int


class Window(NamedTuple):
    """Announcement at `at_us` that nothing may run on these nodes in [start, end)."""

    at_us: int
    start_us: int
    end_us: int
    nodes: NodeRanges
    name: str


class Cancel(NamedTuple):
    """Cancellation of a job by its user, whether it waits, runs, or is still to come."""

    at_us: int
    job: int


class LimitsChange(NamedTuple):
    at_us: int
    partition: str
    limits: Limits


class TakeOver(NamedTuple):
    """Take-over by another leader; follows a `FailOver`."""

    at_us: int


class WindowBegins(NamedTuple):
    """Begin of a maintenance window: jobs that still run there are lost; follows a `Window`."""

    at_us: int
    nodes: NodeRanges


class WindowEnds(NamedTuple):
    at_us: int
    id: int


class SlotEnds(NamedTuple):
    """End of a turn of a gang's row. gang: its partition and its name."""

    at_us: int
    gang: tuple[str, str]
    serial: int


Upset: TypeAlias = NodesFail | NodesRepaired | NodesDrain | NodesUndrain | FailOver | Window | Cancel | LimitsChange
Event: TypeAlias = Upset | TakeOver | WindowBegins | WindowEnds | SlotEnds


@dataclass(frozen=True, slots=True)
class Failures:
    """Each node fails and is repaired independently: times between are exponential with these means (us, > 0)."""

    mtbf_us: int
    mttr_us: int

    def of(self, nodes: Sequence[int], seed: int) -> Iterator[NodesFail | NodesRepaired]:
        """Yields the endless sequence for these nodes, in order of (time, node): the same under every policy. Space O(nodes)."""
        draw = stream(seed, "failures").expovariate
        upset, mend = 1 / self.mtbf_us, 1 / self.mttr_us
        coming = [(1 + int(draw(upset)), node, False) for node in nodes]  # (time, node, whether it is down until then)
        heapify(coming)
        while coming:
            at_us, node, down = coming[0]
            heapreplace(coming, (at_us + 1 + int(draw(upset if down else mend)), node, not down))
            yield (NodesRepaired if down else NodesFail)(at_us, ((node, node),), True)


def read_events(path: str | Path) -> tuple[Event, ...]:
    """Reads the events of a file, sorted by time (equal times: by line). Raises: UsageError with line and field."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}", hint="JSON, one event a line") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no text: byte {error.start} is not UTF-8", hint="JSON, one event a line") from error
    events = [
        _Line(f"{path}, line {number}", line).event()
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    return tuple(sorted(events, key=lambda event: event.at_us))


class _Line:
    """One line: each field is read once; fields left over are an error."""

    def __init__(self, where: str, text: str) -> None:
        self._where = where
        try:
            found = json.loads(text, parse_float=Decimal)
        except UNREADABLE_TEXT as error:
            raise UsageError(f"{where}: no JSON: {error}", hint=_HINT) from error
        if not isinstance(found, dict):
            raise UsageError(f"{where}: an event is an object, as {{...}}, not {type(found).__name__}", hint=_HINT)
        self._found: dict[str, Any] = found

    def event(self) -> Event:
        kind = self._take("event")
        make = _KINDS.get(kind) if isinstance(kind, str) else None
        if make is None:
            raise self._wrong("event", kind, nearest(str(kind), _KINDS, cutoff=0.5))
        made = make(self)
        for left in self._found:
            raise UsageError(f"{self._where}, field {left}: an event {kind!r} has no such field", hint=_HINT)
        return made

    def time(self, name: str) -> int:
        given = self._take(name)
        if isinstance(given, str):
            try:
                return parse_duration_us(given)
            except UsageError as error:
                raise self._wrong(name, given, error.hint) from error
        if isinstance(given, bool) or not isinstance(given, int | Decimal) or not 0 <= given <= _LATEST_S:
            raise self._wrong(name, given, "seconds after the first submit, as 3600 or 0.5, or a duration, as 1h30m")
        return round(given * 1_000_000)

    def nodes(self) -> NodeRanges:
        given = self._take("nodes")
        words = given.replace(",", " ").split() if isinstance(given, str) else [str(given)] if type(given) is int else []
        ranges = []
        for word in words:
            found = _RANGE.fullmatch(word)
            if found is None or int(found[2] or found[1]) < int(found[1]):
                raise self._wrong("nodes", given, "ids and ranges of ids, as 0-3 7")
            ranges.append((int(found[1]), int(found[2] or found[1])))
        if not ranges:
            raise self._wrong("nodes", given, "ids and ranges of ids, as 0-3 7")
        ranges.sort()
        return tuple(ranges)

    def number(self, name: str, least: int, default: int | None = None) -> int:
        given = self._take(name) if default is None or name in self._found else default
        if type(given) is not int or given < least:
            raise self._wrong(name, given, f"a whole number, at least {least}")
        return given

    def text(self, name: str, default: str) -> str:
        given = self._found.pop(name, default)
        if not isinstance(given, str):
            raise self._wrong(name, given, "text")
        return given

    def window(self) -> Window:
        at_us, start_us, end_us = self.time("at"), self.time("start"), self.time("end")
        if not at_us <= start_us < end_us:
            raise UsageError(f"{self._where}, field start: a window lies after `at` and ends after it starts", hint=_HINT)
        return Window(at_us, start_us, end_us, self.nodes(), self.text("name", "maintenance"))

    def limits(self) -> LimitsChange:
        at_us, partition = self.time("at"), self.text("partition", "default")
        given = {field.name: self.number(field.name, 0, 0) for field in fields(Limits) if field.name != "max_time_us"}
        longest_us = self.time("max_time") if "max_time" in self._found else 0
        return LimitsChange(at_us, partition, Limits(**given, max_time_us=longest_us))

    def _take(self, name: str) -> Any:
        if name not in self._found:
            raise UsageError(f"{self._where}, field {name}: it is missing", hint=_HINT)
        return self._found.pop(name)

    def _wrong(self, name: str, given: object, hint: str) -> UsageError:
        shown = given if isinstance(given, str) else str(given)
        return UsageError(f"{self._where}, field {name}: {shown[:40]!r} is not possible", hint=hint)


_KINDS: Mapping[str, Callable[[_Line], Event]] = {
    "fail": lambda line: NodesFail(line.time("at"), line.nodes()),
    "repair": lambda line: NodesRepaired(line.time("at"), line.nodes()),
    "drain": lambda line: NodesDrain(line.time("at"), line.nodes()),
    "undrain": lambda line: NodesUndrain(line.time("at"), line.nodes()),
    "fail_over": lambda line: FailOver(line.time("at"), line.time("for")),
    "maintenance": _Line.window,
    "cancel": lambda line: Cancel(line.time("at"), line.number("job", 1)),
    "limits": _Line.limits,
}
