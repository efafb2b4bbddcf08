"""The task that runs in this worker: what it can ask about itself, and how it gives its slot back while it waits for another task."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmgr.model.frames import BatchShape, TaskItem


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """The attempt that runs in this worker. task_id: "42_7". token: "42_7.2", grows with each attempt (fences writes)."""

    submission: int
    index: int
    array_index: int
    attempt: int
    task_id: str
    token: str
    node: str
    cores: int


class _Running:
    """Set by the worker before each task; `Current` is built only on request."""

    __slots__ = ("hash_seed", "item", "node", "shape")

    def __init__(self) -> None:
        self.shape: BatchShape | None = None
        self.item: TaskItem | None = None
        self.node = ""
        self.hash_seed = ""  #: PYTHONHASHSEED of this interpreter, for other interpreters of the same task


running = _Running()


def current() -> Current | None:
    """Returns the task that runs in this process, None outside of work (also in a Python that a command started)."""
    shape, item = running.shape, running.item
    if shape is None or item is None:
        return None
    label = item.index if item.label < 0 else item.label
    task = f"{shape.submission}_{label}"
    return Current(
        submission=shape.submission,
        index=item.index,
        array_index=label,
        attempt=item.attempt,
        task_id=task,
        token=f"{task}.{item.attempt}",
        node=running.node,
        cores=shape.cores,
    )


# -- giving the slot back, so that no depth of nesting can block a node ------------------------------------------------------


class TaskTerminated(BaseException):
    """Raised inside a task by SIGTERM (time limit, cancel): it may clean up, within the grace time."""


class BlockingGate:
    """Hook of the worker. block(seq), unblock(seq): tell the Starter; the second waits for its answer."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.waiting: dict[int, int] = {}  # task -> number of its waiting threads
        self.seq: Callable[[], int] | None = None
        self.block: Callable[[int], None] = _nothing
        self.unblock: Callable[[int], None] = _nothing


def _nothing(_seq: int) -> None:
    """Does nothing, outside of a worker."""


gate = BlockingGate()


@contextmanager
def blocking() -> Iterator[None]:
    """Gives this task's cores to other work while the block runs; leaving the block waits until the task has them again.

    Outside of a worker it does nothing. Several threads of one task may be inside: the cores are free from the first entry to the last
    exit. Cost: two messages to the Starter; use it around waits, not around work.
    """
    if gate.seq is None:
        yield
        return
    seq = gate.seq()
    ends = entered = False
    try:
        with gate.lock:
            gate.waiting[seq] = gate.waiting.get(seq, 0) + 1
            entered = True
            if gate.waiting[seq] == 1 and seq:
                gate.block(seq)
        yield
    except TaskTerminated:
        ends = True  # it needs no cores to end
        raise
    finally:
        with gate.lock:
            if entered:
                gate.waiting[seq] -= 1
                if not gate.waiting[seq]:
                    del gate.waiting[seq]
                    if seq and not ends and gate.seq() == seq:
                        gate.unblock(seq)
