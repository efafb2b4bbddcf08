"""Rows that are small enough in bytes and enormous once they are decoded: refused before anything is built."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from rmgr.coord.protocol import records
from rmgr.daemons.starter.core import fetch
from rmgr.errors import DataLost
from rmgr.model.tasks.block import MAX_TASKS

#: Just below what a row, and a page, may say that they have: it is their values that have to be counted.
_COUNT, _OF_PAGE = 990_000, 2_990_000
_MOST_BYTES = 16 * 2**20


def crowded(one: bytes, count: int = _COUNT) -> bytes:
    """A MessagePack array of as many."""
    return b"\xdd" + count.to_bytes(4, "big") + one * count


@pytest.mark.parametrize(
    ("decode", "one", "count"),
    [
        (records.decode_outcomes, b"\x91\x01", _COUNT),
        (records.decode_outcomes, b"\x91\x01", 2_000_000),  # says so itself
        (records.decode_page, b"\x91\x01", _OF_PAGE),
        (records.split_page, b"\x91\x01", _OF_PAGE),
        (records.decode_payloads, b"\xc4\x00", 2_000_000),
    ],
)
def test_rows_of_tiny_values_are_refused_before_they_are_built(decode: Callable[[bytes], object], one: bytes, count: int) -> None:
    row = crowded(one, count)
    tracemalloc.start()
    try:
        with pytest.raises(msgspec.DecodeError):
            decode(row)
        assert tracemalloc.get_traced_memory()[1] < _MOST_BYTES
    finally:
        tracemalloc.stop()


def test_a_starter_reads_arguments_of_as_many_tasks_as_a_block_has(tmp_path: Path) -> None:
    with pytest.raises(DataLost, match="a block has 256"):
        fetch.decode("args/1/0", crowded(b"\xc4\x00"), tmp_path)
    assert len(fetch.decode("args/1/0", records.encode_payloads((b"x",) * MAX_TASKS), tmp_path)) == MAX_TASKS
    assert not list(tmp_path.iterdir())
