"""Protocols of who asks: their connections, their identity, their deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.coord.protocol.ports import Store
    from rmgr.model.cluster.node import EpochRecord
    from rmgr.submitter.questions import Asks, Question

A = TypeVar("A")


class HasDeadline(Protocol):
    """A deadline, and a place for notes to the user."""

    def left_s(self, most: float | None = None) -> float | None:
        """Seconds until the caller's deadline, at most `most`; None: neither limits. Raises DeadlineExceeded when it is over."""
        ...

    def note(self, text: str) -> None:
        """Shows one line to the user."""
        ...


class HistoryHost(HasDeadline, Protocol):
    """The data store besides."""

    def data_store(self) -> Store:
        """Opened on first use. Raises StoreUnavailable, NotConnected."""
        ...

    @property
    def store_url(self) -> str:
        """Where it is, as it is configured."""
        ...


class LeaderHost(HasDeadline, Protocol):
    """Ways to the leader. via: the gateway through which daemons are asked, "" = none."""

    @property
    def via(self) -> str: ...

    def asks(self) -> Asks:
        """Whoever answers what users ask, opened on first use. Raises NotConnected, CoordinationUnavailable, WrongCluster."""
        ...

    def ask(self, question: Question[A], most_s: float = 10.0) -> A:
        """The answer, within `most_s` and the caller's deadline. Raises what the question says, and as `asks`."""
        ...

    def leader_at_a_glance(self) -> EpochRecord | None:
        """Who leads, by one short look at ZooKeeper; None where that takes more."""
        ...

    def credentials(self) -> Credentials | None:
        """The caller's, proved; None in an open cluster."""
        ...

    def shown_credentials(self) -> Credentials | None:
        """The same, not proved yet: the daemon that is asked will look at them."""
        ...

    def detail(self, text: str) -> None:
        """Shows one line to a user who asked for more."""
        ...
