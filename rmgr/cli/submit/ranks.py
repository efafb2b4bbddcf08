"""`rmgr run` inside a placed job: its ranks on all of its nodes; and `rmgr agent`, which mpirun uses in place of ssh."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from rmgr.cli.session import Session, WorkEnded, command
from rmgr.errors import UsageError

if TYPE_CHECKING:
    from rmgr.runner.ranks.client import OwnAllocation

_SETTINGS = {"allow_interspersed_args": False}
_INSIDE = "in the script of a placed job: rmgr submit -q QUEUE -n 4 -- rmgr run ./solver"


def _of_the_job(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Refuses an option that scripts of other systems give to their ranks, and that applies to the whole job here."""

    def refuse(_context: click.Context, _option: click.Parameter, value: str | None) -> None:
        if value is not None:
            hint = f"give {names[-1]} to rmgr submit; each rank has its part"
            raise UsageError(f"{names[-1]} is for the whole job, not for its ranks", hint=hint)

    return click.option(*names, hidden=True, expose_value=False, callback=refuse)


def check_shape(place: OwnAllocation, processes: int | None, nodes: int | None, cores: int | None) -> None:
    """Checks -N and -c, which may only repeat what the job has. Raises: UsageError, NotInJob."""
    spread, threads = place.spread(processes or place.processes), int(os.environ.get("RMGR_THREADS", "1"))
    if nodes not in {None, len(spread)}:
        told = ", ".join(f"{node} ({count})" for node, _, count in spread)
        raise UsageError(f"-N {nodes}: its ranks are on {told}", hint="without -N: node after node, each as many as the job has there")
    if cores not in {None, threads}:
        raise UsageError(f"-c {cores}: each process of the job has {threads}", hint=f"give -c {cores} to rmgr submit")


@command(
    "run",
    examples="""\
    rmgr run ./solver                     one process for each of the job's
    rmgr run -n 2 --label hostname        two of them, each line with its rank before it
    rmgr run --kill-on-bad-exit ./solver  all end when one fails""",
    exits="the highest code of all ranks, 128+N on signal N, 125 when a node was lost",
    settings=_SETTINGS,
)
@click.option("-n", "--processes", type=click.IntRange(min=1), default=None, help="How many ranks (default: all processes of the job).")
@click.option("-l", "--label", is_flag=True, help="Begin each line of output with its rank.")
@click.option("-K", "--kill-on-bad-exit", is_flag=True, help="End all ranks when one of them fails.")
@click.option("-N", "--nodes", type=click.IntRange(min=1), default=None, hidden=True)
@click.option("-c", "--cores", type=click.IntRange(min=1), default=None, hidden=True)
@_of_the_job("-t", "--time")
@_of_the_job("-w", "--nodelist")
@_of_the_job("-x", "--exclude")
@_of_the_job("--mem")
@_of_the_job("--gpus")
@_of_the_job("--resource")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="CMD...")
def ranks(
    session: Session,  # noqa: ARG001
    words: tuple[str, ...],
    processes: int | None,
    label: bool,
    kill_on_bad_exit: bool,
    nodes: int | None,
    cores: int | None,
) -> None:
    """Starts one process a rank on all nodes of the job around it; standard input goes to rank 0."""
    from rmgr.runner.ranks import client as rank_client

    if not words:
        raise UsageError("there is no command to run", hint="rmgr run ./solver")
    try:
        if nodes or cores:
            check_shape(rank_client.OwnAllocation.of(os.environ), processes, nodes, cores)
        code = rank_client.run(words, processes=processes or 0, label=label, kill_on_bad_exit=kill_on_bad_exit)
    except rank_client.NotInJob as error:
        raise UsageError(str(error), hint=_INSIDE) from None
    raise WorkEnded(code)


@command("agent", examples="    rmgr agent n2 hostname", exits="the command's code, 125 when the node was lost", settings=_SETTINGS)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="NODE CMD...")
def agent(session: Session, words: tuple[str, ...]) -> None:  # noqa: ARG001
    """Runs a command with a shell on a node of the job around it, as ssh would."""
    from rmgr.runner.ranks import client as rank_client

    try:
        code = rank_client.agent(words)
    except rank_client.NotInJob as error:
        raise UsageError(str(error), hint=_INSIDE) from None
    raise WorkEnded(code)
