"""Data that a daemon keeps up to date by itself: its ZooKeeper secret, the limits of users, what users wrote today."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace

import msgspec

from rmgr import log as logs
from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.identity.credentials import Credentials, endpoints_file, known_endpoints, write_files
from rmgr.adapters.identity.pki import digest_id
from rmgr.adapters.rpc import services
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.config import Config
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.ports import Coordinator, SessionState, Store
from rmgr.coord.protocol.records import UNREADABLE, cut, decode_record
from rmgr.errors import ConfigError, DataLost, PermissionDenied, RmgrError
from rmgr.model.identity import AclRecord
from rmgr.model.node import Meta
from rmgr.model.queue import ClusterSettings
from rmgr.model.stream import json_decoder
from rmgr.procedures.bootstrap import verify
from rmgr.procedures.bounded import row_of
from rmgr.procedures.securing import watchdogs
from rmgr.runtime import machine
from rmgr.runtime.machine import Log
from rmgr.runtime.secured import zookeeper_options

#: Pause before a WatchDog is asked again for a secret, and time limit of its answer.
_RETRY_S, _TIMEOUT_S = 2.0, 5.0
#: Time limit of reading `/config`, and pause before it is read again.
_CONFIG_S, _AGAIN_S = 10.0, 2.0
#: Interval between saves of what users wrote, and time limit of the store.
SAVE_S = 2.0
_STORE_S = 10.0
_HOUR_S = 3600
#: Lifetime of the row of a daemon that never comes back.
_TTL_S = 2 * 86_400.0
#: More than a user can write within a day: a row with more was not written by a daemon.
_MOST = 1 << 62
#: 24 hours of 10,000 users take a fifth of it.
MOST_ROW_BYTES = 32 * 2**20


class SecretKeeper:
    """A thread that waits for `/acl` to change: after a rotation of its role's secret, a WatchDog hands over the new one.

    A daemon whose key was revoked gets none, and stays out. A daemon that missed the whole rotation is let in the same way: it
    knows from its bundle where WatchDogs were.

    Args:
        renewed: called with the new credentials, after the daemon's own session has taken them.
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
        """Looks at once, and again whenever `/acl` or the session changes."""
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
        except PermissionDenied:  # the rotation is over, and the old secret invalid
            pass
        self._credentials = renew(self._credentials, self._endpoints or known_endpoints(self._credentials), generation)
        self._coordinator.renew(zookeeper_options(self._config, self._credentials, insecure=True)["security"])
        self._log.info("secret_renewed", role=str(role))
        self._renewed(self._credentials)

    def _note_endpoints(self, endpoints: tuple[str, ...]) -> None:
        if endpoints and endpoints != self._endpoints:
            self._endpoints = endpoints
            if endpoints != known_endpoints(self._credentials):
                _update_bundle(self._credentials, endpoints_file(endpoints))


def renew(credentials: Credentials, endpoints: Sequence[str], generation: int = 0) -> Credentials:
    """Returns the same identity with the newest secret of its role, also kept in its bundle if that is writable.

    Raises: PermissionDenied if its key was revoked; Unavailable if no WatchDog answers.
    """
    _, secret = services.renew(endpoints, credentials, generation)
    _update_bundle(credentials, {"zookeeper.secret": secret.encode()})
    return replace(credentials, zookeeper_auth=("digest", secret))


def let_in(coordinator: ZkCoordinator, credentials: Credentials, config: Config, log: Log) -> Credentials:
    """Gets the new secret for a daemon that ZooKeeper refuses at its start, if a WatchDog still believes its key.

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
    """Returns ZooKeeper's cluster and the accepted credentials: with the new secret if the old one was rotated.

    Args:
        known: cluster id in the data store, used if the configuration names none. wait_s: for a new cluster's WatchDog.
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


def _update_bundle(credentials: Credentials, files: Mapping[str, bytes]) -> None:
    """Writes to the bundle. A read-only bundle stays as it is: a restart fetches the changes again."""
    try:
        write_files(credentials.directory, files, replace=True)
    except (OSError, ConfigError):
        return


