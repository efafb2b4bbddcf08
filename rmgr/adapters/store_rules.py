"""Checks that every data store makes in the same way: keys, sizes, pieces and hashes."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256

from rmgr.coord.protocol.ports import MAX_VALUE_BYTES, About, Encoding, Note
from rmgr.errors import DataLost, KeyExists, StoreUnavailable, UsageError, ValueTooLarge
from rmgr.model.units import format_duration

#: A value is cut into chunks of this size (bytes); the last one may be shorter. Cassandra's practical blob limit is 1 MiB.
CHUNK_BYTES = 512 * 1024
#: Largest key (bytes of UTF-8).
MAX_KEY_BYTES = 1024
#: Bytes per second of a large value that even a slow store reads or writes.
SLOWEST_BYTES_S = 16 * 2**20


def patience_s(size: int) -> float:
    """Returns the extra time (s) that a call may take for a value of `size` bytes."""
    return size / SLOWEST_BYTES_S


class CallDeadline:
    """A point in monotonic time until which a call may last."""

    __slots__ = ("at", "timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.at = time.monotonic() + timeout_s

    def left_s(self) -> float:
        """Returns the seconds left, never negative."""
        return max(0.0, self.at - time.monotonic())

    def passed(self) -> bool:
        """Returns whether no time is left."""
        return time.monotonic() >= self.at

    def allow(self, size: int) -> None:
        """Extends the deadline for `size` more bytes of a value."""
        self.at += size / SLOWEST_BYTES_S
        self.timeout_s += size / SLOWEST_BYTES_S

    def check(self, doing: str) -> None:
        """Raises `StoreUnavailable` if no time is left; `doing` completes "the store did not ... within 5 s"."""
        if self.passed():
            raise StoreUnavailable(
                f"the store did not {doing} within {format_duration(self.timeout_s)}", hint="try again; `rmgr doctor` tells what is wrong"
            )


def check_key(key: str) -> str:
    """Returns `key` if it is 1 to 1,024 bytes of UTF-8 without NUL, else raises `UsageError`."""
    if not isinstance(key, str):
        raise UsageError(f"a store key is text, not {type(key).__name__}")
    if not key:
        raise UsageError("a store key cannot be empty")
    if "\0" in key:
        raise UsageError(f"the store key {key[:80]!r} holds a NUL character")
    if key.isascii():
        size = len(key)
    else:
        try:
            size = len(key.encode())
        except UnicodeEncodeError:
            raise UsageError(f"the store key {key[:80]!r} is not valid Unicode (a lone surrogate)") from None
    if size > MAX_KEY_BYTES:
        raise UsageError(f"the store key {key[:40]!r}... has {size} bytes; the limit is {MAX_KEY_BYTES}")
    return key


def check_prefix(prefix: str) -> str:
    """Returns `prefix` (may be empty) if some key can start with it, else raises `UsageError`."""
    return check_key(prefix) if prefix else prefix


def check_limit(limit: int) -> int:
    """Returns `limit` if it is positive, else raises `UsageError`."""
    if limit < 1:
        raise UsageError(f"the limit of a listing must be at least 1, not {limit}")
    return limit


def check_size(key: str, size: int, largest: int | None = None) -> None:
    """Raises `ValueTooLarge` over 5 GiB, or over the reader's own limit."""
    if largest is not None and size > largest:
        raise ValueTooLarge(f"the value of {key!r} has {size:,} bytes, and no more than {largest:,} are wanted")
    if size > MAX_VALUE_BYTES:
        raise ValueTooLarge(
            f"the value of {key!r} is over {MAX_VALUE_BYTES / 2**30:.3g} GiB ({size:,} bytes seen)",
            hint="split it over several keys, or keep it in a file system that the nodes share and store its path",
        )


