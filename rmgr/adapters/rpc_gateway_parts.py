"""Values as messages on their way to a gateway: parts of a large one, batches of small ones, and what came with one."""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rmgr.coord.ports import About, Encoding, Note
from rmgr.v1 import gateway_pb2 as pb

#: Rows or keys of one message (bytes): with room to the message limit of 4 MiB.
MESSAGE_BYTES = 2 * 1024 * 1024
_ROW_BYTES = 64


def offer(ahead: queue.Queue[bytes | None], part: bytes | None, call: Any) -> bool:
    """Waits for room; False when the call is over and nobody takes it any more."""
    while not call.done():
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
