"""The Store port through a gateway: the same values, checks and errors; large values travel in parts of 512 KiB.

A call whose gateway dies is repeated on the next one, until its deadline: reads, deletes and overwriting
puts may be repeated; after a put that must not overwrite, the stored value is compared with the one that was to be written.
A small call is also repeated when its gateway stays silent and there are others.
"""

from __future__ import annotations

import hashlib
import math
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from typing import Any, TypeVar

import grpc
import msgspec

from rmgr.adapters import store_rules as rules
from rmgr.adapters.access.auth import ERROR_KEY, rebuild
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.rpc.channels import Gateways, user_metadata
from rmgr.config import user_name
from rmgr.coord.protocol.ports import MAX_VALUE_BYTES, About, Encoding, Note, Store, Writing
from rmgr.errors import DataLost, KeyExists, PermissionDenied, QueueFull, RmgrError, StoreUnavailable, Unavailable, UsageError
from rmgr.model.units import counted, format_duration
from rmgr.v1 import gateway_pb2 as pb
from rmgr.v1 import gateway_pb2_grpc

T = TypeVar("T")

PAGE_KEYS = 1000  #: keys per page of a listing
_AHEAD = 4  # parts of a large value that wait to be sent
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.05, 0.5
#: Seconds after which a small call leaves a gateway that does not answer, if there are others; doubled for each further gateway.
_PATIENCE_S = 5.0
#: A gateway with a slow store answers this much earlier (s).
_EARLY_S = 0.25


class _Deadline(rules.CallDeadline):
    """Deadline of a call as a whole, and of its current try at one gateway."""

    __slots__ = ("try_at",)

    def __init__(self, timeout_s: float) -> None:
        super().__init__(timeout_s)
        self.try_at = math.inf

    def try_s(self) -> float:
        """Returns how long a small call may take at this gateway."""
        return max(0.001, min(self.left_s(), self.try_at - time.monotonic()))

    def try_is_over(self) -> bool:
        """Returns whether this gateway has had its time."""
        return time.monotonic() > self.try_at - _EARLY_S


