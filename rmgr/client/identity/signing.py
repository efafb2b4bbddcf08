"""Signs the work of a user before it leaves the user's process (secured clusters; `coord/seal/work.py` says what is signed)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.seal.work import record_statement, seal_blocks, spec_digest
from rmgr.errors import PermissionDenied
from rmgr.model.tasks.block import BlockData, BlockKey
from rmgr.model.tasks.submission import Submission
from rmgr.runtime import machine

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials

Block = tuple[BlockKey, BlockData]


#: Seals blocks of one submission that are committed together.
Seal = Callable[[Sequence[Block]], list[Block]]


class Signer:
    """One user's signature. Thread-safe.

    Args:
        cluster_id: of the cluster's tree; what is signed for it is worth nothing in another one.
        ttl_s: how long signed work may wait.
    Raises: PermissionDenied when the bundle is not a person's.
    """

    def __init__(self, credentials: Credentials, cluster_id: str, *, ttl_s: float) -> None:
        self._credentials = credentials
        self._cluster_id = cluster_id
        self._ttl_s = ttl_s
        self._published = False
        self._lock = threading.Lock()

    @property
    def user(self) -> str:
        """In whose name."""
        return self._credentials.identity.name

    def publish(self, coordinator: Coordinator, *, timeout_s: float = 10.0) -> None:
        """The user's certificate is there for those who verify; once a process.

        Raises: CoordinationUnavailable; PermissionDenied when the bundle is not a person's.
        """
        who = self._credentials.identity
        if not who.is_person:
            raise PermissionDenied(
                f"the credentials in {self._credentials.directory} are those of {who.role} {who.name}, and only users submit work",
                hint="rmgr admin add-user NAME makes a user's; then set RMGR_SECURITY_DIR",
            )
        from rmgr.adapters.identity.trust import publish

        with self._lock:
            if not self._published:
                publish(coordinator, self._credentials, timeout_s=timeout_s)
                self._published = True

    def signed(self, record: Submission) -> Submission:
        """A record that has its number, with the user's signature. Cost: 0.1 ms."""
        signature = self._credentials.sign(record_statement(record, self._cluster_id))
        return replace(record, signature=f"{self._credentials.identity.key_id}:{signature.hex()}")

    def sealer(self, record: Submission) -> Seal:
        """Seals blocks of one submission. Cost: 0.1 ms for those of one commit, and 0.02 ms each."""
        mine = self._credentials
        told = {"cluster_id": self._cluster_id, "user": record.user, "spec": spec_digest(record), "key_id": mine.identity.key_id}

        def seal(blocks: Sequence[Block]) -> list[Block]:
            not_after_s = int(machine.wall_s() + self._ttl_s)
            return seal_blocks(blocks, **told, not_after_s=not_after_s, sign=mine.sign)  # type: ignore[arg-type]

        return seal


def unsealed(blocks: Sequence[Block]) -> list[Block]:
    """What an open cluster does."""
    return list(blocks)
