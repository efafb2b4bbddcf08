"""`rmgr logs [-f] ID`: output of tasks, live from their nodes while they run, from the data store afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from rmgr.cli.listing.work import kept_tasks
from rmgr.cli.session import Session, WorkEnded, command
from rmgr.cli.session.tables import find_one, positions_of
from rmgr.cli.submit.run import JsonLines, Labelled, Plain, Sink, ToFiles, stream
from rmgr.cli.waiting import AwaitedSubmission, Follow, FollowedEnd, codes, detached, read_ends, tell_failure
from rmgr.cli.words.params import WORK_EXITS, Parsed, one_of
from rmgr.cli.words.selectors import Target
from rmgr.client.logs import OutputPiece, read_end, read_flushed
from rmgr.coord.protocol.keys import STREAMS
from rmgr.coord.views.submission import asked
from rmgr.errors import DaemonFailed, NotFound, RmgrError, Unavailable, UsageError
from rmgr.model.states import State
from rmgr.model.submission import shown_index
from rmgr.model.views import TaskView


def parse_lines(text: str) -> int:
    """Parses the number of last lines. Raises UsageError, also for `+5`, which for `tail` is a beginning."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise UsageError(f"{text[:80]!r} is no number of lines", hint="-n 5: the last 5; from line 5 on: rmgr logs ID | tail -n +5")
    return int(text)

LINES = Parsed("lines", parse_lines)


@command(
    "logs",
    examples="""\
    rmgr logs 42                   what it has written so far
    rmgr logs -f last              as it comes, until it has ended
    rmgr logs 42_7 --stream stderr
    rmgr logs 42 --failed -n 20    the ends of what went wrong
    rmgr logs 42 -o 'out/%a.txt'   a file for each task
    rmgr logs 42_7 --attempt 1     of an earlier attempt, what the store has of it
    rmgr logs -f 42 --json | jq -r 'select(.stream == "stdout").data'""",
    exits=f"0 ok, 3 no such id, 5 service unavailable\nwith -f: {WORK_EXITS}",
)
@click.argument("selector", metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="follow until it has ended, and exit with its code")
@click.option("-o", "--out", metavar="FILE", default="", help="write to this local file; %a gives each task its own")
@click.option("--stream", "only", type=one_of("stream", STREAMS), metavar="stdout|stderr", help="only this stream  [both]")
@click.option("--failed", is_flag=True, help="only tasks that FAILED")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="of this attempt  [the last one]")
@click.option("-n", "--tail", type=LINES, metavar="N", help="only the last N lines of each stream of each task")
def logs(
    session: Session, selector: str, follow: bool, out: str, only: str | None, failed: bool, attempt: int | None, tail: int | None
) -> None:
    """Prints the output of tasks: stdout to stdout, stderr to stderr; of several tasks, each line after its task's id."""
    if follow and (attempt is not None or tail is not None or failed):
        message = "-f follows all that is written from the first line on: neither -n nor --attempt nor --failed fits"
        raise UsageError(message, hint=f"rmgr logs --failed {selector}" if failed else "rmgr logs -n N ID")
    target, job = find_one(session, selector)
    streams = (only,) if only else STREAMS
    if follow:
        _follow(session, target, selector, out, streams)
        return
    tasks = kept_tasks(session, job.id)
    if target.tasks:
        positions = set(positions_of(session, job.id, target.tasks, total=len(tasks)))
        tasks = [task for task in tasks if task.position in positions]
    if failed:
        tasks = [task for task in tasks if task.state is State.FAILED]
        if not tasks:
            session.note(f"no task of {selector} has failed")
    sink = _sink(session, tasks, out, job.id)
    silent = True
    try:
        for task in tasks:
            pieces: Iterator[OutputPiece] = _output_so_far(session, task, streams, attempt)
            empty = True
            for piece in last_lines(pieces, tail) if tail is not None else pieces:
                sink.take(piece)
                empty = silent = False
            if empty and attempt is not None:
                session.note(f"{task.id}: nothing is kept of what attempt {attempt} wrote")
            sink.done(task.position)
    finally:
        sink.close()
    if tasks and silent and attempt is None:
        message = "never ran" if job.state.is_final else "has not begun"
        if any(task.attempt for task in tasks):
            known = _ends_of(session, job.id) if any(task.state.is_final for task in tasks) else {}
            ends = [known[task.position] for task in tasks if task.position in known]
            message = _silence(ends, job.asked, only, is_over=all(task.state.is_final for task in tasks))
        session.note(f"{selector} {message}: rmgr explain {selector}")


def _silence(ends: Iterable[FollowedEnd], asked: Mapping[str, Any], only: str | None, *, is_over: bool) -> str:
    """Describes why there is no output of tasks that have begun. ends: of those that have ended. asked: as in their job's view."""
    numbers = [number for number, name in enumerate(STREAMS) if only in {None, name}]
    if any(end.log_parts[number] for end in ends for number in numbers):
        return "has written output that the data store no longer has"
    yet = "" if is_over else " yet"
    named = " and ".join(dict.fromkeys(asked[name] for name in ("out", "err") if asked.get(name)))
    if named:
        return f"has written nothing but to {named} on its nodes{yet}"
    return f"has written nothing{f' to {only}' if only else ''}{yet}"


