"""Events of a node's slots for the Starter: facts, past tense, told on the thread of slots and workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rmgr.model.base.states import Reason
from rmgr.model.wire.frames import CommandEnd, Output, TaskEnd

if TYPE_CHECKING:
    from rmgr.adapters.host.slot import Slot
    from rmgr.adapters.host.worker import Worker


class SlotUp(msgspec.Struct, frozen=True):
    """The slot's spawner obeys. features: what contains its work ("subreaper", "cgroup", "pids", "memory")."""

    slot: Slot
    pid: int
    features: tuple[str, ...]


class SlotLost(msgspec.Struct, frozen=True):
    """The slot's spawner is gone and all it ran is dead; open another slot. After an orderly `close` too (expected=True).

    running: seqs of commands that may have started (lost). unstarted: seqs of commands that had not. Its workers have
    been reported by `WorkerEnded` before.
    """

    slot: Slot
    why: str
    running: tuple[int, ...]
    unstarted: tuple[int, ...]
    expected: bool


class WorkerFailed(msgspec.Struct, frozen=True):
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


class WorkerEnded(msgspec.Struct, frozen=True):
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


class TasksEnded(msgspec.Struct, frozen=True):
    """Python tasks ended; each seq is reported once, whatever happens to its worker."""

    slot: Slot
    worker: Worker
    ends: tuple[TaskEnd, ...]


class TasksReturned(msgspec.Struct, frozen=True):
    """Tasks or commands taken back before they began; answers each recall, with none at worst. reason: NONE, or LEASE_LOST.

    The tasks of one recall may come in two of these (what the worker was just about to begin comes later).
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
    """Something to count and log (lease_kill, escaped, leftovers, output_capped, broken_frame, ...)."""

    slot: Slot
    what: str
    detail: str


class PartBegan(msgspec.Struct, frozen=True):
    """The first slot of a part of a gang has begun: its work may start."""

    part: str


class PartsServed(msgspec.Struct, frozen=True):
    """parts: (name, for how long it has had its cores in all (ns), in how many turns, whether it has them now).

    The rest as `model/wire/turns.py` has it, since the `NodeRunner` began: a turner that dies takes half a second of this along at most.
    """

    parts: tuple[tuple[str, int, int, bool], ...]
    switches: int
    late: int
    out_of_turn_ns: int


class PartStubborn(msgspec.Struct, frozen=True):
    """The part did not stand still at the end of its turn. killed: it computed on; else it sleeps where no signal reaches it."""

    part: str
    killed: bool


class TurnerRestarted(msgspec.Struct, frozen=True):
    """The turner was dead, and another one goes on."""


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
