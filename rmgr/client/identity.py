"""What a client needs only in a secured cluster: it signs its user's work, and judges what comes back.

`coord/seal.py` says what is signed.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Container, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rmgr.coord.decisions.rights import ANYBODY, Person
from rmgr.coord.seal import amendment_statement, record_statement, seal_blocks, spec_digest
from rmgr.errors import PermissionDenied, RmgrError, StateConflict
from rmgr.model.block import BlockData, BlockKey
from rmgr.model.identity import Role
from rmgr.model.submission import Amendment, Submission, Terms
from rmgr.model.units import utc
from rmgr.runtime import machine
from rmgr.runtime.mailbox import fulfil
from rmgr.submitter.questions import Asks, PublishCertificate, ReadCertificate, ReadRevoked, ReadSettings, UpdateSubmission

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.adapters.identity.trust import RevokedKey
    from rmgr.config import SecurityConfig
    from rmgr.coord.decisions.changing import Changed
    from rmgr.coord.protocol.ports import Coordinator, Store
    from rmgr.procedures.authentic import Authenticity, Deeds
    from rmgr.submitter.answers import Answers

Block = tuple[BlockKey, BlockData]
#: Seals blocks of one submission that are committed together.
Seal = Callable[[Sequence[Block]], list[Block]]

#: Pause before a renewed certificate is published again, after a gateway refused it on a connection made before the renewal (s).
_AGAIN_S = 60.0
#: How long before the end of the certificate in use a renewed bundle is looked for (s), every `_AGAIN_S`.
_ENDS_S = 86_400.0
#: Attempts to sign an amendment: the text to sign changes with each change by another user.
_TRIES = 5
#: Time limit of one question about keys or settings (s).
_ASK_S = 10.0


class Signer:
    """One user's signature. Thread-safe.

    Args:
        cluster_id: of the cluster's tree; signatures for it are worthless in another cluster.
        ttl_s: how long signed work may wait (s).
    Raises: PermissionDenied if the bundle is not a person's.
    """

    def __init__(self, credentials: Credentials, cluster_id: str, *, ttl_s: float) -> None:
        self._credentials = credentials
        self._cluster_id = cluster_id
        self._ttl_s = ttl_s
        self._published = False
        self._again_s = 0.0  #: when a renewed bundle is looked for again
        self._looked_s = -math.inf
        self._lock = threading.Lock()

    @property
    def user(self) -> str:
        """The user who signs."""
        return self._credentials.identity.name

    @property
    def publication(self) -> PublishCertificate:
        """What `publish` asks if the bundle has not been renewed."""
        return PublishCertificate(pem=self._credentials.certificate_pem)

    def publish(self, asks: Asks, *, timeout_s: float = 10.0) -> Credentials:
        """Publishes the user's certificate for verifiers: once per process, and once per renewal of the bundle.

        Returns: the credentials that sign from now on: the newest bundle. A gateway accepts only the certificate that the connection to
            it has shown; as long as that is an older one, the older bundle signs.
        Raises: CoordinationUnavailable; PermissionDenied if the bundle is not a person's.
        """
        who = self._credentials.identity
        if not who.is_person:
            whose = f"the credentials in {self._credentials.directory} are those of {who.role} {who.name}"
            message = f"{whose}, and only users submit work and store values"
            raise PermissionDenied(message, hint="rmgr admin add-user NAME makes a user's; then set RMGR_SECURITY_DIR")
        with self._lock:
            self._looked_s = machine.monotonic()
            known = self._credentials
            newest = known.newest() if machine.monotonic() >= self._again_s else known
            if newest is not known:
                try:
                    asks.ask(PublishCertificate(pem=newest.certificate_pem), timeout_s=timeout_s)
                except PermissionDenied:
                    self._again_s = machine.monotonic() + _AGAIN_S
                else:
                    self._credentials, self._published = newest, True
            if not self._published:
                asks.ask(self.publication, timeout_s=timeout_s)
                self._published = True
            return self._credentials

    @property
    def must_look(self) -> bool:
        """Whether a renewed bundle is to be looked for (`publish`) before more is signed. Cost: 0.5 us."""
        left_s = self._credentials.not_after_s - machine.wall_s()
        return left_s < _ENDS_S and (left_s < 0 or machine.monotonic() - self._looked_s > _AGAIN_S)

    def check(self) -> None:
        """Checks that nodes will believe what is signed now. Raises: PermissionDenied if the certificate has ended."""
        mine = self._credentials
        if machine.wall_s() > mine.not_after_s:
            who, when = mine.identity, utc(round(mine.not_after_s * 1e6))
            message = f"the certificate of {who.role} {who.name} ended at {when}, and no node runs what is signed afterwards"
            raise PermissionDenied(message, hint="ask the cluster's admin for a new bundle, then start this program again")

    def signed(self, record: Submission) -> Submission:
        """Returns a record, which has its nonce but needs no number, with the user's signature. Cost: 0.1 ms."""
        return replace(record, signature=_signature(self._credentials, record_statement(record, self._cluster_id)))

    def amendment(self, number: int, change: Amendment) -> str:
        """Signs an amendment of submission `number`; returns the signature. Cost: 0.1 ms."""
        return _signature(self._credentials, amendment_statement(number, change, self._cluster_id))

    def sign(self, record: Submission, blocks: Sequence[Block]) -> tuple[Submission, Sequence[Block]]:
        """Signs a record, which has its nonce, and its first blocks in this user's name. Cost: as `signed` and `sealer`."""
        signed = self.signed(replace(record, user=self.user))
        return signed, self.sealer(signed)(blocks) if blocks else ()

    def sealer(self, record: Submission) -> Seal:
        """Returns a function that seals blocks of one submission, which needs no number. Cost: 0.1 ms per commit, and 0.02 ms per block."""
        spec = spec_digest(record)

        def seal(blocks: Sequence[Block]) -> list[Block]:
            mine, not_after_s = self._credentials, int(machine.wall_s() + self._ttl_s)
            return seal_blocks(
                blocks,
                cluster_id=self._cluster_id,
                user=record.user,
                spec=spec,
                key_id=mine.identity.key_id,
                not_after_s=not_after_s,
                sign=mine.sign,
            )

        return seal


