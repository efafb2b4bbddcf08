"""A caller of the client: its configuration, credentials and deadline, and its connections to the cluster (ZooKeeper or a gateway, the data
store, the leader), each opened on first use. A command's session (`cli/session`) is one.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rmgr.errors import CoordinationUnavailable, DeadlineExceeded, NotConnected, Unavailable, UsageError, WrongCluster
from rmgr.model.units import format_duration

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.adapters.zookeeper.client import ZkCoordinator
    from rmgr.client.identity import Signer
    from rmgr.client.queries import Query
    from rmgr.client.submission.engine import Engine
    from rmgr.client.values import Values
    from rmgr.config import Config
    from rmgr.coord.protocol.ports import Store
    from rmgr.model.node import EpochRecord, Meta
    from rmgr.submitter.answers import Answers
    from rmgr.submitter.port import Order, Submitted
    from rmgr.submitter.questions import Asks, Question
    from rmgr.submitter.remote import RemoteAnswers

A = TypeVar("A")
T = TypeVar("T")

#: Seconds of silence after which a part is mentioned on stderr.
SILENCE_S = 1.0


class NodeReach(Protocol):
    """A caller's access to nodes and the store: a command's (`Reach`), or a program's (`output.ConnectionReach`)."""

    @property
    def via(self) -> str:
        """The gateway through which daemons are asked, "" = directly."""
        ...

    def ask(self, question: Question[A], most_s: float = 10.0) -> A:
        """Returns the answer, within `most_s` and the caller's deadline. Raises NotConnected, CoordinationUnavailable; see the question."""
        ...

    def credentials(self) -> Credentials | None:
        """Returns the caller's proved credentials; None in an open cluster."""
        ...

    def data_store(self) -> Store:
        """Returns the data store, opened on first use. Raises StoreUnavailable, NotConnected."""
        ...

    def note(self, text: str) -> None:
        """Shows one line to the user."""
        ...


