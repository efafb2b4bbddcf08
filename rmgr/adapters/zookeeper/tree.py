"""Access lists of a whole cluster, and of the znodes above it: checked, reported, and mended.

Does every znode have the list that `coord/protocol/acl.py` prescribes? A WatchDog asks when it sets a cluster up (and adopts a tree made
before the cluster was secured); so do a rotation of secrets, `rmgr doctor` and tests. Cost: two requests per znode, some 5,000 znodes a
second.

ZooKeeper's own `/` is closed to everybody but a cluster's admin and WatchDogs, with quotas below the cluster's path. A fresh server lets
anybody create znodes below `/` and `/zookeeper`, without credentials, until its memory is full. Here everything above the cluster's path
becomes read-only for clients without the admin's or the WatchDogs' secret. Undoing it takes one of these secrets, or the server's
own superuser (`zookeeper.DigestAuthenticationProvider.superDigest`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from rmgr.adapters.zookeeper.acl import OneList, RoleLists, role_of
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.adapters.zookeeper.server import ZkSecurity
from rmgr.adapters.zookeeper.wire import Acl
from rmgr.coord.protocol import acl, paths
from rmgr.coord.protocol.acl import ALL, Right, place_of
from rmgr.coord.protocol.multi import Committed, Create, Exists, Multi, Set
from rmgr.errors import CoordinationUnavailable, PermissionDenied, StateConflict

_BATCH = 200
#: What a server shows instead of a digest to clients that may not change the list.
_MASK = "x"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """A znode whose access list differs from the table."""

    path: str
    found: tuple[Acl, ...]
    expected: tuple[Acl, ...]

    def sentence(self, lists: RoleLists) -> str:
        """Describes the deviation for people, as in `/queues: anybody has rights 31`."""
        strange = [entry for entry in self.found if entry not in self.expected]
        who = ", ".join(f"{role_of(entry, lists.ids)} has rights {entry.perms}" for entry in strange)
        return f"{self.path}: {who or 'entries are missing'}"


@dataclass(slots=True)
class TreeReport:
    """Result of a check of the tree.

    hidden: znodes that the checker may not see. mended: number of lists that were set. places: lines of the table that were seen.
    """

    checked: int = 0
    mended: int = 0
    deviations: list[Deviation] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    places: set[str] = field(default_factory=set)


def check_tree(coordinator: ZkCoordinator, *, mend: bool = False, limit: int = 0, timeout_s: float = 10.0) -> TreeReport:
    """Checks every znode below the chroot, parents first.

    Args:
        mend: sets the right list where another is found; needs a role that may (admin, WatchDog).
        limit: stops after about this many znodes; 0 checks all.
        timeout_s: for each request.
    Raises: StateConflict in an open cluster; PermissionDenied if `mend` is not allowed; CoordinationUnavailable.
    """
    report = TreeReport()
    level = ["/"]
    while level:
        below: list[str] = []
        for batch in _batches(level):
            if limit and report.checked >= limit:
                return report
            _look_at(coordinator, batch, report, mend=mend, timeout_s=timeout_s)
            below += _children(coordinator, batch, timeout_s)
        level = below
    return report


def secure_tree(coordinator: ZkCoordinator) -> TreeReport:
    """Checks the first level before a WatchDog serves, and mends the whole tree if that level deviates.

    Raises: as `check_tree`.
    """
    report = TreeReport()
    _look_at(coordinator, ["/", paths.META, paths.IDS, paths.CONFIG, *paths.SKELETON], report, mend=False, timeout_s=_TIMEOUT_S)
    return check_tree(coordinator, mend=True) if report.deviations or report.hidden else report


def _look_at(coordinator: ZkCoordinator, batch: list[str], report: TreeReport, *, mend: bool, timeout_s: float) -> None:
    lists = coordinator.lists
    if not isinstance(lists, RoleLists):
        msg = "this cluster is open: its znodes have no access lists of roles"
        raise StateConflict(msg, hint="rmgr admin init makes credentials; [security] dir names them")
    asked = [(path, coordinator.access(path, timeout_s=timeout_s)) for path in batch]
    wrong: list[Deviation] = []
    for path, future in asked:
        try:
            found = future.result(timeout_s + 1.0)
        except PermissionDenied as error:
            if mend:
                raise _others(path) from error
            report.hidden.append(path)
            continue
        if found is None:
            continue
        report.checked += 1
        report.places.add(place_of(path))
        expected = lists.entries(path)
        if not _alike(found, expected):
            wrong.append(Deviation(path=path, found=found, expected=expected))
    report.deviations += wrong
    if mend:
        setting = [(item, coordinator.set_access(item.path, item.expected, timeout_s=timeout_s)) for item in wrong]
        for item, done in setting:
            try:
                done.result(timeout_s + 1.0)
            except PermissionDenied as error:
                raise _others(item.path) from error
            report.mended += 1


def _others(path: str) -> PermissionDenied:
    return PermissionDenied(
        f"the access list of {path} belongs to other credentials than these and cannot be changed",
        hint="is [security] dir the bundle of this cluster? the bundle of its admin opens every znode of it",
    )


def _children(coordinator: ZkCoordinator, batch: list[str], timeout_s: float) -> list[str]:
    found: list[str] = []
    for path, future in [(path, coordinator.children(path, timeout_s=timeout_s)) for path in batch]:
        try:
            names = future.result(timeout_s + 1.0) or []
        except PermissionDenied:
            continue
        found += [f"{path.rstrip('/')}/{name}" for name in sorted(names)]
    return found


def _alike(found: Iterable[Acl], expected: Iterable[Acl]) -> bool:
    found, expected = list(found), list(expected)
    masked = any(entry.scheme == "digest" and entry.id.partition(":")[2] == _MASK for entry in found)
    return _plain(found, masked=masked) == _plain(expected, masked=masked)


def _plain(entries: Iterable[Acl], *, masked: bool) -> set[tuple[int, str, str]]:
    return {(entry.perms, entry.scheme, entry.id.partition(":")[0] if masked else entry.id) for entry in entries}


def _batches(items: list[str]) -> Iterator[list[str]]:
    for at in range(0, len(items), _BATCH):
        yield items[at : at + _BATCH]


# -- ZooKeeper's own `/` -------------------------------------------------------------------------------------------------------


_OWN = "/zookeeper"
_QUOTA = f"{_OWN}/quota"
_LIMITS, _STATS = "zookeeper_limits", "zookeeper_stats"
_TIMEOUT_S = 10.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RootReport:
    """Changes made above the cluster. closed: paths whose access list was changed. quotas: subtrees whose quota was set or changed."""

    closed: tuple[str, ...] = ()
    quotas: tuple[str, ...] = ()


def above(chroot: str) -> list[str]:
    """Returns every path above a cluster's path, `/` first, and ZooKeeper's own paths."""
    parts = [part for part in chroot.split("/") if part]
    return ["/", *("/" + "/".join(parts[: depth + 1]) for depth in range(len(parts) - 1)), _OWN, _QUOTA]


def close_root(hosts: str, chroot: str, security: ZkSecurity, lists: RoleLists, *, heap_mib: int = acl.HEAP_MIB) -> RootReport:
    """Closes the znodes above `chroot` and sets the cluster's quotas there. Idempotent. Cost: 50 requests in one session.

    Args:
        security, lists: the admin's, or a WatchDog's. heap_mib: of ZooKeeper's servers.
    Raises: PermissionDenied if `/` already belongs to others; CoordinationUnavailable, NotConnected;
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
    """State of `/`. is_open: anybody may create znodes below `/`. used: subtree -> (usage, limit), for subtrees that have a quota."""

    is_open: bool
    used: Mapping[str, tuple[acl.Quota, acl.Quota]]


def look_at_root(hosts: str, chroot: str, security: ZkSecurity | None) -> RootLook:
    """Returns the state of `/` and the quotas. Cost: one session. Raises: CoordinationUnavailable, NotConnected."""
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
        # ZooKeeper counts the existing znodes when the second of the two appears, and keeps count from then on.
        stats = Create(f"{at}/{_STATS}", b"count=0,bytes=0")
        ops = (Create(f"{at}/{_LIMITS}", data), stats) if found is None else (Set(f"{at}/{_LIMITS}", data, found.version),)
        under_way[path] = root.commit(Multi(name="QUOTA", ops=ops, proof=Exists(f"{at}/{_LIMITS}", data)), timeout_s=_TIMEOUT_S)
    for path, answer in under_way.items():
        outcome = answer.result(_TIMEOUT_S + 1.0)
        if not isinstance(outcome, Committed):
            raise CoordinationUnavailable(f"the quota of {path} could not be set: {outcome}", hint="the same command again is safe")
    return list(under_way)
