"""A process's connection to a cluster: one per cluster, made when first needed, closed at the end of the process.

    rmgr.connect().store.put("in/7", value)
A forked child gets a new connection from `connect()`; objects made before the fork raise NotConnected instead of hanging.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from rmgr.client import futures
from rmgr.client.futures import check_timeout
from rmgr.client.pickling import Functions, stays_here
from rmgr.client.values import Values
from rmgr.coord.protocol.ports import Coordinator, SessionState, Store
from rmgr.errors import CoordinationUnavailable, NotConnected, PermissionDenied
from rmgr.submitter.questions import Asks, Question, ReadMeta

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.client.submission.engine import Engine
    from rmgr.config import Config
    from rmgr.submitter.remote import RemoteAnswers

A = TypeVar("A")
#: Called before the interpreter ends: first work to wait for, then things to close.
_ENDINGS: dict[str, Callable[[], None]] = {}
_connections: dict[tuple[str, str, str, str], Connection] = {}
_lock = threading.Lock()
_ending = threading.Event()
#: This process: asking the system costs each submitted task 0.6 us.
_pid = os.getpid()


class Connection:
    """A client's access to one cluster. Thread-safe.

    Attributes: store (values by key), submitter (tasks as bytes), functions, config, credentials (None in an open cluster).
    """

    def __init__(
        self,
        submitter: Engine,
        config: Config,
        coordinator: Coordinator | None,
        credentials: Credentials | None = None,
        asks: ConnectionAsks | RemoteAnswers | None = None,
    ) -> None:
        self.credentials = credentials
        self.submitter = submitter
        self.config = config
        self.coordinator = coordinator
        self.asks = asks or ConnectionAsks(coordinator, submitter.store, credentials)
        self.functions = Functions(submitter.store)
        self.store: Values = submitter.values
        self.pid = _pid
        self.is_closed = False

    def register(self, function: Callable[..., Any], *, timeout: float = 30.0) -> str:
        """Stores a function by its content; returns its id, which `TaskQueue(id)` accepts on any machine.

        Raises: PickleFailed, StoreUnavailable.
        """
        return self.functions.register(function, timeout_s=timeout)

    def close(self, *, timeout: float = 5.0) -> None:
        """Closes the connection; submitted work goes on. First sends tasks that were not sent yet, if `timeout` (s) allows. Idempotent."""
        self.is_closed = True
        with _lock:
            for key in [key for key, known in _connections.items() if known is self]:
                del _connections[key]
        if not self.is_forked:
            self.submitter.close(timeout_s=timeout, sends=True)
            self.asks.close()

    @property
    def where(self) -> str:
        """Address of the cluster: ZooKeeper's servers with the directory, or the gateway."""
        cluster = self.config.cluster
        return cluster.gateway if cluster.uses_gateway else cluster.zk

    def __repr__(self) -> str:
        words = {SessionState.CONNECTED: "connected", SessionState.SUSPENDED: "nobody answers", SessionState.LOST: "connecting"}
        state = words[self.submitter.session_state]
        state = "closed" if self.is_closed else "of the parent process" if self.is_forked else state
        return f"<rmgr.Connection to {self.where}: {state}>"

    def __reduce__(self) -> NoReturn:
        stays_here("a Connection", "call rmgr.connect() where it is needed: in a task it has the same cluster")

    @property
    def is_usable(self) -> bool:
        """Whether the connection is open and was made in this process."""
        return not self.is_closed and not self.is_forked

    @property
    def is_forked(self) -> bool:
        """Whether the connection was made before a fork, by the parent of this process: nothing arrives here."""
        return self.pid != _pid

    def trouble(self) -> str:
        """Returns what is wrong at present, "" if nothing is known."""
        if self.is_forked:
            return "this connection belongs to the parent process: call rmgr.connect() after a fork"
        if self.is_closed:
            return "the connection was closed"
        from rmgr.client.submission.engine import trouble_of

        return trouble_of(self.submitter.session_state, self.where if self.config.cluster.uses_gateway else "")

    def check_usable(self) -> None:
        """Raises NotConnected if the connection is closed or forked."""
        if not self.is_usable:
            raise NotConnected(self.trouble(), hint="call rmgr.connect() and make a new TaskQueue, or attach to this one")

    def check_waitable(self) -> None:
        """Raises NotConnected in a forked child: tasks submitted before the fork report to the parent only."""
        if self.is_forked:
            self.check_usable()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(
    *,
    zk: str | None = None,
    store: str | None = None,
    gateway: str | None = None,
    config: Config | None = None,
    timeout: float | None = None,
) -> Connection:
    """Returns the connection of this process to a cluster; made at the first call, shared afterwards.

    Args:
        zk, store, gateway: override the configuration (`rmgr.config`): RMGR_ZK, RMGR_STORE, a file, or a running `rmgr dev`.
        config: a configuration that was loaded already.
        timeout: how long to wait for the cluster (s); default: the configured connect_timeout_s.
    Raises: NotConnected (nothing configured or running; or through a gateway in a forked child of a process that used gRPC),
        CoordinationUnavailable, StoreUnavailable, WrongCluster, ConfigError.
    """
    if config is None:
        from rmgr.config import load

        config = load({"cluster": {"zk": zk, "store": store, "gateway": gateway}})
    cluster = config.cluster
    key = (cluster.zk, cluster.store, cluster.gateway, config.security.dir)
    with _lock:
        known = _connections.get(key)
        if known is not None and known.is_usable:
            return known
        if _ending.is_set():
            raise NotConnected("the interpreter is shutting down")
        if "grpc" not in sys.modules:  # gRPC reads the variable when it is loaded
            # gRPC's own fork handlers run at each fork of the application: while calls are under way they write a note on stderr, otherwise
            # they stop gRPC in the parent, too (1.71 and 1.85: "Bad file descriptor"). A forked child makes a connection of its own.
            os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
        try:
            made = _open(config, cluster.connect_timeout_s if timeout is None else check_timeout(timeout))
        except (PermissionError, PermissionDenied) as error:
            raise _denied_error(error) from error
        _connections[key] = made
        _register_ending()
        return made


