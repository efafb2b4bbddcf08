"""The two ports of the house: the coordination service and the data store, as code above the adapters sees them.

Adapters implement them (`adapters/zookeeper/client.py`, `adapters/sqlite/store.py`, `adapters/cassandra/store.py`; in tests
`harness/memory.py`); one conformance suite per port runs on every adapter. Only types: nothing here does IO.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, Protocol, Self

import msgspec

from rmgr.coord.protocol.multi import Multi, Outcome, Stamped, Stat
from rmgr.errors import KeyExists, RmgrError, ValueTooLarge, WrongCluster


class SessionState(StrEnum):
    """Events that a coordination session reports to its listeners."""

    CONNECTED = "CONNECTED"  #: usable; after SUSPENDED the session is the same, versions read before it still hold
    SUSPENDED = "SUSPENDED"  #: no server answers; the session may or may not be alive
    LOST = "LOST"  #: the session is gone and its ephemerals with it; a CONNECTED that follows is a new session


class Coordinator(Protocol):
    """A tree of versioned znodes. Paths are relative to the cluster's chroot. Thread-safe.

    Futures resolve on a thread of the adapter, so callbacks may only enqueue. No future stays unresolved beyond `timeout_s`: then reads
    fail with `errors.CoordinationUnavailable`, and commits answer `Unknown`.
    """

    @property
    def session_id(self) -> int:
        """Id of the current session, 0 without one."""

    @property
    def session_timeout_s(self) -> float:
        """Negotiated session timeout T (s)."""

    def last_answer_s(self) -> float:
        """Returns the monotonic time at which the last *answered* request was sent, -inf before the first: the start of a lease."""

    def commit(self, multi: Multi, *, timeout_s: float = 10.0) -> Future[Outcome]:
        """Carries out `multi`. Commits of one client are carried out in the order given.

        After a lost answer, `multi.proof` is read once reconnected; a multi found not committed is sent again.
        Raises (at once): `errors.RequestTooLarge` over the caps of `coord/protocol/multi.py`.
        """

    def get(self, path: str, *, watch: Callable[[], None] | None = None, timeout_s: float = 10.0) -> Future[Stamped | None]:
        """Reads data and stat, None if absent. `watch` fires once: on a change, a deletion, a creation, or a lost connection."""

    def get_many(self, paths: Sequence[str], *, timeout_s: float = 10.0) -> Future[list[Stamped | None]]:
        """Reads data and stat of many znodes, in the order of `paths`, None if absent; one request per 64 of them.

        Each is as `get` would find it, but they are not read at one moment. If one may not be read, all fail.
        """

    def at_one_moment(
        self, paths: Sequence[str], lists: Sequence[str], *, timeout_s: float = 10.0
    ) -> Future[list[Stamped | list[str] | None]]:
        """Reads data and stat at `paths`, then names below `lists` (None if absent), all of one moment.

        One request, whatever its size: writes wait for it. If one may not be read, all fail.
        """

    def stat(self, path: str, *, watch: Callable[[], None] | None = None, timeout_s: float = 10.0) -> Future[Stat | None]:
        """Reads only the stat, None if absent; `watch` as in `get` (an absent path may be watched)."""

    def children(self, path: str, *, watch: Callable[[], None] | None = None, timeout_s: float = 10.0) -> Future[list[str] | None]:
        """Reads the names of the children, unsorted; None if `path` is absent. `watch` fires once when a child comes or goes."""

    def sync(self, *, timeout_s: float = 10.0) -> Future[None]:
        """Waits until this client's server has caught up with the leader of the ensemble."""

    def ensure(self, paths: Sequence[str], *, timeout_s: float = 10.0) -> None:
        """Creates missing persistent paths (parents first, empty data); for set-up, not for state."""

    def listen(self, listener: Callable[[SessionState], None]) -> None:
        """Adds a session listener, and calls it at once with the current state. Listeners may only enqueue."""

    def close(self, *, timeout_s: float = 5.0) -> None:
        """Ends the session at once (its ephemerals go). Idempotent."""


