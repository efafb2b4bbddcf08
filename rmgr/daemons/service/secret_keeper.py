"""Keeps a daemon's secret of ZooKeeper up to date: when its role's secret was rotated, a WatchDog hands over the new one.

A daemon whose key was revoked gets none, and stays outside. One that slept through the whole rotation is let in by the
same door: it knows from its bundle where WatchDogs were.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from rmgr.adapters.identity.credentials import Credentials, endpoints_file, known_endpoints, write_files
from rmgr.adapters.identity.pki import digest_id
from rmgr.adapters.rpc import join as rpc_join
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.config import Config
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.ports import SessionState
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import ConfigError, PermissionDenied, RmgrError
from rmgr.model.cluster.identity import AclRecord
from rmgr.model.cluster.node import Meta
from rmgr.procedures.bootstrap import verify
from rmgr.procedures.securing import watchdogs
from rmgr.runtime import machine
from rmgr.runtime.logger import Log
from rmgr.runtime.secured import zookeeper_options

_RETRY_S = 2.0
_TIMEOUT_S = 5.0


class SecretKeeper:
    """One thread that waits for `/acl` to change.

    Args:
        renewed: is told the new credentials, after the daemon's own session has taken them.
    """

    def __init__(
        self,
        coordinator: ZkCoordinator,
        credentials: Credentials,
        config: Config,
        log: Log,
        *,
        renewed: Callable[[Credentials], None] = lambda _: None,
    ) -> None:
        self._coordinator = coordinator
        self._credentials = credentials
        self._config = config
        self._log = log
        self._renewed = renewed
        self._wake = threading.Event()
        self._over = False
        self._endpoints: tuple[str, ...] = ()
        self._thread = machine.Thread(target=self._run, name="secret-keeper", daemon=True)

    def start(self) -> SecretKeeper:
        """Looks at once, and then whenever `/acl` or the session has changed."""
        self._coordinator.listen(self._on_state)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ends the thread. Idempotent."""
        self._over = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def _on_state(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._wake.set()

    def _run(self) -> None:
        wait_s: float | None = None
        while True:
            self._wake.wait(wait_s)
            self._wake.clear()
            if self._over:
                return
            try:
                self._look()
                wait_s = None
            except RmgrError as error:
                if self._over:
                    return
                self._log.warning("secret_not_renewed", error=error.message)
                wait_s = _RETRY_S

    def _look(self) -> None:
        role, auth = self._credentials.identity.role, self._credentials.zookeeper_auth
        if auth is None:
            return
        generation = 0
        try:
            found = self._coordinator.get(paths.ACL, watch=self._wake.set, timeout_s=_TIMEOUT_S).result(_TIMEOUT_S + 1)
            self._note_endpoints(watchdogs(self._coordinator))
            if found is None:
                return
            record = decode_record(found.data, AclRecord, paths.ACL)
            ids, generation = record.roles.get(role, ()), record.generation
            if not ids or ids[-1] == digest_id(role, auth[1].partition(":")[2]):
                return
        except PermissionDenied:  # the rotation is over, and our secret with it
            pass
        self._credentials = renew(self._credentials, self._endpoints or known_endpoints(self._credentials), generation)
        self._coordinator.renew(zookeeper_options(self._config, self._credentials, insecure=True)["security"])
        self._log.info("secret_renewed", role=str(role))
        self._renewed(self._credentials)

    def _note_endpoints(self, endpoints: tuple[str, ...]) -> None:
        if endpoints and endpoints != self._endpoints:
            self._endpoints = endpoints
            if endpoints != known_endpoints(self._credentials):
                _keep(self._credentials, endpoints_file(endpoints))


def renew(credentials: Credentials, endpoints: Sequence[str], generation: int = 0) -> Credentials:
    """The same identity with the newest secret of its role, kept in its bundle where that can be written.

    Raises: PermissionDenied when it was revoked; Unavailable when no WatchDog answers.
    """
    _, secret = rpc_join.renew(endpoints, credentials, generation)
    _keep(credentials, {"zookeeper.secret": secret.encode()})
    return replace(credentials, zookeeper_auth=("digest", secret))


def let_in(coordinator: ZkCoordinator, credentials: Credentials, config: Config, log: Log) -> Credentials:
    """For a daemon that ZooKeeper does not let in at its start: the new secret, if a WatchDog still believes its key.

    Raises: PermissionDenied, Unavailable.
    """
    endpoints = known_endpoints(credentials)
    if not endpoints:
        who = credentials.identity
        raise PermissionDenied(
            f"ZooKeeper does not take the secret of role {who.role} in {credentials.directory} for one of this cluster",
            hint=f"is it the bundle of this cluster ({who.cluster})? if the secret was rotated since, the bundle never met a WatchDog who "
            f"could give it the new one: take a fresh one from AUTHORITY/bundles, or rmgr admin add-node {who.name} --renew",
        )
    fresh = renew(credentials, endpoints)
    if fresh.zookeeper_auth == credentials.zookeeper_auth:
        raise PermissionDenied(
            f"ZooKeeper refuses the secret of role {credentials.identity.role}, and it is the newest one", hint="rmgr doctor"
        )
    coordinator.renew(zookeeper_options(config, fresh, insecure=True)["security"])
    log.info("secret_renewed", role=str(fresh.identity.role))
    return fresh


def recognise(
    coordinator: ZkCoordinator, credentials: Credentials | None, config: Config, known: str | None, *, wait_s: float, log: Log
) -> tuple[Meta, Credentials | None]:
    """The cluster that ZooKeeper belongs to, and the credentials that it takes: with a new secret where the old one was rotated.

    Args:
        known: the id that the data store remembers, where the configuration names none. wait_s: for a new cluster's WatchDog.
    Raises: as `verify` and `let_in`.
    """
    expected = config.cluster.cluster_id or known
    try:
        return verify(coordinator, expected, wait_s=wait_s), credentials
    except PermissionDenied:
        if credentials is None:
            raise
    fresh = let_in(coordinator, credentials, config, log)
    return verify(coordinator, expected, wait_s=wait_s), fresh


def _keep(credentials: Credentials, files: Mapping[str, bytes]) -> None:
    """A bundle on a read-only volume stays as it is: what changed is fetched again after a restart."""
    try:
        write_files(credentials.directory, files, replace=True)
    except (OSError, ConfigError):
        return
