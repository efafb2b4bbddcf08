"""`rmgr submit`: a command, a script or standard input becomes a submission; the id is printed when it is durable."""

from __future__ import annotations

import sys
from typing import Any

import click

from rmgr.cli.command import command
from rmgr.cli.context import Session
from rmgr.cli.errors import WorkEnded
from rmgr.cli.exits import WORK_EXITS
from rmgr.cli.options import SECTIONS, Work, read_work, work_options
from rmgr.cli.render import clock, emit, iso, printable
from rmgr.cli.sending import Draft, Sent, prepare, send
from rmgr.model.placing import Rigid
from rmgr.model.submission import Phase
from rmgr.model.units import counted, format_duration, format_size
from rmgr.model.views import WhatIfView

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
    id=$(rmgr submit --parsable -- make test)
    printf '#!/bin/sh\\nhostname\\n' | rmgr submit -""",
    exits=_EXITS,
    settings=WORDS_AFTER_OPTIONS,
    sections=SECTIONS,
)
@work_options
@click.option("--wait", is_flag=True, help="until it has ended; print its output, exit with its code")
@click.option("--watch", is_flag=True, help="as --wait, with a line for each task that ends")
@click.option("--progress", is_flag=True, help="as --wait, with a progress bar instead of output")
@click.option("--parsable", is_flag=True, help="print the id alone")
@click.option("--ignore-sbatch", is_flag=True, help="run a script of Slurm without what its #SBATCH lines ask for")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT|CMD...")
def submit(session: Session, words: tuple[str, ...], ignore_sbatch: bool, **values: Any) -> None:
    """Submits a command, a script, or with - a script from standard input."""
    ctx = click.get_current_context()
    work = read_work(ctx, session, values, words, dashes=has_dashes(ctx, words), ignore_sbatch=ignore_sbatch)
    draft = prepare(session, work)
    if work.options.dry_run:
        tell_dry(session, draft)
        return
    waits = work.options.wait or work.options.watch or work.options.progress
    if waits:
        session.data_store()  # what could not be waited for is not submitted
    sent = send(session, draft)
    _tell_id(session, sent, work, waits=waits)
    if waits:
        from rmgr.cli.submit_wait import wait_for  # streams, follower, gRPC: who does not wait does not load them

        raise WorkEnded(wait_for(session, sent, work))


def _tell_id(session: Session, sent: Sent, work: Work, *, waits: bool) -> None:
    number = sent.submission.id
    if session.json:
        if not waits:
            emit({"id": str(number), "tasks": sent.tasks} | ({} if sent.created else {"created": False}))
    elif work.options.parsable:
        sys.stdout.write(f"{number}\n")
    else:
        out = sys.stderr if waits else sys.stdout  # with --wait stdout is the work's
        out.write(f"Submitted job {number}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    if not sent.created:
        session.note(f"the token was used before: this is submission {number} again, nothing new was submitted")


def tell_dry(session: Session, draft: Draft) -> None:
    """What would be submitted; and of a placed job who would place it."""
    from rmgr.coord.answers import command_text

    record = draft.record
    limit = record.request.time_limit_us
    queue = draft.settings.queue(record.queue)
    policy = draft.settings.policy_of(queue) if queue is not None else ""
    trial = session.query().what_if(record) if record.rigid is not None and record.phase is Phase.OPEN else None
    if session.json:
        emit(
            {
                "dry_run": True,
                "tasks": draft.tasks,
                "name": record.name,
                "queue": record.queue,
                "cores": record.request.cores,
                "mem_bytes": record.request.memory_bytes,
                "time_limit": limit / 1e6 if limit else None,
                "priority": record.priority,
                "state": str(record.phase),
                "command": command_text(record),
                "partition": queue.partition if queue is not None else "",
                "policy": policy,
            }
            | ({"placed": _shape(record.rigid)} if record.rigid is not None else {})
            | ({"would": _would(trial)} if trial is not None else {})
        )
        return
    memory = f", {format_size(record.request.memory_bytes)}" if record.request.memory_bytes else ""
    time = f", at most {format_duration(limit / 1e6)}" if limit else ""
    out = sys.stdout
    out.write(f"would submit {record.name}: {draft.tasks} task{'s' if draft.tasks != 1 else ''} to queue {record.queue}\n")
    rigid = record.rigid
    several = f"{counted(rigid.processes, 'process')} of " if rigid is not None and rigid.processes > 1 else ""
    out.write(
        f"  each: {several}{counted(record.request.cores, 'core')}{memory}{time}, retries {record.retries}, "
        f"resubmit {'yes' if record.resubmit else 'no'}\n"
    )
    if rigid is not None:
        assert queue is not None
        words = [f"on {rigid.nodes} node{'s' if rigid.nodes != 1 else ''}" if rigid.nodes else "wherever they fit"]
        words += ["alone on its nodes"] if rigid.exclusive else []
        words += [f"of {','.join(rigid.nodelist)}"] if rigid.nodelist else []
        words += [f"without {','.join(rigid.exclude)}"] if rigid.exclude else []
        words += [f"not before {clock(rigid.begin_us)}"] if rigid.begin_us else []
        out.write(f"  placed by {policy} in partition {queue.partition}: {', '.join(words)}\n")
    if trial is not None:
        out.write(f"  {_would_text(trial)}\n")
    out.write(f"  runs: {command_text(record)}\n")
    if record.after:
        out.write(f"  after {', '.join(f'{item.condition}:{item.submission}' for item in record.after)}\n")


def _shape(rigid: Rigid) -> dict[str, Any]:
    """Of a placed job, as JSON."""
    return {
        "processes": rigid.processes,
        "nodes": rigid.nodes or None,
        "exclusive": rigid.exclusive,
        "nodelist": list(rigid.nodelist),
        "exclude": list(rigid.exclude),
        "begin": iso(rigid.begin_us),
        "kill_on_bad_exit": rigid.kill_on_bad_exit,
        "checkpoint_every": rigid.checkpoint_every_us / 1e6 or None,
        "checkpoint": rigid.saves(),
        "max_moves": rigid.max_moves or None,
    }


def _would(trial: WhatIfView) -> dict[str, Any]:
    """Where and when, as JSON."""
    return {
        "start": iso(trial.start_us),
        "at_once": trial.at_once,
        "nodes": [{"id": share.node, "processes": share.processes} for share in trial.nodes],
        "why": trial.reason,
        "class": trial.route,
    }


def _would_text(trial: WhatIfView) -> str:
    """Where and when, in a sentence."""
    chosen = f"; queue class {trial.route}" if trial.route else ""
    nodes = ", ".join(f"{share.node} ({share.processes})" for share in trial.nodes)
    if trial.at_once:
        return f"would start at once on {nodes}{chosen}"
    waits = f"would wait: {printable(trial.reason)}" if trial.reason else "would wait"
    if not nodes:
        return f"{waits}; when it could start, nobody can say: that depends on nodes that are away, or on work without a time limit{chosen}"
    return f"{waits}; would start by {clock(trial.start_us)} on {nodes}, when nothing else comes{chosen}"
