"""A gateway reads all rows for a client with few bytes in memory at a time."""

from __future__ import annotations

import random
import sys
import uuid
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from rmgr.adapters.gateway.store import MESSAGE_BYTES
from rmgr.coord.decisions.rights import ANYBODY
from rmgr.daemons.gateway.rows import row_messages
from rmgr.v1 import gateway_pb2 as pb
from tests.harness.gateways import OpenRows
from tests.harness.memory_store import MemoryStore

KIB, MIB = 1024, 1024 * 1024


class Weighed(MemoryStore):
    """Remembers the most bytes that one reading has returned."""

    most = trips = 0

    def get_noted_many(self, keys: Sequence[str], **options: Any) -> Any:  # type: ignore[override]
        found = super().get_noted_many(keys, **options)
        self.trips += 1
        self.most = max(self.most, sum(len(value) for value, _ in found.values() if value is not None))
        return found


def read(store: Weighed, keys: Sequence[str]) -> dict[str, bytes]:
    call: Any = SimpleNamespace(store=store, person=ANYBODY, left_s=lambda: 30.0, read=lambda _: None)
    messages = list(OpenRows().get_many(pb.KeysRequest(keys=keys), call))
    assert max((message.ByteSize() for message in messages), default=0) <= 1.1 * MESSAGE_BYTES
    return {row.key: row.data for message in messages for row in message.rows if not row.large}


@pytest.mark.parametrize(
    ("sizes", "trips"),
    [
        ([10] * 2000, 6),
        ([10] * 600 + [MESSAGE_BYTES] * 100, 120),
        ([100 * KIB] * 100, 10),
        ([MESSAGE_BYTES] * 40, 45),
        (random.Random(1).choices([1, 5 * KIB, 300 * KIB, MIB, MESSAGE_BYTES], k=300), 600),
    ],
    ids=["small", "large behind small", "middling", "large", "all"],
)
def test_whatever_lies_there_a_call_holds_little_more_than_two_messages(sizes: list[int], trips: int) -> None:
    store = Weighed(uuid.uuid4().hex)
    values = {f"name/{number}": bytes([number % 256]) * size for number, size in enumerate(sizes)}
    for key, value in values.items():
        store.put(key, value)
    assert read(store, list(values)) == values
    assert store.most <= 2 * MESSAGE_BYTES
    assert store.trips <= trips


def test_what_is_sent_is_held_here_no_more() -> None:
    store, size = MemoryStore(), MESSAGE_BYTES // 4
    for number in range(8):
        store.put(f"name/{number}", bytes(size))
    found = store.get_noted_many([f"name/{number}" for number in range(8)], largest=size)
    messages = row_messages(found)
    message = next(messages)
    assert (len(message.rows), len(found)) == (3, 5)
    assert sys.getrefcount(message) == 2, "it is nobody's but its taker's"
    assert sum(len(one.rows) for one in messages) == 5


def test_what_no_message_bears_is_left_to_be_read_in_parts() -> None:
    store = Weighed(uuid.uuid4().hex)
    store.put("name/large", bytes(MESSAGE_BYTES + 1))
    store.put("name/small", b"s")
    assert read(store, ["name/large", "name/small", "name/nowhere"]) == {"name/small": b"s"}
