"""Takes off its node what no leader has placed there: it goes back to its queue, where the leader meets it like any other.

It was never the node's own, so nothing of it has begun. What cannot go back is deleted: it stands in its queue already, or is no task of
any submission. Nobody's task is ended by it: who writes blocks could write one of anybody's.
"""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Conflict, Outcome, Stat
from rmgr.log import audit
from rmgr.model.tasks.block import BlockData, BlockKey
from rmgr.runtime import machine
from rmgr.runtime.logger import Log

if TYPE_CHECKING:
    from rmgr.daemons.starter.core.doors import NamedNode, TreeCommits
    from rmgr.daemons.starter.core.records import Info

#: Until it is tried again, where nothing may be committed or read.
_PAUSE_S = 0.5


class Unplaced:
    """Refuses blocks on one node that no leader placed there. Owner's thread only."""

    def __init__(self, node: NamedNode, shared: TreeCommits, log: Log) -> None:
        self._node = node
        self._shared = shared
        self._log = log

    def refuse(self, key: BlockKey, data: BlockData, version: int, info: Info | None, why: str) -> None:
        """Sends it away. info: of its submission, None: there is none that could be run. Leaves a line of audit."""
        audit(self._log, who="ZooKeeper", role="", what="start", target=f"{key.submission}_{key.first}", allowed=False, why=why)
        if info is None or info.refusal or data.done or key.count != 1:
            self._delete(self._node.incarnation, key)
        else:
            self._send(self._node.incarnation, key, data, version, info)

    def _send(self, incarnation: int, key: BlockKey, data: BlockData, version: int, info: Info) -> None:
        asked = self._shared.coordinator.stat(paths.gate(key.submission))
        asked.add_done_callback(lambda done: self._shared.post(partial(self._back, incarnation, key, data, version, info, done)))

    def _back(self, incarnation: int, key: BlockKey, data: BlockData, version: int, info: Info, gate: Future[Stat | None]) -> None:
        if incarnation != self._node.incarnation:
            return  # what an older one has left was failed
        committer = self._shared.committer
        if not committer.may_commit or gate.exception() is not None:
            self._shared.after(_PAUSE_S, partial(self._send, incarnation, key, data, version, info))
            return
        held = gate.result() is None
        bare = msgspec.structs.replace(data, allocation=None, incarnation=0, stopping="", awaits="", saving="", stamp=machine.guid()[:12])
        fence = committer.fence(self._node.name)
        multi, _ = ops.give_back(
            self._node.name, fence, info.queue.name, key, bare, version, first=key.first, name="RETURN", held=held
        )
        committer.commit(multi, partial(self._answered, key))

    def _answered(self, key: BlockKey, outcome: Outcome) -> None:
        if isinstance(outcome, Conflict) and outcome.path != paths.running_block(self._node.name, key):
            self._delete(self._node.incarnation, key)

    def _delete(self, incarnation: int, key: BlockKey) -> None:
        if incarnation != self._node.incarnation:
            return
        committer = self._shared.committer
        if committer.may_commit:
            committer.commit(ops.discard(self._node.name, committer.fence(self._node.name), key), lambda _outcome: None)
        else:
            self._shared.after(_PAUSE_S, partial(self._delete, incarnation, key))
