"""The multis by which machines enter a secured cluster and leave it: invite, redeem, revoke, rotate."""

from __future__ import annotations

import re
from dataclasses import replace

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Create, Delete, Exists, Gone, Holds, Multi, Op, Set
from rmgr.coord.protocol.records import encode_record
from rmgr.errors import PermissionDenied
from rmgr.model.cluster.joining import AclRecord, Invitation, Revocation, SealedSecret

#: What a machine calls itself while it redeems a token: at least 16 random bytes, in hex. Who could guess it would be that machine.
_NONCE = re.compile(r"[0-9a-f]{32,128}", re.ASCII)


def check_nonce(nonce: str) -> None:
    """Raises PermissionDenied for a nonce that is empty, short or no hex: it would be everybody's."""
    if _NONCE.fullmatch(nonce) is None:
        raise PermissionDenied(
            f"a token is redeemed with a nonce of 16 random bytes or more, in hex (here are {len(nonce)} characters)",
            hint="rmgr join makes one by itself; type it again on that machine",
        )


def invite(invitation: Invitation) -> Multi:
    """INVITE: credentials wait for their machine. Raises PermissionDenied for one that is redeemed from the beginning."""
    if invitation.redeemed:
        raise PermissionDenied(f"the token of {invitation.name} would be used before it is made", hint="rmgr admin add-node NAME")
    path, data = paths.join(invitation.id), encode_record(invitation)
    return Multi(name="INVITE", ops=(Create(path, data),), proof=Exists(path, data))


def redeem(invitation: Invitation, version: int, nonce: str, now_us: int) -> Multi | None:
    """REDEEM: from now on only the holder of `nonce` gets them. None: it is his already.

    now_us: wall clock; an invitation ends at a time that people name, so it is compared with theirs.
    Raises: PermissionDenied when it was used by somebody else or has expired, or the nonce is no nonce.
    """
    check_nonce(nonce)
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


def change_revoked(revocation: Revocation, version: int) -> Multi:
    """REVOKED: something else becomes of the work of somebody whose key was revoked before."""
    path, data = paths.revoked(revocation.key_id), encode_record(revocation)
    return Multi(name="REVOKED", ops=(Set(path, data, version),), proof=Holds(path, data))


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


def identify(key_id: str, pem: bytes) -> Multi:
    """IDENTIFY: a certificate where all read it. It vouches for itself, so whoever writes it does not matter."""
    path = paths.identity(key_id)
    return Multi(name="IDENTIFY", ops=(Create(path, pem),), proof=Exists(path, pem))
