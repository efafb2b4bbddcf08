"""The session of one command line, as commands get it: its options, its cluster, and questions to whoever leads."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmgr.cli.session.connected import ConnectedInvocation

if TYPE_CHECKING:
    from rmgr.client.queries.query import Query


@dataclass(slots=True)
class Session(ConnectedInvocation):
    """Session of a command: `invocation.py` knows its options, `connected.py` reaches the cluster, `query` asks it."""

    _query: Query | None = None

    def query(self) -> Query:
        """Questions to the leader, or to znodes when there is none."""
        if self._query is None:
            from rmgr.client.queries.query import Query

            self._query = Query(self, self)
        return self._query

    def close(self) -> None:
        """Lets go of everything. Never raises: the command has ended already."""
        if self._query is not None:
            with contextlib.suppress(Exception):
                self._query.close()
            self._query = None
        ConnectedInvocation.close(self)
