"""Keeps `/meta` true: the protocol that every daemon speaks, and whether the cluster has bound its data store.

The leader looks when its leadership begins and with each resync. It raises the protocol once every living daemon speaks a newer one and
never lowers it; a daemon of the release before may still join afterwards (`Meta.oldest`), one before that is refused. Once the store
is marked as bound, daemons and clients refuse an empty one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from rmgr.adapters.store_rules import remembered
from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Outcome, Stamped
from rmgr.coord.protocol.records import decode_record
from rmgr.daemons.leader.core.doors import LeaderCommits, StoreCalls
from rmgr.daemons.leader.core.term import Term
from rmgr.errors import WrongCluster
from rmgr.model.base.version import raised
from rmgr.model.cluster.node import EpochRecord, Meta, NodeRecord
from rmgr.runtime.release import release


class ReleaseKeeper:
    """Args:
    starters: records of the nodes whose Starters live. watchdogs: names of all candidates.
    """

    def __init__(
        self,
        tree: LeaderCommits,
        term: Term,
        calls: StoreCalls,
        starters: Callable[[], Iterable[NodeRecord]],
        watchdogs: Callable[[], Iterable[str]],
    ) -> None:
        self._tree = tree
        self._term = term
        self._calls = calls
        self._starters = starters
        self._watchdogs = watchdogs

    def look(self) -> None:
        """One comparison. Cost: one read while nothing changes."""
        self._tree.get(paths.META, self._on_meta)

    def _on_meta(self, found: Stamped | None) -> None:
        if found is None:
            return
        meta = decode_record(found.data, Meta, paths.META)
        if not meta.store_bound_us:
            self._calls.store(remembered, partial(self._on_owner, meta, found.version), lambda _: None)
            return  # the protocol has its turn with the next look
        if release().protocol <= meta.protocol:
            return
        members = [release().protocol, *(record.protocol for record in self._starters())]
        names = sorted(self._watchdogs())
        if raised(meta.protocol, members) == meta.protocol or not names:
            return
        answers: list[int] = []

        def arrived(found_one: Stamped | None) -> None:
            answers.append(release().protocol if found_one is None else _protocol(found_one))
            if len(answers) == len(names):
                self._raise(meta, found.version, [*members, *answers])

        for name in names:
            self._tree.get(f"{paths.WATCHDOGS}/{name}", arrived)  # one that cannot be read: not now

    def _on_owner(self, meta: Meta, version: int, owner: str | None) -> None:
        if owner == meta.cluster_id:
            self._tree.commit(leader_ops.mark_store(meta, version, self._term.wall_us()))

    def _raise(self, meta: Meta, version: int, members: list[int]) -> None:
        protocol = raised(meta.protocol, members)
        if protocol > meta.protocol:
            self._tree.commit(leader_ops.raise_protocol(meta, version, protocol), partial(self._raised, protocol))

    def _raised(self, protocol: int, outcome: Outcome) -> None:
        if isinstance(outcome, Committed):
            self._term.log.info("protocol_raised", version=protocol, epoch=self._term.epoch)


def _protocol(found: Stamped) -> int:
    """That a candidate speaks; 0 when its entry cannot be read."""
    try:
        return decode_record(found.data, EpochRecord, paths.WATCHDOGS).protocol
    except WrongCluster:
        return 0
