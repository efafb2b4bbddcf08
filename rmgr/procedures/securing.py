"""Invites machines into a secured cluster, revokes keys, lists identities, and rotates secrets, for the cluster's admin.

Rotating a role's ZooKeeper secret makes credentials that left the cluster worthless. Its three steps may each be repeated: both secrets
are valid; daemons fetch the new one from a WatchDog, if their key is still believed; the old one becomes invalid. Work goes on meanwhile.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from rmgr.adapters.identity import invitation
from rmgr.adapters.identity.credentials import write_files
from rmgr.adapters.identity.invitation import seal_secret
from rmgr.adapters.identity.pki import Authority, digest_id, issue, verify_certificate
from rmgr.adapters.zookeeper.acl import RoleLists
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.adapters.zookeeper.tree import check_tree
from rmgr.coord.ops import membership
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, ConflictKind, Multi, Outcome
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import CoordinationUnavailable, NotFound, PermissionDenied, StateConflict, UsageError
from rmgr.model.identity import AclRecord, Identity, Invitation, Revocation, RevokedWork, Role, SealedSecret
from rmgr.model.node import EpochRecord
from rmgr.model.units import counted, format_duration
from rmgr.runtime import machine

T = TypeVar("T")

_TIMEOUT_S = 10.0
#: A joining certificate outlives its invitation a little, so that a late machine is told clearly that the invitation is over.
_MARGIN_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownIdentity:
    """An identity of the cluster. invited: its invitation, while the machine has not come."""

    identity: Identity
    is_revoked: bool = False
    invited: str = ""


def invite(
    coordinator: Coordinator,
    authority: Authority,
    draft: invitation.Token,
    *,
    hosts: Sequence[str] = (),
    lasts_s: float,
    renews: bool = False,
) -> str:
    """Makes credentials for a new machine, stores them encrypted in ZooKeeper, and returns the token that opens them.

    Args:
        draft: name, role and the machine's configuration; certificates and key are filled in here.
        hosts: names and addresses of the machine. lasts_s: lifetime of the token. renews: allows a known machine.
    Raises: StateConflict if there is a live identity of this name; CoordinationUnavailable.
    """
    role = Role(draft.role)
    for known in identities(coordinator, authority.cert_pem) if not renews else ():
        if known.identity.name == draft.name and known.identity.role is role and not known.is_revoked and not known.invited:
            raise StateConflict(
                f"there is a {role} {draft.name} already (key {known.identity.key_id})",
                hint=f"choose another name; or --renew for new credentials of the same machine; or first: rmgr admin revoke {draft.name}",
            )
    number = f"join-{machine.random_hex(8)}"
    files = issue(authority, draft.name, role, hosts=hosts)
    ticket = issue(authority, number, Role.JOIN, days=(lasts_s + _MARGIN_S) / 86400.0)
    token = _filled(draft, number, ticket)
    record = Invitation(
        id=number,
        name=draft.name,
        role=role,
        key_id=verify_certificate(files["sign.crt"], authority.cert_pem).identity.key_id,
        expires_us=int((machine.wall_s() + lasts_s) * 1e6),
        sealed=base64.b64encode(invitation.seal_files(token.key, purpose(draft.name), files)).decode(),
    )
    _commit(coordinator, membership.invite(record))
    return invitation.encode(token)


def purpose(name: str) -> str:
    """Returns the purpose for which a bundle is sealed."""
    return f"the credentials of {name}"


def withdraw(coordinator: Coordinator, *, name: str = "") -> list[Invitation]:
    """Removes expired invitations, and unused ones of `name`; returns what was removed."""
    now_us = machine.wall_us()
    gone = []
    for record, version in _invitations(coordinator):
        if (record.name == name and not record.redeemed) or record.expires_us < now_us:
            _commit(coordinator, membership.withdraw(record.id, version))
            gone.append(record)
    return gone


def watchdogs(coordinator: Coordinator) -> tuple[str, ...]:
    """Returns the endpoints of the cluster's WatchDogs, the leader first."""
    found = _wait(coordinator.get(paths.EPOCH))
    leader = decode_record(found.data, EpochRecord, paths.EPOCH).endpoint if found is not None else ""
    names = _wait(coordinator.children(paths.WATCHDOGS)) or []
    entries = [_wait(coordinator.get(f"{paths.WATCHDOGS}/{name}")) for name in sorted(names)]
    others = [decode_record(entry.data, EpochRecord, paths.WATCHDOGS).endpoint for entry in entries if entry is not None]
    living = [endpoint for endpoint in dict.fromkeys(others) if endpoint]
    return tuple(sorted(living, key=lambda endpoint: endpoint != leader))


