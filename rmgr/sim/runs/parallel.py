"""Work in other processes: workers get pieces, answers come as they are ready, Ctrl-C or an error ends all workers.

`measured` runs the requested cells of a paper: each once, with progress.
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

#: Called now and then by a piece of work: raises `Unwanted` if the process that wants the answer is gone.
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
    """Returns the result of `measure` for each cell.

    Args:
        cells: frozen values that decide one run each, begun in this order; duplicates are run once.
        measure: a function of a module, so that another process can call it; its answer is picklable and small.
        processes: number at a time; 1 runs the cells in this process.
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
    pieces = (Piece(name=str(cell), function=_measure_cell, arguments=(measure, cell)) for cell in wanted)
    for piece, answer in in_processes(pieces, min(processes, len(wanted)), reuse=True):
        found[piece.arguments[1]] = answer
        on_progress(len(found), len(wanted))
    return {cell: found[cell] for cell in wanted}


def _measure_cell(still_wanted: StillWanted, measure: Callable[[Cell], Measures], cell: Cell) -> Measures:
    still_wanted()
    return measure(cell)


class Unwanted(BaseException):
    """Raised when nobody waits for the answer any more. Not a SystemExit, which a pass would take for a policy's fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One piece of work: function(still_wanted, *arguments) in another process, so everything is picklable. name: for errors."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


def in_processes(pieces: Iterable[Piece], processes: int, *, reuse: bool = False) -> Iterator[tuple[Piece, Any]]:
    """Yields each piece with its answer, as they end.

    Args:
        processes: number at a time, at least one. reuse: a process does one piece after another; otherwise each piece gets a new process,
            whose memory goes with it.
    Raises: RmgrError with the name of a piece that raised one, or whose process died.
    Closing the iterator, KeyboardInterrupt or an error ends the processes; their pieces unwind (`Unwanted`).
    """
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads that draw the progress
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
        self.process = context.Process(target=_serve_pieces, args=(theirs,), name="rmgr-sim")
        with _undisturbed():
            self.process.start()
        theirs.close()  # now the pipe ends with the process
        self.piece = Piece(name="", function=_serve_pieces)

    def begin(self, piece: Piece) -> None:
        self.piece = piece
        with suppress(BrokenPipeError, ConnectionResetError):  # it died: `answer` reports it
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
        """Ends the process and waits for it. Kills it if it does not unwind in time."""
        self.connection.close()
        self.process.join(_ENDING_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Delays Ctrl-C until the end of the block: a process interrupted during its start prints confusing errors."""
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


def _serve_pieces(connection: Connection) -> None:
    """Runs in the process: takes pieces and sends answers until the parent is gone. Between two pieces SIGTERM just ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    parent = os.getppid()

    def still_wanted() -> None:
        if os.getppid() != parent:
            raise Unwanted

    with suppress(EOFError, BrokenPipeError, ConnectionResetError, Unwanted):
        while True:
            piece = connection.recv()
            connection.send(_answer_piece(piece, still_wanted))


def _answer_piece(piece: Piece, still_wanted: StillWanted) -> tuple[bool, Any]:
    """Returns (failed, answer or error). Raises: Unwanted on SIGTERM, so that a half-written directory is removed."""
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
        if told:  # Unwanted was converted to another exception, as a class statement does
            raise Unwanted from error
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
