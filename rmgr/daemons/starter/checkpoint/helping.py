"""The part of a checkpoint that lies on this node while the job's script runs on another one: asked for by its Starter, by steps."""

from __future__ import annotations

import contextlib
from pathlib import Path

from rmgr.coord.protocol.ports import Store
from rmgr.daemons.starter.checkpoint.ask import children_of
from rmgr.daemons.starter.checkpoint.parts import LocalPart
from rmgr.daemons.starter.checkpoint.seal import Seals
from rmgr.daemons.starter.execution.holds import CHECKPOINTS, HeldParts
from rmgr.daemons.starter.staging.charged import Charges, charged
from rmgr.runner.ranks import ranks


class HelperParts:
    """Parts of checkpoints that one node helps with. Owner's thread only."""

    def __init__(self, holds: HeldParts, store: Store, node: str, seals: Seals, charges: Charges) -> None:
        self._charges = charges
        self._seals = seals
        self._holds = holds
        self._store = store
        self._node = node
        self._parts: dict[Path, LocalPart] = {}

    def get(self, name: str, *, resume: bool) -> LocalPart | None:
        """That of a hold, None when it has no cores here (any more). resume: its processes go on, should they stand still."""
        hold = self._holds.get(name)
        if hold is None or hold.place is None or hold.lane is None:
            return None
        if resume:
            self._holds.suspend(name, resume=True)
        places = {other.place for other in self._holds if other.place is not None}
        self._parts = {place: part for place, part in self._parts.items() if place in places}
        part = self._parts.get(hold.place)
        if part is None:
            part = self._parts[hold.place] = LocalPart(
                node=self._node,
                directory=hold.place / CHECKPOINTS,
                account=hold.info.account if hold.info is not None else None,
                store=charged(self._store, self._charges(hold.info.record.user if hold.info is not None else "")),
                sub=hold.submission,
                index=hold.index,
                attempt=hold.attempt,
                ends=True,
                seals=self._seals,
            )
        slot = hold.lane.slot
        part.marker, part.spare = slot.marker, (slot.pid, *_servers(slot.pid, hold.place))
        return part


def _servers(spawner: int, place: Path) -> list[int]:
    """The program that starts the ranks of a hold."""
    found = []
    wanted = [ranks.__file__.encode(), str(place).encode()]
    for pid in children_of(spawner):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[-3:-1] == wanted:
                found.append(pid)
    return found