def _denied_error(error: PermissionError | PermissionDenied) -> PermissionDenied:
    """Returns the error as PermissionDenied; in a task its hint names what the node's Starter lacks for work that submits work."""
    if isinstance(error, PermissionDenied):
        what, hint = error.message, error.hint
    else:
        what, hint = f"{error.filename or 'a file of the cluster'} cannot be opened: {error.strerror}", "go through a gateway: RMGR_GATEWAY"
    if os.environ.get("RMGR_TASK_ID"):
        hint = (
            'the Starter of this node names no way for work that submits work: [security] work_gateway = "HOST:PORT" in its configuration, '
            "and a bundle of its user in ~/.config/rmgr/bundle (or one for all work: [security] work_bundle)"
        )
    return PermissionDenied(what, hint=hint)


def _open(config: Config, timeout_s: float) -> Connection:
    cluster = config.cluster
    if cluster.uses_gateway:
        return _through_gateway(config, timeout_s)
    hosts, chroot = cluster.hosts_and_chroot()
    if not cluster.store:
        raise NotConnected("no data store is configured", hint="name it: --store sqlite:PATH, RMGR_STORE, or store = in [cluster]")
    from rmgr.adapters.stores import open_store
    from rmgr.adapters.zookeeper.client import ZkCoordinator
    from rmgr.client.identity import secured_by
    from rmgr.client.submission.engine import engine_here
    from rmgr.model.version import check_store
    from rmgr.procedures.bootstrap import verify
    from rmgr.runtime.secured import credentials_of, zookeeper_options
    from rmgr.submitter.handing import Lines

    credentials = credentials_of(config)
    options = zookeeper_options(config, credentials)
    coordinator = ZkCoordinator.connect(hosts, chroot, session_timeout_s=cluster.session_timeout_s, connect_timeout_s=timeout_s, **options)
    try:
        data = open_store(cluster.store, **({"create": False} if cluster.store.startswith("sqlite:") else {}))
        try:
            owner = data.cluster_id(timeout_s=timeout_s)
            meta = verify(coordinator, cluster.cluster_id or owner, timeout_s=timeout_s)
            check_store(meta, owner)
            asks = ConnectionAsks(coordinator, data, credentials)
            secured = secured_by(asks, credentials, config.security, meta.cluster_id, coordinator)
            engine = engine_here(coordinator, data, asks, lines=lambda thread, hear: Lines(thread, hear, credentials), secured=secured)
            return Connection(engine, config, coordinator, credentials, asks)
        except BaseException:
            data.close()
            raise
    except BaseException:
        coordinator.close(timeout_s=1.0)
        raise


