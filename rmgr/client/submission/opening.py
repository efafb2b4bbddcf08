"""A submission that is made with its first tasks: one commit instead of two, and none for what is never used."""

from __future__ import annotations

import threading
from typing import Protocol

from rmgr.client.ports import FirstTasks, HandlePort, Listener
from rmgr.model.tasks.submission import Submission


class SubmissionMaker(Protocol):
    """Makes submissions."""

    def open(self, draft: Submission, listener: Listener, *, timeout_s: float, first: FirstTasks | None = None) -> HandlePort:
        """See `ports.SubmitterPort`."""
        ...


class SubmissionOpening:
    """Makes one submission, once. Thread-safe.

    Args:
        draft: checked. timeout_s: for making it.
    """

    def __init__(self, submitter: SubmissionMaker, draft: Submission, *, timeout_s: float) -> None:
        self.draft = draft
        self._submitter = submitter
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._handle: HandlePort | None = None

    def open(self, listener: Listener, first: FirstTasks | None) -> HandlePort:
        """Returns the submission, with these tasks. If it was made before, for its number, they are added to it.

        Raises: as `SubmitterPort.open`.
        """
        with self._lock:
            if self._handle is None:
                self._handle = self._submitter.open(self.draft, listener, timeout_s=self._timeout_s, first=first)
            elif first is not None:
                first.made(self._handle)
                self._handle.add(first.spec, first.payloads)
        return self._handle
