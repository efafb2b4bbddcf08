"""Direct dispatch: whether a block goes straight to an idle node instead of the queue (HAND, protocol.md 5), saving one commit.

It is tried only if all earlier tasks are final, and only with the node that ran the last one. The block must fit that node, which
shows its idle marker with the commit of the last outcome; the multi itself checks that the node is still idle.
After a refusal the block is queued, and the next try waits longer. After several in a row were taken, a direct line to
the Starter pays (`Lines`). It announces the block while the HAND is under way, so that the Starter reads inputs and claims
output keys meanwhile. If the Submitter claims the keys, it announces the block when it begins. Lives on the Submitter's thread.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Create, Multi, Stamped
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import RmgrError
from rmgr.model.line import Ahead, Claimed, ClaimStage, Hint, Message, Told
from rmgr.model.node import NodeRecord, NodeState
from rmgr.model.submission import Submission
from rmgr.runtime import machine
from rmgr.runtime.machine import Backoff
from rmgr.runtime.story import Stories, Story
from rmgr.submitter.port import Growth
from rmgr.submitter.thread import SubmitterThread

if TYPE_CHECKING:
    from rmgr.adapters.host.channel import Loop
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.adapters.rpc.line import DirectLine
    from rmgr.submitter.direct import Submitter

_LOG = logging.getLogger("rmgr.submitter")
#: Pause after a refusal (s), which grows with each further one in a row, and its maximum.
_PAUSE_S, _LONGEST_S = 0.1, 5.0
#: Hands in a row after which a direct line pays.
_PAYS = 3
#: Most lines of one process (one task at a time never alternates between more nodes), and the pause after a failed dialling (s).
_MOST_LINES, _DIAL_PAUSE_S = 8, 30.0


class Handing:
    """Direct dispatch of one submission.

    Args: ran_on: the node that the last fragment came from, "" = none.
    """

    def __init__(self, submitter: Submitter, submission: Submission) -> None:
        self._submitter = submitter
        self._lines = submitter.lines
        self.ran_on = ""
        self._submission = submission
        self.node = ""
        self.known: tuple[int, NodeRecord] | None = None  #: version of the record of `node`, and the record
        self._asked: Future[Stamped | None] | None = None  #: the record is being read
        self._stories = Stories(submitter.loop)
        self._taken = 0
        self._pauses = Backoff(_PAUSE_S, _LONGEST_S)
        self._not_before_s = -math.inf

    def target(self, growth: Growth) -> tuple[str, int] | None:
        """Returns (node, version of its record) for handing the growth's block over, None if it must be queued."""
        if not growth.is_alone or len(growth.blocks) != 1 or growth.ended:
            return None
        key, data = growth.blocks[0]
        if data.serial or not data.resubmit or not self._is_ready():
            return None
        assert self.known is not None
        version, record = self.known
        fits = record.state is NodeState.UP and record.takes_handed
        return (self.node, version) if fits and key.count * key.cores <= record.capacity.cores else None

    @property
    def most_left(self) -> int:
        """See `port.Kept`."""
        if self._lines is None or not self._is_ready() or self.known is None:
            return 0
        record = self.known[1]
        takes = record.state is NodeState.UP and record.takes_handed and record.takes_left and self._lines.of(record) is not None
        return record.capacity.cores // self._submission.request.cores if takes else 0

    def learn(self) -> None:
        """Reads the record of the node that ran the last fragment, unless it is known: the next block may go there."""
        self._is_ready()

    def learned(self) -> Story[None]:
        """Waits until the record that is being read is there. That takes less time than a queue, from which any node may take the block."""
        if self._asked is not None:
            with suppress(RmgrError):
                yield self._asked

    def _is_ready(self) -> bool:
        """Returns whether the record of the node that ran the last fragment is known; otherwise begins to read it."""
        if not self.ran_on or self._submission.rigid is not None or self._submission.request.resources:
            return False  # only the leader places; and the node may have lent other resources
        if machine.monotonic() < self._not_before_s:
            return False
        if self.node != self.ran_on:
            self.node, self.known = self.ran_on, None
        if self.known is None:
            self._stories.begin(self._ask(self.node), key="record")
        return self.known is not None

    def announce(self, multi: Multi, *, is_early: bool = False) -> None:
        """Announces a HAND to its Starter: it is under way, or (is_early) will be soon."""
        lines = self._lines
        line = lines.of(self.known[1]) if lines is not None and self.known is not None else None
        made = multi.ops[-1]
        if line is not None and isinstance(made, Create):
            line.send(Hint(self.node, made.path.rpartition("/")[2], made.data, is_early))

    def say_claimed(self, multi: Multi, stage: ClaimStage) -> None:
        """Tells the Starter how far the output keys of a HAND's block are claimed."""
        lines, made = self._lines, multi.ops[-1]
        line = lines.of(self.known[1]) if lines is not None and self.known is not None else None
        if line is not None and isinstance(made, Create):
            line.send(Claimed(self.node, made.path.rpartition("/")[2], stage))

    def taken(self) -> None:
        """Notes that a HAND was committed."""
        self._pauses.reset()
        self._taken += 1
        lines = self._lines
        if self._taken >= _PAYS and lines is not None and self.known is not None:
            lines.want(self.known[1])

    def refused(self, path: str) -> None:
        """Notes that a HAND was refused because of `path`."""
        if path == paths.node(self.node):
            self.known = None
        self._taken = 0
        self._not_before_s = machine.monotonic() + self._pauses.next_s()

    def _ask(self, node: str) -> Story[None]:
        try:
            self._asked = self._submitter.coordinator.get(paths.node(node))
            found = yield self._asked
            if found is not None and node == self.node:
                self.known = found.version, decode_record(found.data, NodeRecord, paths.node(node))
        except RmgrError:
            self.refused(paths.node(node))
        finally:
            self._asked = None


