"""`rmgr run -- CMD`: submits, streams the output to the same streams, exits with the command's code; and destinations of tasks' output."""

from __future__ import annotations

import codecs
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import click

from rmgr.cli import waiting
from rmgr.cli.display.render import SCHEMA, STATE_STYLES, elapsed, emit, iso, json_line, paint, printable
from rmgr.cli.session import Session, WorkEnded, command
from rmgr.cli.submit.submit import SECTIONS, UNDONE, WORDS_AFTER_OPTIONS, Afterwards, has_dashes, read_work, tell_dry, work_options
from rmgr.cli.words.params import WORK_EXITS
from rmgr.client.commands.sending import Sent, prepare, send
from rmgr.client.logs import LiveOutput, OutputPiece
from rmgr.coord.protocol.keys import STREAMS
from rmgr.errors import UsageError
from rmgr.model.submission import shown_index

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
    session.undone = UNDONE
    work = read_work(ctx, session, values, words, dashes=has_dashes(ctx, words), script=False)
    if pty:
        from rmgr.cli.submit import terminal

        work = terminal.interactive(session, work)
    draft = prepare(session, work)
    if work.afterwards.dry_run:
        tell_dry(session, draft)
        return
    sent = send(session, draft)
    number = sent.submission.id
    session.detail(f"submitted {number}")
    if pty:
        raise WorkEnded(terminal.sit_down(session, number))
    try:
        follow = waiting.Follow(session)
        item = follow.add(number, made=sent.made)
        stream(session, follow, item)
    except KeyboardInterrupt:
        raise waiting.detached(session, [str(number)], attach=f"rmgr logs -f {number}") from None
    waiting.fetch_files(session, item)
    waiting.tell_failure(session, item, with_tail=False)
    raise WorkEnded(waiting.codes(follow.items))


def stream(
    session: Session, follow: waiting.Follow, item: waiting.AwaitedSubmission, *, sink: Sink | None = None, streams: tuple[str, ...] = ()
) -> bool:
    """Passes output on until everything followed has ended; returns whether there was any. Raises DeadlineExceeded, KeyboardInterrupt."""
    from rmgr.client.progress import ProgressDisplay

    to = sink or sink_for(session, item)
    live = LiveOutput(session, item.number, wanted=item.wanted, streams=streams or STREAMS)
    began_s, has_begun, has_written = time.monotonic(), False, False

    def on_attempt(position: int, attempt: int, node: str) -> None:
        nonlocal has_begun
        has_begun = True
        if attempt > 1:
            session.note(f"{label_of(item, position)}: attempt {attempt} begins on {node}; the one before was lost, failed, or was moved")

    def take(pieces: Iterable[OutputPiece]) -> None:
        nonlocal has_written
        for piece in pieces:
            to.take(piece)
            has_written = True

    live.on_attempt = on_attempt
    try:
        with ProgressDisplay(str(item.number), enabled=False, trouble=follow.trouble) as display:
            while not item.is_ended:
                display.tick()
                if not follow.trouble():
                    live.look()
                take(live.pieces())
                for end in follow.next(_STREAM_TICK_S):
                    has_begun = True
                    take(live.ended(end))
                    to.done(end.position)
                if not has_begun and time.monotonic() - began_s > waiting.PATIENCE_S:
                    has_begun = True
                    waiting.tell_why(session, item)
        take(live.pieces())
        return has_written
    finally:
        to.close()
        live.close()


def sink_for(session: Session, item: waiting.AwaitedSubmission) -> Sink:
    """Returns a sink: plain for one task, labelled for several, JSON lines with --json."""
    if session.json:
        return JsonLines(lambda position: label_of(item, position))
    return Plain() if item.total <= 1 else Labelled(lambda position: label_of(item, position))


def label_of(item: waiting.AwaitedSubmission, position: int) -> str:
    """Returns the task's id: `42_7`."""
    array = item.submission.array if item.submission is not None else ""
    return f"{item.number}_{shown_index(array, position)}"


# -- `rmgr submit --wait`, `--watch`, `--progress`: after the id -----------------------------------------------------------------


