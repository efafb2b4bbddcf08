"""Cancels, holds or keeps the work of users whose keys were revoked, as the revocation itself says.

What a user had submitted before is barred (`coord/decisions/keeping.py`): held with the reason REVOKED, or cancelled. What runs goes on,
stands still or is cancelled, as the operator has said; he may say something else later. Submissions that were made after the
revocation are not looked at: with new credentials the same user works on, and what the old ones sign Starters refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from rmgr.coord.decisions.keeping import Bar
from rmgr.coord.ops.leader import order
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.records import decode_record
from rmgr.daemons.leader.core.doors import LeaderCommits
from rmgr.daemons.leader.core.watched_cache import WatchedCache, data_of, names_below
from rmgr.errors import WrongCluster
from rmgr.model.base.states import Reason
from rmgr.model.cluster.identity import Revocation, RevokedWork, Role
from rmgr.model.cluster.node import InboxOrder, OrderKind
from rmgr.model.tasks.submission import Phase, Submission
from rmgr.runtime.logger import Log

#: What may still begin when a revocation is heard has begun by then: what runs is looked at again after these times.
_AGAIN_S = (0.0, 1.0, 5.0)


class BarredSubmission(Protocol):
    """A submission whose user's key may have been revoked. made: the transaction that created its record."""

    submission: Submission | None
    made: int

    @property
    def is_loaded(self) -> bool: ...


class RevokedKeeper:
    """Revoked users' work of one leader, in its loop.

    Args:
        followed: all submissions by number. mark: asks soon what a submission needs. nodes: names of all nodes.
    """

    def __init__(
        self,
        tree: LeaderCommits,
        log: Log,
        followed: Mapping[int, BarredSubmission],
        mark: Callable[[int], None],
        nodes: Callable[[], list[str]],
    ) -> None:
        self._tree = tree
        self._log = log
        self._followed = followed
        self._mark = mark
        self._nodes = nodes
        self._names = names_below(tree, paths.REVOKED, self._on_names)
        self._caches: dict[str, WatchedCache[Stamped]] = {}
        self._of_user: dict[str, dict[str, tuple[int, Revocation]]] = {}  #: user -> key id -> (made by transaction, revocation)

    def start(self) -> None:
        """Begins to read."""
        self._names.refresh()

    def resync(self) -> None:
        """Reads again, watches or not."""
        self._names.refresh()
        for cache in self._caches.values():
            cache.refresh()

    def bar_of(self, followed: BarredSubmission) -> Bar | None:
        """What is asked of a submission, None: its user has lost no key since it was made. Cost: 0.2 us where he has lost none ever."""
        found = self._standing(followed)
        if found is None:
            return None
        detail = f"the credentials of {found.name} were revoked" + (f": {found.reason[:200]}" if found.reason else "")
        return Bar(cancels=found.work == RevokedWork.CANCEL, detail=detail)

    def _standing(self, followed: BarredSubmission) -> Revocation | None:
        """The newest revocation that concerns it."""
        submission = followed.submission
        known = self._of_user.get(submission.user) if submission is not None else None
        if known is None:
            return None
        return max(((made, one) for made, one in known.values() if followed.made < made), key=lambda item: item[0], default=(0, None))[1]

    def _on_names(self) -> None:
        for name in self._names.value or ():
            if name not in self._caches:
                cache = self._caches[name] = data_of(self._tree, paths.revoked(name), partial(self._on_record, name))
                cache.refresh()

    def _on_record(self, name: str) -> None:
        found = self._caches[name].value
        if found is None:
            return
        try:
            record = decode_record(found.data, Revocation, paths.revoked(name))
        except WrongCluster as error:
            self._log.error("revocation_unreadable", target=name, error=error.message)
            return
        if record.role not in (Role.USER, Role.OPERATOR) or record.others:
            self._caches[name].is_watched = False
            return
        self._of_user.setdefault(record.name, {})[name] = found.stat.czxid, record
        for number, followed in self._followed.items():
            if followed.submission is not None and followed.submission.user == record.name and followed.is_loaded:
                self._mark(number)
        if record.work == RevokedWork.HOLD:
            self._stand(record.name, OrderKind.SUSPEND)
        elif record.work == RevokedWork.KEEP and record.before == RevokedWork.HOLD:
            self._stand(record.name, OrderKind.RESUME)

    # -- what runs

    def _stand(self, user: str, what: OrderKind) -> None:
        for delay_s in _AGAIN_S if what is OrderKind.SUSPEND else _AGAIN_S[:1]:
            self._tree.after(delay_s, partial(self._look, user, what))

    def _look(self, user: str, what: OrderKind) -> None:
        for node in self._nodes():
            self._tree.children(paths.running_node(node), partial(self._on_running, user, what, node))

    def _on_running(self, user: str, what: OrderKind, node: str, names: list[str] | None) -> None:
        for number in sorted({key.submission for _, key in paths.blocks_in(names)}):
            followed = self._followed.get(number)
            submission = followed.submission if followed is not None else None
            if followed is None or submission is None or submission.user != user or submission.phase in (Phase.CANCELLED, Phase.CLOSED):
                continue
            standing = self._standing(followed)
            if standing is not None and (standing.work == RevokedWork.HOLD) is (what is OrderKind.SUSPEND):
                told = InboxOrder(order=what, submission=number, reason=Reason.REVOKED, detail=f"the credentials of {user} were revoked")
                self._tree.commit(order(node, f"{what}-{number}", told))
