"""What every daemon uses: its shell (ZooKeeper, the data store, a gRPC server, signals), the rights of callers, and self-checks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TypeAlias

from prometheus_client.registry import CollectorRegistry

from rmgr import log as logs
from rmgr.adapters.access.auth import Caller
from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.identity.trust import Trust, publish
from rmgr.adapters.rpc.server import RpcServer
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.config import Config, StarterConfig, SubmitterConfig, WatchdogConfig
from rmgr.coord.decisions.rights import ANYBODY, Person
from rmgr.coord.protocol.ports import Coordinator
from rmgr.daemons.service.keepers import LimitsKeeper, SecretKeeper
from rmgr.daemons.service.metrics_place import ClusterDaemonMetrics, MetricsPlace
from rmgr.errors import CoordinationUnavailable, InvalidRecord, PermissionDenied, RmgrError, Unavailable
from rmgr.log import audit
from rmgr.model.identity import Identity, Role
from rmgr.model.node import Meta
from rmgr.model.units import format_duration
from rmgr.runtime import machine
from rmgr.runtime.interpreter import check_descriptors
from rmgr.runtime.machine import Log
from rmgr.runtime.mailbox import SignalMessages
from rmgr.runtime.secured import check_exposure, credentials_of, open_trust, open_zookeeper
from rmgr.runtime.store_watch import WatchedStore, meet_store
from rmgr.runtime.supervision import Notifier, StallGuard

Section: TypeAlias = StarterConfig | WatchdogConfig | SubmitterConfig

#: Interval of questions to the own server, time limit of an answer, and silence after which it is mute. A flood costs some seconds.
_ASK_S, _ANSWER_S, MUTE_S = 15.0, 10.0, 60.0
#: Time limit for a daemon's own server to accept its connection at the start, and pause between tries.
_GREET_S, _AGAIN_S = 30.0, 0.2
_NO_CALL = "it answers no call"
#: A loop normally comes round at least every 2.5 s.
_STALLED_S = 5.0
#: As in `Lease`: after this part of the session timeout without an answer the daemon does not act.
_LEASE_SHARE = 2 / 3


def open_server(
    listen: str,
    credentials: Credentials | None,
    trust: Trust | None,
    log: Log,
    *,
    threads: int = 96,
    bounds: Bounds | None = None,
    count: Callable[[str, str], None] = lambda *_: None,
) -> RpcServer:
    """Opens a daemon's gRPC server; in a secured cluster every client must identify itself, and revoked keys are refused.

    Args: count: called with ("refused", class of the error) for every refused call.
    """

    def refused(method: str, who: Identity | None, error: RmgrError) -> None:
        count("refused", type(error).__name__)
        audit(log, who=who.name if who else "", role=who.role.value if who else "", what=method, allowed=False, why=error.message)

    is_revoked = trust.is_revoked if trust is not None else lambda _: False
    return RpcServer(listen, threads=threads, credentials=credentials, is_revoked=is_revoked, refused=refused, bounds=bounds)


class DaemonShell:
    """What each daemon with ZooKeeper has around its own parts, from its start to its end.

    `opened` connects it; then the daemon finds out which cluster that is, and says so (`belong_to`); `listen` makes its gRPC server; while
    `serving` lasts, others are answered.

    Attributes: own: the daemon's section of the configuration. known: cluster id in the store (None: there is none, or the store is away).
    credentials, trust: None in an open cluster. bounds: of users. at_end: gets what is to be closed when the server has stopped.
    """

    meta: Meta
    server: RpcServer
    measured: MetricsPlace

    def __init__(
        self, config: Config, own: Section, log: Log, coordinator: ZkCoordinator, store: WatchedStore, known: str | None,
        credentials: Credentials | None,
    ) -> None:  # fmt: skip
        self.config, self.own, self.log = config, own, log
        self.coordinator, self.store, self.known = coordinator, store, known
        self.credentials = credentials
        self.trust: Trust | None = None
        self.bounds = Bounds()
        self.at_end = ExitStack()
        self.notifier = Notifier.from_environment()

    @classmethod
    @contextmanager
    def opened(
        cls, config: Config, own: Section, role: Role, *, insecure: bool, create: bool = True, **bound: object
    ) -> Iterator[DaemonShell]:
        """Yields a shell with a connected session.

        Args: insecure: see `runtime.secured.check_exposure`. create: makes the store if it is a file. bound: to each line of the log.
        Raises: NotConnected after `connect_timeout_s`; ConfigError, StoreUnavailable as `meet_store`; ConfigError as `check_descriptors`.
        """
        check_descriptors()
        credentials = credentials_of(config, role)
        check_exposure(credentials, listen=own.listen, metrics=own.metrics, insecure=insecure)
        log = logs.setup(config.log, role.value, **bound)
        coordinator = open_zookeeper(config, credentials, insecure=insecure)
        try:
            wait_s = config.cluster.connect_timeout_s
            coordinator.require_connected(wait_s)
            store, known = meet_store(config.cluster.store, log=log, patience_s=wait_s, create=create)
            try:
                yield cls(config, own, log, coordinator, store, known, credentials)
            finally:
                store.close()
        finally:
            coordinator.close(timeout_s=2.0)

    def belong_to(self, meta: Meta, credentials: Credentials | None) -> None:
        """Takes the cluster that it belongs to, and the credentials that are valid there. Publishes its certificate, for readers of what
        it signs.
        """
        self.meta, self.credentials = meta, credentials
        self.store.belong_to(meta.cluster_id, was_bound=bool(meta.store_bound_us))
        if credentials is not None:
            publish(self.coordinator, credentials, timeout_s=self.config.cluster.connect_timeout_s)
        self.trust = open_trust(self.coordinator, credentials)
        check_key(self.trust, credentials, self.log)

    def listen(
        self, role: Role, *, threads: int = 96, rations: bool = True, count: Callable[[str, str], None] = lambda *_: None
    ) -> RpcServer:
        """Makes the gRPC server. rations: its threads among users. count: see `open_server`."""
        bounds = self.bounds if rations else None
        self.server = open_server(self.own.listen, self.credentials, self.trust, self.log, threads=threads, bounds=bounds, count=count)
        self.measured = MetricsPlace(self.own.metrics, role)
        return self.server

    @contextmanager
    def serving(
        self,
        registry: CollectorRegistry,
        stop: Callable[[], None],
        *unable: Callable[[], str],
        whose: str,
        stall_s: float,
        ends_if_mute: bool = True,
        patience: int = 1,
        grace_s: float = 0.2,
        secret: SecretKeeper | None = None,
    ) -> Iterator[StallGuard]:
        """Serves until the end of the block, which runs the daemon's loop under the guard that it yields.

        Args: registry: its metrics. stop: called for SIGTERM and SIGINT, `patience` times. unable: of `why_unable`. whose: "the Starter's".
            stall_s: longest turn of the loop. grace_s: time for calls under way at the end. secret: ends first.
        """
        server, log = self.server, self.log
        ClusterDaemonMetrics(registry, lambda: self.store.is_up, lambda: server.refused_connections)
        LimitsKeeper(self.coordinator, self.bounds, log).start()
        server.start()
        check_voice(server, self.credentials, log)
        signals = SignalMessages(lambda _signal: stop(), patience=patience)
        signals.install()
        guard = StallGuard(stall_s, name=f"{whose} loop", on_progress=self.notifier.beat).start()
        voice = VoiceCheck(server.is_mute, ending(whose) if ends_if_mute else telling(whose, log)).start()
        health = partial(why_unable, self.coordinator, self.store, guard, *unable, lambda: voice.trouble)
        end_metrics = self.measured.serve(registry, health, credentials=self.credentials, trust=self.trust)
        try:
            yield guard
        finally:
            if secret is not None:
                secret.stop()
            guard.stop()
            voice.stop()
            server.stop(grace_s)
            self.at_end.close()
            end_metrics()
            signals.restore()


def person_of(caller: Caller | None, operators: Iterable[str] = ()) -> Person:
    """Returns the caller as a person. operators: names of `[security] operators`. caller None: this process itself."""
    if caller is None or caller.is_open:
        return ANYBODY if caller is None or not caller.user else Person(name=caller.user, is_open=True)
    who = caller.who
    return Person(name=caller.user, role=str(who.role) if who is not None else "", is_operator=caller.is_operator(operators))


@contextmanager
def audited(log: Log | None, person: Person, what: str, target: str) -> Iterator[None]:
    """Audits a refusal raised within it, and lets it pass. log: None if there is no audit."""
    try:
        yield
    except (PermissionDenied, InvalidRecord) as error:
        if log is not None:
            audit(log, who=person.name, role=person.role, what=what, target=target, allowed=False, why=error.message)
        raise


# -- self-checks ------------------------------------------------------------------------------------------------------------
# At the start: is the daemon's key valid, and does its own server accept it? Later: does the server still answer? The stall guard checks
# the main loop, and ZooKeeper the session; both can be well although nobody believes the daemon's signatures, or reaches it. A mute gateway
# or WatchDog ends, so that another one takes its place; a mute Starter reports it and goes on, since its work needs no server. `/healthz`
# reports the daemon's other conditions (`why_unable`).


def check_key(trust: Trust | None, credentials: Credentials | None, log: Log) -> None:
    """Checks that others believe this daemon's key. At the start, after its certificate was published.

    Raises: PermissionDenied if the key was revoked, or its certificate is not believed; if that cannot be read now, the key passes.
    """
    if trust is None or credentials is None:
        return
    who = credentials.identity
    try:
        found = trust.find(who.key_id, at_s=machine.wall_us() / 1e6)
    except CoordinationUnavailable as error:
        log.warning("own_key_not_looked_up", error=error.message)
        return
    if isinstance(found, str):
        raise PermissionDenied(
            f"nobody in this cluster would believe what {who.role} {who.name} signs: {found}",
            hint=f"is the clock right? {_bundle_hint(credentials)}",
        )


def check_voice(server: RpcServer, credentials: Credentials | None, log: Log, *, patience_s: float = _GREET_S) -> None:
    """Checks that the started server answers this daemon's own call.

    Raises: PermissionDenied if it refuses; Unavailable if no connection succeeds within `patience_s`. A server that is
        only late passes, with a warning.
    """
    end_s = machine.monotonic() + patience_s
    pause = threading.Event()
    while True:
        try:
            server.greet(max(0.1, end_s - machine.monotonic()))
        except TimeoutError:
            log.warning("own_server_is_late", endpoint=server.endpoint, waited_s=patience_s)
        except PermissionDenied as error:
            words = f"this daemon and its own server do not take each other: {error.message}"
            raise PermissionDenied(words, hint=_bundle_hint(credentials)) from None
        except Unavailable as error:
            if machine.monotonic() < end_s:
                pause.wait(_AGAIN_S)
                continue
            raise Unavailable(
                f"this daemon's own server at {server.endpoint} does not take its connection, so nobody's: {error.message}",
                hint=f"is the port open on this machine? {_bundle_hint(credentials)}",
            ) from None
        return


def _bundle_hint(credentials: Credentials | None) -> str:
    """Returns a hint for a bundle that does not work."""
    if credentials is None:
        return "rmgr doctor"
    who = credentials.identity
    return f"take another bundle than {credentials.directory}: rmgr admin add-node {who.name} --role {who.role} --renew; rmgr doctor"


def ending(whose: str) -> StallGuard:
    """Returns a guard that ends the process, with all stacks, when its server is mute. whose: "the gateway's"."""
    return StallGuard(MUTE_S, name=f"{whose} server: {_NO_CALL}")


def telling(whose: str, log: Log) -> StallGuard:
    """Returns a guard that only logs a mute server, again and again."""

    def tell(why: str) -> None:
        log.error("server_is_mute", error=why)

    return StallGuard(MUTE_S, name=f"{whose} server: {_NO_CALL}", on_stall=tell)


class VoiceCheck:
    """Asks this process's own server again and again whether it answers.

    Args:
        is_mute: `RpcServer.is_mute`. guard: reacts to a mute server: `ending`, `telling`. pause_s, answer_s: for tests.
    """

    def __init__(
        self,
        is_mute: Callable[[float], bool],
        guard: StallGuard,
        *,
        pause_s: float = _ASK_S,
        answer_s: float = _ANSWER_S,
    ) -> None:
        self._is_mute = is_mute
        self._guard = guard
        self._pause_s = pause_s
        self._answer_s = answer_s
        self._stopped = threading.Event()

    @property
    def trouble(self) -> str:
        """Why clients cannot reach this daemon, "" while it answers. From any thread."""
        silent_s = self._guard.silent_s
        return f"its server has answered no call for {format_duration(silent_s)}" if silent_s > self._pause_s + 2 * self._answer_s else ""

    def start(self) -> VoiceCheck:
        """Starts asking."""
        self._guard.start()
        machine.Thread(target=self._run, name="own-voice", daemon=True).start()
        return self

    def stop(self) -> None:
        """Stops asking. Idempotent."""
        self._guard.stop()
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._pause_s):
            if not self._is_mute(self._answer_s):
                self._guard.progress()


def why_unable(coordinator: Coordinator, store: WatchedStore, guard: StallGuard, *unable: Callable[[], str]) -> str:
    """Returns every reason why a daemon cannot work now, "" while it can. Never blocks; from any thread.

    unable: further checks; each returns why the daemon cannot work, "" while it can.
    """
    silent_s, unanswered_s = guard.silent_s, machine.monotonic() - coordinator.last_answer_s()
    is_over = unanswered_s > coordinator.session_timeout_s * _LEASE_SHARE
    whys = (
        f"its loop has not come round for {format_duration(silent_s)}" if silent_s > _STALLED_S else "",
        "the lease is over: ZooKeeper does not answer" if is_over else "",
        f"data store: {store.trouble}" if store.trouble else "",
        *(ask() for ask in unable),
    )
    return "; ".join(dict.fromkeys(why for why in whys if why))
