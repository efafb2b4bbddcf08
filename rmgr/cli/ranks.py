"""`rmgr run` inside a placed job: its ranks on all of its nodes; and `rmgr agent`, what mpirun takes for ssh."""

from __future__ import annotations

import click

from rmgr.cli.command import command
from rmgr.cli.context import Session
from rmgr.cli.errors import WorkEnded
from rmgr.errors import UsageError

_SETTINGS = {"allow_interspersed_args": False}


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
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="CMD...")
def ranks(session: Session, words: tuple[str, ...], processes: int | None, label: bool, kill_on_bad_exit: bool) -> None:  # noqa: ARG001
    """Starts one process a rank on all nodes of the job around it; standard input goes to rank 0."""
    from rmgr.runner import rank_client

    if not words:
        raise UsageError("there is no command to run", hint="rmgr run ./solver")
    try:
        code = rank_client.run(words, processes=processes or 0, label=label, kill_on_bad_exit=kill_on_bad_exit)
    except rank_client.NotInJob as error:
        raise UsageError(str(error)) from None
    raise WorkEnded(code)


@command("agent", examples="    rmgr agent n2 hostname", exits="the command's code, 125 when the node was lost", settings=_SETTINGS)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="NODE CMD...")
def agent(session: Session, words: tuple[str, ...]) -> None:  # noqa: ARG001
    """Runs a command with a shell on a node of the job around it, as ssh would."""
    from rmgr.runner import rank_client

    try:
        code = rank_client.agent(words)
    except rank_client.NotInJob as error:
        raise UsageError(str(error)) from None
    raise WorkEnded(code)
