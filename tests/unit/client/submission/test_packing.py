"""Packing of tasks into blocks loses nothing, reorders nothing, and keeps every limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rmgr.client.submission.packing import MAX_ROUND_BYTES, MAX_ROW_BYTES, Buffer, Packed, TaskSpec, block_of
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol.multi import MAX_MULTI_BYTES, MAX_OPS, MAX_ZNODE_BYTES
from rmgr.coord.protocol.records import encode_block
from rmgr.model.block import MAX_TASKS
from rmgr.model.submission import Tail

PLAIN = TaskSpec(function="f")


def drain(buffer: Buffer) -> list[list[Packed]]:
    rounds = []
    while packed := buffer.take():
        rounds.append(packed)
    return rounds


def test_a_thousand_small_tasks_become_four_blocks_of_one_round() -> None:
    buffer = Buffer()
    buffer.add(PLAIN, [b"x"] * 1000)
    (blocks,) = drain(buffer)
    assert [(block.first, block.count) for block in blocks] == [(0, 256), (256, 256), (512, 256), (768, 232)]
    assert (buffer.tasks, buffer.bytes, buffer.next_index) == (0, 0, 1000)


def test_tasks_of_another_kind_begin_another_block() -> None:
    buffer = Buffer()
    buffer.add(PLAIN, [b"a"])
    buffer.add(TaskSpec(function="g"), [b"b"])
    buffer.add(TaskSpec(function="g"), [b"c"])
    assert [(block.spec.function, block.payloads) for block in buffer.take()] == [("f", (b"a",)), ("g", (b"b", b"c"))]


def test_a_solid_batch_is_one_block_and_takes_nothing_else_in() -> None:
    buffer = Buffer()
    buffer.add(PLAIN, [b"a"])
    buffer.add(PLAIN, [b"b" * 10_000] * 3, solid=True)
    buffer.add(PLAIN, [b"c"])
    blocks = buffer.take()
    assert [(block.first, block.count, block.solid, block.to_row) for block in blocks] == [
        (0, 1, False, False), (1, 3, True, True), (4, 1, False, False),
    ]  # fmt: skip


def test_arguments_that_do_not_fit_a_znode_go_to_a_row_of_bounded_size() -> None:
    buffer = Buffer()
    buffer.add(PLAIN, [bytes(100_000)] * 30)
    blocks = [block for packed in drain(buffer) for block in packed]
    assert all(block.to_row and sum(map(len, block.payloads)) <= MAX_ROW_BYTES for block in blocks)
    assert sum(block.count for block in blocks) == 30
    buffer.add(PLAIN, [bytes(3 * MAX_ROW_BYTES)])
    ((large,),) = drain(buffer)
    assert (large.count, large.to_row) == (1, True)


def test_a_row_that_is_stored_already_is_a_block_of_its_own() -> None:
    buffer = Buffer()
    buffer.add(PLAIN, [b""], row="args/1")
    buffer.add(PLAIN, [b""], row="args/2")
    blocks = buffer.take()
    assert [(block.row, block.to_row, block.count) for block in blocks] == [("args/1", False, 1), ("args/2", False, 1)]
    key, data = block_of(blocks[1], submission=7, priority=0, cores=1, memory_mib=0, user="ann", row="args/2")
    assert (key.first, data.row, data.base, data.payloads) == (1, "args/2", 1, ())


def test_what_was_not_taken_can_be_forgotten() -> None:
    buffer = Buffer(10)
    buffer.add(PLAIN, [b"x"] * 5)
    buffer.clear()
    assert (buffer.next_index, buffer.tasks, buffer.take()) == (10, 0, [])


@given(
    st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 20_000), min_size=0, max_size=40), st.booleans()), min_size=1, max_size=12)
)
def test_packing_keeps_every_task_once_and_every_limit(batches: list[tuple[bool, list[int], bool]]) -> None:
    buffer = Buffer()
    expected: list[bytes] = []
    for other, sizes, solid in batches:
        payloads = [bytes([len(expected) % 251]) * size for size in sizes]
        expected += payloads
        buffer.add(TaskSpec(function="g" if other else "f"), list(payloads), solid=solid)
    found: list[bytes] = []
    for packed in drain(buffer):
        blocks = []
        for block in packed:
            assert block.first == len(found)
            assert 1 <= block.count <= MAX_TASKS
            found += block.payloads
            row = "args/0000000001/0000000000/guid" if block.to_row else ""
            blocks.append(block_of(block, submission=1, priority=0, cores=1, memory_mib=0, user="ann", row=row))
        assert all(len(encode_block(data)) <= MAX_ZNODE_BYTES for _, data in blocks)
        multi = ops.enqueue(1, "default", tail=Tail(next=len(found), enqueued="g-1"), tail_version=0, blocks=blocks, held=False)
        assert len(multi.ops) <= MAX_OPS
        assert multi.size_bytes() <= MAX_MULTI_BYTES
    assert found == expected


def test_one_round_writes_a_bounded_number_of_bytes_to_rows_and_lets_go_of_them() -> None:
    buffer = Buffer()
    arguments = [bytes(1 << 20) for _ in range(64)]
    buffer.add(PLAIN, arguments)
    first = buffer.take()
    assert sum(len(payload) for block in first for payload in block.payloads) <= MAX_ROUND_BYTES + MAX_ROW_BYTES
    assert [block.count for block in first] == [4] * len(first), "a block for several tasks: each costs a claim and a commit"
    buffer.add(PLAIN, [bytes(1 << 20)])
    assert len(buffer.batches[0].payloads) == buffer.tasks, "who adds without a pause must not keep what was sent"
    blocks = first + [block for packed in drain(buffer) for block in packed]
    assert [block.first for block in blocks] == list(range(0, 65, 4))


def test_tasks_of_a_placed_submission_have_a_block_each() -> None:
    buffer = Buffer(7, single=True)
    buffer.add(PLAIN, [b"a", b"b" * 20_000, b"c"])
    buffer.add(PLAIN, [b"d", b"e"], solid=True)
    blocks = [block for packed in drain(buffer) for block in packed]
    assert [(block.first, block.count, block.to_row) for block in blocks] == [
        (7, 1, False), (8, 1, True), (9, 1, False), (10, 1, False), (11, 1, False),
    ]  # fmt: skip
    assert (buffer.tasks, buffer.bytes, buffer.next_index) == (0, 0, 12)
