"""The Submitter gateway, for clients that reach neither ZooKeeper nor the data store: they submit, ask, and use the store.

One Submitter (`submitter/direct.py`) serves all clients. The gateway holds no state that matters: kill it, start another, and
the clients go on.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial

from rmgr.adapters.access.turns import Breath
from rmgr.adapters.calls.relay import MAX_CALLS as MAX_REMOTE_CALLS
from rmgr.adapters.gateway.forward import MAX_QUESTIONS, MAX_STREAMS, ClusterRoutes, Forwarder, LeaderLink
from rmgr.adapters.gateway.talk import Talks
from rmgr.adapters.rpc.metaserver import MetaserverClient
from rmgr.adapters.rpc.server import RpcServer
from rmgr.adapters.rpc.services import UseClient, use_handler
from rmgr.adapters.terminals import MAX_TUNNELS, Tunnels
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.adapters.zookeeper.session import SessionCoordinator
from rmgr.config import Config
from rmgr.coord.decisions.rights import Person
from rmgr.coord.protocol.ports import SessionState
from rmgr.coord.protocol.records import glance_fragment
from rmgr.daemons.gateway.calls import LEADER_S, Calls, GatewayMetrics
from rmgr.daemons.gateway.door import ClusterUse, GatewayUse
from rmgr.daemons.gateway.rows import MAX_CALLS, Rows
from rmgr.daemons.gateway.talking import Asking, Desk
from rmgr.daemons.gateway.values import GatewayContext, OwnedStore, Owners
from rmgr.daemons.service.keepers import SecretKeeper, WrittenKeeper, recognise
from rmgr.daemons.service.serving import DaemonShell
from rmgr.daemons.starter.staging.inputs import Inputs
from rmgr.errors import CoordinationUnavailable
from rmgr.model.identity import Role
from rmgr.model.node import Meta
from rmgr.model.units import counted
from rmgr.procedures.authentic import Authenticity, Deeds
from rmgr.procedures.bootstrap import FreshSettings, check_same, read_meta, read_settings
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.machine import Log
from rmgr.runtime.secured import zookeeper_options
from rmgr.submitter.direct import Submitter
from rmgr.submitter.handing import Lines
from rmgr.submitter.thread import SubmitterThread

#: Most clients at once: each has a stream, which costs two threads.
MAX_TALKS = 1000
STALL_S = 30.0
#: After SIGTERM, time for calls under way.
GRACE_S = 2.0
_LOOK_S = 0.5
#: Time limit of the leader's answer about the use of all gateways.
_USE_S = 2.0
#: A waiting thread gets the interpreter after this (default 5 ms): a message passes through three threads here.
_SWITCH_S = 0.0005


class SessionWatch:
    """Watches the gateway's own session: is ZooKeeper there, and the same cluster? Sets what the health service answers."""

    def __init__(self, coordinator: SessionCoordinator, meta: Meta, server: RpcServer, metrics: GatewayMetrics, log: Log) -> None:
        self._coordinator = coordinator
        self._meta = meta
        self._server = server
        self._metrics = metrics
        self._log = log
        self._session = coordinator.session_id
        self._state = SessionState.CONNECTED
        coordinator.listen(self._on_state)

    def look(self) -> None:
        """Looks at the session now and then. Raises WrongCluster if ZooKeeper has another cluster now, or none."""
        session = self._coordinator.session_id
        if session in {0, self._session}:
            return
        try:
            found = read_meta(self._coordinator, timeout_s=2.0)
        except CoordinationUnavailable:
            return
        check_same(found, self._meta.cluster_id)
        self._session = session

    @property
    def is_there(self) -> bool:
        """Whether ZooKeeper answers."""
        return self._state is SessionState.CONNECTED

    def _on_state(self, state: SessionState) -> None:
        self._state = state
        is_there = state is SessionState.CONNECTED
        self._server.set_healthy(is_there)
        self._metrics.connected.set(is_there)
        if not is_there:
            self._log.warning("gateway_without_zookeeper", state=str(state))


def run(config: Config, *, insecure: bool = False) -> int:
    """Runs a gateway until SIGTERM or SIGINT; returns its exit code.

    Args:
        insecure: see `runtime.secured.check_exposure`.
    Raises: ConfigError for an unsafe place without `insecure`; NotConnected, CoordinationUnavailable, WrongCluster at the
        start. A data store that does not answer is no error: the gateway waits for it in the background.
    """
    sys.setswitchinterval(_SWITCH_S)
    with DaemonShell.opened(config, config.submitter, Role.SUBMITTER, insecure=insecure, create=False) as shell:
        coordinator, log = shell.coordinator, shell.log
        wait_s = config.cluster.connect_timeout_s
        meta, credentials = recognise(coordinator, shell.credentials, config, shell.known, wait_s=wait_s, log=log)
        log.info("submitter_started", cluster_id=meta.cluster_id, zookeeper=coordinator.hosts, store=config.cluster.store)
        # It signs nothing, but by its certificate others can find the owner of its key, and when that ends.
        shell.belong_to(meta, credentials)
        return _serve(shell)


