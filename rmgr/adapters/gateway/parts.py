"""Values as messages on their way to a gateway: parts of a large one, batches of small ones, and what came with one."""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import grpc

from rmgr.adapters.rpc.server import ERROR_KEY
from rmgr.adapters.store_rules import CallDeadline
from rmgr.coord.protocol.ports import About, Encoding, Note
from rmgr.errors import DataLost
from rmgr.v1 import gateway_pb2 as pb

#: Rows or keys of one message (bytes): with room to the message limit of 4 MiB.
MESSAGE_BYTES = 2 * 1024 * 1024
_ROW_BYTES = 64


def is_whole(value: object) -> bool:
    """A list of bytes: it may be sent as often as need be, unlike what is iterated once."""
    return isinstance(value, list | tuple) and all(isinstance(part, bytes | memoryview) for part in value)


def hash_of(parts: Iterable[bytes | memoryview]) -> bytes:
    """SHA-256 of all parts together."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()


def offer(ahead: queue.Queue[bytes | None], part: bytes | None, call: Any, deadline: CallDeadline) -> bool:
    """Waits for room; False when the call is over, or it does not get on, and nobody takes it any more."""
    while not call.done() and not deadline.passed():
        with suppress(queue.Full):
            ahead.put(part, timeout=0.1)
            return True
    return False


def with_last(first: Any, parts: Iterator[bytes], note: Note, broken: threading.Event | None = None) -> Iterator[Any]:
    """The messages of a large value; only a whole one ends with a part marked `last`, with what is kept beside it."""
    yield first
    digest = hashlib.sha256()
    for part in parts:
        if note:
            digest.update(part)
        yield pb.ValuePart(data=part)
    if broken is None or not broken.is_set():
        yield pb.ValuePart(last=True, note=note if isinstance(note, bytes) else note(digest.digest()))


def put_request(
    rows: Sequence[tuple[str, bytes]],
    encoding: Encoding,
    ttl_s: float | None,
    overwrite: bool,
    notes: Mapping[str, bytes],
    replaces: Mapping[str, bytes],
) -> Any:
    told = [pb.Row(key=key, data=value, note=notes[key], sha256=replaces.get(key, b"")) for key, value in rows]
    return pb.PutRequest(rows=told, encoding=encoding.value, ttl_s=ttl_s, overwrite=overwrite)


def told_about(told: Any, value: bytes) -> About:
    """What came with a value, of which the hash is taken here: nobody in between is believed."""
    return About(len(value), Encoding(told.encoding), hashlib.sha256(value).digest(), told.note)


def batches(rows: Sequence[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    """Rows in messages of at most 2 MiB, one row at least."""
    batch: list[tuple[str, bytes]] = []
    size = 0
    for row in rows:
        weight = len(row[1]) + 4 * len(row[0]) + _ROW_BYTES
        if batch and size + weight > MESSAGE_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += weight
    if batch:
        yield batch


# -- what became of a call


def was_answered(error: grpc.RpcError) -> bool:
    """The gateway has said what is wrong."""
    return any(key == ERROR_KEY for key, _ in error.trailing_metadata() or ())


def may_repeat(error: grpc.RpcError) -> bool:
    """The gateway went away, or was never there."""
    gone = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
    return not was_answered(error) and error.code() in gone


def was_sent(error: grpc.RpcError) -> bool:
    """It may have been carried out."""
    return not str(error.details()).startswith("failed to connect")


def broken_off(key: str) -> DataLost:
    """The error of a value whose last part has not come."""
    return DataLost(f"the value of {key!r} was broken off by the gateway", hint="read it again")
