"""Opens what every daemon works with, ZooKeeper, the data store and its own gRPC server; and whom that serves, within which limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from rmgr import log as logs
from rmgr.adapters.access.auth import Caller, Refused
from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.identity.trust import Trust
from rmgr.adapters.rpc.server import RpcServer
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.config import Config
from rmgr.coord.decisions.rights import ANYBODY, Person
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import InvalidRecord, PermissionDenied, RmgrError
from rmgr.log import audit
from rmgr.model.cluster.identity import Identity
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.runtime import machine
from rmgr.runtime.logger import Log
from rmgr.runtime.secured import open_zookeeper
from rmgr.runtime.store_watch import WatchedStore, meet_store

_TIMEOUT_S, _AGAIN_S = 10.0, 2.0


def open_server(
    listen: str, credentials: Credentials | None, trust: Trust | None, log: Log, *, threads: int = 96, bounds: Bounds | None = None
) -> RpcServer:
    """The gRPC server of a daemon: in a secured cluster everybody is asked who they are, and a revoked key is refused."""
    if credentials is None:
        return RpcServer(listen, threads=threads, bounds=bounds)
    is_revoked = trust.is_revoked if trust is not None else lambda _: False
    return RpcServer(listen, threads=threads, credentials=credentials, is_revoked=is_revoked, refused=refused_calls(log), bounds=bounds)


def refused_calls(log: Log) -> Refused:
    """Writes every gRPC call that was turned away to the audit."""

    def refused(method: str, who: Identity | None, why: str) -> None:
        audit(log, who=who.name if who else "", role=who.role.value if who else "", what=method, allowed=False, why=why)

    return refused


@contextmanager
def opened(
    config: Config, credentials: Credentials | None, log: Log, *, insecure: bool, create: bool = True
) -> Iterator[tuple[ZkCoordinator, WatchedStore, str | None]]:
    """Yields a session that is connected, the store, and the cluster id that the store remembers (None: none, or it is away).

    Args: insecure: see `runtime.secured.check_exposure`. create: a store that is a file is made.
    Raises: NotConnected after `connect_timeout_s`; ConfigError, StoreUnavailable as `meet_store`.
    """
    coordinator = open_zookeeper(config, credentials, insecure=insecure)
    try:
        wait_s = config.cluster.connect_timeout_s
        coordinator.require_connected(wait_s)
        store, known = meet_store(config.cluster.store, log=log, patience_s=wait_s, create=create)
        try:
            yield coordinator, store, known
        finally:
            store.close()
    finally:
        coordinator.close(timeout_s=2.0)


class LimitsKeeper:
    """Reads /config, watches it, and puts the limits into `bounds` and the book of audit lines. Never blocks, never ends."""

    def __init__(self, coordinator: Coordinator, bounds: Bounds, log: Log) -> None:
        self._coordinator = coordinator
        self._bounds = bounds
        self._log = log

    def start(self) -> LimitsKeeper:
        """Begins to read."""
        self._read()
        return self

    def _read(self) -> None:
        asked = self._coordinator.get(paths.CONFIG, watch=self._read, timeout_s=_TIMEOUT_S)
        asked.add_done_callback(self._answered)

    def _answered(self, asked: Future[Stamped | None]) -> None:
        try:
            found = asked.result()
            settings = decode_record(found.data, ClusterSettings, paths.CONFIG) if found is not None and found.data else ClusterSettings()
        except RmgrError as error:
            self._log.warning("limits_unreadable", error=error.message)
            again = machine.Timer(_AGAIN_S, self._read)
            again.daemon = True
            again.start()
            return
        if settings.limits != self._bounds.limits:
            self._log.info("limits_changed")
        self._bounds.limits = settings.limits
        logs.BOOK.lines = settings.limits.audit_lines


def person_of(caller: Caller | None, operators: Iterable[str] = ()) -> Person:
    """operators: names of `[security] operators`. caller None: this process itself."""
    if caller is None or caller.is_open:
        return ANYBODY if caller is None or not caller.user else Person(name=caller.user, is_open=True)
    who = caller.who
    return Person(name=caller.user, role=str(who.role) if who is not None else "", is_operator=caller.is_operator(operators))


@contextmanager
def audited(log: Log | None, person: Person, what: str, target: str) -> Iterator[None]:
    """A refusal within it is written to the audit, and goes on. log: None = there is none."""
    try:
        yield
    except (PermissionDenied, InvalidRecord) as error:
        if log is not None:
            audit(log, who=person.name, role=person.role, what=what, target=target, allowed=False, why=error.message)
        raise
