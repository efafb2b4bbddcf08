"""Lets machines join a secured cluster, and gives daemons their new secret after a rotation.

Clients may ask any WatchDog, leading or not: ZooKeeper decides which request comes first.
"""

from __future__ import annotations

from collections.abc import Mapping

from rmgr.adapters.identity.invitation import open_secret
from rmgr.adapters.identity.pki import credential
from rmgr.coord.ops import membership
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Unknown
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import CoordinationUnavailable, PermissionDenied
from rmgr.log import audit
from rmgr.model.cluster.identity import AclRecord, Identity, Invitation, Role, SealedSecret
from rmgr.runtime import machine
from rmgr.runtime.machine import Log

_TIMEOUT_S = 5.0
_TRIES = 5


class Joining:
    """Implements `rpc_join.JoinAnswers`; called on threads of the server.

    Args:
        secrets: role -> ZooKeeper secret, from this WatchDog's bundle; the WatchDogs' own secret opens `/secrets`.
    """

    def __init__(self, coordinator: Coordinator, secrets: Mapping[str, str], log: Log) -> None:
        self._coordinator = coordinator
        self._secrets = secrets
        self._log = log

    def redeem(self, invitation: str, nonce: str) -> Invitation:
        """Hands over the invitation to the holder of its token, once. Every use leaves an audit line, also a refused one.

        Raises: PermissionDenied (used, expired, withdrawn, no nonce); CoordinationUnavailable (ask again with the same nonce).
        """
        try:
            return self._redeem(invitation, nonce)
        except PermissionDenied as refused:
            audit(self._log, who=invitation, role=str(Role.JOIN), what="join", target=invitation, allowed=False, why=refused.message)
            raise

    def _redeem(self, invitation: str, nonce: str) -> Invitation:
        membership.check_nonce(nonce)
        path = paths.join(invitation)
        for _ in range(_TRIES):
            found = self._coordinator.get(path, timeout_s=_TIMEOUT_S).result(_TIMEOUT_S + 1)
            if found is None:
                raise PermissionDenied("nothing waits for this token: it was withdrawn, or is over", hint="rmgr admin add-node NAME")
            record = decode_record(found.data, Invitation, path)
            multi = membership.redeem(record, found.version, nonce, machine.wall_us())
            if multi is None:
                self._audit_hand_over(record, "again, to the same machine")
                return record
            outcome = self._coordinator.commit(multi, timeout_s=_TIMEOUT_S).result(_TIMEOUT_S + 1)
            if isinstance(outcome, Committed):
                self._audit_hand_over(record, "the token's first use")
                return record
            if isinstance(outcome, Unknown):
                raise CoordinationUnavailable("it is not known whether the token was redeemed", hint="the same command again is safe")
        raise CoordinationUnavailable("others keep changing the invitation", hint="type the command again")

    def _audit_hand_over(self, record: Invitation, why: str) -> None:
        audit(self._log, who=record.name, role=str(record.role), what="join", target=record.key_id, allowed=True, why=why)

    def renew(self, who: Identity, generation: int) -> tuple[int, str]:
        """Returns (generation, "role:secret"), the newest secret of the caller's role. Raises: PermissionDenied, CoordinationUnavailable.

        The door learns of revocations by a watch, which may be late. So the caller's revocation is read here, after the secret and in the
        same session: a rotation because of a revocation commits the revocation first, so a server that shows the new secret shows it, too.
        """
        role = who.role
        wanted = (paths.ACL, paths.secret(role), paths.revoked(who.key_id))
        asked = [self._coordinator.get(path, timeout_s=_TIMEOUT_S) for path in wanted]
        acl, sealed, revoked = (future.result(_TIMEOUT_S + 1) for future in asked)
        if revoked is not None:
            audit(self._log, who=who.name, role=str(role), what="renew", target=who.key_id, allowed=False)
            raise PermissionDenied(f"the key of {role} {who.name} was revoked", hint="ask the cluster's admin for a new one")
        if sealed is None:
            secret = self._secrets.get(role)
            if secret is None:
                raise PermissionDenied(f"{role} has no secret of ZooKeeper")
            return 0, credential(role, secret)
        record = decode_record(sealed.data, SealedSecret, paths.secret(role))
        current = decode_record(acl.data, AclRecord, paths.ACL).generation if acl is not None else record.generation
        self._log.info("secret_renewed", role=str(role), generation=record.generation, why=f"the caller had {generation} of {current}")
        return record.generation, credential(role, open_secret(self._secrets[Role.WATCHDOG], role, record))
