"""What calls of an Executor print, written to this process's own streams (a process pool's workers share them).

As calls end, byte for byte; or line by line as it comes (`LiveEcho`), with the task before each line where there are several.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rmgr.coord import keys
from rmgr.coord.ports import Store
from rmgr.errors import RmgrError
from rmgr.model.outcome import Outcome

if TYPE_CHECKING:
    from rmgr.client.core import Core
    from rmgr.client.live import LiveOutput
    from rmgr.client.output import Cutter, Line

#: Most parts of one stream that are fetched (256 KiB each); `rmgr logs` has all of it.
_MAX_PARTS = 16


def write(store: Store, number: int, outcome: Outcome, attempt: int) -> None:
    """Writes the output of one attempt. Never raises: nobody waits for it."""
    for at, stream in enumerate((sys.stdout, sys.stderr)):
        try:
            text = _output(store, number, outcome, attempt, at).decode("utf-8", "replace")
            if text and stream is not None:
                stream.write(text)
                stream.flush()
        except (RmgrError, OSError, ValueError):
            continue


def _output(store: Store, number: int, outcome: Outcome, attempt: int, at: int) -> bytes:
    parts = outcome.log_parts[at]
    rows = [keys.log(number, outcome.index, attempt, keys.STREAMS[at], part) for part in range(min(parts, _MAX_PARTS))]
    found = store.get_many(rows) if rows else {}
    gap = f"\n[{parts - _MAX_PARTS} parts left out: rmgr logs {number}_{outcome.index}]\n".encode() if parts > _MAX_PARTS else b""
    return b"".join(found[row][0] for row in rows if row in found) + gap + outcome.log[at]


#: How often is looked for what has come.
_TICK_S = 0.1


class LiveEcho:
    """Writes lines of an Executor's calls as they come, on a thread of its own; up to 64 calls at once, others when they end.

    Cost: a look at what the nodes run each second, and a thread and a call to its node for each call that runs.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._ends: queue.SimpleQueue[tuple[Outcome, int] | threading.Event] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """The executor has its submission. Cost: a thread, once."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"echo-{self._core.number}", daemon=True)
                self._thread.start()

    def ended(self, outcome: Outcome, attempt: int) -> None:
        """The rest of what a call wrote is to be written."""
        self._ends.put((outcome, attempt))

    def settle(self, timeout_s: float) -> None:
        """Waits until everything was written of calls that have ended."""
        if self._thread is not None and self._thread.is_alive():
            written = threading.Event()
            self._ends.put(written)
            written.wait(timeout_s)

    def _run(self) -> None:
        from rmgr.client.live import LiveOutput
        from rmgr.client.output import Cutter, Reach

        core, cutter = self._core, Cutter()
        live = LiveOutput(Reach(core.connection), core.number)
        try:
            while core.connection.is_usable and core.dead is None and not (core.is_over and self._ends.empty()):
                with contextlib.suppress(RmgrError):
                    live.look()
                for piece in live.pieces():
                    self._write(cutter.take(piece))
                with contextlib.suppress(queue.Empty):
                    told = self._ends.get(timeout=_TICK_S)
                    if isinstance(told, threading.Event):
                        told.set()
                    else:
                        self._end(live, cutter, *told)
        finally:
            live.close()

    def _end(self, live: LiveOutput, cutter: Cutter, outcome: Outcome, attempt: int) -> None:
        from rmgr.client.output import End

        number, index = self._core.number, outcome.index
        end = End(id=f"{number}_{index}", position=index, attempt=attempt, log=outcome.log, log_parts=outcome.log_parts)
        with contextlib.suppress(RmgrError):  # `rmgr logs` has it once the store is back
            for piece in live.ended(end):
                self._write(cutter.take(piece))
        self._write(cutter.rest(index))

    def _write(self, lines: Iterable[Line]) -> None:
        several = self._core.lane is not None and self._core.lane.next_index > 1
        for line in lines:
            stream = sys.stdout if line.stream == keys.STREAMS[0] else sys.stderr
            with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody reads, or there is no such stream
                stream.write(f"{line.task_id}: {line}\n" if several else f"{line}\n")
                stream.flush()
