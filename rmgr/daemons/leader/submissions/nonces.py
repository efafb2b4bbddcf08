"""Deletes the znodes of nonces under which nothing can be submitted any more (`coord/seal/nonces.py`), once their submissions have gone.

They are told by their names, which say when they were drawn. Each is read before it goes: its submission may last for weeks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Delete, Gone, Multi, Outcome, Stamped
from rmgr.coord.seal import nonces
from rmgr.daemons.leader.core.doors import LeaderCommits
from rmgr.daemons.leader.core.term import Term
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint

#: How often they are looked through.
SWEEP_S = 600.0
#: Read, and deleted, together.
_TOGETHER = 180


class NonceSweeper:
    """In the leader's loop.

    Args: is_gone: no submission has this number any more; False also when that is not known.
    """

    def __init__(self, tree: LeaderCommits, term: Term, is_gone: Callable[[int], bool]) -> None:
        self._tree = tree
        self._term = term
        self._is_gone = is_gone

    def start(self) -> None:
        """Begins to look now and then."""
        self._tree.after(machine.uniform(0.5, 1.0) * SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._tree.after(machine.uniform(0.8, 1.2) * SWEEP_S, self._sweep)
        self._tree.children(paths.NONCES, self._on_names)

    def _on_names(self, names: list[str] | None) -> None:
        """Cost: 1 us a name."""
        now_s = self._term.wall_us() / 1e6
        self._next([name for name in names or () if nonces.is_over(name, now_s)])

    def _next(self, names: Sequence[str]) -> None:
        if names:
            wanted = [f"{paths.NONCES}/{name}" for name in names[:_TOGETHER]]
            self._tree.get_all(wanted, partial(self._on_nonces, wanted, names[_TOGETHER:]))

    def _on_nonces(self, wanted: list[str], rest: Sequence[str], found: list[Stamped | None]) -> None:
        there = zip(wanted, found, strict=True)
        gone = [path for path, nonce in there if nonce is not None and self._is_gone(_number(nonce.data))]
        if not gone:
            self._next(rest)
            return
        failpoint("leader.before_forget_nonces")
        multi = Multi(name="FORGET_NONCES", ops=tuple(map(Delete, gone)), proof=Gone(gone[0]))
        self._tree.commit(multi, partial(self._forgotten, len(gone), rest))

    def _forgotten(self, count: int, rest: Sequence[str], _outcome: Outcome) -> None:
        self._term.log.info("nonces_forgotten", total=count, epoch=self._term.epoch)
        self._next(rest)


def _number(data: bytes) -> int:
    """Of a submission; 0, which none has, for what nobody may have written there."""
    number = paths.parse_number(data.decode(errors="replace"))
    return 0 if number is None else number
