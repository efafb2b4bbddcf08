"""`rmgr submit --from FILE`: a list of different jobs, all or nothing.

A submission without tasks, the anchor, is held while its program lives. Every job of the list is made durable behind it (it waits for
the anchor's end with `ok`), and one write on the anchor, its release, lets them all go. A program that dies before leaves an anchor
without owner: the leader cancels it (`Abandon` in `coord/decisions/keeping.py`), and what waits for it is cancelled with it.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from rmgr.cli.control.gate import ControlReach
from rmgr.cli.display.render import emit
from rmgr.cli.sending.dry_run import told_dry, write_dry
from rmgr.cli.sending.jobs_file import ListedJob, in_order, read_jobs
from rmgr.cli.sending.sending import (
    CheckedRequest,
    Ground,
    Sent,
    SilentListener,
    blocks_of,
    check_size,
    check_store,
    engine_of,
    prepare,
    read_ground,
    send_by_engine,
    shipped,
)
from rmgr.cli.session.command import GlobalOption
from rmgr.cli.session.context import Session
from rmgr.cli.session.errors import WorkEnded
from rmgr.errors import CoordinationUnavailable, QueueFull, RmgrError, StateConflict, SubmitUnknown, UsageError
from rmgr.model.base.states import Reason
from rmgr.model.base.units import counted
from rmgr.model.tasks.submission import Command, Condition, Dependency, Phase, Submission
from rmgr.model.tasks.submission import Work as Kind
from rmgr.runtime.failpoint import failpoint

if TYPE_CHECKING:
    from rmgr.client.submission.handle import SubmissionHandle
    from rmgr.client.submitter.engine import Engine

#: What stands beside `--from` on the command line.
_BESIDE = {"jobs_file", "dry_run", "wait", "watch", "progress", "parsable", "token"}
_SUBMIT_S = 60.0
_CANCEL_S = 5.0


def submit_list(ctx: click.Context, session: Session, words: Sequence[str], file: str, token: str) -> None:
    """Submits all jobs of `file`, or none; prints an id a line, in their order.

    Raises: UsageError, and what a single `submit` raises, naming the entry; StateConflict when the list was given up meanwhile.
    """
    _check_alone(ctx, words)
    options = ctx.params
    entries = read_jobs(ctx, session, file)
    drafts = _prepare_all(session, entries)
    if options["dry_run"]:
        _tell_dry(session, entries, drafts)
        return
    waits = options["wait"] or options["watch"] or options["progress"]
    if waits:
        session.data_store()
    sent = _send_all(session, entries, drafts, token, "stdin" if file == "-" else os.path.basename(file))
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


def _prepare_all(session: Session, entries: Sequence[ListedJob]) -> list[CheckedRequest]:
    """Each checked against the cluster, and all together against the room of their queues; nothing is written."""
    ground = read_ground(session)
    drafts = []
    for entry in entries:
        try:
            draft = prepare(session, entry.work, ground)
            check_size(replace(draft.record, after=_after(draft.record, entry, dict.fromkeys(range(len(entries)), 1 << 31), 1 << 31)))
        except RmgrError as error:
            error.message = f"{entry.where}: {error.message}"
            error.args = (error.message,)
            raise
        drafts.append(draft)
    _check_room(session, ground, drafts)
    return drafts


def _check_room(session: Session, ground: Ground, drafts: Sequence[CheckedRequest]) -> None:
    """What would wait in a queue as soon as the list is let go fits its cap."""
    from rmgr.coord.protocol import paths
    from rmgr.model.tasks.block import MAX_TASKS

    more: dict[str, int] = {}
    for draft in drafts:
        record = draft.record
        if record.phase is Phase.OPEN and not record.max_running:
            blocks = draft.tasks if record.rigid is not None else -(-draft.tasks // MAX_TASKS)
            more[record.queue] = more.get(record.queue, 0) + blocks
    for queue, blocks in more.items():
        spec = ground.settings.queue(queue)
        if spec is None or not spec.max_pending_blocks:
            continue
        stat = session.coordinator().stat(paths.pending(queue), timeout_s=10.0).result(11.0)
        waiting = stat.children if stat is not None else 0
        if waiting + blocks > spec.max_pending_blocks:
            raise QueueFull(
                f"queue {queue} is full: {counted(waiting, 'waiting block')}, at most {spec.max_pending_blocks} may wait, "
                f"and this list is {blocks} more",
                hint="wait until some have run (rmgr queues), or submit shorter lists",
            )


# -- sending ------------------------------------------------------------------------------------------------------------------


def _send_all(session: Session, entries: Sequence[ListedJob], drafts: Sequence[CheckedRequest], token: str, name: str) -> list[Sent]:
    from rmgr.procedures.control import cancel_submission

    records = [shipped(session, draft) for draft in drafts]
    check_store(session)
    deadline_s = time.monotonic() + (session.left_s() or _SUBMIT_S)
    engine = engine_of(session)
    mine = token or uuid.uuid4().hex
    handle = engine.open(_anchor(drafts[0].record, mine, name), SilentListener(), timeout_s=max(0.1, deadline_s - time.monotonic()))
    anchor = handle.submission
    if not _is_sent(anchor, handle, mine):
        failpoint("list.before_entries")
    try:
        sent = _make(session, engine, entries, drafts, records, anchor.id, mine, deadline_s)
        failpoint("list.before_release")
    except (RmgrError, KeyboardInterrupt) as error:
        with suppress(RmgrError):  # else the leader does it, once this program has gone
            cancel_submission(
                ControlReach(engine.coordinator), anchor.id, detail="not all of its list could be submitted", timeout_s=_CANCEL_S
            )
        if isinstance(error, SubmitUnknown):
            told = "ZooKeeper went away while the list was submitted; it was not let go, and nothing of it runs"
            raise CoordinationUnavailable(told, hint="rmgr doctor; then submit it again") from error
        raise
    if anchor.phase is Phase.HELD:
        _release(engine, anchor.id, mine, max(0.1, deadline_s - time.monotonic()))
        failpoint("list.after_release")
        handle.complete()
        handle.flush(max(0.1, deadline_s - time.monotonic()))
    return sent


def _anchor(like: Submission, token: str, name: str) -> Submission:
    """What the list waits for: no task, held, and nobody's once its program has gone."""
    return Submission(
        id=0,
        name=f"list {name}"[:200],
        user=like.user,
        queue=like.queue,
        work=Kind.COMMAND,
        request=like.request,
        priority=like.priority,
        phase=Phase.HELD,
        reason=Reason.USER_HOLD,
        token=token,
        submitted_us=like.submitted_us,
        command=Command(argv=("/bin/true",)),
        rigid=like.rigid,
        host=like.host,
        ends_with_owner=True,
    )


