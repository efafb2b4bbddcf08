"""Proves which leader put a job on a node: leaders seal what they place, Starters and later leaders look at the seal.

Whoever leads seals with its own key, and whoever led before is believed as long as its key counted when it was committed: a fail-over
changes nothing. An open cluster seals nothing and believes everything.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rmgr.coord.seal.placing import placing_statement, seal_placings
from rmgr.coord.seal.tree import NotSealed, opened
from rmgr.model.cluster.identity import Role
from rmgr.model.tasks.placing import Allocation, PlacingSeal
from rmgr.runtime import machine

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.adapters.identity.trust import Trust
    from rmgr.model.cluster.node import Meta

#: Signatures that were verified already: several jobs share one.
_KEEP = 1024
#: Why a placing is not taken that was.
AGAIN = "that placing has begun here before"
#: Placings of one node that are remembered as begun; those before them count as begun.
_BEGUN = 4096


class Placings:
    """Seals what a daemon places, and checks what was placed; with nothing given, as in an open cluster. Owner's thread only."""

    def __init__(self, credentials: Credentials | None = None, trust: Trust | None = None, *, cluster_id: str = "") -> None:
        self._credentials = credentials
        self._trust = trust
        self._cluster_id = cluster_id
        self._serial = 0
        self._verified: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()  #: (key, its signature) -> of what

    def seal(self, jobs: Sequence[tuple[str, Allocation, int]], *, epoch: int) -> list[Allocation]:
        """Allocations as they are to be written. jobs: (name of its block, allocation, incarnation of its head), in order."""
        mine = self._credentials
        if mine is None or not jobs:
            return [allocation for _, allocation, _ in jobs]
        first, self._serial = self._serial + 1, self._serial + len(jobs)
        return seal_placings(
            jobs, cluster_id=self._cluster_id, key_id=mine.identity.key_id, epoch=epoch, serial=first, sign=mine.sign
        )

    def look(self, node: str, name: str, allocation: Allocation, *, zxid: int) -> str | None:
        """"" when a leader has put that block on that node, else why that is not so; None: the answer is on its way. Never waits.

        Args: zxid: transaction that made the block.
        Cost: 0.1 ms once a signature, 10 us a job.
        """
        seal = allocation.seal
        if self._trust is None:
            return ""
        if seal is None:
            return "no leader has placed it: nobody signed its allocation"
        if not allocation.shares or allocation.head != node:
            return f"it was placed on {allocation.head if allocation.shares else 'no node'}"
        signer = self._trust.look(seal.key_id, at_s=machine.wall_s(), zxid=zxid)
        if signer is None or isinstance(signer, str):
            return signer
        who = signer.identity
        if who.role is not Role.WATCHDOG:
            return f"its allocation was signed by {who.role} {who.name}, and only leaders place jobs"
        try:
            signature, signed = opened(seal.signature, placing_statement(name, allocation, cluster_id=self._cluster_id))
        except NotSealed as error:
            return str(error)
        if self._verified.get((seal.key_id, signature)) != signed:
            if not signer.verify(signature, signed):
                return f"its allocation is not what WatchDog {who.name} has signed"
            self._verified[seal.key_id, signature] = signed
            while len(self._verified) > _KEEP:
                self._verified.popitem(last=False)
        return ""


class Begun:
    """Placings that one incarnation of a node has taken: each is taken once, whoever writes its block there again.

    A leader numbers what it places and each comes to the node in that order, give or take what is read late; so the last ones are
    remembered, and those before them count as taken. One that would wait as long as `_BEGUN` others is placed again. Cost: 100 bytes each.
    """

    def __init__(self) -> None:
        self._taken: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._before = (-1, -1)

    def take(self, seal: PlacingSeal | None) -> str:
        """"" once, then why it is not taken again. What has no seal is always taken."""
        if seal is None:
            return ""
        number = (seal.epoch, seal.serial)
        if number in self._taken:
            return AGAIN
        if number <= self._before:
            return f"{_BEGUN} jobs that were placed after it have begun: it is placed again"
        self._taken[number] = None
        if len(self._taken) > _BEGUN:
            first, _ = self._taken.popitem(last=False)
            self._before = max(self._before, first)
        return ""


def placings_of(credentials: Credentials | None, trust: Trust | None, meta: Meta) -> Placings:
    """How a daemon of this cluster seals and believes placings."""
    return Placings(credentials, trust, cluster_id=meta.cluster_id)
