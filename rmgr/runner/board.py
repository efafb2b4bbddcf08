"""The board: a page of memory that a worker, its spawner and its Starter share, so that no task needs a message.

The worker writes what it runs (spawner: time limit, lease; Starter: what is live) and every result it has not sent
yet: when it is killed, only the task that ran is lost. The Starter writes which tasks it takes back; the spawner
writes why it terminates a task and until when exclusive work may run.

Each field is 8 aligned bytes, written and read in one machine operation, and has one writer. Taking tasks back needs
"worker: store current, load revoked" against "Starter: store revoked, load current": the Starter waits (`SETTLE_S`)
between its two, far longer than any store stays invisible.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile

from rmgr.model.states import Reason

PAGE = 4096
RESULTS_BYTES = 256 * 1024
SIZE = PAGE + RESULTS_BYTES
#: Bytes kept free in front of the results for the frame's header (`worker.Results`).
RESULTS_HEAD = 16
#: How long the Starter waits before what it has revoked is surely seen.
SETTLE_S = 0.002

# What the worker touches at every task, without a method call: (seq, started_ns) at TASK_AT, (after, until) at
# REVOKED_AT, the seq being terminated at TERM_AT.
PAIR = struct.Struct("@QQ")
TASK_AT, REVOKED_AT, TERM_AT = 0, 192, 128
_LIMIT, _GRACE, _EXCLUSIVE, _BUSY, _MEMORY, _CAP = 16, 24, 32, 40, 48, 56
_RESULTS, _GENERATION = 64, 80
_TERM_REASON, _LEASE, _WATCHED = 136, 144, 152

_Q = struct.Struct("@Q")
_REASONS = tuple(Reason)
_NUMBER = {reason: number for number, reason in enumerate(_REASONS)}


def create_board() -> int:
    """Descriptor of a new, zeroed board (memory where the system has memfd, else an unlinked file)."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("rmgr-board", os.MFD_CLOEXEC)
    else:
        fd, path = tempfile.mkstemp(prefix="rmgr-board-")
        os.unlink(path)
    os.ftruncate(fd, SIZE)
    return fd


class Board:
    """A mapped board. Closing it leaves the descriptor alone."""

    __slots__ = ("memory", "view")

    def __init__(self, fd: int) -> None:
        self.memory = mmap.mmap(fd, SIZE)
        self.view = memoryview(self.memory)

    def close(self) -> None:
        """Unmaps."""
        self.view.release()
        self.memory.close()

    def _get(self, offset: int) -> int:
        value: int = _Q.unpack_from(self.view, offset)[0]
        return value

    def _set(self, offset: int, value: int) -> None:
        _Q.pack_into(self.view, offset, value)

    # -- written by the worker --------------------------------------------------------------------------------------

    def start(self, seq: int, now_ns: int) -> None:
        """Task `seq` starts."""
        PAIR.pack_into(self.view, TASK_AT, seq, now_ns)

    def rest(self) -> None:
        """No task runs; `begun` stays: what has been run must never look as if it had not begun."""
        self._set(TASK_AT + 8, 0)

    def set_batch(self, *, limit_ns: int, grace_ns: int, exclusive: bool, memory_bytes: int, output_cap: int) -> None:
        """What holds for the tasks that follow."""
        self._set(_CAP, output_cap)
        self._set(_LIMIT, limit_ns)
        self._set(_GRACE, grace_ns)
        self._set(_EXCLUSIVE, exclusive)
        self._set(_MEMORY, memory_bytes)

    def running(self) -> tuple[int, int]:
        """(seq, started_ns) of the present task, (0, 0) when there is none."""
        before = PAIR.unpack_from(self.view, TASK_AT)
        while (pair := PAIR.unpack_from(self.view, TASK_AT)) != before:  # the two stores of `start` are not one
            before = pair
        seq, started = pair
        return (seq, started) if started else (0, 0)

    @property
    def seq(self) -> int:
        """Present task, 0 when there is none."""
        return self.running()[0]

    @property
    def begun(self) -> int:
        """The last task that was begun (or skipped), whether or not it still runs; never goes back."""
        return self._get(TASK_AT)

    @property
    def limit_ns(self) -> int:
        """Time limit of the present task, 0 = none."""
        return self._get(_LIMIT)

    @property
    def grace_ns(self) -> int:
        """Between SIGTERM and SIGKILL."""
        return self._get(_GRACE)

    @property
    def exclusive(self) -> bool:
        """The present task dies with the lease."""
        return bool(self._get(_EXCLUSIVE))

    @property
    def memory_bytes(self) -> int:
        """Memory limit of the present task, 0 = none."""
        return self._get(_MEMORY)

    @property
    def output_cap(self) -> int:
        """Bytes kept of each stream of the present task."""
        return self._get(_CAP)

    @property
    def busy(self) -> bool:
        """The worker has tasks; written at the start and the end of a run of batches."""
        return bool(self._get(_BUSY))

    @busy.setter
    def busy(self, value: bool) -> None:
        self._set(_BUSY, value)

    # -- results not sent yet: written by the worker, read by the Starter ----------------------------------------------

    def set_results(self, size: int, count: int) -> None:
        """The first `size` bytes after RESULTS_HEAD are `count` finished results."""
        self._set(_RESULTS, size << 32 | count)

    def clear_results(self) -> None:
        """They have been sent. (This order: who read the old count sees the new generation before anything is overwritten.)"""
        self._set(_RESULTS, 0)
        self._set(_GENERATION, self._get(_GENERATION) + 1)

    def unsent(self) -> tuple[bytes, int]:
        """(encoded results one after another, how many); (b"", 0) when there are none or they are being sent just now."""
        generation, results = self._get(_GENERATION), self._get(_RESULTS)
        if not results:
            return b"", 0
        data = bytes(self.view[PAGE + RESULTS_HEAD : PAGE + RESULTS_HEAD + (results >> 32)])
        if self._get(_GENERATION) != generation:
            return b"", 0
        return data, results & 0xFFFFFFFF

    # -- written by the spawner ----------------------------------------------------------------------------------------

    def terminate(self, seq: int, reason: Reason) -> None:
        """Why the SIGTERM that follows is sent, and for which task."""
        self._set(_TERM_REASON, _NUMBER[reason])
        self._set(TERM_AT, seq)

    @property
    def terminated(self) -> tuple[int, Reason]:
        """(task, why) of the last termination."""
        return self._get(TERM_AT), _REASONS[self._get(_TERM_REASON)]

    @property
    def lease_end_ns(self) -> int:
        """Exclusive tasks must not start after this."""
        return self._get(_LEASE)

    @lease_end_ns.setter
    def lease_end_ns(self, value: int) -> None:
        self._set(_LEASE, value)

    @property
    def watched(self) -> bool:
        """The spawner looks often; otherwise a worker that starts to be busy pokes it."""
        return bool(self._get(_WATCHED))

    @watched.setter
    def watched(self, value: bool) -> None:
        self._set(_WATCHED, value)

    # -- written by the Starter ------------------------------------------------------------------------------------------

    def revoke(self, after: int, until: int) -> None:
        """Tasks with after < seq <= until must not start any more."""
        PAIR.pack_into(self.view, REVOKED_AT, after, until)

    @property
    def revoked(self) -> tuple[int, int]:
        """(after, until)."""
        after, until = PAIR.unpack_from(self.view, REVOKED_AT)
        return after, until
