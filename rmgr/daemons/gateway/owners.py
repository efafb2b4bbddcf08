"""Owner of a submission by its number, and what its blocks must agree with: read once, from its record or from the history."""

from __future__ import annotations

import threading
from collections import OrderedDict

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.ports import Coordinator, Store
from rmgr.coord.rebuild.parts import SubmissionFacts
from rmgr.coord.validity import records as validity
from rmgr.model.tasks.submission import Submission
from rmgr.procedures.history import summary_of

_KEEP = 20_000
_TIMEOUT_S = 5.0


class Owners:
    """An `OwnerOf`. Thread-safe. A submission never changes hands, so what is known stays known; what is not is asked again.

    What only the history says is kept for numbers that were given away before one that was made here: whoever may write to the
    store may write the history of a number that is still to come.
    """

    def __init__(self, coordinator: Coordinator, store: Store) -> None:
        self._coordinator = coordinator
        self._store = store
        self._lock = threading.Lock()
        self._known: OrderedDict[int, SubmissionFacts] = OrderedDict()
        self._last_made = 0

    def __call__(self, submission: int) -> str | None:
        """Its user, None when nothing is known of it. Cost: two reads the first time. Raises: CoordinationUnavailable, StoreUnavailable."""
        facts = self.facts(submission)
        return facts.user or None if facts is not None else None

    def facts(self, submission: int) -> SubmissionFacts | None:
        """What is known of it; without a queue: it has left ZooKeeper. Cost, raises: as `__call__`."""
        with self._lock:
            facts = self._known.get(submission)
            if facts is not None:
                self._known.move_to_end(submission)
                return facts
        facts = self._read(submission)
        if facts is not None and facts.user and (facts.queue or submission < self._last_made):
            self._keep(submission, facts)
        return facts

    def made(self, record: Submission) -> None:
        """A submission has come into being here. Numbers are given away in order."""
        with self._lock:
            self._last_made = max(self._last_made, record.id)
        self._keep(record.id, SubmissionFacts.of(record))

    def _keep(self, submission: int, facts: SubmissionFacts) -> None:
        with self._lock:
            self._known[submission] = facts
            while len(self._known) > _KEEP:
                self._known.popitem(last=False)

    def _read(self, submission: int) -> SubmissionFacts | None:
        path = paths.sub(submission)
        found = self._coordinator.get(path, timeout_s=_TIMEOUT_S).result(_TIMEOUT_S + 1)
        if found is not None:
            return SubmissionFacts.of(validity.decode(found.data, Submission, path))
        kept = summary_of(self._store, submission, timeout_s=_TIMEOUT_S)
        return None if kept is None else SubmissionFacts(user=kept.user)
