"""Znodes that users leave beside their submissions: requests to the leader, orders to nodes. Each user has so many.

What is submitted is counted by the leader (`gateway/limits.py`); these go by themselves within a moment, when somebody obeys or answers.
So a gateway remembers what it has made for whom, and looks what is left of it only when that is much.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Create, Multi
from rmgr.coord.protocol.ports import Coordinator
from rmgr.errors import LimitReached
from rmgr.runtime import machine

#: Root -> most of one user below one parent (of orders: below each node's), and bytes of their data; through one gateway.
MOST: Mapping[str, tuple[int, int]] = {
    paths.REQUESTS: (1000, 1 << 20),
    paths.INBOX: (500, 1 << 18),
}
_WHAT = {
    paths.REQUESTS: ("requests to the leader within a minute", "wait a minute, or ask for more tasks at once"),
    paths.INBOX: ("orders that a node has not obeyed", "wait until it has, or is known to be dead; rmgr nodes"),
}
_OPERATIONS = {"ASK", "ORDER"}
_TIMEOUT_S = 5.0
#: How long a commit takes at most, about; how often it is looked for one who has too much.
_ON_ITS_WAY_S, _LOOK_S = 2.0, 0.25
#: Users and parents that are remembered.
_KEEP = 20_000


class Loose:
    """Counts loose znodes by user, as far as they may still be there. Thread-safe. Cost: 2 us; at the bound, one list of children."""

    def __init__(self, coordinator: Coordinator, *, clock: Callable[[], float] | None = None) -> None:
        self._coordinator = coordinator
        self._lock = threading.Lock()
        self._clock = clock or machine.monotonic
        self._made: OrderedDict[tuple[str, str], list[tuple[str, int, float]]] = OrderedDict()  # (user, parent) -> (name, bytes, when)
        self._full_s: dict[tuple[str, str], float] = {}  # when it was looked last, and too much was left

    def check(self, user: str, multi: Multi) -> None:
        """Counts what `multi` makes. Raises LimitReached; CoordinationUnavailable."""
        if multi.name not in _OPERATIONS or not isinstance(op := multi.ops[0], Create):
            return
        parent, _, name = op.path.rpartition("/")
        root = f"/{parent.split('/')[1]}"
        most, most_bytes = MOST[root]
        if self._counts(user, parent, name, len(op.data), most, most_bytes):
            return
        if self._clock() - self._full_s.get((user, parent), -math.inf) > _LOOK_S:
            names = self._coordinator.children(parent, timeout_s=_TIMEOUT_S).result(_TIMEOUT_S + 1)
            self._settle(user, parent, names or [])
            if self._counts(user, parent, name, len(op.data), most, most_bytes):
                return
            self._full_s = {key: at for key, at in self._full_s.items() if self._clock() - at < _LOOK_S} | {(user, parent): self._clock()}
        what, advice = _WHAT[root]
        raise LimitReached(f"{user} has {most}, or {most_bytes} bytes, of {what}", hint=advice)

    def _counts(self, user: str, parent: str, name: str, size: int, most: int, most_bytes: int) -> bool:
        with self._lock:
            made = self._made.setdefault((user, parent), [])
            self._made.move_to_end((user, parent))
            if len(made) >= most or sum(size for _, size, _ in made) + size > most_bytes:
                return False
            made.append((name, size, self._clock()))
            while len(self._made) > _KEEP:
                self._made.popitem(last=False)
            return True

    def _settle(self, user: str, parent: str, names: list[str]) -> None:
        """Those are left, and what was made so lately that it may still be on its way."""
        left = Counter(names)
        kept = []
        with self._lock:
            for name, size, at_s in self._made.get((user, parent), []):
                if left[name] > 0 or self._clock() - at_s < _ON_ITS_WAY_S:
                    left[name] -= 1
                    kept.append((name, size, at_s))
            self._made[user, parent] = kept
