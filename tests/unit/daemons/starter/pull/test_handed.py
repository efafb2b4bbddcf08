"""Blocks handed to a node are taken once, by whichever way they come; announced ones are read ahead, and returned in the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace as replace_fields

from rmgr.coord.ops.work import HANDED_SEQ
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.records import encode_block, encode_keyed
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.submissions import Info
from rmgr.daemons.starter.core.tree import IdleMark, IdleStage
from rmgr.daemons.starter.pull.hands import Hands, Hints
from rmgr.model.cluster.identity import Role
from rmgr.model.cluster.queue import QueueSpec
from rmgr.model.tasks.block import BlockData, BlockKey, KeyedPayload
from rmgr.model.tasks.submission import PythonEnvironment, Submission, Work
from rmgr.model.wire.line import Hint
from rmgr.runtime.story import Stories
from tests.harness.claimed import a_key

FUNCTION = "f" * 64
BLOCK = BlockData(function=FUNCTION, keyed=True, payloads=(encode_keyed(KeyedPayload(("in",), ("out",))),))
DATA = encode_block(BLOCK)


class Stager:
    """Writes down what it is asked. asked: of ZooKeeper, which does not answer."""

    def __init__(self) -> None:
        self.told: list[tuple[str, ClaimedBlock]] = []
        self.asked: list[str] = []

    def get(self, path: str) -> Future[None]:
        self.asked.append(path)
        return Future()

    def meet(self, block: ClaimedBlock) -> None:
        self.told.append(("meet", block))

    def forget(self, block: ClaimedBlock) -> None:
        self.told.append(("forget", block))


def announced(*, by: str | None, data: bytes = DATA) -> tuple[Hints, Stager]:
    record = Submission(id=1, name="x", user="ann", queue="q", work=Work.PYTHON, python=PythonEnvironment())
    info = Info(record, QueueSpec(name="q"), None)
    stager = Stager()
    records = SimpleNamespace(get=lambda number, *, is_announced: info if number == 1 and is_announced else None)
    shared = SimpleNamespace(records=records, gate=None, coordinator=stager, post=lambda call: call())
    node: Any = SimpleNamespace(name="n1", stager=stager, shared=shared, hands=SimpleNamespace(hinted=lambda *_: None))
    hints = Hints(node)
    line: Any = SimpleNamespace(peer=None if by is None else SimpleNamespace(name=by, role=Role.USER), close=lambda: None)
    hints.heard(line, Hint("n1", paths.block_name(handed(0)), data, is_early=True), 1)
    return hints, stager


def test_inputs_of_what_its_user_announces_are_read_and_kept_when_it_comes() -> None:
    hints, stager = announced(by="ann")
    block = hints.meet(handed(0), DATA)
    assert stager.told == [("meet", block)]


def test_nothing_is_read_for_what_somebody_else_announces() -> None:
    hints, stager = announced(by="eve")
    assert [what for what, _ in stager.told] == []
    assert hints.meet(handed(0), DATA) is None


def test_nobody_takes_the_place_of_what_its_user_has_announced() -> None:
    hints, stager = announced(by="ann")
    eve: Any = SimpleNamespace(peer=SimpleNamespace(name="eve", role=Role.USER), close=lambda: None)
    hints.heard(eve, Hint("n1", paths.block_name(handed(0)), DATA), 1)
    assert [what for what, _ in stager.told] == ["meet"]
    assert hints.meet(handed(0), DATA) is not None


def test_what_holds_no_keys_is_not_announced() -> None:
    hints, stager = announced(by="ann", data=encode_block(replace_fields(BLOCK, payloads=(b"x",))))
    assert hints.meet(handed(0), encode_block(replace_fields(BLOCK, payloads=(b"x",)))) is None
    assert stager.told == []


def test_what_never_comes_or_is_another_one_is_given_back() -> None:
    hints, stager = announced(by="ann")
    hints.settle(time.monotonic())
    assert [what for what, _ in stager.told] == ["meet"]
    hints.settle(time.monotonic() + 60)
    assert [what for what, _ in stager.told] == ["meet", "forget"]
    hints, stager = announced(by=None)
    assert hints.meet(handed(0), b"something else") is None
    hints.reset()
    assert [what for what, _ in stager.told] == ["meet", "forget"]


def test_an_early_hint_has_inputs_read_and_asks_for_nothing() -> None:
    hints, stager, line, asked = listening()
    early = Hint("n1", paths.block_name(handed(0)), DATA, is_early=True)
    hints.heard(line, early, 1)
    hints.heard(line, early, 1)  # said twice it is read once
    assert [what for what, _ in stager.told] == ["meet"]
    assert asked == []
    hints.heard(line, Hint("n1", early.block, DATA), 1)  # its commit is on its way
    assert asked == [paths.running_block("n1", handed(0))]
    block = hints.meet(handed(0), DATA)
    assert stager.told == [("meet", block)], "what was read early is what it begins with"


def test_early_hints_of_a_node_are_bounded() -> None:
    hints, stager, line, asked = listening()
    for first in range(100):
        hints.heard(line, a_hint(first, is_early=True), 1)
    assert [what for what, _ in stager.told] == ["meet"] * 8
    hints.settle(time.monotonic() + 60)
    assert [what for what, _ in stager.told] == ["meet"] * 8 + ["forget"] * 8
    assert asked == []


def test_nobody_takes_the_room_for_hints_of_others() -> None:
    hints, stager, line, asked = listening()
    greedy: Any = SimpleNamespace(peer=SimpleNamespace(name="eve", role=Role.USER), close=lambda: None)
    for first in range(100):
        hints.heard(greedy, a_hint(first, is_early=True), 1)
        hints.heard(greedy, a_hint(100 + first), 1)
    assert len(asked) == 8
    hints.heard(line, a_hint(500, is_early=True), 1)
    hints.heard(line, a_hint(500), 1)
    assert asked[8:] == [paths.running_block("n1", handed(500))]
    assert [what for what, _ in stager.told] == ["meet"], "of her own"


def test_all_hints_together_are_bounded_and_unnamed_clients_count_by_line() -> None:
    hints, stager, _, asked = listening()
    for first in range(100):
        line: Any = SimpleNamespace(peer=None, close=lambda: None)
        hints.heard(line, a_hint(first, is_early=True), 1)
    assert (len(stager.told), asked) == (64, [])


def listening() -> tuple[Hints, Stager, Any, list[str]]:
    """Hints of n1 whose user's line is open, and what they ask ZooKeeper for."""
    hints, stager = announced(by="ann")
    hints.reset()
    stager.told.clear()
    return hints, stager, SimpleNamespace(peer=SimpleNamespace(name="ann", role=Role.USER), close=lambda: None), stager.asked


def handed(first: int) -> BlockKey:
    return replace(a_key(first=first), seq=HANDED_SEQ)


def a_hint(first: int, *, is_early: bool = False) -> Hint:
    return Hint("n1", paths.block_name(handed(first)), encode_block(replace_fields(BLOCK, base=first)), is_early=is_early)


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
