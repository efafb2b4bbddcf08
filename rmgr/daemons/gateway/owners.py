"""Owner of a submission by its number: read once, from its record or from the history."""

from __future__ import annotations

import threading
from collections import OrderedDict

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.ports import Coordinator, Store
from rmgr.coord.validity import records as validity
from rmgr.model.tasks.submission import Submission
from rmgr.procedures.history import summary_of

_KEEP = 20_000
_TIMEOUT_S = 5.0


class Owners:
    """An `OwnerOf`. Thread-safe. A submission never changes hands, so what is known stays known; what is not is asked again.

    What only the history says is kept for numbers that were given away before one whose record was read: whoever may write to the
    store may write the history of a number that is still to come.
    """

    def __init__(self, coordinator: Coordinator, store: Store) -> None:
        self._coordinator = coordinator
        self._store = store
        self._lock = threading.Lock()
        self._known: OrderedDict[int, str] = OrderedDict()
        self._last_made = 0  #: numbers are given away in order

    def __call__(self, submission: int) -> str | None:
        """Its user, None when nothing is known of it. Cost: two reads the first time. Raises: CoordinationUnavailable, StoreUnavailable."""
        with self._lock:
            known = self._known.get(submission)
            if known is not None:
                self._known.move_to_end(submission)
                return known
        path = paths.sub(submission)
        found = self._coordinator.get(path, timeout_s=_TIMEOUT_S).result(_TIMEOUT_S + 1)
        if found is not None:
            user = validity.decode(found.data, Submission, path).user
        else:
            kept = summary_of(self._store, submission, timeout_s=_TIMEOUT_S)
            user = kept.user if kept is not None else ""
        with self._lock:
            if found is not None:
                self._last_made = max(self._last_made, submission)
            if user and submission <= self._last_made:
                self._known[submission] = user
                while len(self._known) > _KEEP:
                    self._known.popitem(last=False)
        return user or None
