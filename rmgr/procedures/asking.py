"""Asking the leader for what only it can do: the request, and its answer."""

from __future__ import annotations

from rmgr.coord import validity
from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, ConflictKind
from rmgr.coord.protocol.ports import Coordinator
from rmgr.errors import CoordinationUnavailable
from rmgr.model.tasks.request import StopRequest


def send_stop(coordinator: Coordinator, guid: str, request: StopRequest, *, timeout_s: float) -> None:
    """Has the leader ask placed jobs to save their state, or to go on elsewhere.

    guid: drawn by who asks; sent again, it is the same request. `read_stop` tells what came of it, as soon as somebody leads.
    Raises: CoordinationUnavailable.
    """
    outcome = coordinator.commit(leader_ops.ask_leader(guid, request), timeout_s=timeout_s).result(timeout_s + 1)
    is_there = isinstance(outcome, Conflict) and outcome.kind is ConflictKind.NODE_EXISTS  # sent again
    if not (isinstance(outcome, Committed) or is_there):
        raise CoordinationUnavailable(f"the leader could not be asked: {outcome}", hint="try again")


def read_stop(coordinator: Coordinator, guid: str, *, timeout_s: float) -> StopRequest | None:
    """The request as it stands, `answered` once the leader has; None: it is gone."""
    path = paths.request(guid)
    found = coordinator.get(path, timeout_s=timeout_s).result(timeout_s + 1)
    return None if found is None else validity.decode(found.data, StopRequest, path)
