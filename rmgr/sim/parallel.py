"""Work in processes of its own: pieces are handed to workers, answers come as they are ready, Ctrl-C or an error ends them all."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext
from typing import Any, TypeAlias

from rmgr.errors import RmgrError

#: Called now and then by a piece of work: leaves (`Unwanted`) when the process that wants the answer is gone.
StillWanted: TypeAlias = Callable[[], None]

_ENDING_S = 5.0


class Unwanted(BaseException):
    """Nobody waits for the answer any more. No SystemExit: a pass takes that for the fault of a policy and goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One piece of work: function(still_wanted, *arguments) in another process, so all of it is picklable. name: in errors."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


def in_processes(pieces: Iterable[Piece], processes: int, *, reuse: bool = False) -> Iterator[tuple[Piece, Any]]:
    """Each piece with its answer, as they end.

    Args:
        processes: at a time, at least one. reuse: a process does one piece after another; else each gets a new one, and what a piece
            leaves in memory goes with it.
    Raises: RmgrError for a piece that raised one, or whose process died, naming it.
    Closing the iterator, KeyboardInterrupt or an error ends the processes; a piece then unwinds (`Unwanted`).
    """
    context = multiprocessing.get_context("spawn")  # a fork would copy threads that draw the progress
    waiting = iter(pieces)
    working: dict[Connection, _Worker] = {}
    idle: list[_Worker] = []
    try:
        while True:
            while len(working) < max(processes, 1) and (piece := next(waiting, None)) is not None:
                worker = idle.pop() if idle else _Worker(context)
                working[worker.connection] = worker
                worker.begin(piece)
            if not working:
                return
            for connection in wait(list(working)):
                assert isinstance(connection, Connection)
                worker = working[connection]
                piece, answer = worker.piece, worker.answer()
                del working[connection]
                if reuse:
                    idle.append(worker)
                else:
                    worker.dismiss()
                yield piece, answer
    finally:
        for worker in working.values():
            worker.process.terminate()
        for worker in (*working.values(), *idle):
            worker.dismiss()


class _Worker:
    """A process and the pipe to it."""

    def __init__(self, context: SpawnContext) -> None:
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), name="rmgr-sim")
        self.process.start()
        theirs.close()  # the end of the process is then the end of the pipe
        self.piece = Piece(name="", function=_serve)

    def begin(self, piece: Piece) -> None:
        self.piece = piece
        with suppress(BrokenPipeError, ConnectionResetError):  # it died: `answer` tells
            self.connection.send(piece)

    def answer(self) -> Any:
        try:
            failed, answer = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            failed = True
            answer = RmgrError(
                f"its process ended with {self.process.exitcode}", hint="memory may have run out; --jobs 1 runs one at a time"
            )
        if failed:
            raise RmgrError(f"run {self.piece.name}: {answer.message}", hint=answer.hint)
        return answer

    def dismiss(self) -> None:
        """Ends the process; it is waited for. One that does not unwind in time is killed."""
        self.connection.close()
        self.process.join(_ENDING_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _serve(connection: Connection) -> None:
    """The process: pieces in, answers out, until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it ends us
    signal.signal(signal.SIGTERM, _leave)
    parent = os.getppid()

    def still_wanted() -> None:
        if os.getppid() != parent:
            _leave()

    try:
        while True:
            piece = connection.recv()
            try:
                answer = (False, piece.function(still_wanted, *piece.arguments))
            except RmgrError as error:
                answer = (True, error)
            connection.send(answer)
    except (EOFError, BrokenPipeError, ConnectionResetError, Unwanted):
        return


def _leave(*_: object) -> None:
    raise Unwanted  # unwinds: a half-written directory is removed
