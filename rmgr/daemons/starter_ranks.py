"""What a Starter answers to the Starters of jobs that have a part on its nodes: whether the part is ready, and its processes.

Called on threads of the gRPC server; everything that looks at the nodes is asked of the thread that owns them.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from rmgr.adapters.rpc_ranks import Link
from rmgr.errors import NotFound, Unavailable

if TYPE_CHECKING:
    from rmgr.daemons.starter_loop import Starter
    from rmgr.daemons.starter_node import NodeAgent


class RanksAnswering:
    """`adapters.rpc_ranks.RanksAnswers` of one Starter."""

    def __init__(self, starter: Starter) -> None:
        self._starter = starter

    def prepare(self, node: str, hold: str) -> Future[Any]:
        """See `RanksAnswers.prepare`."""
        agent = self._agent(node)
        try:
            return self._starter.ask(lambda: agent.jobs.holds.when_ready(hold))
        except TimeoutError:
            raise Unavailable(f"node {node} is too busy to answer") from None

    def launch(self, node: str, hold: str) -> Link:
        """See `RanksAnswers.launch`."""
        self._agent(node)
        raise NotFound(f"{hold} has no place on node {node}")

    def _agent(self, node: str) -> NodeAgent:
        agent = self._starter.agents.get(node)
        if agent is None:
            raise NotFound(f"this Starter does not serve node {node}")
        return agent
