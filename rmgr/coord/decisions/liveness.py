"""Who is alive: which candidate leads, which nodes are lost, and how fast their work may come back. Records in, verdicts out. Pure.

A node is alive while the Starter that registered it (`guid` of its record) has an entry in /starters. REGISTER writes
both in one multi, so a record that is read *before* the list of entries is never newer than the list: "up, and its guid is
not listed" then means that the Starter is gone, not that it has just come.

A candidate is an ephemeral sequential znode `/watchdogs/n-<guid>-<seq>`: the smallest leads, each other watches the one before it. Its
guid is new for each session, so an entry is found again after a lost answer, and a create that was sent twice is noticed and undone.
A leader is made by a version, not by its place: only TAKE-OVER (coord/ops/leader.py) makes a leader, and each of its writes checks that
version.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from rmgr.coord.protocol import paths
from rmgr.model.node import NodeRecord, NodeState

#: Losses at once that are never a mass loss, whatever their share.
FEW = 2
#: `NodeRecord.reason` of a node whose Starter stopped in good order, lost its session, or has a revoked key.
STOPPED = "stopped"
LOST = "its Starter's session ended"
REVOKED = "its Starter's key was revoked"


def guids(entries: Iterable[str]) -> frozenset[str]:
    """Returns the guids of live Starters from the names below /starters."""
    return frozenset(paths.entry_guid(name) for name in entries)


def lost(records: Mapping[str, NodeRecord], alive: Collection[str], revoked: Collection[str] = ()) -> list[str]:
    """Returns, by name, nodes that are up by their record but whose Starter is gone or has a revoked key."""
    return sorted(
        name
        for name, record in records.items()
        if record.state is NodeState.UP and (record.guid not in alive or (record.key_id and record.key_id in revoked))
    )


def fence_reason(claimed: int, *, revoked: bool = False, leaves: bool = False) -> str:
    """Returns the reason that FENCE records.

    leaves: the Starter's release says LEAVE when it ends in good order. Older releases do not; they then have nothing claimed.
    """
    if revoked:
        return REVOKED
    return LOST if claimed or leaves else STOPPED


@dataclass(frozen=True, slots=True, kw_only=True)
class MassLoss:
    """Many Starters vanished together: a fault of the network or of ZooKeeper is likelier than many deaths."""

    lost: int
    known: int


class LossWindow:
    """Losses of Starters in the last `window_s`, compared with their number (rule 21).

    Args:
        share: a loss of more than this share of the Starters (and more than `FEW`) in one window is a mass loss.
        window_s: length of the window (s), 2 T.
    """

    def __init__(self, share: float, window_s: float) -> None:
        self.share = share
        self._window_s = window_s
        self._losses: deque[tuple[float, str]] = deque()

    def note(self, guid: str, now_s: float) -> None:
        """Notes a lost Starter; each counts once."""
        if all(known != guid for _, known in self._losses):
            self._losses.append((now_s, guid))

    def returned(self, guid: str) -> None:
        """Takes a loss back: the Starter's entry is there."""
        self._losses = deque((at, known) for at, known in self._losses if known != guid)

    def verdict(self, alive: int, now_s: float) -> MassLoss | None:
        """Returns the current mass loss, None in ordinary times. `alive`: Starters with an entry."""
        while self._losses and self._losses[0][0] <= now_s - self._window_s:
            self._losses.popleft()
        count = len(self._losses)
        known = alive + count
        return MassLoss(lost=count, known=known) if count > FEW and count > self.share * known else None


class Meter:
    """Limits a rate: a bucket of tokens that holds one second's worth.

    Args:
        rate: tokens per second (> 0).
    """

    def __init__(self, rate: float, now_s: float) -> None:
        self._rate = rate
        self._tokens = max(1.0, rate)
        self._at_s = now_s

    def take(self, now_s: float) -> float:
        """Takes one token and returns 0.0; without a token, returns how long to wait before the next try (s)."""
        self._tokens = min(max(1.0, self._rate), self._tokens + (now_s - self._at_s) * self._rate)
        self._at_s = now_s
        if self._tokens >= 1.0 - 1e-9:  # rounding may end a wait slightly too early
            self._tokens = max(0.0, self._tokens - 1.0)
            return 0.0
        return (1.0 - self._tokens) / self._rate


# -- election ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class First:
    """The candidate has the smallest entry: it takes over."""

    name: str


@dataclass(frozen=True, slots=True)
class Behind:
    """Other entries come first; the candidate watches only `predecessor`, so that one departure wakes one candidate."""

    name: str
    predecessor: str


@dataclass(frozen=True, slots=True)
class Absent:
    """The candidate has no entry: its session is gone, or its create was not committed."""


Standing = First | Behind | Absent


def standing(children: Iterable[str], guid: str) -> Standing:
    """Returns the place of candidate `guid` among the names below /watchdogs. Cost: O(n log n)."""
    line = sorted((paths.entry_sequence(name), name) for name in children)
    mine = next((at for at, (_, name) in enumerate(line) if paths.entry_guid(name) == guid), None)
    if mine is None:
        return Absent()
    name = line[mine][1]
    return Behind(name, line[mine - 1][1]) if mine else First(name)


def doubles(children: Iterable[str], guid: str) -> list[str]:
    """Returns the candidate's entries beside its smallest, made when a create was repeated after a lost answer."""
    mine = sorted((paths.entry_sequence(name), name) for name in children if paths.entry_guid(name) == guid)
    return [name for _, name in mine[1:]]


