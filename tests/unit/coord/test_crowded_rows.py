"""Rows that are small enough in bytes and enormous once they are decoded: refused before anything is built."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from rmgr.coord.protocol import records
from rmgr.daemons.starter.core import arguments
from rmgr.errors import DataLost
from rmgr.model.tasks.block import MAX_TASKS

_COUNT = 2_000_000
_MOST_BYTES = 16 * 2**20


def crowded(one: bytes) -> bytes:
    """A MessagePack array of as many."""
    return b"\xdd" + _COUNT.to_bytes(4, "big") + one * _COUNT


@pytest.mark.parametrize(
    ("decode", "one"),
    [
        (records.decode_outcomes, b"\x91\x01"),
        (records.decode_page, b"\x91\x01"),
        (records.split_page, b"\x91\x01"),
        (records.decode_payloads, b"\xc4\x00"),
    ],
)
def test_rows_of_tiny_values_are_refused_before_they_are_built(decode: Callable[[bytes], object], one: bytes) -> None:
    row = crowded(one)
    tracemalloc.start()
    try:
        with pytest.raises(msgspec.DecodeError):
            decode(row)
        assert tracemalloc.get_traced_memory()[1] < _MOST_BYTES
    finally:
        tracemalloc.stop()


def test_a_starter_reads_arguments_of_as_many_tasks_as_a_block_has(tmp_path: Path) -> None:
    with pytest.raises(DataLost, match="a block has 256"):
        arguments.decode("args/1/0", crowded(b"\xc4\x00"), tmp_path)
    assert len(arguments.decode("args/1/0", records.encode_payloads((b"x",) * MAX_TASKS), tmp_path)) == MAX_TASKS
    assert not list(tmp_path.iterdir())
