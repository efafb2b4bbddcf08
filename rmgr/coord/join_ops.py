"""The multis by which machines enter a secured cluster and leave it: invite, redeem, revoke, rotate."""

from __future__ import annotations

from dataclasses import replace

from rmgr.coord import paths
from rmgr.coord.multi import Create, Delete, Exists, Gone, Holds, Multi, Op, Set
from rmgr.coord.records import encode_record
from rmgr.errors import PermissionDenied
from rmgr.model.joining import AclRecord, Invitation, Revocation, SealedSecret


def invite(invitation: Invitation) -> Multi:
    """INVITE: credentials wait for their machine."""
    path, data = paths.join(invitation.id), encode_record(invitation)
    return Multi(name="INVITE", ops=(Create(path, data),), proof=Exists(path, data))


def redeem(invitation: Invitation, version: int, nonce: str, now_us: int) -> Multi | None:
    """REDEEM: from now on only the holder of `nonce` gets them. None: it is his already.

    now_us: wall clock; an invitation ends at a time that people name, so it is compared with theirs.
    Raises: PermissionDenied when it was used by somebody else or has expired.
    """
    if invitation.redeemed == nonce:
        return None
    if invitation.redeemed:
        raise PermissionDenied(
            f"the token of {invitation.name} was used already: it works once",
            hint=f"if that was not you: rmgr admin revoke {invitation.name}; a new one: rmgr admin add-node {invitation.name}",
        )
    if now_us >= invitation.expires_us:
        raise PermissionDenied(f"the token of {invitation.name} has expired", hint=f"a new one: rmgr admin add-node {invitation.name}")
    path, data = paths.join(invitation.id), encode_record(replace(invitation, redeemed=nonce))
    return Multi(name="REDEEM", ops=(Set(path, data, version),), proof=Holds(path, data))


def withdraw(invitation: str, version: int) -> Multi:
    """WITHDRAW: an invitation that is used or over goes."""
    path = paths.join(invitation)
    return Multi(name="WITHDRAW", ops=(Delete(path, version),), proof=Gone(path))


def revoke(revocation: Revocation) -> Multi:
    """REVOKE: the key is worth nothing from now on. A Conflict NODE_EXISTS says that it was so before."""
    path, data = paths.revoked(revocation.key_id), encode_record(revocation)
    return Multi(name="REVOKE", ops=(Create(path, data),), proof=Exists(path))


def publish_acl(record: AclRecord, version: int | None, secrets: dict[str, SealedSecret], known: dict[str, int]) -> Multi:
    """ROTATE: credentials that stand for roles, and the new secrets for those who may fetch them, as one.

    version: of `/acl`, None when there is none yet. known: versions of the `/secrets/<role>` that exist.
    """
    data = encode_record(record)
    ops: list[Op] = [Create(paths.ACL, data) if version is None else Set(paths.ACL, data, version)]
    for role, secret in sorted(secrets.items()):
        path, content = paths.secret(role), encode_record(secret)
        ops.append(Set(path, content, known[role]) if role in known else Create(path, content))
    return Multi(name="ROTATE", ops=tuple(ops), proof=Holds(paths.ACL, data))
