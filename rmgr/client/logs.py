"""Output of tasks: from the Starters' gRPC service while tasks run, afterwards from the data store; in pieces or line by line.

Each streamed task has a thread. Pieces pass through a queue to the command's own thread, which alone writes. If a node cannot be
reached, its output comes from the data store until it can: later, but nothing is lost.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from rmgr.coord.protocol import keys
from rmgr.coord.protocol.keys import STREAMS
from rmgr.coord.protocol.ports import Store
from rmgr.errors import DaemonFailed, NotFound, PermissionDenied, RmgrError, Unavailable
from rmgr.model.block import Placed, place
from rmgr.model.units import format_size
from rmgr.procedures.bounded import MOST_LOG_PART_BYTES, rows_within
from rmgr.runtime import machine

if TYPE_CHECKING:
    from rmgr.client.reach import NodeReach
    from rmgr.submitter.questions import NodeClaims

#: Tasks streamed at once; output of other tasks comes when they end.
MAX_STREAMS = 64
#: How long a stream may take to deliver the last output after its task is known to have ended (s).
_DRAIN_S = 2.0
#: How long a silent node is not asked again (s). Shorter after first failures and behind a gateway, which may be at fault itself.
_SILENT_S, SILENT_FIRST_S = 10.0, 2.0
#: Failures in a row after which output is looked for in the data store: a busy node may miss a call or two.
SURE = 3
#: Time limit of one look into the store, and how long a store that did not answer is not asked again (s).
_STORE_S, _STORE_AWAY_S = 2.0, 10.0
#: Parts of one stream that one look takes; the next look takes more.
_PARTS_A_LOOK = 4
#: Parts of an ended attempt that one read takes.
_PARTS_A_READ = 16
_FIRST_LOOK_S, _SLOWEST_LOOK_S = 0.03, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTask:
    """End of a task: its last attempt, and where the output of that is: parts in the store, then `log`; of (stdout, stderr)."""

    submission: int
    position: int
    attempt: int
    ended_us: int = 0
    log: tuple[bytes, bytes] = (b"", b"")
    log_parts: tuple[int, int] = (0, 0)

    @property
    def id(self) -> str:
        """The id of the task: `42_7`."""
        return f"{self.submission}_{self.position}"


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """A piece of a task's output. time_us: when it was read."""

    submission: int
    position: int
    attempt: int
    stream: str
    data: bytes
    time_us: int = 0


@dataclass(slots=True)
class _Stream:
    """One attempt being streamed. shown: bytes passed on, of (stdout, stderr). is_cut: there may be more output.

    parts, at: the first part in the store not read yet, and its offset in the output (bytes); of (stdout, stderr).
    gaps: the part that counts the bytes of deleted parts, and its offset; None until parts were missed.
    """

    attempt: int
    node: str
    shown: list[int]
    thread: threading.Thread | None = None
    client: Any = None
    is_over: bool = False
    is_cut: bool = False
    parts: list[int] = field(default_factory=lambda: [0, 0])
    at: list[int] = field(default_factory=lambda: [0, 0])
    gaps: list[tuple[int, int] | None] = field(default_factory=lambda: [None, None])


