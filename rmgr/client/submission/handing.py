"""Whether a block goes straight to an idle node instead of into the queue (HAND, protocol.md 5): a commit less before it runs.

Tried only when everything sent before is final, and with the node that ran the last of it. The block fits that node, which
shows its idle marker with the commit of the last outcome. Whether the node is still idle the multi itself finds out.
When it is refused, the block is queued, and the next tries wait longer. When several in a row were taken, a direct line to
the Starter pays (`submitter/lines.py`). It announces the block while the HAND is on its way: the Starter reads its inputs and claims its
output keys meanwhile. Where the Submitter claims these itself, the block is announced when that begins. Lives on the Submitter's thread.
"""

from __future__ import annotations

import math
from concurrent.futures import Future
from typing import Protocol

from rmgr.client.submission.doors import SubmitterLoop
from rmgr.client.submission.packing import Packed
from rmgr.coord.decisions.view import Progress
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Create, Multi, Stamped
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import RmgrError
from rmgr.model.cluster.node import NodeRecord, NodeState
from rmgr.model.tasks.submission import Submission
from rmgr.model.wire.line import Claimed, ClaimStage, Hint, Message
from rmgr.runtime import machine

#: After a refusal it is not tried for so long (s), doubled with each; after one for want of rights, for much longer.
_PAUSE_S, _LONGEST_S, _NO_RIGHT_S = 0.05, 5.0, 300.0
#: A direct line pays after so many in a row.
_PAYS = 3


class HintLine(Protocol):
    """A direct line to one Starter."""

    def send(self, message: Message) -> bool:
        """Sends at once, or not at all. Never waits."""
        ...


class HintLines(Protocol):
    """Direct lines to Starters, by the records of their nodes."""

    def of(self, record: NodeRecord) -> HintLine | None:
        """The line to the node's Starter, if there is one now."""
        ...

    def want(self, record: NodeRecord) -> None:
        """A line to it would pay. Never waits."""
        ...


class HandedSubmission(Protocol):
    """A submission whose single tasks may be handed to a Starter."""

    submission: Submission
    progress: Progress


class Handing:
    """Direct dispatch of one submission.

    Args: lines: to Starters; None: there are none. ran_on: the node that the last fragment came from, "" = none.
    """

    def __init__(self, handle: HandedSubmission, loop: SubmitterLoop, lines: HintLines | None) -> None:
        self._loop = loop
        self._lines = lines
        self.ran_on = ""
        self._handle = handle
        self._node = ""
        self._known: tuple[int, NodeRecord] | None = None  #: version and record of `_node`
        self._asking = False
        self._refusals = self._taken = 0
        self._not_before_s = -math.inf

    def target(self, packed: list[Packed]) -> tuple[str, int] | None:
        """(node, version of its record) to hand these blocks to, None: queue them."""
        if len(packed) != 1 or not self.ran_on or packed[0].solid or not packed[0].spec.resubmit:
            return None
        handle = self._handle
        if handle.submission.rigid is not None or handle.submission.request.resources:
            return None  # only the leader places; and a hungry node may have lent what it has of other resources
        if handle.progress.final < packed[0].first or machine.monotonic() < self._not_before_s:
            return None
        if self._node != self.ran_on:
            self._node, self._known = self.ran_on, None
        if self._known is None:
            self._ask()
            return None
        version, record = self._known
        fits = record.state is NodeState.UP and record.takes_handed
        return (self._node, version) if fits and packed[0].count * handle.submission.request.cores <= record.capacity.cores else None

    def takes_left(self, packed: list[Packed]) -> bool:
        """They would be handed over with their output keys left to the node, which would be told at once."""
        if self._lines is None or self.target(packed) is None or self._known is None:
            return False
        record = self._known[1]
        return record.takes_left and self._lines.of(record) is not None

    def announce(self, multi: Multi, *, is_early: bool = False) -> None:
        """Announces a HAND to its Starter: it is on its way, or is_early: will be soon."""
        lines = self._lines
        line = lines.of(self._known[1]) if lines is not None and self._known is not None else None
        made = multi.ops[-1]
        if line is not None and isinstance(made, Create):
            line.send(Hint(self._node, made.path.rpartition("/")[2], made.data, is_early))

    def say_claimed(self, multi: Multi, stage: ClaimStage) -> None:
        """Says how far the output keys of the block of a HAND are claimed."""
        lines, made = self._lines, multi.ops[-1]
        line = lines.of(self._known[1]) if lines is not None and self._known is not None else None
        if line is not None and isinstance(made, Create):
            line.send(Claimed(self._node, made.path.rpartition("/")[2], stage))

    def taken(self) -> None:
        """It was committed."""
        self._refusals = 0
        self._taken += 1
        lines = self._lines
        if self._taken >= _PAYS and lines is not None and self._known is not None:
            lines.want(self._known[1])

    def refused(self, path: str | None) -> None:
        """The HAND met something else than expected at `path`; None: it is not allowed."""
        if path == paths.node(self._node):
            self._known = None
        self._refusals += 1
        self._taken = 0
        pause_s = _NO_RIGHT_S if path is None else min(_LONGEST_S, _PAUSE_S * 2**self._refusals)
        self._not_before_s = machine.monotonic() + pause_s

    def _ask(self) -> None:
        if self._asking:
            return
        self._asking = True
        loop, node = self._loop, self._node
        asked = loop.coordinator.get(paths.node(node))
        asked.add_done_callback(lambda _: loop.post(lambda: self._arrived(node, asked)))

    def _arrived(self, node: str, asked: Future[Stamped | None]) -> None:
        self._asking = False
        try:
            found = asked.result(0)
            if found is not None and node == self._node:
                self._known = found.version, decode_record(found.data, NodeRecord, paths.node(node))
        except RmgrError:
            self.refused(paths.node(node))
