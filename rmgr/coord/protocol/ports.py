"""The two ports of the house: the coordination service and the data store, as the code above the adapters sees them.

Adapters implement them (`adapters/zookeeper/client.py`, `adapters/sqlite/store.py`, `adapters/cassandra/store.py`; in tests
`harness/memory.py`); one conformance suite a port runs on every adapter. Typing only: nothing here does IO.
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

    Futures resolve on a thread of the adapter: callbacks only enqueue. A future never outlives `timeout_s`: reads
    then fail with `errors.CoordinationUnavailable`, commits answer `Unknown`.
    """

    @property
    def session_id(self) -> int:
        """Id of the current session, 0 when there is none."""

    @property
    def session_timeout_s(self) -> float:
        """Negotiated session timeout T."""

    def last_answer_s(self) -> float:
        """Monotonic time at which the last *answered* request was sent, -inf before the first: what a lease is counted from."""

    def commit(self, multi: Multi, *, timeout_s: float = 10.0) -> Future[Outcome]:
        """Carries out `multi`; commits of one client are carried out in the order in which they were given.

        A lost answer is resolved by `multi.proof` after the reconnection; a multi found not committed is sent again.
        Raises (at once): `errors.RequestTooLarge` over the caps of `coord/protocol/multi.py`.
        """

    def get(self, path: str, *, watch: Callable[[], None] | None = None, timeout_s: float = 10.0) -> Future[Stamped | None]:
        """Data and stat, None when absent. `watch` fires once: on a change, a deletion, a creation, or a lost connection."""

    def get_many(self, paths: Sequence[str], *, timeout_s: float = 10.0) -> Future[list[Stamped | None]]:
        """Data and stat of many, in the order of `paths`, None where there is nothing; one request for up to 64 of them.

        Each is as `get` would find it, but they are not read at one moment. One that may not be read fails them all.
        """

    def at_one_moment(
        self, paths: Sequence[str], lists: Sequence[str], *, timeout_s: float = 10.0
    ) -> Future[list[Stamped | list[str] | None]]:
        """Data and stat at `paths`, then names below `lists` (None where there is nothing), all as they stood at one moment.

        One request, whatever its size: writes wait for it. One that may not be read fails them all.
        """

    def stat(self, path: str, *, watch: Callable[[], None] | None = None, timeout_s: float = 10.0) -> Future[Stat | None]:
        """Stat alone, None when absent; `watch` as in `get` (an absent path may be watched)."""

    def children(self, path: str, *, watch: Callable[[], None] | None = None, timeout_s: float = 10.0) -> Future[list[str] | None]:
        """Names of the children, unsorted; None when `path` is absent. `watch` fires once when a child comes or goes."""

    def sync(self, *, timeout_s: float = 10.0) -> Future[None]:
        """Waits until this client's server has caught up with the leader of the ensemble."""

    def ensure(self, paths: Sequence[str], *, timeout_s: float = 10.0) -> None:
        """Creates missing persistent paths (parents first, empty data); for set-up, not for state."""

    def listen(self, listener: Callable[[SessionState], None]) -> None:
        """Adds a session listener; it is called with the present state at once. Listeners only enqueue."""

    def close(self, *, timeout_s: float = 5.0) -> None:
        """Ends the session at once (its ephemerals go). Idempotent."""


class Encoding(StrEnum):
    """Encoding of a value's bytes, for a client or a runner (daemons never decode)."""

    RAW = "raw"
    PICKLE = "pickle"
    POINTER = "pointer"  #: no value but where to find it: `coord.keys.Pointer`, under `name/<user key>` only


#: The largest value that a store takes: 4 GiB with what pickle adds, and some room.
MAX_VALUE_BYTES = 5 * 2**30
#: The row that says whose store this is, and how long it may be.
CLUSTER_ID_KEY, _MOST_ID_BYTES = "meta/cluster_id", 256
#: No key may exist.
NOTHING: Mapping[str, bytes] = MappingProxyType({})


class About(NamedTuple):
    """Facts about a value beside its bytes. sha256: of the bytes. note: what its writer has left beside it (`coord.ownership`)."""

    size: int
    encoding: Encoding
    sha256: bytes
    note: bytes


#: Bytes that are kept beside a value and change with it in one step; made from the SHA-256 of the value if that is not known before.
Note = bytes | Callable[[bytes], bytes]