def expiry_ms(ttl_s: float | None) -> int | None:
    """Returns the wall-clock time (ms) at which a value written now with `ttl_s` expires; None: never."""
    if ttl_s is None:
        return None
    if ttl_s <= 0:
        raise UsageError(f"the time to live must be positive, not {format_duration(ttl_s)}")
    return now_ms() + int(ttl_s * 1000)


def now_ms() -> int:
    """Returns the wall-clock time in ms, for expiry only."""
    return int(time.time() * 1000)


def sweep_ms(cluster_ms: int | None) -> int:
    """Returns the time (ms) by which a sweep goes: see `Store.sweep`."""
    return now_ms() if cluster_ms is None else min(now_ms(), cluster_ms)


def pieces(key: str, value: Iterable[bytes | memoryview], size: int) -> Iterator[bytes]:
    """Cuts a stream of byte strings into pieces of exactly `size` bytes (the last may be shorter); holds one piece.

    Raises: `UsageError` for something that is not bytes, `ValueTooLarge` as soon as the limit is passed.
    """
    held = bytearray()
    total = 0
    for part in value:
        if not isinstance(part, bytes | bytearray | memoryview):
            raise UsageError(f"the value of {key!r} must be bytes or an iterable of bytes, not of {type(part).__name__}")
        view = memoryview(part).cast("B")
        total += len(view)
        check_size(key, total)
        start = 0
        while len(held) + len(view) - start >= size:
            end = start + size - len(held)
            held += view[start:end]
            start = end
            yield bytes(held)
            held.clear()
        held += view[start:]
    if held:
        yield bytes(held)


def cut(key: str, value: bytes | Iterable[bytes | memoryview], size: int) -> Iterator[bytes]:
    """Yields a value in pieces of `size` bytes, whole or as it comes. Raises: as `pieces`."""
    if isinstance(value, str):
        raise UsageError(f"the value of {key!r} must be bytes, not text; encode it first")
    if not isinstance(value, bytes | bytearray | memoryview):
        return pieces(key, value, size)
    check_size(key, memoryview(value).nbytes)
    whole = bytes(value)
    return (whole[start : start + size] for start in range(0, len(whole), size))


def verify(key: str, value: bytes, size: int, digest: bytes) -> bytes:
    """Returns `value` if size and SHA-256 are those of the manifest, else raises `DataLost`."""
    if len(value) != size or sha256(value).digest() != digest:
        raise data_lost(key, f"{len(value):,} of {size:,} bytes found, hash {'differs' if len(value) == size else 'not compared'}")
    return value


# Encoding and note share one column: "raw", or "raw <note in base64>". A release that knows no notes refuses the second form, and
# none is written before every process knows it.


def marked(encoding: Encoding, note: Note, digest: bytes) -> str:
    """Returns the column of a value with that SHA-256. Raises: errors of `note`."""
    made = note if isinstance(note, bytes) else note(digest)
    return f"{encoding.value} {base64.b64encode(made).decode('ascii')}" if made else encoding.value


def about_of(size: int, column: str, digest: bytes) -> About:
    """Returns the contents of a manifest."""
    encoding, _, note = column.partition(" ")
    return About(size, Encoding(encoding), digest, base64.b64decode(note) if note else b"")


def notes_of(rows: Sequence[object], notes: Sequence[bytes]) -> Sequence[bytes]:
    """Returns one note for each row. Raises UsageError."""
    if notes and len(notes) != len(rows):
        raise UsageError(f"{len(notes)} notes for {len(rows)} rows")
    return notes or (b"",) * len(rows)


def data_lost(key: str, what: str) -> DataLost:
    """Returns the error for a value that exists but cannot be trusted."""
    return DataLost(f"the stored value of {key!r} is damaged: {what}", hint="run the task that made it again, or put the value again")


def key_exists(keys: list[str]) -> KeyExists:
    """Returns the error for keys that should be new but exist."""
    shown = ", ".join(repr(key) for key in keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
    return KeyExists(f"already in the store: {shown}", hint="choose another key, delete it first, or say overwrite=True")
