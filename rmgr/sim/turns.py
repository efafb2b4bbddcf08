"""Gangs in a simulation: the rows of a matrix run in turn, one slot each; whoever is in no row of the turn stands still on its nodes.

Nodes do this by themselves: nothing is told to the scheduler, and no pass follows. A job that is in the row before and after goes on
without a break. When a row vanishes in its turn because its last job left, the next one's turn begins at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any

from rmgr.sched.job import Running
from rmgr.sched.records import Gang
from rmgr.sim.events import SlotEnds
from rmgr.sim.kernel import Kernel, Rank
from rmgr.sim.stays import Stay, Stays

_END, _NODE = int(Rank.END), int(Rank.NODE)


@dataclass(slots=True)
class _Turn:
    """Whose turn it is. serial: of its slot; an end of another slot is out of date."""

    gang: Gang
    at: int
    serial: int

    @property
    def row(self) -> frozenset[int]:
        return frozenset(self.gang.rows[self.at])


class Turns:
    """Every gang by name. Cost: of a slot O(jobs of its gang); each stretch between two stops is kept."""

    def __init__(self, stays: Stays, kernel: Kernel[Any]) -> None:
        self._stays, self._kernel = stays, kernel
        self._turns: dict[str, _Turn] = {}
        self.of: dict[int, str] = {}  #: job -> gang
        self._serials = count()

    def set(self, gang: Gang) -> None:
        """The matrix from now on; the first row's turn begins. Jobs that are still to start follow by `begin`."""
        self._put(gang, 0)

    def begin(self, run: Running) -> Stay | None:
        """A job of a gang starts in its turn; None: it is on its nodes, and waits for its turn."""
        turn = self._turns[self.of[run.job.id]]
        if run.job.id in turn.row:
            return self._stays.begin(run)
        self._stays.begin_stopped(run)
        return None

    def leave(self, number: int) -> None:
        """The job has left its nodes, and the matrix with them."""
        name = self.of.get(number)
        if name is None:
            return
        turn = self._turns[name]
        rows = [tuple(other for other in row if other != number) for row in turn.gang.rows]
        gang = turn.gang.without(number)
        if not gang.rows:
            del self._turns[name]
            del self.of[number]
        elif len(gang.rows) == len(rows):
            turn.gang = gang
            del self.of[number]
        elif rows[turn.at]:  # another row went
            turn.at = sum(bool(row) for row in rows[: turn.at])
            turn.gang = gang
            del self.of[number]
        else:
            self._put(gang, sum(bool(row) for row in rows[: turn.at]) % len(gang.rows))

    def slot_ends(self, event: SlotEnds) -> None:
        """The next row's turn begins."""
        turn = self._turns.get(event.gang)
        if turn is not None and turn.serial == event.serial and len(turn.gang.rows) > 1:
            self._put(turn.gang, (turn.at + 1) % len(turn.gang.rows))

    def _put(self, gang: Gang, at: int) -> None:
        old = self._turns.pop(gang.name, None)
        for number in old.gang.jobs if old is not None else ():
            del self.of[number]
        if not gang.rows:
            return
        now, stays = self._kernel.now_us, self._stays
        turn = self._turns[gang.name] = _Turn(gang, at, next(self._serials))
        self.of.update(dict.fromkeys(gang.jobs, gang.name))
        row = turn.row
        for number in gang.jobs:
            if number not in row and number in stays.running:
                stays.suspend(number, now)
        for number in gang.jobs:
            if number in row and number in stays.stopped:
                stay = stays.resume(number, now)
                self._kernel.put(now + stay.rest_us, _END, number, stay)
        if len(gang.rows) > 1:
            self._kernel.put(now + gang.slot_us, _NODE, -1 - turn.serial, SlotEnds(now + gang.slot_us, gang.name, turn.serial))
