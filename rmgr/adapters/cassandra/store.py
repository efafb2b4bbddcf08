"""The data store of clusters: a `Store` (coord/protocol/ports.py) in one keyspace of Cassandra, for many processes on many machines.

A value of up to 64 KiB is part of its manifest, one cell. A larger one lies in chunks of 512 KiB of a new generation, which never
change, and the manifest that names them is written last: readers see the old value or the new one, whole, and check its
SHA-256. Every write is an upsert with its own timestamp and may be repeated. Nothing is deleted: a marker with a TTL takes
the place of a value. Acknowledged means: a quorum of the replicas of the local data centre has it, each in a commit log that
is synced every 10 s by default. A power cut of all replicas at once loses the writes since the last sync; the kill of a node that
has the only copy loses the last 0.1 s: replicate three times, or set `commitlog_sync: batch`.

Order of writes: replaced and deleted values exceed the timestamp they had, so clocks of machines need not
agree; two writers who replace one key at the same time leave one of the two values. Families whose keys name their content
(`coord/protocol/keys.py`) are written without a look first. `overwrite=False`: see cassandra/rows.py.

Small writes that no thread waits for (`SoonWrites`): each answer, on the driver's thread, sends the next request. Only the usual case is
handled there. A key that exists, the claim of another writer, an answer that is lost or late: each ends the write with an error. Then its
caller takes the long way, `CassandraStore.put_many`, which waits, looks closer and tries again.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain, islice
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import msgspec

from rmgr.adapters import store_rules as rules
from rmgr.adapters.cassandra import schema
from rmgr.adapters.cassandra.link import Calls, CassandraLink, Lost, Rows
from rmgr.adapters.cassandra.reading import Listing, Reader
from rmgr.adapters.cassandra.rows import (
    DELETED,
    FRESH_S,
    INLINE_BYTES,
    PART,
    TOGETHER,
    KeyClaim,
    KeyClaims,
    Lifetime,
    Seen,
    ValueManifest,
    index_requests,
    lifetime,
    look,
    manifest_of,
    requests_at_once,
    small,
    value_requests,
)
from rmgr.adapters.cassandra.url import CassandraTarget
from rmgr.coord.protocol.ports import MAX_VALUE_BYTES, TIMEOUT_S, About, Encoding, Note, Store, Writing
from rmgr.errors import RmgrError, StoreUnavailable, UsageError
from rmgr.model.units import counted

if TYPE_CHECKING:
    from rmgr.adapters.cassandra.driver import DriverConnection

#: Chunks of one upload in flight: 4 MiB.
UPLOAD_WINDOW = 8
#: Seconds for which readers of a value that was replaced or deleted may go on.
GRACE_S = 300.0
#: Length of an hour of the journal (s).
HOUR_S = 3600.0
_CLOSE_S = 1.0
_GROUP_BYTES = 4 * 2**20


class CassandraStore(Store):
    """A `Store`. Opening it never waits, and never fails because the cluster is away: see `CassandraLink`."""

    def __init__(
        self,
        target: CassandraTarget,
        *,
        dial: Callable[[CassandraTarget], DriverConnection] | None = None,
        grace_s: float = GRACE_S,
        hour_s: float = HOUR_S,
    ) -> None:
        """Begins to connect in the background.

        Args:
            dial: makes a connection; another one for tests.
            grace_s: how long chunks of replaced and deleted values stay. hour_s: see `Journal`.
        Raises: `ConfigError` if the driver cannot be imported.
        """
        make = dial or _driver()
        self.url = target.url
        self._target = target
        self._clock = schema.WriteClock()
        # Silent nodes are known before the driver is asked; the rest of the time is for a slow machine, and a hanging peer.
        self._link = CassandraLink(lambda: make(target), where=target.where, verdict_s=target.connect_timeout_s * 1.6)
        self._calls = Calls(self._link, request_timeout_s=target.request_timeout_s)
        self._reader = Reader(self._calls)
        self._listing = Listing(self._calls)
        self._claims = KeyClaims(self._calls, self._clock)
        self._journal = Journal(self._calls, self._listing, self._clock, grace_s=grace_s, hour_s=hour_s)
        self._register = Register(self._calls, self._clock)
        self._soon = SoonWrites(self._calls, self._clock, self._register, request_timeout_s=target.request_timeout_s)

    # -- writing ------------------------------------------------------------------------------------------------------

    def write(self, key: str, value: bytes | Iterable[bytes | memoryview], how: Writing) -> None:
        """See `Store.put`. Holds at most 5 MiB of an iterable: eight chunks on their way and the one being read."""
        deadline = rules.CallDeadline(how.timeout_s)
        rules.check_key(key)
        life = lifetime(how.ttl_s)
        chunks = rules.cut(key, value, rules.CHUNK_BYTES)
        doing = f"put {key!r}"
        if not how.overwrite and self._reader.manifest(key, deadline, doing) is not None:
            raise rules.key_exists([key])  # an early answer; the claim decides
        first = next(chunks, b"")
        if len(first) <= INLINE_BYTES:  # then it is the only one: all but the last are full
            manifest = small(first, how.encoding, life, how.note)
        else:
            known = memoryview(value).nbytes if isinstance(value, bytes | bytearray | memoryview) else MAX_VALUE_BYTES
            manifest = self._upload(key, chain((first,), chunks), how.encoding, life, deadline, how.note, most=known)
        self._write({key: manifest}, life, Writing(overwrite=how.overwrite), deadline, doing)

    def write_many(self, rows: Sequence[tuple[str, bytes]], how: Writing) -> None:
        """See `Store.put_many`. In groups of up to 4 MiB; readers see the rows of a group one by one as they are written."""
        deadline = rules.CallDeadline(how.timeout_s)
        life = lifetime(how.ttl_s)
        for key, value in rows:
            rules.check_key(key)
            if not isinstance(value, bytes):
                raise UsageError(f"the value of {key!r} must be bytes, not {type(value).__name__}")
            rules.check_size(key, len(value))
        beside = {key: note for (key, _), note in zip(rows, rules.notes_of(rows, how.notes), strict=True)}
        for group in _groups(dict(rows)):
            doing = f"put {counted(len(group), 'value')} ({next(iter(group))!r} ...)" if len(group) > 1 else f"put {next(iter(group))!r}"
            if not how.overwrite:
                self._refuse_existing(group, deadline, doing)
            large = {
                key: (rules.cut(key, value, rules.CHUNK_BYTES), beside[key]) for key, value in group.items() if len(value) > INLINE_BYTES
            }
            most = sum(len(group[key]) for key in large)
            manifests = self._upload_all(large, how.encoding, life, deadline, doing, most=most) if large else {}
            manifests |= {key: small(value, how.encoding, life, beside[key]) for key, value in group.items() if key not in large}
            is_all = len(group) == len(beside)
            self._write(manifests, life, how if is_all else msgspec.structs.replace(how, decided=None), deadline, doing)

    @property
    def puts_soon(self) -> bool:
        return self._soon.are_taken

    def write_soon(self, rows: Sequence[tuple[str, bytes]], how: Writing, done: Callable[[RmgrError | None], None]) -> bool:
        """See `Store.put_soon`. Outputs of tasks in one round trip, pointers under new keys in three; each up to 64 KiB."""
        if not rows or any(len(value) > INLINE_BYTES for _, value in rows):
            return False
        beside = zip(rows, rules.notes_of(rows, how.notes), strict=True)
        manifests = {rules.check_key(key): small(value, how.encoding, lifetime(None), note) for (key, value), note in beside}
        if not how.overwrite:
            return how.encoding is Encoding.POINTER and self._soon.create(manifests, done, how.decided)
        return all(map(schema.is_found_unlisted, manifests)) and self._soon.put(manifests, done)

    def delete_many(self, keys: Sequence[str], *, timeout_s: float = 30.0) -> list[str]:
        """See `Store.delete_many`. One request per key to look, one to mark and one for the index, many at a time."""
        deadline = rules.CallDeadline(timeout_s)
        wanted = list(dict.fromkeys(map(rules.check_key, keys)))
        doing = f"delete {wanted[0]!r}" if len(wanted) == 1 else f"delete {counted(len(wanted), 'value')}"
        seen = look(self._calls, wanted, deadline, doing)
        stamps = {key: self._clock.next_us(stamp) for key, (_, stamp) in seen.items()}
        live = {key: manifest for key, (manifest, _) in seen.items() if manifest is not None and manifest.is_live}
        self._note_gone([(key, manifest.generation) for key, manifest in live.items() if manifest.generation is not None], deadline, doing)
        self._calls.all(value_requests(dict.fromkeys(live, DELETED), stamps, 0), deadline, doing)
        listed = self._listed_only([key for key, (manifest, _) in seen.items() if manifest is None], deadline, doing)
        self._calls.all(index_requests(dict.fromkeys([*live, *listed], DELETED), stamps, 0), deadline, doing)
        return [key for key in wanted if key in live]

    def _listed_only(self, keys: Sequence[str], deadline: rules.CallDeadline, doing: str) -> list[str]:
        """Returns those of `keys` that are in the index without a value: perhaps a writer died between the two writes."""
        entries = [schema.ask("index", schema.scope_of(key), schema.bucket_of(key), key, key + "\x01", 1) for key in keys]
        answers = zip(keys, self._calls.all(entries, deadline, doing), strict=True)
        return [key for key, rows in answers if any(size >= 0 for _, (size, _) in rows)]

    # -- reading ------------------------------------------------------------------------------------------------------

    def fetch(self, key: str, path: str, *, largest: int, is_compared: bool = True) -> tuple[bytes | None, bytes] | None:
        """See `Store.fetch`. A value above 64 KiB goes to the file, four chunks at a time."""
        rules.check_key(key)
        del is_compared  # it passes here anyway
        return self._reader.fetch(key, path, rules.CallDeadline(TIMEOUT_S), largest=largest)

    def get_noted_many(self, keys: Sequence[str], *, largest: int, timeout_s: float = 30.0) -> dict[str, tuple[bytes | None, About]]:
        """See `Store.get_noted_many`. One request per key, many at a time; then the chunks of values above 64 KiB, 4 MiB at a time."""
        return self._reader.get_noted_many(list(dict.fromkeys(map(rules.check_key, keys))), rules.CallDeadline(timeout_s), largest=largest)

    def stream(self, key: str, *, timeout_s: float = 30.0) -> Iterator[bytes] | None:
        """See `Store.stream`. `timeout_s` applies to every four chunks; the last one is handed out only after the hash agreed.

        Raises while iterating: `StoreUnavailable` if the value was replaced longer ago than the grace of `sweep`.
        """
        rules.check_key(key)
        return self._reader.stream(key, timeout_s)

    def keys(self, prefix: str = "", *, after: str = "", limit: int = 1000, timeout_s: float = 30.0) -> list[str]:
        """See `Store.keys`. Cheap for a prefix that names its family (and submission): 16 requests; see `Listing`."""
        rules.check_prefix(prefix)
        rules.check_prefix(after)
        rules.check_limit(limit)
        found: list[str] = []
        for key, _ in self._listing.entries(prefix, after, limit, rules.CallDeadline(timeout_s), f"list {prefix!r}"):
            found.append(key)
            if len(found) == limit:
                break
        return found

    def usage(self, prefix: str = "", *, timeout_s: float = 30.0) -> tuple[int, int]:
        """See `Store.usage`. Reads every entry of the index below `prefix`, no value."""
        rules.check_prefix(prefix)
        sizes = [size for _, size in self._listing.entries(prefix, "", 10_000, rules.CallDeadline(timeout_s), f"measure {prefix!r}")]
        return len(sizes), sum(sizes)

    # -- looking after it ---------------------------------------------------------------------------------------------

    def sweep(self, *, now_ms: int | None = None, timeout_s: float = 30.0) -> int:
        """See `Store.sweep`. Frees chunks without a value; Cassandra drops expired rows by itself, they are not counted."""
        return self._journal.sweep(rules.sweep_ms(now_ms), rules.CallDeadline(timeout_s))

    def health(self, *, timeout_s: float = 5.0) -> str | None:
        """See `Store.health`. Reads a row and writes one, each at the configured consistency; says which of the two fails."""
        deadline = rules.CallDeadline(timeout_s)
        mark = str(time.time_ns())
        name = f"health/{id(self) % 1024}"
        for doing, request in (
            ("read", schema.ask("info", name)),
            ("write", schema.ask("set_info", name, mark, self._clock.next_us(), 60)),
        ):
            try:
                self._calls.one(request, deadline, f"{doing} a probe")
            except RmgrError as error:
                only = " (reads work, writes do not)" if doing == "write" else ""
                return self._link.problem() or f"{error.message}{only}"
        return None

    def close(self) -> None:
        """See `Store.close`. All acknowledged writes are in Cassandra already; claims are withdrawn."""
        self._calls.settle_forgotten(_CLOSE_S)
        self._link.close()

    # -- private ------------------------------------------------------------------------------------------------------

    def _upload(
        self, key: str, chunks: Iterable[bytes], encoding: Encoding, life: Lifetime, deadline: rules.CallDeadline, note: Note, *, most: int
    ) -> ValueManifest:
        """Writes the chunks of a new generation, at most `most` bytes; returns the manifest that shall refer to them."""
        return self._upload_all({key: (chunks, note)}, encoding, life, deadline, f"put {key!r}", most=most)[key]

    def _upload_all(
        self,
        values: Mapping[str, tuple[Iterable[bytes], Note]],
        encoding: Encoding,
        life: Lifetime,
        deadline: rules.CallDeadline,
        doing: str,
        *,
        most: int,
    ) -> dict[str, ValueManifest]:
        """Writes the chunks of several values with their notes; chunks of one are on their way together with those of the next."""
        generations = {key: uuid4() for key in values}
        # They count as unreferenced only after this call is over, so no sweep takes the chunks while it lasts.
        notes = [
            self._journal.note(generation, key, later_s=deadline.timeout_s + rules.patience_s(most))
            for key, generation in generations.items()
        ]
        self._calls.all(notes, deadline, doing)
        manifests: dict[str, ValueManifest] = {}

        def requests() -> Iterator[schema.StatementRequest]:
            for key, (chunks, note) in values.items():
                generation, digest = generations[key], sha256()
                size = count = 0
                for data in chunks:
                    deadline.allow(len(data))
                    digest.update(data)
                    yield schema.ask(
                        "set_chunk", *schema.chunk_place(generation, count), data, sha256(data).digest(), self._clock.next_us(), life.ttl_s
                    )
                    size += len(data)
                    count += 1
                whole = digest.digest()
                manifests[key] = ValueManifest(size, whole, rules.marked(encoding, note, whole), life.expires_ms, generation, count, b"")

        try:
            for _ in self._calls.each(requests(), deadline, doing, window=UPLOAD_WINDOW):
                pass
        except BaseException:
            with suppress(RmgrError):  # to free the chunks as soon as possible: the notes above allow time for the longest value
                again = [self._journal.note(generation, key, later_s=deadline.timeout_s) for key, generation in generations.items()]
                self._calls.all(again, deadline, doing)
            raise
        return manifests

    def _write(
        self, manifests: Mapping[str, ValueManifest], life: Lifetime, how: Writing, deadline: rules.CallDeadline, doing: str
    ) -> None:
        """Makes values visible: scopes first, then the index, then the manifests, so that no crash leaves a value that no listing shows.

        Two kinds need not wait for the index. A pointer: the task that it names is submitted after both were acknowledged; until
        then the pointer means nothing and is replaced. Outputs of tasks: an attempt is committed after both, and leftovers of a lost
        attempt are freed by name.
        """
        is_at_once = how.encoding is Encoding.POINTER or all(map(schema.is_found_unlisted, manifests))
        if how.overwrite:
            self._publish(manifests, self._seen(manifests, deadline, doing), life, deadline, doing, is_at_once=is_at_once)
            return
        claim, seen = self._claims.raise_for(list(manifests), deadline, doing, how.replaces)
        if how.decided is not None:
            how.decided()
        try:
            for at in range(0, len(manifests), PART):
                some = dict(islice(manifests.items(), at, at + PART))
                below = {key: seen[key] for key in some if key in seen}
                claim.keep(deadline, doing)
                self._publish(some, below, life, claim.deadline(deadline), doing, is_at_once=is_at_once)
        finally:
            claim.withdraw()

    def _publish(
        self,
        manifests: Mapping[str, ValueManifest],
        seen: Seen,
        life: Lifetime,
        deadline: rules.CallDeadline,
        doing: str,
        *,
        is_at_once: bool,
    ) -> None:
        replaced = [(key, old.generation) for key, (old, _) in seen.items() if old is not None and old.generation is not None]
        self._note_gone(replaced, deadline, doing)
        stamps = {key: self._clock.next_us(seen.get(key, (None, None))[1]) for key in manifests}
        scopes, now_s = {schema.scope_of(key) for key in manifests}, time.monotonic()
        self._calls.all(self._register.requests(scopes, now_s), deadline, doing)
        self._register.written(scopes, now_s)
        if is_at_once:
            self._calls.all(requests_at_once(manifests, stamps, life.ttl_s), deadline, doing)
            return
        self._calls.all(index_requests(manifests, stamps, life.ttl_s), deadline, doing)
        self._calls.all(value_requests(manifests, stamps, life.ttl_s), deadline, doing)

    def _note_gone(self, chunked: Sequence[tuple[str, UUID]], deadline: rules.CallDeadline, doing: str) -> None:
        """Notes generations that nothing refers to once this call is over: a sweep before that would see them in use, and look no more."""
        notes = [self._journal.note(generation, key, later_s=deadline.left_s()) for key, generation in chunked]
        self._calls.all(notes, deadline, doing)

    def _seen(self, manifests: Mapping[str, ValueManifest], deadline: rules.CallDeadline, doing: str) -> Seen:
        """Returns what the writes must exceed: of keys whose value may change, and of large values, whose chunks are to be freed."""
        mutable = [key for key, manifest in manifests.items() if manifest.generation is not None or not schema.is_immutable(key)]
        return look(self._calls, mutable, deadline, doing)

    def _refuse_existing(self, group: Mapping[str, bytes], deadline: rules.CallDeadline, doing: str) -> None:
        """Raises `KeyExists` before chunks are uploaded in vain; groups of small values leave the check to their claim."""
        if any(len(value) > INLINE_BYTES for value in group.values()):
            taken = self._reader.existing(list(group), deadline, doing)
            if taken:
                raise rules.key_exists(sorted(taken))


def _driver() -> Callable[[CassandraTarget], DriverConnection]:
    from rmgr.adapters.cassandra.driver import dial

    return dial


def _groups(rows: dict[str, bytes]) -> Iterator[dict[str, bytes]]:
    """Yields rows in groups of up to 4 MiB (or one larger row)."""
    group: dict[str, bytes] = {}
    weight = 0
    for key, value in rows.items():
        if group and weight + len(value) > _GROUP_BYTES:
            yield group
            group, weight = {}, 0
        group[key] = value
        weight += len(value)
    if group:
        yield group


# -- small writes that no thread waits for -------------------------------------------------------------------------------------


#: Called with the end of a write, on the driver's thread: None, or why it is not known to be there.
Done = Callable[[RmgrError | None], None]


class SoonWrites:
    """Begins writes for one store that no thread waits for. Callable from any thread."""

    def __init__(self, calls: Calls, clock: schema.WriteClock, register: Register, *, request_timeout_s: float) -> None:
        self._calls = calls
        self._clock = clock
        self._register = register
        self._timeout_s = request_timeout_s

    @property
    def are_taken(self) -> bool:
        """Whether the cluster serves."""
        return self._calls.ready is not None

    def put(self, manifests: Mapping[str, ValueManifest], done: Done) -> bool:
        """Writes values and their index entries in one round trip. For keys with one possible value, whose leftovers are freed by name."""
        session = self._session(manifests)
        if session is not None:
            self._publish(session, manifests, {key: self._clock.next_us() for key in manifests}, _run_once(done))
        return session is not None

    def create(self, manifests: Mapping[str, ValueManifest], done: Done, decided: Callable[[], None] | None) -> bool:
        """Writes values under up to 32 new keys, in three round trips; calls `decided` after two of them."""
        session = self._session(manifests) if len(manifests) <= TOGETHER else None
        if session is None:
            return False
        claim, begun_s = KeyClaim(self._calls, self._clock, tuple(manifests)), time.monotonic()

        @_run_once
        def over(error: RmgrError | None) -> None:
            claim.withdraw()
            done(error)

        def raised(_: list[Rows]) -> None:
            self._send(session, claim.questions(), told, over)

        def told(answers: list[Rows]) -> None:
            others, seen = claim.read(answers)
            if taken := [key for key, (manifest, _) in seen.items() if manifest is not None and manifest.is_live]:
                over(rules.key_exists(sorted(taken)))
            elif any(others.values()) or time.monotonic() - begun_s > FRESH_S:
                over(StoreUnavailable(f"others are creating {next(iter(manifests))!r} at the same time, or the cluster is slow"))
            else:
                if decided is not None:
                    decided()
                stamps = {key: self._clock.next_us(seen_us) for key, (_, seen_us) in seen.items()}
                self._publish(session, manifests, stamps, over)

        self._send(session, claim.flags(), raised, over)
        return True

    def _session(self, keys: Iterable[str]) -> DriverConnection | None:
        """Returns None if these keys must go the long way: the cluster is in trouble, or their scopes must be registered first."""
        return self._calls.ready if not self._register.requests({schema.scope_of(key) for key in keys}, time.monotonic()) else None

    def _publish(self, session: DriverConnection, manifests: Mapping[str, ValueManifest], stamps: Mapping[str, int], done: Done) -> None:
        self._send(session, requests_at_once(manifests, stamps, ttl_s=0), lambda _: done(None), done)

    def _send(
        self, session: DriverConnection, requests: Iterable[schema.StatementRequest], then: Callable[[list[Rows]], None], failed: Done
    ) -> None:
        """Calls one of the two functions, with all answers or with the error."""

        def arrived(result: list[Rows] | BaseException) -> None:
            try:
                if isinstance(result, BaseException):
                    failed(_to_rmgr_error(result))
                else:
                    then(result)
            except Exception as error:  # noqa: BLE001 - on a thread of the driver, where nobody would see it
                failed(_to_rmgr_error(error))

        _Answers([session.send(request, self._timeout_s) for request in requests], arrived).await_all()


@dataclass(slots=True)
class _Answers:
    """Collects the answers to some requests, which arrive on threads of the driver. arrived: called with all of them, or with an error."""

    futures: Sequence[Future[Rows]]
    arrived: Callable[[list[Rows] | BaseException], None]
    left: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def await_all(self) -> None:
        self.left = len(self.futures)
        for future in self.futures:
            future.add_done_callback(self._one)

    def _one(self, _: Future[Rows]) -> None:
        with self.lock:
            self.left -= 1
            if self.left:
                return
        failure = next((error for future in self.futures if (error := future.exception()) is not None), None)
        self.arrived([future.result() for future in self.futures] if failure is None else failure)


def _run_once(done: Done) -> Done:
    """Makes `done` run at most once, and ignores its errors: its owner may have ended, and the driver's thread must go on."""
    ends: list[RmgrError | None] = []

    def end(error: RmgrError | None) -> None:
        if not ends:
            ends.append(error)
            with suppress(Exception):
                done(error)

    return end


