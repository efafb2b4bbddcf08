"""Reaching a cluster from a command: ZooKeeper, the data store, the leader, and a note on stderr while one is away."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rmgr.errors import CoordinationUnavailable, NotConnected, Unavailable, UsageError, WrongCluster
from rmgr.model.base.units import format_duration

if TYPE_CHECKING:
    from rmgr.adapters.zookeeper.client import ZkCoordinator
    from rmgr.cli.session.connected import ConnectedInvocation
    from rmgr.cli.session.invocation import Invocation
    from rmgr.coord.protocol.ports import Store
    from rmgr.model.cluster.node import EpochRecord, Meta
    from rmgr.submitter.answers import Answers
    from rmgr.submitter.remote import RemoteAnswers

#: A part that does not answer for so long is mentioned on stderr.
SILENCE_S = 1.0


def leader_at_a_glance(session: Invocation) -> EpochRecord | None:
    """Who leads, by one short look at ZooKeeper; None where that takes more, or explanations: then `open_coordinator` has them."""
    config = session.config()
    if config.cluster.uses_gateway or not config.cluster.zk:
        return None
    from rmgr.adapters.zookeeper.glance import GlanceFailed, glance
    from rmgr.coord.protocol import paths
    from rmgr.coord.protocol.records import decode_record
    from rmgr.model.cluster.node import EpochRecord, Meta
    from rmgr.runtime.release import check_cluster
    from rmgr.runtime.secured import zookeeper_security

    hosts, chroot = config.cluster.hosts_and_chroot()
    security = zookeeper_security(config, session.shown_credentials())
    try:
        seen = glance(
            hosts,
            "/" + chroot.strip("/") if chroot.strip("/") else "",
            data=[paths.META, paths.EPOCH],
            children=[paths.WATCHDOGS],
            access=[paths.META] if security is not None else [],
            security=security,
            timeout_s=session.left_s(SILENCE_S) or SILENCE_S,
        )
    except GlanceFailed as why:
        session.detail(f"a glance at ZooKeeper was not enough: {why}")
        return None
    meta, epoch = seen.data[paths.META], seen.data[paths.EPOCH]
    if meta is None or epoch is None or "world" in seen.schemes.get(paths.META, ()):
        return None
    found = decode_record(meta, Meta, paths.META)
    check_cluster(found, config.cluster.cluster_id or None)
    belong_together(session, tree=found)
    leader = decode_record(epoch, EpochRecord, paths.EPOCH)
    return leader if leader.endpoint and leader.candidate in seen.children[paths.WATCHDOGS] else None


def open_coordinator(session: Invocation) -> ZkCoordinator:
    """A session in ZooKeeper, in the right cluster.

    Waits while no server answers, saying so: up to `--timeout`, else `connect_timeout_s` of the configuration.
    Raises: NotConnected, CoordinationUnavailable, WrongCluster; UsageError where a gateway is configured.
    """
    config = session.config()
    if config.cluster.uses_gateway:
        raise UsageError("gateways do not do this: it needs ZooKeeper itself", hint="on a machine that reaches it: --zk HOSTS")
    from rmgr.procedures.bootstrap import verify
    from rmgr.runtime.secured import open_zookeeper

    wait_s = session.left_s() or config.cluster.connect_timeout_s
    end = time.monotonic() + wait_s
    coordinator = open_zookeeper(config, session.shown_credentials())
    try:
        if not coordinator.wait_connected(min(SILENCE_S, wait_s)):
            session.note(f"ZooKeeper at {coordinator.hosts} does not answer; waiting up to {format_duration(wait_s)}")
            try:
                coordinator.require_connected(max(0.1, end - time.monotonic()))
            except NotConnected as error:
                is_handshake = "TLS handshake" in error.message
                raise NotConnected(error.message, hint=error.hint if is_handshake else _nobody_there(session)) from error
        meta = verify(coordinator, config.cluster.cluster_id or None, timeout_s=max(1.0, end - time.monotonic()))
        belong_together(session, tree=meta)
    except BaseException:
        coordinator.close(timeout_s=0.1 if session.is_over() else 1.0)
        raise
    return coordinator


def open_asks(session: ConnectedInvocation) -> Answers | RemoteAnswers:
    """Whoever answers what users ask, of the right cluster. Waits, and raises, as `open_coordinator`."""
    if session.config().cluster.uses_gateway:
        return _ask_gateway(session)
    from rmgr.coord.decisions.rights import Person
    from rmgr.model.cluster.identity import Role
    from rmgr.runtime.secured import certifier
    from rmgr.submitter.answers import Answers

    coordinator, credentials = session.coordinator(), session.shown_credentials()
    if credentials is None:
        return Answers(coordinator, session.store_or_none, Person(name=session.me, is_open=True))
    identity = credentials.identity
    who = Person(name=identity.name, role=str(identity.role), is_operator=identity.role in {Role.OPERATOR, Role.ADMIN})
    return Answers(coordinator, session.store_or_none, who, certify=certifier(credentials))


def _ask_gateway(session: ConnectedInvocation) -> RemoteAnswers:
    from rmgr.procedures.bootstrap import check_found
    from rmgr.submitter.questions import ReadMeta
    from rmgr.submitter.remote import RemoteAnswers

    cluster = session.config().cluster
    wait_s = session.left_s() or cluster.connect_timeout_s
    end = time.monotonic() + wait_s
    credentials = session.credentials()
    user = session.me if credentials is None else ""
    asks = RemoteAnswers(cluster.gateway, credentials=credentials, user=user, session_timeout_s=cluster.session_timeout_s)
    try:
        try:
            meta = asks.ask(ReadMeta(), timeout_s=min(SILENCE_S, wait_s))
        except Unavailable:
            session.note(f"no answer of the gateway at {asks.hosts} yet; waiting up to {format_duration(wait_s)}")
            try:
                meta = asks.ask(ReadMeta(), timeout_s=max(0.1, end - time.monotonic()))
            except Unavailable as error:
                raise _no_gateway(asks.hosts, wait_s, error) from error
        belong_together(session, tree=check_found(meta, cluster.cluster_id or None))
    except BaseException:
        asks.close()
        raise
    return asks


def open_data_store(session: Invocation) -> Store:
    """The data store of the configuration. Raises StoreUnavailable, UsageError."""
    from rmgr.adapters.store_rules import remembered
    from rmgr.adapters.stores import open_store
    from rmgr.procedures.bootstrap import STORE_READ_S

    config = session.config()
    if config.cluster.uses_gateway:
        from rmgr.adapters.gateway.store import GatewayStore

        return GatewayStore(config.cluster.gateway, credentials=session.credentials())
    if not config.cluster.store:
        raise NotConnected("no data store is configured", hint="name it: --store sqlite:PATH or RMGR_STORE   (rmgr dev sets it)")
    store = open_store(config.cluster.store, create=False)
    try:
        timeout_s = min(STORE_READ_S, session.left_s(STORE_READ_S) or STORE_READ_S)
        belong_together(session, store=remembered(store, timeout_s=timeout_s) or "")
    except BaseException:
        store.close()
        raise
    return store


def belong_together(session: Invocation, *, tree: Meta | None = None, store: str | None = None) -> None:
    """Remembers whose tree and whose data store these are ("": a store without an owner).

    Raises: WrongCluster when they are of different clusters, or the cluster has used a store and this one is empty.
    """
    if tree is not None:
        session.tree, session.tree_id = tree, tree.cluster_id
    session.store_id = session.store_id if store is None else store
    if session.tree is not None and session.store_id == "":
        from rmgr.runtime.release import check_store

        check_store(session.tree, session.store_id)
    if session.tree_id and session.store_id and session.tree_id != session.store_id:
        raise WrongCluster(
            f"ZooKeeper belongs to cluster {session.tree_id}, the data store to {session.store_id}",
            hint="name a --zk and a --store that belong together; if ZooKeeper was wiped, restore its data or start with a new store",
        )


def _nobody_there(session: Invocation) -> str:
    if session.zk or not session.config().source:
        return "start a cluster: rmgr dev   (or name another: --zk HOSTS, RMGR_ZK); rmgr doctor looks closer"
    return f"is it running? its address comes from {session.config().source}; rmgr doctor looks closer"


def _no_gateway(hosts: str, wait_s: float, error: Unavailable) -> Unavailable:
    """What is said where no gateway answers, or none that reaches ZooKeeper."""
    if isinstance(error, CoordinationUnavailable):
        told = f"the gateway at {hosts} answers, but ZooKeeper does not answer it within {format_duration(wait_s)}: {error.message}"
        return CoordinationUnavailable(told, hint="is ZooKeeper up? ask who runs the gateway; its log says more")
    hint = "is it running? start one with: rmgr submitter --listen HOST:PORT   (or name another: --gateway, RMGR_GATEWAY)"
    if "does not talk to us" in error.message:
        hint = "a secured one hangs up on who has no credentials: set RMGR_SECURITY_DIR to your bundle (rmgr admin add-user)"
    return NotConnected(f"no gateway answers at {hosts} within {format_duration(wait_s)}: {error.message}", hint=hint)
