"""Writes and reads what `rmgr sim calls --out` keeps: calls.csv (a row a call), summary.json, manifest.json."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rmgr.errors import UsageError
from rmgr.sim.calls.request import CallRequest
from rmgr.sim.calls.results import Summary
from rmgr.sim.calls.world import Replication
from rmgr.sim.runs.output import whole_directory, write_json

CALLS, SUMMARY = "calls.csv", "summary.json"
COLUMNS = ("policy", "case", "seed", "call", "client", "server", "issued", "sent", "arrived", "ended", "predicted")


@dataclass(frozen=True, slots=True)
class CallRow:
    """A call of calls.csv; times in seconds. sent to arrived: transfer; arrived to ended: computing."""

    policy: str
    case: str
    seed: int
    call: int
    client: str
    server: str
    issued_s: float
    sent_s: float
    arrived_s: float
    ended_s: float


def write(
    out: Path,
    found: Mapping[tuple[str, str], Sequence[Replication]],
    summaries: Mapping[tuple[str, str], Summary],
    seeds: Sequence[int],
    manifest: Mapping[str, Any],
) -> None:
    """All files, or none. Raises: as `whole_directory`."""
    with whole_directory(out) as partial:
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(COLUMNS)
        for (policy, case), replications in found.items():
            for seed, one in zip(seeds, replications, strict=True):
                lines.writerows((policy, case, seed, *_times(request)) for request in one.requests)
        (partial / CALLS).write_text(text.getvalue(), encoding="utf-8")
        write_json(partial / SUMMARY, document(summaries))
        write_json(partial / "manifest.json", manifest)


def document(summaries: Mapping[tuple[str, str], Summary]) -> dict[str, Any]:
    """As JSON."""
    rows = [{"policy": policy, "case": case, **asdict(summary)} for (policy, case), summary in summaries.items()]
    return {"schema": "rmgr/1", "calls": rows}


def read(directory: Path) -> tuple[CallRow, ...]:
    """The calls of a directory, in order of the file. Raises: UsageError for damaged ones."""
    path = directory / CALLS
    try:
        return tuple(_rows(path.read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} cannot be used: {error}", hint="a directory that rmgr sim calls --out wrote is meant") from error


def _rows(text: str) -> Iterator[CallRow]:
    for line in csv.DictReader(io.StringIO(text)):
        times = (float(line[name]) for name in ("issued", "sent", "arrived", "ended"))
        yield CallRow(line["policy"], line["case"], int(line["seed"]), int(line["call"]), line["client"], line["server"], *times)


def _times(request: CallRequest) -> tuple[object, ...]:
    seconds = (request.issued_s, request.sent_s, request.arrived_s, request.ended_s, request.predicted_s)
    return (request.number, request.client, request.server, *(f"{value:.6f}" for value in seconds))