def _to_rmgr_error(error: BaseException) -> RmgrError:
    if isinstance(error, RmgrError):
        return error
    message = str(error) if isinstance(error, Lost) else f"{type(error).__name__}: {error}"
    return StoreUnavailable(f"cannot write to Cassandra: {message}", hint="it is tried again")


# -- chunks that no value refers to any more, and scopes without keys: found through a journal, freed without a DELETE ------------

# Before the first chunk of a generation is written, and before a value is replaced or deleted, the generation is noted in
# the journal of an hour. When that hour and the grace of readers are over, one look at the value decides: if the value refers to
# another generation (or is gone), the chunks are overwritten with nothing and a TTL of a second, and compaction frees them.
# So a crash at any moment leaves nothing for ever, and a sweep reads only what was written since the last one.
#
# Expired values need no sweep: Cassandra drops them itself. If no sweep runs for a week, that week's journal expires, and
# the chunks it would have freed stay.

JOURNAL_TTL_S = 7 * 86_400
SWEPT = "swept_hour"
_PAGE = 200
_NO_UUID = UUID(int=0)
#: Time without writes after which a scope without keys leaves the register; writers register their scopes far more often.
_SCOPE_REST_MS = 86_400_000
REGISTER_AGAIN_S = 3600.0
_SCOPES_A_SWEEP = 200