def _is_sent(anchor: Submission, handle: SubmissionHandle, token: str) -> bool:
    """The token was used before, and all of that list is in. Raises StateConflict when it is not."""
    if handle.owned:
        return False
    if anchor.phase in (Phase.OPEN, Phase.CLOSED) and not anchor.reason:
        return True
    told = "is still being submitted" if anchor.phase is Phase.HELD else "was given up before all of it was there"
    hint = "wait until that command has ended" if anchor.phase is Phase.HELD else "submit it with another --token"
    raise StateConflict(f"the list of --token {token} (submission {anchor.id}) {told}", hint=hint)


def _after(record: Submission, entry: ListedJob, ids: Mapping[int, int], anchor: int) -> tuple[Dependency, ...]:
    needs = (Dependency(condition=condition, submission=ids[place]) for condition, place in entry.needs)
    return (*record.after, *needs, Dependency(condition=Condition.OK, submission=anchor))


def _make(
    session: Session,
    engine: Engine,
    entries: Sequence[ListedJob],
    drafts: Sequence[CheckedRequest],
    records: Sequence[Submission],
    anchor: int,
    token: str,
    deadline_s: float,
) -> list[Sent]:
    """All entries durable, each after those that it needs."""
    from rmgr.client.submitter.submitting import ToSubmit, submit_many

    sent: dict[int, Sent] = {}
    wave: dict[int, ToSubmit] = {}

    def flush() -> None:
        made = submit_many(engine.coordinator, list(wave.values()), deadline_s=deadline_s, signer=engine.signer)
        for (place, item), found in zip(wave.items(), made, strict=True):
            sent[place] = Sent(submission=found.submission, tasks=item.tasks if found.created else found.tail.next, created=found.created)
        wave.clear()

    for place in in_order(entries):
        entry, draft = entries[place], drafts[place]
        if any(need not in sent for _, need in entry.needs):
            flush()
        ids = {need: sent[need].submission.id for _, need in entry.needs}
        after = _after(records[place], entry, ids, anchor)
        record = replace(records[place], after=after, token=f"{token}.{place + 1}")
        if record.phase is not Phase.HELD:
            record = replace(record, phase=Phase.HELD, reason=Reason.DEPENDENCY)
        blocks = blocks_of(record, draft.payloads)
        if blocks is None or draft.work.options.outputs:
            sent[place] = send_by_engine(session, engine, record, draft, deadline_s)
        else:
            wave[place] = ToSubmit(draft=record, blocks=blocks, tasks=draft.tasks)
    flush()
    return [sent[place] for place in range(len(entries))]


def _release(engine: Engine, anchor: int, token: str, timeout_s: float) -> None:
    """The commit: from here on all of the list runs."""
    from rmgr.procedures.control import release_submission

    try:
        changed = release_submission(ControlReach(engine.coordinator), anchor, timeout_s=timeout_s)
    except CoordinationUnavailable:
        raise SubmitUnknown(
            "it is not known whether the list was let go: ZooKeeper went away meanwhile",
            token=token,
            hint=f"rmgr show {anchor}: CANCELLED (soon after this command has ended) means that none of it runs; it is let go otherwise",
        ) from None
    now = changed.submission
    if now.phase in (Phase.CANCELLED, Phase.HELD) or (now.phase is Phase.CLOSED and now.reason):
        raise StateConflict(
            f"the list was not let go: submission {anchor}, which it waits for, is {now.phase} ({now.reason}); nothing of it runs",
            hint="submit it again",
        )


# -- telling ------------------------------------------------------------------------------------------------------------------


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
