"""Follows `/acl`: while secrets are being rotated, the access lists of new znodes name the new credentials, too."""

from __future__ import annotations

import logging
from concurrent.futures import Future

from rmgr.adapters.zookeeper.acl import RoleLists
from rmgr.adapters.zookeeper.session import SessionCoordinator
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.ports import SessionState
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import RmgrError
from rmgr.model.cluster.joining import AclRecord

_LOG = logging.getLogger("rmgr.zookeeper")


class PublishedLists:
    """Keeps `coordinator.lists` at what was published last; `own` is what the bundle says, for roles that nobody has rotated."""

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