class Journal:
    """The journal of one store, and the sweep that works through it."""

    def __init__(self, calls: Calls, listing: Listing, clock: schema.WriteClock, *, grace_s: float, hour_s: float) -> None:
        """hour_s: length of an hour of the journal; the same for every user of the keyspace."""
        self._calls = calls
        self._listing = listing
        self._clock = clock
        self._grace_ms = int(grace_s * 1000)
        self._hour_ms = int(hour_s * 1000)
        self._walked = ""  # the last scope that was checked

    def note(self, generation: UUID, key: str, *, later_s: float = 0.0) -> schema.StatementRequest:
        """Returns the request that notes that `generation` of `key` may be unreferenced from `later_s` seconds on."""
        hour = (rules.now_ms() + int(later_s * 1000)) // self._hour_ms
        return schema.ask("set_journal", hour, schema.journal_part(generation), generation, key, self._clock.next_us(), JOURNAL_TTL_S)

    def sweep(self, now_ms: int, deadline: rules.CallDeadline) -> int:
        """Works through the hours that are over; returns the number of freed generations and forgotten scopes. Stops at the deadline."""
        over = (now_ms - self._grace_ms) // self._hour_ms
        hour = self._first_hour(over, deadline)
        freed = 0
        while hour < over and not deadline.passed():
            for generation, key in self._noted(hour, deadline):
                freed += self._settle(generation, key, deadline)
            hour += 1
            self._calls.one(schema.ask("set_info", SWEPT, str(hour), self._clock.next_us(), 0), deadline, "sweep")
        return freed + self._forget_scopes(now_ms - _SCOPE_REST_MS, deadline)

    def _first_hour(self, over: int, deadline: rules.CallDeadline) -> int:
        oldest = over - int(JOURNAL_TTL_S * 1000) // self._hour_ms
        if rows := self._calls.one(schema.ask("info", SWEPT), deadline, "sweep"):
            return max(oldest, int(rows[0][0]))
        rows = self._calls.one(schema.ask("info", schema.FOUNDED_NAME), deadline, "sweep")
        return max(oldest, int(rows[0][0]) // self._hour_ms) if rows else oldest

    def _noted(self, hour: int, deadline: rules.CallDeadline) -> Iterator[tuple[UUID, str]]:
        for part in range(schema.JOURNAL_PARTS):
            behind = _NO_UUID
            while True:
                rows = self._calls.one(schema.ask("journal", hour, part, behind, _PAGE), deadline, "sweep")
                yield from rows
                if len(rows) < _PAGE:
                    break
                behind = rows[-1][0]

    def _settle(self, generation: UUID, key: str, deadline: rules.CallDeadline) -> bool:
        manifest = manifest_of(self._calls.one(schema.ask("value", key), deadline, "sweep"))
        if manifest is not None and manifest.generation == generation:
            return False
        freed = False
        bucket = 0
        while numbers := self._calls.one(schema.ask("chunk_numbers", generation, bucket), deadline, "sweep"):
            stamp = self._clock.next_us()
            gone = [schema.ask("set_chunk", generation, bucket, number, b"", b"", stamp, 1) for (number,) in numbers]
            self._calls.all(gone, deadline, "sweep")
            freed = True
            bucket += 1
        return freed

    # -- the register of scopes ----------------------------------------------------------------------------------------

    def _forget_scopes(self, before_ms: int, deadline: rules.CallDeadline) -> int:
        """Checks the register of divided families, from where the last sweep ended; returns the number of forgotten scopes."""
        forgotten = looked = 0
        for family in sorted(f"{name}/" for name in schema.DIVIDED):
            if family < self._walked and not self._walked.startswith(family):
                continue
            start = self._walked if self._walked.startswith(family) else ""
            for scope, since_ms in self._listing.scopes(family, start, deadline, "sweep"):
                self._walked = scope
                if looked >= _SCOPES_A_SWEEP or deadline.passed():
                    return forgotten
                if since_ms > before_ms:
                    continue
                looked += 1
                if next(self._listing.entries(scope, "", 1, deadline, "sweep"), None) is None:
                    self._calls.one(schema.ask("set_scope", family, scope, since_ms, self._clock.next_us(), 1), deadline, "sweep")
                    forgotten += 1
        self._walked = ""
        return forgotten


class Register:
    """Writes the scopes that this process uses into the register, each once an hour."""

    def __init__(self, calls: Calls, clock: schema.WriteClock) -> None:
        self._calls = calls
        self._clock = clock
        self._known: dict[str, float] = {}  # scope -> monotonic time until which it need not be written again

    def requests(self, scopes: Iterable[str], now_s: float) -> list[schema.StatementRequest]:
        """Returns writes for those of the scopes that are due."""
        due = [scope for scope in sorted(scopes) if self._known.get(scope, -math.inf) <= now_s]
        return [schema.ask("set_scope", schema.register_of(scope), scope, rules.now_ms(), self._clock.next_us(), 0) for scope in due]

    def written(self, scopes: Iterable[str], now_s: float) -> None:
        """Notes that `scopes` are in the register."""
        if len(self._known) > 10_000:
            self._known.clear()
        for scope in scopes:
            if self._known.get(scope, -math.inf) <= now_s:
                self._known[scope] = now_s + REGISTER_AGAIN_S
