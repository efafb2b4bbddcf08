"""Whether a block goes straight to an idle node instead of into the queue (HAND, protocol.md 5): a commit less before it runs.

Tried only when everything sent before is final, and with the node that ran the last of it. The block fits that node, which
shows its idle marker with the commit of the last outcome. Whether the node is still idle the multi itself finds out.
When it is refused, the block is queued, and the next tries wait longer. When several in a row were taken, a direct line to
the Starter pays (`lines.py`). It announces the block while the HAND is on its way: the Starter reads its inputs and claims its
output keys meanwhile. Where the Submitter claims these itself, the block is announced when that begins. Lives on the Submitter's thread.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Create, Multi
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import RmgrError
from rmgr.model.cluster.node import NodeRecord, NodeState
from rmgr.model.tasks.submission import Submission
from rmgr.model.wire.line import Claimed, ClaimStage, Hint
from rmgr.runtime import machine
from rmgr.runtime.backoff import Backoff
from rmgr.runtime.story import Stories, Story
from rmgr.submitter.port import Growth

if TYPE_CHECKING:
    from rmgr.submitter.direct import Submitter

#: After a refusal it is not tried for about so long (s), and longer after each in a row, up to the second.
_PAUSE_S, _LONGEST_S = 0.1, 5.0
#: A direct line pays after so many in a row.
_PAYS = 3


class Handing:
    """Direct dispatch of one submission.

    Args: lines: to Starters; None: there are none. ran_on: the node that the last fragment came from, "" = none.
    """

    def __init__(self, submitter: Submitter, submission: Submission) -> None:
        self._submitter = submitter
        self._lines = submitter.lines
        self.ran_on = ""
        self._submission = submission
        self._node = ""
        self._known: tuple[int, NodeRecord] | None = None  #: version and record of `_node`
        self._stories = Stories(submitter.loop)
        self._taken = 0
        self._pauses = Backoff(_PAUSE_S, _LONGEST_S)
        self._not_before_s = -math.inf

    def target(self, growth: Growth) -> tuple[str, int] | None:
        """(node, version of its record) to hand its block to, None: queue what it has."""
        if not growth.is_alone or len(growth.blocks) != 1 or growth.ended:
            return None
        key, data = growth.blocks[0]
        if data.serial or not data.resubmit or not self._is_ready():
            return None
        assert self._known is not None
        version, record = self._known
        fits = record.state is NodeState.UP and record.takes_handed
        return (self._node, version) if fits and key.count * key.cores <= record.capacity.cores else None

    @property
    def most_left(self) -> int:
        """See `port.Kept`."""
        if self._lines is None or not self._is_ready() or self._known is None:
            return 0
        record = self._known[1]
        takes = record.state is NodeState.UP and record.takes_handed and record.takes_left and self._lines.of(record) is not None
        return record.capacity.cores // self._submission.request.cores if takes else 0

    def _is_ready(self) -> bool:
        """The record of the node that ran the last one is known; else it is asked for."""
        if not self.ran_on or self._submission.rigid is not None or self._submission.request.resources:
            return False  # only the leader places; and a hungry node may have lent what it has of other resources
        if machine.monotonic() < self._not_before_s:
            return False
        if self._node != self.ran_on:
            self._node, self._known = self.ran_on, None
        if self._known is None:
            self._stories.begin(self._ask(self._node), key="record")
        return self._known is not None

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
        self._pauses.reset()
        self._taken += 1
        lines = self._lines
        if self._taken >= _PAYS and lines is not None and self._known is not None:
            lines.want(self._known[1])

    def refused(self, path: str) -> None:
        """The HAND met something else than expected at `path`."""
        if path == paths.node(self._node):
            self._known = None
        self._taken = 0
        self._not_before_s = machine.monotonic() + self._pauses.next_s()

    def _ask(self, node: str) -> Story[None]:
        try:
            found = yield self._submitter.coordinator.get(paths.node(node))
            if found is not None and node == self._node:
                self._known = found.version, decode_record(found.data, NodeRecord, paths.node(node))
        except RmgrError:
            self.refused(paths.node(node))
