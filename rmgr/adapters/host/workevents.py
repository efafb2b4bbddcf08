"""Events of a node's slots for the Starter: facts in the past tense, emitted on the thread of slots and workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rmgr.model.frames import CommandEnd, Output, TaskEnd
from rmgr.model.states import Reason

if TYPE_CHECKING:
    from rmgr.adapters.host.slot import Slot, Worker


class SlotUp(msgspec.Struct, frozen=True):
    """The slot's spawner takes orders. features: what contains its work ("subreaper", "cgroup", "pids", "memory")."""

    slot: Slot
    pid: int
    features: tuple[str, ...]


class SlotLost(msgspec.Struct, frozen=True):
    """The slot's spawner is gone and everything it ran is dead; open another slot. Follows an orderly `close`, too (expected=True).

    running: seqs of commands that may have started (lost). unstarted: seqs of commands that had not. Its workers have
    been reported in `WorkerEnded` before.
    """

    slot: Slot
    why: str
    running: tuple[int, ...]
    unstarted: tuple[int, ...]
    expected: bool


class WorkerFailed(msgspec.Struct, frozen=True):
    """The worker's environment cannot be set up; `WorkerEnded` follows, with all its tasks as unstarted.

    error: pickled exception, b"" if the process crashed. initializer: whether the initializer failed.
    """

    slot: Slot
    worker: Worker
    error: bytes
    summary: str
    initializer: bool
    out: Output
    err: Output


class WorkerEnded(msgspec.Struct, frozen=True):
    """A worker is dead, and so are its child processes.

    seq: the task that it ran, 0 = none; `reason`, exit_code, signal, detail say what its death means for that task.
    unstarted: tasks sent to it that never began; they may run elsewhere as the same attempt.
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


class TasksEnded(msgspec.Struct, frozen=True):
    """Python tasks ended; each seq is reported once, whatever happens to its worker."""

    slot: Slot
    worker: Worker
    ends: tuple[TaskEnd, ...]


class TasksReturned(msgspec.Struct, frozen=True):
    """Tasks or commands were taken back before they began; answers each recall, if need be with an empty list. reason: NONE, or LEASE_LOST.

    The tasks of one recall may come in two of these events (a task that the worker was about to begin comes later).
    """

    slot: Slot
    worker: Worker | None
    seqs: tuple[int, ...]
    reason: Reason


class WorkerBlocked(msgspec.Struct, frozen=True):
    """Task `seq` waits for another task: its cores are free, the worker's unstarted tasks are coming back."""

    slot: Slot
    worker: Worker
    seq: int


class WorkerUnblocking(msgspec.Struct, frozen=True):
    """Task `seq` wants its cores back: answer with `worker.grant(seq)` when they are free."""

    slot: Slot
    worker: Worker
    seq: int


class CommandsEnded(msgspec.Struct, frozen=True):
    """Commands ended, in order."""

    slot: Slot
    ends: tuple[CommandEnd, ...]


class Surprised(msgspec.Struct, frozen=True):
    """An incident to count and log (lease_kill, escaped, leftovers, output_capped, broken_frame, ...)."""

    slot: Slot
    what: str
    detail: str


class PartBegan(msgspec.Struct, frozen=True):
    """The first turn of a part of a gang has begun: its work may start."""

    part: str


class PartsServed(msgspec.Struct, frozen=True):
    """parts: (name, total time with cores (ns), number of turns, whether it has cores now).

    The other counts as in `model/turns.py`, since the `NodeRunner` began; a turner that dies loses at most half a second of them.
    """

    parts: tuple[tuple[str, int, int, bool], ...]
    switches: int
    late: int
    out_of_turn_ns: int


class PartStubborn(msgspec.Struct, frozen=True):
    """The part did not stop at the end of its turn. killed: it kept computing; otherwise it sleeps where no signal reaches it."""

    part: str
    killed: bool


class TurnerRestarted(msgspec.Struct, frozen=True):
    """The turner was dead and has been replaced."""


TurnEvent = PartBegan | PartsServed | PartStubborn | TurnerRestarted

WorkEvent = (
    SlotUp
    | SlotLost
    | WorkerFailed
    | WorkerEnded
    | TasksEnded
    | TasksReturned
    | WorkerBlocked
    | WorkerUnblocking
    | CommandsEnded
    | Surprised
)
NodeEvent = WorkEvent | TurnEvent