def _signature(mine: Credentials, statement: bytes) -> str:
    return f"{mine.identity.key_id}:{mine.sign(statement).hex()}"


def unsealed(blocks: Sequence[Block]) -> list[Block]:
    """Returns the blocks unsigned, as in an open cluster."""
    return list(blocks)


def update(asks: Asks, number: int, terms: Terms, *, signer: Signer | None, timeout_s: float) -> Changed:
    """Gives a submission other terms by UPDATE, signed here for its user or an operator. signer: None in an open cluster.

    Raises: as `UpdateSubmission`; PermissionDenied if the credentials are no person's; StateConflict if others keep changing it.
    """
    end_s, signed = machine.monotonic() + timeout_s, None
    for _ in range(_TRIES):
        order = UpdateSubmission(number=number, terms=terms, amendment=signed)
        answer = asks.ask(order, timeout_s=max(0.1, end_s - machine.monotonic()))
        if answer.to_sign is None or signer is None:
            return answer
        signer.publish(asks, timeout_s=max(0.1, end_s - machine.monotonic()))
        signed = replace(answer.to_sign, signature=signer.amendment(number, answer.to_sign))
    raise StateConflict(f"{number} keeps being changed by somebody else", hint=f"rmgr show {number}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Secured:
    """An engine's parts for a secured cluster: they sign, judge what comes back, and know owners of values. All None in an open one."""

    signer: Signer | None = None
    authenticity: Authenticity | None = None
    deeds: Deeds | None = None


def secured_by(
    asks: Asks, credentials: Credentials | None, security: SecurityConfig, cluster_id: str, coordinator: Coordinator | None = None
) -> Secured:
    """Makes these parts from credentials. coordinator: reports revocations as they come; None: revocations are polled."""
    if credentials is None:
        return Secured()
    from rmgr.adapters.identity.trust import Trust, ZooKeeperKeys
    from rmgr.procedures.authentic import Authenticity, Deeds
    from rmgr.procedures.bootstrap import FreshSettings

    trust = Trust(ZooKeeperKeys(coordinator) if coordinator is not None else AskedKeys(asks), credentials.ca_pem)
    signer = Signer(credentials, cluster_id, ttl_s=security.payload_ttl_s)
    settings = FreshSettings(lambda: asks.ask(ReadSettings(), timeout_s=_ASK_S).settings)
    deeds = Deeds(trust, cluster_id, credentials, settings=settings, publish=lambda: signer.publish(asks))
    return Secured(signer=signer, authenticity=Authenticity(trust, cluster_id), deeds=deeds)


def answers_here(
    coordinator: Coordinator, store: Callable[[], Store | None], credentials: Credentials | None, *, user: str = ""
) -> Answers:
    """Returns what answers the user's questions in this process, at ZooKeeper. user: the name in an open cluster, "" = anybody."""
    from rmgr.runtime.secured import certifier
    from rmgr.submitter.answers import Answers

    if credentials is None:
        return Answers(coordinator, store, Person(name=user, is_open=True) if user else ANYBODY)
    mine = credentials.identity
    who = Person(name=mine.name, role=str(mine.role), is_operator=mine.role in {Role.OPERATOR, Role.ADMIN})
    return Answers(coordinator, store, who, certify=certifier(credentials))


class AskedKeys:
    """A `trust.Keys` that asks a gateway for certificates and revocations, for clients that do not reach ZooKeeper. Thread-safe.

    It is not notified of revocations, so it asks often.
    """

    resync_s = 5.0

    def __init__(self, asks: Asks) -> None:
        self._asks = asks
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def certificate(self, key_id: str) -> Future[bytes | None]:
        """See `Keys`."""
        answer: Future[bytes | None] = Future()
        self._run_soon(lambda: fulfil(answer, lambda: self._asks.ask(ReadCertificate(key_id=key_id), timeout_s=_ASK_S)))
        return answer

    def revocations(
        self,
        known: Container[str],
        changed: Callable[[], None],  # noqa: ARG002 - of whoever is told
        take: Callable[[dict[str, RevokedKey | None] | None], None],
    ) -> None:
        """See `Keys`."""
        from rmgr.adapters.identity.trust import RevokedKey

        def ask() -> None:
            try:
                found = self._asks.ask(ReadRevoked(), timeout_s=_ASK_S)
            except RmgrError:
                take(None)
                return
            take({one.key_id: None if one.key_id in known else RevokedKey(one.record, one.zxid, one.since_zxid) for one in found})

        self._run_soon(ask)

    def _run_soon(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)
        with self._lock:
            if self._thread is None:
                self._thread = machine.Thread(target=self._work, name="keys", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            self._jobs.get()()
