"""Changing the schema of a ring so that every node has the change: one coordinator, agreement after each statement, and mending.

Cassandra pushes a change to the nodes that its coordinator takes for alive just then; the others fetch it when they please,
after up to a minute. Two coordinators in turn would each begin with half of it. So all statements go to one node; each must
have reached every node that answers before the next one is sent; and a node that did not get it is given it directly. All
statements may run twice, and tables have ids of their own: that makes the same schema.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from rmgr.adapters.cassandra.driver import DriverConnection
from rmgr.adapters.cassandra.link import Lost
from rmgr.errors import StoreUnavailable

T = TypeVar("T")

_POLL_S = 0.1
_ASK_S = 2.0
_DDL_S = 20.0
#: How long Cassandra may take by itself, and once more after mending; how long a lost statement is repeated (s).
_AGREE_S, _MEND_S, _REPEAT_S = 5.0, 15.0, 30.0
_HINT = "nodetool describecluster shows which; then type the command again"


class Ring:
    """The nodes that answer, for one who changes the schema."""

    def __init__(self, connection: DriverConnection, *, agree_s: float = _AGREE_S) -> None:
        self._connection = connection
        self._agree_s = agree_s
        self._coordinator = ""
        self._silent: set[str] = set()

    def assemble(self, wanted: int, timeout_s: float) -> bool:
        """Waits for nodes that are just starting, or that the driver has not connected to yet; whether all are there."""
        end = time.monotonic() + timeout_s
        while self._connection.nodes_up() < max(wanted, self._connection.nodes_expected()):
            if time.monotonic() > end:
                return False
            time.sleep(_POLL_S)
        return True

    def ask(self, cql: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """The rows of a statement as the coordinator has them, repeated while it is lost."""
        return self.patiently(lambda: self._connection.run(cql, values, node=self._chosen()))

    def change(self, cql: str) -> None:
        """Carries out a change of the schema and waits until all nodes that answer have it. Raises: `StoreUnavailable`."""
        self.patiently(lambda: self._connection.run(cql, timeout_s=_DDL_S, node=self._chosen()))
        if not (dissenters := self._dissenters(self._agree_s)):
            return
        for node in dissenters:
            self.patiently(lambda node=node: self._connection.run(cql, timeout_s=_DDL_S, node=node))  # type: ignore[misc]
        if dissenters := self._dissenters(_MEND_S):
            raise StoreUnavailable(f"the nodes of Cassandra do not agree on the schema: {', '.join(dissenters)}", hint=_HINT)

    def lacking(self, keyspace: str, tables: Mapping[str, str]) -> dict[str, list[str]]:
        """Which of `tables` are missing, and where; nodes that say nothing are left out."""
        answers = self._ask_each("SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s", (keyspace,))
        found = {node: {row[0] for row in rows} for node, rows in answers.items() if rows is not None}
        return {node: missing for node, names in found.items() if (missing := [name for name in tables if name not in names])}

    def verify(self, keyspace: str, tables: Mapping[str, str]) -> None:
        """Makes sure that every node that answers has all `tables` (by name: how to make it).

        Raises: `StoreUnavailable` naming a node and what it lacks.
        """
        begun = time.monotonic()
        mend_s = begun + self._agree_s
        while lacking := self.lacking(keyspace, tables):
            now = time.monotonic()
            if now > begun + self._agree_s + _MEND_S:
                node, names = next(iter(lacking.items()))
                raise StoreUnavailable(f"Cassandra on {node} has no table {', '.join(names)} of keyspace {keyspace}", hint=_HINT)
            if now > mend_s:
                mend_s = now + self._agree_s
                for node, names in lacking.items():
                    for name in names:
                        self.patiently(lambda cql=tables[name], node=node: self._connection.run(cql, timeout_s=_DDL_S, node=node))  # type: ignore[misc]
            time.sleep(_POLL_S)

    def patiently(self, act: Callable[[], T]) -> T:
        """Repeats what has got no answer, at another node where the act does not name one."""
        end = time.monotonic() + _REPEAT_S
        pause_s = _POLL_S
        while True:
            try:
                return act()
            except Lost:
                self._coordinator = ""
                if time.monotonic() > end:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)

    def _chosen(self) -> str:
        names = self._connection.node_names()
        if not names:
            raise Lost("no node is connected", is_outage=True)
        if self._coordinator not in names:
            self._coordinator = next((name for name in names if name not in self._silent), names[0])
        return self._coordinator

    def _ask_each(self, cql: str, values: tuple[Any, ...] = ()) -> dict[str, list[Any] | None]:
        answers = self._connection.ask_each(cql, values, timeout_s=_ASK_S)
        self._silent = {node for node, rows in answers.items() if rows is None}
        return answers

    def _dissenters(self, timeout_s: float) -> list[str]:
        """The nodes that have another schema than the coordinator when the time is over; empty once all have the same.

        Nodes that say nothing are not waited for: they fetch the schema when they are back.
        """
        end = time.monotonic() + timeout_s
        while True:
            answers = self._ask_each("SELECT schema_version FROM system.local")
            versions = {node: str(rows[0][0]) for node, rows in answers.items() if rows}
            reference = versions.get(self._coordinator) or next(iter(versions.values()), "")
            dissenters = [node for node, version in versions.items() if version != reference]
            if (versions and not dissenters) or time.monotonic() > end:
                return dissenters if versions else ["no node answers"]
            time.sleep(_POLL_S)
