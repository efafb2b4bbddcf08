"""The owner's entry in /submitters: while it is there, the leader leaves this Submitter's submissions to it.

Lives on the Submitter's thread. One ephemeral a process, made with the first owned submission and again in each new
session; two of one guid do no harm.
"""

from __future__ import annotations

import os
import socket
from concurrent.futures import Future
from typing import Any

from rmgr.client.submission.doors import SubmitterLoop
from rmgr.coord.ops import owner as owner_ops
from rmgr.coord.protocol.multi import Committed, Multi
from rmgr.model.cluster.node import SubmitterEntry
from rmgr.runtime import machine


class OwnerEntry:
    """Keeps the entry while it is wanted."""

    def __init__(self, loop: SubmitterLoop) -> None:
        self._loop = loop
        self._wanted = False
        self._session = 0  #: in which the entry was made (or is being made)

    def want(self) -> None:
        """From now on there is an entry."""
        self._wanted = True
        self.keep()

    def keep(self) -> None:
        """Makes the entry if this session has none."""
        session = self._loop.coordinator.session_id
        if not self._wanted or not session or session == self._session:
            return
        self._session = session
        asked = self._loop.coordinator.commit(entry_multi(self._loop.guid), timeout_s=5.0)
        asked.add_done_callback(lambda _: self._loop.post(lambda: self._made(session, asked)))

    def _made(self, session: int, asked: Future[Any]) -> None:
        if asked.exception(0) is None and isinstance(asked.result(0), Committed):
            return
        if self._session == session:
            self._session = 0
        self._loop.after(self._loop.jitter(0.5), self.keep)


def entry_multi(guid: str) -> Multi:
    """ENTER: a Submitter lives. The sequential name is not known beforehand: an unknown outcome is simply tried again."""
    return owner_ops.enter(SubmitterEntry(guid=guid, host=socket.gethostname(), pid=os.getpid(), since_us=machine.wall_us()))
