"""What became of the tasks behind pointers, asked of whoever answers; final states are remembered."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable

from rmgr.coord.protocol.keys import Pointer
from rmgr.errors import PermissionDenied
from rmgr.model.base.states import State
from rmgr.submitter.questions import MOST_POINTERS, Asks, FateRead, ReadFates

#: Tasks that are remembered.
_KEEP = 20_000


class AskedFates:
    """A `procedures.fates.FatesPort`. Thread-safe."""

    def __init__(self, asks: Asks) -> None:
        self._asks = asks
        self._known: OrderedDict[Pointer, FateRead] = OrderedDict()
        self._lock = threading.Lock()

    def fate(self, pointer: Pointer, timeout: float) -> State | str:
        """See `FatesPort`."""
        (found,) = self.fates([pointer], timeout)
        if found == "denied":
            told = f"it is not yours to know what became of task {pointer.sub}_{pointer.index}"
            raise PermissionDenied(told, hint="its owner or an operator may do that: ask an operator")
        return found

    def fates(self, pointers: Iterable[Pointer], timeout: float) -> list[State | str]:
        """See `FatesPort`. Cost: a question for each 1,000 that were not known to have ended."""
        wanted = list(pointers)
        with self._lock:
            missing = [pointer for pointer in dict.fromkeys(wanted) if pointer not in self._known]
        found: dict[Pointer, FateRead] = {}
        for at in range(0, len(missing), MOST_POINTERS):
            some = tuple(missing[at : at + MOST_POINTERS])
            told = self._asks.ask(ReadFates(pointers=some), timeout_s=timeout)
            found |= dict(zip(some, told, strict=True))
        with self._lock:
            answers = [_state(found.get(pointer) or self._known[pointer]) for pointer in wanted]
            self._known.update((pointer, read) for pointer, read in found.items() if isinstance(_state(read), State))
            while len(self._known) > _KEEP:
                self._known.popitem(last=False)
        return answers

    def attempt(self, pointer: Pointer) -> int:
        """See `FatesPort`."""
        with self._lock:
            known = self._known.get(pointer)
        return known.attempt if known is not None else 1


def _state(read: FateRead) -> State | str:
    return State(read.fate) if read.fate in State.__members__.values() else read.fate
