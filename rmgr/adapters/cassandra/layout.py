"""Places of rows in Cassandra: partitions of the index, of chunks, of the journal; and the timestamps that order writes.

Pure but for the clock. Every partition is addressed by its full key and stays below 10 MB:

- a chunk: 16 chunks of 512 KiB a partition;
- the index of keys: a partition for each of 16 hash buckets of a *scope*, which is the family of the key, or for divided
  families one submission, user or node of it (`out/0000000042/`): a collected submission takes its tombstones along, and
  no listing of another crosses them;
- the journal: an hour, in four parts.
"""

from __future__ import annotations

import threading
import time
from uuid import UUID
from zlib import crc32

from rmgr.coord.protocol import keys

CHUNKS_PER_PARTITION = 16
INDEX_BUCKETS = 16
JOURNAL_PARTS = 4
#: Scope of the keys without a slash.
NO_FAMILY = "(none)"
#: Above every key: keys have at most 1,024 bytes, this has more, all of the last character.
ABOVE_ALL = "\U0010ffff" * 257

#: Families that are divided once more, by what stands behind the first slash: a submission, a user, a node.
DIVIDED = frozenset({"args", "ckpt", "frag", "log", "out", "page", "histu", "metric"})
#: Families in which every writer of a key writes the same bytes (`coord/protocol/keys.py`).
_IMMUTABLE = DIVIDED | keys.BY_CONTENT | {"final", "hist"}
_OUTPUT = "out/"
#: Partition of the register of scopes that holds the scopes that are not divided.
FAMILIES = "/"


def scope_of(key: str) -> str:
    """`out/0000000042/` for a key of a divided family, `name/` for others, `NO_FAMILY` without a slash."""
    family, slash, rest = key.partition("/")
    if not slash:
        return NO_FAMILY
    if family in DIVIDED:
        part, slash, _ = rest.partition("/")
        if slash:
            return f"{family}/{part}/"
    return f"{family}/"


def register_of(scope: str) -> str:
    """The partition of the register that lists `scope`: `out/` for `out/0000000042/`, `FAMILIES` for `name/`."""
    family, _, rest = scope.partition("/")
    return f"{family}/" if rest else FAMILIES


def bucket_of(key: str) -> int:
    """Which partition of its scope's index holds `key`."""
    return crc32(key.encode()) % INDEX_BUCKETS


def is_found_unlisted(key: str) -> bool:
    """True if whoever frees what a dead writer left under this key knows its name (`delete_outputs` in procedures/removal.py)."""
    return key.startswith(_OUTPUT)


def is_immutable(key: str) -> bool:
    """True when every writer of this key writes the same bytes: the order of their writes does not matter."""
    return key.partition("/")[0] in _IMMUTABLE


def span(prefix: str, after: str) -> tuple[str, str]:
    """(from, below): the keys that begin with `prefix` and come behind `after`. No key holds a NUL, so \\x01 is "behind"."""
    return max(prefix, f"{after}\x01" if after else ""), (keys.prefix_end(prefix) if prefix else None) or ABOVE_ALL


def may_hold(scope: str, prefix: str) -> bool:
    """True when some key of `scope` can begin with `prefix`."""
    if scope == NO_FAMILY:
        return "/" not in prefix
    return scope.startswith(prefix) or prefix.startswith(scope)


def chunk_place(generation: UUID | None, number: int) -> tuple[UUID | None, int, int]:
    """(generation, bucket, number): the primary key of a chunk."""
    return generation, number // CHUNKS_PER_PARTITION, number


def journal_part(generation: UUID) -> int:
    """Which part of an hour's journal holds `generation`."""
    return generation.bytes[-1] % JOURNAL_PARTS


class WriteClock:
    """Timestamps (us) of writes: never the same twice in a process, and later than any that was seen.

    Cassandra keeps the cell with the greatest timestamp, and clocks of machines differ. Whoever may replace a value of
    somebody else reads its timestamp first and goes above it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_us = time.time_ns() // 1000

    def next_us(self, seen_us: int | None = None) -> int:
        """A timestamp for one write that is to win over the one at `seen_us`."""
        now_us = time.time_ns() // 1000
        with self._lock:
            self._last_us = max(now_us, self._last_us + 1, (seen_us or 0) + 1)
            return self._last_us
