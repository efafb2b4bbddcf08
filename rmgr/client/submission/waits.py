"""Waits of callers for one submission: for room, for durable tasks, for ownership. Never on the Submitter's thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from rmgr.client.submission.sender import Sender
from rmgr.coord.decisions.view import Progress
from rmgr.errors import DeadlineExceeded, QueueFull, RmgrError, SubmitUnknown
from rmgr.model.base.units import counted
from rmgr.model.tasks.submission import Submission
from rmgr.runtime import machine

#: More than this unsent, and callers wait before they add more.
MAX_UNSENT_TASKS = 400_000
MAX_UNSENT_BYTES = 64 * 1024 * 1024


class AwaitedChanges(Protocol):
    """A submission that callers wait for. dead: why nothing more will come."""

    number: int
    submission: Submission
    owned: bool
    dead: RmgrError | None
    progress: Progress


class CallerWaits:
    """Lets callers wait for what the Sender does. Each wait ends with what has ended the submission.

    Args: lock: of the submission.
    """

    def __init__(self, handle: AwaitedChanges, sender: Sender, lock: threading.RLock) -> None:
        self._handle = handle
        self._sender = sender
        self._changed = threading.Condition(lock)

    def notify(self) -> None:
        """Something has changed: waits look again."""
        with self._changed:
            self._changed.notify_all()

    def room(self, timeout_s: float | None) -> None:
        """Returns when not too much is unsent. Raises: QueueFull when the queue's cap is the cause, DeadlineExceeded."""
        if not self._has_room() and not self._wait(self._has_room, timeout_s):
            raise self._full_error()

    def durable(self, goal: int, timeout_s: float | None) -> None:
        """Returns when all tasks below `goal` are durable, with their output keys, and the end of the submission, if it has one.

        Raises: QueueFull, SubmitUnknown.
        """
        sender, handle = self._sender, self._handle
        if self._wait(lambda: sender.claimed >= goal and (sender.tail.complete or not sender.want_complete), timeout_s):
            return
        if sender.full:
            raise self._full_error()
        raise SubmitUnknown(
            f"tasks {sender.claimed}..{goal - 1} of submission {handle.number} are not known to be durable: "
            f"{sender.trouble or 'no answer within the timeout'}",
            token=handle.submission.token,
            task_id=f"{handle.number}_{sender.claimed}",
            hint="they are sent again in the background while this process lives",
        )

    def sent(self, index: int, timeout_s: float | None) -> bool:
        """Whether task `index` is durable, or refused, within the timeout."""
        return self._wait(lambda: self._sender.claimed > index, timeout_s)

    def owned(self, timeout_s: float) -> bool:
        """Whether this Submitter owns the submission when that is decided, or after the timeout."""
        handle, sender = self._handle, self._sender
        return self._wait(lambda: handle.owned or sender.want_complete or handle.progress.tail.complete, timeout_s) and handle.owned

    def _has_room(self) -> bool:
        buffer = self._sender.buffer
        return not self._sender.full and buffer.tasks < MAX_UNSENT_TASKS and buffer.bytes < MAX_UNSENT_BYTES

    def _full_error(self) -> RmgrError:
        submission = self._handle.submission
        if self._sender.full:
            return QueueFull(
                f"queue {submission.queue} holds its maximum of {counted(self._sender.full, 'waiting block')}",
                hint="wait until some have been taken (timeout=...), or raise max_pending_blocks: rmgr config apply",
            )
        why = self._sender.trouble or "ZooKeeper is slow"
        return DeadlineExceeded(f"submission {self._handle.number}: too much is waiting to be sent ({why})")

    def _wait(self, condition: Callable[[], bool], timeout_s: float | None) -> bool:
        with self._changed:
            is_met = False

            def is_over() -> bool:
                nonlocal is_met
                is_met = condition()
                return is_met or self._handle.dead is not None

            machine.wait_for(self._changed, is_over, timeout_s)
            if not is_met and self._handle.dead is not None:
                raise self._handle.dead
            return is_met
