"""Who stands behind submissions: Submitters that live, and users whose keys were revoked.

A Submitter's entry says by its name its guid, by its data its user. Guids stand in lists that everybody reads, so a guid alone proves
nothing: a gateway writes into each entry that it makes whose it is.

What a user had submitted before a revocation is barred (`coord/decisions/keeping.py`): held with the reason REVOKED, or cancelled. What
runs goes on, stands still or is cancelled, as the operator has said; he may say something else later. Submissions that were made after the
revocation are not looked at: with new credentials the same user works on, and what the old ones sign Starters refuse.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from rmgr.coord import validity
from rmgr.coord.decisions.keeping import GONE_S, Bar
from rmgr.coord.ops.membership import is_owner
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import RmgrError, WrongCluster
from rmgr.model.base.states import Reason
from rmgr.model.cluster.identity import Revocation, RevokedWork, Role
from rmgr.model.cluster.node import InboxOrder, OrderKind, SubmitterEntry
from rmgr.model.tasks.submission import Phase, Submission
from rmgr.runtime.story import Pause, Story

if TYPE_CHECKING:
    from rmgr.daemons.leader.submissions.follow import Followed
    from rmgr.daemons.leader.submissions.subs import SubmissionKeeper

_RETRY_S = 1.0
#: What may still begin when a revocation is heard has begun by then: what runs is looked at again after these pauses.
_PAUSES_S = (0.0, 1.0, 4.0)


class NoEntry(Enum):
    """What is known of a Submitter by its name alone."""

    UNREAD = auto()  #: its entry was not read yet
    UNREADABLE = auto()  #: what stands there is none


class LivingOwners:
    """The keeper is told of guids whose entries have come, gone, or were read.

    Cost: an entry is read once, when a submission names its guid first: whoever makes others makes nobody read them.
    """

    def __init__(self, keeper: SubmissionKeeper) -> None:
        self._keeper = keeper
        self._tree, self._log = keeper.context.tree, keeper.context.term.log
        self._names = self._tree.mirror.names(paths.SUBMITTERS, self._listed)
        self._entries: dict[str, dict[str, SubmitterEntry | NoEntry]] = {}  # guid -> name -> what stands there
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
            if entry is NoEntry.UNREAD:
                self._tree.tell(self._read(submission.owner, name), f"{paths.SUBMITTERS}/{name}")
                is_alive = True
            is_alive = is_alive or (isinstance(entry, SubmitterEntry) and is_owner(entry, submission))
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
                entries[name] = NoEntry.UNREAD
        if changed:
            self._keeper.owners_changed(changed)

    def _read(self, guid: str, name: str) -> Story[None]:
        path = f"{paths.SUBMITTERS}/{name}"
        while name in self._entries.get(guid, {}):
            try:
                found = yield self._tree.get(path)
            except RmgrError:
                yield Pause(_RETRY_S)
                continue
            entries = self._entries.get(guid, {})
            if name not in entries or found is None:
                return  # it has gone, as the list will tell
            try:
                entries[name] = validity.decode(found.data, SubmitterEntry, path)
            except RmgrError as error:
                self._log.warning("entry_unreadable", target=name[:100], error=error.message)
                entries[name] = NoEntry.UNREADABLE
            self._keeper.owners_changed({guid})
            return


class RevokedKeeper:
    """Revoked users' work of one leader, in its loop."""

    def __init__(self, keeper: SubmissionKeeper) -> None:
        self._keeper = keeper
        self._tree, self._log = keeper.context.tree, keeper.context.term.log
        self._followed = keeper.followed
        self._revoked = self._tree.mirror.below(paths.REVOKED, self._take)
        self._of_user: dict[str, dict[str, tuple[int, Revocation]]] = {}  #: user -> key id -> (made by transaction, revocation)

    def start(self) -> None:
        """Begins to read."""
        self._revoked.refresh()

    def bar_of(self, followed: Followed) -> Bar | None:
        """What is asked of a submission, None: its user has lost no key since it was made. Cost: 0.2 us where he has lost none ever."""
        found = self._standing(followed)
        if found is None:
            return None
        detail = f"the credentials of {found.name} were revoked" + (f": {found.reason[:200]}" if found.reason else "")
        return Bar(cancels=found.work == RevokedWork.CANCEL, detail=detail)

    def _standing(self, followed: Followed) -> Revocation | None:
        """The newest revocation that concerns it."""
        submission = followed.submission
        known = self._of_user.get(submission.user) if submission is not None else None
        if known is None:
            return None
        return max(((made, one) for made, one in known.values() if followed.made < made), key=lambda item: item[0], default=(0, None))[1]

    def _take(self, name: str) -> None:
        found = self._revoked.values.get(name)
        if found is None:
            return
        try:
            record = decode_record(found.data, Revocation, paths.revoked(name))
        except WrongCluster as error:
            self._log.error("revocation_unreadable", target=name, error=error.message)
            return
        if record.role not in (Role.USER, Role.OPERATOR) or record.others:
            return
        self._of_user.setdefault(record.name, {})[name] = found.stat.czxid, record
        for number, followed in self._followed.items():
            if followed.submission is not None and followed.submission.user == record.name and followed.is_loaded:
                self._keeper.mark(number)
        if record.work == RevokedWork.HOLD:
            self._tree.tell(self._order(record.name, OrderKind.SUSPEND), f"work of {record.name} that is to stand", key=object())
        elif record.work == RevokedWork.KEEP and record.before == RevokedWork.HOLD:
            self._tree.tell(self._order(record.name, OrderKind.RESUME), f"work of {record.name} that is to go on", key=object())

    def _order(self, user: str, what: OrderKind) -> Story[None]:
        """To the nodes that run something of the user."""
        detail = f"the credentials of {user} were revoked"

        def order_of(number: int) -> tuple[str, InboxOrder] | None:
            order = InboxOrder(order=what, submission=number, reason=Reason.REVOKED, detail=detail)
            return (f"{what}-{number}", order) if self._is_meant(number, user, what) else None

        for pause_s in _PAUSES_S if what is OrderKind.SUSPEND else _PAUSES_S[:1]:
            yield Pause(pause_s)
            yield from self._keeper.order_runners(order_of, insists=True)

    def _is_meant(self, number: int, user: str, what: OrderKind) -> bool:
        followed = self._followed.get(number)
        submission = followed.submission if followed is not None else None
        if followed is None or submission is None or submission.user != user or submission.phase in (Phase.CANCELLED, Phase.CLOSED):
            return False
        standing = self._standing(followed)
        return standing is not None and (standing.work == RevokedWork.HOLD) is (what is OrderKind.SUSPEND)
