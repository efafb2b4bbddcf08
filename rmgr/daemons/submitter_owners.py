"""Whose submission a number is: read once, from its record, or from the history of what has left ZooKeeper."""

from __future__ import annotations

import threading
from collections import OrderedDict

from rmgr.coord import keys, paths
from rmgr.coord.closing import decode_summary
from rmgr.coord.ports import Coordinator, Store
from rmgr.coord.records import decode_record
from rmgr.model.submission import Submission

_KEEP = 20_000
_TIMEOUT_S = 5.0


class Owners:
    """An `OwnerOf`. Thread-safe. A submission never changes hands, so what is known stays known; what is not is asked again."""

    def __init__(self, coordinator: Coordinator, store: Store) -> None:
        self._coordinator = coordinator
        self._store = store
        self._lock = threading.Lock()
        self._known: OrderedDict[int, str] = OrderedDict()

    def __call__(self, submission: int) -> str | None:
        """Its user, None when nothing is known of it. Cost: two reads the first time. Raises: CoordinationUnavailable, StoreUnavailable."""
        with self._lock:
            owner = self._known.get(submission)
            if owner is not None:
                self._known.move_to_end(submission)
                return owner
        owner = self._read(submission)
        if owner:
            with self._lock:
                self._known[submission] = owner
                while len(self._known) > _KEEP:
                    self._known.popitem(last=False)
        return owner or None

    def _read(self, submission: int) -> str:
        path = paths.sub(submission)
        found = self._coordinator.get(path, timeout_s=_TIMEOUT_S).result(_TIMEOUT_S + 1)
        if found is not None:
            return decode_record(found.data, Submission, path).user
        row = self._store.get(keys.history(submission), timeout_s=_TIMEOUT_S)
        return "" if row is None else decode_summary(row[0]).user
