"""Does every znode of a cluster have the access list that `coord/protocol/acl.py` says? Looks, tells, and mends.

Used when a WatchDog sets a cluster up (a tree made before it was secured is taken over), after a rotation of secrets, by
`rmgr doctor` and by tests. Cost: two requests a znode, some 5,000 znodes a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rmgr.adapters.zookeeper.acl import RoleLists, role_of
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.adapters.zookeeper.wire import Acl
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.acl import place_of
from rmgr.errors import PermissionDenied, StateConflict

_BATCH = 200
#: What a server shows of a digest to those who may not change the list.
_MASK = "x"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """A znode whose access list is not what the table says."""

    path: str
    found: tuple[Acl, ...]
    expected: tuple[Acl, ...]

    def sentence(self, lists: RoleLists) -> str:
        """`/queues: anybody has rights 31` and the like, for people."""
        strange = [entry for entry in self.found if entry not in self.expected]
        who = ", ".join(f"{role_of(entry, lists.ids)} has rights {entry.perms}" for entry in strange)
        return f"{self.path}: {who or 'entries are missing'}"


@dataclass(slots=True)
class TreeReport:
    """Result of a look at the tree.

    hidden: znodes that the looker may not see. mended: how many lists were set. places: lines of the table that were seen.
    """

    checked: int = 0
    mended: int = 0
    deviations: list[Deviation] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    places: set[str] = field(default_factory=set)


def check_tree(coordinator: ZkCoordinator, *, mend: bool = False, limit: int = 0, timeout_s: float = 10.0) -> TreeReport:
    """Looks at every znode below the chroot, parents first.

    Args:
        mend: sets the right list where another is; takes a role that may (admin, WatchDog).
        limit: stops after about so many znodes, 0 = looks at all.
        timeout_s: of each request.
    Raises: StateConflict in an open cluster; PermissionDenied when `mend` is not allowed; CoordinationUnavailable.
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


def secure_tree(coordinator: ZkCoordinator, *, timeout_s: float = 10.0) -> TreeReport:
    """What a WatchDog does before it serves: one look at the first level, and the whole tree is mended if that deviates.

    Raises: as `check_tree`.
    """
    report = TreeReport()
    _look_at(coordinator, ["/", paths.META, paths.IDS, paths.CONFIG, *paths.SKELETON], report, mend=False, timeout_s=timeout_s)
    return check_tree(coordinator, mend=True, timeout_s=timeout_s) if report.deviations or report.hidden else report


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
