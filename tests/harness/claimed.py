"""Builders of blocks claimed by a node, and a node's mailbox whose messages the test handles."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable
from typing import Any

from rmgr.coord.protocol.ports import Store
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.io import StoreIO
from rmgr.daemons.starter.core.submissions import Info
from rmgr.model.block import BlockData, BlockKey
from rmgr.model.queue import QueueSpec
from rmgr.model.submission import Command, PythonEnvironment, Submission, Work
from tests.harness.waiting import PATIENCE_S


def a_key(**fields: Any) -> BlockKey:
    """Returns the key of a block of one task of submission 1, changed by `fields`."""
    plain = {"priority": 0, "seq": 1, "submission": 1, "first": 0, "count": 1, "attempt": 1, "cores": 1, "memory_mib": 0}
    return BlockKey(**(plain | fields))


def a_record(number: int = 1, command: Command | None = None, *, user: str = "ann", **fields: Any) -> Submission:
    """Returns a submission's record: of calls, or of `command` if given."""
    work = {"work": Work.PYTHON, "python": PythonEnvironment()} if command is None else {"work": Work.COMMAND, "command": command}
    return Submission(**({"id": number, "name": "x", "user": user, "queue": "q"} | work | fields))


def claimed(key: BlockKey, data: BlockData | None = None, record: Submission | None = None) -> ClaimedBlock:
    """Returns a block claimed by node n1. record: its submission's record, if it has been read."""
    made = ClaimedBlock.claimed("n1", "q", key, data or BlockData())
    if record is not None:
        made.info = Info(record, QueueSpec(name="q"), None)
    return made


class StoreMail:
    """Threads that ask a store, and a mailbox that keeps their answers until the test waits for something."""

    def __init__(self, store: Store, **options: int) -> None:
        self.messages: queue.Queue[Callable[[], None]] = queue.Queue()
        self.io = StoreIO(store, self.messages.put, **options)

    def until(self, condition: Callable[[], Any], look: Callable[[], object] = lambda: None) -> None:
        """Handles messages one by one until the condition is true. look: called in each round, with or without a message."""
        end_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end_s, "it did not come true in time"
            look()
            with contextlib.suppress(queue.Empty):
                self.messages.get(timeout=0.05)()

    def quiet(self) -> None:
        """Handles messages until all begun work has ended."""
        self.until(lambda: self.io.is_idle and self.messages.empty())
