"""`rmgr submit --wait`, `--watch`, `--progress`: what follows the id."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rmgr.cli.display import shapes
from rmgr.cli.display.output import Plain
from rmgr.cli.display.render import STATE_STYLES, elapsed, emit, paint, printable
from rmgr.cli.sending.options import WorkRequest
from rmgr.cli.session.context import Session
from rmgr.cli.waiting.detach import detached
from rmgr.cli.waiting.ends import codes, fetch_files, summary, tell_failure
from rmgr.cli.waiting.follow import AwaitedSubmission, Follow, FollowedEnd
from rmgr.cli.waiting.wait import until_ended
from rmgr.client.commands.sending import Sent
from rmgr.client.logs import LiveOutput


def wait_for(session: Session, sent: Sent, work: WorkRequest) -> int:
    """Until it has ended; prints what was asked for. Returns the exit code. Raises WorkEnded after a Ctrl-C."""
    number = sent.submission.id
    follow = Follow(session)
    printed = False
    try:
        item = follow.add(number)

        def on_end(end: FollowedEnd) -> None:
            if work.afterwards.watch and not session.json:
                _tell_end(end)

        until_ended(session, follow, progress=work.afterwards.progress, on_end=on_end, title=work.options.name)
        if item.total == 1 and not (session.json or work.afterwards.progress or work.afterwards.watch):
            printed = _print_output(session, item)
    except KeyboardInterrupt:
        raise detached(session, [str(number)], attach=f"rmgr wait {number}") from None
    fetch_files(session, item)
    if session.json:
        emit(_shown(session, item))
    else:
        if item.total != 1:
            session.note(f"{summary(item)}; their output: rmgr logs {number}")
        tell_failure(session, item, with_tail=not printed)
    return item.code


def wait_for_all(session: Session, sent: Sequence[Sent], *, watch: bool, progress: bool) -> int:
    """Until all of a list have ended. Returns the highest exit code. Raises WorkEnded after a Ctrl-C."""
    ids = [str(item.submission.id) for item in sent]
    follow = Follow(session)

    def on_end(end: FollowedEnd) -> None:
        if watch and not session.json:
            _tell_end(end)

    try:
        for made in sent:
            follow.add(made.submission.id)
        until_ended(session, follow, progress=progress, on_end=on_end, title="the list")
    except KeyboardInterrupt:
        raise detached(session, ids, attach=f"rmgr wait {' '.join(ids)}") from None
    for item in follow.items:
        fetch_files(session, item)
    if session.json:
        jobs = [{"id": str(item.number), "state": str(item.state), "exit_code": item.code} for item in follow.items]
        emit({"jobs": jobs})
    else:
        for item in follow.items:
            tell_failure(session, item, with_tail=True)
    return codes(follow.items)


def _print_output(session: Session, item: AwaitedSubmission) -> bool:
    """The whole output of the only task, to the same streams."""
    live, sink = LiveOutput(session, item.number), Plain()
    printed = False
    for end in item.ends.values():
        for piece in live.ended(end):
            sink.take(piece)
            printed = True
    return printed


def _tell_end(end: FollowedEnd) -> None:
    state = paint(f"{end.state:<9}", STATE_STYLES[end.state], sys.stdout)
    time = elapsed(end.started_us, end.ended_us, 0)
    node, error = printable(end.node), f"  {printable(end.error)}" if end.error else ""
    sys.stdout.write(f"{end.id}  {state}  {node}  {time}{error}\n")
    sys.stdout.flush()


def _shown(session: Session, item: AwaitedSubmission) -> dict[str, Any]:
    """show's value. The leader may be a moment behind: what is known here wins."""
    job = session.query().job(item.number)
    attempts = session.query().tasks(item.number)[0].attempts if item.total == 1 and item.past is None else ()
    told = shapes.shown_job(job, attempts)
    return told | {"state": str(item.state), "counts": told["counts"] | {str(state): count for state, count in item.counts.items()}}