def _through_gateway(config: Config, timeout_s: float) -> Connection:
    from rmgr.adapters.access.auth import check_not_forked
    from rmgr.adapters.gateway.store import GatewayStore
    from rmgr.client.identity import secured_by
    from rmgr.client.submission.engine import engine_through
    from rmgr.config import user_name
    from rmgr.model.version import check_store
    from rmgr.procedures.bootstrap import check_found
    from rmgr.runtime.secured import credentials_of
    from rmgr.submitter.remote import RemoteAnswers

    check_not_forked()
    cluster = config.cluster
    credentials = credentials_of(config)
    data = GatewayStore(cluster.gateway, credentials=credentials)
    user = user_name() if credentials is None else ""
    asks = RemoteAnswers(cluster.gateway, credentials=credentials, user=user, session_timeout_s=cluster.session_timeout_s)
    try:
        meta = asks.ask(ReadMeta(), timeout_s=timeout_s)
        owner = data.cluster_id(timeout_s=timeout_s)
        found = check_found(meta, cluster.cluster_id or owner)
        check_store(found, owner)
        secured = secured_by(asks, credentials, config.security, found.cluster_id)
        engine = engine_through(asks, data, secured=secured)
    except BaseException:
        data.close()
        asks.close()
        raise
    made = Connection(engine, config, None, credentials, asks)
    try:
        engine.work.wait_ready(timeout_s)
    except BaseException:
        made.close(timeout=1.0)
        raise
    return made


# -- questions -----------------------------------------------------------------------------------------------------------------


class ConnectionAsks:
    """A `questions.Asks` of one connection to ZooKeeper, made at the first question. If two threads make one at once, either will do."""

    def __init__(self, coordinator: Coordinator | None, store: Store, credentials: Credentials | None) -> None:
        self._coordinator = coordinator
        self._store = store
        self._credentials = credentials
        self._asks: Asks | None = None

    @property
    def hosts(self) -> str:
        """See `Asks`."""
        return self._open_asks().hosts

    @property
    def session_timeout_s(self) -> float:
        """See `Asks`."""
        return self._open_asks().session_timeout_s

    def ask(self, question: Question[A], *, timeout_s: float) -> A:
        """See `Asks`."""
        return self._open_asks().ask(question, timeout_s=timeout_s)

    def close(self) -> None:
        """Does nothing: there is nothing to close."""

    def _open_asks(self) -> Asks:
        if self._asks is None:
            if self._coordinator is None:
                raise CoordinationUnavailable("this connection has none to ZooKeeper", hint="rmgr.connect()")
            from rmgr.client.identity import answers_here

            self._asks = answers_here(self._coordinator, lambda: self._store, self._credentials)
        return self._asks


# -- the end of the process ----------------------------------------------------------------------------------------------------


def at_end(name: str, ending: Callable[[], None]) -> None:
    """Registers `ending`, one per name, to run at interpreter exit, before connections close and while threads can still be joined."""
    _ENDINGS[name] = ending
    _register_ending()


def try_at_end(job: Callable[[], object]) -> None:
    """Runs `job` at the end of the process; writes its error to stderr, so that the other endings still run."""
    try:
        job()
    except Exception as error:  # noqa: BLE001 - as above
        sys.stderr.write(f"rmgr: {error}\n")


def is_ending() -> bool:
    """Returns whether the interpreter is shutting down: nothing new may begin."""
    return _ending.is_set()

_registered = False


def _register_ending() -> None:
    global _registered
    if _registered:
        return
    _registered = True
    # As concurrent.futures does: before the interpreter joins its threads, and before daemon threads freeze.
    register = getattr(threading, "_register_atexit", atexit.register)
    register(_end)


def _end() -> None:
    _ending.set()
    for ending in list(_ENDINGS.values()):
        try_at_end(ending)
    for connection in list(_connections.values()):
        connection.close(timeout=2.0)


def _after_fork() -> None:
    """Forgets the parent's connections in a forked child, where nothing of them works."""
    global _lock, _ending, _pid
    _pid = os.getpid()
    _lock = threading.Lock()
    _ending = threading.Event()
    _connections.clear()
    _ENDINGS.clear()
    futures.renew_lock_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