class Encoding(StrEnum):
    """Encoding of a value's bytes, for clients and runners (daemons never decode)."""

    RAW = "raw"
    PICKLE = "pickle"
    POINTER = "pointer"  #: where to find the value: `coord.protocol.keys.Pointer`, only under `name/<user key>`


#: The largest value that a store takes (bytes): 4 GiB with pickle's overhead, and some room.
MAX_VALUE_BYTES = 5 * 2**30
#: The row that names the store's cluster, and its most bytes.
CLUSTER_ID_KEY, _MOST_ID_BYTES = "meta/cluster_id", 256
#: How long calls of a store may last unless they say it (s).
TIMEOUT_S = 30.0
#: No key may exist.
NOTHING: Mapping[str, bytes] = MappingProxyType({})


class About(NamedTuple):
    """Facts about a value. sha256: of its bytes. note: left beside it by its writer (`coord.decisions.rights`)."""

    size: int
    encoding: Encoding
    sha256: bytes
    note: bytes


#: Bytes kept beside a value, which change with it in one step; or a function that makes them from the value's SHA-256.
Note = bytes | Callable[[bytes], bytes]


class Writing(msgspec.Struct, frozen=True, kw_only=True):
    """How to write values, for an adapter: the arguments of `Store.put`, `put_many` and `put_soon`. note: of one value."""

    encoding: Encoding = Encoding.RAW
    ttl_s: float | None = None
    overwrite: bool = True
    note: Note = b""
    notes: Sequence[bytes] = ()
    replaces: Mapping[str, bytes] = NOTHING
    decided: Callable[[], None] | None = None
    timeout_s: float = 30.0


