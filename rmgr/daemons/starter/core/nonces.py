"""Nonces of submissions, as a Starter needs them: whether what was signed is for that number, and goes on (`coord/seal/nonces.py`).

The znode of a nonce is read once, as soon as the record is known that names it, and watched. As long as the watch has not fired it is
as new as anything that has been read since on the same connection: ZooKeeper tells of a change before it answers with what came
after it. So a submission costs one reading and one watch, which its end fires.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.ports import Coordinator
from rmgr.errors import RmgrError
from rmgr.runtime import machine

#: Nonces kept, as many as records.
_KEEP = 4096
#: What was asked for this lately is read again as soon as it changes (s): longer than what was claimed waits for its turn.
_LATELY_S = 60.0


@dataclass(slots=True, eq=False)
class Nonce:
    """What stands for one. is_known: the watch stands; the thread of the connection takes it away when the watch fires."""

    path: str
    found: Stamped | None = None
    is_known: bool = False
    is_asking: bool = False
    has_fired: bool = False
    used_s: float = -math.inf  #: when it was asked for last

    @property
    def has_ended(self) -> bool:
        """Its submission was seen to have ended: that never changes."""
        return self.found is not None and self.found.version > 0


class Nonces:
    """Nonces of one Starter; the owner's thread, but for the watches.

    Args: post: puts a call into the owner's mailbox. wake: tells the owner that something came.
    Attributes: generation: counts the changes of what is known.
    """

    def __init__(self, coordinator: Coordinator, *, post: Callable[[Callable[[], None]], None], wake: Callable[[], None]) -> None:
        self.generation = 0
        self._coordinator = coordinator
        self._post = post
        self._wake = wake
        self._nonces: OrderedDict[str, Nonce] = OrderedDict()

    def look(self, path: str) -> Nonce | None:
        """What stands there, no older than anything that was read before; None: `ask`. Cost: 1 us."""
        nonce = self._nonces.get(path)
        if nonce is None or not (nonce.has_ended or (nonce.is_known and not nonce.has_fired)):
            return None
        nonce.used_s = machine.monotonic()
        return nonce

    def last(self, path: str) -> Nonce | None:
        """What was seen there last, if anything was."""
        return self._nonces.get(path)

    def ask(self, path: str) -> None:
        """Reads it, unless it is known or on its way; `wake` follows. After the record was read that names it."""
        if self.look(path) is None:
            nonce = self._nonces.setdefault(path, Nonce(path))
            self._nonces.move_to_end(path)
            nonce.used_s = machine.monotonic()
            self._read(nonce)
            while len(self._nonces) > _KEEP:
                self._nonces.popitem(last=False)

    # -- inside

    def _read(self, nonce: Nonce, *, is_watched: bool = True) -> None:
        if nonce.is_asking:
            return
        nonce.is_asking, nonce.is_known = True, False
        if is_watched:
            nonce.has_fired = False
        asked = self._coordinator.get(nonce.path, watch=partial(self._fired, nonce) if is_watched else None)
        asked.add_done_callback(lambda done: self._post(partial(self._arrived, nonce, is_watched, done)))

    def _fired(self, nonce: Nonce) -> None:
        """On the thread of the connection: from here on nothing is believed of it but that it has ended."""
        nonce.has_fired = True
        self._post(partial(self._changed, nonce))

    def _changed(self, nonce: Nonce) -> None:
        """Most often that was its end, after which no watch is left behind."""
        is_kept = self._nonces.get(nonce.path) is nonce
        if is_kept and nonce.has_fired and not nonce.has_ended and machine.monotonic() - nonce.used_s < _LATELY_S:
            self._read(nonce, is_watched=False)

    def _arrived(self, nonce: Nonce, is_watched: bool, done: Future[Stamped | None]) -> None:
        nonce.is_asking = False
        try:
            found = done.result(0)
        except (RmgrError, TimeoutError):
            return  # asked again at the next use
        before, nonce.found, nonce.is_known = nonce.found, found, is_watched
        if before is not None and before != found:
            self.generation += 1
        if nonce.has_ended:
            self._wake()
        elif not is_watched:  # the connection was lost
            self._read(nonce)
        else:
            if nonce.has_fired:
                self._changed(nonce)
            self._wake()
