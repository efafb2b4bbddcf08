"""The multis by which machines, owners and nodes enter, exist and leave, and by which the cluster's settings change.

Machines enter a secured cluster by invitation, and leave it when their key is revoked. An owner (a Submitter) shows that it is alive, takes
a submission over, or gives it back to the leader. A submission grows only through its tail, whose version fences its owner, so that
after a take-over nothing of the former owner can be committed. The tail also records which owner submitted which index
(`reigns`): pointers to outputs are written before the commit, and a pointer of an owner that never committed must not count. Operators
drain, resume and forget nodes.
"""

from __future__ import annotations

import re
from dataclasses import replace

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Create, Delete, Exists, Holds, Multi, Op, Set, put, remove
from rmgr.coord.protocol.records import encode_record
from rmgr.errors import PermissionDenied
from rmgr.model.identity import AclRecord, Invitation, Revocation, SealedSecret
from rmgr.model.node import Drain, Meta, NodeRecord, SubmitterEntry
from rmgr.model.queue import ClusterSettings
from rmgr.model.submission import Submission, Tail
from rmgr.model.units import utc

#: Name of a machine while it redeems a token: at least 16 random bytes, in hex. Another machine that guessed it could redeem the token.
_NONCE = re.compile(r"[0-9a-f]{32,128}", re.ASCII)


def check_nonce(nonce: str) -> None:
    """Raises PermissionDenied for a nonce that is empty, short or not hex: anybody could guess it."""
    if _NONCE.fullmatch(nonce) is None:
        raise PermissionDenied(
            f"a token is redeemed with a nonce of 16 random bytes or more, in hex (here are {len(nonce)} characters)",
            hint="rmgr join makes one by itself; type it again on that machine",
        )


def invite(invitation: Invitation) -> Multi:
    """INVITE: credentials wait for their machine. Raises PermissionDenied for an invitation that is redeemed already."""
    if invitation.redeemed:
        raise PermissionDenied(f"the token of {invitation.name} would be used before it is made", hint="rmgr admin add-node NAME")
    path, data = paths.join(invitation.id), encode_record(invitation)
    return Multi(name="INVITE", ops=(Create(path, data),), proof=Exists(path, data))