class Writing(msgspec.Struct, frozen=True, kw_only=True):
    """How values are written, as an adapter is told: what `Store.put`, `put_many` and `put_soon` are given. note: of one value."""

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
    Every call ends within `timeout_s` or raises `errors.StoreUnavailable`. An adapter derives from it, and writes `write`, `write_many` and
    what else has no body here, and the rest only where it knows a cheaper way.
    Raises on read: `errors.DataLost` when a chunk is missing or a hash differs; never wrong bytes.
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

        A large value has more time than `timeout_s`: a second for each 16 MiB of it; and so has who reads it.

        The same key written again replaces what readers see as one step (a new generation, then the manifest). What `note`
        raises goes to the caller, and nothing is written.
        Raises: `errors.ValueTooLarge` over 5 GiB; `errors.KeyExists` when `overwrite` is False and the key exists.
        """
        how = Writing(encoding=encoding, ttl_s=ttl_s, overwrite=overwrite, note=note, timeout_s=timeout_s)
        self.write(key, value, how)

    def write(self, key: str, value: bytes | Iterable[bytes | memoryview], how: Writing) -> None:
        """Carries `put` out."""

    def adopt(
        self,
        key: str,
        path: str,
        *,
        encoding: Encoding = Encoding.RAW,
        note: Note = b"",
        sha256: bytes = b"",
        timeout_s: float = 30.0,
    ) -> tuple[int, bytes] | None:
        """As `put` of a file that nobody changes any more, and that becomes the value without being copied. Its name stays.

        sha256: of its bytes, where the caller knows it: with another one the value cannot be read (`DataLost`).
        Returns: its size and SHA-256; None: it cannot become one, `put` it. Raises: OSError when it cannot be read.
        """
        del key, path, encoding, note, sha256, timeout_s  # only some adapters keep files
        return None

    def adopts_above(self, directory: str) -> int | None:
        """Values above so many bytes are worth a file in `directory`, for `adopt`; None: none is."""
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
        """Writes many small values, durable together or in any subset if it fails; the cheap way for bulk. notes: one a row, or none.

        replaces: with `overwrite` False, keys that may exist if their value has this SHA-256: looked at and written in one step.
        decided: with `overwrite` False, called at most once, and only by stores where that comes well before the end: nobody else can
            create these keys any more, unless this write fails. On the caller's thread. A caller that gives it needs the rows
            to be durable with what is written later, not at the return: SQLite saves a sync of the disk.
        Raises: `errors.KeyExists` naming the keys when `overwrite` is False and some exist; of up to 4 MiB of rows
        below 512 KiB each nothing is written then.
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
        """Carries `put_many` out."""

    @property
    def puts_soon(self) -> bool:
        """`put_soon` is worth asking for."""
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
        """Begins to write a few small values, as `put_many`, and waits for nothing. False: it does not, `put_many` has to.

        done: gets None once they are durable, or why that is not known; on another thread, which it must not hold up; perhaps never, for
            nothing ends it after a time. overwrite, decided: as for `put_many`; with `overwrite` False the rows are durable with what is
            written later.
        """
        return self.write_soon(rows, Writing(encoding=encoding, notes=notes, overwrite=overwrite, decided=decided), done)

    def write_soon(self, rows: Sequence[tuple[str, bytes]], how: Writing, done: Callable[[RmgrError | None], None]) -> bool:
        """Carries `put_soon` out, if it can."""
        del rows, how, done  # only some adapters have a thread that goes on with it
        return False

    def get(self, key: str, *, timeout_s: float = 30.0) -> tuple[bytes, Encoding] | None:
        """Reads one value whole, None when there is none (or it was deleted). For one's own values: who reads for others has a bound."""
        found = self.get_noted(key, timeout_s=timeout_s)
        return None if found is None else (found[0], found[1].encoding)

    def get_many(self, keys: Sequence[str], *, timeout_s: float = 30.0) -> dict[str, tuple[bytes, Encoding]]:
        """Reads many values whole; absent keys are left out. As `get`."""
        found = self.get_noted_many(keys, largest=MAX_VALUE_BYTES, timeout_s=timeout_s)
        return {key: (value, about.encoding) for key, (value, about) in found.items() if value is not None}

    def fetch(
        self,
        key: str,
        path: str,  # noqa: ARG002 - only some adapters make a file
        *,
        largest: int,
        is_compared: bool = True,  # noqa: ARG002
        timeout_s: float = 30.0,
    ) -> tuple[bytes | None, bytes] | None:
        """A value of up to `largest` bytes for who wants large ones as a file: not copied where the store has it as a file of this machine.

        is_compared: False: whoever reads the file compares its hash.
        Returns: (the value, or None: it is the file `path`, never to be changed; its SHA-256, which was compared), None when it is absent.
        Raises: `errors.ValueTooLarge`; OSError (a full disk). There is no file then.
        """
        found = self.get_noted_many([key], largest=largest, timeout_s=timeout_s).get(key)
        if found is not None and found[0] is None:
            raise ValueTooLarge(f"the value of {key!r} has {found[1].size:,} bytes, and no more than {largest:,} are wanted")
        return None if found is None else (found[0], found[1].sha256)

    def stream(self, key: str, *, timeout_s: float = 30.0) -> Iterator[bytes] | None:
        """Reads one value in chunks of up to 4 MiB, two of them in memory; who takes them counts, and stops where it is enough.

        The hash is checked as they pass and `DataLost` raised at the end if it differs.
        """

    def head(self, key: str, *, timeout_s: float = 30.0) -> tuple[int, Encoding] | None:
        """Size in bytes and encoding, without reading the value."""
        about = self.about(key, timeout_s=timeout_s)
        return None if about is None else about[:2]

    def about(self, key: str, *, timeout_s: float = 30.0) -> About | None:
        """What is known of a value, without reading it."""
        return self.about_many([key], timeout_s=timeout_s).get(key)

    def about_many(self, keys: Sequence[str], *, timeout_s: float = 30.0) -> dict[str, About]:
        """The same of many, without reading them; absent keys are left out."""
        return {key: about for key, (_, about) in self.get_noted_many(keys, largest=-1, timeout_s=timeout_s).items()}

    def get_noted(self, key: str, *, timeout_s: float = 30.0) -> tuple[bytes, About] | None:
        """A value and what is known of exactly these bytes: `About.sha256` is theirs."""
        value, about = self.get_noted_many([key], largest=MAX_VALUE_BYTES, timeout_s=timeout_s).get(key, (None, None))
        return None if value is None or about is None else (value, about)

    def get_noted_many(self, keys: Sequence[str], *, largest: int, timeout_s: float = 30.0) -> dict[str, tuple[bytes | None, About]]:
        """The same of many, in as few round trips as there can be; absent keys are left out.

        Of a value above `largest` bytes (-1: of all) there is None in place of the bytes: who wants that one asks for it, as a file or a
        stream. Holds all that it returns.
        """

    def delete(self, key: str, *, timeout_s: float = 30.0) -> bool:
        """Makes the key absent for all readers; True if it was there."""
        return bool(self.delete_many([key], timeout_s=timeout_s))

    def delete_many(self, keys: Sequence[str], *, timeout_s: float = 30.0) -> list[str]:
        """Makes many absent; returns those that were there, in the order of `keys`. After a failure any of them may be gone."""

    def keys(self, prefix: str = "", *, after: str = "", limit: int = 1000, timeout_s: float = 30.0) -> list[str]:
        """Up to `limit` keys with `prefix`, sorted, greater than `after`. For people and tools, never to find work."""

    def usage(self, prefix: str = "", *, timeout_s: float = 30.0) -> tuple[int, int]:
        """(number of values, total bytes) under `prefix`."""

    def sweep(self, *, timeout_s: float = 30.0) -> int:
        """Removes expired and unreferenced rows; returns how many. Called by the leader now and then."""

    def bind_cluster(self, cluster_id: str, *, timeout_s: float = 30.0) -> None:
        """Says whose store this is, once and for all; the same id again is accepted.

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
        """The cluster whose store this is, None for a new one."""
        found = self.get_noted_many([CLUSTER_ID_KEY], largest=_MOST_ID_BYTES, timeout_s=timeout_s).get(CLUSTER_ID_KEY)
        return None if found is None else (found[0] or b"nobody").decode(errors="replace")

    def health(self, *, timeout_s: float = 5.0) -> str | None:
        """None when the store reads and writes, else what is wrong in one sentence."""

    def close(self) -> None:
        """Flushes what was accepted and lets go. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
