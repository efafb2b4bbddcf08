"""Who lives: which candidate leads, which nodes are lost, and how fast their work may come back. Records in, verdicts out. Pure.

A node is alive while the Starter that registered it (`guid` of its record) has an entry in /starters. REGISTER writes
both in one multi, so a record that is read *before* the list of entries is never newer than it: "up, and its guid is
not listed" then means that the Starter is gone, not that it has just come.

A candidate is an ephemeral sequential znode `/watchdogs/n-<guid>-<seq>`: the smallest leads, everyone else watches the one before it. Its
guid is drawn anew for each session, so an entry is found again after a lost answer, and a create that was sent twice is seen and undone.
Leading is not a standing but a version: only TAKE-OVER (coord/ops/leader.py) makes a leader, and every write of it checks that version.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from rmgr.coord.protocol import paths
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


# -- election ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class First:
    """The candidate is the smallest: it takes over."""

    name: str


@dataclass(frozen=True, slots=True)
class Behind:
    """Others stand before it: it watches `predecessor` only, so that one departure wakes one candidate."""

    name: str
    predecessor: str


@dataclass(frozen=True, slots=True)
class Absent:
    """The candidate has no entry: its session is gone, or its create was not committed."""


Standing = First | Behind | Absent


def standing(children: Iterable[str], guid: str) -> Standing:
    """Where the candidate `guid` stands among the names below /watchdogs. Cost: O(n log n)."""
    line = sorted((paths.entry_sequence(name), name) for name in children)
    mine = next((at for at, (_, name) in enumerate(line) if paths.entry_guid(name) == guid), None)
    if mine is None:
        return Absent()
    name = line[mine][1]
    return Behind(name, line[mine - 1][1]) if mine else First(name)


def doubles(children: Iterable[str], guid: str) -> list[str]:
    """Entries of the candidate beside its smallest: its create was sent again after a lost answer."""
    mine = sorted((paths.entry_sequence(name), name) for name in children if paths.entry_guid(name) == guid)
    return [name for _, name in mine[1:]]


