"""Work in processes of its own: pieces are handed to workers, answers come as they are ready, Ctrl-C or an error ends them all.

`measured` runs the cells of a paper: each once, with progress; what is not asked for is not run.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext
from typing import Any, TypeAlias, TypeVar

from rmgr.errors import RmgrError

#: Called now and then by a piece of work: leaves (`Unwanted`) when the process that wants the answer is gone.
StillWanted: TypeAlias = Callable[[], None]
_ENDING_S = 5.0
Cell = TypeVar("Cell", bound=Hashable)
Measures = TypeVar("Measures")
#: Called with (finished runs, all runs) at the beginning and whenever one ends.
OnProgress = Callable[[int, int], None]


def measured(
    cells: Iterable[Cell],
    measure: Callable[[Cell], Measures],
    *,
    processes: int = 1,
    on_progress: OnProgress = lambda _done, _total: None,
) -> dict[Cell, Measures]:
    """What `measure` finds for each cell.

    Args:
        cells: frozen values that decide one run; asked for twice, they are run once. In the order in which they are begun.
        measure: a function of a module, so that another process can call it; its answer is picklable and small.
        processes: at a time; 1 runs them here.
    Raises: RmgrError for a run that failed. KeyboardInterrupt ends the processes.
    """
    wanted = list(dict.fromkeys(cells))
    found: dict[Cell, Measures] = {}
    on_progress(0, len(wanted))
    if processes <= 1:
        for cell in wanted:
            found[cell] = measure(cell)
            on_progress(len(found), len(wanted))
        return found
    pieces = (Piece(name=str(cell), function=_one, arguments=(measure, cell)) for cell in wanted)
    for piece, answer in in_processes(pieces, min(processes, len(wanted)), reuse=True):
        found[piece.arguments[1]] = answer
        on_progress(len(found), len(wanted))
    return {cell: found[cell] for cell in wanted}


def _one(still_wanted: StillWanted, measure: Callable[[Cell], Measures], cell: Cell) -> Measures:
    still_wanted()
    return measure(cell)


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
        with _undisturbed():
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


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C waits for the end of the block: a process that is interrupted half started complains of what it was not told."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals come to the main thread
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)


def _serve(connection: Connection) -> None:
    """The process: pieces in, answers out, until nobody asks any more. Between two pieces SIGTERM just ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it ends us
    parent = os.getppid()

    def still_wanted() -> None:
        if os.getppid() != parent:
            raise Unwanted

    with suppress(EOFError, BrokenPipeError, ConnectionResetError, Unwanted):
        while True:
            piece = connection.recv()
            connection.send(_answer(piece, still_wanted))


def _answer(piece: Piece, still_wanted: StillWanted) -> tuple[bool, Any]:
    """(whether it failed, what it answers or the error). Raises: Unwanted on SIGTERM, so that a half-written directory is removed."""
    told: list[int] = []

    def leave(number: int, _frame: object) -> None:
        told.append(number)
        raise Unwanted

    before = signal.signal(signal.SIGTERM, leave)
    try:
        return (False, piece.function(still_wanted, *piece.arguments))
    except RmgrError as error:
        return (True, error)
    except Exception as error:
        if told:  # somebody made another exception of ours, as the class statement does
            raise Unwanted from error
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