@dataclass(slots=True)
class Reach:
    """One caller: what it has named (zk, store, gateway, configuration file), and what its parts share. `note` tells the user a line.

    timeout_s: `--timeout`, None if it was not given; `started` is when the caller began (monotonic). verbose: `detail` tells more.
    """

    zk: str | None = None
    store: str | None = None
    gateway: str | None = None
    config_file: str | None = None
    timeout_s: float | None = None
    verbose: int = 0
    tree_id: str = ""  #: cluster id of ZooKeeper's tree, once known
    store_id: str | None = None  #: cluster id of the data store, once known; "" = the store belongs to no cluster
    tree: Meta | None = None  #: ZooKeeper's record of the cluster, once known
    followed: list[int] = field(default_factory=list)  #: submissions whose end the command waits for
    undone: str = ""  #: what a command that ends at its --timeout has certainly not done: "nothing was submitted"
    started: float = field(default_factory=time.monotonic)
    _config: Config | None = None
    _credentials: Credentials | None = None
    _shown: Credentials | None = None
    _owned: list[Any] = field(default_factory=list)
    _me: str | None = None
    _coordinator: ZkCoordinator | None = None
    _store: Store | None = None
    _asks: Answers | RemoteAnswers | None = None
    _submitter: Engine | None = None
    _query: Query | None = None
    _expected: tuple[Question[Any], ...] = ()  #: of which a gateway hears at the first question

    def config(self, overrides: Mapping[str, Mapping[str, Any]] | None = None) -> Config:
        """Returns the configuration, overridden by the global options. Raises ConfigError, UsageError (the URL of a store)."""
        from rmgr import config
        from rmgr.runtime.interpreter import defer

        if self._config is None or overrides:
            defer()  # from here on, libraries are loaded with halves that no command uses
            cluster = {"zk": self.zk, "store": self.store, "gateway": self.gateway}
            merged = {section: dict(values) for section, values in (overrides or {}).items()}
            merged["cluster"] = {**merged.get("cluster", {}), **{key: value for key, value in cluster.items() if value}}
            self._config = config.load(merged, file=self.config_file)
            self._credentials = self._shown = None
            if self._config.cluster.store:
                from rmgr.adapters.stores import check_url

                check_url(self._config.cluster.store)
        return self._config

    def credentials(self) -> Credentials | None:
        """Returns the user's credentials, None in an open cluster; read and verified on first use. Raises ConfigError."""
        if self._credentials is None:
            from rmgr.runtime.secured import credentials_of

            self._credentials = credentials_of(self.config())
        return self._credentials

    def shown_credentials(self) -> Credentials | None:
        """Returns the credentials, not yet verified: for questions to daemons, which will verify them. Raises ConfigError."""
        if self._credentials is None and self._shown is None and self.config().security.dir:
            from pathlib import Path

            from rmgr.adapters.identity.credentials import Credentials

            self._shown = Credentials.shown(Path(self.config().security.dir).expanduser())
        return self._credentials or self._shown

    @property
    def me(self) -> str:
        """The user's name on submissions: from the credentials, else the account."""
        if self._me is None:
            credentials = self.shown_credentials()
            if credentials is not None:
                self._me = credentials.identity.name
            else:
                from rmgr.config import user_name

                self._me = user_name()
        return self._me

    def is_over(self) -> bool:
        """Returns whether too little of `--timeout` is left to answer a question."""
        if self.timeout_s is None:
            return False
        left = self.timeout_s - (time.monotonic() - self.started)
        return left < 0.2

    def left_s(self, most: float = math.inf) -> float:
        """Returns the seconds until `--timeout`, at most `most`. Raises DeadlineExceeded when it is over."""
        if self.timeout_s is None:
            return most
        left = self.timeout_s - (time.monotonic() - self.started)
        if left <= 0:
            going_on = f"the work goes on; wait again: rmgr wait {' '.join(map(str, self.followed))}"
            hint = going_on if self.followed else "a longer --timeout; rmgr doctor looks for what is slow"
            raise DeadlineExceeded(self.too_late(), hint=hint)
        return min(left, most)

    def too_late(self) -> str:
        """Returns the message of a command that ends at its `--timeout`."""
        return f"not done within {format_duration(self.timeout_s or 0.0)} (--timeout)" + (self.undone and f", {self.undone}")

    def patience_s(self, usual: float) -> float:
        """Returns the seconds until `--timeout`, `usual` without it. Raises DeadlineExceeded when it is over."""
        return usual if self.timeout_s is None else self.left_s()

    def note(self, text: str) -> None:
        """Shows one line to the user: a command's session does."""

    def detail(self, text: str) -> None:
        """Shows one line to a user who asked for more (-v)."""
        if self.verbose:
            self.note(text)

    # -- ZooKeeper, or a gateway

    def asks(self) -> Answers | RemoteAnswers:
        """Returns what answers the user's questions: this process at ZooKeeper, or a gateway. Raises as `coordinator`."""
        if self._asks is None:
            if self.config().cluster.uses_gateway:
                self._asks = self._ask_gateway()
            else:
                from rmgr.client.identity import answers_here

                self._asks = answers_here(self.coordinator(), self.store_or_none, self.shown_credentials(), user=self.me)
        return self._asks

    def ask(self, question: Question[A], most_s: float = 10.0) -> A:
        """Returns the answer, within `most_s` and the rest of `--timeout`. Raises the question's errors, and as `coordinator`."""
        asks = self.asks()
        return asks.ask(question, timeout_s=self.left_s(most_s))

    def expect(self, *questions: Question[Any]) -> None:
        """Has a gateway answer these beside the next question, so that all take one round trip. Never waits."""
        if self._asks is None:
            self._expected += questions
        else:
            self._asks.expect(*questions)

    def query(self) -> Query:
        """Returns the queries: questions to the leader, or to znodes if there is none."""
        if self._query is None:
            from rmgr.client.queries import Query

            self._query = Query(self)
        return self._query

    def coordinator(self) -> ZkCoordinator:
        """Returns the session in ZooKeeper, in the right cluster: for submitting there, and for admins.

        Waits, with a note, while no server answers: up to `--timeout`, else `connect_timeout_s` of the configuration.
        Raises: NotConnected, CoordinationUnavailable, WrongCluster; UsageError if a gateway is configured.
        """
        if self._coordinator is None:
            self._coordinator = self._open_coordinator()
        return self._coordinator

    def zookeeper(self) -> ZkCoordinator:
        """Returns ZooKeeper itself, for admins. Raises NotConnected if only a gateway is configured, and as `coordinator`."""
        if self.config().cluster.uses_gateway:
            self.config().cluster.hosts_and_chroot()  # raises the error
        return self.coordinator()

    def cluster_id(self) -> str:
        """Returns the cluster id of ZooKeeper's tree, "" if there is none. Raises as `coordinator`."""
        if not self.tree_id:
            self.asks()  # finds the id
        return self.tree_id

    @property
    def via(self) -> str:
        """The gateway through which daemons are asked, "" = none."""
        return str(getattr(self.asks(), "endpoint", "")) if self.config().cluster.uses_gateway else ""

    def _open_coordinator(self) -> ZkCoordinator:
        config = self.config()
        if config.cluster.uses_gateway:
            raise UsageError("gateways do not do this: it needs ZooKeeper itself", hint="on a machine that reaches it: --zk HOSTS")
        from rmgr.procedures.bootstrap import verify
        from rmgr.runtime.secured import open_zookeeper

        wait_s = self.patience_s(config.cluster.connect_timeout_s)
        end = time.monotonic() + wait_s
        coordinator = open_zookeeper(config, self.shown_credentials())
        try:
            if not coordinator.wait_connected(min(SILENCE_S, wait_s)):
                self.note(f"ZooKeeper at {coordinator.hosts} does not answer; waiting {self._how_long(wait_s)}")
                try:
                    coordinator.require_connected(max(0.1, wait_s - SILENCE_S))
                except NotConnected as error:
                    is_handshake = "TLS handshake" in error.message
                    raise NotConnected(error.message, hint=error.hint if is_handshake else self._nobody_there()) from error
            meta = verify(coordinator, config.cluster.cluster_id or None, timeout_s=max(1.0, end - time.monotonic()))
            self._belong_together(tree=meta)
        except BaseException:
            coordinator.close(timeout_s=0.1 if self.is_over() else 1.0)
            raise
        return coordinator

    def _how_long(self, wait_s: float) -> str:
        return f"up to {format_duration(wait_s)}" if self.timeout_s is None else "until --timeout is over"

    @property
    def is_of_dev(self) -> bool:
        """Whether the cluster is the one that a running `rmgr dev` has recorded."""
        from rmgr.config import is_of_dev

        return not self.zk and is_of_dev(self.config().cluster.zk)

    def _nobody_there(self) -> str:
        if self.is_of_dev:
            return "it is that of your rmgr dev: rmgr dev status tells what of it is dead, rmgr dev start ID starts that again"
        named = "--zk" if self.zk else next((name for name in ("RMGR_ZK", "RMGR_CLUSTER_ZK") if os.environ.get(name)), self.config().source)
        return f"is it running? its address comes from {named}; rmgr doctor looks closer   (one of your own: rmgr dev)"

    def _ask_gateway(self) -> RemoteAnswers:
        from rmgr.procedures.bootstrap import check_found
        from rmgr.submitter.questions import ReadMeta
        from rmgr.submitter.remote import RemoteAnswers

        cluster = self.config().cluster
        wait_s = self.patience_s(cluster.connect_timeout_s)
        credentials = self.shown_credentials()
        user = self.me if credentials is None else ""
        asks = RemoteAnswers(cluster.gateway, credentials=credentials, user=user, session_timeout_s=cluster.session_timeout_s)
        try:
            asks.expect(ReadMeta(), *self._expected)
            try:
                meta = asks.ask(ReadMeta(), timeout_s=min(SILENCE_S, wait_s))
            except Unavailable:
                self.note(f"no answer of the gateway at {asks.hosts} yet; waiting {self._how_long(wait_s)}")
                try:
                    meta = asks.ask(ReadMeta(), timeout_s=max(0.1, wait_s - SILENCE_S))
                except Unavailable as error:
                    raise _no_gateway(asks.hosts, wait_s, error) from error
            self._belong_together(tree=check_found(meta, cluster.cluster_id or None))
        except BaseException:
            asks.close()
            raise
        return asks

    def leader_at_a_glance(self) -> EpochRecord | None:
        """Returns the leader after one short look at ZooKeeper; None if more, or an explanation, is needed: then use `coordinator`."""
        config = self.config()
        if config.cluster.uses_gateway or not config.cluster.zk:
            return None
        from rmgr.adapters.zookeeper.server import GlanceFailed, glance
        from rmgr.coord.protocol import paths
        from rmgr.coord.protocol.records import decode_record
        from rmgr.model.node import EpochRecord, Meta
        from rmgr.model.version import check_cluster
        from rmgr.runtime.secured import zookeeper_security

        hosts, chroot = config.cluster.hosts_and_chroot()
        security = zookeeper_security(config, self.shown_credentials())
        try:
            seen = glance(
                hosts,
                "/" + chroot.strip("/") if chroot.strip("/") else "",
                data=[paths.META, paths.EPOCH],
                children=[paths.WATCHDOGS],
                access=[paths.META] if security is not None else [],
                security=security,
                timeout_s=self.left_s(SILENCE_S),
            )
        except GlanceFailed as why:
            self.detail(f"a glance at ZooKeeper was not enough: {why}")
            return None
        meta, epoch = seen.data[paths.META], seen.data[paths.EPOCH]
        if meta is None or epoch is None or "world" in seen.schemes.get(paths.META, ()):
            return None
        found = decode_record(meta, Meta, paths.META)
        check_cluster(found, config.cluster.cluster_id or None)
        self._belong_together(tree=found)
        leader = decode_record(epoch, EpochRecord, paths.EPOCH)
        return leader if leader.endpoint and leader.candidate in seen.children[paths.WATCHDOGS] else None

    # -- the data store

    def data_store(self) -> Store:
        """Returns the data store. Raises StoreUnavailable, NotConnected."""
        if self._store is None:
            self._store = self.open_data_store()
        return self._store

    def store_or_none(self) -> Store | None:
        """Returns the data store, or None, with a note, if it cannot be opened: for questions that can do without it."""
        from rmgr.client.queries import store_or_none

        return store_or_none(self)

    @property
    def store_url(self) -> str:
        """The place of the data store as configured: `sqlite:PATH`, `cassandra:...`, `gateway:ADDRESS`."""
        cluster = self.config().cluster
        return f"gateway:{cluster.gateway}" if cluster.uses_gateway else cluster.store

    def open_data_store(self) -> Store:
        """Opens the data store of the configuration; the caller closes it. Raises StoreUnavailable, UsageError."""
        from rmgr.adapters.stores import open_store
        from rmgr.procedures.bootstrap import STORE_READ_S

        config = self.config()
        if config.cluster.uses_gateway:
            from rmgr.adapters.gateway.store import GatewayStore

            return GatewayStore(config.cluster.gateway, credentials=self.shown_credentials())
        if not config.cluster.store:
            config.cluster.hosts_and_chroot()  # reports a missing cluster first
            raise NotConnected("no data store is configured", hint="name it: --store sqlite:PATH or RMGR_STORE   (rmgr dev sets it)")
        store = open_store(config.cluster.store, create=False)
        try:
            timeout_s = self.left_s(STORE_READ_S)
            self._belong_together(store=store.cluster_id(timeout_s=timeout_s) or "")
        except BaseException:
            store.close()
            raise
        return store

    def _belong_together(self, *, tree: Meta | None = None, store: str | None = None) -> None:
        """Remembers the cluster of the tree and of the data store ("": a store without an owner).

        Raises: WrongCluster if the two differ, or if the cluster has used a store and this one is empty.
        """
        if tree is not None:
            self.tree, self.tree_id = tree, tree.cluster_id
        self.store_id = self.store_id if store is None else store
        if self.tree is not None and self.store_id == "":
            from rmgr.model.version import check_store

            check_store(self.tree, self.store_id)
        if self.tree_id and self.store_id and self.tree_id != self.store_id:
            raise WrongCluster(
                f"ZooKeeper belongs to cluster {self.tree_id}, the data store to {self.store_id}",
                hint="name a --zk and a --store that belong together; if ZooKeeper was wiped, restore its data or start with a new store",
            )

    def values(self) -> Values:
        """Returns values by name, with their owners in a secured cluster."""
        return self.values_in(self.data_store(), self.asks())

    def values_in(self, store: Store, asks: Asks | None = None) -> Values:
        """Returns the values in `store`; in a secured cluster it asks the cluster. asks: without it, pointers lead nowhere."""
        from rmgr.client.values import AskedFates, Values

        credentials = self.credentials()
        if credentials is None:
            return Values(store, AskedFates(asks) if asks is not None else None)
        from rmgr.client.identity import secured_by

        asks = self.asks()
        secured = secured_by(asks, credentials, self.config().security, self.cluster_id())
        return Values(store, AskedFates(asks), secured.deeds)

    # -- submitting

    def signer(self) -> Signer | None:
        """Returns the signer of one SUBMIT; None in an open cluster."""
        credentials = self.shown_credentials()
        if credentials is None:
            return None
        from rmgr.client.identity import Signer

        return Signer(credentials, self.cluster_id(), ttl_s=self.config().security.payload_ttl_s)

    def submit(self, order: Order, *, timeout_s: float) -> Submitted:
        """Submits one order (`submitter.port.prepared`) that this process does not look after. Raises: see `submitter.port.WorkPort`."""
        if self.config().cluster.uses_gateway:
            work, self.undone = self.submitter().work, ""
            return work.submit(order, timeout_s=timeout_s)
        from rmgr.runtime import machine
        from rmgr.submitter.submitting import submit

        coordinator, self.undone = self.coordinator(), ""
        return submit(coordinator, order, owner="", deadline_s=machine.monotonic() + timeout_s)

    def submitter(self) -> Engine:
        """Returns the Submitter of this process, on the session's own connections; it ends with the command."""
        if self._submitter is None:
            self._submitter = self.own(self._open_submitter())
        return self._submitter

    def _open_submitter(self) -> Engine:
        from rmgr.client.identity import secured_by
        from rmgr.client.submission.engine import engine_here, engine_through
        from rmgr.submitter.remote import RemoteAnswers

        asks, credentials, config = self.asks(), self.credentials(), self.config()
        cluster_id = self.cluster_id() if credentials is not None else ""
        if isinstance(asks, RemoteAnswers):
            secured = secured_by(asks, credentials, config.security, cluster_id)
            return engine_through(asks, self.data_store(), secured=secured)
        coordinator = self.coordinator()
        secured = secured_by(asks, credentials, config.security, cluster_id, coordinator)
        return engine_here(coordinator, self.data_store(), asks, secured=secured)

    # -- the end

    def own(self, closable: T) -> T:
        """Registers `closable` to be closed when the command ends, and returns it."""
        self._owned.append(closable)
        return closable

    def close(self) -> None:
        """Closes everything, owned objects in reverse order. Never raises: the command has already ended."""
        closables = [self._query, *reversed(self._owned), self._coordinator, self._store, self._asks]
        self._owned = []
        self._query = self._coordinator = self._store = self._asks = self._submitter = None
        for closable in closables:
            if (close := getattr(closable, "close", None)) is not None:  # answers in this process have none
                with contextlib.suppress(Exception):
                    close()


def _no_gateway(hosts: str, wait_s: float, error: Unavailable) -> Unavailable:
    """Returns the error if no gateway answers, or none that reaches ZooKeeper."""
    if isinstance(error, CoordinationUnavailable):
        message = f"the gateway at {hosts} answers, but ZooKeeper does not answer it within {format_duration(wait_s)}: {error.message}"
        return CoordinationUnavailable(message, hint="is ZooKeeper up? ask who runs the gateway; its log says more")
    hint = "is it running? start one with: rmgr submitter --listen HOST:PORT   (or name another: --gateway, RMGR_GATEWAY)"
    if "does not talk to us" in error.message:
        hint = "a secured one hangs up on who has no credentials: set RMGR_SECURITY_DIR to your bundle (rmgr admin add-user)"
    return NotConnected(f"no gateway answers at {hosts} within {format_duration(wait_s)}: {error.message}", hint=hint)