def wait_for(session: Session, sent: Sent, afterwards: Afterwards) -> int:
    """Waits for the end; prints what was asked for. Returns the exit code. Raises WorkEnded after a Ctrl-C."""
    number = sent.submission.id
    follow = waiting.Follow(session)
    printed = False
    try:
        item = follow.add(number, made=sent.made)

        def on_end(end: waiting.FollowedEnd) -> None:
            if afterwards.watch and not session.json:
                tell_end(end)

        waiting.until_ended(session, follow, progress=afterwards.progress, on_end=on_end, title=sent.submission.name)
        if item.total == 1 and not (session.json or afterwards.progress or afterwards.watch):
            printed = _print_output(session, item)
    except KeyboardInterrupt:
        raise waiting.detached(session, [str(number)], attach=f"rmgr wait {number}") from None
    waiting.fetch_files(session, item)
    if session.json:
        emit(_shown(session, item))
    else:
        if item.total != 1:
            session.note(f"{waiting.summary(item)}; their output: rmgr logs {number}")
        waiting.tell_failure(session, item, with_tail=not printed)
    return item.code


def wait_for_all(session: Session, sent: Sequence[Sent], *, watch: bool, progress: bool) -> int:
    """Waits for the end of a whole list. Returns the highest exit code. Raises WorkEnded after a Ctrl-C."""
    ids = [str(item.submission.id) for item in sent]
    follow = waiting.Follow(session)

    def on_end(end: waiting.FollowedEnd) -> None:
        if watch and not session.json:
            tell_end(end)

    try:
        for one in sent:
            follow.add(one.submission.id, made=one.made)
        waiting.until_ended(session, follow, progress=progress, on_end=on_end, title="the list")
    except KeyboardInterrupt:
        raise waiting.detached(session, ids, attach=f"rmgr wait {' '.join(ids)}") from None
    for item in follow.items:
        waiting.fetch_files(session, item)
    if session.json:
        jobs = [{"id": str(item.number), "state": str(item.state), "exit_code": item.code} for item in follow.items]
        emit({"jobs": jobs})
    else:
        for item in follow.items:
            waiting.tell_failure(session, item, with_tail=True)
    return waiting.codes(follow.items)


def _print_output(session: Session, item: waiting.AwaitedSubmission) -> bool:
    """Prints the whole output of the only task, to the same streams."""
    live, sink = LiveOutput(session, item.number), Plain()
    printed = False
    for end in item.ends.values():
        for piece in live.ended(end):
            sink.take(piece)
            printed = True
    return printed


def tell_end(end: waiting.FollowedEnd) -> None:
    state = paint(f"{end.state:<9}", STATE_STYLES[end.state], sys.stdout)
    time = elapsed(end.started_us, end.ended_us, 0)
    node, error = printable(end.node), f"  {printable(end.error)}" if end.error else ""
    sys.stdout.write(f"{end.id}  {state}  {node}  {time}{error}\n")
    sys.stdout.flush()


def _shown(session: Session, item: waiting.AwaitedSubmission) -> dict[str, Any]:
    """Returns the value of `show`. The leader may be a moment behind: facts known here override it."""
    from rmgr.cli.display import shapes

    job = session.query().job(item.number)
    attempts = session.query().tasks(item.number)[0].attempts if item.total == 1 and item.past is None else ()
    told = shapes.shown_job(job, attempts)
    return told | {"state": str(item.state), "counts": told["counts"] | {str(state): count for state, count in item.counts.items()}}

# -- destinations of output: the same streams here, labelled lines for arrays, JSON lines, or files ----------------------------


class Sink(Protocol):
    """Takes pieces in order; `done` when no more follow for a task (position), `close` at the end."""
    def take(self, piece: OutputPiece) -> None: ...
    def done(self, position: int) -> None: ...
    def close(self) -> None: ...


