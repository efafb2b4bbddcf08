"""`rmgr submit --from FILE`: a list of different jobs, all or nothing (`client/commands/job_lists.py` says how)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click
from click.core import ParameterSource

from rmgr.cli.display.render import emit
from rmgr.cli.sending.dry_run import told_dry, write_dry
from rmgr.cli.sending.jobs_file import read_jobs
from rmgr.cli.session.command import GlobalOption
from rmgr.cli.session.context import Session
from rmgr.cli.session.errors import WorkEnded
from rmgr.client.commands.job_lists import ListedJob, prepare_all, send_all
from rmgr.client.commands.sending import CheckedRequest, Sent
from rmgr.errors import UsageError

#: What stands beside `--from` on the command line.
_BESIDE = {"jobs_file", "dry_run", "wait", "watch", "progress", "parsable", "token"}


def submit_list(ctx: click.Context, session: Session, words: Sequence[str], file: str, token: str) -> None:
    """Submits all jobs of `file`, or none; prints an id a line, in their order.

    Raises: UsageError, and what a single `submit` raises, naming the entry; StateConflict when the list was given up meanwhile.
    """
    _check_alone(ctx, words)
    options = ctx.params
    entries = read_jobs(ctx, session, file)
    drafts = prepare_all(session, entries)
    if options["dry_run"]:
        _tell_dry(session, entries, drafts)
        return
    waits = options["wait"] or options["watch"] or options["progress"]
    if waits:
        session.data_store()
    sent = send_all(session, entries, drafts, token=token, name="stdin" if file == "-" else os.path.basename(file))
    _tell(session, sent, waits=waits)
    if waits:
        from rmgr.cli.submit.afterwards import wait_for_all

        raise WorkEnded(wait_for_all(session, sent, watch=options["watch"], progress=options["progress"]))


def _check_alone(ctx: click.Context, words: Sequence[str]) -> None:
    if words:
        raise UsageError(
            f"--from takes its commands from the list, and {words[0]!r} is one more", hint="command = [...] in an entry of the list"
        )
    for option in ctx.command.params:
        name = option.name or ""
        given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and name not in _BESIDE and not isinstance(option, GlobalOption):
            word = max(option.opts, key=len)
            raise UsageError(
                f"{word} cannot stand beside --from", hint=f"write it into the list: {word[2:]} = ... in [defaults], or in an entry"
            )


# -- printing -----------------------------------------------------------------------------------------------------------------


def _tell(session: Session, sent: Sequence[Sent], *, waits: bool) -> None:
    if session.json:
        if not waits:
            emit({"jobs": [_shown(item) for item in sent]})
    else:
        out = sys.stderr if waits else sys.stdout
        out.write("".join(f"{item.submission.id}\n" for item in sent))
    sys.stdout.flush()
    sys.stderr.flush()
    if not any(item.created for item in sent):
        session.note("the token was used before: this is the same list again, nothing new was submitted")


def _shown(item: Sent) -> dict[str, object]:
    shown = {"id": str(item.submission.id), "name": item.submission.name, "tasks": item.tasks}
    return shown | ({} if item.created else {"created": False})


def _tell_dry(session: Session, entries: Sequence[ListedJob], drafts: Sequence[CheckedRequest]) -> None:
    names = [entry.name or f"job {place}" for place, entry in enumerate(entries, 1)]
    if session.json:
        jobs = []
        for entry, draft in zip(entries, drafts, strict=True):
            after = [f"{item.condition}:{item.submission}" for item in draft.record.after]
            after += [f"{condition}:{names[place]}" for condition, place in entry.needs]
            jobs.append(told_dry(draft) | {"after": after})
        emit({"dry_run": True, "jobs": jobs})
        return
    for entry, draft in zip(entries, drafts, strict=True):
        write_dry(draft)
        if entry.needs:
            sys.stdout.write(f"  after {', '.join(f'{condition}:{names[place]}' for condition, place in entry.needs)}\n")