class GatewayStore(Store):
    """A `Store` (coord/protocol/ports.py) behind `gateways` ("HOST:PORT,..."). Connects at the first call.

    credentials: this client's, None in an open cluster.
    """

    leads = True  #: it follows pointers of others: `coord.keys.led`

    def __init__(self, gateways: str, *, credentials: Credentials | None = None) -> None:
        self._gateways = Gateways(gateways, credentials)
        self._metadata = user_metadata(user_name())
        self._closed = False

    @property
    def url(self) -> str:
        """The store's name for people."""
        return f"gateway:{self._gateways}"

    # -- writing

    def write(self, key: str, value: bytes | Iterable[bytes | memoryview], how: Writing) -> None:
        """See `Store.put`. Holds at most 3 MiB of an iterable, which can be sent only once."""
        deadline = _Deadline(how.timeout_s)
        rules.check_key(key)
        rules.expiry_ms(how.ttl_s)
        if isinstance(value, bytes) and len(value) <= MESSAGE_BYTES:
            made = how.note if isinstance(how.note, bytes) else how.note(hashlib.sha256(value).digest())
            self._put([(key, value)], msgspec.structs.replace(how, notes=(made,)), deadline)
        elif isinstance(value, bytes | bytearray | memoryview) or (how.overwrite and is_whole(value)):
            parts = [memoryview(value).cast("B")] if isinstance(value, bytes | bytearray | memoryview) else [*value]
            rules.check_size(key, size := sum(map(len, parts)))
            deadline.allow(size)
            self._repeat(
                lambda stub: self._write(stub, key, rules.pieces(key, parts, rules.CHUNK_BYTES), how, deadline),
                deadline,
                f"write {key!r}",
                mine=None if how.overwrite else lambda: self._holds(key, parts[0], how.encoding, deadline),
            )
        elif isinstance(value, str) or not isinstance(value, Iterable):
            raise UsageError(f"the value of {key!r} must be bytes or an iterable of bytes, not {type(value).__name__}")
        else:
            self._put_stream(key, rules.pieces(key, value, rules.CHUNK_BYTES), how, deadline)

    def write_many(self, rows: Sequence[tuple[str, bytes]], how: Writing) -> None:
        """See `Store.put_many`. Rows over 512 KiB follow one by one. No row is reported as decided before the end."""
        deadline = _Deadline(how.timeout_s)
        rules.expiry_ms(how.ttl_s)
        small: list[tuple[str, bytes]] = []
        large: list[tuple[str, bytes, bytes]] = []
        beside: list[bytes] = []
        for (key, value), note in zip(rows, rules.notes_of(rows, how.notes), strict=True):
            rules.check_key(key)
            if not isinstance(value, bytes):
                raise UsageError(f"the value of {key!r} must be bytes, not {type(value).__name__}")
            rules.check_size(key, len(value))
            if len(value) > rules.CHUNK_BYTES:
                large.append((key, value, note))
            else:
                small.append((key, value))
                beside.append(note)
        if small:
            self._put(small, msgspec.structs.replace(how, notes=beside), deadline)
        for key, value, note in large:
            self.write(key, value, msgspec.structs.replace(how, note=note, timeout_s=deadline.left_s()))

    def delete_many(self, keys: Sequence[str], *, timeout_s: float = 30.0) -> list[str]:
        """See `Store.delete_many`. After a lost answer it reports all of them as deleted: as far as is known, they were there."""
        deadline = _Deadline(timeout_s)
        gone: set[str] = set()
        for some in _key_batches(keys):
            request = pb.KeysRequest(keys=some)
            doubt: list[bool] = []

            def ask(stub: Any, request: Any = request) -> Any:
                return self._call(stub.DeleteMany, request, deadline)

            told = self._repeat(ask, deadline, f"delete {_named(some)}", doubt=doubt)
            gone.update(some if doubt else told.keys)
        return [key for key in dict.fromkeys(keys) if key in gone]

    def sweep(self, *, now_ms: int | None = None, timeout_s: float = 30.0) -> int:  # noqa: ARG002 - the port's
        """Raises PermissionDenied: the leader sweeps."""
        raise PermissionDenied("sweep: clients of a gateway may not do this to the store")

    # -- reading

    def about_many(self, keys: Sequence[str], *, timeout_s: float = 30.0) -> dict[str, About]:
        rows = self._rows("About", keys, _Deadline(timeout_s), "look at")
        return {row.key: About(row.size, Encoding(row.encoding), row.sha256, row.note) for row in rows}

    def get_noted_many(self, keys: Sequence[str], *, largest: int, timeout_s: float = 30.0) -> dict[str, tuple[bytes | None, About]]:
        """See `Store.get_noted_many`. Values above 2 MiB one by one after the others."""
        deadline = _Deadline(timeout_s)
        found: dict[str, tuple[bytes | None, About]] = {}
        for row in self._rows("GetMany", keys, deadline, "read", largest=largest):
            if not row.large:
                found[row.key] = row.data, told_about(row, row.data)
            elif row.size > largest:
                found[row.key] = None, About(row.size, Encoding(row.encoding), row.sha256, row.note)
            elif (value := self._read_whole(row.key, row.size, deadline.left_s())) is not None:
                found[row.key] = value if len(value[0]) <= largest else (None, value[1])
        return found

    def stream(self, key: str, *, timeout_s: float = 30.0) -> Iterator[bytes] | None:
        """See `Store.stream`. What was read is not read again: a gateway that dies under it ends it with StoreUnavailable."""
        deadline = _Deadline(timeout_s)
        size = self.head(key, timeout_s=timeout_s)
        if size is None:
            return None
        deadline.allow(size[0])

        def begin(stub: Any) -> tuple[Any, Generator[Any, None, None]]:
            parts = self._read(stub, key, deadline)
            return next(parts), parts

        first, parts = self._repeat(begin, deadline, f"read {key!r}")
        return self._chunks(key, first, parts) if first.found else None

    def keys(self, prefix: str = "", *, after: str = "", limit: int = 1000, timeout_s: float = 30.0) -> list[str]:
        """See `Store.keys`. Asks for a page of 1,000 at a time."""
        deadline = _Deadline(timeout_s)
        rules.check_limit(limit)
        request = pb.ListRequest(prefix=rules.check_prefix(prefix), after=rules.check_prefix(after))
        found: list[str] = []
        while len(found) < limit:
            request.limit = min(PAGE_KEYS, limit - len(found))
            page = list(self._repeat(lambda stub: self._call(stub.Keys, request, deadline, is_small=False), deadline, "list its keys").keys)
            found += page
            if len(page) < request.limit:
                break
            request.after = page[-1]
        return found

    def usage(self, prefix: str = "", *, timeout_s: float = 30.0) -> tuple[int, int]:
        reply = self._ask("Usage", pb.ListRequest(prefix=rules.check_prefix(prefix)), timeout_s, "count its values", is_small=False)
        return int(reply.values), int(reply.bytes)

    def health(self, *, timeout_s: float = 5.0) -> str | None:
        try:
            return self._ask("Health", pb.HealthRequest(), timeout_s, "answer").problem or None
        except RmgrError as error:
            return error.message

    def close(self) -> None:
        """Ends the connections. Idempotent."""
        self._closed = True
        self._gateways.close()

    # -- small values

    def _put(self, rows: list[tuple[str, bytes]], how: Writing, deadline: _Deadline) -> None:
        """Writes rows that each fit a message, in one step at the store if possible. how: with a note for each row."""
        missing = rows
        beside = dict(zip((key for key, _ in rows), how.notes, strict=True))

        def write(stub: Any) -> None:
            requests = [put_request(some, how.encoding, how.ttl_s, how.overwrite, beside, how.replaces) for some in batches(missing)]
            if len(requests) == 1:
                self._call(stub.Put, requests[0], deadline)
            else:
                self._call(stub.PutRows, iter(requests), deadline, is_small=False)

        def all_mine() -> bool:
            """After a lost answer, tells by the bytes whether all rows there are ours, written or not, and writes the missing ones."""
            nonlocal missing
            there = self.get_many([key for key, _ in rows], timeout_s=deadline.left_s())
            if any(key in there and there[key] != (value, how.encoding) for key, value in dict(rows).items()):
                return False
            missing = [row for row in rows if row[0] not in there]
            if missing:
                self._repeat(write, deadline, "write")
            return True

        self._repeat(write, deadline, f"write {rows[0][0]!r}{', ...' * (len(rows) > 1)}", mine=None if how.overwrite else all_mine)

    def _rows(self, method: str, keys: Sequence[str], deadline: _Deadline, doing: str, **options: Any) -> Iterator[Any]:
        """Yields what the gateway answers about `keys`. A question about one of them counts as small."""
        for some in _key_batches(keys):
            request = pb.KeysRequest(keys=some, **options)

            def read(stub: Any, request: Any = request) -> list[Any]:
                call = self._call(getattr(stub, method), request, deadline, is_small=len(request.keys) == 1)
                return [row for rows in call for row in rows.rows]

            yield from self._repeat(read, deadline, f"{doing} {_named(some)}")

    # -- large values

    def _read_whole(self, key: str, size: int, timeout_s: float) -> tuple[bytes, About] | None:
        deadline = _Deadline(timeout_s)
        deadline.allow(size)

        def read(stub: Any) -> tuple[bytes, About] | None:
            first, last, room = None, None, BytesIO()  # it gives its bytes away uncopied
            for last in self._read(stub, key, deadline):
                first = first or last
                room.write(last.data)
            if last is None or not last.last:
                raise broken_off(key)
            whole = room.getvalue()
            return (whole, told_about(first, whole)) if first is not None and first.found else None

        return self._repeat(read, deadline, f"read {key!r}")

    def _holds(self, key: str, whole: bytes | memoryview, encoding: Encoding, deadline: _Deadline) -> bool:
        """Returns whether that value is stored, which means after a lost answer that it is ours. Reads it in parts."""
        is_like = self.head(key, timeout_s=deadline.left_s()) == (len(whole), encoding)
        return is_like and hash_of(self.stream(key, timeout_s=deadline.left_s()) or ()) == hash_of([whole])

    def _write(self, stub: Any, key: str, parts: Iterator[bytes], how: Writing, deadline: _Deadline) -> None:
        self._call(stub.Write, with_last(_first(key, how), parts, how.note), deadline, is_small=False)

    def _put_stream(self, key: str, parts: Iterator[bytes], how: Writing, deadline: _Deadline) -> None:
        """Sends an iterable that runs in the caller's thread; an error it raises breaks the call off and is raised here."""
        if self.head(key, timeout_s=deadline.left_s()) is not None and not how.overwrite:  # also finds a gateway that answers
            raise rules.key_exists([key])
        ahead: queue.Queue[bytes | None] = queue.Queue(_AHEAD)
        broken = threading.Event()

        def feed() -> Iterator[bytes]:
            while (part := ahead.get()) is not None:
                yield part

        endpoint = self._gateways.current
        stub = gateway_pb2_grpc.StoreStub(self._gateways.channel(endpoint))
        left_s = self._left(deadline) + rules.patience_s(MAX_VALUE_BYTES)  # what counts is progress: `deadline` grows with each part
        call = stub.Write.future(with_last(_first(key, how), feed(), how.note, broken), timeout=left_s, metadata=self._metadata)
        try:
            for part in parts:
                deadline.allow(len(part))
                if not offer(ahead, part, call, deadline):
                    break
            offer(ahead, None, call, deadline)
            call.result(timeout=self._left(deadline))
        except grpc.FutureTimeoutError:
            message = f"the store did not write {key!r} within {format_duration(deadline.timeout_s)}"
            raise StoreUnavailable(message, hint="rmgr doctor") from None
        except grpc.RpcError as error:
            raise self._told(error, endpoint, f"write {key!r}") from None
        finally:
            if not call.done():
                broken.set()
                call.cancel()
            while not ahead.empty():
                with suppress(queue.Empty):
                    ahead.get_nowait()
            ahead.put(None)

    def _read(self, stub: Any, key: str, deadline: _Deadline) -> Generator[Any, None, None]:
        call = stub.Read(pb.KeyRequest(key=key), timeout=self._left(deadline), metadata=self._metadata)
        try:
            yield from call
        finally:
            call.cancel()

    def _chunks(self, key: str, first: Any, parts: Generator[Any, None, None]) -> Iterator[bytes]:
        last = first.last
        try:
            if first.data:
                yield first.data
            for part in parts:
                last = part.last
                if part.data:
                    yield part.data
        except grpc.RpcError as error:
            raise self._told(error, self._gateways.current, f"read {key!r}") from None
        finally:
            parts.close()
        if not last:
            raise broken_off(key)

    # -- calls

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store was closed")

    def _left(self, deadline: _Deadline) -> float:
        return max(0.001, deadline.left_s())

    def _call(self, method: Callable[..., Any], request: Any, deadline: _Deadline, *, is_small: bool = True) -> Any:
        return method(request, timeout=deadline.try_s() if is_small else self._left(deadline), metadata=self._metadata)

    def _ask(self, method: str, request: Any, timeout_s: float, what: str, *, is_small: bool = True) -> Any:
        deadline = _Deadline(timeout_s)
        return self._repeat(lambda stub: self._call(getattr(stub, method), request, deadline, is_small=is_small), deadline, what)

    def _repeat(
        self,
        what: Callable[[Any], T],
        deadline: _Deadline,
        doing: str,
        *,
        mine: Callable[[], bool] | None = None,
        doubt: list[bool] | None = None,
    ) -> T:
        """Does `what` on one gateway after the other until one answers or no time is left.

        Args:
            mine: tells, after a lost answer, whether our own write caused a KeyExists.
            doubt: gets an entry when an answer was lost on the way.
        """
        doubtful = False
        pause_s, patience = _FIRST_PAUSE_S, _PATIENCE_S if len(self._gateways.endpoints) > 1 else math.inf
        while True:
            self._check_open()
            deadline.check(doing)
            deadline.try_at = time.monotonic() + patience
            patience *= 2
            endpoint = self._gateways.current
            try:
                return what(gateway_pb2_grpc.StoreStub(self._gateways.channel(endpoint)))
            except ValueError:  # the channel was closed by another thread
                self._check_open()
                raise
            except grpc.RpcError as error:
                told = self._told(error, endpoint, doing)
                if isinstance(told, KeyExists) and doubtful and mine is not None and mine():
                    return None  # type: ignore[return-value]
                busy = isinstance(told, QueueFull)
                if not busy and not deadline.try_is_over() and not may_repeat(error):
                    raise told from None
                doubtful = doubtful or (not busy and was_sent(error))
                if doubtful and doubt is not None:
                    doubt.append(True)
                self._gateways.failed(endpoint)
                left_s = deadline.left_s()
                if left_s <= pause_s:
                    raise told from None
                time.sleep(pause_s)
                pause_s = min(_LAST_PAUSE_S, pause_s * 2)

    def _told(self, error: grpc.RpcError, endpoint: str, doing: str) -> RmgrError:
        self._check_open()
        told = rebuild(error, endpoint)
        if was_answered(error) and not (isinstance(told, Unavailable) and type(told) is Unavailable):
            return told
        return StoreUnavailable(f"the store did not {doing}: {told.message}", hint="rmgr doctor")


