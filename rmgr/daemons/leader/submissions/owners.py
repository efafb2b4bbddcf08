"""The owners of submissions: live Submitters, and users whose keys were revoked.

The name of a Submitter's entry contains its guid, its data contains its user. Guids stand in lists that everybody can read, so a guid
alone proves nothing: a gateway writes the owner into each entry that it makes.

What a user had submitted before a revocation is barred (`coord/decisions/keeping.py`): held with the reason REVOKED, or cancelled. Running
work goes on, stands still or is cancelled, as the operator said; the operator may decide otherwise later. Submissions made after the
revocation are left alone: the user works on with new credentials, and Starters refuse what the old ones sign.
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
#: Pauses before looks for running work: what may still begin when a revocation is heard has begun by the last one.
_PAUSES_S = (0.0, 1.0, 4.0)


class NoEntry(Enum):
    """What is known about a Submitter from its name alone."""

    UNREAD = auto()  #: its entry was not read yet
    UNREADABLE = auto()  #: its entry is invalid


class LivingOwners:
    """Live Submitters; the keeper is told of guids whose entries came, went, or were read.

    Cost: an entry is read once, when a submission first names its guid; entries that no submission names cost no read.
    """

    def __init__(self, keeper: SubmissionKeeper) -> None:
        self._keeper = keeper
        self._tree, self._log = keeper.context.tree, keeper.context.term.log
        self._names = self._tree.mirror.names(paths.SUBMITTERS, self._on_names)
        self._entries: dict[str, dict[str, SubmitterEntry | NoEntry]] = {}  # guid -> name -> entry
        self._gone: dict[int, float] = {}  # submission -> since when its owner is missing

    def refresh(self) -> None:
        """Reads the list again."""
        self._names.refresh()

    @property
    def is_known(self) -> bool:
        """Whether the list was read; an unread entry is believed to belong to its apparent owner."""
        return self._names.is_known

    def looks_after(self, submission: Submission) -> bool:
        """Whether the submission's owner lives. Cost: O(entries of that guid), normally one."""
        is_alive = False
        for name, entry in self._entries.get(submission.owner, {}).items():
            if entry is NoEntry.UNREAD:
                self._tree.tell(self._read(submission.owner, name), f"{paths.SUBMITTERS}/{name}")
                is_alive = True
            is_alive = is_alive or (isinstance(entry, SubmitterEntry) and is_owner(entry, submission))
        return is_alive

    def gone_since(self, submission: Submission, *, is_alive: bool) -> float | None:
        """Returns when the owner was first seen missing, None while it lives; a new leader counts anew. is_alive: from `looks_after`."""
        if is_alive or submission.phase is Phase.CLOSED:
            self.forget(submission.id)
            return None
        return self._gone.setdefault(submission.id, self._tree.clock())

    def has_gone(self, number: int) -> bool:
        """Whether the owner of a submission has been missing so long that nothing more is expected of it."""
        since_s = self._gone.get(number)
        return since_s is not None and self._tree.clock() - since_s >= GONE_S

    def forget(self, number: int) -> None:
        """Forgets a submission that is gone, or whose owner lives."""
        self._gone.pop(number, None)

    def _on_names(self) -> None:
        names = self._names.value or ()
        now: dict[str, set[str]] = {}
        for name in names:
            if guid := paths.entry_guid(name):  # an entry without guid belongs to no submission
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
                return  # it has gone, as the list will show
            try:
                entries[name] = validity.decode(found.data, SubmitterEntry, path)
            except RmgrError as error:
                self._log.warning("entry_unreadable", target=name[:100], error=error.message)
                entries[name] = NoEntry.UNREADABLE
            self._keeper.owners_changed({guid})
            return


class RevokedKeeper:
    """The work of users with revoked keys, for one leader, in its loop."""

    def __init__(self, keeper: SubmissionKeeper) -> None:
        self._keeper = keeper
        self._tree, self._log = keeper.context.tree, keeper.context.term.log
        self._followed = keeper.followed
        self._revoked = self._tree.mirror.below(paths.REVOKED, self._take)
        self._of_user: dict[str, dict[str, tuple[int, Revocation]]] = {}  #: user -> key id -> (creating transaction, revocation)

    def start(self) -> None:
        """Starts reading."""
        self._revoked.refresh()

    def bar_of(self, followed: Followed) -> Bar | None:
        """Returns what is due to a submission, None if its user lost no key since it was made. Cost: 0.2 us if the user never lost one."""
        found = self._newest_revocation(followed)
        if found is None:
            return None
        detail = f"the credentials of {found.name} were revoked" + (f": {found.reason[:200]}" if found.reason else "")
        return Bar(cancels=found.work == RevokedWork.CANCEL, detail=detail)

    def _newest_revocation(self, followed: Followed) -> Revocation | None:
        """Returns the newest revocation that concerns the submission."""
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
        """Sends the order to the nodes that run work of the user."""
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
        standing = self._newest_revocation(followed)
        return standing is not None and (standing.work == RevokedWork.HOLD) is (what is OrderKind.SUSPEND)
