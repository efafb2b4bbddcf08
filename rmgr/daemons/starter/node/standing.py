"""Blocks that stand under a node's name when it registers: ADOPT of what this process still runs, FAIL of what an older one left.

Runs on the Starter's own thread and waits, with deadlines (`registry.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from rmgr.coord import validity
from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Conflict, Stamped, Unknown
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.protocol.records import decode_block
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.errors import CoordinationUnavailable, RmgrError
from rmgr.model.base.states import Reason
from rmgr.model.tasks.block import BlockData, BlockKey
from rmgr.runtime import machine
from rmgr.runtime.logger import Log

if TYPE_CHECKING:
    from rmgr.daemons.starter.core.records import Info

_COMMIT_S = 10.0


class StandingNode(Protocol):
    """A node with what it has claimed. blocks: what this process knows of."""

    name: str
    blocks: dict[BlockKey, ClaimedBlock]

    def in_doubt(self) -> dict[BlockKey, tuple[str, Info]]:
        """Claims of which it is not known whether they were committed: queue, and what is known of the submission."""
        ...

    def drop_block(self, block: ClaimedBlock) -> None:
        """The block is not the node's own any more."""
        ...

    def registered(self, incarnation: int, *, idle: bool) -> None:
        """A new registration stands."""
        ...


class StandingBlocks:
    """Adopts or fails the blocks that stand under the names of a Starter's nodes.

    Args: wait: for an answer of ZooKeeper. Raises CoordinationUnavailable.
    """

    def __init__(self, coordinator: Coordinator, wait: Callable[[Future[Any]], Any], *, log: Log) -> None:
        self._coordinator = coordinator
        self._wait = wait
        self._log = log

    def take_over(self, agent: StandingNode, incarnation: int, fence: int) -> None:
        """Registers the node under `incarnation`. Goes on with what this process still has, fails what an older one left."""
        names = self._wait(self._coordinator.children(paths.running_node(agent.name))) or []
        standing: dict[BlockKey, Stamped] = {}
        reads = [(key, self._coordinator.get(f"{paths.running_node(agent.name)}/{name}")) for name, key in paths.blocks_in(names)]
        for key, read in reads:
            found = self._wait(read)
            if found is not None and self._is_block(agent.name, key, found):
                standing[key] = found
        for lost in [block for key, block in agent.blocks.items() if key not in standing]:
            self._log.info("block_dropped", node=agent.name, block=paths.block_name(lost.key), why="it was decided without us")
            agent.drop_block(lost)
        in_doubt = agent.in_doubt()
        idle = self._wait(self._coordinator.stat(paths.idle(agent.name))) is not None
        agent.registered(incarnation, idle=idle)
        commits: list[tuple[BlockKey, Future[Any]]] = []
        for key, found in standing.items():
            block = agent.blocks.get(key)
            if block is None and key in in_doubt:
                queue, info = in_doubt[key]
                block = ClaimedBlock.claimed(agent.name, queue, key, decode_block(found.data), found.version)
                block.info = info
                agent.blocks[key] = block
            if block is not None:
                commits.append((key, self._adopt(agent.name, incarnation, fence, block, found)))
            elif _is_placed_now(incarnation, found):
                continue  # since this registration: its START order is in the inbox
            else:
                failed = self._fail(agent.name, fence, key, found)
                if failed is not None:
                    commits.append((key, failed))
        for key, commit in commits:
            outcome = self._wait(commit)
            block = agent.blocks.get(key)
            if isinstance(outcome, Unknown):
                raise CoordinationUnavailable(f"it is not known what became of {paths.block_name(key)}: {outcome.cause}")
            if block is None:
                continue
            if isinstance(outcome, Conflict):
                agent.drop_block(block)
            else:
                block.version += 1

    def _is_block(self, node: str, key: BlockKey, found: Stamped) -> bool:
        """False, and logged: it is no block. Callers that may hand work over can write such a thing; the node comes back all the same."""
        try:
            validity.decode(found.data, BlockData, paths.block_name(key))
        except RmgrError as error:
            self._log.error("block_unreadable", node=node, block=paths.block_name(key), error=error.message)
            return False
        return True

    def _adopt(self, node: str, incarnation: int, fence: int, block: ClaimedBlock, found: Stamped) -> Future[Any]:
        data = msgspec.structs.replace(decode_block(found.data), incarnation=incarnation, stamp=machine.guid()[:12])
        block.reread(data, found.version, machine.monotonic())
        multi = ops.adopt(node, fence, block.key, data, found.version)
        self._log.info("block_adopted", node=node, block=paths.block_name(block.key), running=block.live)
        return self._coordinator.commit(multi, timeout_s=_COMMIT_S)

    def _fail(self, node: str, fence: int, key: BlockKey, found: Stamped) -> Future[Any] | None:
        record = self._wait(self._coordinator.get(paths.sub(key.submission)))
        if record is None:
            self._log.error("block_without_record", node=node, block=paths.block_name(key))
            return None
        try:
            queue = validity.submission(record.data, key.submission).queue
        except RmgrError as error:  # one such record must not keep a whole node away
            self._log.error("submission_unreadable", submission=key.submission, error=error.message)
            return None
        multi = leader_ops.fail(
            ops.fence_check(node, fence),
            node,
            queue,
            key,
            found.data,
            found.version,
            reason=Reason.NODE_LOST,
            now_us=machine.wall_us(),
        )
        self._log.info("block_failed", node=node, block=paths.block_name(key), why="an older incarnation left it")
        return self._coordinator.commit(replace(multi, guard=ops.fence_check(node, fence)), timeout_s=_COMMIT_S)


def _is_placed_now(incarnation: int, found: Stamped) -> bool:
    data = decode_block(found.data)
    return data.allocation is not None and data.incarnation == incarnation
