"""Events of a node's slots for the Starter: facts, past tense. `SlotEvents` makes them of what slots and workers say, on their thread."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rmgr.adapters.host.slot import Slot
from rmgr.adapters.host.worker import Worker
from rmgr.model.base.states import Reason
from rmgr.model.wire.frames import CommandEnd, CommandStarted, Output, TaskEnd, WorkerGone


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


class WorkerReady(msgspec.Struct, frozen=True):
    """The worker's environment stands (tasks may be sent before that)."""

    slot: Slot
    worker: Worker


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


class CommandsStarted(msgspec.Struct, frozen=True):
    """Commands that have been running for more than a few ms."""

    slot: Slot
    started: tuple[CommandStarted, ...]


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
NodeEvent = WorkEvent | TurnEvent


class SlotEvents:
    """Hands over what one slot and its workers say (`slot.SlotListener`), as events, one at a time."""

    def __init__(self, slot: Slot, emit: Callable[[list[WorkEvent]], None]) -> None:
        self._slot = slot
        self._emit = emit

    def up(self, pid: int, features: tuple[str, ...]) -> None:
        """See `SlotUp`."""
        self._emit([SlotUp(self._slot, pid, features)])

    def lost(self, why: str, running: tuple[int, ...], unstarted: tuple[int, ...], *, expected: bool) -> None:
        """See `SlotLost`."""
        self._emit([SlotLost(slot=self._slot, why=why, running=running, unstarted=unstarted, expected=expected)])

    def commands_started(self, started: tuple[CommandStarted, ...]) -> None:
        """See `CommandsStarted`."""
        self._emit([CommandsStarted(self._slot, started)])

    def commands_ended(self, ends: tuple[CommandEnd, ...]) -> None:
        """See `CommandsEnded`."""
        self._emit([CommandsEnded(self._slot, ends)])

    def surprised(self, what: str, detail: str) -> None:
        """See `Surprised`."""
        self._emit([Surprised(self._slot, what, detail)])

    def returned(self, worker: Worker | None, seqs: tuple[int, ...], reason: Reason) -> None:
        """See `TasksReturned`."""
        self._emit([TasksReturned(self._slot, worker, seqs, reason)])

    def worker_ready(self, worker: Worker) -> None:
        """See `WorkerReady`."""
        self._emit([WorkerReady(self._slot, worker)])

    def worker_failed(self, worker: Worker, error: bytes, summary: str, out: Output, err: Output, *, initializer: bool) -> None:
        """See `WorkerFailed`."""
        self._emit([WorkerFailed(self._slot, worker, error, summary, initializer, out, err)])

    def worker_ended(
        self, worker: Worker, gone: WorkerGone, *, seq: int, started_us: int, elapsed_us: int, unstarted: tuple[int, ...]
    ) -> None:
        """See `WorkerEnded`."""
        event = WorkerEnded(
            slot=self._slot,
            worker=worker,
            seq=seq,
            reason=gone.reason,
            exit_code=gone.exit_code,
            signal=gone.signal,
            detail=gone.detail,
            started_us=started_us,
            elapsed_us=elapsed_us,
            cpu_us=gone.cpu_us if seq else 0,
            max_rss_kib=gone.max_rss_kib,
            out=gone.out,
            err=gone.err,
            unstarted=unstarted,
        )
        self._emit([event])

    def tasks_ended(self, worker: Worker, ends: tuple[TaskEnd, ...]) -> None:
        """See `TasksEnded`."""
        self._emit([TasksEnded(self._slot, worker, ends)])

    def blocked(self, worker: Worker, seq: int) -> None:
        """See `WorkerBlocked`."""
        self._emit([WorkerBlocked(self._slot, worker, seq)])

    def unblocking(self, worker: Worker, seq: int) -> None:
        """See `WorkerUnblocking`."""
        self._emit([WorkerUnblocking(self._slot, worker, seq)])
