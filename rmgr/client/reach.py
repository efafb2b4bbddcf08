"""What parts of commands and programs get of who calls them: identity, deadline, and the ways to the cluster, each opened on first use.

Commands hand on their session (`cli/session`), which closes what it opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.client.identity import Signer
    from rmgr.client.submission.engine import Engine
    from rmgr.client.values import Values
    from rmgr.coord.protocol.ports import Store
    from rmgr.model.cluster.node import EpochRecord
    from rmgr.submitter.port import Order, Submitted
    from rmgr.submitter.questions import Asks, Question

A = TypeVar("A")


class NodeReach(Protocol):
    """Leads to nodes and to the store: of a command (`Reach`), or of a program (`output.ConnectionReach`)."""

    @property
    def via(self) -> str:
        """The gateway through which daemons are asked, "" = none."""
        ...

    def ask(self, question: Question[A], most_s: float = 10.0) -> A:
        """The answer, within `most_s` and the caller's deadline. Raises NotConnected, CoordinationUnavailable, what the question says."""
        ...

    def credentials(self) -> Credentials | None:
        """The caller's, proved; None in an open cluster."""
        ...

    def data_store(self) -> Store:
        """Opened on first use. Raises StoreUnavailable, NotConnected."""
        ...

    def note(self, text: str) -> None:
        """Shows one line to the user."""
        ...


class Reach(NodeReach, Protocol):
    """One caller, and all that it reaches."""

    @property
    def me(self) -> str:
        """The user's name, as submissions carry it."""
        ...

    def left_s(self, most: float | None = None) -> float | None:
        """Seconds until the caller's deadline, at most `most`; None: neither limits. Raises DeadlineExceeded when it is over."""
        ...

    def detail(self, text: str) -> None:
        """Shows one line to a user who asked for more."""
        ...

    def asks(self) -> Asks:
        """Whoever answers what users ask. Raises NotConnected, CoordinationUnavailable, WrongCluster."""
        ...

    def leader_at_a_glance(self) -> EpochRecord | None:
        """Who leads, by one short look at ZooKeeper; None where that takes more."""
        ...

    def shown_credentials(self) -> Credentials | None:
        """As `credentials`, not proved yet: the daemon that is asked will look at them."""
        ...

    @property
    def store_url(self) -> str:
        """Where the data store is, as it is configured."""
        ...

    def values(self) -> Values:
        """Values by name, with their owners in a secured cluster."""
        ...

    def signer(self) -> Signer | None:
        """Signs one SUBMIT; None in an open cluster."""
        ...

    def submit(self, order: Order, *, timeout_s: float) -> Submitted:
        """One order (`submitter.port.prepared`) that nobody looks after here. Raises: see `submitter.port.WorkPort`."""
        ...

    def submitter(self) -> Engine:
        """A Submitter on the caller's own connections, for what does not fit one SUBMIT. The caller closes it."""
        ...
