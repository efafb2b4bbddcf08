"""Nonces of submissions, as a Starter needs them: whether what was signed is for that number, and goes on (`coord/nonces.py`).

The znode of a nonce is read once, as soon as the record is known that names it, and watched. As long as the watch has not fired it is
as new as anything that has been read since on the same connection: ZooKeeper tells of a change before it answers with what came
after it. So a submission costs one reading and one watch, which its end fires.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.ports import Coordinator
from rmgr.errors import PermissionDenied, RmgrError

#: Nonces kept, as many as records.
_KEEP = 4096


@dataclass(slots=True, eq=False)
class Nonce:
    """What stands for one. is_known: the watch stands; the thread of the connection takes it away when the watch fires."""

    path: str
    found: Stamped | None = None
    is_known: bool = False
    is_asking: bool = False
    has_fired: bool = False

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
        return nonce

    def has_ended(self, path: str) -> bool:
        """It is known that the submission has ended; where that may have changed, it is looked at again."""
        nonce = self._nonces.get(path)
        if nonce is not None and nonce.has_fired:
            self.ask(path)
        return nonce is not None and nonce.has_ended

    def ask(self, path: str) -> None:
        """Reads it, unless it is known or on its way; `wake` follows. After the record was read that names it."""
        if self.look(path) is None:
            nonce = self._nonces.setdefault(path, Nonce(path))
            self._nonces.move_to_end(path)
            self._read(nonce)
            while len(self._nonces) > _KEEP:
                self._nonces.popitem(last=False)

    # -- inside

    def _read(self, nonce: Nonce) -> None:
        if nonce.is_asking:
            return
        nonce.is_asking, nonce.is_known, nonce.has_fired = True, False, False
        asked = self._coordinator.get(nonce.path, watch=partial(self._fired, nonce))
        asked.add_done_callback(lambda done: self._post(partial(self._arrived, nonce, done)))

    def _fired(self, nonce: Nonce) -> None:
        """On the thread of the connection: from here on nothing is believed of it but that it has ended. Most often that is what it has."""
        nonce.has_fired = True
        self._post(self._changed)

    def _changed(self) -> None:
        """Who still has something of it asks (`has_ended`): most often nobody has, and nothing is read."""
        self.generation += 1

    def _arrived(self, nonce: Nonce, done: Future[Stamped | None]) -> None:
        nonce.is_asking = False
        try:
            found = done.result(0)
        except PermissionDenied:
            found = None  # who has made it keeps it from nodes: it lets nothing run
        except (RmgrError, TimeoutError):
            return  # asked again at the next use
        before, nonce.found, nonce.is_known = nonce.found, found, True
        if before is not None and before != found:
            self.generation += 1
        self._wake()
