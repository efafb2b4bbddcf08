"""Protocols of a session, for parts that need a few of its names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from rmgr.client.queries.doors import HasDeadline

if TYPE_CHECKING:
    from rmgr.submitter.questions import Question

A = TypeVar("A")


class AskingSession(HasDeadline, Protocol):
    """Asks the cluster."""

    def ask(self, question: Question[A], most_s: float = 10.0) -> A:
        """See `ConnectedInvocation`."""
        ...

    def detail(self, text: str) -> None:
        """Shows one line to a user who asked for more."""
        ...
