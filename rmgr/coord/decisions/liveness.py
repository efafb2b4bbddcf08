"""Finds lost nodes, and how fast their work may come back: records and entries in, verdicts out. Pure.

A node is alive while the Starter that registered it (`guid` of its record) has an entry in /starters. REGISTER writes
both in one multi, so a record that is read *before* the list of entries is never newer than it: "up, and its guid is
not listed" then means that the Starter is gone, not that it has just come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from rmgr.coord.ops.leader import epoch_check
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Check, Delete, Gone, Multi, Op
from rmgr.model.cluster.node import NodeRecord, NodeState

#: Fewer losses than this at once are never a mass loss, whatever their share.
FEW = 2
#: `NodeRecord.reason` of a node whose Starter left nothing behind.
STOPPED = "stopped"
LOST = "its Starter's session ended"
REVOKED = "its Starter's key was revoked"


def guids(entries: Iterable[str]) -> frozenset[str]:
    """Names below /starters -> guids of the Starters that are alive."""
    return frozenset(paths.entry_guid(name) for name in entries)


def lost(records: Mapping[str, NodeRecord], alive: Collection[str], revoked: Collection[str] = ()) -> list[str]:
    """Nodes that are up by their record and have no Starter, or one whose key is no longer believed, by name."""
    return sorted(
        name
        for name, record in records.items()
        if record.state is NodeState.UP and (record.guid not in alive or (record.key_id and record.key_id in revoked))
    )


def fence_reason(claimed: int, *, revoked: bool = False, leaves: bool = False) -> str:
    """What FENCE writes down.

    leaves: its Starter would have said that it ends in good order (LEAVE). One of an older release does not: it has nothing claimed then.
    """
    if revoked:
        return REVOKED
    return LOST if claimed or leaves else STOPPED


def tidy(epoch_version: int, node: str, node_version: int, *, orders: Iterable[str], idle: bool) -> Multi | None:
    """TIDY: orders to a fenced node, and its idle marker, go; None when there is nothing (at most 190 orders at a time).

    The node's version is checked: once it has registered again these things are its own.
    """
    gone = [paths.inbox(node, guid) for guid in sorted(orders)[:190]]
    if idle:
        gone.append(paths.idle(node))
    if not gone:
        return None
    ops: tuple[Op, ...] = (epoch_check(epoch_version), Check(paths.node(node), node_version), *(Delete(path) for path in gone))
    return Multi(name="TIDY", ops=ops, proof=Gone(gone[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class MassLoss:
    """Many Starters vanished together: a switch or ZooKeeper hiccup is likelier than mass death."""

    lost: int
    known: int


class LossWindow:
    """Losses of Starters in the last `window_s`, against how many there were (rule 21).

    Args:
        share: more of the Starters than this lost in one window (and more than `FEW`) is a mass loss.
        window_s: length of the window, 2 T.
    """

    def __init__(self, share: float, window_s: float) -> None:
        self.share = share
        self._window_s = window_s
        self._losses: deque[tuple[float, str]] = deque()

    def note(self, guid: str, now_s: float) -> None:
        """A Starter is gone; the same one counts once."""
        if all(known != guid for _, known in self._losses):
            self._losses.append((now_s, guid))

    def returned(self, guid: str) -> None:
        """It was a loss in error: its entry is there."""
        self._losses = deque((at, known) for at, known in self._losses if known != guid)

    def verdict(self, alive: int, now_s: float) -> MassLoss | None:
        """The mass loss under way, None in ordinary times. `alive`: Starters with an entry."""
        while self._losses and self._losses[0][0] <= now_s - self._window_s:
            self._losses.popleft()
        count = len(self._losses)
        known = alive + count
        return MassLoss(lost=count, known=known) if count > FEW and count > self.share * known else None


class Meter:
    """So many a second: a bucket of tokens that holds one second's worth.

    Args:
        rate: tokens a second (> 0).
    """

    def __init__(self, rate: float, now_s: float) -> None:
        self._rate = rate
        self._tokens = max(1.0, rate)
        self._at_s = now_s

    def take(self, now_s: float) -> float:
        """Takes one token: 0.0 when it was there, else how long to wait before asking again (nothing was taken)."""
        self._tokens = min(max(1.0, self._rate), self._tokens + (now_s - self._at_s) * self._rate)
        self._at_s = now_s
        if self._tokens >= 1.0 - 1e-9:  # a wait may end a rounding error too early
            self._tokens = max(0.0, self._tokens - 1.0)
            return 0.0
        return (1.0 - self._tokens) / self._rate
