"""What a node's slots tell the Starter: facts, past tense. Emitted by `adapters/host/process.py` on its selector thread."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmgr.model.base.states import Reason
from rmgr.model.wire.frames import CommandEnd, CommandStarted, Output, TaskEnd, WorkerGone

if TYPE_CHECKING:
    from rmgr.adapters.host.process import Slot
    from rmgr.adapters.host.worker import Worker


@dataclass(frozen=True, slots=True)
class SlotUp:
    """The slot's spawner obeys. features: what contains its work ("subreaper", "cgroup", "pids", "memory")."""

    slot: Slot
    pid: int
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SlotLost:
    """The slot's spawner is gone and all it ran is dead; open another slot. After an orderly `close` too (expected=True).

    running: seqs of commands that may have started (lost). unstarted: seqs of commands that had not. Its workers have
    been reported by `WorkerEnded` before.
    """

    slot: Slot
    why: str
    running: tuple[int, ...]
    unstarted: tuple[int, ...]
    expected: bool


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """The worker's environment stands (tasks may be sent before that)."""

    slot: Slot
    worker: Worker


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """The worker's environment cannot be made; `WorkerEnded` follows with all its tasks as unstarted.

    error: pickled exception, b"" when the process crashed in it. initializer: it was the initializer that failed.
    """

    slot: Slot
    worker: Worker
    error: bytes
    summary: str
    initializer: bool
    out: Output
    err: Output


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """A worker is dead and what it had started too.

    seq: the task that it ran, 0 = none; `reason`, exit_code, signal, detail are what its death means for that task.
    unstarted: tasks it had been sent and never began; they may run elsewhere as the same attempt.
    """

    slot: Slot
    worker: Worker
    seq: int
    reason: Reason
    exit_code: int | None
    signal: int
    detail: str
    started_us: int
    elapsed_us: int
    cpu_us: int
    max_rss_kib: int
    out: Output
    err: Output
    unstarted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TasksEnded:
    """Python tasks ended; each seq is reported once, whatever happens to its worker."""

    slot: Slot
    worker: Worker
    ends: tuple[TaskEnd, ...]


@dataclass(frozen=True, slots=True)
class TasksReturned:
    """Tasks or commands taken back before they began; answers each recall, with none at worst. reason: NONE, or LEASE_LOST.

    The tasks of one recall may come in two of these (what the worker was just about to begin comes later).
    """

    slot: Slot
    worker: Worker | None
    seqs: tuple[int, ...]
    reason: Reason


@dataclass(frozen=True, slots=True)
class WorkerBlocked:
    """Task `seq` waits for another task: its cores are free, the worker's unstarted tasks are coming back."""

    slot: Slot
    worker: Worker
    seq: int


@dataclass(frozen=True, slots=True)
class WorkerUnblocking:
    """Task `seq` wants its cores back: answer with `worker.grant(seq)` when they are free."""

    slot: Slot
    worker: Worker
    seq: int


@dataclass(frozen=True, slots=True)
class CommandsStarted:
    """Commands that have been running for more than a few ms."""

    slot: Slot
    started: tuple[CommandStarted, ...]


@dataclass(frozen=True, slots=True)
class CommandsEnded:
    """Commands ended, in order."""

    slot: Slot
    ends: tuple[CommandEnd, ...]


@dataclass(frozen=True, slots=True)
class Surprised:
    """Something to count and log (lease_kill, escaped, leftovers, output_capped, broken_frame, ...)."""

    slot: Slot
    what: str
    detail: str


WorkEvent = (
    SlotUp
    | SlotLost
    | WorkerReady
    | WorkerFailed
    | WorkerEnded
    | TasksEnded
    | TasksReturned
    | WorkerBlocked
    | WorkerUnblocking
    | CommandsStarted
    | CommandsEnded
    | Surprised
)


def death_words(code: int | None) -> str:
    """How a process ended, by its return code as `subprocess` has it (None: it still lives)."""
    if code is None or code >= 0:
        return "does not answer" if code is None else f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def lost_words(how: str) -> str:
    """What is said of work whose slot has died."""
    return f"rmgr's process that ran it {how}; work that kills that itself (kill $PPID, pkill -u) ends so"


def lost_worker(worker: int, detail: str) -> WorkerGone:
    """What its spawner would have said of it."""
    return WorkerGone(worker=worker, reason=Reason.WORKER_LOST, seq=0, detail=detail)