def identities(coordinator: Coordinator, ca_pem: bytes) -> list[KnownIdentity]:
    """Returns all known identities and open invitations, by role and name. Cost: one read each."""
    revoked = set(_wait(coordinator.children(paths.REVOKED)) or ())
    names = _wait(coordinator.children(paths.IDENTITIES)) or []
    asked = [coordinator.get(paths.identity(name), timeout_s=_TIMEOUT_S) for name in names]
    known: dict[str, KnownIdentity] = {}
    for answer in asked:
        found = _wait(answer)
        if found is None:
            continue
        try:
            who = verify_certificate(found.data, ca_pem).identity
        except PermissionDenied:  # expired, or from another authority: worthless
            continue
        known[who.key_id] = KnownIdentity(identity=who, is_revoked=who.key_id in revoked)
    for record, _ in _invitations(coordinator):
        who = Identity(name=record.name, role=record.role, cluster="", key_id=record.key_id)
        waits = "" if record.redeemed else record.id
        known.setdefault(record.key_id, KnownIdentity(identity=who, is_revoked=record.key_id in revoked, invited=waits))
    return sorted(known.values(), key=lambda one: (one.identity.role, one.identity.name, one.identity.key_id))


def revoke(
    coordinator: Coordinator,
    ca_pem: bytes,
    whom: str,
    *,
    role: Role | None,
    by: str,
    reason: str = "",
    work: RevokedWork | None = None,
) -> list[Revocation]:
    """Revokes the keys of `whom` (a name, or one key id); returns what was revoked (again).

    Args: work: what becomes of a person's work; None: KEEP, or as said before.
    Raises: NotFound; StateConflict if the name has several roles and none was given; UsageError; CoordinationUnavailable.
    """
    known = identities(coordinator, ca_pem)
    found = [one for one in known if whom in (one.identity.name, one.identity.key_id)]
    if role is not None:
        found = [one for one in found if one.identity.role is role]
    if not found:
        message = f"no {role or 'identity'} {whom} is known to this cluster"
        raise NotFound(message, hint="its name or key id as `rmgr admin identities` lists it")
    roles = sorted({one.identity.role for one in found})
    if len(roles) > 1:
        raise StateConflict(f"{whom} is the name of a {' and of a '.join(roles)}", hint=f"say which: --role {roles[0]}")
    if work is not None and not found[0].identity.is_person:
        raise UsageError(f"{whom} is a {roles[0]}: it has no work of its own", hint="--work is for users and operators")
    keys = {one.identity.key_id for one in found}
    made = []
    for one in found:
        who = one.identity
        others = any(
            other.identity.name == who.name and other.identity.is_person and not other.is_revoked and other.identity.key_id not in keys
            for other in known
        )
        message = (work or RevokedWork.KEEP).value if who.is_person else ""
        since_us = machine.wall_us()
        record = Revocation(
            key_id=who.key_id, name=who.name, role=who.role, by=by, since_us=since_us, reason=reason, work=message, others=others
        )
        outcome = _committed(coordinator, membership.revoke(record))
        if isinstance(outcome, Conflict) and outcome.kind is not ConflictKind.NODE_EXISTS:
            raise StateConflict(f"{whom} could not be revoked: {outcome.kind} at {outcome.path}", hint="rmgr doctor")
        made.append(_said_again(coordinator, record, work) if isinstance(outcome, Conflict) else record)
    withdraw(coordinator, name=found[0].identity.name)
    return made


def _said_again(coordinator: Coordinator, record: Revocation, work: RevokedWork | None) -> Revocation:
    """Returns the record of a key revoked earlier, with a new fate of its user's work if one is given."""
    path = paths.revoked(record.key_id)
    found = _wait(coordinator.get(path))
    if found is None:
        raise StateConflict(f"{path} was there and is gone", hint="type the command again")
    old = decode_record(found.data, Revocation, path)
    others = old.others and record.others  # a newer key of the same user does not change what was said then
    changed = replace(old, others=others)
    if work is not None and work != old.work:
        changed = replace(changed, work=work.value, before=old.work)
    if changed == old:
        return old
    _commit(coordinator, membership.change_revoked(changed, found.version))
    return changed


# -- inside ------------------------------------------------------------------------------------------------------------------


def _filled(draft: invitation.Token, number: str, ticket: dict[str, bytes]) -> invitation.Token:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    der = serialization.Encoding.DER
    key = serialization.load_pem_private_key(ticket["tls.key"], password=None)
    return msgspec.structs.replace(
        draft,
        ca=x509.load_pem_x509_certificate(ticket["ca.crt"]).public_bytes(der),
        certificate=x509.load_pem_x509_certificate(ticket["tls.crt"]).public_bytes(der),
        key=key.private_numbers().private_value.to_bytes(32, "big"),  # type: ignore[union-attr]  # a P-256 key, as `issue` makes it
        invitation=number,
    )