def _first(key: str, how: Writing) -> Any:
    return pb.ValuePart(key=key, encoding=how.encoding.value, ttl_s=how.ttl_s, overwrite=how.overwrite)


# -- values as messages: parts of a large one, batches of small ones, and the row that came with one ---------------------------


#: Bytes of rows or keys in one message, well below the message limit of 4 MiB.
MESSAGE_BYTES = 2 * 1024 * 1024
_ROW_BYTES = 64


def is_whole(value: object) -> bool:
    """Returns whether the value is a list of bytes, which can be sent repeatedly, unlike a one-time iterable."""
    return isinstance(value, list | tuple) and all(isinstance(part, bytes | memoryview) for part in value)


def hash_of(parts: Iterable[bytes | memoryview]) -> bytes:
    """Returns the SHA-256 of all parts together."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()


def offer(ahead: queue.Queue[bytes | None], part: bytes | None, call: Any, deadline: rules.CallDeadline) -> bool:
    """Waits for room; returns False if the call is over, or makes no progress, so that nobody takes the part."""
    while not call.done() and not deadline.passed():
        with suppress(queue.Full):
            ahead.put(part, timeout=0.1)
            return True
    return False


def with_last(first: Any, parts: Iterator[bytes], note: Note, broken: threading.Event | None = None) -> Iterator[Any]:
    """Yields the messages of a large value; only a complete one ends with a part marked `last`, which has its note."""
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
    """Returns what came with a value, with the hash computed here: no one in between is trusted."""
    return About(len(value), Encoding(told.encoding), hashlib.sha256(value).digest(), told.note)


def batches(rows: Sequence[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    """Splits rows into messages of at most 2 MiB, at least one row each."""
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


def _key_batches(keys: Sequence[str]) -> Iterator[list[str]]:
    for some in batches([(rules.check_key(key), b"") for key in dict.fromkeys(keys)]):
        yield [key for key, _ in some]


def _named(keys: Sequence[str]) -> str:
    return repr(keys[0]) if len(keys) == 1 else counted(len(keys), "value")


# -- what became of a call


def was_answered(error: grpc.RpcError) -> bool:
    """Returns whether the gateway has said what is wrong."""
    return any(key == ERROR_KEY for key, _ in error.trailing_metadata() or ())


def may_repeat(error: grpc.RpcError) -> bool:
    """Returns whether the gateway went away, or was never there."""
    gone = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
    return not was_answered(error) and error.code() in gone


def was_sent(error: grpc.RpcError) -> bool:
    """Returns whether the call may have been carried out."""
    return not str(error.details()).startswith("failed to connect")


def broken_off(key: str) -> DataLost:
    """Returns the error for a value whose last part has not come."""
    return DataLost(f"the value of {key!r} was broken off by the gateway", hint="read it again")
