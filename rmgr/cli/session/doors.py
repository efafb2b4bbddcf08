"""Protocols of a session, for parts that need a few of its names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rmgr.client.queries.doors import HasDeadline

if TYPE_CHECKING:
    from rmgr.coord.protocol.ports import Coordinator


class TreeSession(HasDeadline, Protocol):
    """Reaches ZooKeeper."""

    def coordinator(self) -> Coordinator:
        """ZooKeeper or a gateway, opened on first use. Raises NotConnected, CoordinationUnavailable, WrongCluster."""
        ...

    def detail(self, text: str) -> None:
        """Shows one line to a user who asked for more."""
        ...