class LiveOutput:
    """Output of tasks of one submission.

    Args:
        wanted: positions, None = all. streams: stdout, stderr or both. admits: whether to follow a running (position, attempt).
    `pieces` yields what has arrived, `look` begins to stream started tasks, `ended` yields the rest of a task.
    """

    def __init__(
        self,
        reach: NodeReach,
        number: int,
        *,
        wanted: frozenset[int] | None = None,
        streams: tuple[str, ...] = STREAMS,
        admits: Callable[[int, int], bool] = lambda *_: True,
    ) -> None:
        self._reach = reach
        self._number = number
        self._wanted = wanted
        self._streams_wanted = streams
        self._admits = admits
        self._pieces: queue.SimpleQueue[OutputPiece] = queue.SimpleQueue()
        self._streams: dict[int, _Stream] = {}
        self._ended: set[int] = set()
        self._told: set[tuple[int, str]] = set()
        self._silent: dict[str, tuple[int, float]] = {}  # endpoints that did not answer -> (how often, not asked again before)
        self._told_silent: set[str] = set()
        self._store_away_s = -math.inf
        self._turn = 0  #: of streams whose next part may have been deleted
        self._wait_s = _FIRST_LOOK_S
        self._look_s = machine.monotonic() + self._wait_s
        self.on_attempt: Callable[[int, int, str], None] = lambda *_: None  #: (position, attempt, node): called when a new one begins

    def pieces(self) -> Iterator[OutputPiece]:
        """Yields what has arrived since the last call; does not wait."""
        while True:
            try:
                yield self._pieces.get_nowait()
            except queue.Empty:
                return

    def look(self) -> None:
        """Finds running tasks and begins to stream them. Cheap to call often: looks only when it is time."""
        now = machine.monotonic()
        if now < self._look_s:
            return
        self._wait_s = min(_SLOWEST_LOOK_S, self._wait_s * 1.6)
        self._look_s = now + self._wait_s
        self.look_now()

    @property
    def follows(self) -> bool:
        """Whether any task is being streamed."""
        return bool(self._streams)

    def look_now(self) -> None:
        """Looks as `look` does, but at once.

        Cost: a call to each node that has claimed work of the submission; also a read of the data store while one does not answer.
        """
        with contextlib.suppress(Unavailable):
            silent = []
            for claims in claims_of(self._reach, self._number):
                if self._silent.get(claims.endpoint, (0, -math.inf))[1] < machine.monotonic():
                    self._look_at(claims.node, claims.endpoint)
                if self._silent.get(claims.endpoint, (0, 0.0))[0] >= SURE:
                    silent.append(claims)
            if silent and self._store_away_s < machine.monotonic():
                self._look_into_store(silent)

    def ended(self, end: EndedTask) -> Iterator[OutputPiece]:
        """Yields the rest of what a task wrote in its last attempt. Raises StoreUnavailable, DataLost."""
        self._ended.add(end.position)
        stream = self._streams.pop(end.position, None)
        shown = [0, 0]
        if stream is not None:
            if stream.attempt == end.attempt:
                limit = machine.monotonic() + _DRAIN_S
                while stream.thread is not None and stream.thread.is_alive() and machine.monotonic() < limit:
                    yield from self.pieces()
                    stream.thread.join(0.01)
                yield from self.pieces()
                shown = list(stream.shown)
            self._stop(stream)
        now_us = end.ended_us or machine.wall_us()
        for skip, name in zip(shown, STREAMS, strict=True):
            if name not in self._streams_wanted:
                continue
            gaps: list[Placed] = []
            for fresh in unseen(read_end(self._reach, end, name), skip, on_gap=gaps.append):
                if fresh:
                    yield OutputPiece(self._number, end.position, end.attempt, name, fresh, now_us)
            if gaps:
                self._tell_gaps(end, name, gaps)

    def _tell_gaps(self, end: EndedTask, stream: str, gaps: Sequence[Placed]) -> None:
        if (end.position, stream) not in self._told:
            self._told.add((end.position, stream))
            missing = sum(placed.dropped for placed in gaps)
            places = "a line says where" if len(gaps) == 1 else f"{len(gaps)} lines say where"
            self._reach.note(
                f"{end.id} wrote more to {stream} than is kept ({format_size(gaps[0].cap)}): {missing} bytes from the middle of it "
                f"are missing ({places}); large output belongs into a file (--output KEY=FILE, -o FILE)"
            )

    def close(self) -> None:
        """Ends all streams."""
        for stream in self._streams.values():
            self._stop(stream)
        self._streams.clear()

    # -- inside

    def _look_at(self, node: str, endpoint: str) -> None:
        from rmgr.adapters.rpc.services import NodeClient

        try:
            with NodeClient(endpoint, timeout_s=2.0, via=self._reach.via, credentials=self._reach.credentials()) as client:
                running = client.running(self._number)
        except RmgrError as error:  # it is shutting down, or cannot be reached from here
            count = self._silent.get(endpoint, (0, 0.0))[0] + isinstance(error, (Unavailable, DaemonFailed, PermissionDenied))
            alone_s = _SILENT_S if count >= SURE and not self._reach.via else SILENT_FIRST_S
            self._silent[endpoint] = count, machine.monotonic() + alone_s
            return
        self._silent.pop(endpoint, None)
        for task in running:
            if task.node != node or task.index in self._ended or (self._wanted is not None and task.index not in self._wanted):
                continue
            known = self._streams.get(task.index)
            if known is not None and (known.attempt >= task.attempt and not (known.is_over and (known.is_cut or known.node != node))):
                continue
            if known is not None:
                self._stop(known)
            if known is None and (len(self._streams) >= MAX_STREAMS or not self._admits(task.index, task.attempt)):
                continue
            goes_on = known is not None and known.is_cut and (known.attempt, known.node) == (task.attempt, node)
            if not goes_on:
                self.on_attempt(task.index, task.attempt, node)
            self._begin(task.index, task.attempt, node, endpoint, known.shown if known is not None and goes_on else [0, 0])

    def _look_into_store(self, silent: Sequence[NodeClaims]) -> None:
        """Passes on new output that the store has of tasks on nodes that do not answer."""
        for claims in silent:
            if claims.node not in self._told_silent:
                self._told_silent.add(claims.node)
                self._reach.note(
                    f"node {claims.node} does not answer at {claims.endpoint}: what its tasks write comes from the data store, "
                    "seconds to a minute later (rmgr doctor)"
                )
        asked = streams = self._tasks_without_stream(silent)
        missing: dict[tuple[int, int], None] = {}
        try:
            for _ in range(_PARTS_A_LOOK):
                rows = {
                    keys.log(self._number, position, stream.attempt, name, stream.parts[number]): (position, number)
                    for position, stream in asked.items()
                    for number, name in enumerate(STREAMS)
                    if name in self._streams_wanted
                }
                found = rows_within(self._reach.data_store(), list(rows), MOST_LOG_PART_BYTES, timeout_s=_STORE_S)
                asked = {rows[row][0]: asked[rows[row][0]] for row in rows if row in found}
                missing |= {rows[row]: None for row in rows if row not in found}
                for row in rows:
                    if row in found:
                        self._take_part(rows[row][0], rows[row][1], asked[rows[row][0]], found[row])
                if not asked:
                    break
            begun = [(position, number) for position, number in missing if streams[position].parts[number]]
            if begun:  # one a look: it costs a listing
                self._turn += 1
                position, number = begun[self._turn % len(begun)]
                self._pass_deleted(position, number, streams[position])
        except RmgrError:  # a later look, or the end of the task, brings the rest
            self._store_away_s = machine.monotonic() + _STORE_AWAY_S

    def _tasks_without_stream(self, silent: Sequence[NodeClaims]) -> dict[int, _Stream]:
        """Returns tasks by position that may run on these nodes and are not streamed; at most `MAX_STREAMS`."""
        found: dict[int, _Stream] = {}
        for claims in silent:
            for block in claims.blocks:
                for position in range(block.first, block.end):
                    if position in self._ended or (self._wanted is not None and position not in self._wanted):
                        continue
                    if len(found) >= MAX_STREAMS:
                        return found
                    known = self._streams.get(position)
                    if known is None or known.attempt < block.attempt:
                        found[position] = _Stream(block.attempt, claims.node, [0, 0], is_over=True, is_cut=True)
                    elif known.is_over and known.is_cut:
                        found[position] = known
        return found

    def _take_part(self, position: int, number: int, stream: _Stream, data: bytes) -> None:
        """Passes on one more part of a stream, read from the store."""
        known = self._streams.get(position)
        if known is not stream:
            if known is None and not self._admits(position, stream.attempt):
                return
            if known is not None:
                self._stop(known)
            self._streams[position] = stream
            self.on_attempt(position, stream.attempt, stream.node)
        self._put_placed(position, number, stream, data, begin=stream.at[number], following=stream.parts[number] + 1)

    def _pass_deleted(self, position: int, number: int, stream: _Stream) -> None:
        """Goes on behind deleted parts, if the next part is one of them. One that is not written yet has no part behind it.

        The writer of an output over the cap deletes the oldest parts behind its first half; the part before them counts their bytes.
        """
        store, name = self._reach.data_store(), STREAMS[number]
        row = partial(keys.log, self._number, position, stream.attempt, name)
        prefix = keys.logs_of(self._number, position, stream.attempt, name)
        following = _next_part(store, prefix, row(stream.parts[number]), none=-1)
        if following < 0:
            return
        gap_part, begin = stream.gaps[number] or _first_gap(store, prefix, row)
        line = rows_within(store, [row(gap_part)], MOST_LOG_PART_BYTES, timeout_s=_STORE_S).get(row(gap_part), b"")
        placed = next(place((line,)), None)
        if placed is not None and placed.dropped:
            stream.gaps[number] = gap_part, begin
            self._put_placed(position, number, stream, line, begin=begin, following=following)

    def _put_placed(self, position: int, number: int, stream: _Stream, data: bytes, *, begin: int, following: int) -> None:
        """Passes on what is new in a part that begins at this offset; `following` is the part to read next."""
        fresh = b""
        for placed in place((data,)):
            fresh += placed.fresh(stream.shown[number] - begin)
            stream.at[number] = begin + placed.end
        stream.parts[number] = following
        stream.shown[number] = max(stream.shown[number], stream.at[number])
        if fresh:
            self._pieces.put(OutputPiece(self._number, position, stream.attempt, STREAMS[number], fresh, machine.wall_us()))

    def _begin(self, position: int, attempt: int, node: str, endpoint: str, shown: list[int]) -> None:
        from rmgr.adapters.rpc.services import NodeClient

        stream = _Stream(attempt, node, shown)
        stream.client = NodeClient(endpoint, via=self._reach.via, credentials=self._reach.credentials())
        self._streams[position] = stream
        stream.thread = machine.Thread(target=self._read, args=(position, stream), name=f"logs-{position}", daemon=True)
        stream.thread.start()

    def _read(self, position: int, stream: _Stream) -> None:
        only = self._streams_wanted[0] if len(self._streams_wanted) == 1 else ""
        try:
            begins = (stream.shown[0], stream.shown[1])
            for piece in stream.client.logs(self._number, position, attempt=stream.attempt, stream=only, follow=True, offsets=begins):
                if piece.data:
                    stream.shown[STREAMS.index(piece.stream)] = piece.offset + len(piece.data)
                    time_us = piece.time_us or machine.wall_us()
                    self._pieces.put(OutputPiece(self._number, position, stream.attempt, piece.stream, piece.data, time_us))
                if piece.ended:
                    break
        except NotFound:
            pass  # the attempt has ended: the store has the rest
        except RmgrError:  # node or gateway is gone or full: asked again while the task runs
            stream.is_cut = True
        except ValueError:
            pass  # the channel was closed meanwhile
        finally:
            stream.is_over = True

    @staticmethod
    def _stop(stream: _Stream) -> None:
        if stream.client is not None:
            stream.client.close()