# -- direct lines ----------------------------------------------------------------------------------------------------------------

#: Hears what a Starter has committed, or is about to commit.
Hearing = Callable[[Ahead | Told], None]


class Lines:
    """Direct lines of one Submitter, by the Starter's address: opened when they pay, dropped when they break.

    `adapters/rpc/line.py` defines the messages. Everything works without a line, only slower. Threads other than the Submitter's
    only dial, and post what they hear.

    Args: hear: called on the Submitter's thread. credentials: of a secured cluster.
    """

    def __init__(self, loop: SubmitterThread, hear: Hearing, credentials: Credentials | None) -> None:
        self._loop = loop
        self._stories = Stories(loop)
        self._hear = hear
        self._credentials = credentials
        self._lines: dict[str, DirectLine] = {}
        self._not_before_s: dict[str, float] = {}  #: by address, also of lines being dialled
        self._links: Loop | None = None  #: the thread of all lines
        self._closed = False

    def of(self, record: NodeRecord) -> DirectLine | None:
        """Returns the line to the node's Starter, if there is one now."""
        return self._lines.get(record.line)

    def want(self, record: NodeRecord) -> None:
        """Opens a line to the node's Starter, if possible. Never waits."""
        address = record.line
        if not address or address in self._lines or len(self._lines) >= _MOST_LINES:
            return
        if machine.monotonic() < self._not_before_s.get(address, -math.inf):
            return
        self._not_before_s[address] = machine.monotonic() + _DIAL_PAUSE_S
        if self._links is None:
            from rmgr.adapters.host.channel import Loop

            try:
                self._links = Loop("rmgr-lines", on_crash=lambda error: _LOG.error("lines_ended: %r", error))
            except (OSError, RuntimeError) as error:  # no descriptor, memory or thread is left, and lines are optional
                _LOG.info("no_line: %s: %s", address, error)
                return
        self._stories.begin(self._open(self._links, address, record.key_id))

    def close(self) -> None:
        """Ends all lines."""
        self._closed = True
        for line in self._lines.values():
            line.close()
        if self._links is not None:
            self._links.close()

    # -- inside

    def _dial(self, links: Loop, address: str, key_id: str) -> DirectLine:
        """Dials, on a thread that may wait."""
        from rmgr.adapters.rpc.line import dial

        def ended(_line: DirectLine) -> None:
            self._loop.post(lambda: self._drop_line(address))

        line = dial(address, credentials=self._credentials, key_id=key_id, loop=links, on_message=self._on_message, on_end=ended)
        if self._closed:  # nothing will use the line
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

    def _drop_line(self, address: str) -> None:
        if self._lines.pop(address, None) is not None:
            self._not_before_s[address] = machine.monotonic() + 1.0

    def _on_message(self, line: DirectLine, message: Message) -> None:
        """Takes a message on the line's thread."""
        if isinstance(message, Ahead | Told):
            self._loop.post(lambda: self._hear(message))
        else:
            line.close()
