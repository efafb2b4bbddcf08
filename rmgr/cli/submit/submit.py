"""`rmgr submit`: a command, a script or standard input becomes a submission; the id is printed when it is durable."""

from __future__ import annotations

import sys
from typing import Any

import click

from rmgr.cli.display.render import clock, emit, iso, printable
from rmgr.cli.session.command import command
from rmgr.cli.session.context import Session
from rmgr.cli.session.errors import WorkEnded
from rmgr.cli.submit.options import SECTIONS, WorkRequest, read_work, work_options
from rmgr.cli.words.params import WORK_EXITS
from rmgr.cli.words.script import PBS, SBATCH
from rmgr.client.commands.sending import CheckedRequest, Sent, as_tried, prepare, send
from rmgr.model.base.units import counted, format_duration, format_size
from rmgr.model.tasks.placing import Rigid
from rmgr.model.tasks.submission import Phase
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
        from rmgr.cli.submit.jobs_file import submit_list  # who submits one job does not load it

        submit_list(ctx, session, words, jobs_file, values["token"])
        return
    ignored = [mark for mark, is_ignored in ((SBATCH, ignore_sbatch), (PBS, ignore_pbs)) if is_ignored]
    work = read_work(ctx, session, values, words, dashes=has_dashes(ctx, words), ignored=ignored)
    draft = prepare(session, work)
    if work.options.priority is not None:
        from rmgr.daemons.leader.placement.pipeline import idle_priority  # the policies, which others do not load

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
        from rmgr.cli.submit.run import wait_for  # streams, follower, gRPC: who does not wait does not load them

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


# -- the dry run ---------------------------------------------------------------------------------------------------------------


def tell_dry(session: Session, draft: CheckedRequest) -> None:
    """What would be submitted; and of a placed job who would place it."""
    record = draft.record
    trial = session.query().what_if(as_tried(draft)) if record.rigid is not None and record.phase is Phase.OPEN else None
    if session.json:
        emit({"dry_run": True} | told_dry(draft) | ({"would": _would(trial)} if trial is not None else {}))
    else:
        write_dry(draft, trial)


def told_dry(draft: CheckedRequest) -> dict[str, Any]:
    """What would be submitted, as JSON."""
    from rmgr.coord.views.answers import command_text

    record = draft.record
    limit = record.request.time_limit_us
    queue = draft.settings.queue(record.queue)
    return {
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
        "policy": draft.settings.policy_of(queue) if queue is not None else "",
    } | ({"placed": _shape(record.rigid)} if record.rigid is not None else {})


def write_dry(draft: CheckedRequest, trial: WhatIfView | None = None) -> None:
    """What would be submitted, in words; `trial`: where and when."""
    from rmgr.coord.views.answers import command_text

    record = draft.record
    limit = record.request.time_limit_us
    queue = draft.settings.queue(record.queue)
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
        out.write(f"  placed by {draft.settings.policy_of(queue)} in partition {queue.partition}: {', '.join(words)}\n")
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