def _invitations(coordinator: Coordinator) -> list[tuple[Invitation, int]]:
    out = []
    for name in sorted(_wait(coordinator.children(paths.JOINS)) or ()):
        found = _wait(coordinator.get(paths.join(name)))
        if found is not None:
            out.append((decode_record(found.data, Invitation, paths.join(name)), found.version))
    return out


def _committed(coordinator: Coordinator, multi: Multi) -> Outcome:
    outcome = _wait(coordinator.commit(multi, timeout_s=_TIMEOUT_S))
    if isinstance(outcome, Committed | Conflict):
        return outcome
    message = f"it is not known whether {multi.name} was committed: {outcome.cause}"
    raise CoordinationUnavailable(message, hint="the same command again is safe")


def _commit(coordinator: Coordinator, multi: Multi) -> None:
    outcome = _committed(coordinator, multi)
    if isinstance(outcome, Conflict) and outcome.kind is not ConflictKind.NO_NODE:
        raise StateConflict(f"{multi.name}: {outcome.kind} at {outcome.path}", hint="type the command again")


def _wait(future: Future[T]) -> T:
    return future.result(_TIMEOUT_S + 1.0)


# -- rotation ------------------------------------------------------------------------------------------------------------------


#: Roles whose secret opens the others, or is kept by people: they get new bundles instead.
_NOT_HERE = (Role.WATCHDOG, Role.ADMIN)
#: Further rounds mend znodes made by processes that had not heard of the rotation yet.
_ROUNDS = 5
_ROUND_S = 1.0


def rotate(
    coordinator: ZkCoordinator,
    authority: Authority,
    directory: Path,
    role: Role,
    *,
    grace_s: float,
    report: Callable[[str], None] = lambda _: None,
) -> Authority:
    """Gives `role` a new secret; returns the new authority, also written to `directory`.

    Args:
        grace_s: how long both secrets are valid.
    Raises: UsageError if the role cannot be rotated this way; StateConflict if somebody else rotates; CoordinationUnavailable
        (type the command again: it continues from any step).
    """
    if role in _NOT_HERE:
        hint = "make new bundles of it and restart its daemons one by one"
        raise UsageError(f"the secret of role {role} is not rotated while the cluster runs", hint=hint)
    fresh = machine.random_hex(24)
    old_id = digest_id(role, authority.secrets[role])
    renewed = replace(authority, secrets={**authority.secrets, role.value: fresh})
    # The new secret is on disk before its first use; the old one is not needed here: the admin has a secret of its own.
    files = renewed.files()
    write_files(directory, {name: files[name] for name in ("zookeeper.secrets", "roles.json")}, replace=True)
    new_id = digest_id(role, fresh)
    report(f"both secrets of role {role} are good now; its daemons fetch the new one")
    _publish(coordinator, renewed, role, (old_id, new_id))
    mended = check_tree(coordinator, mend=True).mended
    report(f"access lists of {counted(mended, 'znode')} name both; waiting {format_duration(grace_s)}")
    machine.sleep(grace_s)
    _publish(coordinator, renewed, role, (new_id,))
    for _ in range(_ROUNDS):
        mended = check_tree(coordinator, mend=True).mended
        if not mended:
            break
        report(f"the old secret of role {role} is off {counted(mended, 'znode')}")
        machine.sleep(_ROUND_S)
    return renewed


def _publish(coordinator: ZkCoordinator, authority: Authority, role: Role, ids: tuple[str, ...]) -> None:
    """Commits ROTATE; what this process writes from now on follows it."""
    found = coordinator.get(paths.ACL, timeout_s=_TIMEOUT_S).result(_TIMEOUT_S + 1)
    sealed = coordinator.get(paths.secret(role), timeout_s=_TIMEOUT_S).result(_TIMEOUT_S + 1)
    before = decode_record(found.data, AclRecord, paths.ACL) if found is not None else AclRecord()
    lists = coordinator.lists
    if not isinstance(lists, RoleLists):
        raise StateConflict("this cluster is open: there are no secrets to rotate", hint="rmgr admin init")
    roles = {name.value: known for name, known in lists.ids.items()} | before.roles | {role.value: ids}
    record = AclRecord(generation=before.generation + 1, roles=roles)
    secret: SealedSecret = seal_secret(authority.secrets[Role.WATCHDOG], role, record.generation, authority.secrets[role])
    known = {role.value: sealed.version} if sealed is not None else {}
    multi = membership.publish_acl(record, found.version if found is not None else None, {role.value: secret}, known)
    outcome = coordinator.commit(multi, timeout_s=_TIMEOUT_S).result(_TIMEOUT_S + 1)
    if isinstance(outcome, Conflict):
        raise StateConflict("somebody else rotates secrets at the same time", hint="type the command again")
    if not isinstance(outcome, Committed):
        raise CoordinationUnavailable("it is not known whether the new secret was committed", hint="type the command again")
    coordinator.lists = RoleLists(roles)
