"""Inputs of keyed calls are read ahead: together, once, within their memory limit; a bad input fails only its task."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import structlog

from rmgr.coord.protocol import keys
from rmgr.coord.protocol.records import encode_keyed
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.fetch import FetchFailure
from rmgr.daemons.starter.core.io import was_quiet
from rmgr.daemons.starter.core.uploads import Uploads
from rmgr.daemons.starter.staging.inputs import Inputs
from rmgr.daemons.starter.staging.stage import INLINE_INPUT, Staged, Stager
from rmgr.errors import DataLost
from rmgr.model.base.states import Reason
from rmgr.model.tasks.block import MAX_KEYED_BYTES, MAX_KEYS, MAX_LEFT_KEYS, BlockData, BlockKey, KeyedPayload
from rmgr.model.wire.frames import MAX_INLINE_PAYLOAD, KeyedCall
from tests.harness.claimed import StoreMail, a_key, a_record, claimed
from tests.harness.memory_store import MemoryStore

DEADLINE_S = 30.0
MIB = 1024 * 1024


class Counting(MemoryStore):
    """Counts what is read; one key may be damaged."""

    def __init__(self) -> None:
        super().__init__(uuid.uuid4().hex)
        self.trips = 0
        self.read: list[str] = []
        self.damaged = ""
        self.answers = threading.Event()
        self.answers.set()

    def get_noted_many(self, keys: Sequence[str], **options: Any) -> Any:  # type: ignore[override]
        self.trips += 1
        self.read += keys
        assert self.answers.wait(DEADLINE_S)
        if self.damaged in keys:
            raise DataLost(f"the stored value of {self.damaged!r} is damaged")
        return super().get_noted_many(keys, **options)


class Node(StoreMail):
    """A Stager with its threads, and blocks of keyed calls whose tasks take no time."""

    def __init__(self, directory: Path, cap_bytes: int) -> None:
        self.store = Counting()
        super().__init__(self.store)
        self.blocks: dict[BlockKey, ClaimedBlock] = {}
        self.refused: dict[int, FetchFailure] = {}
        self.files = directory / "stage"
        self.cap_bytes = cap_bytes
        self.most = 0
        inputs, uploads = Inputs(None), SimpleNamespace(uploads=Uploads(directory / "uploads"))  # type: ignore[arg-type]
        self.shared = SimpleNamespace(io=self.io, inputs=inputs, fetcher=uploads, claims=None, values_cap=cap_bytes)
        self.accounts, self.log = None, structlog.get_logger()
        self.stager = Stager(self, self.files)  # type: ignore[arg-type]

    def pace(self, _block: ClaimedBlock) -> float:
        return 0.001

    def unstartable(self, _block: ClaimedBlock, indices: list[int], why: FetchFailure) -> None:
        self.refused.update(dict.fromkeys(indices, why))

    def block(self, *tasks: Sequence[str], submission: int = 1) -> ClaimedBlock:
        """One task for each list of input keys."""
        key = a_key(submission=submission, count=len(tasks))
        payloads = tuple(encode_keyed(KeyedPayload(tuple(inputs), ("out",))) for inputs in tasks)
        made = self.blocks[key] = claimed(key, BlockData(keyed=True, payloads=payloads), a_record(submission))
        return made

    def values(self, count: int, size: int = 100) -> list[str]:
        """So many keys with values."""
        names = [f"in/{number}" for number in range(count)]
        for number, name in enumerate(names):
            self.store.put(keys.named(name), bytes([number % 256]) * size)
        return names

    @property
    def held_bytes(self) -> int:
        return self.stager.held_bytes

    def until(self, condition: Callable[[], Any], *blocks: ClaimedBlock) -> None:  # type: ignore[override]
        def look() -> None:
            for block in blocks:
                self.stager.startable(block)
            self.most = max(self.most, self.held_bytes)

        super().until(condition, look)

    def run(self, block: ClaimedBlock) -> list[KeyedCall]:
        """Runs all its tasks, as many at once as may start; returns what they were given."""
        calls: list[KeyedCall] = []

        def some() -> bool:
            for index in block.hand_out(self.stager.startable(block)):
                calls.append(call_of(self.stager.take(block, index)))
                block.live -= 1
                self.stager.done(block, index)
            return not block.ready

        self.until(some)
        return calls


def call_of(staged: Staged | None) -> KeyedCall:
    assert staged is not None
    data = staged.payload if isinstance(staged.payload, bytes) else Path(staged.payload).read_bytes()
    return msgspec.msgpack.decode(data, type=KeyedCall)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path, 64 * MIB)
    yield made
    made.io.close()


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path, MIB)
    yield made
    made.io.close()


def test_inputs_of_many_tasks_are_read_together_and_each_once(node: Node) -> None:
    names = node.values(200)
    block = node.block(*([name] for name in names))
    node.store.answers.clear()  # until all that is asked for at once is asked for: else it is up to the machine how much travels together
    node.stager.startable(block)
    node.store.answers.set()
    node.until(lambda: node.stager.startable(block) == 128, block)
    node.quiet()
    assert sorted(node.store.read) == sorted(map(keys.named, names))
    assert node.store.trips <= 5
    taken = block.hand_out(50)
    block.put_back(taken)  # their worker has died before they began
    calls = node.run(block)
    assert [(one.inputs[0].data, one.outputs) for one in calls] == [(bytes([number % 256]) * 100, 1) for number in range(200)]
    assert len(node.store.read) == 200, "nothing is read twice for a task that runs here"
    assert node.held_bytes == 0


def test_tasks_of_several_blocks_share_a_reading(node: Node) -> None:
    names = node.values(40)
    blocks = [node.block([name], submission=number) for number, name in enumerate(names, 1)]
    node.until(lambda: all(node.stager.take(block, 0) for block in blocks), *blocks)
    assert node.store.trips < 20


def test_what_is_read_ahead_stays_within_its_memory_and_all_of_it_comes(narrow: Node) -> None:
    names = narrow.values(60, size=100_000)
    early, late = narrow.block(*([name] for name in names[:30])), narrow.block(*([name] for name in names[30:]), submission=2)
    narrow.until(lambda: narrow.stager.startable(early) >= 4, early, late)
    narrow.quiet()
    assert narrow.stager.read_ahead(late) is False
    calls = narrow.run(early) + narrow.run(late)
    assert [one.inputs[0].data[0] for one in calls] == list(range(60))
    assert narrow.most <= narrow.cap_bytes
    assert narrow.held_bytes == 0


def test_a_block_that_is_given_back_or_over_gives_its_memory_back(narrow: Node) -> None:
    names = narrow.values(8, size=100_000)
    block = narrow.block(*([name] for name in names))
    narrow.until(lambda: narrow.stager.startable(block) >= 4, block)
    narrow.quiet()
    held = narrow.held_bytes
    narrow.stager.done(block, 0)
    assert 0 < narrow.held_bytes < held - 100_000
    narrow.stager.forget(block)
    assert narrow.held_bytes == 0


def test_what_is_being_read_for_a_block_that_has_gone_is_given_back_when_it_comes(narrow: Node) -> None:
    block = narrow.block(*([name] for name in narrow.values(4, size=100_000)))
    narrow.stager.startable(block)
    assert narrow.held_bytes == 4 * INLINE_INPUT
    narrow.stager.forget(block)
    narrow.quiet()
    assert narrow.held_bytes == 0


def test_the_first_block_reads_a_task_though_others_hold_the_memory(narrow: Node) -> None:
    names = narrow.values(10, size=100_000)
    first = narrow.block([names[0]])
    late = narrow.block(*([name] for name in names[1:]), submission=2)
    narrow.until(lambda: not narrow.stager.read_ahead(late), late)  # the first one is kept up by something
    narrow.quiet()
    narrow.until(lambda: narrow.stager.startable(first) == 1, first)


def test_a_missing_and_a_damaged_value_fail_their_tasks_and_no_other(node: Node) -> None:
    names = node.values(50)
    tasks = [[name] for name in names]
    tasks[7], tasks[9] = ["nowhere"], [names[9], "nowhere"]
    node.store.damaged = keys.named(names[20])
    block = node.block(*tasks)
    calls = node.run(block)
    assert len(calls) == 47
    assert sorted(node.refused) == [7, 9, 20]
    assert "'nowhere' does not exist" in node.refused[7].error
    assert node.refused[20].reason is Reason.DATA_LOST
    assert node.held_bytes == 0


@pytest.mark.parametrize("payload", [b"", b"x", b"\x91\x91\xa2\xff\xfe", b"\x97\x90\x90\xc2\x90\xa0\x90" + b"\x91" * 50_000 + b"\x01"])
def test_arguments_that_are_no_keys_end_their_task_and_the_node_goes_on(node: Node, payload: bytes) -> None:
    names = node.values(3)
    block = node.block(*([name] for name in names))
    assert isinstance(block.payloads, tuple)
    block.payloads = (block.payloads[0], payload, block.payloads[2])
    other = node.block([names[0]], submission=2)
    assert (len(node.run(block)), len(node.run(other))) == (2, 1)
    assert {index: why.reason for index, why in node.refused.items()} == {1: Reason.UNTRUSTED}
    assert not node.refused[1].blames_node
    assert node.stager.outputs_of(block, 1) == ()
    assert node.held_bytes == 0


@pytest.mark.parametrize(
    "keyed",
    [
        KeyedPayload(("x",) * (MAX_KEYS + 1)),
        KeyedPayload((), ("x",) * (MAX_KEYS + 1)),
        KeyedPayload(("x" * 1000,) * (MAX_KEYED_BYTES // 1000)),
        KeyedPayload((), ("x",) * (MAX_LEFT_KEYS + 1), claims_by="g"),
    ],
    ids=["inputs", "outputs", "bytes", "left"],
)
def test_more_keys_than_a_task_may_have_end_it(node: Node, keyed: KeyedPayload) -> None:
    names = node.values(1)
    block = node.block(names, names)
    block.payloads = (encode_keyed(keyed), block.payload(1))
    assert len(node.run(block)) == 1
    assert (node.refused[0].reason, node.refused[0].blames_node) == (Reason.UNTRUSTED, False)


def test_a_task_with_a_great_many_inputs_keeps_no_other_waiting(node: Node) -> None:
    names = node.values(2)
    gate = threading.Event()
    read = node.store.get_noted_many

    def slow(keys: Sequence[str], **options: Any) -> Any:
        if "name/many/0" in keys or "name/many/999" in keys:
            assert gate.wait(DEADLINE_S)
        return read(keys, **options)

    node.store.get_noted_many = slow  # type: ignore[method-assign]
    many = [f"many/{number}" for number in range(1000)]
    for name in many:
        node.store.put(keys.named(name), b"x")
    hogs = [node.block(many, submission=number) for number in range(2, 10)]
    for hog in hogs:
        node.stager.startable(hog)
    assert len(node.run(node.block(*([name] for name in names)))) == 2, "while eight others are read"
    gate.set()
    assert all(len(node.run(hog)[0].inputs) == 1000 for hog in hogs)


def test_a_task_whose_arguments_never_came_has_no_output_keys(node: Node) -> None:
    block = node.block(["in/0"])
    block.payloads = None  # their row could not be read
    assert node.stager.outputs_of(block, 0) == ()


def test_arguments_that_are_no_keys_end_nothing_of_a_block_that_is_only_announced(node: Node) -> None:
    block = node.block(["in/0"])
    block.payloads = (b"x",)
    del node.blocks[block.key]
    node.stager.meet(block)
    node.quiet()
    assert node.refused == {}


def test_large_values_are_files_and_those_beside_them_are_in_the_message(node: Node) -> None:
    node.store.put("name/large", b"L" * (INLINE_INPUT + 1))
    node.store.put("name/small", b"s")
    block = node.block(["small", "large"], ["small"])
    node.until(lambda: node.stager.startable(block) == 2, block)
    small, large = call_of(node.stager.take(block, 0)).inputs
    assert (small.data, Path(large.path).read_bytes()) == (b"s", b"L" * (INLINE_INPUT + 1))
    node.run(block)
    node.quiet()
    assert list(node.files.iterdir()) == []


def test_many_middling_values_of_one_task_do_not_fill_its_message(node: Node) -> None:
    names = node.values(300, size=50_000)
    block = node.block(names)
    node.until(lambda: node.stager.startable(block) == 1, block)
    staged = node.stager.take(block, 0)
    assert len(staged.payload) <= MAX_INLINE_PAYLOAD
    inputs = call_of(staged).inputs
    found = [one.data or Path(one.path).read_bytes() for one in inputs]
    assert found == [bytes([number % 256]) * 50_000 for number in range(300)]
    node.run(block)
    node.quiet()
    assert list(node.files.iterdir()) == []


def test_inputs_are_read_while_a_claim_is_under_way_and_given_back_when_it_fails(node: Node) -> None:
    block = node.block(*([name] for name in node.values(3)))
    del node.blocks[block.key]
    node.stager.meet(block)
    node.quiet()
    assert node.store.read
    node.blocks[block.key] = block  # the claim was made
    assert node.stager.startable(block) == 3, "nothing is waited for any more"
    other = node.block(["in/0"], submission=2)
    del node.blocks[other.key]
    node.stager.meet(other)
    node.quiet()
    node.stager.forget(block)
    node.stager.forget(other)
    assert node.held_bytes == 0


def test_what_is_missing_before_a_claim_is_made_is_looked_for_again_after_it(node: Node) -> None:
    block = node.block(["late"])
    del node.blocks[block.key]
    node.stager.meet(block)
    node.quiet()
    assert node.refused == {}, "the task is not the node's own: nothing of it is ended"
    node.store.put("name/late", b"it came")
    node.blocks[block.key] = block
    assert node.run(block)[0].inputs[0].data == b"it came"


def test_nodes_settle_for_inputs_of_their_own_blocks_and_not_for_those_that_were_only_announced(node: Node) -> None:
    announced, own = node.block(node.values(1)), node.block(node.values(1), submission=2)
    del node.blocks[announced.key]
    heard: dict[int, bool] = {}
    for block in (announced, own):
        node.stager.meet(block)
        message = node.messages.get(timeout=DEADLINE_S)
        message()
        heard[block.key.submission] = was_quiet(message)
        assert node.stager.startable(block) == 1
    assert heard == {1: True, 2: False}
