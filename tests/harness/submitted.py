"""Submits directly to ZooKeeper, with a choice of signer and blocks."""

from __future__ import annotations

from collections.abc import Sequence

from rmgr.adapters.identity.trust import publish
from rmgr.client.identity import Signer
from rmgr.coord.ops.work import Block
from rmgr.coord.protocol.ports import Coordinator
from rmgr.model.submission import Submission
from rmgr.submitter import submitting
from rmgr.submitter.port import Order, Sign, Submitted, prepared, unsigned


def submit(
    coordinator: Coordinator,
    draft: Submission,
    *,
    owner: str = "",
    deadline_s: float,
    blocks: Sequence[Block] = (),
    tasks: int = 0,
    complete: bool = False,
    held: bool | None = None,
    signer: Signer | None = None,
) -> Submitted:
    """Makes one submission."""
    sign: Sign = unsigned
    if signer is not None:
        publish(coordinator, signer._credentials)
        sign = signer.sign
    order = prepared(Order(draft=draft, blocks=blocks, tasks=tasks, complete=complete, held=held), sign)
    return submitting.submit(coordinator, order, owner=owner, deadline_s=deadline_s)
