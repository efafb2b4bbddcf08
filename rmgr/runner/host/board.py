"""The board: a page of memory that a worker, its spawner and its Starter share, so that tasks need no messages.

The worker writes what it runs (read by the spawner for time limit and lease, by the Starter for live tasks) and every unsent result: when
it is killed, only the running task is lost. The Starter writes which tasks it takes back; the spawner writes why it terminates a task and
until when exclusive work may run.

Each field is 8 aligned bytes with one writer, written and read in one machine operation: an item of a memoryview of words (not
`struct.pack_into`, which zeroes the bytes first). Taking tasks back needs "worker: store current, load revoked" against "Starter: store
revoked, load current": the Starter waits (`SETTLE_S`) between the two, far longer than any store stays invisible.
"""

from __future__ import annotations

import fcntl
import mmap
import os

from rmgr.model.states import Reason

PAGE = 4096
RESULTS_BYTES = 256 * 1024
SIZE = PAGE + RESULTS_BYTES
#: Bytes kept free before the results for the frame's header (`_flush` in `runner/python/worker.py`).
RESULTS_HEAD = 16
#: How long the Starter waits until a revocation is surely seen.
SETTLE_S = 0.002

# Fields, as indices of words. The worker accesses those of every task without a method call: it stores STARTED and then SEQ, loads
# REVOKED_AFTER, REVOKED_UNTIL, and TERM_SEQ afterwards. Writers have cache lines of their own.
SEQ, STARTED = 0, 1
_LIMIT, _GRACE, _EXCLUSIVE, _BUSY, _MEMORY, _CAP = 2, 3, 4, 5, 6, 7
_RESULTS, _GENERATION = 8, 9
TERM_SEQ, _TERM_REASON, _LEASE, _WATCHED = 16, 17, 18, 19
REVOKED_AFTER, REVOKED_UNTIL = 24, 25

_REASONS = tuple(Reason)
_NUMBER = {reason: number for number, reason in enumerate(_REASONS)}


def create_board() -> int:
    """Returns the descriptor of a new, zeroed board (memory if the system has memfd, else an unlinked file)."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("rmgr-board", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        import tempfile  # it loads compressors, which every worker would then have

        fd, path = tempfile.mkstemp(prefix="rmgr-board-")
        os.unlink(path)
    os.ftruncate(fd, SIZE)
    if hasattr(os, "memfd_create"):  # so that every process that maps it can rely on its size
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd


class Board:
    """A mapped board. Closing it leaves the descriptor alone."""

    __slots__ = ("memory", "view", "words")

    def __init__(self, fd: int) -> None:
        self.memory = mmap.mmap(fd, SIZE)
        self.view = memoryview(self.memory)
        self.words = self.view[:PAGE].cast("Q")

    def close(self) -> None:
        """Unmaps the board."""
        self.words.release()
        self.view.release()
        self.memory.close()

    # -- written by the worker --------------------------------------------------------------------------------------

    def start(self, seq: int, now_ns: int) -> None:
        """Notes that task `seq` starts."""
        self.words[STARTED] = now_ns
        self.words[SEQ] = seq

    def rest(self) -> None:
        """Notes that no task runs; `begun` stays, since a task that has run must never look as if it had not begun."""
        self.words[STARTED] = 0

    def set_batch(self, *, limit_ns: int, grace_ns: int, exclusive: bool, memory_bytes: int, output_cap: int) -> None:
        """Sets what holds for the following tasks."""
        self.words[_CAP] = output_cap
        self.words[_LIMIT] = limit_ns
        self.words[_GRACE] = grace_ns
        self.words[_EXCLUSIVE] = exclusive
        self.words[_MEMORY] = memory_bytes

    def running(self) -> tuple[int, int]:
        """Returns (seq, started_ns) of the current task, (0, 0) if there is none."""
        words = self.words
        while True:  # the two stores of `start` are not atomic
            seq, started = words[SEQ], words[STARTED]
            if (seq, started) == (words[SEQ], words[STARTED]):
                return (seq, started) if started else (0, 0)

    @property
    def seq(self) -> int:
        """Current task, 0 if there is none."""
        return self.running()[0]

    @property
    def begun(self) -> int:
        """The last task that began (or was skipped), whether or not it still runs; never decreases."""
        return self.words[SEQ]

    @property
    def limit_ns(self) -> int:
        """Time limit of the current task, 0 = none."""
        return self.words[_LIMIT]

    @property
    def grace_ns(self) -> int:
        """Time between SIGTERM and SIGKILL."""
        return self.words[_GRACE]

    @property
    def exclusive(self) -> bool:
        """Whether the current task dies with the lease."""
        return bool(self.words[_EXCLUSIVE])

    @property
    def memory_bytes(self) -> int:
        """Memory limit of the current task, 0 = none."""
        return self.words[_MEMORY]

    @property
    def output_cap(self) -> int:
        """Bytes kept of each stream of the current task."""
        return self.words[_CAP]

    @property
    def busy(self) -> bool:
        """Whether the worker has tasks; written at the start and the end of a run of batches."""
        return bool(self.words[_BUSY])

    @busy.setter
    def busy(self, value: bool) -> None:
        self.words[_BUSY] = value

    # -- results not sent yet: written by the worker, read by the Starter ----------------------------------------------

    def set_results(self, size: int, count: int) -> None:
        """Notes that the first `size` bytes after RESULTS_HEAD are `count` finished results."""
        self.words[_RESULTS] = size << 32 | count

    def clear_results(self) -> None:
        """Notes that they were sent. (In this order a reader of the old count sees the new generation before anything is overwritten.)"""
        self.words[_RESULTS] = 0
        self.words[_GENERATION] = self.words[_GENERATION] + 1

    def unsent(self) -> tuple[bytes, int]:
        """Returns (encoded results in a row, their number); (b"", 0) if there are none or they are just being sent."""
        generation, results = self.words[_GENERATION], self.words[_RESULTS]
        if not results:
            return b"", 0
        data = bytes(self.view[PAGE + RESULTS_HEAD : PAGE + RESULTS_HEAD + (results >> 32)])
        if self.words[_GENERATION] != generation:
            return b"", 0
        return data, results & 0xFFFFFFFF

    # -- written by the spawner ----------------------------------------------------------------------------------------

    def terminate(self, seq: int, reason: Reason) -> None:
        """Notes the reason of the following SIGTERM, and its task."""
        self.words[_TERM_REASON] = _NUMBER[reason]
        self.words[TERM_SEQ] = seq

    @property
    def terminated(self) -> tuple[int, Reason]:
        """(task, reason) of the last termination."""
        return self.words[TERM_SEQ], _REASONS[self.words[_TERM_REASON]]

    @property
    def lease_end_ns(self) -> int:
        """Time after which exclusive tasks must not start."""
        return self.words[_LEASE]

    @lease_end_ns.setter
    def lease_end_ns(self, value: int) -> None:
        self.words[_LEASE] = value

    @property
    def watched(self) -> bool:
        """Whether the spawner looks often; if not, a worker that becomes busy pokes it."""
        return bool(self.words[_WATCHED])

    @watched.setter
    def watched(self, value: bool) -> None:
        self.words[_WATCHED] = value

    # -- written by the Starter ------------------------------------------------------------------------------------------

    def revoke(self, after: int, until: int) -> None:
        """Revokes tasks with after < seq <= until, which must not start any more."""
        self.words[REVOKED_AFTER] = after
        self.words[REVOKED_UNTIL] = until

    @property
    def revoked(self) -> tuple[int, int]:
        """The revoked range (after, until)."""
        return self.words[REVOKED_AFTER], self.words[REVOKED_UNTIL]
