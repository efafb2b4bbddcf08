"""`rmgr admin export-events`: the live event log of the placing leader as a file for `rmgr sim replay`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

import click

from rmgr.cli.display.render import emit, harmless_json
from rmgr.cli.session.command import command
from rmgr.cli.session.context import Session
from rmgr.errors import NotFound
from rmgr.model.base.units import counted
from rmgr.model.cluster.servers import CALLS

if TYPE_CHECKING:
    from rmgr.coord.protocol.ports import Store

_PAGE = 1000
#: A leader writes pieces of 256 KiB, and a turn of its own more.
_MOST_PIECE_BYTES = 64 * 2**20


@command(
    "export-events",
    examples="""\
    rmgr admin export-events -o live.jsonl       the newest log: one leader, from its take-over on
    rmgr admin export-events --list              which logs there are
    rmgr admin export-events --partition gpu     one partition only, as a log of its own
    rmgr admin export-events --partition calls   which server each call was sent to, and why; numbered apart
    rmgr sim replay live.jsonl --policy fcfs     what another policy would have done""",
    exits="0 written; 2 the file exists; 3 there is no such log; 5 the store is away",
)
@click.option("-o", "--out", metavar="FILE", default="", help="where to; .gz packs it  [stdout]")
@click.option("--log", "which", metavar="EPOCH[.LOG]", default="", help="of this leader; a leader that read everything again has several")
@click.option("--partition", metavar="NAME", default="", help="facts and decisions of this partition only; calls: of the picks of servers")
@click.option("--list", "listed", is_flag=True, help="show the logs, write none")
def export_events(session: Session, out: str, which: str, partition: str, listed: bool) -> None:
    """Facts and decisions of the scheduler as they happened, one JSON object a line. The last seconds may be missing."""
    from rmgr.coord.protocol import keys

    store = session.data_store()
    family = keys.PICKS if partition == CALLS else keys.EVENTS
    logs = _logs(store, family)
    if listed:
        found = [(f"{epoch}.{log}", count) for (epoch, log), count in sorted(logs.items())]
        if session.json:
            emit({"logs": [{"log": name, "pieces": count} for name, count in found]})
        else:
            sys.stdout.writelines(f"{name}\t{counted(count, 'piece')}\n" for name, count in found)
        return
    from rmgr.procedures.bounded import row_of

    epoch, log = _chosen(logs, which, partition)
    rows = (row_of(store, keys.events(epoch, log, piece, family=family), _MOST_PIECE_BYTES) for piece in range(logs[epoch, log]))
    pieces: Iterator[str] = (row.decode(errors="replace") for row in rows if row is not None)
    if partition and partition != CALLS:
        pieces = _cut(pieces, partition, f"{epoch}.{log}")
    if not out:
        sys.stdout.writelines(map(harmless_json, pieces))
        return
    _write(out, pieces)
    session.note(f"log {epoch}.{log} is in {out}; rmgr sim replay {out}" + ("" if session.json else " --partial if its leader still leads"))
    if session.json:
        emit({"log": f"{epoch}.{log}", "file": out})


def _cut(pieces: Iterable[str], partition: str, log: str) -> Iterator[str]:
    """The lines of this partition. Raises: NotFound for one that the log does not know."""
    from rmgr.sched.state.event_log import Opening, decode, encode, only

    entries = (decode(line) for line in _lines(pieces))
    first = next(entries, None)
    if isinstance(first, Opening) and first.pipelines and partition not in first.pipelines:
        raise NotFound(f"log {log} has no partition {partition}", hint=f"it has {', '.join(sorted(first.pipelines))}")
    for entry in only(chain([first] if first is not None else [], entries), partition):
        yield encode(entry) + "\n"


def _lines(pieces: Iterable[str]) -> Iterator[str]:
    """Whole lines; what a dead leader wrote of the last one is left out."""
    rest = ""
    for piece in pieces:
        *whole, rest = (rest + piece).split("\n")
        yield from whole


def _logs(store: Store, family: str) -> dict[tuple[int, int], int]:
    """(epoch, log) -> how many pieces it has."""
    from rmgr.coord.protocol import keys

    found: dict[tuple[int, int], int] = {}
    after = ""
    while page := store.keys(keys.events_of(family=family), after=after, limit=_PAGE):
        for key in page:
            epoch, log, piece = keys.parse_events(key, family=family)
            found[epoch, log] = max(found.get((epoch, log), 0), piece + 1)
        after = page[-1]
    return found


def _chosen(logs: dict[tuple[int, int], int], which: str, partition: str) -> tuple[int, int]:
    if not logs:
        begins = "when a gateway reports its first server" if partition == CALLS else "as soon as a queue has dispatch = place"
        hint = f"the leader writes one {begins}; through a gateway only operators are shown it"
        raise NotFound("no scheduler's log is in the data store", hint=hint)
    if not which:
        return max(logs)
    epoch, _, log = which.partition(".")
    fitting = [known for known in logs if str(known[0]) == epoch and log in ("", str(known[1]))]
    if not fitting:
        names = ", ".join(f"{epoch}.{log}" for epoch, log in sorted(logs))
        calls = f" --partition {CALLS}" if partition == CALLS else ""
        raise NotFound(f"there is no log {which}; there are {names}", hint=f"rmgr admin export-events{calls} --list")
    return max(fitting)


def _write(out: str, pieces: Iterator[str]) -> None:
    from pathlib import Path

    from rmgr.sim.runs.output import new_log

    with new_log(Path(out)) as write:
        for piece in pieces:
            write(piece)
