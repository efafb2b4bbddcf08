"""ZooKeeper's own `/`: closed to everybody but a cluster's admin and WatchDogs, with quotas below the cluster's path.

A fresh server lets anybody create znodes below `/` and `/zookeeper`, without credentials, until its memory is full. Here everything above
the cluster's path becomes readable only; ZooKeeper refuses the rest to whoever does not know the admin's or the WatchDogs' secret. Nobody
can undo it without one of them, or the server's own superuser (`zookeeper.DigestAuthenticationProvider.superDigest`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from rmgr.adapters.zookeeper.acl import OneList, RoleLists
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.adapters.zookeeper.link import ZkSecurity
from rmgr.adapters.zookeeper.wire import Acl
from rmgr.coord.protocol import acl
from rmgr.coord.protocol.acl import ALL, Right
from rmgr.coord.protocol.multi import Committed, Create, Exists, Multi, Set
from rmgr.errors import CoordinationUnavailable, PermissionDenied, StateConflict

_OWN = "/zookeeper"
_QUOTA = f"{_OWN}/quota"
_LIMITS, _STATS = "zookeeper_limits", "zookeeper_stats"
_TIMEOUT_S = 10.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RootReport:
    """closed: paths whose access list was changed now. quotas: subtrees whose quota was set or changed now."""

    closed: tuple[str, ...] = ()
    acl: tuple[str, ...] = ()


def above(chroot: str) -> list[str]:
    """Everything that lies over a cluster's path, `/` first, and what ZooKeeper keeps for itself."""
    parts = [part for part in chroot.split("/") if part]
    return ["/", *("/" + "/".join(parts[: depth + 1]) for depth in range(len(parts) - 1)), _OWN, _QUOTA]


def close_root(hosts: str, chroot: str, security: ZkSecurity, lists: RoleLists, *, heap_mib: int = acl.HEAP_MIB) -> RootReport:
    """Closes what lies above `chroot`, and sets the quotas of the cluster there. Idempotent. Cost: 50 requests in one session.

    Args:
        security, lists: the admin's, or a WatchDog's. heap_mib: of ZooKeeper's servers.
    Raises: PermissionDenied when `/` belongs to others already; CoordinationUnavailable, NotConnected;
        StateConflict for a cluster at `/` itself.
    """
    if not chroot.strip("/"):
        raise StateConflict("this cluster lives at ZooKeeper's / itself: its access list is the cluster's own", hint="--zk HOSTS/rmgr/NAME")
    owners = tuple(entry for entry in lists.entries("/") if entry.perms == int(ALL))
    closed = (Acl(perms=int(Right.READ)), *owners)
    with ZkCoordinator.connect(hosts, "", security=security, acl=OneList(closed)) as root:
        return RootReport(closed=tuple(_close(root, above(chroot), closed)), quotas=tuple(_set_quotas(root, chroot, heap_mib)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RootLook:
    """is_open: anybody may create below `/`. used: subtree -> (what is there, what may be), for those that have a quota."""

    is_open: bool
    used: Mapping[str, tuple[acl.Quota, acl.Quota]]


def look_at_root(hosts: str, chroot: str, security: ZkSecurity | None) -> RootLook:
    """How it stands with `/` and the quotas. Cost: one session. Raises: CoordinationUnavailable, NotConnected."""
    with ZkCoordinator.connect(hosts, "", security=security) as root:
        entries = _allowed(root.access("/", timeout_s=_TIMEOUT_S))
        used = _used(root, chroot, acl.SHARES)
    return RootLook(is_open=any(one.scheme == "world" and one.perms & int(Right.CREATE) for one in entries or ()), used=used)


def _used(root: ZkCoordinator, chroot: str, places: Collection[str]) -> dict[str, tuple[acl.Quota, acl.Quota]]:
    asked = {
        place: [root.get(f"{_QUOTA}/{chroot.strip('/')}{place}/{name}", timeout_s=_TIMEOUT_S) for name in (_STATS, _LIMITS)]
        for place in places
    }
    told = {place: [_allowed(future) for future in futures] for place, futures in asked.items()}
    return {place: (acl.decode(there.data), acl.decode(limit.data)) for place, (there, limit) in told.items() if there and limit}


def _allowed(answer: Future[T]) -> T | None:
    try:
        return answer.result(_TIMEOUT_S + 1.0)
    except PermissionDenied:
        return None


def _close(root: ZkCoordinator, paths: list[str], closed: tuple[Acl, ...]) -> list[str]:
    root.ensure(paths, timeout_s=_TIMEOUT_S)
    found = {path: root.access(path, timeout_s=_TIMEOUT_S) for path in paths}
    entries = {path: _ours(path, answer) for path, answer in found.items()}
    wrong = [path for path, ones in entries.items() if set(ones or ()) != set(closed)]
    setting = {path: root.set_access(path, closed, timeout_s=_TIMEOUT_S) for path in wrong}
    for path, answer in setting.items():
        _ours(path, answer)
    return wrong


def _ours(path: str, answer: Future[T]) -> T:
    try:
        return answer.result(_TIMEOUT_S + 1.0)
    except PermissionDenied as error:
        raise PermissionDenied(
            f"the access list of {path} in ZooKeeper belongs to others and cannot be changed",
            hint="another cluster, or whoever runs the servers, has closed it: it protects this cluster, too",
        ) from error


def _set_quotas(root: ZkCoordinator, chroot: str, heap_mib: int) -> list[str]:
    limits = {f"/{chroot.strip('/')}{place}": acl.encode(quota) for place, quota in acl.limits(heap_mib).items()}
    root.ensure([f"{_QUOTA}{path}" for path in limits], timeout_s=_TIMEOUT_S)
    asked = {path: root.get(f"{_QUOTA}{path}/{_LIMITS}", timeout_s=_TIMEOUT_S) for path in limits}
    under_way = {}
    for path, data in limits.items():
        at = f"{_QUOTA}{path}"
        found = asked[path].result(_TIMEOUT_S + 1.0)
        if found is not None and found.data == data:
            continue
        # ZooKeeper counts what is there when the second of the two appears, and then by itself.
        stats = Create(f"{at}/{_STATS}", b"count=0,bytes=0")
        ops = (Create(f"{at}/{_LIMITS}", data), stats) if found is None else (Set(f"{at}/{_LIMITS}", data, found.version),)
        under_way[path] = root.commit(Multi(name="QUOTA", ops=ops, proof=Exists(f"{at}/{_LIMITS}", data)), timeout_s=_TIMEOUT_S)
    for path, answer in under_way.items():
        outcome = answer.result(_TIMEOUT_S + 1.0)
        if not isinstance(outcome, Committed):
            raise CoordinationUnavailable(f"the quota of {path} could not be set: {outcome}", hint="the same command again is safe")
    return list(under_way)
