"""Waiting blocks as a Starter sees them: order, competition, partial claims; blocks handed to a node, whichever way they come."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace as replace_fields

from rmgr.coord.ops.work import HANDED_SEQ
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Create, Delete, Exists, Gone, Multi, Stamped
from rmgr.coord.protocol.records import encode_block, encode_keyed
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.submissions import Info
from rmgr.daemons.starter.core.tree import IdleMark, IdleStage
from rmgr.daemons.starter.pull.board import BlockCandidate, PendingQueue
from rmgr.daemons.starter.pull.hands import Hands, Hints
from rmgr.model.block import BlockData, BlockKey, KeyedPayload
from rmgr.model.identity import Role
from rmgr.model.line import Hint
from rmgr.model.queue import QueueSpec
from rmgr.model.submission import PythonEnvironment, Submission, Work
from rmgr.runtime.story import Stories
from tests.harness.claimed import a_key
from tests.harness.memory import MemoryCoordinator


class World:
    """A board whose messages are delivered by hand."""

    def __init__(self, salt: str = "me") -> None:
        self.zk = MemoryCoordinator(guarded=False)
        self.zk.ensure([paths.pending("q")])
        self.messages: deque[Callable[[], None]] = deque()
        self.now_s = 1000.0
        self.board = PendingQueue(QueueSpec(name="q"), self.zk, post=self.messages.append, salt=salt, clock=lambda: self.now_s)

    def deliver(self) -> None:
        while self.messages:
            self.messages.popleft()()

    def add(self, *keys: BlockKey, data: bytes = encode_block(BlockData())) -> None:
        for key in keys:
            self.create(paths.pending_block("q", key), data)

    def create(self, path: str, data: bytes) -> None:
        self.zk.commit(Multi(name="T", ops=(Create(path, data),), proof=Exists(path))).result(60)

    def remove(self, key: BlockKey) -> None:
        path = paths.pending_block("q", key)
        self.zk.commit(Multi(name="T", ops=(Delete(path),), proof=Gone(path))).result(60)

    def see(self, *keys: BlockKey) -> None:
        """These blocks come, and the list is read."""
        self.add(*keys)
        self.look()

    def look(self, *, hungry: bool = False) -> None:
        self.ask(hungry=hungry)
        self.deliver()

    def ask(self, *, hungry: bool = False) -> None:
        self.now_s += 0.4  # longer than anybody yields
        self.board.look(self.now_s, hungry=hungry)

    def taken(self, key: BlockKey) -> BlockCandidate:
        """Whatever is picked is taken, and this block is gone."""
        candidate = self.board.pick(self.now_s)
        self.board.take(candidate, None)
        self.remove(key)
        return candidate

    def pick(self, passed: frozenset[str] = frozenset()) -> BlockKey | None:
        candidate = self.board.pick(self.now_s, passed)
        return candidate.key if candidate is not None else None


def block(seq: int, *, priority: int = 0, first: int = 0, count: int = 10, submission: int = 1, user: str = "") -> BlockKey:
    tag = paths.user_tag(user) if user else ""
    return a_key(priority=priority, seq=seq, submission=submission, first=first, count=count, user=tag)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.zk.close()


def test_users_take_turns_and_priority_orders_the_work_of_one(world: World) -> None:
    world.see(*(block(seq, user="ann", priority=seq) for seq in range(1, 30)), block(40, user="bob", priority=-5), block(41, user="bob"))
    turns, ann, bob = world.board.turns, paths.user_tag("ann"), paths.user_tag("bob")
    assert world.board.is_shared
    assert world.pick() == block(29, user="ann", priority=29), "nobody had anything: who stands first"
    turns.charge(ann, 1, 1.0, 1, world.now_s)
    assert world.pick() == block(41, user="bob"), "hers of a higher priority do not go before his"
    assert world.pick(frozenset({paths.block_name(block(41, user="bob"))})) == block(40, user="bob", priority=-5)
    both = frozenset({paths.block_name(block(41, user="bob")), paths.block_name(block(40, user="bob", priority=-5))})
    assert world.pick(both) == block(29, user="ann", priority=29), "who is next has nothing to be claimed"
    turns.owe("n1", {bob: 5.0})
    assert world.pick() == block(29, user="ann", priority=29)
    assert {candidate.key.user for candidate in world.board.fetch_ahead(4)} == {ann, bob}, "data come for whoever may be next"


def test_a_queue_may_be_first_in_first_out(world: World) -> None:
    world.board.spec = QueueSpec(name="q", order="fifo")
    world.see(block(1, user="ann"), block(2, user="ann"), block(3, user="bob"), block(4, user="bob", priority=1))
    world.board.turns.charge(paths.user_tag("ann"), 1, 100.0, 1, world.now_s)
    assert not world.board.is_shared
    assert world.pick() == block(4, user="bob", priority=1)
    assert world.pick(frozenset({paths.block_name(block(4, user="bob", priority=1))})) == block(1, user="ann")


def test_a_block_whose_name_has_no_tag_stands_in_its_users_line_once_its_record_was_read(world: World) -> None:
    world.see(block(1), block(2), block(3, submission=2), block(4, user="bob", submission=3))
    ann = paths.user_tag("ann")
    candidate = world.board.pick(world.now_s)
    assert candidate.key == block(1)
    assert world.board.belongs(candidate, ann, world.now_s)
    assert not world.board.belongs(candidate, ann, world.now_s), "it is known"
    world.board.turns.charge(ann, 1, 1.0, 1, world.now_s)
    assert world.pick() == block(3, submission=2), "of this one it is not known"
    world.board.turns.charge("", 1, 1.0, 1, world.now_s)
    assert world.pick() == block(4, user="bob", submission=3)
    world.now_s += 2
    world.look()
    assert world.pick() == block(4, user="bob", submission=3), "it is still known after another reading"


def test_names_sort_as_blocks_do() -> None:
    keys = [block(seq, priority=priority, first=first) for seq in (3, 12) for priority in (-5, 0, 7) for first in (0, 99, 100)]
    by_name = sorted((paths.block_name(key) for key in keys), key=paths.claim_order)
    assert [paths.parse_block(name) for name in by_name] == sorted(keys, key=BlockKey.sort_key)


def test_nothing_is_picked_before_the_list_was_read(world: World) -> None:
    world.add(block(1))
    assert world.pick() is None
    world.look()
    assert world.pick() == block(1)


def test_the_most_urgent_and_oldest_block_is_picked(world: World) -> None:
    world.see(block(5), block(4), block(9, priority=3))
    assert world.pick() == block(9, priority=3)
    assert world.pick(frozenset({paths.block_name(block(9, priority=3))})) == block(4)


def test_a_partial_claim_leaves_a_rest_that_can_be_claimed_at_once(world: World) -> None:
    world.see(block(1), block(2))
    candidate = world.board.pick(world.now_s)
    world.board.fetch(candidate)
    world.deliver()
    assert candidate.data == BlockData()
    rest = block(1, first=4, count=6)
    left = world.board.take(candidate, (rest, BlockData()))
    assert world.pick() == rest
    world.board.taken(candidate)
    world.board.put_back(left, None)
    assert world.pick() == rest


def test_a_block_that_somebody_else_took_is_not_picked_again_and_the_list_is_read(world: World) -> None:
    world.see(block(1), block(2))
    candidate = world.taken(block(1))
    world.board.missed(candidate, None)
    assert world.pick() is None
    world.look()
    assert world.pick() == block(2)


def test_a_block_that_was_taken_and_came_back_is_picked_again(world: World) -> None:
    world.see(block(1))
    candidate = world.taken(block(1))
    world.board.taken(candidate)
    world.see(block(1))
    assert world.pick() == block(1)


def test_a_list_from_before_a_claim_does_not_bring_the_claimed_block_back(world: World) -> None:
    world.see(block(1))
    candidate = world.board.pick(world.now_s)
    world.ask(hungry=True)  # answered, not delivered yet
    world.board.take(candidate, None)
    world.remove(block(1))
    world.board.taken(candidate)
    world.deliver()
    assert world.pick() is None


def test_only_the_hungry_watch_and_a_new_block_wakes_them(world: World) -> None:
    world.look()
    assert not world.board.is_current
    world.look(hungry=True)
    assert world.board.is_current
    world.add(block(1))
    world.deliver()
    assert not world.board.is_current
    world.look(hungry=True)
    assert world.pick() == block(1)


def test_the_list_read_behind_the_last_claim_is_current_although_the_claim_fires_the_watch(world: World) -> None:
    """watch stands, one block | claimed | read behind the claim: empty, watched anew | another block is noticed"""
    world.look(hungry=True)
    world.add(block(1))
    world.deliver()
    world.look(hungry=True)
    candidate = world.taken(block(1))  # the claim
    world.board.look_behind(world.now_s)
    world.board.taken(candidate)
    world.deliver()
    assert world.board.is_current
    assert world.pick() is None
    world.add(block(2))
    world.deliver()
    world.look(hungry=True)
    assert world.pick() == block(2)


def test_nothing_is_read_behind_a_claim_that_leaves_others(world: World) -> None:
    world.add(block(1), block(2))
    world.look(hungry=True)
    candidate = world.board.pick(world.now_s)
    world.board.take(candidate, None)
    world.board.look_behind(world.now_s)
    assert not world.board.is_reading
    assert world.pick() == block(2)


def test_the_blocks_of_a_submission_without_a_gate_are_left_alone_for_a_while(world: World) -> None:
    world.see(block(1, submission=7), block(2, submission=8))
    now_s = world.now_s
    candidate = world.board.pick(now_s)
    for _ in range(3):
        world.board.pause(candidate, now_s, 1.0, grows=False)
        assert world.board.next_pause_s(now_s) == now_s + 1.0
    world.board.pause(candidate, now_s, 1.0)
    assert world.pick() == block(2, submission=8)
    assert world.board.next_pause_s(now_s) == now_s + 1.0
    world.board.pause(candidate, now_s + 1.0, 1.0)
    assert world.board.next_pause_s(now_s) == now_s + 3.0, "longer each time, while it stands there"
    for _ in range(10):
        world.board.pause(candidate, now_s, 1.0)
    assert world.board.next_pause_s(now_s) == now_s + 60.0
    world.remove(candidate.key)
    world.now_s += 2.0
    world.look()
    assert world.board.next_pause_s(now_s) is None, "set aside: when it is brought back, it is looked at at once"


def test_competitors_spread_over_the_first_few() -> None:
    picked = set()
    for salt in ("a", "b", "c", "d", "e", "f"):
        world = World(salt)
        world.see(*(block(seq) for seq in range(1, 9)))
        for seq in (1, 2):
            candidate = world.board.pick(world.now_s)
            assert seq == 2 or candidate.key == block(1), "without competition: in order"
            world.board.take(candidate, None)
            world.board.missed(candidate, None)
            world.look()
        picked.add(world.pick())
        world.zk.close()
    assert len(picked) > 2


def test_many_competitors_hardly_meet_where_there_are_blocks_for_all() -> None:
    # 24 Starters have read the same list of 48 blocks; whoever comes second for a block has lost a claim.
    keys = [block(1, first=256 * at, count=256) for at in range(48)]
    picked: list[BlockKey | None] = []
    for number in range(24):
        world = World(f"n{number}")
        world.see(*keys)
        for _ in range(6):
            candidate = world.board.pick(world.now_s)
            world.board.missed(candidate, None)
            world.look()
        picked.append(world.pick())
        world.zk.close()
    assert len(set(picked)) > 14, "24 drawn at random from 48 are 19 different ones"


def test_under_competition_what_is_left_of_a_block_of_ours_comes_first(world: World) -> None:
    world.see(*(block(seq) for seq in range(1, 20)))
    for _ in range(2):
        candidate = world.board.pick(world.now_s)
        world.board.missed(candidate, None)
        world.remove(candidate.key)
        world.look()
    candidate = world.board.pick(world.now_s)
    rest = replace(candidate.key, first=3, count=7)
    world.board.take(candidate, (rest, BlockData()))
    world.board.taken(candidate)
    assert world.pick() == rest


def test_whoever_comes_too_late_reads_again_after_a_while_and_whoever_wins_at_once(world: World) -> None:
    candidate = BlockCandidate(paths.block_name(block(1)), block(1))

    def pause_s() -> float:
        """Between a reading and the next one, if a claim is lost meanwhile."""
        world.look()
        world.board.missed(candidate, None)
        return world.board.next_look_s() - world.now_s

    assert pause_s() < 0.01
    assert 0.1 < max(pause_s() for _ in range(40)) < 0.3
    for _ in range(4):
        world.board.taken(candidate)
    assert pause_s() < 0.01


@pytest.mark.parametrize(
    "data", [b"\xc1", b"", encode_block(BlockData(function="../../x")), encode_block(BlockData(base=3, payloads=(b"a",)))],
    ids=["no message", "nothing", "a path", "arguments of others"],
)
def test_of_a_block_whose_data_nobody_may_write_nothing_is_believed(world: World, data: bytes) -> None:
    world.add(block(1), data=data)
    world.look()
    candidate = world.board.pick(world.now_s)
    world.board.fetch(candidate)
    world.deliver()
    assert candidate.refusal.startswith(paths.block_name(block(1)))
    assert candidate.data == BlockData(resubmit=False, stamp="invalid")


def test_a_name_that_is_no_blocks_is_looked_at_once_while_it_stands_there(world: World) -> None:
    strange = [paths.block_name(block(1)).replace(".00001.", ".00000."), paths.block_name(block(1)).replace("1", "\u0661")]
    for name in strange:
        world.create(f"{paths.pending('q')}/{name}", b"")
    world.look()
    assert world.pick() is None
    world.add(block(2))
    world.now_s += 2
    world.look()
    assert world.pick() == block(2)


def test_a_queue_is_bare_only_as_long_as_a_watch_says_that_nothing_waits_there(world: World) -> None:
    assert not world.board.is_bare, "it was not read"
    world.look()
    assert not world.board.is_bare, "nobody would tell what comes"
    world.now_s += 10.0
    assert world.pick() is None
    world.look(hungry=True)
    assert world.board.is_bare
    world.add(block(1))
    world.deliver()
    assert not world.board.is_bare
    world.look(hungry=True)
    assert not world.board.is_bare
    candidate = world.board.pick(world.now_s)
    world.board.pause(candidate, world.now_s, 1.0)
    world.board.reset()
    assert not world.board.is_bare


FUNCTION = "f" * 64
BLOCK = BlockData(function=FUNCTION, keyed=True, payloads=(encode_keyed(KeyedPayload(("in",), ("out",))),))
DATA = encode_block(BLOCK)


class Stager:
    """Writes down what it is asked. asked: of ZooKeeper, which does not answer."""

    def __init__(self) -> None:
        self.told: list[tuple[str, ClaimedBlock]] = []
        self.asked: list[str] = []

    @property
    def words(self) -> list[str]:
        return [what for what, _ in self.told]

    def get(self, path: str) -> Future[None]:
        self.asked.append(path)
        return Future()

    def meet(self, block: ClaimedBlock) -> None:
        self.told.append(("meet", block))

    def forget(self, block: ClaimedBlock) -> None:
        self.told.append(("forget", block))


def line_of(user: str | None) -> Any:
    return SimpleNamespace(peer=None if user is None else SimpleNamespace(name=user, role=Role.USER), close=lambda: None)


def announced(*, by: str | None, data: bytes = DATA) -> tuple[Hints, Stager]:
    record = Submission(id=1, name="x", user="ann", queue="q", work=Work.PYTHON, python=PythonEnvironment())
    info = Info(record, QueueSpec(name="q"), None)
    stager = Stager()
    records = SimpleNamespace(get=lambda number, *, is_announced: info if number == 1 and is_announced else None)
    shared = SimpleNamespace(records=records, gate=None, coordinator=stager, post=lambda call: call())
    node: Any = SimpleNamespace(name="n1", stager=stager, shared=shared, hands=SimpleNamespace(hinted=lambda *_: None))
    hints = Hints(node)
    hints.heard(line_of(by), Hint("n1", paths.block_name(handed(0)), data, is_early=True), 1)
    return hints, stager


def test_inputs_of_what_its_user_announces_are_read_and_kept_when_it_comes() -> None:
    hints, stager = announced(by="ann")
    block = hints.meet(handed(0), DATA)
    assert stager.told == [("meet", block)]


def test_nothing_is_read_for_what_somebody_else_announces() -> None:
    hints, stager = announced(by="eve")
    assert stager.words == []
    assert hints.meet(handed(0), DATA) is None


def test_nobody_takes_the_place_of_what_its_user_has_announced() -> None:
    hints, stager = announced(by="ann")
    hints.heard(line_of("eve"), Hint("n1", paths.block_name(handed(0)), DATA), 1)
    assert stager.words == ["meet"]
    assert hints.meet(handed(0), DATA) is not None


def test_what_holds_no_keys_is_not_announced() -> None:
    hints, stager = announced(by="ann", data=encode_block(replace_fields(BLOCK, payloads=(b"x",))))
    assert hints.meet(handed(0), encode_block(replace_fields(BLOCK, payloads=(b"x",)))) is None
    assert stager.told == []


def test_what_never_comes_or_is_another_one_is_given_back() -> None:
    hints, stager = announced(by="ann")
    hints.settle(time.monotonic())
    assert stager.words == ["meet"]
    hints.settle(time.monotonic() + 60)
    assert stager.words == ["meet", "forget"]
    hints, stager = announced(by=None)
    assert hints.meet(handed(0), b"something else") is None
    hints.reset()
    assert stager.words == ["meet", "forget"]


def test_an_early_hint_has_inputs_read_and_asks_for_nothing() -> None:
    hints, stager, line, asked = listening()
    early = Hint("n1", paths.block_name(handed(0)), DATA, is_early=True)
    hints.heard(line, early, 1)
    hints.heard(line, early, 1)  # said twice it is read once
    assert stager.words == ["meet"]
    assert asked == []
    hints.heard(line, Hint("n1", early.block, DATA), 1)  # its commit is on its way
    assert asked == [paths.running_block("n1", handed(0))]
    block = hints.meet(handed(0), DATA)
    assert stager.told == [("meet", block)], "what was read early is what it begins with"


def test_early_hints_of_a_node_are_bounded() -> None:
    hints, stager, line, asked = listening()
    for first in range(100):
        hints.heard(line, a_hint(first, is_early=True), 1)
    assert stager.words == ["meet"] * 8
    hints.settle(time.monotonic() + 60)
    assert stager.words == ["meet"] * 8 + ["forget"] * 8
    assert asked == []


def test_nobody_takes_the_room_for_hints_of_others() -> None:
    hints, stager, line, asked = listening()
    greedy = line_of("eve")
    for first in range(100):
        hints.heard(greedy, a_hint(first, is_early=True), 1)
        hints.heard(greedy, a_hint(100 + first), 1)
    assert len(asked) == 8
    hints.heard(line, a_hint(500, is_early=True), 1)
    hints.heard(line, a_hint(500), 1)
    assert asked[8:] == [paths.running_block("n1", handed(500))]
    assert stager.words == ["meet"], "of her own"


def test_all_hints_together_are_bounded_and_unnamed_clients_count_by_line() -> None:
    hints, stager, _, asked = listening()
    for first in range(100):
        hints.heard(line_of(None), a_hint(first, is_early=True), 1)
    assert (len(stager.told), asked) == (64, [])


def listening() -> tuple[Hints, Stager, Any, list[str]]:
    """Hints of n1 whose user's line is open, and what they ask ZooKeeper for."""
    hints, stager = announced(by="ann")
    hints.reset()
    stager.told.clear()
    return hints, stager, line_of("ann"), stager.asked


