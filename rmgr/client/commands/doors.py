"""Protocol of who submits a command: its connections, its identity and its deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rmgr.client.identity.signing import Signer
    from rmgr.client.ports import HandlePort, Listener
    from rmgr.client.values.values import Values
    from rmgr.coord.protocol.ports import Store
    from rmgr.model.tasks.submission import Submission
    from rmgr.submitter.port import Order, Submitted
    from rmgr.submitter.questions import Asks, Question

A = TypeVar("A")


class HasStore(Protocol):
    """The data store, and the time that is left."""

    def data_store(self) -> Store:
        """Opened on first use. Raises StoreUnavailable, NotConnected."""
        ...

    def left_s(self, most: float | None = None) -> float | None:
        """Seconds until the caller's deadline, at most `most`; None: neither limits. Raises DeadlineExceeded when it is over."""
        ...


class CommandSubmitter(Protocol):
    """A Submitter, for what does not fit one SUBMIT. guid: its name as an owner."""

    @property
    def guid(self) -> str: ...

    @property
    def values(self) -> Values: ...

    def submit_many(self, orders: Sequence[Order], *, timeout_s: float) -> list[Submitted]:
        """See `submitter.port.WorkPort`."""
        ...

    def open(self, draft: Submission, listener: Listener, *, timeout_s: float) -> HandlePort:
        """See `client.ports.SubmitterPort`."""
        ...


class Asking(Protocol):
    """Asks the cluster."""

    def ask(self, question: Question[A], most_s: float = 10.0) -> A:
        """The answer, within `most_s` and the caller's deadline. Raises NotConnected, CoordinationUnavailable, what the question says."""
        ...


class CommandHost(HasStore, Asking, Protocol):
    """The caller. me: the user's name, as submissions carry it."""

    @property
    def me(self) -> str: ...

    def asks(self) -> Asks:
        """Whoever answers, opened on first use. Raises as `ask`."""
        ...

    def submit(self, order: Order, *, timeout_s: float) -> Submitted:
        """One order (`submitter.port.prepared`) that nobody looks after here. Raises: see `submitter.port.WorkPort`."""
        ...

    def values(self) -> Values:
        """Values by name, with their owners in a secured cluster."""
        ...

    def signer(self) -> Signer | None:
        """Signs one SUBMIT; None in an open cluster."""
        ...

    def submitter(self) -> CommandSubmitter:
        """A Submitter on the caller's own connections. The caller closes it."""
        ...

    def note(self, text: str) -> None:
        """Shows one line to the user."""
        ...