class Store(Protocol):
    """Immutable values by key, chunked at 512 KiB, with size and SHA-256 checked on every read. Thread-safe.

    Keys are UTF-8 strings of 1 to 1,024 bytes without NUL; by convention `<family>/...` (see `coord/protocol/keys.py`).
    Every call ends within `timeout_s` or raises `errors.StoreUnavailable`. An adapter derives from it and implements `write`, `write_many`
    and the other methods without a body, and overrides the rest only where it has a cheaper way.
    Raises on read: `errors.DataLost` if a chunk is missing or a hash differs; never returns wrong bytes.
    """

    def put(
        self,
        key: str,
        value: bytes | Iterable[bytes | memoryview],
        *,
        encoding: Encoding = Encoding.RAW,
        ttl_s: float | None = None,
        overwrite: bool = True,
        note: Note = b"",
        timeout_s: float = 30.0,
    ) -> None:
        """Writes one value, manifest last. An iterable is streamed and never held whole.

        Writing or reading a large value may take longer than `timeout_s`: a second more for each 16 MiB.

        Writing a key again replaces what readers see in one step (a new generation, then the manifest). Errors of `note`
        go to the caller, and nothing is written.
        Raises: `errors.ValueTooLarge` over 5 GiB; `errors.KeyExists` if `overwrite` is False and the key exists.
        """
        how = Writing(encoding=encoding, ttl_s=ttl_s, overwrite=overwrite, note=note, timeout_s=timeout_s)
        self.write(key, value, how)

    def write(self, key: str, value: bytes | Iterable[bytes | memoryview], how: Writing) -> None:
        """Carries out `put`."""

    def adopt(
        self, key: str, path: str, *, encoding: Encoding = Encoding.RAW, note: Note = b"", sha256: bytes = b""
    ) -> tuple[int, bytes] | None:
        """Puts a file that nobody will change; it becomes the value without being copied. Its name stays.

        sha256: of its bytes, if known; if it is wrong, the value cannot be read (`DataLost`).
        Returns: its size and SHA-256; None if it cannot become a value: `put` it. Raises: OSError if it cannot be read.
        """
        del key, path, encoding, note, sha256  # only some adapters keep files
        return None

    def adopts_above(self, directory: str) -> int | None:
        """Returns the size (bytes) above which values are worth a file in `directory` for `adopt`; None: never."""
        del directory
        return None

    def put_many(
        self,
        rows: Sequence[tuple[str, bytes]],
        *,
        encoding: Encoding = Encoding.RAW,
        ttl_s: float | None = None,
        overwrite: bool = True,
        notes: Sequence[bytes] = (),
        replaces: Mapping[str, bytes] = NOTHING,
        decided: Callable[[], None] | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        """Writes many small values; if it fails, any subset may be durable. The cheap way for bulk. notes: one per row, or none.

        replaces: with `overwrite` False, keys that may exist if their value has this SHA-256; checked and written in one step.
        decided: with `overwrite` False, called at most once, on the caller's thread, and only by stores where that is well before the end:
            from then on no other client can create these keys, unless this write fails. A caller that gives it needs the rows
            to be durable only with what is written later, not at the return: SQLite saves a sync of the disk.
        Raises: `errors.KeyExists` naming the keys if `overwrite` is False and some exist; then nothing is written of up to 4 MiB of rows
        below 512 KiB each.
        """
        how = Writing(
            encoding=encoding,
            ttl_s=ttl_s,
            overwrite=overwrite,
            notes=notes,
            replaces=replaces,
            decided=decided,
            timeout_s=timeout_s,
        )
        self.write_many(rows, how)

    def write_many(self, rows: Sequence[tuple[str, bytes]], how: Writing) -> None:
        """Carries out `put_many`."""

    @property
    def puts_soon(self) -> bool:
        """Whether the store supports `put_soon`."""
        return False

    def put_soon(
        self,
        rows: Sequence[tuple[str, bytes]],
        *,
        encoding: Encoding,
        notes: Sequence[bytes],
        done: Callable[[RmgrError | None], None],
        overwrite: bool = True,
        decided: Callable[[], None] | None = None,
    ) -> bool:
        """Begins to write a few small values, as `put_many`, and waits for nothing. False: it cannot; use `put_many`.

        done: gets None once they are durable, or why that is not known; on another thread, which it must not hold up; perhaps never,
            because no timeout ends it. overwrite, decided: as for `put_many`; with `overwrite` False the rows are durable with what is
            written later.
        """
        return self.write_soon(rows, Writing(encoding=encoding, notes=notes, overwrite=overwrite, decided=decided), done)

    def write_soon(self, rows: Sequence[tuple[str, bytes]], how: Writing, done: Callable[[RmgrError | None], None]) -> bool:
        """Carries out `put_soon`, if it can."""
        del rows, how, done  # only some adapters have a thread for it
        return False

    def get(self, key: str, *, timeout_s: float = 30.0) -> tuple[bytes, Encoding] | None:
        """Reads one value whole, None if there is none (or it was deleted). Only for one's own values: reads for others need a bound."""
        found = self.get_noted(key, timeout_s=timeout_s)
        return None if found is None else (found[0], found[1].encoding)

    def get_many(self, keys: Sequence[str], *, timeout_s: float = 30.0) -> dict[str, tuple[bytes, Encoding]]:
        """Reads many values whole, as `get`; leaves out absent keys."""
        found = self.get_noted_many(keys, largest=MAX_VALUE_BYTES, timeout_s=timeout_s)
        return {key: (value, about.encoding) for key, (value, about) in found.items() if value is not None}

    def fetch(self, key: str, path: str, *, largest: int, is_compared: bool = True) -> tuple[bytes | None, bytes] | None:
        """Reads a value of up to `largest` bytes, a large one as a file: without a copy if the store has it as a file of this machine.

        is_compared: False: the reader of the file compares its hash.
        Returns: (the value, or None if it is the file `path`, never to be changed; its SHA-256, which was compared), None if absent.
        Raises: `errors.ValueTooLarge`; OSError (a full disk). Then there is no file.
        """
        del path, is_compared  # only some adapters make a file
        found = self.get_noted_many([key], largest=largest).get(key)
        if found is not None and found[0] is None:
            raise ValueTooLarge(f"the value of {key!r} has {found[1].size:,} bytes, and no more than {largest:,} are wanted")
        return None if found is None else (found[0], found[1].sha256)

    def stream(self, key: str, *, timeout_s: float = 30.0) -> Iterator[bytes] | None:
        """Reads one value in chunks of up to 4 MiB, two of them in memory; a reader with a bound counts, and stops.

        Checks the hash as chunks pass, and raises `DataLost` at the end if it differs.
        """

    def head(self, key: str, *, timeout_s: float = 30.0) -> tuple[int, Encoding] | None:
        """Returns size in bytes and encoding, without reading the value."""
        about = self.about(key, timeout_s=timeout_s)
        return None if about is None else about[:2]

    def about(self, key: str, *, timeout_s: float = 30.0) -> About | None:
        """Returns the facts about a value, without reading it."""
        return self.about_many([key], timeout_s=timeout_s).get(key)

    def about_many(self, keys: Sequence[str], *, timeout_s: float = 30.0) -> dict[str, About]:
        """Returns the facts about many values, without reading them; leaves out absent keys."""
        return {key: about for key, (_, about) in self.get_noted_many(keys, largest=-1, timeout_s=timeout_s).items()}

    def get_noted(self, key: str, *, timeout_s: float = 30.0) -> tuple[bytes, About] | None:
        """Reads a value with the facts about exactly these bytes: `About.sha256` is theirs."""
        value, about = self.get_noted_many([key], largest=MAX_VALUE_BYTES, timeout_s=timeout_s).get(key, (None, None))
        return None if value is None or about is None else (value, about)

    def get_noted_many(self, keys: Sequence[str], *, largest: int, timeout_s: float = 30.0) -> dict[str, tuple[bytes | None, About]]:
        """Reads many values with their facts, in as few round trips as possible; leaves out absent keys.

        Has None in place of the bytes of a value above `largest` bytes (-1: of all); read such a value as a file or a
        stream. Holds all that it returns in memory.
        """

    def delete(self, key: str, *, timeout_s: float = 30.0) -> bool:
        """Makes the key absent for all readers; True if it was there."""
        return bool(self.delete_many([key], timeout_s=timeout_s))

    def delete_many(self, keys: Sequence[str], *, timeout_s: float = 30.0) -> list[str]:
        """Makes many keys absent; returns those that existed, in the order of `keys`. After a failure any of them may be gone."""

    def keys(self, prefix: str = "", *, after: str = "", limit: int = 1000, timeout_s: float = 30.0) -> list[str]:
        """Returns up to `limit` keys with `prefix`, sorted, greater than `after`. For people and tools, never to find work."""

    def usage(self, prefix: str = "", *, timeout_s: float = 30.0) -> tuple[int, int]:
        """Returns (number of values, total bytes) under `prefix`."""

    def sweep(self, *, now_ms: int | None = None, timeout_s: float = 30.0) -> int:
        """Removes expired and unreferenced rows; returns how many. Called by the leader now and then.

        now_ms: the cluster's wall clock; the earlier of this and the machine's own counts, so that neither, if wrong, removes too early.
        """

    def bind_cluster(self, cluster_id: str, *, timeout_s: float = 30.0) -> None:
        """Binds the store to a cluster, once and for ever; the same id again is accepted.

        Raises: `errors.WrongCluster` if it belongs to another cluster.
        """
        try:
            self.put(CLUSTER_ID_KEY, cluster_id.encode(), overwrite=False, timeout_s=timeout_s)
        except KeyExists:
            owner = self.cluster_id(timeout_s=timeout_s) or "nobody"
            if owner != cluster_id:
                raise WrongCluster(
                    f"the store belongs to cluster {owner}, not to {cluster_id}",
                    hint="point --store at this cluster's own store, or start with an empty one",
                ) from None

    def cluster_id(self, *, timeout_s: float = 30.0) -> str | None:
        """Returns the cluster that the store belongs to, None for a new store."""
        found = self.get_noted_many([CLUSTER_ID_KEY], largest=_MOST_ID_BYTES, timeout_s=timeout_s).get(CLUSTER_ID_KEY)
        return None if found is None else (found[0] or b"nobody").decode(errors="replace")

    def health(self, *, timeout_s: float = 5.0) -> str | None:
        """Returns None if the store reads and writes, else one sentence about the fault."""

    def close(self) -> None:
        """Flushes accepted writes and closes. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
