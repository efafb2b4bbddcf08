"""Lets a command submit through the client: its session's connections, identity and deadline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from rmgr.runtime import machine

if TYPE_CHECKING:
    from rmgr.cli.session.context import Session
    from rmgr.client.identity.signing import Signer
    from rmgr.client.submission.engine import Engine
    from rmgr.client.values.values import Values
    from rmgr.coord.protocol.ports import Store
    from rmgr.submitter.port import Order, Submitted
    from rmgr.submitter.questions import Asks, Question

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class SessionHost:
    """A `client.commands.doors.CommandHost` on a command's session."""

    session: Session

    @property
    def me(self) -> str:
        """See `CommandHost`."""
        return self.session.me

    def asks(self) -> Asks:
        """See `CommandHost`."""
        return self.session.asks()

    def ask(self, question: Question[A], most_s: float = 10.0) -> A:
        """See `CommandHost`."""
        return self.session.ask(question, most_s)

    def data_store(self) -> Store:
        """See `CommandHost`."""
        return self.session.data_store()

    def left_s(self, most: float | None = None) -> float | None:
        """See `CommandHost`."""
        return self.session.left_s(most)

    def note(self, text: str) -> None:
        """See `CommandHost`."""
        self.session.note(text)

    def values(self) -> Values:
        """See `CommandHost`."""
        from rmgr.cli.store.values import values_of

        return values_of(self.session, self.session.data_store(), self.session.asks())

    def signer(self) -> Signer | None:
        """See `CommandHost`."""
        session = self.session
        credentials = session.shown_credentials()
        if credentials is None:
            return None
        from rmgr.client.identity.signing import Signer

        return Signer(credentials, session.cluster_id(), ttl_s=session.config().security.payload_ttl_s)

    def submit(self, order: Order, *, timeout_s: float) -> Submitted:
        """See `CommandHost`."""
        if self.session.config().cluster.uses_gateway:
            return self.submitter().work.submit(order, timeout_s=timeout_s)
        from rmgr.submitter.submitting import submit

        return submit(self.session.coordinator(), order, owner="", deadline_s=machine.monotonic() + timeout_s)

    def submitter(self) -> Engine:
        """See `CommandHost`. It ends with the command."""
        return engine_of(self.session)


def engine_of(session: Session) -> Engine:
    """A Submitter of this process, on the session's own connections; ends with the command."""
    from rmgr.client.identity.secured import engine_options
    from rmgr.client.submission.engine import engine_here, engine_through

    asks, credentials, config = session.asks(), session.credentials(), session.config()
    cluster_id = session.cluster_id() if credentials is not None else ""
    if config.cluster.uses_gateway:
        options = engine_options(asks, credentials, config.security, cluster_id)
        return session.own(engine_through(config.cluster.gateway, session.data_store(), asks, credentials=credentials, **options))
    coordinator = session.coordinator()
    options = engine_options(asks, credentials, config.security, cluster_id, coordinator)
    return session.own(engine_here(coordinator, session.data_store(), asks, **options))