def _follow(session: Session, target: Target, selector: str, out: str, streams: tuple[str, ...]) -> None:
    number = target.submission
    follow = Follow(session)
    has_written = True
    try:
        positions = positions_of(session, number, target.tasks) if target.tasks else None
        item = follow.add(number, positions)
        if item.past is not None:
            raise NotFound(f"the output of {number} is no longer kept: it is history", hint=f"rmgr history {number}")
        has_written = stream(session, follow, item, sink=_file_sink(out, item) if out else None, streams=streams)
    except KeyboardInterrupt:
        raise detached(session, target.ids, attach=f"rmgr logs -f {selector}") from None
    ends = item.ends.values()
    if not has_written and any(end.attempt for end in ends):
        only = streams[0] if len(streams) == 1 else None
        told = asked(item.submission) if item.submission is not None else {}
        session.note(f"{selector} {_silence(ends, told, only, is_over=True)}")
    tell_failure(session, item, with_tail=False)
    raise WorkEnded(codes(follow.items))


def _file_sink(out: str, item: AwaitedSubmission) -> Sink:
    array = item.submission.array if item.submission is not None else ""
    return ToFiles(out, item.number, lambda position: shown_index(array, position))


def _sink(session: Session, tasks: Sequence[TaskView], out: str, number: int) -> Sink:
    ids = {task.position: task for task in tasks}
    if out:
        return ToFiles(out, number, lambda position: ids[position].index)
    if session.json:
        return JsonLines(lambda position: ids[position].id)
    return Plain() if len(tasks) <= 1 else Labelled(lambda position: ids[position].id)


def _output_so_far(session: Session, task: TaskView, streams: Sequence[str], attempt: int | None) -> Iterator[OutputPiece]:
    """Yields the output of a task so far, in one attempt."""
    wanted = attempt or task.attempt
    if not wanted:
        return
    ends = _ends_of(session, task.submission) if task.state.is_final else {}
    end = ends.get(task.position)
    now_us = time.time_ns() // 1000
    if end is not None and end.attempt == wanted:
        for name in streams:
            for data in read_end(session, end, name):
                yield _piece(task, wanted, name, data, end.ended_us)
        return
    if not task.state.is_final and wanted == task.attempt and task.node:
        live = list(_from_node(session, task, streams))
        if live:
            yield from live
            return
    for name in streams:
        for data in read_flushed(session.data_store(), task.submission, task.position, wanted, name):
            yield _piece(task, wanted, name, data, now_us)


def _from_node(session: Session, task: TaskView, streams: Sequence[str]) -> Iterator[OutputPiece]:
    from rmgr.adapters.rpc.services import NodeClient

    endpoint = next((node.endpoint for node in session.query().nodes() if node.id == task.node), "")
    if not endpoint:
        return
    only = streams[0] if len(streams) == 1 else ""
    try:
        with NodeClient(endpoint, via=session.via, credentials=session.shown_credentials()) as client:
            for piece in client.logs(task.submission, task.position, attempt=task.attempt, stream=only):
                if piece.data:
                    yield _piece(task, piece.attempt, piece.stream, piece.data, piece.time_us)
    except NotFound as error:
        session.detail(f"{task.id}: {error.message}")
    except (Unavailable, DaemonFailed) as error:
        session.note(f"{task.id}: {error.message}; what the data store has of its output follows, up to a minute old")


def _piece(task: TaskView, attempt: int, stream_: str, data: bytes, time_us: int) -> OutputPiece:
    return OutputPiece(task.submission, task.position, attempt, stream_, data, time_us)


def _ends_of(session: Session, number: int) -> dict[int, FollowedEnd]:
    """Returns how tasks ended, with their logs; read once per command."""
    cache: dict[int, dict[int, FollowedEnd]] = click.get_current_context().meta.setdefault("rmgr.ends", {})
    if number not in cache:
        try:
            cache[number] = {end.position: end for end in read_ends(session, number)}
        except RmgrError as error:
            session.note(f"{error.message}; what was stored of the output follows")
            cache[number] = {}
    return cache[number]


def last_lines(pieces: Iterator[OutputPiece], lines: int) -> Iterator[OutputPiece]:
    """Yields the last lines of each stream, counted as `tail` does: a line ends with a line feed, the last one may lack it."""
    kept: dict[str, OutputPiece] = {}
    for piece in pieces:
        before = kept[piece.stream].data if piece.stream in kept else b""
        kept[piece.stream] = _piece_with(piece, _end_of(before + piece.data, lines))
    yield from kept.values()


def _end_of(data: bytes, lines: int) -> bytes:
    at = len(data) - data.endswith(b"\n")
    for _ in range(lines):
        at = data.rfind(b"\n", 0, at)
        if at < 0:
            return data
    return data[at + 1 :] if lines else b""


def _piece_with(piece: OutputPiece, data: bytes) -> OutputPiece:
    return replace(piece, data=data)
