"""Giving the slot back while a task waits for another task, so that no depth of nesting can block a node."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class TaskTerminated(BaseException):
    """Raised inside a task by SIGTERM (time limit, cancel): it may clean up, within the grace time."""


class BlockingGate:
    """Hook of the worker. block(seq), unblock(seq): tell the Starter, the second waits for its answer."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.waiting: dict[int, int] = {}  # by task: how many of its threads wait
        self.seq: Callable[[], int] | None = None
        self.block: Callable[[int], None] = _nothing
        self.unblock: Callable[[int], None] = _nothing


def _nothing(_seq: int) -> None:
    """Outside of a worker."""


gate = BlockingGate()


@contextmanager
def blocking() -> Iterator[None]:
    """While inside, this task's cores belong to others; leaving waits until they are its own again.

    Outside of a worker it does nothing. Several threads of one task may be inside: the cores are free from the first
    one's entry to the last one's exit. Cost: two messages to the Starter; use it around waits, not around work.
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
