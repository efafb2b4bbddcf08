"""`rmgr submit`: a command, a script or standard input becomes a submission; the id is printed when it is durable."""

from __future__ import annotations

import sys
from typing import Any

import click

from rmgr.cli.display.render import emit
from rmgr.cli.sending.dry_run import tell_dry
from rmgr.cli.sending.options import SECTIONS, WorkRequest, read_work, work_options
from rmgr.cli.session.command import command
from rmgr.cli.session.context import Session
from rmgr.cli.session.errors import WorkEnded
from rmgr.cli.words.exits import WORK_EXITS
from rmgr.cli.words.sbatch import MARK as SBATCH
from rmgr.cli.words.script import PBS
from rmgr.client.commands.sending import Sent, prepare, send

#: Options end at the first word: `rmgr submit -J x echo -n hello` submits `echo -n hello`.
WORDS_AFTER_OPTIONS = {"allow_interspersed_args": False}
_EXITS = f"""\
0 submitted; 2 usage or infeasible, 3 no such queue or dependency, 7 queue full,
8 not known whether it was committed (send it again with --token)
with --wait: {WORK_EXITS}"""


def has_dashes(ctx: click.Context, words: tuple[str, ...]) -> bool:
    """`--` stood before the words (click takes it away)."""
    given = list(ctx.meta.get("rmgr.args", ()))
    return len(given) > len(words) and given[len(given) - len(words) - 1] == "--"


@command(
    "submit",
    examples="""\
    rmgr submit -- ./simulate --steps 1000        prints: Submitted job 42
    rmgr submit job.sh input.dat                  a script; its #RMGR lines are options
    rmgr submit --wait -- echo hello              prints hello
    rmgr submit --array 1-100%8 --progress -- sh -c 'work.py $RMGR_ARRAY_INDEX'
    rmgr submit --each-line files.txt -- sh -c 'gzip "$RMGR_ENTRY"'
    rmgr submit -c 4 --mem 2G -t 1h --after ok:41 -- ./post.sh
    rmgr submit -n 16 -N 4 -t 1h -- mpirun ./solve     a placed job: 16 processes on 4 nodes
    rmgr submit --from jobs.toml --wait                [[job]] name = "a", command = ["./a"]
    id=$(rmgr submit --parsable -- make test)
    printf '#!/bin/sh\\nhostname\\n' | rmgr submit -""",
    exits=_EXITS,
    settings=WORDS_AFTER_OPTIONS,
    sections=SECTIONS,
)
@work_options
@click.option("--from", "jobs_file", metavar="FILE", help="many jobs, all or nothing: TOML or JSON lines, keys are options; - is stdin")
@click.option("--wait", is_flag=True, help="until it has ended; print its output, exit with its code")
@click.option("--watch", is_flag=True, help="as --wait, with a line for each task that ends")
@click.option("--progress", is_flag=True, help="as --wait, with a progress bar instead of output")
@click.option("--parsable", is_flag=True, help="print the id alone")
@click.option("--ignore-sbatch", is_flag=True, help="run a script of Slurm without what its #SBATCH lines ask for")
@click.option("--ignore-pbs", is_flag=True, help="run a script of PBS without what its #PBS lines ask for")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT|CMD...")
def submit(session: Session, words: tuple[str, ...], ignore_sbatch: bool, ignore_pbs: bool, jobs_file: str | None, **values: Any) -> None:
    """Submits a command, a script, with - a script from standard input, or with --from a list of jobs."""
    ctx = click.get_current_context()
    if jobs_file is not None:
        from rmgr.cli.submit.from_file import submit_list  # who submits one job does not load it

        submit_list(ctx, session, words, jobs_file, values["token"])
        return
    ignored = [mark for mark, is_ignored in ((SBATCH, ignore_sbatch), (PBS, ignore_pbs)) if is_ignored]
    work = read_work(ctx, session, values, words, dashes=has_dashes(ctx, words), ignored=ignored)
    draft = prepare(session, work)
    if work.options.priority is not None:
        from rmgr.daemons.leader.records.pipeline import idle_priority  # the policies, which others do not load

        if told := idle_priority(draft.settings, draft.record.queue):
            session.note(told)
    if work.afterwards.dry_run:
        tell_dry(session, draft)
        return
    waits = work.afterwards.waits
    if waits:
        session.data_store()  # what could not be waited for is not submitted
    sent = send(session, draft)
    _tell_id(session, sent, work, waits=waits)
    if waits:
        from rmgr.cli.submit.afterwards import wait_for  # streams, follower, gRPC: who does not wait does not load them

        raise WorkEnded(wait_for(session, sent, work))


def _tell_id(session: Session, sent: Sent, work: WorkRequest, *, waits: bool) -> None:
    number = sent.submission.id
    if session.json:
        if not waits:
            emit({"id": str(number), "tasks": sent.tasks} | ({} if sent.created else {"created": False}))
    elif work.afterwards.parsable:
        sys.stdout.write(f"{number}\n")
    else:
        out = sys.stderr if waits else sys.stdout  # with --wait stdout is the work's
        out.write(f"Submitted job {number}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    if not sent.created:
        session.note(f"the token was used before: this is submission {number} again, nothing new was submitted")
