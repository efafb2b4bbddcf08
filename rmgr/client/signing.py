"""Signs the work of a user before it leaves his process (secured clusters; `coord/seal.py` says what is signed)."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from rmgr.coord.ports import Coordinator
from rmgr.coord.seal import seal_block, seal_blocks, spec_digest
from rmgr.errors import PermissionDenied
from rmgr.model.block import BlockData, BlockKey
from rmgr.model.submission import Submission
from rmgr.model.version import SEALED_TOGETHER

if TYPE_CHECKING:
    from rmgr.adapters.credentials import Credentials

Block = tuple[BlockKey, BlockData]


class Seal(Protocol):
    """Seals blocks of one submission."""

    def __call__(self, key: BlockKey, data: BlockData) -> BlockData:
        """One block, with a signature of its own."""

    def together(self, blocks: Sequence[Block]) -> list[Block]:
        """Blocks that are committed together."""


class Signer:
    """One user's signature. Thread-safe.

    Args:
        cluster_id: of the cluster's tree; what is signed for it is worth nothing in another one.
        ttl_s: how long signed work may wait.
        oldest: protocol that every process of the cluster speaks at least (`Meta.oldest`).
    Raises: PermissionDenied when the bundle is not a person's.
    """

    def __init__(self, credentials: Credentials, cluster_id: str, *, ttl_s: float, oldest: int = 0) -> None:
        self._credentials = credentials
        self._cluster_id = cluster_id
        self._ttl_s = ttl_s
        self._is_together = oldest >= SEALED_TOGETHER
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
        from rmgr.adapters.trust import publish

        with self._lock:
            if not self._published:
                publish(coordinator, self._credentials, timeout_s=timeout_s)
                self._published = True

    def sealer(self, record: Submission) -> Seal:
        """Seals blocks of one submission. Cost: 0.1 ms for those of one commit, and 0.02 ms each."""
        return _Sealer(self._credentials, self._cluster_id, record, ttl_s=self._ttl_s, is_together=self._is_together)


class _Sealer:
    def __init__(self, credentials: Credentials, cluster_id: str, record: Submission, *, ttl_s: float, is_together: bool) -> None:
        self._sign, self._key_id = credentials.sign, credentials.identity.key_id
        self._cluster_id, self._user, self._spec = cluster_id, record.user, spec_digest(record)
        self._ttl_s = ttl_s
        self._is_together = is_together

    def __call__(self, key: BlockKey, data: BlockData) -> BlockData:
        return seal_block(
            key,
            data,
            cluster_id=self._cluster_id,
            user=self._user,
            spec=self._spec,
            key_id=self._key_id,
            not_after_s=int(time.time() + self._ttl_s),
            sign=self._sign,
        )

    def together(self, blocks: Sequence[Block]) -> list[Block]:
        if not self._is_together:
            return [(key, self(key, data)) for key, data in blocks]
        return seal_blocks(
            blocks,
            cluster_id=self._cluster_id,
            user=self._user,
            spec=self._spec,
            key_id=self._key_id,
            not_after_s=int(time.time() + self._ttl_s),
            sign=self._sign,
        )


class _Unsealed:
    """What an open cluster does."""

    def __call__(self, _: BlockKey, data: BlockData) -> BlockData:
        return data

    def together(self, blocks: Sequence[Block]) -> list[Block]:
        return list(blocks)


unsealed = _Unsealed()