def _serve(shell: DaemonShell) -> int:
    config, own, coordinator, store = shell.config, shell.config.submitter, shell.coordinator, shell.store
    meta, log, credentials, trust, bounds = shell.meta, shell.log, shell.credentials, shell.trust, shell.bounds
    metrics = GatewayMetrics()
    hosts, chroot = config.cluster.hosts_and_chroot()
    options = zookeeper_options(config, credentials, insecure=True)  # as when the session was opened
    Breath(bounds.had).start()
    routes = ClusterRoutes(coordinator, metrics.count)
    leader_use = LeaderLink(routes, partial(UseClient, role=Role.WATCHDOG, credentials=credentials, timeout_s=_USE_S))
    cluster_use = ClusterUse(bounds, lambda fresh: leader_use.ask(lambda leader: leader.use(fresh=fresh))).start()
    owners, operators = Owners(coordinator, store), config.security.operators
    context = GatewayContext(
        coordinator=coordinator, store=store, log=log, bounds=bounds, owner_of=owners, operators=operators, count=metrics.count
    )
    owned: Callable[[Person], OwnedStore] | None = None
    if credentials is not None and trust is not None:
        deeds = Deeds(trust, meta.cluster_id, credentials, settings=FreshSettings(partial(read_settings, coordinator)))
        inputs = Inputs(coordinator)

        def owned(person: Person) -> OwnedStore:
            return OwnedStore(store, person, deeds, inputs, owners, log)

    waiting = MAX_TALKS + MAX_STREAMS + MAX_TUNNELS + MAX_CALLS + MAX_QUESTIONS
    threads = waiting + 3 * MAX_REMOTE_CALLS + 128
    server = shell.listen(Role.SUBMITTER, threads=threads, rations=False, count=metrics.count)
    is_revoked = trust.is_revoked if trust is not None else lambda _: False
    forwarder = Forwarder(routes, credentials=credentials, bounds=bounds)
    calls: Calls | None = None
    if own.calls:
        ask = partial(MetaserverClient, credentials=credentials, timeout_s=LEADER_S)
        calls = Calls(routes, metrics, log, site=own.site, refresh_s=own.refresh_s, ask=ask, bounds=bounds)
    # The Submitter's own session stays open when the gateway is stopped: owners who go on through another gateway are never missed.
    session = ZkCoordinator(hosts, chroot, session_timeout_s=config.cluster.session_timeout_s, **options)
    submitter_thread = SubmitterThread()
    authenticity = Authenticity(trust, meta.cluster_id) if trust is not None else None
    submitter = Submitter(
        submitter_thread,
        session,
        store,
        lines=lambda thread, hear: Lines(thread, hear, credentials),
        believes=authenticity.believes if authenticity is not None else None,
        decode=glance_fragment,
    )
    asking = Asking(context, ca_pem=credentials.ca_pem if credentials is not None else None)
    desk = Desk(context, submitter, asking.answer, cluster_use)
    submitter_thread.start()
    talks = Talks(desk.talker, most=MAX_TALKS, is_revoked=is_revoked, bounds=bounds, count=metrics.count)
    use = use_handler(GatewayUse(context, cluster_use))
    for handler in (talks.handler, Rows(context, owned).handler, *forwarder.handlers, Tunnels(forwarder, bounds=bounds).handler, use):
        server.add_generic(handler)
    if calls is not None:
        server.add_generic(calls.relay.handler)
    metrics.sessions.set_function(lambda: len(talks))
    secret = None
    if credentials is not None:
        renewed = lambda fresh: session.renew(zookeeper_options(config, fresh, insecure=True)["security"])  # noqa: E731 - short
        secret = SecretKeeper(coordinator, credentials, config, log, renewed=renewed).start()
    stop, watch, notifier, has_clients = threading.Event(), SessionWatch(coordinator, meta, server, metrics, log), shell.notifier, False

    def close() -> None:
        cluster_use.close()
        leader_use.close()
        forwarder.close()
        if calls is not None:
            calls.close()
        if not has_clients:
            session.close(timeout_s=GRACE_S)
        if submitter.lines is not None:
            submitter.lines.close()
        desk.close()
        submitter_thread.stop(GRACE_S)

    shell.at_end.callback(close)
    if credentials is not None:
        shell.at_end.callback(WrittenKeeper(store, server.endpoint, bounds, log).start().close)
    with shell.serving(metrics.registry, stop.set, whose="the gateway's", stall_s=STALL_S, grace_s=GRACE_S, secret=secret) as guard:
        if calls is not None:
            calls.start(server.endpoint)
        log.info("submitter_listens", endpoint=server.endpoint, address=shell.measured.address)
        try:
            while not stop.wait(_LOOK_S):
                guard.progress()
                failpoint("submitter.round")
                watch.look()
                notifier.ready()
                serving = f"serving {counted(len(talks), 'client')}" if watch.is_there else "degraded: no contact with ZooKeeper"
                notifier.tell(f"{serving}; degraded: {store.note()}" if store.note() else serving)
        finally:
            notifier.stopping()
            server.set_healthy(False)
            has_clients = len(talks) > 0
            talks.stop(GRACE_S)
    log.info("submitter_stopped")
    return 0