# -- limits of users -------------------------------------------------------------------------------------------------------


class LimitsKeeper:
    """Reads and watches /config, and puts the limits into `bounds` and the book of audit lines. Never blocks, never ends."""

    def __init__(self, coordinator: Coordinator, bounds: Bounds, log: Log) -> None:
        self._coordinator = coordinator
        self._bounds = bounds
        self._log = log

    def start(self) -> LimitsKeeper:
        """Starts reading."""
        self._read()
        return self

    def _read(self) -> None:
        asked = self._coordinator.get(paths.CONFIG, watch=self._read, timeout_s=_CONFIG_S)
        asked.add_done_callback(self._on_config)

    def _on_config(self, read: Future[Stamped | None]) -> None:
        try:
            found = read.result()
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


# -- what users wrote today ------------------------------------------------------------------------------------------------
# Kept in a row of the store, for a gateway or Starter that restarts: what users wrote through it within a day. The row is saved
# every few seconds while users write, and at the end. A daemon that is killed forgets at most those seconds.


class WrittenToday(msgspec.Struct, frozen=True):
    """The row. by_user: user -> hour since 1970 (UTC) -> bytes."""

    format: int
    by_user: dict[str, dict[int, int]]


def decode_written(data: bytes) -> WrittenToday:
    """Decodes the row. Raises DataLost."""
    try:
        return json_decoder(WrittenToday).decode(data)
    except UNREADABLE as error:
        raise DataLost(f"what users have written today cannot be read: {cut(error)}") from None


class WrittenKeeper:
    """Reads the row of the daemon `name` into `bounds`, then keeps it up to date. Never blocks its caller except in `close`.

    Args: name: a gateway's listening address, or `starter-` and the first node of a Starter. wall: seconds since 1970.
    """

    def __init__(self, store: Store, name: str, bounds: Bounds, log: Log, *, wall: Callable[[], float] | None = None) -> None:
        self._store = store
        self._row = keys.use(name)
        self._bounds = bounds
        self._log = log
        self._wall = wall or machine.wall_s
        self._end = threading.Event()
        self._saved: dict[str, dict[int, int]] | None = None  #: None: the row was not read yet
        self._thread = machine.Thread(target=self._run, name="written", daemon=True)

    def start(self, *, waits: bool = True) -> WrittenKeeper:
        """Begins: reads the row as soon as the store answers. waits: for the first answer."""
        if waits:
            self._load_or_save()
        self._thread.start()
        return self

    def close(self) -> None:
        """Saves what is known. Takes a few seconds at most."""
        self._end.set()
        self._thread.join(_STORE_S)

    def _run(self) -> None:
        while not self._end.is_set():
            self._load_or_save()
            self._end.wait(SAVE_S)
        self._load_or_save()

    def _load_or_save(self) -> None:
        try:
            if self._saved is None:
                self._load()
            else:
                self._save()
        except RmgrError:
            return  # the store is away, as others report; retried in a moment
        except Exception:  # noqa: BLE001 - the loop boundary: the count goes on in memory
            self._log.exception("written_not_kept")

    def _load(self) -> None:
        try:
            found = row_of(self._store, self._row, MOST_ROW_BYTES, timeout_s=_STORE_S)
            row = decode_written(found) if found is not None else None
        except DataLost as error:
            self._log.warning("written_unreadable", row=self._row, error=str(error)[:200])
            row = None
        self._saved = {}
        if row is None:
            return
        now = int(self._wall()) // _HOUR_S
        sane = {user: {now - at: size for at, size in hours.items() if 0 < size < _MOST} for user, hours in row.by_user.items()}
        self._bounds.recall(sane)
        self._log.info("written_recalled", users=len(sane))

    def _save(self) -> None:
        now = int(self._wall()) // _HOUR_S
        by_user = {user: {now - ago: size for ago, size in hours.items()} for user, hours in self._bounds.written().items()}
        if by_user == self._saved:
            return
        self._store.put(self._row, msgspec.json.encode(WrittenToday(1, by_user)), ttl_s=_TTL_S, timeout_s=_STORE_S)
        self._saved = by_user
