"""Direct lines of a Submitter to the Starters that run its single tasks: made when they pay, given up when they break.

What is said on them is in `adapters/rpc/line.py`. Without a line everything works, later. Lives on the Submitter's thread, but
for the dialling; the line's own thread only posts.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from rmgr.errors import RmgrError
from rmgr.model.cluster.node import NodeRecord
from rmgr.model.wire.line import Ahead, Message, Told
from rmgr.runtime import machine
from rmgr.runtime.story import Stories, Story
from rmgr.submitter.thread import SubmitterThread

if TYPE_CHECKING:
    from rmgr.adapters.host.channel import Loop
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.adapters.rpc.line import DirectLine

_LOG = logging.getLogger("rmgr.submitter")
#: So many lines of one process; nobody alternates between more nodes with one task at a time.
_MOST = 8
#: After a failure not dialled again for so long.
_PAUSE_S = 30.0


#: Hears what a Starter has committed, or is about to.
Hearing = Callable[[Ahead | Told], None]


class Lines:
    """Direct lines of one Submitter, by the address at which a Starter listens.

    Args: hear: called on the Submitter's thread. credentials: of a secured cluster.
    """

    def __init__(self, loop: SubmitterThread, hear: Hearing, credentials: Credentials | None) -> None:
        self._loop = loop
        self._stories = Stories(loop)
        self._hear = hear
        self._credentials = credentials
        self._lines: dict[str, DirectLine] = {}
        self._not_before_s: dict[str, float] = {}  #: also of those that are being dialled
        self._links: Loop | None = None  #: the thread of all of them
        self._closed = False

    def of(self, record: NodeRecord) -> DirectLine | None:
        """The line to the node's Starter, if there is one now."""
        return self._lines.get(record.line)

    def want(self, record: NodeRecord) -> None:
        """A line to it would pay. Never waits."""
        address = record.line
        if not address or address in self._lines or len(self._lines) >= _MOST:
            return
        if machine.monotonic() < self._not_before_s.get(address, -math.inf):
            return
        self._not_before_s[address] = machine.monotonic() + _PAUSE_S
        if self._links is None:
            from rmgr.adapters.host.channel import Loop

            try:
                self._links = Loop("rmgr-lines", on_crash=lambda error: _LOG.error("lines_ended: %r", error))
            except (OSError, RuntimeError) as error:  # no descriptor, memory or thread is left for what is only faster
                _LOG.info("no_line: %s: %s", address, error)
                return
        self._stories.begin(self._open(self._links, address, record.key_id))

    def close(self) -> None:
        """Ends all of them."""
        self._closed = True
        for line in self._lines.values():
            line.close()
        if self._links is not None:
            self._links.close()

    # -- inside

    def _dial(self, links: Loop, address: str, key_id: str) -> DirectLine:
        """On a thread that may wait."""
        from rmgr.adapters.rpc.line import dial

        def ended(_line: DirectLine) -> None:
            self._loop.post(lambda: self._ended(address))

        line = dial(address, credentials=self._credentials, key_id=key_id, loop=links, on_message=self._heard, on_end=ended)
        if self._closed:  # nobody will look at what was dialled
            line.close()
        return line

    def _open(self, links: Loop, address: str, key_id: str) -> Story[None]:
        try:
            line = yield self._loop.io(lambda: self._dial(links, address, key_id))
        except (OSError, ValueError, RmgrError) as error:
            _LOG.info("no_line: %s: %s", address, error)
            return
        if self._closed:
            line.close()
        elif line.is_open:
            self._lines[address] = line
            self._not_before_s.pop(address, None)

    def _ended(self, address: str) -> None:
        if self._lines.pop(address, None) is not None:
            self._not_before_s[address] = machine.monotonic() + 1.0

    def _heard(self, line: DirectLine, message: Message) -> None:
        """On the line's thread."""
        if isinstance(message, Ahead | Told):
            self._loop.post(lambda: self._hear(message))
        else:
            line.close()
