"""Output of tasks line by line: `future.logs(follow=True)`, `queue.follow()`; while they run from their nodes, the rest from the store."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from rmgr.client.logs.lines import Line, LineCutter
from rmgr.client.logs.live import LiveOutput, OutputPiece, claims_of
from rmgr.client.logs.stored_logs import read_flushed
from rmgr.client.waiting import Deadline, giving_slot_back
from rmgr.coord.protocol.keys import STREAMS
from rmgr.errors import DeadlineExceeded, PermissionDenied, Unavailable, UsageError

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.client.connection import Connection
    from rmgr.client.futures import Future
    from rmgr.coord.protocol.ports import Store
    from rmgr.submitter.questions import NodeClaims, Question

A = TypeVar("A")

#: How often is looked for lines.
_TICK_S = 0.05


class OutputSource(Protocol):
    """Tasks of one submission whose output can be read."""

    @property
    def connection(self) -> Connection: ...

    @property
    def number(self) -> int:
        """Their submission."""
        ...


class FollowedTasks(OutputSource, Protocol):
    """The same, to the end of all that have not ended."""

    def unfinished(self) -> list[Future]: ...


class FollowsOutput:
    """Gives a queue `follow`: what its tasks write, as it comes."""

    _tasks: FollowedTasks

    def follow(self, *, stream: str = "", timeout: float | None = None) -> Iterator[Line]:
        """Yields lines of the tasks that have not ended, as they come, until all of those have ended.

        Up to 64 tasks are read at once; the lines of others come when they end.


        Args: stream: "stdout" or "stderr", "" = both. timeout: s.
        Raises: UsageError; DeadlineExceeded; StoreUnavailable, CoordinationUnavailable. Cost: as `Future.logs`.
        """
        return lines_of(self._tasks, self._tasks.unfinished(), follow=True, stream=stream, timeout=timeout)


def lines_of(source: OutputSource, futures: Sequence[Future], *, follow: bool, stream: str, timeout: float | None) -> Iterator[Line]:
    """Yields what tasks of one submission have written. See `Future.logs`."""
    if stream not in {"", *STREAMS}:
        raise UsageError(f"stream = {stream!r} is neither 'stdout' nor 'stderr'", hint='"" is both')
    source.connection.check_waitable()
    return _lines(source, list(futures), (stream,) if stream else STREAMS, follow=follow, deadline=Deadline(timeout))


def _lines(source: OutputSource, futures: list[Future], streams: tuple[str, ...], *, follow: bool, deadline: Deadline) -> Iterator[Line]:
    while follow and any(future.index < 0 and not future.done() for future in futures):  # it waits for its turn to be sent
        _pause(deadline)
    left = {future.index: future for future in futures if future.index >= 0}
    reach, cutter = ConnectionPlace(source.connection), LineCutter()
    live = LiveOutput(reach, source.number, wanted=frozenset(left), streams=streams)
    try:
        while True:
            if follow:
                live.look()
            for piece in live.pieces():
                yield from cutter.take(piece)
            for index in [index for index, future in left.items() if future.done()]:
                end = OutputEnd.of(left.pop(index))
                for piece in live.ended(end) if end is not None else ():
                    yield from cutter.take(piece)
                yield from cutter.rest(index)
            if not left or not follow:
                break
            _pause(deadline)
        for piece in _so_far(reach, source.number, left, streams) if left else ():
            yield from cutter.take(piece)
        yield from cutter.rest()
    finally:
        live.close()


def _pause(deadline: Deadline) -> None:
    if deadline.is_over:
        raise DeadlineExceeded("the tasks whose output is followed have not ended in time", hint="they go on; call it again")
    with giving_slot_back():
        threading.Event().wait(_TICK_S)


def _so_far(reach: ConnectionPlace, number: int, wanted: dict[int, Future], streams: tuple[str, ...]) -> Iterator[OutputPiece]:
    """What tasks that run have written by now; of a node that cannot be reached, as far as the store has it."""
    from rmgr.adapters.rpc.server import NodeClient

    for claims in claims_of(reach, number):
        with NodeClient(claims.endpoint, via=reach.via, credentials=reach.credentials()) as client:
            try:
                running = client.running(number)
            except (Unavailable, PermissionDenied):
                yield from _stored_so_far(reach, number, claims, wanted, streams)
                continue
            for task in running:
                if task.node != claims.node or task.index not in wanted:
                    continue
                for said in client.logs(number, task.index, attempt=task.attempt, stream=streams[0] if len(streams) == 1 else ""):
                    if said.data:
                        yield OutputPiece(submission=number, position=task.index, attempt=task.attempt, stream=said.stream, data=said.data)


def _stored_so_far(
    reach: ConnectionPlace, number: int, claims: NodeClaims, wanted: dict[int, Future], streams: tuple[str, ...]
) -> Iterator[OutputPiece]:
    for block in claims.blocks:
        for index in range(block.first, block.end):
            for name in streams if index in wanted else ():
                for data in read_flushed(reach.data_store(), number, index, block.attempt, name):
                    yield OutputPiece(submission=number, position=index, attempt=block.attempt, stream=name, data=data)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputEnd:
    """End of a task, as far as its output goes."""

    id: str
    position: int
    attempt: int
    log: tuple[bytes, bytes]
    log_parts: tuple[int, int]
    ended_us: int = 0

    @classmethod
    def of(cls, future: Future) -> OutputEnd | None:
        """None: it never ran, or it is not known how it ended."""
        settled = future.settled
        if settled is None or not settled.attempt:
            return None
        outcome = settled.outcome
        return cls(id=future.task_id, position=future.index, attempt=settled.attempt, log=outcome.log, log_parts=outcome.log_parts)


class ConnectionPlace:
    """`live.Place`: how a connection gets at nodes and store."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def via(self) -> str:
        """The gateway through which nodes are asked, "" = none."""
        return str(getattr(self._connection.asks, "endpoint", "")) if self._connection.config.cluster.uses_gateway else ""

    def ask(self, question: Question[A], most_s: float = 10.0) -> A:
        """See `live.Place`."""
        return self._connection.asks.ask(question, timeout_s=most_s)

    def credentials(self) -> Credentials | None:
        """Who we are."""
        return self._connection.credentials

    def data_store(self) -> Store:
        """The connection's."""
        return self._connection.submitter.store

    def left_s(self, most: float | None = None) -> float | None:
        """Nothing else limits a step."""
        return most

    def note(self, text: str) -> None:
        """That some of an output was not kept stands where it was cut."""