def redeem(invitation: Invitation, version: int, nonce: str, now_us: int) -> Multi | None:
    """REDEEM: from now on only the holder of `nonce` gets the credentials. None: that holder has them already.

    now_us: wall clock, because people set the end of an invitation.
    Raises: PermissionDenied if another machine has used it, it has expired, or the nonce is invalid.
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
        until, now = utc(invitation.expires_us), utc(now_us)
        message = f"the token of {invitation.name} has expired: it was valid until {until}, and it is {now} by the WatchDog's clock"
        raise PermissionDenied(message, hint=f"a new one: rmgr admin add-node {invitation.name}")
    return put("REDEEM", paths.join(invitation.id), encode_record(replace(invitation, redeemed=nonce)), version)


def withdraw(invitation: str, version: int) -> Multi:
    """WITHDRAW: removes an invitation that is used or over."""
    return remove("WITHDRAW", paths.join(invitation), version)


def revoke(revocation: Revocation) -> Multi:
    """REVOKE: the key is invalid from now on. A Conflict NODE_EXISTS means that it was revoked before."""
    path, data = paths.revoked(revocation.key_id), encode_record(revocation)
    return Multi(name="REVOKE", ops=(Create(path, data),), proof=Exists(path))


def change_revoked(revocation: Revocation, version: int) -> Multi:
    """REVOKED: changes what becomes of the work of a user whose key was revoked before."""
    return put("REVOKED", paths.revoked(revocation.key_id), encode_record(revocation), version)


def publish_acl(record: AclRecord, version: int | None, secrets: dict[str, SealedSecret], known: dict[str, int]) -> Multi:
    """ROTATE: sets the credentials that stand for roles, together with the new secrets for the daemons that may fetch them.

    version: of `/acl`, None if it does not exist. known: versions of the existing `/secrets/<role>`.
    """
    data = encode_record(record)
    ops: list[Op] = [Create(paths.ACL, data) if version is None else Set(paths.ACL, data, version)]
    for role, secret in sorted(secrets.items()):
        path, content = paths.secret(role), encode_record(secret)
        ops.append(Set(path, content, known[role]) if role in known else Create(path, content))
    return Multi(name="ROTATE", ops=tuple(ops), proof=Holds(paths.ACL, data))


def identify(key_id: str, pem: bytes) -> Multi:
    """IDENTIFY: publishes a certificate. It proves itself, so its writer does not matter."""
    path = paths.identity(key_id)
    return Multi(name="IDENTIFY", ops=(Create(path, pem),), proof=Exists(path, pem))


# -- owners, besides SUBMIT and ENQUEUE ----------------------------------------------------------------------------------------


def reign_of(tail: Tail, index: int) -> str:
    """Returns the guid of the Submitter that submitted task `index`; "" if not recorded. Cost: O(take-overs)."""
    guid = ""
    for first, owner in tail.reigns:
        if first > index:
            break
        guid = owner
    return guid


def is_owner(entry: SubmitterEntry, submission: Submission) -> bool:
    """Returns whether the maker of `entry` owns `submission`: the record names its guid, and the entry names no other user."""
    return bool(entry.guid) and entry.guid == submission.owner and entry.user in {"", submission.user}


def taken_over(tail: Tail, owner: str, stamp: str) -> Tail:
    """Returns the tail of a submission that `owner` continues."""
    kept = tuple(reign for reign in tail.reigns if reign[0] < tail.next)
    return replace(tail, reigns=(*kept, (tail.next, owner)), enqueued=stamp)


def take_ownership(submission: Submission, version: int, tail: Tail, tail_version: int) -> Multi:
    """TAKE_OWNERSHIP: `submission` names its new owner, `tail` comes from `taken_over`."""
    data = encode_record(tail)
    ops = (
        Set(paths.sub(submission.id), encode_record(submission), version),
        Set(paths.tail(submission.id), data, tail_version),
    )
    return Multi(name="TAKE_OWNERSHIP", ops=ops, proof=Holds(paths.tail(submission.id), data))


def enter(entry: SubmitterEntry) -> Multi:
    """ENTER: a Submitter is alive. Its sequential name is not known beforehand, so after an unknown outcome it is simply repeated."""
    path = paths.submitter(entry.guid)
    return Multi(name="ENTER", ops=(Create(path, encode_record(entry), ephemeral=True, sequence=True),), proof=Exists(path))


def leave(path: str) -> Multi:
    """EXIT: an owner has gone, while the session that holds its entry goes on (a gateway's client)."""
    return remove("EXIT", path)


def unregister(entry: str) -> Multi:
    """UNREGISTER: a Starter deletes an old entry of its own, which its session still holds after a fence. entry: its path."""
    return remove("UNREGISTER", entry)


# -- operators -----------------------------------------------------------------------------------------------------------------


def drain(record: Drain, version: int | None) -> Multi:
    """DRAIN: the node takes no new work. version: of the drain that it replaces, None if there is none."""
    return Multi(name="DRAIN", ops=_made_anew(record, version), proof=Holds(paths.drain(record.node), encode_record(record)))


def resume(record: Drain, version: int) -> Multi:
    """RESUME: the node takes work again; the record keeps who resumed it. version: of the drain that ends."""
    over = replace(record, is_over=True)
    return Multi(name="RESUME", ops=_made_anew(over, version), proof=Holds(paths.drain(over.node), encode_record(over)))


def _made_anew(record: Drain, version: int | None) -> tuple[Op, ...]:
    """Returns ops that create the drain anew instead of setting it, because the leader watches the list of drains."""
    made = Create(paths.drain(record.node), encode_record(record))
    return (made,) if version is None else (Delete(made.path, version), made)


def forget(record: NodeRecord, version: int) -> Multi:
    """FORGET: nothing shows the node any more. Its znode and version stay, so a Starter that registers it again continues from there."""
    return put("FORGET", paths.node(record.node), encode_record(replace(record, forgotten=True)), version)


def set_settings(settings: ClusterSettings, version: int) -> Multi:
    """SETTINGS: replaces all queues, limits and times of the cluster; their directories exist already."""
    return put("SETTINGS", paths.CONFIG, encode_record(settings), version)


def set_up(meta: Meta, settings: ClusterSettings) -> Multi:
    """SETUP: the cluster's id, the counter of submissions and the settings appear together; if several processes try, one wins."""
    data = encode_record(meta)
    ops = (Create(paths.META, data), Create(paths.IDS, encode_record(1)), Create(paths.CONFIG, encode_record(settings)))
    return Multi(name="SETUP", ops=ops, proof=Exists(paths.META, data))


def lock_schema(holder: bytes) -> Multi:
    """LOCK: one command at a time changes the tables of the store; the lock goes with its holder's session."""
    return Multi(name="LOCK", ops=(Create(paths.SCHEMA_LOCK, holder, ephemeral=True),), proof=Exists(paths.SCHEMA_LOCK, holder))
