"""The tree of a cluster: made by the first WatchDog, and recognised by everyone else.

`bootstrap` is for WatchDogs; Starters and clients call `verify`. A cluster's id ties its tree to its data store: an
empty tree with a remembered id was wiped, or belongs to another ensemble, and must not be used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict
from rmgr.coord.protocol.ports import Coordinator, Store
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import CoordinationUnavailable, NotConnected, PermissionDenied, StoreUnavailable, Unavailable, WrongCluster
from rmgr.model.node import Meta
from rmgr.model.queue import ClusterSettings
from rmgr.model.version import PROTOCOL, WIPED, check_cluster
from rmgr.runtime import machine

_STORE_AWAY = "work that runs goes on, its results wait on their nodes; submit again when the store is back; rmgr doctor looks closer"


def bootstrap(
    coordinator: Coordinator, cluster_id: str | None = None, *, settings: ClusterSettings | None = None, timeout_s: float = 10.0
) -> Meta:
    """Makes the missing parts of the cluster's tree; any number of processes may call it at once, and again.

    Args:
        cluster_id: the id that this process remembers (from its configuration or data store), None if none.
        settings: of a new cluster; an existing one keeps its own.
    Raises: WrongCluster if the tree belongs to another cluster, or is empty although an id is remembered;
        CoordinationUnavailable.
    """
    meta = read_meta(coordinator, timeout_s=timeout_s)
    if meta is None:
        if cluster_id:
            raise WrongCluster(f"there is no cluster in ZooKeeper, but cluster {cluster_id} is expected", hint=WIPED)
        meta = _set_up_cluster(coordinator, settings or ClusterSettings(), timeout_s)
    check_cluster(meta, cluster_id)
    coordinator.ensure([*paths.SKELETON, *_queue_directories(read_settings(coordinator, timeout_s=timeout_s))], timeout_s=timeout_s)
    return meta


def verify(coordinator: Coordinator, cluster_id: str | None = None, *, wait_s: float = 0.0, timeout_s: float = 10.0) -> Meta:
    """Returns the cluster that this tree belongs to.

    Args:
        cluster_id: the expected id, None for any.
        wait_s: how long to wait for a WatchDog to set up a new cluster.
    Raises: NotConnected if there is no cluster and none was expected; WrongCluster, also for a process with credentials in an open
        one; CoordinationUnavailable.
    """
    deadline_s = machine.monotonic() + wait_s
    while (found := read_meta(coordinator, timeout_s=timeout_s)) is None and machine.monotonic() < deadline_s:
        machine.sleep(min(0.1, max(0.0, deadline_s - machine.monotonic())))
    meta = check_found(found, cluster_id)
    while _is_open_to_us(coordinator, timeout_s):
        if machine.monotonic() >= deadline_s:  # until then a WatchDog may be securing the tree
            raise WrongCluster(
                "that cluster in ZooKeeper is open, and here are credentials",
                hint="is --zk right? for an open cluster unset [security] dir (RMGR_SECURITY_DIR); a WatchDog with a bundle secures it",
            )
        machine.sleep(0.1)
    return meta


def check_found(found: Meta | None, cluster_id: str | None) -> Meta:
    """Returns the found cluster for a process that expects `cluster_id` (None: any). Raises NotConnected, WrongCluster."""
    if found is None:
        if cluster_id:
            raise WrongCluster(f"there is no cluster in ZooKeeper, but cluster {cluster_id} is expected", hint=WIPED)
        raise NotConnected(
            "ZooKeeper answers, but there is no rmgr cluster in it", hint="start a WatchDog: rmgr watchdog   (or all: rmgr dev)"
        )
    check_cluster(found, cluster_id)
    return found


#: Time limit of a read that shows that the store is there: enough for its second node if the first does not answer (a request waits 4 s).
STORE_READ_S = 8.0


def require_store(store: Store, *, timeout_s: float = 5.0) -> None:
    """Raises StoreUnavailable if the data store does not answer: submitted work could not end. Cost: one small read."""
    try:
        store.cluster_id(timeout_s=timeout_s)
    except StoreUnavailable as error:
        raise not_submitted(error) from error


def store_problem(store: Store, *, timeout_s: float = 5.0) -> str | None:
    """Returns what `Store.health` says. A problem is asked for again: the first answer may be late only because this machine stood still.

    timeout_s: of each of the two.
    """
    return store.health(timeout_s=timeout_s) and store.health(timeout_s=timeout_s)


def not_submitted(error: StoreUnavailable, *, named_by: str = "") -> StoreUnavailable:
    """Returns the error of a missing store in words for a submitting user. named_by: the option or variable of his that names it."""
    hint = f"is that the cluster's? it comes from {named_by}; rmgr doctor looks closer" if named_by else _STORE_AWAY
    return StoreUnavailable(f"nothing was submitted, for the data store is away: {error.message}", hint=hint)


def read_meta(coordinator: Coordinator, *, timeout_s: float = 10.0) -> Meta | None:
    """Reads `/meta`, None if there is no cluster. Raises CoordinationUnavailable, WrongCluster, PermissionDenied."""
    coordinator.sync(timeout_s=timeout_s)
    try:
        found = coordinator.get(paths.META, timeout_s=timeout_s).result(timeout_s + 1.0)
    except PermissionDenied as error:
        raise _stranger_error(str(getattr(coordinator, "credential", ""))) from error
    return None if found is None else decode_record(found.data, Meta, paths.META)


def check_same(found: Meta | None, cluster_id: str) -> Meta:
    """Returns the cluster found by a process that knew it before. Raises WrongCluster if ZooKeeper holds another cluster now, or none."""
    if found is None or found.cluster_id != cluster_id:
        message = "was wiped" if found is None else f"belongs to cluster {found.cluster_id} now"
        raise WrongCluster(f"ZooKeeper {message}; cluster {cluster_id} was there", hint="restore its data; rmgr doctor reports more")
    return found


def read_settings(coordinator: Coordinator, *, timeout_s: float = 10.0) -> ClusterSettings:
    """Reads `/config`, or returns its defaults."""
    found = coordinator.get(paths.CONFIG, timeout_s=timeout_s).result(timeout_s + 1.0)
    return ClusterSettings() if found is None else decode_record(found.data, ClusterSettings, paths.CONFIG)


def _set_up_cluster(coordinator: Coordinator, settings: ClusterSettings, timeout_s: float) -> Meta:
    """Commits SETUP."""
    from rmgr.coord.ops import membership  # of use once in the life of a cluster

    coordinator.ensure(["/"], timeout_s=timeout_s)
    meta = Meta(cluster_id=machine.guid(), created_us=machine.wall_us(), protocol=PROTOCOL, oldest=PROTOCOL)
    answer = coordinator.commit(membership.set_up(meta, settings), timeout_s=timeout_s).result(timeout_s + 1.0)
    match answer:
        case Committed():
            return meta
        case Conflict():
            other = read_meta(coordinator, timeout_s=timeout_s)
            if other is not None:
                return other
    raise CoordinationUnavailable(f"the cluster could not be set up: {answer}", hint="rmgr doctor")


def _stranger_error(credential: str) -> PermissionDenied:
    """Returns the error for a process that ZooKeeper does not let in. credential: the role whose secret was shown, "" = none."""
    if not credential:
        return PermissionDenied(
            "this cluster is secured, and ZooKeeper does not know this process",
            hint="ask its admin for credentials (a person: rmgr admin add-user NAME; a daemon: rmgr admin add-node NAME), "
            "then set RMGR_SECURITY_DIR to their directory",
        )
    return PermissionDenied(
        f"ZooKeeper does not take the secret of role {credential} in these credentials for one of this cluster",
        hint="does [security] dir (RMGR_SECURITY_DIR) belong to this cluster, and was the secret rotated since? its admin has new ones",
    )


def _is_open_to_us(coordinator: Coordinator, timeout_s: float) -> bool:
    """Whether a process with credentials looks at an open cluster, whose daemons could not read what it writes. Cost: one request."""
    access = getattr(coordinator, "access", None)
    if access is None or not getattr(coordinator, "credential", ""):
        return False
    found = access(paths.META, timeout_s=timeout_s).result(timeout_s + 1.0)
    return any(entry.scheme == "world" for entry in found or ())


def _queue_directories(settings: ClusterSettings) -> list[str]:
    return [path for queue in settings.queues for path in (paths.pending(queue.name), paths.held(queue.name))]


# -- settings for frequent readers ---------------------------------------------------------------------------------------------


#: Greatest age of the settings.
FRESH_S = 5.0


class FreshSettings:
    """Returns settings when called. read: reads them; if that fails, the last ones are used. Thread-safe: two threads may read at once."""

    def __init__(self, read: Callable[[], ClusterSettings]) -> None:
        self._read = read
        self._known = ClusterSettings()
        self._read_s = -math.inf

    def __call__(self) -> ClusterSettings:
        now_s = machine.monotonic()
        if now_s - self._read_s > FRESH_S:
            self._read_s = now_s
            with suppress(Unavailable):
                self._known = self._read()
        return self._known
