"""A call of the program that reaches its cluster: the session in ZooKeeper or through a gateway, and the data store, on demand."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from rmgr.cli.session.invocation import Invocation

if TYPE_CHECKING:
    from rmgr.adapters.zookeeper.client import ZkCoordinator
    from rmgr.coord.protocol.ports import Store
    from rmgr.model.cluster.node import EpochRecord
    from rmgr.submitter.answers import Answers
    from rmgr.submitter.questions import Question
    from rmgr.submitter.remote import RemoteAnswers

A = TypeVar("A")


@dataclass(slots=True)
class ConnectedInvocation(Invocation):
    """Opens what a command asks for, once."""

    _coordinator: ZkCoordinator | None = None
    _store: Store | None = None
    _asks: Answers | RemoteAnswers | None = None

    def asks(self) -> Answers | RemoteAnswers:
        """Whoever answers what users ask: this process at ZooKeeper, or a gateway; opened on first use. Raises as `coordinator`."""
        if self._asks is None:
            from rmgr.cli.session.reach import open_asks

            self._asks = open_asks(self)
        return self._asks

    def ask(self, question: Question[A], most_s: float = 10.0) -> A:
        """The answer, within `most_s` and what is left of `--timeout`. Raises what the question says, and as `coordinator`."""
        asks = self.asks()
        return asks.ask(question, timeout_s=self.left_s(most_s) or most_s)

    def coordinator(self) -> ZkCoordinator:
        """The session in ZooKeeper, opened on first use: for who submits there, and for admins.

        Raises NotConnected, CoordinationUnavailable, WrongCluster; UsageError behind a gateway.
        """
        if self._coordinator is None:
            from rmgr.cli.session.reach import open_coordinator

            self._coordinator = open_coordinator(self)
        return self._coordinator

    def zookeeper(self) -> ZkCoordinator:
        """ZooKeeper itself, for admins. Raises NotConnected where only a gateway is configured, and as `coordinator`."""
        if self.config().cluster.uses_gateway:
            self.config().cluster.hosts_and_chroot()  # says so
        return self.coordinator()

    def cluster_id(self) -> str:
        """Of ZooKeeper's tree, "" where there is none. Raises as `coordinator`."""
        if not self.tree_id:
            self.asks()  # which finds it
        return self.tree_id

    @property
    def via(self) -> str:
        """The gateway through which daemons are asked, "" = none."""
        return str(getattr(self.asks(), "endpoint", "")) if self.config().cluster.uses_gateway else ""

    def data_store(self) -> Store:
        """The data store, opened on first use. Raises StoreUnavailable, NotConnected."""
        if self._store is None:
            from rmgr.cli.session.reach import open_data_store

            self._store = open_data_store(self)
        return self._store

    def store_or_none(self) -> Store | None:
        """The data store; None, with a note, where it cannot be opened: for questions that it only helps to answer."""
        from rmgr.client.queries.past import store_or_none

        return store_or_none(self)

    @property
    def store_url(self) -> str:
        """Where the data store is, as it is configured: `sqlite:PATH`, `cassandra:...`, `gateway:ADDRESS`."""
        cluster = self.config().cluster
        return f"gateway:{cluster.gateway}" if cluster.uses_gateway else cluster.store

    def leader_at_a_glance(self) -> EpochRecord | None:
        """Who leads, by one short look at ZooKeeper; None where that takes more, or explanations."""
        from rmgr.cli.session.reach import leader_at_a_glance

        return leader_at_a_glance(self)

    def close(self) -> None:
        """Lets go of everything. Never raises."""
        Invocation.close(self)
        for closable in (self._coordinator, self._store):
            if closable is not None:
                with contextlib.suppress(Exception):
                    closable.close()
        if (close := getattr(self._asks, "close", None)) is not None:  # of a gateway
            with contextlib.suppress(Exception):
                close()
        self._coordinator = self._store = self._asks = None
