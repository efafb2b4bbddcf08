"""Access lists in ZooKeeper's form: the rights of `coord/protocol/acl.py` expressed in digest ids, encoded once per place.

While secrets are being rotated, `/acl` publishes the new digest ids, and the lists of new znodes include them (`PublishedLists`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeAlias

from rmgr.adapters.zookeeper.wire import OPEN_ACL, Acl, encode_acl
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.acl import ROLES, TABLE, Right, place_of, rights
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.ports import SessionState
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import RmgrError
from rmgr.model.identity import AclRecord, Role

if TYPE_CHECKING:
    from rmgr.adapters.zookeeper.session import SessionCoordinator

#: The znodes above a cluster's chroot are shared with other clusters: anybody may create siblings there, and do nothing else.
_ABOVE = Acl(perms=int(Right.READ | Right.CREATE))


class OneList:
    """The same list for every znode: an open cluster, or a test."""

    def __init__(self, entries: tuple[Acl, ...]) -> None:
        self._entries = entries
        self._bytes = encode_acl(entries)
        self.above = entries if entries == OPEN_ACL else (_ABOVE, *entries)

    def entries(self, _path: str) -> tuple[Acl, ...]:
        """Returns the list, whatever the path."""
        return self._entries

    def encoded(self, _path: str) -> bytes:
        """Returns the list encoded for the wire."""
        return self._bytes


class RoleLists:
    """Lists that depend on the place of a znode, after the table of `coord/protocol/acl.py`.

    Args:
        ids: role -> its digest ids (`role:base64(sha1(role:secret))`); two while a secret is being rotated.
    """

    def __init__(self, ids: Mapping[str, Sequence[str]]) -> None:
        self.ids = {role: tuple(ids.get(role, ())) for role in ROLES}
        self.above = (_ABOVE, *self.entries("/"))
        self._bytes = {place: encode_acl(self.entries(place)) for place in TABLE}
        self._else = encode_acl(self.entries("/~"))

    def encoded(self, path: str) -> bytes:
        """Returns the list of the znode at `path`, encoded for the wire. Cost: 1 us."""
        return self._bytes.get(place_of(path), self._else)

    def entries(self, path: str) -> tuple[Acl, ...]:
        """Returns the list of the znode at `path`."""
        line = rights(path)
        return tuple(
            Acl(perms=int(line[role]), scheme="digest", id=digest_id)
            for role in ROLES
            if line.get(role, Right.NONE)
            for digest_id in self.ids[role]
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RoleLists) and other.ids == self.ids

    def __hash__(self) -> int:
        return hash(tuple(self.ids.items()))


#: Access lists of new znodes. Paths are relative to the chroot; `above` is the list of the znodes above it.
AccessLists: TypeAlias = OneList | RoleLists


def lists_of(acl: tuple[Acl, ...] | AccessLists) -> AccessLists:
    """Returns `acl` as access lists: a tuple becomes one list for every znode."""
    return OneList(acl) if isinstance(acl, tuple) else acl


def role_of(acl: Acl, ids: Mapping[Role, Sequence[str]]) -> str:
    """Returns whom an entry admits, for people: a role, `anybody`, or `scheme:id`."""
    if acl.scheme == "world":
        return "anybody"
    return next((role.value for role, known in ids.items() if acl.id in known), f"{acl.scheme}:{acl.id.partition(':')[0]}")


# -- rotation ------------------------------------------------------------------------------------------------------------------


_LOG = logging.getLogger("rmgr.zookeeper")


class PublishedLists:
    """Keeps `coordinator.lists` equal to the lists published last; `own` (the bundle's) applies to roles that were never rotated."""

    def __init__(self, coordinator: SessionCoordinator, own: RoleLists) -> None:
        self._coordinator = coordinator
        self._own = {role.value: ids for role, ids in own.ids.items()}
        coordinator.listen(self._on_state)

    def _on_state(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._read()

    def _read(self) -> None:
        self._coordinator.get(paths.ACL, watch=self._read).add_done_callback(self._adopt)

    def _adopt(self, answer: Future[Stamped | None]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            return  # read again after the reconnection; without rights nothing else works here either
        found = answer.result()
        if found is None:
            return
        try:
            record = decode_record(found.data, AclRecord, paths.ACL)
        except RmgrError as unreadable:
            _LOG.error("acl_unreadable: %s", unreadable.message)
            return
        self._coordinator.lists = RoleLists({**self._own, **record.roles})
