"""Blocks that a node is handed are taken once, whichever way brings them first: a hint, a guess of what comes next, the list."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from rmgr.coord.ops.work import HANDED_SEQ
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.records import encode_block
from rmgr.daemons.starter.core.submissions import Info
from rmgr.daemons.starter.core.tree import IdleMark, IdleStage
from rmgr.daemons.starter.pull.hands import Hands
from rmgr.model.cluster.queue import QueueSpec
from rmgr.model.tasks.block import BlockData, BlockKey
from rmgr.model.tasks.submission import Submission, Work
from rmgr.runtime.story import Stories
from tests.harness.claimed import a_key


class Node:
    """A node whose reads of ZooKeeper the test answers."""

    def __init__(self) -> None:
        self.asked: dict[str, Future[Any]] = {}
        self.blocks: dict[BlockKey, Any] = {}
        self.taken: list[int] = []
        queue = QueueSpec(name="q")
        info: Any = Info(Submission(id=1, name="x", user="ann", queue="q", work=Work.COMMAND), queue, None)
        shared = SimpleNamespace(
            coordinator=SimpleNamespace(get=self._ask, children=self._ask, stat=lambda path, watch: self._ask(path)),
            post=lambda call: call(),
            records=SimpleNamespace(get=lambda _number, **_: info, is_refused=lambda _number: False),
            caps=SimpleNamespace(is_on=False),
            gate=None,
        )
        loop: Any = SimpleNamespace(post=lambda call: call(), after=lambda _s, _call: None)
        node: Any = SimpleNamespace(
            name="n1",
            incarnation=1,
            shared=shared,
            blocks=self.blocks,
            idle=IdleMark(IdleStage.SET),
            puller=SimpleNamespace(in_doubt=lambda: (), suits=lambda _info, _key: True),
            stager=SimpleNamespace(meet=lambda _: None, forget=lambda _: None),
            stories=Stories(loop),
            log=SimpleNamespace(warning=lambda *_, **__: None),
            claimed=self._claimed,
        )
        self.hands = node.hands = Hands(node)
        self._boards: Any = [SimpleNamespace(spec=queue, since=0)]

    def _ask(self, path: str) -> Future[Any]:
        return self.asked.setdefault(path, Future())

    def _claimed(self, block: Any) -> None:
        self.taken.append(block.key.first)
        self.blocks[block.key] = block

    def settle(self) -> None:
        self.hands.settle(self._boards, 0.0)

    def hinted(self, first: int) -> None:
        """A hint's own read is answered: the block stands there."""
        done: Future[Any] = Future()
        done.set_result(block(first))
        self.hands.hinted(1, key(first), done)
        self.settle()


def key(first: int) -> BlockKey:
    return a_key(seq=HANDED_SEQ, first=first)


def block(first: int) -> Stamped:
    stat: Any = SimpleNamespace(version=0)
    return Stamped(encode_block(BlockData(function="f" * 64, base=first, payloads=(b"x",))), stat)


def _both_ways(first: Callable[[Node], None], then: Callable[[Node], None]) -> list[int]:
    """Tasks that were taken where block 1 is looked for, as what comes after block 0, and hinted, too."""
    node = Node()
    node.hinted(0)
    node.hands.look()
    first(node)
    node.settle()
    then(node)
    node.settle()
    return node.taken


def _found(node: Node) -> None:
    node.asked[paths.running_block("n1", key(1))].set_result(block(1))


def test_a_block_that_is_hinted_while_it_is_looked_for_is_taken_once() -> None:
    assert _both_ways(lambda node: node.hinted(1), _found) == [0, 1]
    assert _both_ways(_found, lambda node: node.hinted(1)) == [0, 1]
