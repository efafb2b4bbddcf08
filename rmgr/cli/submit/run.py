"""`rmgr run -- CMD`: submit, stream the output to the same streams, exit with the command's code."""

from __future__ import annotations

import time
from typing import Any

import click

from rmgr.cli.display.output import JsonLines, Labelled, Plain, Sink
from rmgr.cli.sending.options import SECTIONS, read_work, work_options
from rmgr.cli.session.command import command
from rmgr.cli.session.context import Session
from rmgr.cli.session.errors import WorkEnded
from rmgr.cli.submit.submit import WORDS_AFTER_OPTIONS, has_dashes
from rmgr.cli.waiting.detach import detached
from rmgr.cli.waiting.ends import codes, fetch_files, tell_failure
from rmgr.cli.waiting.follow import AwaitedSubmission, Follow
from rmgr.cli.waiting.wait import PATIENCE_S, tell_why
from rmgr.cli.words.exits import WORK_EXITS
from rmgr.client.commands.sending import prepare, send
from rmgr.client.logs import LiveOutput
from rmgr.model.tasks.array import shown_index

_STREAM_TICK_S = 0.05


@command(
    "run",
    examples="""\
    rmgr run -- make test
    rmgr run -c 4 --mem 8G -- ./train --epochs 3
    rmgr run --array 1-4 -- sh -c 'echo $RMGR_ARRAY_INDEX'     each line with its task before it
    rmgr run -n 4 -- rmgr run ./solver                         CMD runs once, on the first node: rmgr run in it starts 4 ranks
    rmgr run -N 2 --pty bash                                   a shell on the first of two nodes; rmgr run in it is on both
    rmgr run --json -- ./step | jq -r .data""",
    exits=f"{WORK_EXITS}\nCtrl-C detaches (the work goes on), twice within 2 s cancels",
    settings=WORDS_AFTER_OPTIONS,
    sections=SECTIONS,
)
@work_options
@click.option("--pty", is_flag=True, help="with this terminal as its own: a shell on the first node of a placed job")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="CMD...")
def run(session: Session, words: tuple[str, ...], pty: bool, **values: Any) -> None:
    """Submits a command, prints its output while it runs, and exits with its code."""
    ctx = click.get_current_context()
    work = read_work(ctx, session, values, words, dashes=has_dashes(ctx, words), script=False)
    if pty:
        from rmgr.cli.submit import terminal

        work = terminal.interactive(session, work)
    draft = prepare(session, work)
    if work.afterwards.dry_run:
        from rmgr.cli.sending.dry_run import tell_dry

        tell_dry(session, draft)
        return
    session.data_store()  # what could not be waited for is not submitted
    sent = send(session, draft)
    number = sent.submission.id
    session.detail(f"submitted {number}")
    if pty:
        raise WorkEnded(terminal.sit_down(session, number))
    try:
        follow = Follow(session)
        item = follow.add(number)
        stream(session, follow, item)
    except KeyboardInterrupt:
        raise detached(session, [str(number)], attach=f"rmgr logs -f {number}") from None
    fetch_files(session, item)
    tell_failure(session, item, with_tail=False)
    raise WorkEnded(codes(follow.items))


def stream(
    session: Session, follow: Follow, item: AwaitedSubmission, *, sink: Sink | None = None, streams: tuple[str, ...] | None = None
) -> None:
    """Passes output on until all that is followed has ended. Raises DeadlineExceeded, KeyboardInterrupt."""
    from rmgr.client.progress import ProgressDisplay
    from rmgr.coord.protocol.keys import STREAMS

    sink = sink or sink_for(session, item)
    live = LiveOutput(session, item.number, wanted=item.wanted, streams=streams or STREAMS)
    began_s, has_begun = time.monotonic(), False

    def on_attempt(position: int, attempt: int, node: str) -> None:
        nonlocal has_begun
        has_begun = True
        if attempt > 1:
            session.note(f"{label_of(item, position)}: attempt {attempt} begins on {node}; the one before was lost, failed, or was moved")

    live.on_attempt = on_attempt
    try:
        with ProgressDisplay(str(item.number), enabled=False, trouble=follow.trouble) as display:
            while not item.is_ended:
                display.tick()
                if not follow.trouble():
                    live.look()
                for piece in live.pieces():
                    sink.take(piece)
                for end in follow.next(_STREAM_TICK_S):
                    has_begun = True
                    for piece in live.ended(end):
                        sink.take(piece)
                    sink.done(end.position)
                if not has_begun and time.monotonic() - began_s > PATIENCE_S:
                    has_begun = True
                    tell_why(session, item)
        for piece in live.pieces():
            sink.take(piece)
    finally:
        sink.close()
        live.close()


def sink_for(session: Session, item: AwaitedSubmission) -> Sink:
    """Plain for one task, labelled for several, JSON lines with --json."""
    if session.json:
        return JsonLines(lambda position: label_of(item, position))
    return Plain() if item.total <= 1 else Labelled(lambda position: label_of(item, position))


def label_of(item: AwaitedSubmission, position: int) -> str:
    """`42_7`."""
    array = item.submission.array if item.submission is not None else ""
    return f"{item.number}_{shown_index(array, position)}"