def nodes_of(reach: NodeReach, number: int) -> list[tuple[str, str]]:
    """Returns (node, endpoint) of the nodes that have claimed work of a submission. Raises Unavailable."""
    return [(claims.node, claims.endpoint) for claims in claims_of(reach, number)]


def claims_of(reach: NodeReach, number: int) -> list[NodeClaims]:
    """Returns what nodes have claimed of a submission. Raises Unavailable."""
    from rmgr.submitter.questions import ReadClaims

    return [*reach.ask(ReadClaims(number=number), 5.0)]


# -- output of ended attempts --------------------------------------------------------------------------------------------------


def read_end(reach: NodeReach, end: EndedTask, stream: str) -> Iterator[bytes]:
    """Yields one stream of an ended task as `read_ended` does; asks for the store only if parts of the stream are in it."""
    at = STREAMS.index(stream)
    store = reach.data_store() if end.log_parts[at] else None
    return read_ended(store, end.submission, end.position, end.attempt, stream, parts=end.log_parts[at], rest=end.log[at])


def read_ended(store: Store | None, number: int, position: int, attempt: int, stream: str, *, parts: int, rest: bytes) -> Iterator[bytes]:
    """Yields one stream of an attempt from its beginning. Leaves out parts that are gone (retention) or invalid.

    Raises: StoreUnavailable, DataLost. Cost: one read per 16 parts, plus a listing if none of the 16 is there.
    """
    prefix, at = keys.logs_of(number, position, attempt, stream), 0
    while store is not None and at < parts:
        names = [keys.log(number, position, attempt, stream, part) for part in range(at, min(at + _PARTS_A_READ, parts))]
        rows = rows_within(store, names, MOST_LOG_PART_BYTES)
        yield from (rows[name] for name in names if name in rows)
        at += _PARTS_A_READ
        if not rows:  # skips gaps: a false claim of billions of parts must cost little
            at = _next_part(store, prefix, names[-1], none=parts)
    if rest:
        yield rest