class Plain:
    """stdout to stdout, stderr to stderr, byte for byte."""

    def take(self, piece: OutputPiece) -> None:
        stream = sys.stdout if piece.stream == STREAMS[0] else sys.stderr
        stream.flush()
        stream.buffer.write(piece.data)
        stream.buffer.flush()

    def done(self, position: int) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Nothing is held back."""


class Labelled:
    """Writes only whole lines, each after its task: `42_7: text`."""

    def __init__(self, label: Callable[[int], str]) -> None:
        self._label = label
        self._rest: dict[tuple[int, str], bytes] = {}

    def take(self, piece: OutputPiece) -> None:
        key = (piece.position, piece.stream)
        lines = (self._rest.pop(key, b"") + piece.data).split(b"\n")
        self._rest[key] = lines.pop()
        if lines:
            self._write(piece.position, piece.stream, b"\n".join(lines))

    def done(self, position: int) -> None:
        for stream in STREAMS:
            rest = self._rest.pop((position, stream), b"")
            if rest:
                self._write(position, stream, rest)

    def close(self) -> None:
        for position in sorted({position for position, _ in self._rest}):
            self.done(position)

    def _write(self, position: int, stream: str, data: bytes) -> None:
        out = sys.stdout if stream == STREAMS[0] else sys.stderr
        label = paint(f"{self._label(position)}:", "dim", out).encode()
        out.flush()
        out.buffer.write(b"".join(label + b" " + line + b"\n" for line in data.split(b"\n")))
        out.buffer.flush()


class JsonLines:
    """One JSON value a line: {"time","task","stream","data"}; bytes that are not UTF-8 become U+FFFD."""

    def __init__(self, label: Callable[[int], str]) -> None:
        self._label = label
        self._decoders: dict[tuple[int, str], codecs.IncrementalDecoder] = {}

    def take(self, piece: OutputPiece) -> None:
        key = (piece.position, piece.stream)
        decoder = self._decoders.get(key)
        if decoder is None:
            decoder = self._decoders[key] = codecs.getincrementaldecoder("utf-8")("replace")
        self._write(piece.position, piece.stream, decoder.decode(piece.data), piece.time_us)

    def done(self, position: int) -> None:
        for stream in STREAMS:
            decoder = self._decoders.pop((position, stream), None)
            if decoder is not None:
                self._write(position, stream, decoder.decode(b"", final=True), 0)

    def close(self) -> None:
        for position in sorted({position for position, _ in self._decoders}):
            self.done(position)

    def _write(self, position: int, stream: str, text: str, time_us: int) -> None:
        if text:
            line = {"schema": SCHEMA, "time": iso(time_us), "task": self._label(position), "stream": stream, "data": text}
            sys.stdout.write(json_line(line))
            sys.stdout.flush()


class ToFiles:
    """Writes into one file, or with %a (and %j, %t) into one per task; stdout and stderr together, in the order in which they come."""

    def __init__(self, pattern: str, number: int, index_of: Callable[[int], int]) -> None:
        self._pattern = pattern
        self._number = number
        self._index_of = index_of
        self._open: dict[str, BinaryIO] = {}

    def take(self, piece: OutputPiece) -> None:
        self._file(piece.position, piece.attempt).write(piece.data)

    def done(self, position: int) -> None:
        if "%a" in self._pattern:
            for name in [name for name in self._open if name == self._name(position, 0) or "%t" in self._pattern]:
                self._open.pop(name).close()

    def close(self) -> None:
        if not self._open and "%" not in self._pattern:
            self._opened(self._pattern)
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _file(self, position: int, attempt: int) -> BinaryIO:
        name = self._name(position, attempt)
        return self._open.get(name) or self._opened(name)

    def _opened(self, name: str) -> BinaryIO:
        try:
            file = self._open[name] = Path(name).open("wb")  # noqa: SIM115 - closed by done or close
        except OSError as error:
            raise UsageError(f"-o: {name} cannot be written: {error.strerror}", hint="name a file in a directory that exists") from error
        return file

    def _name(self, position: int, attempt: int) -> str:
        values = {"%a": str(self._index_of(position)), "%j": str(self._number), "%t": str(attempt)}
        name = self._pattern
        for placeholder, value in values.items():
            name = name.replace(placeholder, value)
        return name