def handed(first: int) -> BlockKey:
    return a_key(seq=HANDED_SEQ, first=first)


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
            post=lambda call: call(), records=SimpleNamespace(get=lambda _number, **_: info, is_refused=lambda _number: False),
            caps=SimpleNamespace(is_on=False), gate=None,
        )
        loop: Any = SimpleNamespace(post=lambda call: call(), after=lambda _s, _call: None)
        node: Any = SimpleNamespace(
            name="n1", incarnation=1, shared=shared, blocks=self.blocks, idle=IdleMark(IdleStage.SET),
            puller=SimpleNamespace(in_doubt=lambda: (), suits=lambda _info, _key: True),
            stager=SimpleNamespace(meet=lambda _: None, forget=lambda _: None), stories=Stories(loop),
            log=SimpleNamespace(warning=lambda *_, **__: None), claimed=self._claimed,
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
        done.set_result(stands(first))
        self.hands.hinted(1, handed(first), done)
        self.settle()


def stands(first: int) -> Stamped:
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
    node.asked[paths.running_block("n1", handed(1))].set_result(stands(1))


def test_a_block_that_is_hinted_while_it_is_looked_for_is_taken_once() -> None:
    assert _both_ways(lambda node: node.hinted(1), _found) == [0, 1]
    assert _both_ways(_found, lambda node: node.hinted(1)) == [0, 1]
