"""Living Submitters, and the submissions that each looks after: its entry's name says its guid, its data its user.

Guids stand in lists that everybody reads, so a guid alone proves nothing: a gateway writes into each entry that it makes whose it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from rmgr.coord import validity
from rmgr.coord.decisions.keeping import GONE_S
from rmgr.coord.ops.membership import is_owner
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.daemons.leader.core.doors import LeaderReads
from rmgr.daemons.leader.core.watched_cache import names_below
from rmgr.errors import RmgrError
from rmgr.model.cluster.node import SubmitterEntry
from rmgr.model.tasks.submission import Phase, Submission
from rmgr.runtime.logger import Log

_RETRY_S = 1.0


class LivingOwners:
    """Args: changed: called with guids whose entries have come, gone, or were read.

    Cost: an entry is read once, when a submission names its guid first: whoever makes others makes nobody read them.
    """

    def __init__(self, tree: LeaderReads, log: Log, changed: Callable[[Collection[str]], None]) -> None:
        self._tree = tree
        self._log = log
        self._changed = changed
        self._names = names_below(tree, paths.SUBMITTERS, self._listed)
        self._reading: set[str] = set()
        #: guid -> name -> its record; None: not read yet; False: what stands there is no entry
        self._entries: dict[str, dict[str, SubmitterEntry | bool | None]] = {}
        self._gone: dict[int, float] = {}  # submission -> since when its owner is missing

    def refresh(self) -> None:
        """Reads the list again."""
        self._names.refresh()

    @property
    def is_known(self) -> bool:
        """The list was read; of entries in it that were not read it is believed that they are whose they seem to be."""
        return self._names.is_known

    def looks_after(self, submission: Submission) -> bool:
        """Its owner lives. Cost: O(entries of that guid), which are one."""
        is_alive = False
        for name, entry in self._entries.get(submission.owner, {}).items():
            if entry is None and name not in self._reading:
                self._reading.add(name)
                self._read(submission.owner, name)
            is_alive = is_alive or entry is None or (isinstance(entry, SubmitterEntry) and is_owner(entry, submission))
        return is_alive

    def gone_since(self, submission: Submission, *, is_alive: bool) -> float | None:
        """When its owner was first seen missing, None while it lives; a new leader counts anew. is_alive: as `looks_after` says."""
        if is_alive or submission.phase is Phase.CLOSED:
            self.forget(submission.id)
            return None
        return self._gone.setdefault(submission.id, self._tree.clock())

    def has_gone(self, number: int) -> bool:
        """The owner of a submission has been missing for so long that nothing is expected of it any more."""
        since_s = self._gone.get(number)
        return since_s is not None and self._tree.clock() - since_s >= GONE_S

    def forget(self, number: int) -> None:
        """There is no such submission any more, or its owner lives."""
        self._gone.pop(number, None)

    def _listed(self) -> None:
        names = self._names.value or ()
        now: dict[str, set[str]] = {}
        for name in names:
            if guid := paths.entry_guid(name):  # else it is nobody's, and no submission names it
                now.setdefault(guid, set()).add(name)
        changed: set[str] = set()
        for guid in [guid for guid, entries in self._entries.items() if not entries.keys() <= now.get(guid, set())]:
            changed.add(guid)
            kept = {name: entry for name, entry in self._entries[guid].items() if name in now.get(guid, set())}
            if kept:
                self._entries[guid] = kept
            else:
                del self._entries[guid]
        for guid, some in now.items():
            entries = self._entries.setdefault(guid, {})
            for name in sorted(some - entries.keys()):
                changed.add(guid)
                entries[name] = None
        if changed:
            self._changed(changed)

    def _read(self, guid: str, name: str) -> None:
        if name not in self._entries.get(guid, {}):
            self._reading.discard(name)
        else:
            again = partial(self._tree.after, _RETRY_S, partial(self._read, guid, name))
            self._tree.get(f"{paths.SUBMITTERS}/{name}", partial(self._found, guid, name), failed=again)

    def _found(self, guid: str, name: str, found: Stamped | None) -> None:
        entries = self._entries.get(guid, {})
        self._reading.discard(name)
        if name not in entries or found is None:
            return  # it has gone, as the list will tell
        try:
            entries[name] = validity.decode(found.data, SubmitterEntry, f"{paths.SUBMITTERS}/{name}")
        except RmgrError as error:
            self._log.warning("entry_unreadable", target=name[:100], error=error.message)
            entries[name] = False
        self._changed({guid})
