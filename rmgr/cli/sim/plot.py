"""`rmgr sim plot`: pictures of runs, sweeps and reports, without a display; needs the extra `plots`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rmgr.cli.display.render import emit
from rmgr.cli.session.command import command
from rmgr.cli.session.context import Session
from rmgr.cli.words.params import DURATION, one_of
from rmgr.errors import UsageError

#: As `rmgr.sim.plots.pictures.KINDS` and `FORMS` have them; here, so that the help needs no matplotlib.
KINDS = ("gantt", "utilisation", "waits", "compare", "load", "tables", "figures", "matrix", "front", "calls")
FORMS = ("png", "svg", "both")


@command(
    "plot",
    examples="""\
    rmgr sim plot out/easy
    rmgr sim plot out/fcfs out/easy --kind waits --kind compare --format both --out pictures
    rmgr sim plot out/easy --kind gantt --from 2d --to 3d12h
    rmgr sim plot out/sweep --kind load --format svg
    rmgr queues --tree --matrix 20 --json > slots.json; rmgr sim plot slots.json --kind matrix""",
    exits="0 done, 1 a picture is there already or could not be written, 2 usage, no results, or damaged ones",
)
@click.argument("directories", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="DIR|FILE...")
@click.option(
    "--kind", "kinds", type=one_of("kind of picture", KINDS), multiple=True, metavar="|".join(KINDS), help="default: all that fit"
)
@click.option("--format", "form", type=one_of("format", FORMS), default="png", show_default=True, metavar="|".join(FORMS))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="default: plots/ in the DIR, or beside the FILE, that is drawn; of several: ./plots",
)
@click.option("--from", "start", type=DURATION, default="0", metavar="T", help="after the first submit, as 2d or 36:00:00")
@click.option("--to", "end", type=DURATION, metavar="T", help="of single runs; default: the end")
@click.option("--overwrite", is_flag=True, help="replace pictures that are there already")
def plot(
    session: Session,
    directories: tuple[Path, ...],
    kinds: tuple[str, ...],
    form: str,
    out: Path | None,
    start: float,
    end: float | None,
    overwrite: bool,
) -> None:
    """Draws what rmgr sim run, sweep and paper wrote with --out, and the slots of a live cluster.

    \b
    gantt         processors against time, of each run; with very many jobs how much of them is in use
    utilisation   processors in use and jobs waiting over time, of each run
    waits         distribution of wait times, all runs in one picture
    compare       mean wait, bounded slowdown and utilisation, all runs (or all of a sweep) in one picture
    load          wait and slowdown against load, of a sweep: median of the seeds, least to most
    tables        tables of a paper's report (by itself only when it has no figures)
    matrix        slots against cores, a colour a job, of a run of dqt with --spells: its first 200 slots after --from;
                  of a FILE of rmgr queues --tree --matrix N --json: who shares the cores of a live partition
    front         the queue tree of each partition and its front in the first 7 slots after --from, of such a run
    calls         a lane for each server and link, of rmgr sim calls: the first replication of each policy and case
    figures       its figures: lines with the range over the seeds

    The same results give the same pictures, byte for byte. Needs matplotlib: pip install 'matplotlib>=3.8,<4'.
    """
    from rmgr.sim.plots import pictures
    from rmgr.sim.plots.reading import TimeWindow

    if end is not None and end <= start:
        raise UsageError(f"--to {end:g} s is not after --from {start:g} s", hint="as --from 1d --to 2d")
    window = TimeWindow(start, end)
    results = pictures.read(directories)
    made = pictures.pictures(results, tuple(dict.fromkeys(kinds)), window)
    beside = directories[0].parent if directories[0].suffix == ".json" else directories[0]
    target = out if out is not None else (beside if len(directories) == 1 else Path()) / "plots"
    written = pictures.draw(made, target, pictures.FORMS[form], overwrite=overwrite)
    if session.json:
        emit({"out": str(target), "pictures": [str(path) for path in written]})
        return
    sys.stdout.writelines(f"{path}\n" for path in written)