def read_part(store: Store, number: int, position: int, attempt: int, stream: str, part: int) -> bytes:
    """Returns one part of a stream, b"" if it is gone or invalid. Raises: StoreUnavailable. Cost: one read."""
    row = keys.log(number, position, attempt, stream, part)
    return rows_within(store, [row], MOST_LOG_PART_BYTES).get(row, b"")


def _next_part(store: Store, prefix: str, after: str, *, none: int) -> int:
    """Returns the number of the first part after this key, `none` if there is none."""
    length = len(after)
    while names := store.keys(prefix, after=after, limit=_PARTS_A_READ):
        for name in names:
            digits = name.removeprefix(prefix)
            if len(name) == length and digits.isascii() and digits.isdigit():
                return int(digits)
        after = names[-1]
    return none


def _first_gap(store: Store, prefix: str, row: Callable[[int], str]) -> tuple[int, int]:
    """Returns the last part before the first missing one, and its offset. Cost: a listing; reads the parts before it: half of the cap."""
    last, after, is_whole = -1, "", True
    while is_whole and (names := store.keys(prefix, after=after)):
        for name in names:
            is_whole = name == row(last + 1)
            if not is_whole:
                break
            last, after = last + 1, name
    head = [row(part) for part in range(max(0, last))]
    some = (rows_within(store, head[at : at + _PARTS_A_READ], MOST_LOG_PART_BYTES) for at in range(0, len(head), _PARTS_A_READ))
    return max(0, last), sum(len(data) for rows in some for data in rows.values())


