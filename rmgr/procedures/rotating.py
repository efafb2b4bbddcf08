"""Rotation of a role's secret of ZooKeeper, so that a credential that left the cluster opens nothing any more.

In three steps, each of which may be repeated: both secrets are good; daemons fetch the new one from a WatchDog, if their
key is still believed; the old one is good for nothing. Work goes on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rmgr.adapters.identity.credentials import write_files
from rmgr.adapters.identity.invitation import seal_secret
from rmgr.adapters.identity.pki import Authority, digest_id
from rmgr.adapters.zookeeper.acl import RoleLists
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.adapters.zookeeper.tree import check_tree
from rmgr.coord.ops import membership
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import CoordinationUnavailable, StateConflict, UsageError
from rmgr.model.base.units import counted, format_duration
from rmgr.model.cluster.identity import Role
from rmgr.model.cluster.joining import AclRecord, SealedSecret
from rmgr.runtime import machine

_TIMEOUT_S = 10.0
#: Those whose secret opens the others, or who has it written down: they get new bundles.
_NOT_HERE = (Role.WATCHDOG, Role.ADMIN)
#: Znodes made by somebody who had not heard yet are mended in further rounds.
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
    """Gives `role` a new secret; returns the authority as it is now, also written to `directory`.

    Args:
        grace_s: how long the old secret stays good beside the new one.
    Raises: UsageError for a role that cannot be rotated so; StateConflict when somebody else rotates; CoordinationUnavailable
        (type the command again: it goes on from wherever it was).
    """
    if role in _NOT_HERE:
        hint = "make new bundles of it and restart its daemons one by one"
        raise UsageError(f"the secret of role {role} is not rotated while the cluster runs", hint=hint)
    fresh = machine.random_hex(24)
    old_id = digest_id(role, authority.secrets[role])
    renewed = replace(authority, secrets={**authority.secrets, role.value: fresh})
    # The new one is on disk before anybody uses it; the old one is of no use to us: the admin's own is another.
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
    """ROTATE, and what this process writes from now on follows it."""
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