def read_flushed(store: Store, number: int, position: int, attempt: int, stream: str) -> Iterator[bytes]:
    """Yields the flushed output of an attempt whose end is not known: it still runs, or died with its node."""
    prefix, after = keys.logs_of(number, position, attempt, stream), ""
    while names := store.keys(prefix, after=after, limit=_PARTS_A_READ):
        rows = rows_within(store, names, MOST_LOG_PART_BYTES)
        yield from (rows[name] for name in names if name in rows)
        after = names[-1]


def unseen(pieces: Iterable[bytes], shown: int, *, on_gap: Callable[[Placed], object] = lambda _gap: None) -> Iterator[bytes]:
    """Yields the part of a stored stream after its first `shown` bytes, which the reader saw while it grew.

    Where some of an output over the cap was dropped, a line in the stored output says so: `on_gap` gets each such place. The line itself
    is yielded if the reader has not got past it.
    """
    for placed in place(pieces):
        if placed.dropped:
            on_gap(placed)
        yield placed.fresh(shown)


def tail_of(pieces: Sequence[bytes], lines: int) -> list[str]:
    """Returns the last lines of some output, for a message."""
    rows = b"".join(pieces)[-64 * 1024 :].splitlines()  # splits bytes at \n and \r, so a progress bar shows its last state
    return [row.decode("utf-8", "replace") for row in rows[-lines:]]


# -- lines ---------------------------------------------------------------------------------------------------------------------


class Line(str):
    """A line that a task has written, without its line end; invalid UTF-8 becomes U+FFFD.

    Attributes: task_id ("42_7"), attempt, stream ("stdout" or "stderr"), data (the line as it was written).
    """

    __slots__ = ("attempt", "data", "stream", "task_id")
    task_id: str
    attempt: int
    stream: str
    data: bytes

    @classmethod
    def of(cls, data: bytes, piece: OutputPiece) -> Line:
        """Returns a line of the task that wrote `piece`."""
        made = cls(data.decode("utf-8", "replace"))
        made.task_id, made.attempt, made.stream = f"{piece.submission}_{piece.position}", piece.attempt, piece.stream
        made.data = data
        return made


class LineCutter:
    """Makes lines of pieces; keeps an unfinished line for each task and stream."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, str], tuple[OutputPiece, bytes]] = {}

    def take(self, piece: OutputPiece) -> Iterator[Line]:
        """Yields the lines that `piece` completes. A new attempt ends the unfinished line of the attempt before."""
        before, rest = self._kept.pop((piece.position, piece.stream), (piece, b""))
        if before.attempt != piece.attempt and rest:
            yield Line.of(rest, before)
            rest = b""
        *lines, rest = (rest + piece.data).split(b"\n")
        for line in lines:
            yield Line.of(line.removesuffix(b"\r"), piece)
        if rest:
            self._kept[piece.position, piece.stream] = piece, rest

    def rest(self, index: int | None = None) -> Iterator[Line]:
        """Yields unfinished lines, of one task or of all."""
        for key in [key for key in self._kept if index is None or key[0] == index]:
            piece, rest = self._kept.pop(key)
            yield Line.of(rest, piece)
